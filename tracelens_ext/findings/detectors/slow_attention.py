"""Fused attention that is far slower than such kernels usually are."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.attention_times import FIXED_NS, FUSED_SHARE
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import rounded_up_quotient
from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.peaks import DevicePeaks

TEXT: Final = FindingText(
    title="Slow fused attention: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            requires=(Fact.AMD,),
            advice=(
                "Try another implementation (Composable Kernel, aiter), with heads of 64 or "
                "128, and a causal flag instead of a mask."
            ),
            snippet='torch.backends.cuda.preferred_rocm_fa_library("ck")',
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.CUDNN_ATTENTION,),
            advice=(
                "Try FlashAttention instead, with heads of 64 or 128, and a causal flag "
                "instead of a mask."
            ),
            snippet=(
                "with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION):"
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            requires=(Fact.BEFORE_AMPERE,),
            advice=(
                "Use heads of 64 or 128 in fp16, and a causal flag instead of a mask, so that "
                "the fast kernels are chosen."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            advice=(
                "Try cuDNN's attention, with heads of 64 or 128 in bf16 or fp16, and a causal "
                "flag instead of a mask."
            ),
            snippet=(
                "with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):"
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            advice="Try another attention backend of the engine.",
        ),
        AdviceVariant(
            kinds=("jax",),
            follows=(Fact.CUDNN_ATTENTION,),
            advice=(
                "Use heads of 64 or 128 in bf16, and a causal flag instead of a mask, so that "
                "the fast kernels are chosen."
            ),
        ),
        AdviceVariant(
            kinds=("jax",),
            requires=(Fact.NVIDIA,),
            advice="Let cuDNN compute the attention.",
            snippet='jax.nn.dot_product_attention(q, k, v, implementation="cudnn")',
        ),
        AdviceVariant(
            advice=(
                "Try another implementation of it, with heads of 64 or 128 in 16 bits, so that "
                "the fast kernels are chosen."
            ),
        ),
    ),
    reason="such kernels are assumed to reach 40 % of the peak matrix rate",
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "rate": EvidenceText(what="their rate", unit="TFLOP/s", see="roofline"),
    },
    least_share=0.5,
    most_share=1.1,
)

#: The number of queries of a head that a block computes.
_QUERIES: Final = 128
#: A call that takes more than this times the usual time is slow.
_FAR: Final = 1.5


@detector("slow-attention", TEXT)
def slow_attention(inspection: Inspection) -> Finding | None:
    """Detect fused attention that is far slower than such kernels usually are."""
    needed_ns = inspection.by_operation(_needed_ns, inspection.peaks_of_rows)
    share = inspection.beyond(needed_ns, _FAR)
    if not share.any():
        return None
    numbers = {"rate": inspection.rate_of(share > 0)}
    return inspection.finding_of_events("slow-attention", share, numbers, text=TEXT)


def _needed_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """Return the usual time of a call of attention, ns; 0 for other operations."""
    if row.cost is None or not row.cost.family.startswith("SDPA"):
        return 0.0
    if not row.peak or peaks is None:
        return 0.0
    batch = _size(row.cost.parameters.get("B"))
    heads = _size(row.cost.parameters.get("H_Q"))
    queries = _size(row.cost.parameters.get("N_Q"))
    tiles_of_head = rounded_up_quotient(queries, _QUERIES)
    tiles = max(batch * heads * tiles_of_head, 1)
    units = peaks.units or 1
    waves = rounded_up_quotient(tiles, units)
    idle_factor = waves * units / tiles
    compute_rate = row.peak * 1e3 * FUSED_SHARE
    compute_ns = row.cost.flops * idle_factor / compute_rate
    memory_rate = peaks.memory * MEMORY_SHARE
    memory_ns = row.cost.bytes / memory_rate
    return FIXED_NS + max(compute_ns, memory_ns)


def _size(parameter: object) -> int:
    """Return a size of attention; 1 if it is not known."""
    if isinstance(parameter, int):
        return parameter
    return 1
