"""What is said of gaps: how long the GPU was idle and why; how long gaps are, as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from tracelens_ext.analysis.coverage.report_tables import no_gpu_work
from tracelens_ext.analysis.idle_time.causes import CAUSES, ClassifiedGaps, by_cause
from tracelens_ext.analysis.iterations.selection import Selection
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import maxima, minima

_WORTH_SAYING = 0.0005  # of the idle time: less would be shown as 0.0 %


def answer(work: GpuEvents, classified: ClassifiedGaps, selection: Selection) -> str:
    """How long the GPU (or the streams) was idle, of how long, and why."""
    if not len(work):
        return no_gpu_work(work)
    if not classified.events.any():
        return f"No GPU event is selected: none is of {selection.text}."
    who, several = _who(classified, selection)
    subject = f"In ProfilerStep#{selection.pstep} {who}" if selection.pstep is not None else who
    subject = f"{subject[0].upper()}{subject[1:]} {'were' if several else 'was'}"
    within = classified.within
    idle = by_cause(within, np.zeros_like(within.gap), 1)[0]
    total = int(idle.sum())
    before = f" before work of the category {selection.category}" if selection.category else ""
    if not total:
        return f"{subject} never idle{before} between the first and the last event."
    shares = ", ".join(
        f"{CAUSES[i].replace('_', ' ')} {100.0 * idle[i] / total:.1f} %"
        for i in np.argsort(-idle, kind="stable").tolist()
        if idle[i] and idle[i] >= total * _WORTH_SAYING
    )
    span = watched_time(work, classified)
    percent = f"{100 * total / span:.1f} %" if total >= span * _WORTH_SAYING else "<0.1 %"
    together = " together" if several else ""
    told = f"{subject}{together} idle{before} for {in_words(total)}"
    return f"{told} of {in_words(span)} ({percent}): {shares}."


def watched_time(work: GpuEvents, classified: ClassifiedGaps) -> int:
    """The time that idle time is a part of, ns, summed over the devices or streams.

    From the first start to the last end of the selected events, as `total_time` of the timeline;
    and where the first of them ends a gap, from the beginning of that.
    """
    gaps = classified.gaps
    selected = classified.selected
    track = gaps.tracks.of_gpu[selected]
    count = len(gaps.tracks)
    starts = np.append(work.start[selected], gaps.start)
    first = minima(np.append(track, gaps.track), starts, count)
    return int((maxima(track, work.end[selected], count) - first)[classified.events > 0].sum())


def _who(classified: ClassifiedGaps, selection: Selection) -> tuple[str, bool]:
    """Who was idle, and whether that is several."""
    count = int(np.count_nonzero(classified.events))
    device = f"device {selection.device}" if selection.device is not None else ""
    one = device or "the GPU"
    several = f"the {count} GPUs"
    if classified.gaps.tracks.scope == "stream":
        number = f" {selection.stream}" if selection.stream is not None else ""
        which = f"{number} of {device}" if device else number
        one = f"{'' if number else 'the '}stream{which}"
        several = f"the {count} streams{which}"
    return (several, True) if count > 1 else (one, False)


def in_words(nanoseconds: int, like: int | None = None) -> str:
    """A time in the unit that shows its digits, or those of another time."""
    size = nanoseconds if like is None else like
    if size < NS_PER_US:
        return f"{nanoseconds} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.3f} μs"
    ms = nanoseconds / NS_PER_MS
    return f"{ms:,.3f} ms" if size < 1e4 * NS_PER_MS else f"{ms / 1e3:,.3f} s"


BINS = 20  # of the table
_BAR = 40  # cells
_HIDING = 0.95  # share of the values in one bar that hides all else
_FULL = "█"
_EMPTY = "░"
_SIDE = "│"
_ASCII = str.maketrans({"█": "#", "░": ".", "│": "|", "μ": "u"})


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts by bin."""

    edges: Float64Array  #: ascending, (b + 1,); of no bins, empty
    #: values in each bin; all but the last leave out their upper edge, (b,)
    counts: Int64Array
    below: int  #: values smaller than the first edge
    above: int  #: values larger than the last


def histogram(
    values: Float64Array,
    *,
    bins: int,
    smallest: float | None = None,
    largest: float | None = None,
    log: bool = False,
) -> Histogram:
    """Count finite values by bin, between the bounds, the smallest and largest value by default.

    With `log` bins are of one ratio instead of one width, and what is not above 0 is below them.
    """
    low = -np.inf if smallest is None else smallest
    high = np.inf if largest is None else largest
    inside = values[(values >= low) & (values <= high) & (values > (0 if log else -np.inf))]
    if not len(inside):
        below = int((values < low).sum())
        return Histogram(inside, np.empty(0, dtype=np.int64), below, len(values) - below)
    low = float(inside.min()) if smallest is None or (log and smallest <= 0) else smallest
    high = float(inside.max()) if largest is None else largest
    edges = (np.geomspace if log else np.linspace)(low, high, bins + 1 if low != high else 2)
    edges[0], edges[-1] = low, high  # geomspace may miss its ends by a rounding
    below = int((values < low).sum())
    above = len(values) - below - len(inside)
    return Histogram(edges, np.histogram(inside, edges)[0], below, above)


def histogram_lines(found: Histogram, *, unit: str = "μs", bars: bool = True) -> list[str]:
    """Show a histogram, a line a bin: as a bar and a count, or as a count after a colon."""
    counts = found.counts.tolist()
    most = max(counts, default=0)
    lines = []
    width = len(str(most))
    for label, count in zip(_labels(found.edges, unit), counts, strict=True):
        full = -(-_BAR * count // max(most, 1))  # what is there is seen
        bar = f" {_SIDE}{_FULL * full}{_EMPTY * (_BAR - full)}{_SIDE}" if bars else ":"
        lines.append(f"{label}{bar} {count:>{width}}")
    return lines


def ascii_lines(lines: Sequence[str]) -> list[str]:
    """The same for a terminal that knows ASCII only."""
    return [line.translate(_ASCII) for line in lines]


def _labels(edges: Float64Array, unit: str) -> list[str]:
    """The bins in words, with the decimals that tell one edge from the next, right-aligned."""
    narrowest = float(np.diff(edges).min(initial=np.inf))
    decimals = 1 if narrowest >= 0.1 or not narrowest else 3
    numbers = [f"{edge:.{decimals}f}" for edge in edges.tolist()]
    texts = [f"{low}-{high} {unit}" for low, high in pairwise(numbers)]
    return [text.rjust(max(map(len, texts))) for text in texts]


def telling_histogram(
    values: Float64Array, bins: int, smallest: float | None, largest: float | None, *, log: bool
) -> tuple[Histogram, str]:
    """A histogram of gaps that shows something, and why its bins are not of one width."""
    make = partial(histogram, values, bins=bins, smallest=smallest, largest=largest)
    found = make(log=log)
    inside = int(found.counts.sum())
    most = int(found.counts.max(initial=0))
    if log or len(found.counts) < 2 or most <= _HIDING * inside:
        return found, ""
    why = f"Logarithmic bins: of equal ones, one would hold {most:,} of the {inside:,} gaps."
    return make(log=True), why
