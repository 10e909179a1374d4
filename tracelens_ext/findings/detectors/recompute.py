"""The cost of activation checkpointing, which trades time for memory; only informs."""

from __future__ import annotations

from typing import Final

from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText

TEXT: Final = FindingText(
    title="Activation checkpointing: {saving} of recomputation",
    advice=(
        "Checkpoint fewer layers, or only operations that are cheap to run again, if memory is "
        "left at the peak: this time buys memory."
    ),
    snippet="torch.utils.checkpoint.create_selective_checkpoint_contexts(…)",
    confidence="high",
    reason="the backward pass ran forward operations again, with the same shapes",
    evidence={
        "time_ms": EvidenceText(
            what="GPU time of the second forward pass", unit="ms", see="ops_unique_args"
        ),
    },
    informs_only=True,
)


@detector("recompute", TEXT, kinds=("pytorch-training",))
def recompute(inspection: Inspection) -> Finding | None:
    """Report the GPU time of forward operations that run again in the backward pass."""
    second_forward = inspection.wall.about(recomputed(inspection.gpu_events))
    numbers = {"time_ms": second_forward.attributed_ms}
    return inspection.finding("recompute", second_forward, numbers, text=TEXT)
