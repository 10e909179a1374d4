"""`no-tensor-cores`: products on the units of single or double precision, beside matrix units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import (
    MATRIX_UNITS,
    beyond,
    by_device,
    capability,
    claimed,
    named,
)
from tracelens_ext.findings.slow_gemm import needed_ns

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device

_DOUBLE: Final = re.compile(r"dgemm")
_VECTOR: Final = re.compile(
    r"(?<![a-z\d])[sdh]gemm(?!Ex)|simt|scudnn|convolve_sgemm|gemmSN|[dw]grad\w*_engine<float"
    r"|Cijk_\w+?_[SD]B_\w*?MT\d+x"
)
#: What libraries reach of the matrix units, and what a product takes besides.
_REACHED, _FIXED_NS = 0.6, 5_000
#: The first compute capability with tensor cores; without peaks they are taken as so much faster.
_FIRST, _USUAL = 70, 1 / 4


def _detect(inspection: Inspection) -> Finding | None:
    rows, time = inspection.roofline.rows, np.maximum(inspection.work.duration, 1)
    which = named(inspection, _VECTOR) & ~named(inspection, MATRIX_UNITS)
    if not which.any():
        return None
    takes = np.where(
        named(inspection, _DOUBLE),
        by_device(inspection, lambda *its: _takes(*its, "fp64")),
        by_device(inspection, lambda *its: _takes(*its, "tf32", "bf16", "fp16")),
    )
    share = np.where(takes > 0, 1 - takes - _FIXED_NS / time, 0.0)
    # Memory limits some more, as sizes tell: by TF32, where the device has it.
    single = [row.cost is not None and row.cost.data_type == "fp32" for row in rows]
    tf32 = by_device(inspection, lambda _, peaks: peaks is not None and "tf32" in peaks.matrix)
    needed = np.where(inspection.by_operation(single) * tf32 > 0, needed_ns(inspection), 0.0)
    share = np.where(needed > 0, np.minimum(share, beyond(inspection, needed, 1.0)), share)
    return claimed(inspection, DETECTOR.id, np.where(which, np.maximum(share, 0.0), 0.0))


def _takes(device: Device | None, peaks: DevicePeaks | None, *types: str) -> float:
    """The share of the time that matrix units need for the same; 0: not known."""
    wide = "fp64" if types == ("fp64",) else "fp32"
    if peaks is None:
        return _USUAL if capability(device, peaks) >= _FIRST and wide == "fp32" else 0.0
    vector, _ = peaks.peak("vector", wide) or (0.0, "")
    # TF32 where it is faster than single precision, else 16 bit.
    rates = [_REACHED * peaks.matrix[its] for its in types if its in peaks.matrix]
    return next((vector / rate for rate in rates if rate > vector), 1.0)


DETECTOR = Detector("no-tensor-cores", _detect)
