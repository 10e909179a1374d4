"""How long gaps are: histograms, and histograms as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Float64Array, Int64Array

#: Bins of the table.
BINS = 20
_BAR_CELLS = 40
#: A bin with a larger share of the values hides all others.
_HIDING_SHARE = 0.95
_FULL = "█"
_EMPTY = "░"
_SIDE = "│"
_ASCII = str.maketrans({"█": "#", "░": ".", "│": "|", "μ": "u"})


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts by bin.

    Attributes:
        edges: ascending, (b + 1,); of no bins, empty.
        counts: values in each bin; all but the last leave out their upper edge, (b,).
        below: values smaller than the first edge.
        above: values larger than the last edge.
    """

    edges: Float64Array
    counts: Int64Array
    below: int
    above: int


class TellingHistogram(NamedTuple):
    """A histogram that shows something, and why its bins are not of one width, or empty."""

    histogram: Histogram
    reason: str


def histogram(
    values: Float64Array,
    *,
    bins: int,
    smallest: float | None = None,
    largest: float | None = None,
    log: bool = False,
) -> Histogram:
    """Count finite values by bin.

    Args:
        values: what is counted.
        bins: how many bins; one where all values are equal.
        smallest: the lower bound, the smallest value by default.
        largest: the upper bound, the largest value by default.
        log: whether bins are of one ratio, not of one width; what is not above 0 is below them.
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
    edge_count = bins + 1
    if low == high:
        edge_count = 2
    spaced = np.geomspace if log else np.linspace
    edges = spaced(low, high, edge_count)
    # geomspace may miss its ends by a rounding.
    edges[0] = low
    edges[-1] = high
    below = int((values < low).sum())
    return Histogram(
        edges=edges,
        counts=np.histogram(inside, edges)[0],
        below=below,
        above=len(values) - below - len(inside),
    )


def telling_histogram(
    values: Float64Array,
    bins: int,
    smallest: float | None,
    largest: float | None,
    *,
    log: bool,
) -> TellingHistogram:
    """Return a histogram whose bins are logarithmic where equal bins would show nothing."""
    counted = histogram(values, bins=bins, smallest=smallest, largest=largest, log=log)
    inside = int(counted.counts.sum())
    most = int(counted.counts.max(initial=0))
    if log or len(counted.counts) < 2 or most <= _HIDING_SHARE * inside:
        return TellingHistogram(counted, "")
    reason = (
        f"Logarithmic bins: an equal-width bin would contain {most:,} of the "
        f"{inside:,} gaps."
    )
    logarithmic = histogram(
        values, bins=bins, smallest=smallest, largest=largest, log=True
    )
    return TellingHistogram(logarithmic, reason)


def histogram_lines(
    histogram: Histogram, *, unit: str = "μs", bars: bool = True
) -> list[str]:
    """Return a line a bin: a bar and a count, or a count after a colon."""
    counts: list[int] = histogram.counts.tolist()
    most = max(counts, default=0)
    width = len(str(most))
    lines = []
    for label, count in zip(_bin_labels(histogram.edges, unit), counts, strict=True):
        bar = f" {_bar(count, most)}" if bars else ":"
        lines.append(f"{label}{bar} {count:>{width}}")
    return lines


def _bar(count: int, most: int) -> str:
    """Return a bar that is as long as the share of a count in the largest; never empty above 0."""
    full_cells = -(-_BAR_CELLS * count // max(most, 1))  # rounded up
    empty_cells = _BAR_CELLS - full_cells
    return f"{_SIDE}{_FULL * full_cells}{_EMPTY * empty_cells}{_SIDE}"


def ascii_lines(lines: Sequence[str]) -> list[str]:
    """Return the same lines for a terminal that knows ASCII only."""
    return [line.translate(_ASCII) for line in lines]


def _bin_labels(edges: Float64Array, unit: str) -> list[str]:
    """Return the bins in words, with the decimals that tell one edge from the next."""
    widths = np.diff(edges)
    narrowest = float(widths.min(initial=np.inf))
    decimals = 1
    if 0 < narrowest < 0.1:
        decimals = 3
    numbers = [f"{edge:.{decimals}f}" for edge in edges.tolist()]
    labels = [f"{low}-{high} {unit}" for low, high in pairwise(numbers)]
    longest = max(map(len, labels), default=0)
    return [label.rjust(longest) for label in labels]
