"""`profiler-overhead`: how much of the host's time recording stacks and shapes may be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.gaps.causes import HOST
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, EventKind

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: What recording one is taken to cost, ns: a frame, an operation.
_COSTS: Final = {
    "stacks": ("Python frames", EventKind.PYTHON_FUNCTION, 500.0),
    "shapes": ("operations with shapes", EventKind.CPU_OP, 1_000.0),
}
#: Less of the host's time is not worth telling; nor where the GPU waits for the host for less.
WORTH_PERCENT: Final = 10.0
_WAITS_SHARE: Final = 0.05


def overhead(inspection: Inspection) -> tuple[float, list[Evidence]]:
    """What recording may be of the time of the launching threads, percent, and the numbers.

    Nothing where the GPU does not wait for the host.
    """
    work, trace, wall = inspection.work, inspection.work.trace, inspection.wall
    pieces = wall.classified.pieces
    waits = wall.mean_ms((pieces.end - pieces.start)[pieces.cause == HOST]) * NS_PER_MS
    if waits < _WAITS_SHARE * inspection.judged_ns:
        return 0.0, []
    threads = np.unique(trace.thread[work.tree.launch_of_gpu[work.tree.linked]])
    total, evidence = 0.0, []
    for what, (name, kind, cost) in _COSTS.items():
        rows = trace.rows_of(kind)
        rows = rows[np.isin(trace.thread[rows], threads)]
        rows = rows[(trace.ts[rows] >= wall.start) & (trace.ts[rows] < wall.end)]
        if len(rows) and what not in inspection.missing:
            total += cost * len(rows)
            evidence.append(Evidence(name, len(rows), "events", "cpu_ops"))
            each = f"taken for each of the {name}"
            evidence.append(Evidence(each, cost / NS_PER_US, "µs", "cpu_ops"))
    return min(100.0 * total / max(len(threads) * wall.total_ns, 1), 100.0), evidence


def _detect(inspection: Inspection) -> Finding | None:
    percent, evidence = overhead(inspection)
    if percent < WORTH_PERCENT:
        return None
    told = inspection.information(
        DETECTOR.id,
        inspection.wall.about(np.zeros(len(inspection.work), dtype=bool)),
        title=f"Recording stacks and shapes may be {percent:.0f} % of the host's time",
        advice=(
            "The GPU waits for the host here, and the profiler makes the host slower: compare the"
            " time of a step with a run without the profiler, or record without stacks and shapes,"
            " before changing the program."
        ),
        snippet="torch.profiler.profile(with_stack=False, record_shapes=False)",
        reason="it is the number of events, times what recording one is taken to cost",
        evidence=evidence,
    )
    return replace(told, confidence="low")


DETECTOR = Detector("profiler-overhead", _detect)
