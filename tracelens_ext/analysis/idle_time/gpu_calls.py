"""The runtime calls that concern gaps: launches, waits for the GPU, and waits of streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause, IdleIntervals
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    Int64Array,
    IntArray,
    runtime_calls,
    sorted_groups,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import Gaps, GpuEvents
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at

#: A time before all events, ns.
LONG_AGO = np.iinfo(np.int64).min

#: Calls that return only when the GPU has done what they wait for.
_BLOCKING_CALL = runtime_calls.any_of(
    runtime_calls.WAITS_FOR_DEVICE,
    runtime_calls.WAITS_FOR_STREAM,
    runtime_calls.WAITS_FOR_EVENT,
    runtime_calls.WAITS_FOR_COPY,
)
#: Calls that make a stream wait.
_STREAM_WAIT = runtime_calls.any_of(
    runtime_calls.STREAM_WAITS_FOR_EVENT, runtime_calls.STREAM_WAITS_FOR_VALUE
)


class GpuCalls(NamedTuple):
    """The rows of calls that concern the GPU; each kind by thread and start."""

    stream_waits: Int64Array  #: calls that make a stream wait
    launches: Int64Array  #: calls that launched GPU work
    blocking: Int64Array  #: calls that wait for the GPU


@cached_per_object
def gpu_calls(gpu_events: GpuEvents) -> GpuCalls:
    """Return the calls that concern the GPU.

    Blocking calls are found by their names. A copy is a blocking call, too, if its call returned
    after the copy had ended.
    """
    trace = gpu_events.trace
    launch = gpu_events.tree.launch_of_gpu
    linked = gpu_events.tree.linked
    copies = np.flatnonzero(gpu_events.is_copy & linked)
    calls_of_copies = launch[copies]
    returns_after_copy = trace.end_of(calls_of_copies) >= gpu_events.end[copies]
    blocking_copies = calls_of_copies[returns_after_copy]
    blocking_by_name = trace.rows_named(_BLOCKING_CALL, *LAUNCH_KINDS)
    stream_waits = trace.rows_named(_STREAM_WAIT, *LAUNCH_KINDS)
    launches = distinct(launch[linked])
    blocking = np.union1d(blocking_by_name, blocking_copies)
    return GpuCalls(
        stream_waits=_by_thread_and_start(gpu_events, stream_waits),
        launches=_by_thread_and_start(gpu_events, launches),
        blocking=_by_thread_and_start(gpu_events, blocking),
    )


def _by_thread_and_start(gpu_events: GpuEvents, rows: Int64Array) -> Int64Array:
    trace = gpu_events.trace
    return rows[sorted_groups.by_group_and_time(trace.thread[rows], trace.ts[rows])]


def blocking_calls(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the calls that wait for the GPU, by thread and start."""
    return gpu_calls(gpu_events).blocking


class GapLaunches(NamedTuple):
    """The launches of the events that end gaps, k of them."""

    row: Int64Array  #: the launch, `NONE` for an event without one, (k,)
    thread: IntArray  #: the thread of the launch, `NONE` without one, (k,)
    begin: Int64Array  #: when the launch began, ns, `LONG_AGO` without one, (k,)
    #: when the launch returned, ns, moved into the gap; the start of the gap without a launch, (k,)
    returned: Int64Array


def launches_of_gaps(gpu_events: GpuEvents, gaps: Gaps) -> GapLaunches:
    """Return the launch of the event after each gap."""
    trace = gpu_events.trace
    launch = gpu_events.tree.launch_of_gpu[gaps.after]
    has_launch = launch != NONE
    returned = values_at(trace.ts, launch) + values_at(trace.dur, launch)
    returned = np.where(has_launch, returned, gaps.start)
    return GapLaunches(
        row=launch,
        thread=values_at(trace.thread, launch),
        begin=values_at(trace.ts, launch, missing=LONG_AGO),
        returned=returned.clip(gaps.start, gaps.end),
    )


def last_call_before(
    gpu_events: GpuEvents, calls: Int64Array, launches: GapLaunches
) -> Int64Array:
    """Return the start of the last call on the thread of each launch, before the launch, ns, (k,).

    Args:
        gpu_events: the GPU events.
        calls: the rows of the calls, by thread and start.
        launches: the launches.

    Returns:
        `LONG_AGO` for a launch without an earlier call.
    """
    trace = gpu_events.trace
    last = sorted_groups.last_before(
        group=trace.thread[calls],
        time=trace.ts[calls],
        query_group=launches.thread,
        query_time=launches.begin,
    )
    return values_at(trace.ts[calls], last, missing=LONG_AGO)


def split_at_blocking_calls(
    gpu_events: GpuEvents, intervals: IdleIntervals, thread_of_gap: IntArray
) -> Iterator[IdleIntervals]:
    """Yield the intervals split at the blocking calls of the launching threads.

    The parts during blocking calls get the cause `SYNCHRONIZATION`; the others keep their cause.

    Args:
        gpu_events: the GPU events.
        intervals: intervals of gaps.
        thread_of_gap: the launching thread of each gap.
    """
    trace = gpu_events.trace
    calls = blocking_calls(gpu_events)
    thread_of_call = trace.thread[calls]
    thread_of_interval = thread_of_gap[intervals.gap]
    blocking_threads = np.unique(thread_of_call)
    for thread in blocking_threads.tolist():
        calls_of_thread = calls[thread_of_call == thread]
        begins = trace.ts[calls_of_thread]
        ends = trace.end_of(calls_of_thread)
        windows = union(begins, ends)
        of_thread = intervals.chosen(thread_of_interval == thread)
        split = of_thread.split(*windows)
        yield split.inside.with_cause(Cause.SYNCHRONIZATION)
        yield split.outside
    has_blocking_calls = np.isin(thread_of_interval, blocking_threads)
    yield intervals.chosen(~has_blocking_calls)


def synchronizing_calls(
    gpu_events: GpuEvents, gaps: Gaps, launches: GapLaunches
) -> Int64Array:
    """Return the row of the blocking call that delayed each launch, `NONE` without one, (k,).

    Of the blocking calls that began before the launch on its thread, it is the one that ended last.
    It must have run during the gap, and either have begun before the gap or have taken at least
    half of it.
    """
    trace = gpu_events.trace
    rows = blocking_calls(gpu_events)
    result = np.full(len(gaps), NONE, dtype=np.int64)
    thread = trace.thread[rows]
    begin = trace.ts[rows]
    end = trace.end_of(rows)
    last_before_launch = sorted_groups.last_before(
        group=thread,
        time=begin,
        query_group=launches.thread,
        query_time=launches.begin,
    )
    gap = np.flatnonzero(last_before_launch != NONE)
    # For each call: which of the calls up to this one on its thread ends last.
    _, last_to_end = sorted_groups.running_maximum(thread, end)
    call = last_to_end[last_before_launch[gap]]
    overlap_end = np.minimum(end[call], gaps.end[gap])
    overlap_start = np.maximum(begin[call], gaps.start[gap])
    overlap = overlap_end - overlap_start
    begins_before_gap = begin[call] <= gaps.start[gap]
    takes_half = overlap * 2 >= gaps.duration[gap]
    is_delaying = (overlap > 0) & (begins_before_gap | takes_half)
    result[gap[is_delaying]] = rows[call[is_delaying]]
    return result
