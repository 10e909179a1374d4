"""`launch-geometry`: kernels of too few blocks for the multiprocessors of their device."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, capability, kernel_finding, units
from tracelens_ext.operations.arguments import argument_values
from tracelens_ext.roofline.peaks import shared_memory_of

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import Float64Array

#: Shorter kernels are mostly their own start and end: `small-kernels`.
_SHORT_NS: Final = 5_000
_MOST_BLOCKS: Final = 2**53
_NO_UNITS: Final = "How many multiprocessors the GPU has is not known, so idle ones cannot be told."


def _detect(inspection: Inspection) -> Finding | None:
    work, blocks = inspection.work, _blocks(inspection)
    if not (blocks > 0).any():
        return None
    there = by_device(inspection, units)
    if not there.any():
        inspection.note(_NO_UNITS)
    known = (blocks > 0) & (there > 0)
    there = np.maximum(there, 1)
    waves = np.ceil(blocks / there)
    last = blocks - (waves - 1) * there
    # Several blocks may share a multiprocessor, so there are waves only of blocks that cannot.
    alone = _shared_memory(inspection) * 2 > by_device(
        inspection, lambda *its: shared_memory_of(capability(*its)) or math.inf
    )
    few = known & (last < there / 2) & ((waves == 1) | ((waves == 2) & alone))
    few &= work.is_kernel & ~work.is_communication & (work.duration >= _SHORT_NS)
    idle = np.where(few, 1 - blocks / np.maximum(waves * there, 1), 0.0)
    time = work.duration[few]
    return kernel_finding(
        inspection,
        DETECTOR.id,
        few,
        idle,
        title="Kernels of fewer blocks than the GPU has multiprocessors cost {saving} at most",
        advice=(
            "Divide the work into more blocks: at least one for each multiprocessor, better several."
            " Where there is no more of it, give a launch more (a larger batch, several problems in"
            " one), split the sum that each block computes, or run such kernels beside others on"
            " streams of their own."
        ),
        confidence="low",
        reason="a bound: as if the work could be divided among all multiprocessors",
        evidence=[
            Evidence(
                "blocks, weighted by time",
                float((blocks[few] * time).sum() / max(time.sum(), 1)),
                "blocks",
                "kernels",
            ),
            Evidence("multiprocessors", float(there[known].max(initial=0)), "units", "roofline"),
        ],
    )


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
        sizes = json.loads(text)
        total = math.prod(map(int, sizes)) if isinstance(sizes, list) and sizes else 0
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0.0
    return float(total) if 0 < total < _MOST_BLOCKS else 0.0


def _shared_memory(inspection: Inspection) -> Float64Array:
    rows = inspection.work.rows
    return inspection.work.trace.arg("shared memory").at(rows, 0).astype(np.float64)


DETECTOR = Detector("launch-geometry", _detect)
