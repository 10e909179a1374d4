"""Steps of the optimizer, and the kernels that they launch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents

_STEP_NAME = re.compile(r"optimizer[._]step|optimizer#", re.IGNORECASE)


def optimizer_steps(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the host events that are steps of an optimizer, (n,)."""
    trace = gpu_events.trace
    host_events = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    is_step = trace.named(trace.name[host_events], _STEP_NAME.search)
    steps: Int64Array = host_events[is_step]
    return steps


def is_of_optimizer(gpu_events: GpuEvents, kernels: Int64Array) -> BoolArray:
    """Return which kernels were launched in a step of the optimizer, (k,)."""
    tree = gpu_events.tree
    result = np.zeros(len(kernels), dtype=bool)
    is_linked = tree.linked[kernels]
    launches = tree.launch_position_of_gpu[kernels[is_linked]]
    step_above = collectives.events_above(tree, launches, optimizer_steps(gpu_events))
    result[is_linked] = step_above != NONE
    return result
