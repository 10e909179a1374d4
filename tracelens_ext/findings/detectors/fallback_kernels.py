"""Naive and emulating kernels; without shapes also passes in a row that one could compute."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.kernel_facts import (
    SHORT_NS,
    blocks_of_events,
)
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.trace import NONE, Float64Array, Int64Array

TEXT: Final = FindingText(
    title="Slow kernels where faster ones exist: {saving}",
    advice="Find out why the library has no better kernel for these sizes and types.",
    confidence="low",
    reason="the kernel names show what they are; how much faster others are is assumed",
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    variants={
        "library": VariantText(
            title="Naive library kernels: {saving}",
            advices=(
                AdviceVariant(
                    kinds=PYTORCH_PROGRAMS,
                    excludes=(Fact.AMD,),
                    advice=(
                        "Let cuDNN search for a faster kernel, and avoid what leaves it none: "
                        "odd channel counts (pad to multiples of 8), unusual layouts or types."
                    ),
                    snippet="torch.backends.cudnn.benchmark = True",
                ),
                AdviceVariant(
                    kinds=PYTORCH_PROGRAMS,
                    advice=(
                        "Let MIOpen search for a faster kernel, and avoid what leaves it none: "
                        "odd channel counts (pad to multiples of 8), unusual layouts or types."
                    ),
                    snippet="MIOPEN_FIND_MODE=NORMAL MIOPEN_FIND_ENFORCE=SEARCH",
                ),
                AdviceVariant(
                    advice=(
                        "Use a library kernel made for these sizes and types, update the "
                        "library, or change what leaves it none: odd sizes, unusual layouts or "
                        "types."
                    ),
                ),
            ),
        ),
        "parts": VariantText(
            title="Operations computed in parts: {saving}",
            advices=(
                AdviceVariant(
                    kinds=("serving",),
                    advice=(
                        "Use the engine's fused operations for activation and norm "
                        "(silu_and_mul, rms_norm)."
                    ),
                ),
                AdviceVariant(
                    follows=(Fact.COMPILED,),
                    advice=(
                        "Use a fused operation (rms_norm, a fused SwiGLU), or compile this "
                        "part of the model as well."
                    ),
                    snippet="torch.nn.functional.rms_norm(x, (x.shape[-1],), weight)",
                ),
                AdviceVariant(
                    advice=(
                        "Compile the model, or use a fused operation (rms_norm, a fused "
                        "SwiGLU)."
                    ),
                    snippet="model = torch.compile(model)",
                ),
            ),
            confidence="medium",
            reason="kernels follow each other as in an activation or norm computed in parts",
        ),
    },
    least_share=0.5,
)


@dataclass(frozen=True)
class _Fallback:
    """Kernels for which there are faster ones."""

    label: str  #: what they are
    pattern: str  #: of their names
    saved_share: float  #: the share of their time that the usual kernel saves


_FALLBACKS: Final = (
    _Fallback(
        label="naive kernels",
        pattern=r"(?<![a-z])naive|[_:]ref(erence)?_kernel|reference_(gemm|conv)",
        saved_share=0.75,
    ),
    _Fallback(
        label="im2col for a product",
        pattern=r"im2col|Im[23]d2Col|col2im|vol2col|col2vol",
        saved_share=1.0,
    ),
)
#: PyTorch's passes by names of kernels, a letter each.
_PASSES: Final = {
    "g": r"gemm|nvjet|Cijk_",
    "s": r"elementwise_kernel<.*(?:silu_kernel|GeluCUDAKernelImpl)",
    "m": r"elementwise_kernel<.*BinaryFunctor<.*MulFunctor",
    "p": r"pow_tensor_scalar_kernel",
    "e": r"MeanOps<",
    "a": r"CUDAFunctorOnSelf_add",
    "r": r"rsqrt_kernel",
    "c": r"_copy_kernel_cuda",
}


class _Row(NamedTuple):
    """Passes in a row for which there is a fused kernel."""

    label: str
    pattern: str  #: of the letters of the passes


#: SwiGLU and GEGLU, perhaps with the product beside them; RMSNorm.
_ROWS: Final = (
    _Row("activation and gate apart", "sg?m"),
    _Row("RMSNorm in parts", "pearmc?m"),
)
_STAYS: Final = "gc"  # the product; casts are findings of their own


@detector("fallback-kernels", TEXT)
def fallback_kernels(inspection: Inspection) -> Finding | None:
    """Naive and emulating kernels; without shapes also passes in a row that one could compute."""
    share = np.zeros(len(inspection.work))
    reason = np.full(len(inspection.work), NONE)
    for number, fallback in enumerate(_FALLBACKS):
        is_fallback = inspection.named(re.compile(fallback.pattern, re.IGNORECASE))
        is_fallback &= reason == NONE
        share[is_fallback] = fallback.saved_share
        reason[is_fallback] = number
    if not inspection.roofline.has_shapes:
        _add_rows(inspection, share, reason)
    labels = [fallback.label for fallback in _FALLBACKS]
    labels += [row.label for row in _ROWS]
    saved_ns = share * inspection.work.duration
    saved_of_rows_ns = float(saved_ns[reason >= len(_FALLBACKS)].sum())
    variant = "library"
    if 2 * saved_of_rows_ns > float(saved_ns.sum()):
        variant = "parts"
    return inspection.finding_of_events(
        "fallback-kernels",
        share,
        text=TEXT,
        places={"reasons": (reason, labels)},
        variant=variant,
    )


def _add_rows(inspection: Inspection, share: Float64Array, reason: Int64Array) -> None:
    """Set the share and the reason of passes in a row: all goes but the time of the longest."""
    work = inspection.work
    order, stream = inspection.stream_order
    letter_of_gpu = np.full(len(work), ord("."), dtype=np.uint8)
    for letter, pattern in _PASSES.items():
        letter_of_gpu[inspection.named(re.compile(pattern))] = ord(letter)
    is_kernel = work.is_kernel[order]
    order = order[is_kernel]
    stream = stream[is_kernel]
    blocks = blocks_of_events(inspection)
    letters = letter_of_gpu[order].tobytes().decode("ascii")
    for number, row in enumerate(_ROWS, start=len(_FALLBACKS)):
        for match in re.finditer(row.pattern, letters):
            start, end = match.span()
            if stream[start] != stream[end - 1]:
                continue
            kernels = order[start:end]
            is_pass = [letter not in _STAYS for letter in match[0]]
            passes = kernels[is_pass]
            duration = work.duration[passes]
            # Two passes may follow each other by chance; of one tensor they have equal blocks.
            has_equal_blocks = blocks[passes[0]] == blocks[passes[1]] > 0
            longest_ns = duration.max()
            if longest_ns < SHORT_NS:
                continue
            if len(passes) > 2 or has_equal_blocks:
                share[passes] = 1 - longest_ns / duration.sum()
                reason[passes] = number
