"""`old-kernels`: products by kernels for an older architecture than the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, capability, kernel_finding, named
from tracelens_ext.findings.places import ranked
from tracelens_ext.roofline.gemm import product_sizes

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.roofline.table import RooflineRow
    from tracelens_ext.trace import Device

_BUILT_FOR: Final = {
    70: ("kernels for Volta", re.compile(r"volta_|cutlass_70|sm70_")),
    75: ("kernels for Turing", re.compile(r"turing_|cutlass_75|sm75_")),
    80: ("kernels for Ampere", re.compile(r"ampere_|cutlass_80|sm80_")),
    90: ("kernels for Hopper", re.compile(r"cutlass_90|cutlass3x_sm90|sm90_")),
}
#: Tiles and alignment in names that sizes explain: odd ones, and too few rows for a larger tile.
_ODD: Final = re.compile(r"align[12](?!\d)|[_x](16|32)x|x(16|32)_|_64x64_", re.IGNORECASE)
_ROWS, _STEP = 128, 8
#: Ampere's instructions reach about 60 % of what Hopper's do, and so back to Volta.
_SAVED: Final = 0.4


def _detect(inspection: Inspection) -> Finding | None:
    device = by_device(inspection, _generation)
    built, labels = np.zeros(len(inspection.work), dtype=np.int64), {}
    for generation, (labels[generation], pattern) in _BUILT_FOR.items():
        built[named(inspection, pattern)] = generation
    explained = inspection.by_operation([float(_explained(row)) for row in inspection.roofline.rows])
    old = (built > 0) & (built < device) & ~(explained > 0) & ~named(inspection, _ODD)
    numbers = sorted(labels)
    kinds = ranked(
        np.where(old, np.searchsorted(numbers, built), -1),
        [labels[number] for number in numbers],
        inspection.work.duration,
    )
    return kernel_finding(
        inspection,
        DETECTOR.id,
        old,
        _SAVED,
        title="Kernels built for an older GPU than this one cost {saving}",
        advice=(
            "Use libraries that are built for this GPU: a newer cuBLAS, cuDNN or framework, or a"
            " build that names its architecture; sizes and alignment do not explain the choice."
        ),
        confidence="low",
        reason=(
            "their names tell for what they are built; each generation's own instructions are taken"
            f" to save {_SAVED:.0%}"
        ),
        where={"reasons": kinds},
    )


def _generation(device: Device | None, peaks: DevicePeaks | None) -> int:
    """The newest of the generations above whose kernels run best; 0: not known."""
    its = capability(device, peaks)
    if its >= 120:  # graphics cards have neither Hopper's instructions nor those of its successor
        return 80
    return max((each for each in (70, 75, 80, 90, 100) if each <= its), default=0)


def _explained(row: RooflineRow) -> bool:
    """Whether the sizes of a product let a library choose older kernels."""
    if row.cost is None or row.cost.family != "GEMM":
        return False
    _, m, n, k = product_sizes(row.cost)
    return min(m, n) < _ROWS or bool(n % _STEP or k % _STEP or m % _STEP)


DETECTOR = Detector("old-kernels", _detect)
