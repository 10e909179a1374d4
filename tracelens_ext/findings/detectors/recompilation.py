"""The GPU is idle while the host compiles what ran before."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up import compilations, slow_regions
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText

TEXT: Final = FindingText(
    title="Code is compiled again while the GPU idles for {saving}",
    advice=(
        "Find out what changes (TORCH_LOGS=recompiles tells): mark sizes that vary as dynamic, "
        "pad batches to a few sizes, and pass numbers that change as tensors. If it is a first "
        "compilation after all, record after a warm-up."
    ),
    snippet="torch._dynamo.mark_dynamic(batch, 0)  # or torch.compile(model, dynamic=True)",
    confidence="high",
    reason="the host was compiling during all of this idle time",
    evidence={
        "compilations": EvidenceText(
            "compilations, with their parts", "events", "cpu_ops"
        ),
    },
    advice_for={
        "serving": Advice(
            (
                "Pad requests to the sizes that were compiled at the start, and let the engine "
                "compile those that occur in its warm-up. If it is a first compilation after "
                "all, record after the warm-up."
            ),
        ),
        "jax": Advice(
            (
                "Find out what changes: pad to a few shapes, and pass what is a constant as "
                "static argument only if it stays. If it is a first compilation after all, "
                "record after a warm-up."
            ),
            'jax.config.update("jax_log_compiles", True)  # tells why',
        ),
        "tensorflow": Advice(
            (
                "The function is traced again for each new shape and each Python number: give "
                "it a signature, and pass tensors. If it is a first compilation after all, "
                "record after a warm-up."
            ),
            "@tf.function(reduce_retracing=True)",
        ),
        "other": Advice(
            (
                "Compile once and keep the code (a cache on disk keeps it between runs); pass "
                "sizes that vary as arguments. If it is a first compilation after all, record "
                "after a warm-up."
            ),
        ),
    },
)


@detector("recompilation", TEXT)
def recompilation(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the CPU compiles what ran before."""
    trace = inspection.work.trace
    # The first compilation is warm-up and not analyzed, as the first capture of a graph.
    rows = np.append(compilations(trace), slow_regions(trace))
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows))
    return inspection.finding(
        "recompilation", claim, {"compilations": len(rows)}, text=TEXT
    )
