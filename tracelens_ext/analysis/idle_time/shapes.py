"""The shape of idle time: short gaps, long gaps, recurring pauses, the end of the recording.

Short gaps come from launches that are too slow. During a long gap, the CPU does something else than
launching. Long gaps of similar length at regular times, or between iterations, are recurring
pauses: they have a common cause, so removing it removes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.trace import NS_PER_MS, Int64Array, IntArray, grouping
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.integer_sorting import begins_run


class Shape(StrEnum):
    """The shape of a gap of a device, as it is named in tables and JSON."""

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
        """The number of the shape in arrays: its index in `SHAPES`."""
        return SHAPES.index(self.value)


SHAPES = tuple(shape.value for shape in Shape)

#: A gap with at least this idle time is long. A CPU that launches kernels all the time launches
#: thousands of them per second.
LONG_GAP_NS: Final = 1_000_000
#: The least number of gaps that count as recurring.
_MIN_PAUSES: Final = 4
#: Lengths are similar if, sorted, each is at most this many times as long as the one before it.
_MAX_RATIO_OF_SIMILAR: Final = 1.5
#: The times between pauses are regular if their 80th percentile is at most this many times their
#: 20th percentile.
_MAX_RATIO_OF_REGULAR: Final = 2.0
#: After a gap at the end of the recording, at most this many GPU events run, which take at most
#: this share of the GPU time.
_MAX_EVENTS_IN_TAIL: Final = 10
_MAX_SHARE_OF_TAIL: Final = 0.01
_NOT_ANALYZED: Final = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code)


@dataclass(frozen=True, eq=False)
class RecurringPause:
    """A group of recurring gaps.

    Attributes:
        gaps: the indices of the gaps among the gaps of all devices, in order of time, (p,).
        shortest_ms: the least idle time of one of these gaps.
        longest_ms: the greatest idle time of one of these gaps.
        period_ms: the median time from the start of one gap to the start of the next.
        between_iterations: the gaps lie between iterations.
        followed_by: the name of the GPU event that follows most of the gaps; empty if they are
            followed by different events.
    """

    gaps: Int64Array
    shortest_ms: float
    longest_ms: float
    period_ms: float
    between_iterations: bool
    followed_by: str


@dataclass(frozen=True, eq=False)
class GapShapes:
    """The shapes of the k gaps of all devices.

    Attributes:
        shape: the code of the `Shape` of each gap, (k,).
        idle_ns: the idle time of each gap, without time that cannot be analyzed, (k,).
        pauses: the recurring pauses, longest total idle time first.
    """

    shape: IntArray
    idle_ns: Int64Array
    pauses: list[RecurringPause]


@cached_per_object
def shapes_of_gaps(gpu_events: GpuEvents) -> GapShapes:
    """Return the shapes of the gaps of whole devices."""
    classified = classify_gaps(gpu_events, "device")
    within = classified.within
    analyzed = within.chosen(~np.isin(within.cause, _NOT_ANALYZED))
    idle_ns = grouping.sums(
        group_index=analyzed.gap, values=analyzed.duration, group_count=len(classified)
    )
    is_long = idle_ns >= LONG_GAP_NS
    shape = np.where(is_long, Shape.LONG.code, Shape.SHORT.code).astype(np.int8)
    pauses: list[RecurringPause] = []
    for device in range(len(classified.gaps.tracks)):
        is_of_device = classified.gaps.track == device
        long_gaps = np.flatnonzero(is_long & is_of_device)
        pauses += _pauses_of_device(gpu_events, long_gaps, idle_ns)
    pauses.sort(key=lambda pause: -int(idle_ns[pause.gaps].sum()))
    for pause in pauses:
        shape[pause.gaps] = Shape.PERIODIC.code
    tail = _tail_gaps(gpu_events, np.flatnonzero(shape == Shape.LONG.code))
    shape[tail] = Shape.TAIL.code
    return GapShapes(shape=shape, idle_ns=idle_ns, pauses=pauses)


def _pauses_of_device(
    gpu_events: GpuEvents, gaps: Int64Array, idle_ns: Int64Array
) -> Iterator[RecurringPause]:
    """Yield the recurring pauses among the long gaps of a device.

    Args:
        gpu_events: the GPU events.
        gaps: the long gaps of the device, in order of time.
        idle_ns: the idle time of each gap of all devices.
    """
    between = _between_iterations(gpu_events, gaps)
    if len(between) >= _MIN_PAUSES - 1:
        yield _recurring_pause(gpu_events, between, idle_ns, between_iterations=True)
        gaps = np.setdiff1d(gaps, between)
    for similar in _groups_of_similar_length(gaps, idle_ns):
        if len(similar) >= _MIN_PAUSES and _are_regular(gpu_events, similar):
            yield _recurring_pause(
                gpu_events, similar, idle_ns, between_iterations=False
            )


def _between_iterations(gpu_events: GpuEvents, gaps: Int64Array) -> Int64Array:
    """Return the gaps during which an iteration begins, other than the first of a process."""
    iterations, _, _ = named_iterations(gpu_events.tree, None)
    by_process = np.lexsort((iterations.start, iterations.process))
    follows_another = ~begins_run(iterations.process[by_process])
    starts = np.sort(iterations.start[by_process][follows_another])
    all_gaps = classify_gaps(gpu_events, "device").gaps
    iterations_before_gap = np.searchsorted(starts, all_gaps.start[gaps])
    iterations_before_end = np.searchsorted(starts, all_gaps.end[gaps])
    between: Int64Array = gaps[iterations_before_end > iterations_before_gap]
    return between


def _groups_of_similar_length(
    gaps: Int64Array, idle_ns: Int64Array
) -> Iterator[Int64Array]:
    """Yield groups of gaps of similar length, each in order of time."""
    order = np.argsort(idle_ns[gaps], kind="stable")
    by_length = gaps[order]
    length = idle_ns[by_length]
    is_much_longer = length[1:] > _MAX_RATIO_OF_SIMILAR * length[:-1]
    first_of_next_group = np.flatnonzero(is_much_longer) + 1
    for similar in np.split(by_length, first_of_next_group):
        yield np.sort(similar)


def _are_regular(gpu_events: GpuEvents, gaps: Int64Array) -> bool:
    """Tell whether gaps, which are in order of time, begin at regular times."""
    starts = classify_gaps(gpu_events, "device").gaps.start[gaps]
    short, long = np.quantile(np.diff(starts), [0.2, 0.8])
    return bool(long <= _MAX_RATIO_OF_REGULAR * short)


def _recurring_pause(
    gpu_events: GpuEvents,
    gaps: Int64Array,
    idle_ns: Int64Array,
    *,
    between_iterations: bool,
) -> RecurringPause:
    """Describe a group of recurring gaps, which are in order of time."""
    all_gaps = classify_gaps(gpu_events, "device").gaps
    times_between = np.diff(all_gaps.start[gaps])
    period_ns = np.median(times_between)
    next_events = all_gaps.after[gaps]
    names, counts = np.unique(gpu_events.name[next_events], return_counts=True)
    followed_by = ""
    if 2 * int(counts.max()) > len(gaps):
        most_frequent = int(names[counts.argmax()])
        followed_by = gpu_events.trace.names[most_frequent]
    return RecurringPause(
        gaps=gaps,
        shortest_ms=float(idle_ns[gaps].min()) / NS_PER_MS,
        longest_ms=float(idle_ns[gaps].max()) / NS_PER_MS,
        period_ms=float(period_ns) / NS_PER_MS,
        between_iterations=between_iterations,
        followed_by=followed_by,
    )


def _tail_gaps(gpu_events: GpuEvents, gaps: Int64Array) -> Int64Array:
    """Return the last of the given gaps of each device, if hardly any GPU work follows it."""
    all_gaps = classify_gaps(gpu_events, "device").gaps
    tail_gaps = []
    for device in range(len(all_gaps.tracks)):
        gaps_of_device = gaps[all_gaps.track[gaps] == device]
        if not len(gaps_of_device):
            continue
        last_gap = int(gaps_of_device[-1])
        is_of_device = all_gaps.tracks.of_gpu == device
        is_after = is_of_device & (gpu_events.start >= all_gaps.end[last_gap])
        tenth_of_events = int(is_of_device.sum()) // 10
        if int(is_after.sum()) > min(_MAX_EVENTS_IN_TAIL, tenth_of_events):
            continue
        time_after = int(gpu_events.duration[is_after].sum())
        time_of_device = int(gpu_events.duration[is_of_device].sum())
        if time_after <= _MAX_SHARE_OF_TAIL * time_of_device:
            tail_gaps.append(last_gap)
    return np.array(tail_gaps, dtype=np.int64)
