"""`profiler-overhead`: how much of the host's time recording stacks and shapes may be."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.gaps.causes import NOT_RECORDED
from tracelens_ext.trace import NS_PER_MS, EventKind

#: What recording one is taken to cost, ns: a Python frame, an operation with shapes.
_COSTS: Final = {
    "stacks": (EventKind.PYTHON_FUNCTION, 500),
    "shapes": (EventKind.CPU_OP, 1_000),
}
#: What of the host's time is worth telling, where the GPU is idle for so much, percent.
_WORTH, _WAITS = 10.0, 5.0


def recorder_percent(inspection: Inspection) -> float:
    """What recording may be of the time of the launching threads; 0 for what is not worth telling.

    Nor does it matter where the GPU is hardly idle.
    """
    trace, wall, linked = inspection.work.trace, inspection.wall, inspection.work.tree.linked
    pieces, total = wall.classified.pieces, 0
    waits = wall.mean_ms((pieces.end - pieces.start)[pieces.cause < NOT_RECORDED]) * NS_PER_MS
    threads = np.unique(trace.thread[inspection.work.tree.launch_of_gpu[linked]])
    for what, (kind, cost) in _COSTS.items():
        if what not in inspection.missing:
            rows = trace.rows_of(kind)
            rows = rows[(trace.ts[rows] >= wall.start) & (trace.ts[rows] < wall.end)]
            total += cost * int(np.isin(trace.thread[rows], threads).sum())
    percent = min(100.0 * total / max(len(threads) * wall.total_ns, 1), 100.0)
    told = percent >= _WORTH and 100 * waits >= _WAITS * inspection.judged_ns
    return percent if told else 0.0


def _detect(inspection: Inspection) -> Finding | None:
    percent = recorder_percent(inspection)
    if not percent:
        return None
    return inspection.finding(
        DETECTOR.id,
        None,
        title=f"Recording stacks and shapes may be {percent:.0f} % of the host's time",
        informs=True,
        evidence=[Evidence("estimated for the launching threads", percent, "%", "cpu_ops")],
    )


DETECTOR = Detector("profiler-overhead", _detect)
