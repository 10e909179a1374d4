"""`no-tensor-cores`: products on the units of single or double precision, beside matrix units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import (
    MATRIX_UNITS,
    by_device,
    capability,
    kernel_finding,
    named,
)

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.roofline.table import RooflineRow
    from tracelens_ext.trace import Device, Float64Array

_DOUBLE: Final = re.compile(r"dgemm")
_VECTOR: Final = re.compile(
    r"(?<![a-z\d])[sdh]gemm|simt|scudnn|convolve_sgemm|gemmSN|[dw]grad\w*_engine<float"
    r"|Cijk_\w+?_[SD]B_\w*?MT\d+x",
)
#: What libraries reach of the matrix units, and what a product takes besides.
_REACHED, _FIXED_NS = 0.6, 5_000
_FIRST: Final = 70  # the first compute capability with tensor cores
#: Without peaks of the device: tensor cores are faster at least so many times.
_USUAL: Final = 1 / 4
_NO_PEAKS: Final = "Whether the GPU has matrix units is not known, so products beside them cannot be told."


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    which = named(inspection, _VECTOR) & ~named(inspection, MATRIX_UNITS)
    # Products of 16 bit beside them have other reasons, which `slow-gemm` tells.
    which &= ~(inspection.by_operation([_is_narrow(row) for row in inspection.roofline.rows]) > 0)
    if not which.any():
        return None
    takes = np.where(
        named(inspection, _DOUBLE),
        by_device(inspection, lambda *its: _takes(*its, ("fp64",))),
        by_device(inspection, lambda *its: _takes(*its, ("tf32", "bf16", "fp16"))),
    )
    if not (takes[which] >= 0).any():
        inspection.note(_NO_PEAKS)
    share = _share(takes, work.duration)
    return kernel_finding(
        inspection,
        DETECTOR.id,
        which,
        share,
        title="Matrix products that leave the tensor cores idle cost {saving}",
        advice=(
            "Let products use the matrix units: TF32 for single precision (from Ampere on), autocast"
            " or weights in bf16 or fp16 (fp16 on Volta and Turing), sizes and strides in multiples"
            " of 8."
        ),
        snippet=(
            'torch.set_float32_matmul_precision("high")'
            '  # or with torch.autocast("cuda", dtype=torch.bfloat16):'
        ),
        confidence="medium",
        reason=(
            "the names of the kernels are those of the vector units, and the device has matrix"
            f" units, of which {_REACHED:.0%} are taken to be reached; accuracy has to allow it"
        ),
    )


def _is_narrow(row: RooflineRow) -> bool:
    wide = ("fp32", "tf32", "fp64")
    return row.cost is not None and row.cost.family == "GEMM" and row.cost.data_type not in wide


def _takes(device: Device | None, peaks: DevicePeaks | None, types: tuple[str, ...]) -> float:
    """The share of the time that the matrix units need for the same; negative: not known."""
    if peaks is None:
        return _USUAL if capability(device, peaks) >= _FIRST and types[0] != "fp64" else -1.0
    vector = peaks.peak("vector", "fp64" if types[0] == "fp64" else "fp32")
    # TF32 where it is faster than single precision, else 16 bit.
    rates = [peaks.matrix[its] for its in types if its in peaks.matrix]
    faster = [rate for rate in rates if vector and rate * _REACHED > vector[0]]
    return vector[0] / (faster[0] * _REACHED) if vector and faster else 1.0


def _share(takes: Float64Array, duration: Float64Array) -> Float64Array:
    needed = takes * duration + _FIXED_NS
    result: Float64Array = np.where(takes >= 0, 1 - needed / np.maximum(duration, 1), 0.0)
    return np.clip(result, 0.0, 1.0)


DETECTOR = Detector("no-tensor-cores", _detect)
