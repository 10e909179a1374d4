"""How long matrix products take on a device that is used well."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import Float64Array

#: What libraries reach of the peak matrix rate with large sizes: cuBLAS 60 to 80 %, as power
#: allows; hipBLASLt about 50 %, as the peaks of AMD's datasheets are farther from what clocks hold.
REACHED: Final = 0.6
REACHED_AMD: Final = 0.5
#: What a product takes besides, however small: start, the first loads, the last stores.
FIXED_NS: Final = 5_000
#: Less than this times what is reached is within what tiles, clocks and neighbors explain.
FAR: Final = 1.5
#: Sizes that are multiples of this fit the matrix units.
STEP: Final = 8

_WARP_OF_AMD: Final = 64
#: Rows and columns of a tile of the result, and the depth below which splitting K gains nothing.
_TILE: Final = 128
_LEAST_TILE: Final = 16
_DEPTH: Final = 1024


def rounded_up_quotient(size: int, part: int) -> int:
    """Return how many parts it takes to cover a size; exact for sizes of any length."""
    return -(-size // part)


def needed_ns_of_events(inspection: Inspection) -> Float64Array:
    """Return what the product of each GPU event would take, ns; 0: none, or not known, (g,)."""
    return inspection.by_operation(_reached_ns, inspection.peaks_of_rows)


def is_single_precision(row: RooflineRow) -> bool:
    """Tell whether an operation computes in single precision."""
    return row.cost is not None and row.cost.data_type == "fp32"


def could_be_tf32(row: RooflineRow, peaks: DevicePeaks) -> bool:
    """Tell whether a product is in single precision on a GPU whose matrix units have TF32 only."""
    return (
        is_single_precision(row)
        and "fp32" not in peaks.matrix
        and "tf32" in peaks.matrix
    )


def _reached_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """Return what a call would take as libraries compute such sizes, ns; 0: no product."""
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
    for size, most in ((rows, _TILE), (columns, _TILE), (depth, _DEPTH)):
        tiles *= rounded_up_quotient(size, most)
        padded_size = rounded_up_quotient(size, _LEAST_TILE) * _LEAST_TILE
        tile_flops *= min(most, padded_size)
    units = peaks.units or 1
    waves = rounded_up_quotient(tiles, units)
    flops = waves * units * tile_flops
    compute_rate = rate * 1e3 * share
    compute_ns = flops / compute_rate
    memory_rate = peaks.memory * MEMORY_SHARE
    memory_ns = row.cost.bytes / memory_rate
    return FIXED_NS + max(compute_ns, memory_ns)
