"""`profiler-overhead`: how much of the host's time recording stacks and shapes may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT, Detector
from tracelens_ext.gaps.causes import HOST
from tracelens_ext.trace import NS_PER_US, EventKind

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: What the recording of one event costs at most as a rule; the shortest that were recorded tell.
_MOST_NS: Final = 2_000
_SHORTEST: Final = 0.1  # of the events
_WORTH_PERCENT: Final = 10.0


def overhead(inspection: Inspection) -> tuple[float, list[Evidence]]:
    """What the recording may be of the host's time, percent; and the numbers behind it."""
    work, trace = inspection.work, inspection.work.trace
    threads = np.unique(trace.thread[work.tree.launch_of_gpu[work.tree.linked]])
    wall, total, evidence = inspection.wall, 0.0, []
    recorded = [("Python frames", "stacks", EventKind.PYTHON_FUNCTION)]
    recorded.append(("operations with shapes", "shapes", EventKind.CPU_OP))
    for name, what, kind in recorded:
        rows = trace.rows_of(kind)
        rows = rows[np.isin(trace.thread[rows], threads)]
        rows = rows[(trace.ts[rows] >= wall.start) & (trace.ts[rows] < wall.end)]
        if what in inspection.missing or not len(rows):
            continue
        cost = min(float(np.quantile(trace.dur[rows], _SHORTEST)), _MOST_NS)
        total += cost * len(rows)
        evidence.append(Evidence(name, len(rows), "events", "cpu_ops"))
        evidence.append(Evidence(f"shortest of the {name}", cost / NS_PER_US, "µs", "cpu_ops"))
    return 100.0 * total / (max(len(threads), 1) * max(wall.total_ns, 1)), evidence


def _detect(inspection: Inspection) -> Finding | None:
    wall = inspection.wall
    pieces = wall.classified.pieces
    late = pieces.chosen(pieces.cause == HOST)
    waited = 100 * wall.mean_ms(late.end - late.start) * 1e6 / inspection.judged_ns
    percent, evidence = overhead(inspection)
    if percent < _WORTH_PERCENT or waited < LEAST_SHARE_PERCENT:
        return None
    return inspection.information(
        DETECTOR.id,
        wall.about(np.zeros(len(inspection.work), dtype=bool)),
        title=f"Recording stacks and shapes may be {percent:.0f} % of the host's time",
        advice=(
            "The GPU waits for the host here, and the profiler makes the host slower: compare the"
            " time of a step with a run without the profiler, or record without stacks and shapes,"
            " before changing the program."
        ),
        snippet="torch.profiler.profile(with_stack=False, record_shapes=False)",
        reason="the shortest events tell what recording one costs at least; how many there are",
        evidence=evidence,
    )


DETECTOR = Detector("profiler-overhead", _detect)
