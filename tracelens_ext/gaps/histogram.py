"""Histograms as text: bins of one width, or of one ratio where outliers would hide all else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

BINS = 20  # of the table
_BAR = 40  # cells
_HIDING = 0.95  # share of the values in one bar that hides all else
_FULL, _EMPTY, _SIDE = "█", "░", "│"
_ASCII = str.maketrans({"█": "#", "░": ".", "│": "|", "μ": "u"})


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts by bin."""

    edges: FloatArray  #: ascending, (b + 1,); of no bins, empty
    #: values in each bin; all but the last leave out their upper edge, (b,)
    counts: npt.NDArray[np.int64]
    below: int  #: values smaller than the first edge
    above: int  #: values larger than the last


def histogram(
    values: FloatArray,
    *,
    bins: int,
    smallest: float | None = None,
    largest: float | None = None,
    log: bool = False,
) -> Histogram:
    """Count values by bin.

    Args:
        values: finite; with `log` those not above 0 are below all bins.
        bins: how many, fewer where all values are one.
        smallest: the first edge, the smallest value by default.
        largest: the last edge, likewise.
        log: bins of one ratio instead of one width.
    """
    inside = values[values > 0] if log else values
    inside = inside[inside >= smallest] if smallest is not None else inside
    inside = inside[inside <= largest] if largest is not None else inside
    if not len(inside):
        below = int((values < smallest).sum()) if smallest is not None else 0
        empty = np.empty(0, dtype=np.float64)
        return Histogram(empty, empty.astype(np.int64), below, len(values) - below)
    low = float(inside.min()) if smallest is None or (log and smallest <= 0) else smallest
    high = float(inside.max()) if largest is None else largest
    if low == high:
        edges = np.array([low, high])
    elif log:
        edges = np.geomspace(low, high, bins + 1)
        edges[0], edges[-1] = low, high  # geomspace may miss its ends by a rounding
    else:
        edges = np.linspace(low, high, bins + 1)
    place = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(place, minlength=len(edges) - 1).astype(np.int64)
    below = int((values < low).sum())
    return Histogram(edges, counts, below, len(values) - below - len(inside))


def histogram_lines(found: Histogram, *, unit: str = "μs", bars: bool = True) -> list[str]:
    """Show a histogram, a line a bin.

    Args:
        found: the counts.
        unit: of the edges.
        bars: whether to draw; else the counts alone stand after a colon.
    """
    labels = _labels(found.edges, unit)
    counts = [str(count) for count in found.counts.tolist()]
    width = max(map(len, counts), default=0)
    if not bars:
        return [f"{label}: {n:>{width}}" for label, n in zip(labels, counts, strict=True)]
    most = int(found.counts.max()) if len(found.counts) else 0
    lines = []
    for label, count in zip(labels, found.counts.tolist(), strict=True):
        full = -(-_BAR * count // most) if most else 0  # what is there is seen
        bar = _FULL * full + _EMPTY * (_BAR - full)
        lines.append(f"{label} {_SIDE}{bar}{_SIDE} {count:>{width}}")
    return lines


def ascii_lines(lines: Sequence[str]) -> list[str]:
    """The same for a terminal that knows ASCII only."""
    return [line.translate(_ASCII) for line in lines]


def _labels(edges: FloatArray, unit: str) -> list[str]:
    """The bins in words, with the decimals that tell one edge from the next, right-aligned."""
    if not len(edges):
        return []
    narrowest = float(np.diff(edges).min())
    decimals = 1 if narrowest >= 0.1 or not narrowest else 3
    texts = [
        f"{low:.{decimals}f}-{high:.{decimals}f} {unit}"
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    width = max(map(len, texts))
    return [text.rjust(width) for text in texts]


def telling_histogram(
    values: FloatArray, bins: int, smallest: float | None, largest: float | None, *, log: bool
) -> tuple[Histogram, str]:
    """A histogram of gaps that shows something, and why its bins are not of one width."""
    found = histogram(values, bins=bins, smallest=smallest, largest=largest, log=log)
    inside, most = int(found.counts.sum()), int(found.counts.max(initial=0))
    if log or len(found.counts) < 2 or most <= _HIDING * inside:
        return found, ""
    why = f"Logarithmic bins: of equal ones, one would hold {most:,} of the {inside:,} gaps."
    return histogram(values, bins=bins, smallest=smallest, largest=largest, log=True), why
