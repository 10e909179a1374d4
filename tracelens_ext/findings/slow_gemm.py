"""`slow-gemm`: matrix products far slower than this GPU computes such sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import beyond, rate_of
from tracelens_ext.findings.places import ranked
from tracelens_ext.roofline.gemm import product_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens_ext.roofline.found import RooflineRow
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Float64Array

#: What the libraries reach of the peak matrix rate with large sizes: cuBLAS 60 to 80 %, as power
#: allows; hipBLASLt about 50 %, as the peaks of AMD's datasheets are farther from what clocks hold.
_REACHED, _REACHED_AMD = 0.6, 0.5
_WARP_OF_AMD: Final = 64
#: The same of the memory bandwidth.
_MEMORY_SHARE: Final = 0.7
#: What a product takes besides, however small: start, the first loads, the last stores.
_FIXED_NS: Final = 5_000
#: Rows and columns of a tile of the result, and the depth below which splitting K gains nothing.
_TILE, _LEAST_TILE, _DEPTH = 128, 16, 1024
#: Less than this times what is reached is within what tiles, clocks and neighbours explain.
_FAR: Final = 1.5
_TF32: Final = 'torch.set_float32_matmul_precision("high")'
#: A sign in the reasons of the roofline, and what helps.
_REMEDIES: Final = {
    "TF32": "Let single precision use TF32, or compute in bf16.",
    "not a multiple|unaligned": "Pad sizes to multiples of 8 elements (64 fill tiles better).",
    "kernels for": "Use a library that has kernels for this GPU: a newer cuBLAS or PyTorch.",
    "tiles": "Give a product more rows, such as a larger batch, or split K.",
    "small products": "Join many small products into larger ones, or use a fused operation.",
}
_NO_PEAKS: Final = (
    "The peaks of the GPU are not known, so slow matrix products cannot be told: see"
    " docs/roofline.md."
)


def _detect(inspection: Inspection) -> Finding | None:
    if not inspection.has_shapes:
        return None
    work, wall, roofline = inspection.work, inspection.wall, inspection.roofline
    rows, peaks = roofline.rows, inspection.peaks_of_rows
    if not any(peaks) and any(row.cost and row.cost.family == "GEMM" for row in rows):
        inspection.note(_NO_PEAKS)
    share = beyond(inspection, needed_ns(inspection), _FAR)
    slow = np.flatnonzero(share)
    calls = len(np.unique(inspection.launchers.of_gpu[slow]))
    claim = wall.claim_events(share > 0, share)
    row_of = roofline.groups.of_gpu[claim.events]
    reasons = ranked(row_of, [*map(_reason, rows, peaks)], claim.event_ns)
    return inspection.finding(
        DETECTOR.id,
        claim,
        advice=" ".join(_advice(place.name for place in reasons)),
        snippet=_TF32 if any("TF32" in place.name for place in reasons) else "",
        confidence="medium" if reasons else "low",
        reason=(
            f"such sizes are taken to reach {_REACHED:.0%} of the peak matrix rate (AMD"
            f" {_REACHED_AMD:.0%}) or {_MEMORY_SHARE:.0%} of the memory bandwidth, less what does"
            " not fill the GPU; "
            + ("sizes, types and kernels show why" if reasons else "nothing shows why these do not")
        ),
        evidence=[
            Evidence("slow products", calls, "calls", "roofline"),
            Evidence("their time", wall.mean_ms(work.duration[slow]), "ms", "roofline"),
            Evidence("their rate", rate_of(inspection, share > 0), "TFLOP/s", "roofline"),
        ],
        where={
            "products": ranked(row_of, [_label(row) for row in rows], claim.event_ns),
            **({"reasons": reasons} if reasons else {}),
        },
    )


def needed_ns(inspection: Inspection) -> Float64Array:
    """What the product of each GPU event would take, ns; 0 where it is none, or not known, (g,)."""
    both = zip(inspection.roofline.rows, inspection.peaks_of_rows, strict=True)
    return inspection.by_operation([_reached_ns(row, its) if its else 0.0 for row, its in both])


def _reached_ns(row: RooflineRow, peaks: DevicePeaks) -> float:
    """What a call would take as libraries compute such sizes, ns; 0 for what is no product."""
    b, m, n, k = product_sizes(row.cost)
    if not b * m * n * k or row.cost is None or not row.peak:
        return 0.0
    rate = peaks.matrix["tf32"] if _could_be_tf32(row, peaks) else row.peak
    share = _REACHED_AMD if peaks.warp == _WARP_OF_AMD else _REACHED
    units = peaks.units or 1
    tiles, tile_flops = b, 2
    for size, most in ((m, _TILE), (n, _TILE), (k, _DEPTH)):
        tiles *= -(-size // most)
        tile_flops *= min(most, -(-size // _LEAST_TILE) * _LEAST_TILE)
    compute = -(-tiles // units) * units * tile_flops / (rate * 1e3 * share)
    return _FIXED_NS + max(compute, row.cost.bytes / (peaks.memory * _MEMORY_SHARE))


def _could_be_tf32(row: RooflineRow, peaks: DevicePeaks) -> bool:
    """Whether a product computes in single precision on a GPU whose matrix units have TF32 only."""
    single = row.cost is not None and row.cost.data_type == "fp32"
    return single and "fp32" not in peaks.matrix and "tf32" in peaks.matrix


def _reason(row: RooflineRow, peaks: DevicePeaks | None) -> str:
    """Why a product is slow, as far as it shows."""
    tf32 = peaks is not None and _could_be_tf32(row, peaks)
    return row.why_slow or ("single precision without TF32" if tf32 else "")


def _advice(reasons: Iterable[str]) -> Iterator[str]:
    """What helps against the reasons that show, else where to look."""
    text = "; ".join(reasons)
    for sign, advice in _REMEDIES.items():
        if re.search(sign, text):
            yield advice
    yield "The table `roofline` has each product with its rate and its kernels."


def _label(row: RooflineRow) -> str:
    """`aten::bmm 96 × 512×64×512 bf16`: the batch, then M, N and K."""
    if row.cost is None or row.cost.family != "GEMM":
        return ""
    b, *sizes = product_sizes(row.cost)
    batch = f"{b} × " if b > 1 else ""
    return f"{row.operation.name} {batch}{'×'.join(map(str, sizes))} {row.cost.data_type}"


DETECTOR = Detector("slow-gemm", _detect)
