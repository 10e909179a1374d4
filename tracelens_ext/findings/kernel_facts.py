"""What is known of kernels and their devices: blocks, compute capability."""

from __future__ import annotations

import json
import math
from typing import Final

import numpy as np

from tracelens_ext.analysis.operations.arguments import argument_values
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.roofline.peaks import DevicePeaks, capability_of
from tracelens_ext.trace import Device, Float64Array

#: Shorter kernels, and passes, are mostly their own start and end: `small-kernels`.
SHORT_NS: Final = 5_000
_NVIDIA_WARP: Final = 32


def capability(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Return ten times NVIDIA's compute capability; 0: not known, or of another maker."""
    if (
        device
        and device.capability
        and device.warp == _NVIDIA_WARP
        and "AMD" not in device.name
    ):
        return device.capability
    if peaks is None:
        return 0
    return capability_of(peaks.name)


def blocks_of_events(inspection: Inspection) -> Float64Array:
    """Return how many blocks each GPU event has; 0: not recorded, (g,)."""
    trace = inspection.work.trace
    rows = inspection.work.rows
    if trace.arg("grid").texts is None:
        return trace.arg("grid").at(rows, 0).astype(np.float64)
    code, blocks = argument_values(trace, rows, "grid", _blocks_of_grid, 0.0)
    return np.array(blocks, dtype=np.float64)[code]


def _blocks_of_grid(text: str) -> float:
    """Return the blocks of `[512, 1, 1]`; 0 for anything else."""
    try:
        blocks = math.prod(map(int, json.loads(text)))
        if 0 < blocks < 2**53:
            return float(blocks)
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    return 0.0
