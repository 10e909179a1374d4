"""`slow-moe`: grouped products of experts far from what the GPU could do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import beyond, claimed

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.roofline.found import RooflineRow

_GROUPED: Final = re.compile(r"grouped_mm|grouped_gemm|moe", re.IGNORECASE)
#: What grouped products reach of the best case, what a call takes besides, and what is far from it.
_REACHED, _FIXED_NS, _FAR = 0.5, 10_000, 1.5


def _detect(inspection: Inspection) -> Finding | None:
    needed = inspection.by_operation([_needed_ns(row) for row in inspection.roofline.rows])
    return claimed(inspection, DETECTOR.id, beyond(inspection, needed, _FAR))


def _needed_ns(row: RooflineRow) -> float:
    if not row.roofline_ns or not row.cost:
        return 0.0
    if not (row.cost.family.startswith("MoE") or _GROUPED.search(row.operation.name)):
        return 0.0
    return _FIXED_NS + row.roofline_ns / row.count / _REACHED


DETECTOR = Detector("slow-moe", _detect)
