"""`slow-attention`: fused attention far below what such kernels reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import beyond, kernel_finding

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.roofline.table import RooflineRow

#: What fused kernels reach of the matrix rate, and of the memory bandwidth: as `unfused-attention`.
_REACHED, _MEMORY_SHARE = 0.4, 0.7
_FIXED_NS: Final = 5_000
#: Queries of a head that one block computes.
_TILE: Final = 128
_FAR: Final = 1.5
_FAMILIES: Final = ("SDPA_fwd", "SDPA_bwd")


def _detect(inspection: Inspection) -> Finding | None:
    roofline, work = inspection.roofline, inspection.work
    rows, peaks = roofline.rows, [roofline.peaks.get(d) for d in roofline.groups.device.tolist()]
    reached = inspection.by_operation(
        [_reached_ns(row, its) if its else 0.0 for row, its in zip(rows, peaks, strict=True)]
    )
    share = beyond(inspection, reached, _FAR)
    slow = np.flatnonzero(share)
    if not len(slow):
        return None
    _, first = np.unique(inspection.launchers.of_gpu[slow], return_index=True)
    flops = inspection.by_operation([float(row.cost.flops) if row.cost else 0.0 for row in rows])
    rate = float(flops[slow[first]].sum()) / max(float(work.duration[slow].sum()), 1.0) / 1e3
    return kernel_finding(
        inspection,
        DETECTOR.id,
        share > 0,
        share,
        title="Fused attention far below what such kernels reach costs {saving}",
        advice=(
            "Try another implementation of it: cuDNN's or FlashAttention's newest, on AMD those of"
            " Composable Kernel or aiter. Sizes of heads of 64 or 128, bf16 or fp16, and no mask"
            " where a causal flag says the same, let the fast kernels be chosen."
        ),
        snippet="with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):",
        confidence="medium",
        reason=f"such kernels are taken to reach {_REACHED:.0%} of the peak matrix rate",
        evidence=[Evidence("their rate", rate, "TFLOP/s", "roofline")],
    )


def _reached_ns(row: RooflineRow, peaks: DevicePeaks) -> float:
    """What a call would take at the usual rate, ns; 0 for what is no attention."""
    if row.cost is None or row.cost.family not in _FAMILIES or not row.peak:
        return 0.0
    sizes = [row.cost.parameters.get(name) for name in ("B", "H_Q", "N_Q")]
    b, h, n = (size if isinstance(size, int) else 1 for size in sizes)
    tiles, units = max(b * h * -(-n // _TILE), 1), peaks.units or 1
    idle = -(-tiles // units) * units / tiles
    compute = row.cost.flops * idle / (row.peak * 1e3 * _REACHED)
    return _FIXED_NS + max(compute, row.cost.bytes / (peaks.memory * _MEMORY_SHARE))


DETECTOR = Detector("slow-attention", _detect)
