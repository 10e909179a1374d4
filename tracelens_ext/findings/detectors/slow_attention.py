"""Fused attention far below what such kernels reach."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.attention_times import FIXED_NS, FUSED_SHARE
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import rounded_up_quotient
from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.peaks import DevicePeaks

TEXT: Final = FindingText(
    title="Fused attention far below what such kernels reach costs {saving}",
    advice=(
        "Try another implementation of it: cuDNN's or FlashAttention's newest, on AMD those of "
        "Composable Kernel or aiter. Sizes of heads of 64 or 128, bf16 or fp16, and no mask "
        "where a causal flag says the same, let the fast kernels be chosen."
    ),
    snippet=(
        "with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # on ROCm: "
        'torch.backends.cuda.preferred_rocm_fa_library("ck")'
    ),
    reason="a bound: such kernels are taken to reach 40 % of the peak matrix rate",
    evidence={
        "events": EvidenceText("of them", "GPU events", "kernels"),
        "time_ms": EvidenceText("their time", "ms", "kernels"),
        "rate": EvidenceText("their rate", "TFLOP/s", "roofline"),
    },
)

#: Queries of a head that one block computes.
_QUERIES: Final = 128
#: What takes so many times as long as usual is far off.
_FAR: Final = 1.5


@detector("slow-attention", TEXT)
def slow_attention(inspection: Inspection) -> Finding | None:
    """Fused attention far below what such kernels reach."""
    needed_ns = inspection.by_operation(_needed_ns, inspection.peaks_of_rows)
    share = inspection.beyond(needed_ns, _FAR)
    if not share.any():
        return None
    numbers = {"rate": inspection.rate_of(share > 0)}
    return inspection.finding_of_events("slow-attention", share, numbers, text=TEXT)


def _needed_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """Return what a call would take at the usual rate, ns; 0 for what is no attention."""
    if row.cost is None or not row.cost.family.startswith("SDPA"):
        return 0.0
    if not row.peak or peaks is None:
        return 0.0
    batch = _size(row.cost.parameters.get("B"))
    heads = _size(row.cost.parameters.get("H_Q"))
    queries = _size(row.cost.parameters.get("N_Q"))
    tiles = max(batch * heads * rounded_up_quotient(queries, _QUERIES), 1)
    units = peaks.units or 1
    waves = rounded_up_quotient(tiles, units)
    idle_factor = waves * units / tiles
    compute_ns = row.cost.flops * idle_factor / (row.peak * 1e3 * FUSED_SHARE)
    memory_ns = row.cost.bytes / (peaks.memory * MEMORY_SHARE)
    return FIXED_NS + max(compute_ns, memory_ns)


def _size(parameter: object) -> int:
    """Return a size of an attention; 1 for what is not known."""
    if isinstance(parameter, int):
        return parameter
    return 1
