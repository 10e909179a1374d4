"""`double-precision`: kernels that compute in fp64 in a program of fp32 or 16 bit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, kernel_finding, named

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device

#: Of template arguments the first, and operations on doubles; parameters are no data.
_DOUBLE: Final = re.compile(
    r"<double\b|dgemm|d884|Cijk_\w+?_DB?_|lambda\(double(?:, double)*\)"
)
_SINGLE: Final = re.compile(
    r"<float\b|[<:]Half\b|__half|BFloat16|bfloat16|[sh]gemm|s884|s1688|16816|f16|f32|_SB_|_[HB]B?S?_"
)


def _detect(inspection: Inspection) -> Finding | None:
    double = named(inspection, _DOUBLE)
    single = named(inspection, _SINGLE) & ~double
    if not single.sum() > double.sum():  # the program computes in double precision
        return None
    return kernel_finding(
        inspection,
        DETECTOR.id,
        double,
        by_device(inspection, _saved),
        title="Kernels in double precision, in a program that is not, take {saving} too long",
        advice=(
            "Find where the doubles come from: a Python or NumPy float in a tensor, a default data"
            " type, coordinates or masks of preprocessing. Make them single precision before they"
            " are computed with."
        ),
        snippet="x = x.float()  # and torch.tensor(values, dtype=torch.float32)",
        confidence="medium",
        reason=(
            "single precision moves half of the bytes, and computes as much faster as the device"
            " has it; other kernels are in lower precision"
        ),
    )


def _saved(device: Device | None, peaks: DevicePeaks | None) -> float:
    """The share of the time that single precision saves."""
    rates = peaks.vector if peaks else {}
    slower = rates["fp64"] / rates["fp32"] if rates.get("fp64") and rates.get("fp32") else 0.5
    return 1 - min(slower, 0.5)


DETECTOR = Detector("double-precision", _detect)
