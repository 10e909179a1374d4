"""The CPU time that recording the trace took."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.trace import NS_PER_MS, EventKind

#: The assumed time to record an event, ns: a Python frame, or an operation with its shapes.
_COSTS: Final = {
    "stacks": (EventKind.PYTHON_FUNCTION, 500),
    "shapes": (EventKind.CPU_OP, 1_000),
}
#: A smaller share of the CPU's time, percent, is not reported.
_LEAST_COST_PERCENT: Final = 10.0
#: If the GPU is idle for less of the analyzed time, percent, the cost does not matter.
_LEAST_IDLE_PERCENT: Final = 5.0


def recorder_percent(inspection: Inspection) -> float:
    """Return the likely share of recording in the time of the launching threads, percent.

    0 if the share is small or the GPU is hardly idle.
    """
    trace = inspection.gpu_events.trace
    wall = inspection.wall
    idle = wall.classified.intervals
    is_known = idle.cause < Cause.NOT_RECORDED.code
    idle_ns = wall.mean_ms((idle.end - idle.start)[is_known]) * NS_PER_MS
    linked = inspection.gpu_events.tree.linked
    threads = np.unique(trace.thread[inspection.gpu_events.tree.launch_of_gpu[linked]])
    recording_ns = 0
    for what, (kind, cost_ns) in _COSTS.items():
        if what in inspection.missing:
            continue
        rows = trace.rows_of(kind)
        begun = trace.ts[rows]
        is_within = (begun >= wall.start) & (begun < wall.end)
        is_on_thread = np.isin(trace.thread[rows[is_within]], threads)
        recording_ns += cost_ns * int(is_on_thread.sum())
    total_ns = max(len(threads) * wall.total_ns, 1)
    percent = min(100.0 * recording_ns / total_ns, 100.0)
    gpu_idles = 100 * idle_ns >= _LEAST_IDLE_PERCENT * inspection.analyzed_ns
    if percent < _LEAST_COST_PERCENT or not gpu_idles:
        return 0.0
    return percent
