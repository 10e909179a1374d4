"""`slow-attention`: fused attention far below what such kernels reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import beyond, claimed, rate_of

if TYPE_CHECKING:
    from tracelens_ext.roofline.found import RooflineRow
    from tracelens_ext.roofline.peaks import DevicePeaks

#: What fused kernels reach of the matrix rate and the memory bandwidth, as for `unfused-attention`;
#: what a call takes besides; queries of a head that one block computes.
_REACHED, _MEMORY_SHARE, _FIXED_NS, _TILE = 0.4, 0.7, 5_000, 128
_FAR: Final = 1.5


def _detect(inspection: Inspection) -> Finding | None:
    both = zip(inspection.roofline.rows, inspection.peaks_of_rows, strict=True)
    needed = inspection.by_operation([_needed_ns(*each) for each in both])
    share = beyond(inspection, needed, _FAR)
    if not share.any():
        return None
    rate = Evidence("their rate", rate_of(inspection, share > 0), "TFLOP/s", "roofline")
    return claimed(inspection, DETECTOR.id, share, [rate])


def _needed_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """What a call would take at the usual rate, ns; 0 for what is no attention."""
    if not (row.cost and row.cost.family.startswith("SDPA") and row.peak and peaks):
        return 0.0
    sizes = [row.cost.parameters.get(name) for name in ("B", "H_Q", "N_Q")]
    b, h, n = (size if isinstance(size, int) else 1 for size in sizes)
    tiles, units = max(b * h * -(-n // _TILE), 1), peaks.units or 1
    idle = -(-tiles // units) * units / tiles
    compute = row.cost.flops * idle / (row.peak * 1e3 * _REACHED)
    return _FIXED_NS + max(compute, row.cost.bytes / (peaks.memory * _MEMORY_SHARE))


DETECTOR = Detector("slow-attention", _detect)
