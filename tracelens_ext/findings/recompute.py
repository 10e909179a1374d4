"""`recompute`: what activation checkpointing costs: time for memory, so it only informs."""

from __future__ import annotations

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT, Detector, Inspection
from tracelens_ext.operations.launchers import recomputed
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS


def _detect(inspection: Inspection) -> Finding | None:
    again = inspection.wall.about(recomputed(inspection.work))
    share = inspection.share_percent(again)
    if share < LEAST_SHARE_PERCENT:
        return None
    cost = again.saving_ns / NS_PER_MS
    return inspection.information(
        DETECTOR.id,
        again,
        title=f"Activation checkpointing runs parts of the forward again: {ms_text(cost)}"
        f" ({share:.1f} %)",
        advice=(
            "This time buys memory. If memory is left at the peak, checkpoint fewer layers, or only"
            " the operations that are cheap to run again."
        ),
        snippet="torch.utils.checkpoint.create_selective_checkpoint_contexts(…)",
        reason="the backward ran operations of the forward again, with the same shapes",
        evidence=[Evidence("GPU time of the second forward", cost, "ms", "ops_unique_args")],
    )


DETECTOR = Detector("recompute", _detect)
