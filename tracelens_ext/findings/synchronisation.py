"""`synchronisation`: the host waits for the GPU, which then has nothing to do.

While the host waits it cannot launch anything, so when the GPU has done its work it idles until the
host has caught up. Without the wait the host would be ahead by as long as it waited, so no more
than that is saved of the idle time after it; the rest is the host's own slowness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.places import frames_around, operations_around
from tracelens_ext.gaps.causes import SYNCHRONISATION, blocking_calls
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection


def _detect(inspection: Inspection) -> Finding | None:
    wall, work = inspection.wall, inspection.work
    classified, trace = wall.classified, inspection.work.trace
    call = classified.synchronising
    waits = (classified.cause == SYNCHRONISATION) & (call != NONE)
    waited = np.where(waits, trace.dur[np.maximum(call, 0)] if len(call) else 0, 0)
    after = wall.claim_idle_up_to(waited)
    claim = after + wall.claim_idle_during(blocking_calls(work))
    asking = call[after.gaps]
    calls = np.unique(asking)
    return inspection.finding(
        DETECTOR.id,
        claim,
        title="Waiting for the GPU leaves it without work for {saving}",
        advice=(
            "Do not ask for values of the GPU in the loop: .item(), .cpu(), .tolist(), print(),"
            " nonzero() and conditions on tensors all wait for it. Keep them on the GPU, ask for"
            " them every few iterations, or copy them with non_blocking=True and look later."
        ),
        snippet="loss_sum += loss.detach()  # and .item() once at the end",
        confidence="medium",
        reason=(
            "without the wait the host would have launched earlier by as long as it waited, unless"
            " it needs the value that it asks for"
        ),
        evidence=[
            Evidence("calls that waited before the GPU idled", len(calls), "calls", "gap_summary"),
            Evidence("host time in them", float(trace.dur[calls].sum()) / NS_PER_MS, "ms", "tree"),
            Evidence(
                "idle time after them",
                float(classified.gaps.duration[waits].sum()) / NS_PER_MS,
                "ms",
                "gap_summary",
            ),
        ],
        where={
            "operations": operations_around(work, asking, after.gap_ns),
            "python_frames": frames_around(work, asking, after.gap_ns),
        },
    )


DETECTOR = Detector("synchronisation", _detect)
