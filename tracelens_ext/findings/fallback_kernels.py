"""`fallback-kernels`: naive and reference kernels, and what emulates units that a device lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, kernel_finding, named
from tracelens_ext.findings.places import ranked

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device

#: What a kernel is, its name, the share of its time that the usual kernel saves, and the data types
#: whose matrix units make it no fallback.
_FALLBACKS: Final = (
    ("naive kernels", r"(?<![a-z])naive|[_:]ref(erence)?_kernel|reference_(gemm|conv)", 0.75, ()),
    ("im2col for a product", r"im2col|Im[23]d2Col|col2im|vol2col|col2vol", 1.0, ()),
    ("4 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*mxfp4", 0.5, ("fp4",)),
    ("8 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*(?:fp8|e4m3|e5m2)", 0.5, ("fp8",)),
)


def _detect(inspection: Inspection) -> Finding | None:
    share, kind = np.zeros(len(inspection.work)), np.full(len(inspection.work), -1)
    for number, (_, pattern, saved, types) in enumerate(_FALLBACKS):
        which = named(inspection, re.compile(pattern, re.IGNORECASE)) & (kind < 0)
        if types and which.any():

            def lacks(device: Device | None, peaks: DevicePeaks | None, its: str = types[0]) -> bool:
                return peaks is not None and its not in peaks.matrix

            which &= by_device(inspection, lacks) > 0
        share[which], kind[which] = saved, number
    kinds = ranked(kind, [text for text, *_ in _FALLBACKS], inspection.work.duration)
    return kernel_finding(
        inspection,
        DETECTOR.id,
        kind >= 0,
        share,
        title="Naive and fallback kernels where others are far faster cost {saving}",
        advice=(
            "Look why the library has no better kernel: an unusual size, layout, data type or"
            " dilation, a library without tuned kernels for this GPU, or a data type that it has no"
            " units for. Change that (pad channels to multiples of 8, another layout or type), let"
            " the library search, or update it."
        ),
        snippet="torch.backends.cudnn.benchmark = True",
        confidence="low",
        reason="the names tell what they are; how much faster others are is an assumption",
        where={"reasons": kinds},
    )


DETECTOR = Detector("fallback-kernels", _detect)
