"""`old-kernels`: products by kernels for an older architecture than the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import beyond, by_device, capability, claimed, named
from tracelens_ext.findings.slow_gemm import needed_ns
from tracelens_ext.roofline.gemm import product_sizes

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.roofline.found import RooflineRow
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device

_BUILT_FOR: Final = {
    70: ("kernels for Volta", re.compile(r"volta_|cutlass_70|sm70_")),
    75: ("kernels for Turing", re.compile(r"turing_|cutlass_75|sm75_")),
    80: ("kernels for Ampere", re.compile(r"ampere_|cutlass_80|sm80_")),
    90: ("kernels for Hopper", re.compile(r"cutlass_90|cutlass3x_sm90|sm90_")),
}
#: Alignment and tiles in names, and rows, that explain an older kernel.
_ODD: Final = re.compile(
    r"align[12](?!\d)|^(?:(?!_\d+x\d+).)*_(?:(?:16|32)x\d+|\d+x(?:16|32)|64x64)_", re.IGNORECASE
)
_ROWS, _STEP = 128, 8
#: Ampere's instructions reach about 60 % of what Hopper's do. What takes longer than so many times
#: what a product needs is beyond that.
_SAVED, _FAR = 0.4, 1.5
#: Graphics cards from here on have neither Hopper's instructions nor those of its successor.
_CARDS: Final = 120


def _detect(inspection: Inspection) -> Finding | None:
    built = np.zeros(len(inspection.work), dtype=np.int64)
    for generation, (_, pattern) in _BUILT_FOR.items():
        built[named(inspection, pattern)] = generation
    explained = inspection.by_operation([_explained(row) for row in inspection.roofline.rows])
    old = (built > 0) & (built < by_device(inspection, _generation))
    old &= (explained == 0) & ~named(inspection, _ODD)
    kinds = np.searchsorted([*_BUILT_FOR], built), [label for label, _ in _BUILT_FOR.values()]
    share = np.maximum(beyond(inspection, needed_ns(inspection), _FAR), _SAVED)
    return claimed(inspection, DETECTOR.id, np.where(old, share, 0.0), kinds={"reasons": kinds})


def _generation(device: Device | None, peaks: DevicePeaks | None) -> int:
    """The newest generation whose kernels run on it; 0: not known."""
    its = capability(device, peaks)
    its = 80 if its >= _CARDS else its
    return max((each for each in (*_BUILT_FOR, 100) if each <= its), default=0)


def _explained(row: RooflineRow) -> bool:
    """Whether the sizes of a product let a library choose older kernels."""
    if row.cost is None or row.cost.family != "GEMM":
        return False
    _, *sizes = product_sizes(row.cost)
    return min(sizes[:2]) < _ROWS or any(size % _STEP for size in sizes)


DETECTOR = Detector("old-kernels", _detect)
