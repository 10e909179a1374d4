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
        title="Code is compiled again while the GPU idles for {saving}",
        advice=(
            "Find out what changes (TORCH_LOGS=recompiles tells): mark sizes that vary as dynamic,"
            " pad batches to a few sizes, and pass numbers that change as tensors. If it is a first"
            " compilation after all, record after a warm-up."
        ),
        snippet="torch._dynamo.mark_dynamic(batch, 0)  # or torch.compile(model, dynamic=True)",
        confidence="high",
        reason="the host was compiling during all of this idle time",
        evidence=[
            Evidence("compilations, with their parts", len(rows), "events", "cpu_ops"),
        ],
    )


DETECTOR = Detector("recompilation", _detect)
