"""Grouped matrix products of experts that are far slower than the GPU allows."""

from __future__ import annotations

import re
from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import (
    FAR,
)
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.roofline.analysis import RooflineRow

TEXT: Final = FindingText(
    title="Slow grouped products of experts: {saving}",
    advice=(
        "Tune the kernel for these sizes (engines ship tables of tuned configurations), or "
        "give each expert more tokens (larger batches, fewer experts per device)."
    ),
    confidence="low",
    reason="assumed to reach half of the best case; unevenly spread tokens make it worse",
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
)

_GROUPED: Final = re.compile(r"grouped_mm|grouped_gemm|moe", re.IGNORECASE)
#: The share of the best case that grouped products reach.
_REACHED: Final = 0.5
#: The time that a grouped product of any size takes.
_FIXED_NS: Final = 10_000


@detector("slow-moe", TEXT)
def slow_moe(inspection: Inspection) -> Finding | None:
    """Detect grouped matrix products of experts that are far slower than the GPU allows."""
    needed_ns = inspection.by_operation(_needed_ns)
    return inspection.finding_of_events(
        "slow-moe", inspection.beyond(needed_ns, FAR), text=TEXT
    )


def _needed_ns(row: RooflineRow) -> float:
    """Return the expected time of a grouped product, ns; 0 for other operations or if unknown."""
    if row.cost is None or not row.roofline_ns:
        return 0.0
    is_of_experts = row.cost.family[:3] == "MoE"
    if not is_of_experts and not _GROUPED.search(row.operation.name):
        return 0.0
    return _FIXED_NS + row.roofline_ns / row.count / _REACHED
