"""`synchronisation`: the host waits for the GPU, which then has nothing to do.

While the host waits it cannot launch anything, so when the GPU has done its work it idles until the
host has caught up. Without the wait the host would be ahead by as long as it waited, so no more
than that is saved of the idle time after it; the rest is the host's own slowness.
"""

from __future__ import annotations

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.places import frames_around, operations_around
from tracelens_ext.gaps.causes import blocking_calls
from tracelens_ext.trace import NS_PER_MS


def _detect(inspection: Inspection) -> Finding | None:
    wall, work = inspection.wall, inspection.work
    classified, trace = wall.classified, inspection.work.trace
    after = wall.claim_idle_after(classified.synchronising)
    claim = after + wall.claim_idle_during(blocking_calls(work))
    asking = classified.synchronising[after.intervals.gap]
    calls = np.unique(asking)
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("calls that waited before the GPU idled", len(calls), "calls", "gap_summary"),
            Evidence("host time in them", float(trace.dur[calls].sum()) / NS_PER_MS, "ms", "tree"),
            Evidence("idle time after them", after.saving_ns / NS_PER_MS, "ms", "gap_summary"),
        ],
        where={
            "operations": operations_around(work, asking, after.ns),
            "python_frames": frames_around(work, asking, after.ns),
        },
    )


DETECTOR = Detector("synchronisation", _detect, instead="waits no longer")
