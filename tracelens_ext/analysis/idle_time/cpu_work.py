"""Gaps of devices during which the CPU works on something else and launches nothing.

The event after such a gap was launched long before the gap, so its launch does not explain why it
did not start.
"""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.idle_time.after_launch import launch_latency_limit
from tracelens_ext.analysis.idle_time.causes import (
    Cause,
    IdleIntervals,
    joined_intervals,
)
from tracelens_ext.analysis.idle_time.gpu_calls import (
    LONG_AGO,
    GapLaunches,
    blocking_calls,
    split_at_blocking_calls,
)
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    BoolArray,
    Int64Array,
    grouping,
    sorted_groups,
)
from tracelens_ext.trace.gpu_events import Gaps, GpuEvents, find_tracks
from tracelens_ext.trace.lookup import values_at

#: Host events that belong to a gap may begin this long before it, and end this long after it.
_TOLERANCE_NS = 20_000


def with_cpu_work(
    gpu_events: GpuEvents,
    gaps: Gaps,
    launches: GapLaunches,
    intervals: IdleIntervals,
) -> IdleIntervals:
    """Return the intervals; those of gaps in which the CPU works have the cause `HOST`.

    Only intervals without a better cause change: those that are unknown, or that only seem to wait
    for other GPU work. In their gaps, nothing may be launched, the launching thread must not wait
    for the GPU at the end, and its events must cover half of the gap.

    Args:
        gpu_events: the GPU events.
        gaps: the gaps of devices.
        launches: the launches of the events after the gaps.
        intervals: the intervals of idle time.
    """
    is_open = np.isin(intervals.cause, (Cause.UNKNOWN.code, Cause.DEPENDENCY.code))
    gap = np.unique(intervals.gap[is_open])
    gap = gap[(gap != NONE) & (launches.row[gap] != NONE)]
    gap = gap[launches.begin[gap] < gaps.start[gap]]
    after_launch = gaps.end[gap] - launches.returned[gap]
    gap = gap[after_launch > launch_latency_limit(gpu_events)[gaps.track[gap]]]
    if not len(gap):
        return intervals
    has_no_launch = _has_no_launch(gpu_events, gaps, gap)
    has_no_wait = _has_no_wait_at_end(gpu_events, gaps, launches, gap)
    gap = gap[has_no_launch & has_no_wait]
    cpu_work_ns = _cpu_work_in_gaps(gpu_events, gaps, launches, gap)
    gap = gap[2 * cpu_work_ns >= gaps.duration[gap]]
    is_cpu_work = is_open & np.isin(intervals.gap, gap)
    cpu_work = intervals.chosen(is_cpu_work).with_cause(Cause.HOST)
    split = split_at_blocking_calls(gpu_events, cpu_work, launches.thread)
    return joined_intervals(intervals.chosen(~is_cpu_work), *split)


def _has_no_launch(gpu_events: GpuEvents, gaps: Gaps, gap: Int64Array) -> BoolArray:
    """Tell for gaps whether nothing was launched on the device in their first half."""
    linked = gpu_events.tree.linked
    device = find_tracks(gpu_events, "device").of_gpu[linked]
    launch_time = gpu_events.trace.ts[gpu_events.tree.launch_of_gpu[linked]]
    order = sorted_groups.by_group_and_time(device, launch_time)
    device = device[order]
    launch_time = launch_time[order]
    middle = gaps.start[gap] + gaps.duration[gap] // 2
    launches_until_start = sorted_groups.items_before(
        group=device,
        time=launch_time,
        query_group=gaps.track[gap],
        query_time=gaps.start[gap],
    )
    launches_until_middle = sorted_groups.items_before(
        group=device,
        time=launch_time,
        query_group=gaps.track[gap],
        query_time=middle,
    )
    has_no_launch: BoolArray = launches_until_start == launches_until_middle
    return has_no_launch


def _has_no_wait_at_end(
    gpu_events: GpuEvents, gaps: Gaps, launches: GapLaunches, gap: Int64Array
) -> BoolArray:
    """Tell for gaps whether the launching thread does not wait for the GPU when they end."""
    trace = gpu_events.trace
    calls = blocking_calls(gpu_events)
    last = sorted_groups.last_before(
        group=trace.thread[calls],
        time=trace.ts[calls],
        query_group=launches.thread[gap],
        query_time=gaps.end[gap],
    )
    call_end = values_at(trace.end_of(calls), last, missing=LONG_AGO)
    has_no_wait: BoolArray = call_end <= gaps.end[gap]
    return has_no_wait


def _cpu_work_in_gaps(
    gpu_events: GpuEvents, gaps: Gaps, launches: GapLaunches, gap: Int64Array
) -> Int64Array:
    """Return the total duration of the host events within gaps on the launching threads, ns.

    An event that begins long before a gap or ends long after it, such as an iteration, does not
    show that the CPU works during the gap, so it does not count. Neither do events within others.
    """
    trace = gpu_events.trace
    rows = trace.rows_of(*HOST_KINDS)
    order = sorted_groups.by_group_and_time(launches.thread[gap], gaps.start[gap])
    thread = launches.thread[gap][order]
    start = gaps.start[gap][order]
    end = gaps.end[gap][order]
    # The last gap of its thread that starts before each event; it may start a little after it.
    last_gap = sorted_groups.last_before(
        group=thread,
        time=start,
        query_group=trace.thread[rows],
        query_time=trace.ts[rows] + _TOLERANCE_NS + 1,
    )
    is_within = last_gap != NONE
    latest_end = values_at(end, last_gap) + _TOLERANCE_NS
    is_within &= trace.end_of(rows) <= latest_end
    rows = rows[is_within]
    gap_of_row = last_gap[is_within]
    by_gap_and_start = np.lexsort((-trace.dur[rows], trace.ts[rows], gap_of_row))
    rows = rows[by_gap_and_start]
    gap_of_row = gap_of_row[by_gap_and_start]
    is_outermost = sorted_groups.outermost(gap_of_row, trace.end_of(rows))
    work_ns = np.zeros(len(gap), dtype=np.int64)
    work_ns[order] = grouping.sums(
        group_index=gap_of_row[is_outermost],
        values=trace.dur[rows[is_outermost]],
        group_count=len(gap),
    )
    return work_ns
