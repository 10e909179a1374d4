"""Steps of optimizers, and the GPU events that they launch."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.trace import NONE, EventKind, Int64Array
from tracelens_ext.trace.sorted_groups import last_before

#: PyTorch's annotation around a step of an optimizer.
STEP: Final = re.compile(r"Optimizer\.step#(\w+)")
#: The optimizers of PyTorch that have a fused step.
_WITH_FUSED_STEP: Final = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})


class OptimizerSteps(NamedTuple):
    """The s steps of optimizers by thread and start."""

    rows: Int64Array  #: the rows of their annotations, (s,)
    #: the step that launched each GPU event, `NONE` without one, (g,)
    of_gpu: Int64Array


def optimizer_steps(inspection: Inspection) -> OptimizerSteps:
    """Return the steps of optimizers of a trace."""
    rows = inspection.host_rows(STEP, EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    return launched_within(inspection, rows)


def optimizer_name(inspection: Inspection, steps: Int64Array) -> str:
    """Return the name of the optimizer of some steps; empty if there are several."""
    trace = inspection.gpu_events.trace
    names = set()
    for code in np.unique(trace.name[steps]).tolist():
        match = STEP.match(trace.names[code])
        if match:
            names.add(match[1])
    if len(names) != 1:
        return ""
    return names.pop()


def option_of_optimizer(name: str) -> str:
    """Return the option with which an optimizer updates many parameters at once."""
    if not name or name in _WITH_FUSED_STEP:
        return "fused"
    return "foreach"


def launched_within(inspection: Inspection, rows: Int64Array) -> OptimizerSteps:
    """Sort CPU events by thread and start, and find the GPU events launched inside of each.

    A launch is inside of an event on the same thread.
    """
    trace = inspection.gpu_events.trace
    tree = inspection.gpu_events.tree
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    launch = tree.launch_of_gpu
    if not len(rows):
        return OptimizerSteps(rows, np.full(len(launch), NONE))
    launched_at = trace.ts[launch]
    step = last_before(
        group=trace.thread[rows],
        time=trace.ts[rows],
        query_group=trace.thread[launch],
        query_time=launched_at + 1,
    )
    is_inside = tree.linked & (step != NONE) & (launched_at < trace.end_of(rows[step]))
    return OptimizerSteps(rows, np.where(is_inside, step, NONE))


def bytes_of_row(row: RooflineRow) -> int:
    """Return the bytes that a call of an operation moves; 0: not known."""
    if row.cost is None:
        return 0
    return row.cost.bytes
