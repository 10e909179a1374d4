"""`slow-moe`: grouped products of experts far from what the GPU could do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import beyond, kernel_finding
from tracelens_ext.findings.places import ranked

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.table import RooflineRow

_GROUPED: Final = re.compile(r"grouped_mm|grouped_gemm|moe", re.IGNORECASE)
#: What grouped products reach of the best case, and what a call takes besides.
_REACHED, _FIXED_NS = 0.5, 10_000
_FAR: Final = 1.5


def _detect(inspection: Inspection) -> Finding | None:
    rows = inspection.roofline.rows
    reached = inspection.by_operation([_reached_ns(row) for row in rows])
    share = beyond(inspection, reached, _FAR)
    reasons = ranked(
        np.where(share > 0, inspection.roofline.groups.of_gpu, -1),
        [row.why_slow for row in rows],
        inspection.work.duration,
    )
    return kernel_finding(
        inspection,
        DETECTOR.id,
        share > 0,
        share,
        title="Grouped products of experts far below what this GPU reaches cost {saving}",
        advice=(
            "Tune the kernel for these sizes (the tables of tuned configurations that engines bring"
            " along), give each expert more tokens (larger batches, fewer experts a device), or use"
            " another implementation of grouped products."
        ),
        confidence="low",
        reason=(
            f"grouped products are taken to reach {_REACHED:.0%} of the best case of all experts"
            " together; tokens that are spread unevenly make it worse"
        ),
        where={"reasons": reasons} if reasons else {},
    )


def _reached_ns(row: RooflineRow) -> float:
    grouped = row.cost is not None and (
        row.cost.family.startswith("MoE") or _GROUPED.search(row.operation.name)
    )
    if not grouped or not row.roofline_ns:
        return 0.0
    return _FIXED_NS + row.roofline_ns / row.count / _REACHED


DETECTOR = Detector("slow-moe", _detect)
