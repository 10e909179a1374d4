"""Naive library kernels; without shapes also operations computed in several kernels."""

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
    """A kind of kernels for which there are faster ones."""

    label: str  #: the kind, as tables show it
    pattern: str  #: matches the names of the kernels
    saved_share: float  #: the share of the time that a faster kernel saves


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
#: Kinds of PyTorch's kernels: a letter for each, and a pattern of the kernels' names. The kernels
#: of a trace become a text of such letters, in which regular expressions find sequences.
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


class _Sequence(NamedTuple):
    """A sequence of kernels for which there is a fused kernel."""

    label: str
    pattern: str  #: a pattern of the letters in `_PASSES`


#: SwiGLU and GEGLU, with or without a matrix product between the two passes; RMSNorm.
_SEQUENCES: Final = (
    _Sequence("activation and gate apart", "sg?m"),
    _Sequence("RMSNorm in parts", "pearmc?m"),
)
#: Kernels of a sequence that do not count: matrix products stay, and casts have their own finding.
_NOT_COUNTED: Final = "gc"


@detector("fallback-kernels", TEXT)
def fallback_kernels(inspection: Inspection) -> Finding | None:
    """Detect naive library kernels, and sequences of kernels that a fused kernel replaces.

    With shapes, `memory-bound-chain` detects such sequences better.
    """
    share = np.zeros(len(inspection.gpu_events))
    reason = np.full(len(inspection.gpu_events), NONE)  # index into `labels` below
    for number, fallback in enumerate(_FALLBACKS):
        is_fallback = inspection.named(re.compile(fallback.pattern, re.IGNORECASE))
        is_fallback &= reason == NONE
        share[is_fallback] = fallback.saved_share
        reason[is_fallback] = number
    if not inspection.roofline.has_shapes:
        _add_sequences(inspection, share, reason)
    labels = [fallback.label for fallback in _FALLBACKS]
    labels += [sequence.label for sequence in _SEQUENCES]
    saved_ns = share * inspection.gpu_events.duration
    saved_in_sequences_ns = float(saved_ns[reason >= len(_FALLBACKS)].sum())
    variant = "library"
    if 2 * saved_in_sequences_ns > float(saved_ns.sum()):
        variant = "parts"
    return inspection.finding_of_events(
        "fallback-kernels",
        share,
        text=TEXT,
        places={"reasons": (reason, labels)},
        variant=variant,
    )


def _add_sequences(
    inspection: Inspection, share: Float64Array, reason: Int64Array
) -> None:
    """Set the share and the reason of kernels in sequences, in place.

    A fused kernel is assumed to take as long as the longest kernel of the sequence.

    Args:
        inspection: the inspection of the trace.
        share: the share of each GPU event's time that is saved, (g,).
        reason: the index of the label of each GPU event, (g,).
    """
    gpu_events = inspection.gpu_events
    order, stream = inspection.stream_order
    letter_of_gpu = np.full(len(gpu_events), ord("."), dtype=np.uint8)
    for letter, pattern in _PASSES.items():
        letter_of_gpu[inspection.named(re.compile(pattern))] = ord(letter)
    is_kernel = gpu_events.is_kernel[order]
    order = order[is_kernel]
    stream = stream[is_kernel]
    blocks = blocks_of_events(inspection)
    letters = letter_of_gpu[order].tobytes().decode("ascii")
    for number, sequence in enumerate(_SEQUENCES, start=len(_FALLBACKS)):
        for match in re.finditer(sequence.pattern, letters):
            start, end = match.span()
            if stream[start] != stream[end - 1]:
                continue
            kernels = order[start:end]
            is_pass = [letter not in _NOT_COUNTED for letter in match[0]]
            passes = kernels[is_pass]
            duration = gpu_events.duration[passes]
            # Two kernels may follow each other by chance. Kernels for the same tensor have the same
            # number of blocks.
            has_equal_blocks = blocks[passes[0]] == blocks[passes[1]] > 0
            longest_ns = duration.max()
            if longest_ns < SHORT_NS:
                continue
            if len(passes) > 2 or has_equal_blocks:
                share[passes] = 1 - longest_ns / duration.sum()
                reason[passes] = number
