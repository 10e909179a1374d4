"""Matrix products that are far slower than the GPU can compute such sizes."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import (
    FAR,
    could_be_tf32,
    needed_ns_of_events,
)
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText, VariantText
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks

TEXT: Final = FindingText(
    title="Slow matrix products: {saving}",
    reason=(
        "such sizes are assumed to reach 60 % of the peak matrix rate (AMD 50 %) or 70 % of "
        "the memory bandwidth{why}"
    ),
    evidence={
        "calls": EvidenceText("slow products", "calls", "roofline"),
        "time_ms": EvidenceText("their time", "ms", "roofline"),
        "rate": EvidenceText("their rate", "TFLOP/s", "roofline"),
    },
    variants={
        "shown": VariantText(values={"why": ""}),
        "not_shown": VariantText(
            confidence="low",
            values={"why": "; nothing recorded shows why these do not"},
        ),
    },
    least_share=0.5,
    most_share=1.1,
)

_TF32: Final = 'torch.set_float32_matmul_precision("high")'
#: What helps, by a pattern in the reasons that the roofline gives.
_REMEDIES: Final = {
    "TF32": "Let single precision use TF32, or compute in bf16.",
    "not a multiple|unaligned": "Pad sizes to multiples of 8 elements (64 fill tiles better).",
    "kernels for": "Use a newer library that has kernels for this GPU.",
    "tiles": "Give each product more rows, such as a larger batch, or split K.",
    "small products": "Combine many small products into larger ones, or use a fused operation.",
}
_WHERE_TO_LOOK: Final = (
    "Compare rate and kernels of each product in the table `roofline`."
)
_NO_PEAKS: Final = (
    "The peaks of this GPU are unknown, so slow matrix products cannot be found. Give its"
    " peaks with --device-peaks."
)


@detector("slow-gemm", TEXT)
def slow_gemm(inspection: Inspection) -> Finding | None:
    """Detect matrix products that are far slower than the GPU can compute such sizes."""
    if not inspection.has_shapes:
        return None
    peaks = inspection.peaks_of_rows
    if not any(peaks) and "GEMM" in inspection.roofline.families:
        inspection.note(_NO_PEAKS)
    share = inspection.beyond(needed_ns_of_events(inspection), FAR)
    is_slow = share > 0
    claim = inspection.wall.claim_events(is_slow, share)
    numbers = {
        "calls": len(np.unique(inspection.launchers.of_gpu[is_slow])),
        "time_ms": inspection.wall.mean_ms(inspection.gpu_events.duration[is_slow]),
        "rate": inspection.rate_of(is_slow),
    }
    reasons = inspection.ranked_by(_reason, claim, peaks)
    variant = "not_shown"
    if reasons:
        variant = "shown"
    all_reasons = "; ".join(place.name for place in reasons)
    advice = [
        remedy
        for pattern, remedy in _REMEDIES.items()
        if re.search(pattern, all_reasons)
    ]
    snippet = ""
    if "TF32" in all_reasons:
        snippet = _TF32
    return inspection.finding(
        "slow-gemm",
        claim,
        numbers,
        text=TEXT,
        variant=variant,
        where={"products": inspection.ranked_by(_label, claim), "reasons": reasons},
        advice=" ".join(advice + [_WHERE_TO_LOOK]),
        snippet=snippet,
    )


def _reason(row: RooflineRow, peaks: DevicePeaks | None) -> str:
    """Return the reason why a product is slow; empty if nothing shows one."""
    if row.why_slow:
        return row.why_slow
    if peaks is not None and could_be_tf32(row, peaks):
        return "single precision without TF32"
    return ""


def _label(row: RooflineRow) -> str:
    """Return a label such as `aten::bmm 96 × 512×64×512 bf16`: the batch, then M, N and K."""
    if row.cost is None or row.cost.family != "GEMM":
        return ""
    batch, *sizes = product_sizes(row.cost)
    batch_text = ""
    if batch > 1:
        batch_text = f"{batch} × "
    sizes_text = "×".join(map(str, sizes))
    return f"{row.operation.name} {batch_text}{sizes_text} {row.cost.data_type}"
