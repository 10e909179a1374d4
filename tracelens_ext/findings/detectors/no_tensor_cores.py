"""Matrix products that run on vector units although the GPU has matrix units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import (
    FIXED_NS,
    REACHED,
    is_single_precision,
    needed_ns_of_events,
)
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact, capability
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import BoolArray, Device

TEXT: Final = FindingText(
    title="Matrix products without matrix units: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            requires=(Fact.BEFORE_AMPERE,),
            advice=(
                "Compute in fp16 under autocast, with sizes in multiples of 8: the tensor "
                "cores of this GPU have neither TF32 nor bf16."
            ),
            snippet='with torch.autocast("cuda", dtype=torch.float16):  # with GradScaler',
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            requires=(Fact.AMD,),
            advice=(
                "Compute in bf16 or fp16 under autocast, with sizes in multiples of 8, so "
                "that products use the matrix cores."
            ),
            snippet='with torch.autocast("cuda", dtype=torch.bfloat16):',
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            follows=(Fact.TF32,),
            advice=(
                "Allow TF32 for the remaining products and convolutions as well, or compute "
                "them in bf16 under autocast, with sizes in multiples of 8."
            ),
            snippet='with torch.autocast("cuda", dtype=torch.bfloat16):',
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            follows=(Fact.LOW_PRECISION,),
            advice=(
                "Bring the remaining products under autocast as well, or allow TF32 for them."
            ),
            snippet='torch.set_float32_matmul_precision("high")',
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Allow TF32 for products in single precision, or compute in bf16 under "
                "autocast, with sizes in multiples of 8."
            ),
            snippet='torch.set_float32_matmul_precision("high")',
        ),
        AdviceVariant(
            kinds=("jax",),
            follows=(Fact.TF32,),
            advice="Use bf16 weights and activations for the remaining products.",
        ),
        AdviceVariant(
            kinds=("jax",),
            excludes=(Fact.AMD, Fact.BEFORE_AMPERE),
            advice=(
                "Allow TF32 for products in single precision, or use bf16 weights and "
                "activations."
            ),
            snippet=(
                'jax.config.update("jax_default_matmul_precision", "tensorfloat32")'
            ),
        ),
        AdviceVariant(
            requires=(Fact.BEFORE_AMPERE,),
            advice=(
                "Store data in fp16 and let the library use its tensor cores "
                "(CUBLAS_COMPUTE_32F with fp16 inputs), with sizes in multiples of 8."
            ),
        ),
        AdviceVariant(
            excludes=(Fact.AMD,),
            advice=(
                "Let the library use its matrix units: TF32 as its compute type "
                "(CUBLAS_COMPUTE_32F_FAST_TF32, cudnnSetConvolutionMathType), or data in bf16 "
                "or fp16, with sizes in multiples of 8."
            ),
        ),
        AdviceVariant(
            advice=(
                "Store data in bf16 or fp16, with sizes in multiples of 8, so that the library "
                "uses the matrix cores."
            ),
        ),
    ),
    reason=(
        "kernel names show vector units; matrix units are assumed to reach 60 % of their peak, "
        "and accuracy must allow it"
    ),
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
)

_DOUBLE: Final = re.compile(r"dgemm")
#: Names of kernels that use matrix units, whatever else is in the name.
_MATRIX_UNITS: Final = re.compile(
    r"tensorop|[sh](?:884|1688|16816|161616)|xmma|wmma|nvjet|_MI\d+x\d+|mfma|tf32",
    re.IGNORECASE,
)
_VECTOR_UNITS: Final = re.compile(
    r"(?<![a-z\d])[sdh]gemm(?!Ex)|simt|scudnn|convolve_sgemm|gemmSN|[dw]grad\w*_engine<float"
    r"|Cijk_\w+?_[SD]B_\w*?MT\d+x"
)
#: The first compute capability with tensor cores.
_FIRST_CAPABILITY: Final = 70
#: The share of the time that tensor cores are assumed to need if peaks are unknown.
_USUAL_SHARE: Final = 1 / 4


@detector("no-tensor-cores", TEXT)
def no_tensor_cores(inspection: Inspection) -> Finding | None:
    """Detect matrix products that run on vector units although the GPU has matrix units."""
    on_vector_units = inspection.named(_VECTOR_UNITS)
    on_vector_units &= ~inspection.named(_MATRIX_UNITS)
    if not on_vector_units.any():
        return None
    needed_share = np.where(
        inspection.named(_DOUBLE),
        inspection.by_device(_share_of_double),
        inspection.by_device(_share_of_single),
    )
    fixed_share = FIXED_NS / np.maximum(inspection.gpu_events.duration, 1)
    share = np.where(needed_share > 0, 1 - needed_share - fixed_share, 0.0)
    # With TF32, memory may limit a product more than the matrix units; its sizes tell.
    could_use_tf32 = _could_use_tf32(inspection)
    ns_of_products = needed_ns_of_events(inspection)
    needed_ns = np.where(could_use_tf32, ns_of_products, 0.0)
    share_by_sizes = inspection.beyond(needed_ns, 1.0)
    share = np.where(needed_ns > 0, np.minimum(share, share_by_sizes), share)
    share = np.where(on_vector_units, np.maximum(share, 0.0), 0.0)
    return inspection.finding_of_events("no-tensor-cores", share, text=TEXT)


def _could_use_tf32(inspection: Inspection) -> BoolArray:
    """Return which GPU events compute in single precision on a device with TF32, (g,)."""

    def has_tf32(_: Device | None, peaks: DevicePeaks | None) -> bool:
        return peaks is not None and "tf32" in peaks.matrix

    is_single = inspection.by_operation(is_single_precision) > 0
    is_on_tf32_device = inspection.by_device(has_tf32) > 0
    return is_single & is_on_tf32_device


def _share_of_double(_: Device | None, peaks: DevicePeaks | None) -> float:
    """Return the share of the time that matrix units need for doubles; 0: not known."""
    return _needed_share(peaks, "fp64", ("fp64",))


def _share_of_single(device: Device | None, peaks: DevicePeaks | None) -> float:
    """Return the share of the time that matrix units need for single precision; 0: not known."""
    if peaks is None and capability(device, peaks) >= _FIRST_CAPABILITY:
        return _USUAL_SHARE
    # TF32 if it is faster than single precision, else 16 bits.
    return _needed_share(peaks, "fp32", ("tf32", "bf16", "fp16"))


def _needed_share(
    peaks: DevicePeaks | None, vector_type: str, matrix_types: Sequence[str]
) -> float:
    """Return the share of the time that matrix units need, with the first type that is faster.

    0 if peaks are not known, 1 if no type is faster.
    """
    if peaks is None:
        return 0.0
    vector_rate, _ = peaks.peak("vector", vector_type) or (0.0, "")
    for matrix_type in matrix_types:
        rate = REACHED * peaks.matrix.get(matrix_type, 0.0)
        if rate > vector_rate:
            return vector_rate / rate
    return 1.0
