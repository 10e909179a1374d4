"""`fallback-kernels`: naive and reference kernels, and what emulates units that a device lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import claimed, named
from tracelens_ext.findings.places import ranked
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: What a kernel is, its name, the share of its time that the usual kernel saves, and the data type
#: whose matrix units make it no fallback.
_FALLBACKS: Final = (
    ("naive kernels", r"(?<![a-z])naive|[_:]ref(erence)?_kernel|reference_(gemm|conv)", 0.75, ""),
    ("im2col for a product", r"im2col|Im[23]d2Col|col2im|vol2col|col2vol", 1.0, ""),
    ("4 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*mxfp4", 0.5, "fp4"),
    ("8 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*(?:fp8|e4m3|e5m2)", 0.5, "fp8"),
)


def _detect(inspection: Inspection) -> Finding | None:
    share, kind = np.zeros(len(inspection.work)), np.full(len(inspection.work), NONE)
    for number, (_, pattern, saved, its) in enumerate(_FALLBACKS):
        which = named(inspection, re.compile(pattern, re.IGNORECASE)) & (kind == NONE)
        if its and which.any():
            peaks = inspection.roofline.peaks.items()
            lack = [device for device, known in peaks if known and its not in known.matrix]
            which &= np.isin(inspection.work.trace.device, lack)
        share[which], kind[which] = saved, number
    kinds = ranked(kind, [text for text, *_ in _FALLBACKS], inspection.work.duration)
    return claimed(inspection, DETECTOR.id, share, where={"reasons": kinds})


DETECTOR = Detector("fallback-kernels", _detect)
