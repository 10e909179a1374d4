"""Gradients that are set to zero one by one."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import launched_within
from tracelens_ext.findings.texts import EvidenceText, FindingText, Remedy
from tracelens_ext.trace import NONE, EventKind, Int64Array
from tracelens_ext.trace.sorted_groups import outermost

TEXT: Final = FindingText(
    title="Gradients set to zero one by one: {saving}",
    advice=(
        "Set gradients to None instead of zero, which launches nothing; the next backward pass "
        "writes them anew."
    ),
    snippet="optimizer.zero_grad(set_to_none=True)",
    confidence="high",
    reason="each launch in zero_grad() fills the gradient of one parameter",
    evidence={
        "calls": EvidenceText(what="calls of zero_grad()", unit="calls", see="cpu_ops"),
        "events": EvidenceText(what="fills in them", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "idle_ms": EvidenceText(
            what="idle time in them", unit="ms", see="idle_cpu_activity"
        ),
    },
    most_share=1.1,
)

#: PyTorch's annotation around `zero_grad`, and the Python frame of an optimizer or a module.
_ZERO_GRAD: Final = re.compile(r"Optimizer\.zero_grad#|.*: zero_grad$")
_FILL: Final = re.compile(r"FillFunctor|[Mm]emset|fill_kernel")
#: Calls with fewer fills are not reported.
_MANY_FILLS: Final = 20


@detector(
    "zero-gradients",
    TEXT,
    remedy=Remedy.REMOVES_LAUNCHES,
    kinds=("pytorch-training",),
)
def zero_gradients(inspection: Inspection) -> Finding | None:
    """Detect gradients that are set to zero one by one, and idle time meanwhile."""
    gpu_events = inspection.gpu_events
    calls = launched_within(inspection, _outermost_calls(inspection))
    if not len(calls.rows):
        return None
    is_fill = (calls.of_gpu != NONE) & gpu_events.trace.named(
        gpu_events.name, _FILL.search
    )
    fills = np.bincount(calls.of_gpu[is_fill], minlength=len(calls.rows))
    fills_many = fills >= _MANY_FILLS
    is_chosen = is_fill & fills_many[calls.of_gpu]
    idle = inspection.wall.claim_idle_during(calls.rows[fills_many])
    claim = idle + inspection.wall.claim_events(is_chosen)
    numbers = {
        "calls": int(fills_many.sum()),
        **inspection.size_of(claim),
        "idle_ms": idle.attributed_ms,
    }
    return inspection.finding("zero-gradients", claim, numbers, text=TEXT)


def _outermost_calls(inspection: Inspection) -> Int64Array:
    """Return the rows of calls of `zero_grad` that are not inside of another such call."""
    trace = inspection.gpu_events.trace
    kinds = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
    rows = inspection.host_rows(_ZERO_GRAD, *kinds)
    order = np.lexsort((-trace.end_of(rows), trace.ts[rows], trace.thread[rows]))
    rows = rows[order]
    thread = trace.thread[rows].astype(np.int64)
    is_outermost = outermost(thread, trace.end_of(rows))
    return rows[is_outermost]
