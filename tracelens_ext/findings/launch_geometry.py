"""`launch-geometry`: kernels of too few blocks for the multiprocessors of their device."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, capability, claimed
from tracelens_ext.operations.launchers import argument_values
from tracelens_ext.roofline.peaks import shared_memory_of

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Device, Float64Array

_SHORT_NS: Final = 5_000  # shorter kernels are mostly their own start and end: `small-kernels`


def _detect(inspection: Inspection) -> Finding | None:
    work, blocks = inspection.work, _blocks(inspection)
    if not (blocks > 0).any():
        return None
    units = by_device(inspection, _units)
    there = np.maximum(units, 1)
    waves = np.ceil(blocks / there)
    # Several blocks may share a multiprocessor, so there are waves only of blocks that cannot.
    most = by_device(inspection, lambda *its: shared_memory_of(capability(*its)) or math.inf)
    apart = work.trace.arg("shared memory").at(work.rows, 0) * 2.0 > most
    few = (waves == 1) | ((waves == 2) & apart)
    few &= (units > 0) & (blocks - (waves - 1) * there < there / 2) & (work.duration >= _SHORT_NS)
    few &= work.is_kernel & ~work.is_communication
    if not few.any():
        return None
    mean = float(np.average(blocks[few], weights=work.duration[few]))
    return claimed(
        inspection,
        DETECTOR.id,
        np.where(few, 1 - blocks / np.maximum(waves * there, 1), 0.0),
        [
            Evidence("blocks, weighted by time", mean, "blocks", "kernels"),
            Evidence("multiprocessors", float(units.max()), "units", "roofline"),
        ],
    )


def _units(device: Device | None, peaks: DevicePeaks | None) -> int:
    return (device.units if device else 0) or (peaks.units if peaks else 0)


def _blocks(inspection: Inspection) -> Float64Array:
    """How many blocks each GPU event has; 0: not recorded, (g,)."""
    trace, rows = inspection.work.trace, inspection.work.rows
    if trace.arg("grid").texts is None:
        return trace.arg("grid").at(rows, 0).astype(np.float64)
    code, numbers = argument_values(trace, rows, "grid", _product, 0.0)
    return np.array(numbers, dtype=np.float64)[code]


def _product(text: str) -> float:
    """Blocks of `[512, 1, 1]`; 0 for anything else."""
    try:
        total = math.prod(map(int, json.loads(text)))
        return float(total) if 0 < total < 2**53 else 0.0
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0.0


DETECTOR = Detector("launch-geometry", _detect)
