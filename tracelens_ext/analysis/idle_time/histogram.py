"""Histograms of the lengths of gaps, and their display as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Float64Array, Int64Array

#: The number of bins of the table.
BINS = 20
_BAR_LENGTH = 40  #: characters
#: If a bin has a larger share of the values than this, the other bins are too small to be seen.
_MAX_SHARE_OF_BIN = 0.95
_FULL_CELL = "█"
_EMPTY_CELL = "░"
_BAR_SIDE = "│"
_ASCII = str.maketrans({"█": "#", "░": ".", "│": "|", "μ": "u"})


@dataclass(frozen=True, eq=False)
class Histogram:
    """The number of values in each of b bins.

    Attributes:
        edges: the ascending edges of the bins, (b + 1,); empty if there are no bins.
        counts: the number of values in each bin, (b,). A bin includes its lower edge; only the last
            bin includes its upper edge.
        below: the number of values smaller than the first edge.
        above: the number of values larger than the last edge.
    """

    edges: Float64Array
    counts: Int64Array
    below: int
    above: int


class ReadableHistogram(NamedTuple):
    """A histogram whose bins are logarithmic if that is needed to see them."""

    histogram: Histogram
    reason: str  #: why the bins are logarithmic; empty if this was not decided here


def histogram(
    values: Float64Array,
    *,
    bins: int,
    smallest: float | None = None,
    largest: float | None = None,
    log: bool = False,
) -> Histogram:
    """Return the histogram of finite values.

    Args:
        values: the values.
        bins: the number of bins; there is only one bin if all values are equal.
        smallest: the lower bound; by default the smallest value.
        largest: the upper bound; by default the largest value.
        log: use logarithmic bins; values of 0 and less then count as below the bins.
    """
    lower_bound = -np.inf if smallest is None else smallest
    upper_bound = np.inf if largest is None else largest
    is_inside = (values >= lower_bound) & (values <= upper_bound)
    if log:
        is_inside &= values > 0
    inside = values[is_inside]
    if not len(inside):
        below = int((values < lower_bound).sum())
        no_counts = np.empty(0, dtype=np.int64)
        return Histogram(
            edges=inside, counts=no_counts, below=below, above=len(values) - below
        )
    low = float(inside.min())
    if smallest is not None and not (log and smallest <= 0):
        low = smallest
    high = float(inside.max())
    if largest is not None:
        high = largest
    edges = _bin_edges(low, high, bins, log=log)
    below = int((values < low).sum())
    return Histogram(
        edges=edges,
        counts=np.histogram(inside, edges)[0],
        below=below,
        above=len(values) - below - len(inside),
    )


def _bin_edges(low: float, high: float, bins: int, *, log: bool) -> Float64Array:
    """Return the edges of bins of equal or logarithmic width; one bin if the bounds are equal."""
    edge_count = bins + 1
    if low == high:
        edge_count = 2
    space_edges = np.geomspace if log else np.linspace
    edges: Float64Array = space_edges(low, high, edge_count)
    # geomspace may round the first and the last edge.
    edges[0] = low
    edges[-1] = high
    return edges


def readable_histogram(
    values: Float64Array,
    bins: int,
    smallest: float | None,
    largest: float | None,
    *,
    log: bool,
) -> ReadableHistogram:
    """Return a histogram with bins of equal width, or logarithmic if a bin has nearly all values.

    The arguments are those of `histogram`.
    """
    requested = histogram(
        values, bins=bins, smallest=smallest, largest=largest, log=log
    )
    total = int(requested.counts.sum())
    largest_count = int(requested.counts.max(initial=0))
    is_readable = largest_count <= _MAX_SHARE_OF_BIN * total
    if log or len(requested.counts) < 2 or is_readable:
        return ReadableHistogram(requested, "")
    reason = (
        f"Logarithmic bins: an equal-width bin would contain {largest_count:,} of the "
        f"{total:,} gaps."
    )
    logarithmic = histogram(
        values, bins=bins, smallest=smallest, largest=largest, log=True
    )
    return ReadableHistogram(logarithmic, reason)


def histogram_lines(
    histogram: Histogram, *, unit: str = "μs", bars: bool = True
) -> list[str]:
    """Return a line per bin, with a bar and the count, or with the count alone."""
    counts: list[int] = histogram.counts.tolist()
    largest_count = max(counts, default=0)
    width = len(str(largest_count))
    lines = []
    for label, count in zip(_bin_labels(histogram.edges, unit), counts, strict=True):
        bar = f" {_bar(count, largest_count)}" if bars else ":"
        lines.append(f"{label}{bar} {count:>{width}}")
    return lines


def _bar(count: int, largest_count: int) -> str:
    """Return a bar for the ratio of a count to the largest one; a count above 0 has a full cell."""
    full_cells = -(-_BAR_LENGTH * count // max(largest_count, 1))  # rounded up
    empty_cells = _BAR_LENGTH - full_cells
    cells = _FULL_CELL * full_cells + _EMPTY_CELL * empty_cells
    return f"{_BAR_SIDE}{cells}{_BAR_SIDE}"


def ascii_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines with ASCII characters only, for terminals that lack others."""
    return [line.translate(_ASCII) for line in lines]


def _bin_labels(edges: Float64Array, unit: str) -> list[str]:
    """Return a label such as `1.0-2.5 μs` for each bin, with three decimals for narrow bins."""
    widths = np.diff(edges)
    narrowest = float(widths.min(initial=np.inf))
    decimals = 1
    if 0 < narrowest < 0.1:
        decimals = 3
    numbers = [f"{edge:.{decimals}f}" for edge in edges.tolist()]
    labels = [f"{low}-{high} {unit}" for low, high in pairwise(numbers)]
    longest = max(map(len, labels), default=0)
    return [label.rjust(longest) for label in labels]
