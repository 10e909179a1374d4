"""The shape of idle time: short gaps, few long ones, pauses that recur, the end of a recording.

Short gaps come from launches that are too slow; a long one is a phase in which the CPU does
something else. Long gaps of similar lengths that come at regular times, or between iterations, are
pauses of one kind: whoever removes their cause removes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause, classify_gaps
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.trace import NS_PER_MS, Int64Array, IntArray, grouping
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents


class Shape(StrEnum):
    """What kind of gap idle time of a device is in, as tables and JSON call it."""

    SHORT = "short gaps"
    """Shorter than one millisecond."""
    LONG = "long gaps"
    """One millisecond or longer, and not recurring."""
    PERIODIC = "recurring pauses"
    """Long gaps of similar length at regular intervals, or between iterations."""
    TAIL = "end of the recording"
    """A long gap followed by almost no GPU work."""

    @property
    def code(self) -> int:
        """The number that stands for the shape in arrays: its place in `SHAPES`."""
        return SHAPES.index(self.value)


SHAPES = tuple(shape.value for shape in Shape)

#: A gap of this length, ns, is a long one: the CPU launches thousands of kernels a second.
LONG_GAP_NS: Final = 1_000_000
#: So many pauses at least recur; lengths that differ by less, from one to the next, are similar.
_FEWEST_PAUSES: Final = 4
_SIMILAR_FACTOR: Final = 1.5
#: Times from one pause to the next are regular if most of them differ by less.
_REGULAR_FACTOR: Final = 2.0
#: After the last gap runs hardly anything: so many GPU events, and this share of the GPU time.
_MOST_EVENTS_IN_TAIL: Final = 10
_TAIL_SHARE: Final = 0.01
_NOT_ANALYZED: Final = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code)


@dataclass(frozen=True, eq=False)
class Pause:
    """Gaps that recur.

    Attributes:
        gaps: their indices among the gaps of all devices, in order of time, (p,).
        shortest_ms: the shortest idle time of them.
        longest_ms: the longest.
        period_ms: the usual time from the start of one to that of the next.
        between_iterations: whether they lie between iterations.
        followed_by: the name of the GPU event that ends most of them; empty if there is none.
    """

    gaps: Int64Array
    shortest_ms: float
    longest_ms: float
    period_ms: float
    between_iterations: bool
    followed_by: str


@dataclass(frozen=True, eq=False)
class GapShapes:
    """The shapes of the gaps of all devices.

    Attributes:
        shape: the code of the `Shape` of each gap, (k,).
        idle_ns: the idle time of each that can be analyzed, (k,).
        pauses: those that recur, what idles longest first.
    """

    shape: IntArray
    idle_ns: Int64Array
    pauses: list[Pause]


@cached_per_object
def shapes_of_gaps(work: GpuEvents) -> GapShapes:
    """Return the shapes of the gaps of whole devices."""
    classified = classify_gaps(work, "device")
    within = classified.within
    analyzed = within.chosen(~np.isin(within.cause, _NOT_ANALYZED))
    idle_ns = grouping.sums(
        group_index=analyzed.gap, values=analyzed.duration, group_count=len(classified)
    )
    is_long = idle_ns >= LONG_GAP_NS
    shape = np.where(is_long, Shape.LONG.code, Shape.SHORT.code).astype(np.int8)
    pauses: list[Pause] = []
    for device in range(len(classified.gaps.tracks)):
        of_device = np.flatnonzero(is_long & (classified.gaps.track == device))
        pauses += _pauses_of_device(work, of_device, idle_ns)
    pauses.sort(key=lambda pause: -int(idle_ns[pause.gaps].sum()))
    for pause in pauses:
        shape[pause.gaps] = Shape.PERIODIC.code
    tail = _tail_gaps(work, np.flatnonzero(shape == Shape.LONG.code))
    shape[tail] = Shape.TAIL.code
    return GapShapes(shape=shape, idle_ns=idle_ns, pauses=pauses)


def _pauses_of_device(
    work: GpuEvents, gaps: Int64Array, idle_ns: Int64Array
) -> Iterator[Pause]:
    """Yield the recurring pauses among the long gaps of a device, which are in order of time."""
    between = _between_iterations(work, gaps)
    if len(between) >= _FEWEST_PAUSES - 1:
        yield _pause(work, between, idle_ns, between_iterations=True)
        gaps = np.setdiff1d(gaps, between)
    for similar in _similar_lengths(gaps, idle_ns):
        if len(similar) >= _FEWEST_PAUSES and _are_regular(work, similar):
            yield _pause(work, similar, idle_ns, between_iterations=False)


def _between_iterations(work: GpuEvents, gaps: Int64Array) -> Int64Array:
    """Return the gaps in which an iteration begins after another one."""
    iterations, _, _ = named_iterations(work.tree, None)
    starts = np.sort(iterations.start)[1:]
    all_gaps = classify_gaps(work, "device").gaps
    before_start = np.searchsorted(starts, all_gaps.start[gaps])
    before_end = np.searchsorted(starts, all_gaps.end[gaps])
    between: Int64Array = gaps[before_end > before_start]
    return between


def _similar_lengths(gaps: Int64Array, idle_ns: Int64Array) -> Iterator[Int64Array]:
    """Yield gaps of similar lengths, in order of time."""
    order = np.argsort(idle_ns[gaps], kind="stable")
    by_length = gaps[order]
    length = idle_ns[by_length]
    is_much_longer = length[1:] > _SIMILAR_FACTOR * length[:-1]
    first_longer = np.flatnonzero(is_much_longer) + 1
    for similar in np.split(by_length, first_longer):
        yield np.sort(similar)


def _are_regular(work: GpuEvents, gaps: Int64Array) -> bool:
    """Tell whether gaps come at regular times."""
    starts = classify_gaps(work, "device").gaps.start[gaps]
    short, long = np.quantile(np.diff(starts), [0.2, 0.8])
    return bool(long <= _REGULAR_FACTOR * short)


def _pause(
    work: GpuEvents, gaps: Int64Array, idle_ns: Int64Array, *, between_iterations: bool
) -> Pause:
    all_gaps = classify_gaps(work, "device").gaps
    times_between = np.diff(all_gaps.start[gaps])
    period_ns = np.median(times_between)
    next_events = all_gaps.after[gaps]
    names, counts = np.unique(work.name[next_events], return_counts=True)
    followed_by = ""
    if 2 * int(counts.max()) > len(gaps):
        most_frequent = int(names[counts.argmax()])
        followed_by = work.trace.names[most_frequent]
    return Pause(
        gaps=gaps,
        shortest_ms=float(idle_ns[gaps].min()) / NS_PER_MS,
        longest_ms=float(idle_ns[gaps].max()) / NS_PER_MS,
        period_ms=float(period_ns) / NS_PER_MS,
        between_iterations=between_iterations,
        followed_by=followed_by,
    )


def _tail_gaps(work: GpuEvents, gaps: Int64Array) -> Int64Array:
    """Return the gaps after which a device runs hardly anything."""
    all_gaps = classify_gaps(work, "device").gaps
    result = []
    for device in range(len(all_gaps.tracks)):
        of_device = gaps[all_gaps.track[gaps] == device]
        if not len(of_device):
            continue
        last = int(of_device[-1])
        events = all_gaps.tracks.of_gpu == device
        after = events & (work.start >= all_gaps.end[last])
        a_tenth = int(events.sum()) // 10
        most_events = min(_MOST_EVENTS_IN_TAIL, a_tenth)
        if int(after.sum()) > most_events:
            continue
        time_after = int(work.duration[after].sum())
        all_time = int(work.duration[events].sum())
        if time_after <= _TAIL_SHARE * all_time:
            result.append(last)
    return np.array(result, dtype=np.int64)
