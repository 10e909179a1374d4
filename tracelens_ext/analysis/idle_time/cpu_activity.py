"""What the CPU was in while the GPU was idle: gap by gap, and the idle time by it.

The thread in question is the one that launched the event after a gap, for the time until it
launched: the innermost event that covers at least half of that time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.idle_time.causes import ClassifiedGaps, classify_gaps
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

#: As in `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: How names begin that say nothing of what the CPU did.
_IGNORED = ("ProfilerStep#",)
#: The kinds of events that each column is about.
HOST_KINDS: dict[HostColumn, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


class HostIntervals(NamedTuple):
    """Intervals of time of host threads, which may overlap, n of them."""

    thread: IntArray  #: `NONE` where it is not known, (n,)
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
    """Return codes of events' names without addresses in memory, and the names.

    The name of `NONE` is empty.
    """
    codes = np.where(rows != NONE, trace.name[rows], NONE)

    def label(code: int) -> str:
        if code == NONE:
            return ""
        return _ADDRESS.sub("", trace.names[code])

    return recode(codes, label)


def cpu_activity_rows(
    gpu_events: GpuEvents,
    classified: ClassifiedGaps,
    column: HostColumn,
    chosen: IntArray | slice = slice(None),
) -> Int64Array:
    """Return the row of the event that the CPU was in during each gap, `NONE` without one.

    As `host_call`, a synchronization has the call that synchronized.

    Args:
        gpu_events: the GPU events.
        classified: the gaps.
        column: which kind of event is meant.
        chosen: the gaps that matter, all by default.
    """
    trace = gpu_events.trace
    start = classified.gaps.start[chosen]
    end = classified.gaps.end[chosen]
    launch = classified.launch[chosen]
    is_linked = launch != NONE
    launched_at = trace.ts[launch]
    launched_within = is_linked & (launched_at > start) & (launched_at < end)
    until_launch = HostIntervals(
        thread=np.where(is_linked, trace.thread[launch], NONE),
        start=start,
        end=np.where(launched_within, launched_at, end),
    )
    rows = innermost_during(
        trace=trace, kinds=HOST_KINDS[column], intervals=until_launch, ignored=_IGNORED
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
    """Return the innermost event of a thread that covers half of each interval, or `NONE`; (n,).

    Args:
        trace: the trace.
        kinds: the kinds of events that matter.
        intervals: threads and times.
        ignored: events whose names begin like this do not matter.
    """
    known_intervals = intervals.of_known_threads()
    # An event around one that covers half of an interval is as long, and runs in it.
    longest_interval = np.iinfo(np.int64).max >> 1
    length = known_intervals.end - known_intervals.start
    shortest = int(length.min(initial=longest_interval)) / 2
    rows, parent = _nested_around(
        trace=trace,
        kinds=kinds,
        intervals=known_intervals,
        ignored=ignored,
        shortest=shortest,
    )
    start = intervals.start
    end = intervals.end
    result = np.full(len(start), NONE, dtype=np.int64)
    middle = start + (end - start) // 2  # what covers more than half covers the middle
    position = last_before(
        group=trace.thread[rows],
        time=trace.ts[rows],
        query_group=intervals.thread,
        query_time=middle + 1,
    )
    # Each interval climbs from the last event that began before its middle, parent by parent.
    climbing = np.flatnonzero(position != ROOT)
    while len(climbing):
        row = rows[position[climbing]]
        starts = start[climbing]
        ends = end[climbing]
        first_end = np.minimum(trace.end_of(row), ends)
        last_start = np.maximum(trace.ts[row], starts)
        covers_half = (first_end - last_start) * 2 >= ends - starts
        covered = climbing[covers_half]
        result[covered] = row[covers_half]
        climbing = climbing[~covers_half]
        position_above = parent[position[climbing]]
        position[climbing] = position_above
        climbing = climbing[position_above != ROOT]
    return result


class SegmentOverlap(NamedTuple):
    """How n intervals and m segments overlap."""

    first: Int64Array  #: the first segment that runs in each interval, (n,)
    past: Int64Array  #: one past the last segment that runs in each interval, (n,)
    of_interval: Int64Array  #: how long segments run in each interval, ns, (n,)
    #: how much of each segment lies in intervals, which may overlap; ns, (m,)
    of_segment: Int64Array


class HostSegments(NamedTuple):
    """Times in which host threads were in one innermost event; by thread and time, m of them."""

    thread: IntArray  #: (m,)
    start: Int64Array  #: ns since the trace's first event, (m,)
    end: Int64Array  #: ns since the trace's first event, (m,)
    row: Int64Array  #: the innermost event, (m,)

    def during(
        self, thread: IntArray, start: Int64Array, end: Int64Array
    ) -> SegmentOverlap:
        """Return how the segments overlap with intervals of time of threads.

        Interval 3 to 9 and segments 0 to 4, 4 to 5, 5 to 8, 8 to 12 of one thread: the first is 0,
        past the last is 4; all four take 12 ns, of which 3 (of the first) and 3 (of the last) lie
        outside.
        """
        first = items_before(
            group=self.thread, time=self.end, query_group=thread, query_time=start + 1
        )
        past = items_before(
            group=self.thread, time=self.start, query_group=thread, query_time=end
        )
        length = self.end - self.start
        passed = np.append(0, np.cumsum(length))
        of_interval = passed[past] - passed[first]
        of_segment = self._intervals_of_segments(first, past) * length
        # Of the first and the last segment of an interval, a part may lie outside.
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

    def _intervals_of_segments(self, first: Int64Array, past: Int64Array) -> Int64Array:
        """Return how many intervals each segment overlaps, (m,)."""
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
    """Return the innermost events of host threads around some intervals, segment by segment.

    Args:
        trace: the trace.
        kinds: the kinds of events that matter.
        intervals: threads and times; what runs at none of these times may be left out.
        ignored: events whose names begin like this do not matter.
    """
    known_intervals = intervals.of_known_threads()
    rows, parent = _nested_around(
        trace=trace, kinds=kinds, intervals=known_intervals, ignored=ignored, shortest=1
    )
    return _segments(trace, rows, parent)


def idle_time_segments(
    gpu_events: GpuEvents, kinds: tuple[EventKind, ...], ignored: tuple[str, ...]
) -> HostSegments:
    """Return the segments around all idle time of devices, of the threads that launch GPU work.

    Arguments are those of `innermost_segments`.
    """
    trace = gpu_events.trace
    launch = gpu_events.tree.launch_of_gpu
    idle = classify_gaps(gpu_events, "device").intervals
    launching = HostIntervals(
        thread=trace.thread[launch[launch != NONE]],
        start=idle.start,
        end=idle.end,
    )
    rows, parent = _nested_around(
        trace=trace, kinds=kinds, intervals=launching, ignored=ignored, shortest=1
    )
    return _segments(trace, rows, parent)


def _segments(trace: Trace, rows: Int64Array, parent: IntArray) -> HostSegments:
    """Return the innermost of nested events, segment by segment.

    Each begin and each end of an event starts a segment: after a begin the thread is in the event,
    after an end in its parent. At one time what ends has ended, the inner first, before anything
    begins.
    """
    inner_first = rows[::-1]
    thread = trace.thread[np.append(inner_first, rows)]
    # events may end a little after their parents
    end = ends_within(parent, trace.end_of(rows))
    time = np.append(end[::-1], trace.ts[rows])
    position = np.append(parent[::-1], np.arange(len(rows), dtype=np.int32))
    order = by_group_and_time(thread, time)
    thread = thread[order]
    time = time[order]
    position = position[order]
    same_thread = thread[1:] == thread[:-1]
    has_length = time[1:] > time[:-1]
    in_event = position[:-1] != ROOT
    chosen = np.flatnonzero(same_thread & has_length & in_event)
    return HostSegments(
        thread=thread[chosen],
        start=time[chosen],
        end=time[chosen + 1],
        row=rows[position[chosen]],
    )


def nested_events(
    trace: Trace, rows: Int64Array
) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """Return some host events in tree order, and the position of the parent of each."""
    nesting = nest(
        thread=trace.thread[rows],
        start=trace.ts[rows],
        end=trace.end_of(rows),
        tie=trace.external_id[rows],
        childless=np.zeros(len(rows), dtype=bool),
    )
    return rows[nesting.order], nesting.parent


def _nested_around(
    trace: Trace,
    kinds: Sequence[EventKind],
    intervals: HostIntervals,
    ignored: tuple[str, ...],
    shortest: float,
) -> tuple[Int64Array, IntArray]:
    """Return events of some threads that run at some times and last long enough, nested.

    Any of the threads at any of the times: there may be more threads than times, and the other way
    around.
    """
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] >= shortest]
    uses_of_thread = np.bincount(intervals.thread, minlength=len(trace.threads))
    rows = rows[uses_of_thread[trace.thread[rows]] > 0]
    first, last = union(intervals.start, intervals.end)
    next_to_end = np.searchsorted(last, trace.ts[rows], side="right")
    is_before_an_end = next_to_end < len(first)
    rows = rows[is_before_an_end]
    next_to_end = next_to_end[is_before_an_end]
    rows = rows[first[next_to_end] < trace.end_of(rows)]
    is_telling = trace.named(
        trace.name[rows], lambda name: not name.startswith(ignored)
    )
    return nested_events(trace, rows[is_telling])
