"""What activation checkpointing costs: time for memory, so it only informs."""

from __future__ import annotations

from typing import Final

from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText

TEXT: Final = FindingText(
    title="Activation checkpointing runs parts of the forward again: {saving}",
    advice=(
        "This time buys memory. If memory is left at the peak, checkpoint fewer layers, or "
        "only the operations that are cheap to run again."
    ),
    snippet="torch.utils.checkpoint.create_selective_checkpoint_contexts(…)",
    confidence="high",
    reason="the backward ran operations of the forward again, with the same shapes",
    evidence={
        "time_ms": EvidenceText(
            "GPU time of the second forward", "ms", "ops_unique_args"
        ),
    },
    informs_only=True,
)


@detector("recompute", TEXT, kinds=("pytorch-training",))
def recompute(inspection: Inspection) -> Finding | None:
    """What activation checkpointing costs: time for memory, so it only informs."""
    second_forward = inspection.wall.about(recomputed(inspection.work))
    numbers = {"time_ms": second_forward.saving_ms}
    return inspection.finding("recompute", second_forward, numbers, text=TEXT)
