"""`graph-recapture`: the GPU is idle while the host captures a graph again."""

from __future__ import annotations

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.recording.again import instantiations
from tracelens_ext.work.lanes import captures, find_launches


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
        title="Graphs are captured again while the GPU idles for {saving}",
        advice=(
            "Capture each graph once and launch it often: keep addresses and sizes of its inputs"
            " (copy into buffers that stay), keep one graph a size, and pad to those sizes."
        ),
        snippet="static_input.copy_(batch); graph.replay()",
        confidence="high",
        reason="the host was capturing or instantiating during all of this idle time",
        evidence=[
            Evidence("captures", len(begins), "captures", "tree"),
            Evidence("launches of graphs", launched, "calls", "tree"),
        ],
    )


DETECTOR = Detector("graph-recapture", _detect)
