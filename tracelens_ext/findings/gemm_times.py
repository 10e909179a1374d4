"""The time that matrix products take if libraries use the device well."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import Float64Array

#: The share of the peak matrix rate that libraries reach with large sizes: cuBLAS 60 to 80 %,
#: depending on power.
REACHED: Final = 0.6
#: The same share for hipBLASLt. It is lower because GPUs of AMD hold the clocks behind the peaks in
#: their datasheets for a shorter time.
REACHED_AMD: Final = 0.5
#: The time that a product of any size takes to start, load its first data and store its last.
FIXED_NS: Final = 5_000
#: A product that takes less than this times the expected time is not slow: tiles, clocks and other
#: work explain such a difference.
FAR: Final = 1.5
#: Sizes that are multiples of this fit the matrix units.
STEP: Final = 8

_WARP_OF_AMD: Final = 64
#: Rows and columns of a large tile of the result, and of the smallest one.
_TILE: Final = 128
_LEAST_TILE: Final = 16
#: Splitting a K that is not larger than this gains nothing.
_DEPTH: Final = 1024


def rounded_up_quotient(size: int, part: int) -> int:
    """Return how many parts it takes to cover a size; exact for large numbers, too."""
    return -(-size // part)


def needed_ns_of_events(inspection: Inspection) -> Float64Array:
    """Return the expected time of the product of each GPU event, ns, (g,); 0: not known."""
    return inspection.by_operation(_reached_ns, inspection.peaks_of_rows)


def is_single_precision(row: RooflineRow) -> bool:
    """Return whether an operation computes in single precision."""
    return row.cost is not None and row.cost.data_type == "fp32"


def could_be_tf32(row: RooflineRow, peaks: DevicePeaks) -> bool:
    """Return whether a product in single precision could use the TF32 units of its GPU."""
    return (
        is_single_precision(row)
        and "fp32" not in peaks.matrix
        and "tf32" in peaks.matrix
    )


def _reached_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """Return the expected time of a call of a product, ns; 0 if it is not known.

    The result is split into tiles, and K into parts of `_DEPTH`. The units compute as many tiles at
    once as there are units; the last wave counts as a full one.
    """
    batch, rows, columns, depth = product_sizes(row.cost)
    if not batch * rows * columns * depth:
        return 0.0
    if row.cost is None or not row.peak or peaks is None:
        return 0.0
    rate = row.peak
    if could_be_tf32(row, peaks):
        rate = peaks.matrix["tf32"]
    share = REACHED
    if peaks.warp == _WARP_OF_AMD:
        share = REACHED_AMD
    tiles = batch
    tile_flops = 2
    for size, tile_size in ((rows, _TILE), (columns, _TILE), (depth, _DEPTH)):
        tiles *= rounded_up_quotient(size, tile_size)
        padded_size = rounded_up_quotient(size, _LEAST_TILE) * _LEAST_TILE
        tile_flops *= min(tile_size, padded_size)
    units = peaks.units or 1
    waves = rounded_up_quotient(tiles, units)
    flops = waves * units * tile_flops
    compute_rate = rate * 1e3 * share
    compute_ns = flops / compute_rate
    memory_rate = peaks.memory * MEMORY_SHARE
    memory_ns = row.cost.bytes / memory_rate
    return FIXED_NS + max(compute_ns, memory_ns)
