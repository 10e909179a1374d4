"""`double-precision`: kernels that compute in fp64 in a program of fp32 or 16 bit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import by_device, claimed, named

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device

#: First template arguments, and operations on doubles; parameters of functions are no data.
_DOUBLE: Final = re.compile(r"<double\b|dgemm|d884|Cijk_\w+?_DB?_|lambda\(double(?:, double)*\)")
_NARROW: Final = re.compile(
    r"<float\b|nvjet|triton_|\bHalf\b|__half|bfloat16|[sh]gemm|s884|1688|16816|f16|f32|_SB_|_[HB]B?S?_",
    re.IGNORECASE,
)


def _detect(inspection: Inspection) -> Finding | None:
    double = named(inspection, _DOUBLE)
    if not double.any() or double.sum() >= (named(inspection, _NARROW) & ~double).sum():
        return None  # of a program that computes in double precision
    return claimed(inspection, DETECTOR.id, np.where(double, by_device(inspection, _saved), 0.0))


def _saved(_: Device | None, peaks: DevicePeaks | None) -> float:
    """The share of the time that single precision saves: half of the bytes, or what units lack."""
    rates = peaks.vector if peaks else {}
    known = "fp64" in rates and "fp32" in rates
    return 1 - min(rates["fp64"] / rates["fp32"], 0.5) if known else 0.5


DETECTOR = Detector("double-precision", _detect)
