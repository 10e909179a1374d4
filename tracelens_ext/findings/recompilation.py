"""`recompilation`: the GPU is idle while the host compiles what ran before."""

from __future__ import annotations

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.recording.again import compilations, slow_regions


def _detect(inspection: Inspection) -> Finding | None:
    trace = inspection.work.trace
    rows = np.append(compilations(trace), slow_regions(trace))
    claim = inspection.claim_idle_during(rows)  # the first time is start-up, and not judged
    if claim is None:
        return None
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("compilations, with their parts", len(rows), "events", "cpu_ops"),
        ],
    )


DETECTOR = Detector("recompilation", _detect)
