"""`launch-geometry`: kernels of too few blocks for the multiprocessors of their device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import blocks_of, by_device, capability, claimed
from tracelens_ext.roofline.peaks import DevicePeaks, shared_memory_of

if TYPE_CHECKING:
    from tracelens_ext.trace import Device

_SHORT_NS: Final = 5_000  # shorter kernels are mostly their own start and end: `small-kernels`


def _detect(inspection: Inspection) -> Finding | None:
    work, blocks = inspection.work, blocks_of(inspection)
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


DETECTOR = Detector("launch-geometry", _detect)
