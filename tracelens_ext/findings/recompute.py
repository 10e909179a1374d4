"""`recompute`: what activation checkpointing costs: time for memory, so it only informs."""

from __future__ import annotations

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.operations.launchers import recomputed
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS


def _detect(inspection: Inspection) -> Finding | None:
    again = inspection.wall.about(recomputed(inspection.work))
    cost, share = again.saving_ns / NS_PER_MS, inspection.share_percent(again)
    return inspection.finding(
        DETECTOR.id,
        again,
        title=f"Activation checkpointing runs parts of the forward again: {ms_text(cost)}"
        f" ({share:.1f} %)",
        informs=True,
        evidence=[Evidence("GPU time of the second forward", cost, "ms", "ops_unique_args")],
    )


DETECTOR = Detector("recompute", _detect)
