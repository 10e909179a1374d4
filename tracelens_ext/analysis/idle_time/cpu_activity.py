"""CPU activity while the GPU was idle: the events on the CPU during gaps and other intervals.

The activity during a gap is the innermost event that covers at least half of the time until the
launch of the GPU event after the gap, on the thread of that launch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.idle_time.classification import (
    ClassifiedGaps,
    classify_gaps,
)
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import recode
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.nesting import ROOT, ends_within, nest
from tracelens_ext.trace.sorted_groups import (
    by_group_and_time,
    items_before,
    last_before,
)

HostColumn = Literal["host_op", "host_call", "python_frame"]

#: The address in a name such as `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Prefixes of names that do not describe what the CPU did.
_IGNORED = ("ProfilerStep#",)
#: Column → the kinds of events that it shows.
KINDS_OF_COLUMN: dict[HostColumn, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


class HostIntervals(NamedTuple):
    """The n intervals of time on host threads; they may overlap."""

    thread: IntArray  #: the thread of each interval, `NONE` if unknown, (n,)
    start: Int64Array  #: ns since the trace's first event, (n,)
    end: Int64Array  #: ns since the trace's first event, (n,)

    def of_known_threads(self) -> HostIntervals:
        """Return the intervals whose thread is known."""
        is_known = self.thread != NONE
        return HostIntervals(
            thread=self.thread[is_known],
            start=self.start[is_known],
            end=self.end[is_known],
        )


def event_labels(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[str]]:
    """Return the names of events without memory addresses, as codes, and the distinct names.

    The name of a row `NONE` is empty.
    """
    codes = np.where(rows != NONE, trace.name[rows], NONE)

    def name_without_address(code: int) -> str:
        if code == NONE:
            return ""
        return _ADDRESS.sub("", trace.names[code])

    return recode(codes, name_without_address)


def cpu_activity_rows(
    gpu_events: GpuEvents,
    classified: ClassifiedGaps,
    column: HostColumn,
    chosen: IntArray | slice = slice(None),
) -> Int64Array:
    """Return the row of the CPU event during each gap, `NONE` for a gap without one.

    For the column `host_call`, a gap of a synchronization has the call that synchronized.

    Args:
        gpu_events: the GPU events.
        classified: the gaps.
        column: the column that shows the events, which determines their kinds.
        chosen: the indices of the gaps; by default all gaps.
    """
    trace = gpu_events.trace
    start = classified.gaps.start[chosen]
    end = classified.gaps.end[chosen]
    launch = classified.launch[chosen]
    is_linked = launch != NONE
    launch_time = trace.ts[launch]
    is_launched_within = is_linked & (launch_time > start) & (launch_time < end)
    until_launch = HostIntervals(
        thread=np.where(is_linked, trace.thread[launch], NONE),
        start=start,
        end=np.where(is_launched_within, launch_time, end),
    )
    rows = innermost_during(
        trace=trace,
        kinds=KINDS_OF_COLUMN[column],
        intervals=until_launch,
        ignored=_IGNORED,
    )
    if column != "host_call":
        return rows
    synchronizing_call = classified.synchronizing_call[chosen]
    return np.where(synchronizing_call != NONE, synchronizing_call, rows)


def innermost_during(
    trace: Trace,
    kinds: Sequence[EventKind],
    intervals: HostIntervals,
    ignored: tuple[str, ...] = (),
) -> Int64Array:
    """Return the innermost event that covers at least half of each interval, (n,).

    It is `NONE` for an interval without such an event.

    Args:
        trace: the trace.
        kinds: the kinds of events to search.
        intervals: the intervals, each on a thread.
        ignored: prefixes of the names of events that are left out.
    """
    known_intervals = intervals.of_known_threads()
    # No event that is shorter than half of the shortest interval is needed: neither as a result,
    # nor as the parent of a result, which is at least as long.
    longest_interval = np.iinfo(np.int64).max >> 1
    length = known_intervals.end - known_intervals.start
    min_duration = int(length.min(initial=longest_interval)) / 2
    rows, parent = _nested_events_during(
        trace=trace,
        kinds=kinds,
        intervals=known_intervals,
        ignored=ignored,
        min_duration=min_duration,
    )
    # An event that covers more than half of an interval runs at its middle. So the search starts at
    # the last event that began by the middle, and climbs from parent to parent.
    middle = intervals.start + (intervals.end - intervals.start) // 2
    position = last_before(
        group=trace.thread[rows],
        time=trace.ts[rows],
        query_group=intervals.thread,
        query_time=middle + 1,
    )
    return _half_covering_ancestors(trace, rows, parent, position, intervals)


def _half_covering_ancestors(
    trace: Trace,
    rows: Int64Array,
    parent: IntArray,
    first_candidate: Int64Array,
    intervals: HostIntervals,
) -> Int64Array:
    """Return the innermost event, from a candidate upward, that covers half of each interval, (n,).

    Args:
        trace: the trace.
        rows: the events in tree order.
        parent: the position of each event's parent, `ROOT` without one.
        first_candidate: the position of the first event to try for each interval, `ROOT` for an
            interval without one, (n,).
        intervals: the n intervals.
    """
    start = intervals.start
    end = intervals.end
    position = first_candidate.copy()
    result = np.full(len(start), NONE, dtype=np.int64)
    # Indices of the intervals without a result so far.
    searching = np.flatnonzero(position != ROOT)
    while len(searching):
        row = rows[position[searching]]
        interval_start = start[searching]
        interval_end = end[searching]
        overlap_end = np.minimum(trace.end_of(row), interval_end)
        overlap_start = np.maximum(trace.ts[row], interval_start)
        overlap = overlap_end - overlap_start
        covers_half = overlap * 2 >= interval_end - interval_start
        result[searching[covers_half]] = row[covers_half]
        searching = searching[~covers_half]
        parent_position = parent[position[searching]]
        position[searching] = parent_position
        searching = searching[parent_position != ROOT]
    return result


class SegmentOverlap(NamedTuple):
    """The overlap of n intervals with m segments."""

    first: Int64Array  #: the first segment that overlaps each interval, (n,)
    past: Int64Array  #: one past the last segment that overlaps each interval, (n,)
    of_interval: Int64Array  #: the part of each interval that segments cover, ns, (n,)
    #: the time of each segment within intervals, summed over the intervals, ns, (m,)
    of_segment: Int64Array


class HostSegments(NamedTuple):
    """The m segments of host threads by thread and time; a segment has one innermost event."""

    thread: IntArray  #: (m,)
    start: Int64Array  #: ns since the trace's first event, (m,)
    end: Int64Array  #: ns since the trace's first event, (m,)
    row: Int64Array  #: the innermost event during each segment, (m,)

    def during(
        self, thread: IntArray, start: Int64Array, end: Int64Array
    ) -> SegmentOverlap:
        """Return the overlap of the segments with intervals, each on a thread.

        For example, the interval 3 to 9 overlaps the segments 0 to 4, 4 to 5, 5 to 8 and 8 to 12
        of its thread. They take 12 ns together. Of the first segment 3 ns and of the last segment
        3 ns lie outside of the interval, so the overlap is 6 ns.
        """
        first = items_before(
            group=self.thread, time=self.end, query_group=thread, query_time=start + 1
        )
        past = items_before(
            group=self.thread, time=self.start, query_group=thread, query_time=end
        )
        # At first, all segments that overlap an interval count with their full length.
        length = self.end - self.start
        length_before = np.append(0, np.cumsum(length))
        of_interval = length_before[past] - length_before[first]
        of_segment = self._interval_counts(first, past) * length
        # Then the parts of the first and the last segment outside of the interval are subtracted.
        overlapping = np.flatnonzero(past > first)
        first_segment = first[overlapping]
        last_segment = past[overlapping] - 1
        before_interval = start[overlapping] - self.start[first_segment]
        after_interval = self.end[last_segment] - end[overlapping]
        for segment, excess in (
            (first_segment, before_interval),
            (last_segment, after_interval),
        ):
            outside = np.maximum(excess, 0)
            of_interval[overlapping] -= outside
            np.subtract.at(of_segment, segment, outside)
        return SegmentOverlap(
            first=first, past=past, of_interval=of_interval, of_segment=of_segment
        )

    def _interval_counts(self, first: Int64Array, past: Int64Array) -> Int64Array:
        """Return the number of intervals that overlap each segment, (m,).

        At each segment, the number rises by the intervals that begin there (`first`), and falls by
        the intervals that ended before it (`past`).
        """
        size = len(self.row) + 1
        begin = np.bincount(first, minlength=size)
        end = np.bincount(past, minlength=size)
        return np.cumsum(begin - end)[:-1]


def innermost_segments(
    trace: Trace,
    kinds: Sequence[EventKind],
    intervals: HostIntervals,
    ignored: tuple[str, ...] = (),
) -> HostSegments:
    """Return the segments of host threads, each with its innermost event.

    Args:
        trace: the trace.
        kinds: the kinds of events to consider.
        intervals: intervals on threads. Segments outside of them may be missing.
        ignored: prefixes of the names of events that are left out.
    """
    rows, parent = _nested_events_during(
        trace=trace,
        kinds=kinds,
        intervals=intervals.of_known_threads(),
        ignored=ignored,
        min_duration=1,
    )
    return _segments(trace, rows, parent)


def idle_time_segments(
    gpu_events: GpuEvents, kinds: tuple[EventKind, ...], ignored: tuple[str, ...]
) -> HostSegments:
    """Return the segments of all launching threads during the idle time of any device.

    Args:
        gpu_events: the GPU events.
        kinds: the kinds of events to consider.
        ignored: prefixes of the names of events that are left out.
    """
    trace = gpu_events.trace
    launch = gpu_events.tree.launch_of_gpu
    idle = classify_gaps(gpu_events, "device").intervals
    # Threads and times are not paired here; `_nested_events_during` does not need that.
    launching_threads = HostIntervals(
        thread=trace.thread[launch[launch != NONE]],
        start=idle.start,
        end=idle.end,
    )
    rows, parent = _nested_events_during(
        trace=trace,
        kinds=kinds,
        intervals=launching_threads,
        ignored=ignored,
        min_duration=1,
    )
    return _segments(trace, rows, parent)


def _segments(trace: Trace, rows: Int64Array, parent: IntArray) -> HostSegments:
    """Return the segments of the threads of nested events.

    A segment begins with each begin and each end of an event. After a begin, the event itself is
    the innermost one; after an end, its parent is. The changes of a thread are sorted by time. Of
    changes at the same time, ends come before begins, and the ends of inner events come first: this
    is their order before the stable sort.

    Args:
        trace: the trace.
        rows: the events in tree order.
        parent: the position of each event's parent, `ROOT` without one.
    """
    inner_first = rows[::-1]
    thread = trace.thread[np.append(inner_first, rows)]
    # An event may end a little after its parent, but a segment must not.
    end = ends_within(parent, trace.end_of(rows))
    time = np.append(end[::-1], trace.ts[rows])
    innermost = np.append(parent[::-1], np.arange(len(rows), dtype=np.int32))
    order = by_group_and_time(thread, time)
    thread = thread[order]
    time = time[order]
    innermost = innermost[order]
    is_same_thread = thread[1:] == thread[:-1]
    has_length = time[1:] > time[:-1]
    has_event = innermost[:-1] != ROOT
    chosen = np.flatnonzero(is_same_thread & has_length & has_event)
    return HostSegments(
        thread=thread[chosen],
        start=time[chosen],
        end=time[chosen + 1],
        row=rows[innermost[chosen]],
    )


def nested_events(
    trace: Trace, rows: Int64Array
) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """Return host events in tree order, and the position of each event's parent."""
    nesting = nest(
        thread=trace.thread[rows],
        start=trace.ts[rows],
        end=trace.end_of(rows),
        tie=trace.external_id[rows],
        childless=np.zeros(len(rows), dtype=bool),
    )
    return rows[nesting.order], nesting.parent


def _nested_events_during(
    trace: Trace,
    kinds: Sequence[EventKind],
    intervals: HostIntervals,
    ignored: tuple[str, ...],
    min_duration: float,
) -> tuple[Int64Array, IntArray]:
    """Return the events during intervals in tree order, and the position of each event's parent.

    The result has more events than needed: those on any of the threads during any of the times. So
    the number of threads may differ from the number of times.

    Args:
        trace: the trace.
        kinds: the kinds of the events.
        intervals: the threads, and the times.
        ignored: prefixes of the names of events that are left out.
        min_duration: the least duration of an event, ns.
    """
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] >= min_duration]
    intervals_of_thread = np.bincount(intervals.thread, minlength=len(trace.threads))
    rows = rows[intervals_of_thread[trace.thread[rows]] > 0]
    window_start, window_end = union(intervals.start, intervals.end)
    # An event overlaps a window if the first window that ends after the start of the event begins
    # before the end of the event.
    next_window = np.searchsorted(window_end, trace.ts[rows], side="right")
    has_next_window = next_window < len(window_start)
    rows = rows[has_next_window]
    next_window = next_window[has_next_window]
    rows = rows[window_start[next_window] < trace.end_of(rows)]
    is_considered = trace.named(
        trace.name[rows], lambda name: not name.startswith(ignored)
    )
    return nested_events(trace, rows[is_considered])
