"""Kernels that compute in fp64 in a program that mostly computes in lower precision."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import Device

TEXT: Final = FindingText(
    title="Double-precision kernels in a lower-precision program: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Find where the doubles come from, and convert them before computing: a "
                "default data type, a NumPy array or Python float made into a tensor, "
                "coordinates, masks."
            ),
            snippet="x = x.float()  # and torch.tensor(values, dtype=torch.float32)",
        ),
        AdviceVariant(
            advice=(
                "Find where the doubles come from, and convert them before computing: "
                "literals without `f`, defaults of a library, input data."
            ),
        ),
    ),
    reason="other kernels run in lower precision; accuracy may need these doubles",
    evidence={
        "events": EvidenceText(
            what="double-precision kernels", unit="GPU events", see="kernels"
        ),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
)

#: Names with double as the first template argument, and operations on doubles. A double parameter
#: of a function does not tell the type of the data.
_DOUBLE: Final = re.compile(
    r"<double\b|dgemm|d884|Cijk_\w+?_DB?_|lambda\(double(?:, double)*\)"
)
_NARROW: Final = re.compile(
    r"<float\b|nvjet|triton_|\bHalf\b|__half|bfloat16|[sh]gemm|s884|1688|16816|f16|f32|_SB_|_[HB]B?S?_",
    re.IGNORECASE,
)
#: Single precision saves at least half of the time, because it moves half of the bytes.
_SAVED_BYTES: Final = 0.5


@detector("double-precision", TEXT)
def double_precision(inspection: Inspection) -> Finding | None:
    """Detect kernels in fp64 in a program that mostly computes in lower precision."""
    is_double = inspection.named(_DOUBLE)
    if not is_double.any():
        return None
    is_narrow = inspection.named(_NARROW) & ~is_double
    if is_double.sum() >= is_narrow.sum():
        return None  # a program that computes in double precision
    share = np.where(is_double, inspection.by_device(_saved_share), 0.0)
    return inspection.finding_of_events("double-precision", share, text=TEXT)


def _saved_share(_: Device | None, peaks: DevicePeaks | None) -> float:
    """Return the share of the time that single precision saves, by memory or by compute rate."""
    if peaks is None or not {"fp64", "fp32"} <= peaks.vector.keys():
        return _SAVED_BYTES
    return 1 - min(peaks.vector["fp64"] / peaks.vector["fp32"], _SAVED_BYTES)
