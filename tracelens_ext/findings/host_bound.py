"""`host-bound`: the GPU is idle because the host launches too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.gaps.causes import HOST, LAUNCH_OVERHEAD, SYNCHRONISATION
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection


def _detect(inspection: Inspection) -> Finding | None:
    wall = inspection.wall
    idle, length = wall.idle, wall.idle.end - wall.idle.start
    late = np.isin(idle.cause, (HOST, LAUNCH_OVERHEAD, SYNCHRONISATION))
    # Why something starts late that was launched long before is not known, unless the host, too,
    # stood still.
    late |= wall.may_wait(idle) & wall.nothing_launched[idle.gap]
    holes = wall.mean_ms(length[late & (idle.cause == LAUNCH_OVERHEAD)]) * NS_PER_MS
    claim = wall.claim_idle(late)
    if not inspection.is_worth(claim):
        return None
    _, number = np.unique(claim.intervals.gap, return_inverse=True)
    median = float(np.median(np.bincount(number, length[late]))) / 1e3
    mostly_holes = holes > claim.saving_ns / 2
    return inspection.finding(
        DETECTOR.id,
        claim,
        title=(
            "The GPU idles for {saving} in short holes between kernels"
            if mostly_holes
            else "The host launches too slowly: the GPU idles for {saving}"
        ),
        advice=(
            "Give the GPU more work a launch: replay the whole step as a CUDA graph, or compile it,"
            " or use larger batches. Where one place stands out, make that Python code"
            " faster, or move it out of the loop."
        ),
        snippet='model = torch.compile(model, mode="reduce-overhead")',
        confidence="low" if mostly_holes else "medium",
        reason=(
            "the kernels were launched in time; graphs make such holes shorter, not disappear"
            if mostly_holes
            else "the next launch came after the GPU had run dry; how much faster the host becomes"
            " depends on what replaces its work"
        ),
        evidence=[
            Evidence("gaps", len(claim.gaps), "gaps", "gap_summary"),
            Evidence("median of it in a gap", median, "µs", "gaps"),
            Evidence("of it no longer than a launch takes", holes / NS_PER_MS, "ms", "gap_summary"),
        ],
    )


DETECTOR = Detector("host-bound", _detect)
