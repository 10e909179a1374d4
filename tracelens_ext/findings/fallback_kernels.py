"""`fallback-kernels`: naive and reference kernels, and what emulates units that a device lacks.

Also PyTorch's passes in a row that one fused kernel computes, where only names tell; with shapes
they are `memory-bound-chain`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import blocks_of, claimed, named
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.trace import Float64Array, Int64Array

#: What a kernel is, its name, the share of its time that the usual kernel saves, and the data type
#: whose matrix units make it no fallback.
_FALLBACKS: Final = (
    ("naive kernels", r"(?<![a-z])naive|[_:]ref(erence)?_kernel|reference_(gemm|conv)", 0.75, ""),
    ("im2col for a product", r"im2col|Im[23]d2Col|col2im|vol2col|col2vol", 1.0, ""),
    ("4 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*mxfp4", 0.5, "fp4"),
    ("8 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*(?:fp8|e4m3|e5m2)", 0.5, "fp8"),
)
#: PyTorch's passes by names of kernels, a letter each, and rows of them for which there is a fused
#: kernel: SwiGLU and GEGLU, perhaps with the product beside them; RMSNorm.
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
_ROWS: Final = (("activation and gate apart", "sg?m"), ("RMSNorm in parts", "pearmc?m"))
_STAYS: Final = "gc"  # the product; casts are findings of their own
#: Shorter passes are mostly their own start and end: `small-kernels`.
_SHORT_NS: Final = 5_000


def _detect(inspection: Inspection) -> Finding | None:
    share, kind = np.zeros(len(inspection.work)), np.full(len(inspection.work), NONE)
    for number, (_, pattern, saved, its) in enumerate(_FALLBACKS):
        which = named(inspection, re.compile(pattern, re.IGNORECASE)) & (kind == NONE)
        if its and which.any():
            peaks = inspection.roofline.peaks.items()
            lack = [device for device, known in peaks if known and its not in known.matrix]
            which &= np.isin(inspection.work.trace.device, lack)
        share[which], kind[which] = saved, number
    if not inspection.roofline.has_shapes:
        _add_rows(inspection, share, kind)
    labels = [text for text, *_ in (*_FALLBACKS, *_ROWS)]
    return claimed(inspection, DETECTOR.id, share, kinds={"reasons": (kind, labels)})


def _add_rows(inspection: Inspection, share: Float64Array, kind: Int64Array) -> None:
    """Set the share and the kind of passes in a row: all goes but the time of the longest."""
    work, (order, stream) = inspection.work, inspection.stream_order
    letters = np.full(len(work), ord("."), dtype=np.uint8)
    for letter, pattern in _PASSES.items():
        letters[named(inspection, re.compile(pattern))] = ord(letter)
    kernels = work.is_kernel[order]
    order, stream, blocks = order[kernels], stream[kernels], blocks_of(inspection)
    text = letters[order].tobytes().decode("ascii")
    for number, (_, pattern) in enumerate(_ROWS, start=len(_FALLBACKS)):
        for row in re.finditer(pattern, text):
            mine = order[row.start() : row.end()]
            passes = mine[[letter not in _STAYS for letter in row[0]]]
            ns, first = work.duration[passes], blocks[passes[0]]
            apart = stream[row.start()] != stream[row.end() - 1] or ns.max() < _SHORT_NS
            if not apart and (len(passes) > 2 or (first == blocks[passes[1]]) & (first > 0)):
                share[passes], kind[passes] = 1 - ns.max() / ns.sum(), number


DETECTOR = Detector("fallback-kernels", _detect)
