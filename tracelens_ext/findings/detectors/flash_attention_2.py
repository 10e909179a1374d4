"""Kernels of FlashAttention 2 on a GPU with faster attention kernels."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.kernel_facts import SHORT_NS
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)

_CUDNN_SNIPPET: Final = (
    "with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION):"
)
_ADVICES: Final = (
    AdviceVariant(
        kinds=PYTORCH_JOBS,
        follows=(Fact.CUDNN_ATTENTION,),
        advice=(
            "Bring the remaining layers to it as well: FlashAttention 2 does not use the "
            "newer matrix instructions of this GPU."
        ),
    ),
    AdviceVariant(
        kinds=PYTORCH_JOBS,
        requires=(Fact.BLACKWELL,),
        advice=(
            "Use cuDNN's attention: FlashAttention 2 does not use the newer matrix "
            "instructions of this GPU, and FlashAttention 3 is for Hopper only."
        ),
        snippet=_CUDNN_SNIPPET,
    ),
    AdviceVariant(
        kinds=PYTORCH_JOBS,
        advice=(
            "Use cuDNN's attention or FlashAttention 3: FlashAttention 2 does not use the "
            "newer matrix instructions of this GPU."
        ),
        snippet=_CUDNN_SNIPPET,
    ),
    AdviceVariant(
        kinds=("serving",),
        requires=(Fact.BLACKWELL,),
        advice=(
            "Choose a newer attention backend of the engine (FlashInfer with TRT-LLM "
            "kernels): FlashAttention 2 does not use the newer matrix instructions of "
            "this GPU."
        ),
    ),
    AdviceVariant(
        kinds=("serving",),
        advice=(
            "Choose a newer attention backend of the engine (FlashAttention 3, FlashInfer "
            "with TRT-LLM kernels): FlashAttention 2 does not use the newer matrix "
            "instructions of this GPU."
        ),
    ),
    AdviceVariant(
        advice=(
            "Use an attention kernel made for this GPU: FlashAttention 2 does not use its "
            "newer matrix instructions."
        ),
    ),
)
TEXT: Final = FindingText(
    title="FlashAttention 2 on a GPU with faster attention kernels: {saving}",
    advices=_ADVICES,
    reason="newer kernels are 1.5 to 2 times as fast for long sequences; 1.5 times is assumed",
    evidence={
        "events": EvidenceText(
            what="FlashAttention 2 kernels", unit="GPU events", see="kernels"
        ),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    variants={
        "dropout": VariantText(
            advices=(
                AdviceVariant(
                    kinds=PYTORCH_JOBS,
                    excludes=(Fact.CUDNN_ATTENTION,),
                    advice=(
                        "Use cuDNN's attention, or FlashAttention 3 without dropout, which it "
                        "does not have: FlashAttention 2 does not use the newer matrix "
                        "instructions of this GPU."
                    ),
                    snippet=_CUDNN_SNIPPET,
                ),
            )
            + _ADVICES,
        ),
    },
    least_share=0.5,
    most_share=1.5,
)

#: Kernels of FlashAttention 2 from PyTorch or its own package, without kernels for split keys:
#: these are limited by memory.
_FLASH_ATTENTION_2: Final = re.compile(
    r"(?<!sm90_)(?<!Sm90)flash_(?:fwd_kernel|bwd_dq_dk_dv)(?!.*Sm90)"
)
#: The first choice after the traits of such a kernel is whether it has dropout.
_WITH_DROPOUT: Final = re.compile(r"kernel_traits<.*?>\s*,\s*(?:\(bool\))?(?:true|1)\b")
#: The share of the time that a kernel saves which is 1.5 times as fast.
_SAVED_SHARE: Final = 1 / 3


@detector("flash-attention-2", TEXT)
def flash_attention_2(inspection: Inspection) -> Finding | None:
    """Detect kernels of FlashAttention 2 on a GPU with faster attention kernels."""
    is_old = inspection.named(_FLASH_ATTENTION_2)
    is_old &= inspection.gpu_events.duration >= SHORT_NS
    if not is_old.any():
        return None
    if not inspection.facts.shows(Fact.HOPPER):
        return None
    has_dropout = is_old & inspection.named(_WITH_DROPOUT)
    variant = ""
    if 2 * int(has_dropout.sum()) > int(is_old.sum()):
        variant = "dropout"
    share = np.where(is_old, _SAVED_SHARE, 0.0)
    return inspection.finding_of_events(
        "flash-attention-2", share, text=TEXT, variant=variant
    )
