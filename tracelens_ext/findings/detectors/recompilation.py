"""Idle time of the GPU while the CPU compiles after the warm-up."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up_events import compilations, slow_regions
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)

TEXT: Final = FindingText(
    title="GPU waits for recompilation: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            advice=(
                "Pad requests to the sizes that were compiled at the start, and let the engine "
                "compile the sizes that occur during its warm-up."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            advice=(
                "Find out what changes (TORCH_LOGS=recompiles shows it): mark sizes that vary "
                "as dynamic, pad batches to a few sizes, and pass changing numbers as tensors. "
                "If this is the first compilation, record after a warm-up."
            ),
            snippet=(
                "torch._dynamo.mark_dynamic(batch, 0)  # or torch.compile(model, dynamic=True)"
            ),
        ),
        AdviceVariant(
            kinds=("jax",),
            advice=(
                "Find out what changes: pad to a few shapes, and make an argument static only "
                "if it stays the same. If this is the first compilation, record after a "
                "warm-up."
            ),
            snippet='jax.config.update("jax_log_compiles", True)  # shows why',
        ),
        AdviceVariant(
            kinds=("tensorflow",),
            advice=(
                "Give the function a signature and pass tensors: it is traced again for each "
                "new shape and each Python number."
            ),
            snippet="@tf.function(reduce_retracing=True)",
        ),
        AdviceVariant(
            advice=(
                "Compile once and keep the code (a cache on disk keeps it between runs); pass "
                "sizes that vary as arguments."
            ),
        ),
    ),
    confidence="high",
    reason="the CPU was compiling during all of this idle time",
    evidence={
        "compilations": EvidenceText(
            what="compilations and their parts", unit="events", see="cpu_ops"
        ),
    },
)


@detector("recompilation", TEXT)
def recompilation(inspection: Inspection) -> Finding | None:
    """Detect idle time of the GPU while the CPU compiles."""
    trace = inspection.gpu_events.trace
    # The first compilation is warm-up and not analyzed.
    rows = np.append(compilations(trace), slow_regions(trace))
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows))
    return inspection.finding(
        "recompilation", claim, {"compilations": len(rows)}, text=TEXT
    )
