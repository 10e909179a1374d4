"""`graph-recapture`: the GPU is idle while the host captures a graph again."""

from __future__ import annotations

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.recording.again import instantiations
from tracelens_ext.work.launches import captures, find_launches


def _detect(inspection: Inspection) -> Finding | None:
    trace, launched = inspection.work.trace, int(find_launches(inspection.work).is_graph.sum())
    (begins, ends), calls = captures(trace), instantiations(trace)
    until = np.append(ends, trace.end_of(calls))  # the first time is start-up, and not judged
    claim = inspection.claim_idle_during(np.append(begins, calls), until)
    if claim is None:
        return None
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("captures", len(begins), "captures", "tree"),
            Evidence("launches of graphs", launched, "calls", "tree"),
        ],
    )


DETECTOR = Detector("graph-recapture", _detect)
