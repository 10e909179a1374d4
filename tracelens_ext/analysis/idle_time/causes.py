"""Why the GPU was idle: each gap is divided into intervals, each with one cause.

The launch of the event that ends a gap divides it. E is the end of the event before, S the start of
the event after, L and R are the begin and the return of its launch:

    E ───────── L ───────── R ───────── S
      the CPU's   launching   the GPU's

Until R the CPU keeps the GPU waiting: it synchronizes, catches up after it did (`waits`), or does
something else. After R the GPU needs time to start, waits for other work, or nothing tells why it
waits. `docs/how-to/idle-time.md` has the causes in words. What a recording lacks, and what is paid
once (`analysis.coverage`), has causes of its own. The edges of a device are the wall time before
its first and after its last event.

An event without a launch in a trace that has launches was launched before the recording began, so
before E. In a trace without any launches nothing is known of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.idle_time.waits import IdleTime, idle_after_waits
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import (
    HOST_KINDS,
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    Int64Array,
    IntArray,
    grouping,
    runtime_calls,
    sorted_groups,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import (
    Gaps,
    GpuEvents,
    Scope,
    find_gaps,
    find_tracks,
)
from tracelens_ext.trace.intervals import distinct, inside, outside, union
from tracelens_ext.trace.lookup import values_at


class Cause(StrEnum):
    """Why the GPU was idle, as tables and JSON call it."""

    SYNCHRONIZATION = "synchronization"
    """The launching thread waited for the GPU, or was catching up after such a wait."""
    HOST = "host"
    """The launching thread was doing other work, or was launching."""
    DEPENDENCY = "dependency"
    """The work was launched, but waited for other GPU work."""
    LAUNCH_OVERHEAD = "launch overhead"
    """The work was launched, and the GPU took this long to start it."""
    UNKNOWN = "unknown"
    """The work was launched, and nothing recorded shows why it did not start."""
    NOT_RECORDED = "not_recorded"
    """Events were dropped, or the work was launched before the recording began."""
    WARM_UP = "warm_up"
    """First use, compilation or graph capture: costs that are paid once."""
    EDGE = "edge"
    """Before the first event of a device, or after its last."""

    @property
    def code(self) -> int:
        """The number that stands for the cause in arrays: its place in `CAUSES`."""
        return CAUSES.index(self.value)


CAUSES = tuple(cause.value for cause in Cause)

#: How soon after work on another stream an event starts that waited for it.
DEPENDENCY_LATENCY_NS = 5_000

#: Calls that return only when the GPU has done what they wait for.
_BLOCKING_CALL = runtime_calls.any_of(
    runtime_calls.WAITS_FOR_DEVICE,
    runtime_calls.WAITS_FOR_STREAM,
    runtime_calls.WAITS_FOR_EVENT,
    runtime_calls.WAITS_FOR_COPY,
)
_STREAM_WAIT = runtime_calls.any_of(
    runtime_calls.STREAM_WAITS_FOR_EVENT, runtime_calls.STREAM_WAITS_FOR_VALUE
)

#: How far what lies in a gap may begin before it, or end after it.
_AROUND_NS = 20_000

_LONG_AGO = np.iinfo(np.int64).min
_FEWEST_LATENCY_SAMPLES = 5
_UNKNOWN_LATENCY_NS = 20_000
_LEAST_LATENCY_NS = 10_000
_GREATEST_LATENCY_NS = 100_000


class IdleIntervals(NamedTuple):
    """Intervals of idle time, by track and time, which do not overlap on a track; p of them."""

    start: Int64Array  #: ns since the trace's first event, (p,)
    end: Int64Array  #: ns since the trace's first event, (p,)
    track: IntArray  #: the stream or device that was idle, an index, (p,)
    gap: IntArray  #: the gap that the interval is a part of, `NONE` for an edge, (p,)
    cause: IntArray  #: the code of a `Cause`, (p,)

    @property
    def duration(self) -> Int64Array:
        """The length of each interval, ns, (p,)."""
        return self.end - self.start

    def chosen(self, which: BoolArray | IntArray) -> IdleIntervals:
        """Return the intervals that a mask or indices choose."""
        return IdleIntervals(
            start=self.start[which],
            end=self.end[which],
            track=self.track[which],
            gap=self.gap[which],
            cause=self.cause[which],
        )

    def with_cause(self, cause: Cause) -> IdleIntervals:
        """Return the same intervals with another cause."""
        return self._replace(cause=np.full(len(self.gap), cause.code, dtype=np.int8))

    def split(self, window_start: Int64Array, window_end: Int64Array) -> SplitIntervals:
        """Split the intervals at windows, which are ascending and do not overlap."""
        start, end, which, _ = inside(
            start=self.start, end=self.end, first=window_start, last=window_end
        )
        inner = self.chosen(which)._replace(start=start, end=end)
        start, end, which = outside(
            start=self.start, end=self.end, first=window_start, last=window_end
        )
        outer = self.chosen(which)._replace(start=start, end=end)
        return SplitIntervals(inside=inner, outside=outer)


class SplitIntervals(NamedTuple):
    """What of idle intervals lies inside of windows, and what outside."""

    inside: IdleIntervals
    outside: IdleIntervals


def joined_intervals(*parts: IdleIntervals) -> IdleIntervals:
    """Return the intervals of all parts, by track and time."""
    joined = IdleIntervals(
        start=np.concatenate([part.start for part in parts]),
        end=np.concatenate([part.end for part in parts]),
        track=np.concatenate([part.track for part in parts]),
        gap=np.concatenate([part.gap for part in parts]),
        cause=np.concatenate([part.cause for part in parts]),
    )
    return joined.chosen(np.lexsort((joined.start, joined.track)))


@dataclass(frozen=True, eq=False)
class ClassifiedGaps:
    """Gaps with their causes, k of them.

    Attributes:
        gaps: when each began and ended, and between which events.
        intervals: the gaps divided by cause; of whole devices, unless selected, with edges.
        launch: row of the launch of the event after, `NONE` without one, (k,).
        launch_returned: until when the CPU kept each gap going: R, within the gap, (k,).
        synchronizing_call: row of the call that waited for the GPU, `NONE` without one, (k,).
        caught_up_call: row of the call after which the CPU had to catch up, `NONE` without, (k,).
        selected: whether each GPU event is selected, (g,).
    """

    gaps: Gaps
    intervals: IdleIntervals
    launch: Int64Array
    launch_returned: Int64Array
    synchronizing_call: Int64Array
    caught_up_call: Int64Array
    selected: BoolArray

    def __len__(self) -> int:
        return len(self.gaps)

    @cached_property
    def events(self) -> Int64Array:
        """The number of selected GPU events of each track, (p,)."""
        tracks = self.gaps.tracks
        return np.bincount(tracks.of_gpu[self.selected], minlength=len(tracks))

    @cached_property
    def within(self) -> IdleIntervals:
        """The intervals that are parts of gaps, so without edges."""
        return self.intervals.chosen(self.intervals.gap != NONE)

    @cached_property
    def cause(self) -> Int64Array:
        """The cause of most of each gap, a code, (k,)."""
        return self.main_cause(np.arange(len(self)), len(self))

    def main_cause(self, group: Int64Array, groups: int) -> Int64Array:
        """Return the cause of most of the idle time of each group of gaps, a code.

        Args:
            group: the group of each gap, (k,).
            groups: how many groups there are.
        """
        times = time_by_cause(
            intervals=self.within, group=group[self.within.gap], groups=groups
        )
        main: Int64Array = times.argmax(axis=1)
        return main

    def idle_by_cause_ms(self) -> dict[int | str, dict[str, float]]:
        """Return the idle time of each device by cause; without a selection all of its wall."""
        tracks = self.gaps.tracks
        times_ns = time_by_cause(
            intervals=self.intervals, group=self.intervals.track, groups=len(tracks)
        )
        times_ms = times_ns / NS_PER_MS
        result: dict[int | str, dict[str, float]] = {}
        for label, row in zip(tracks.device_labels, times_ms.tolist(), strict=True):
            result[label] = dict(zip(CAUSES, row, strict=True))
        return result

    def of(self, selected: BoolArray) -> ClassifiedGaps:
        """Return the gaps that selected GPU events end, without edges."""
        is_chosen = selected[self.gaps.after]
        intervals = self.within.chosen(is_chosen[self.within.gap])
        new_number = np.cumsum(is_chosen, dtype=np.int32) - 1
        return ClassifiedGaps(
            gaps=self.gaps.chosen(is_chosen),
            intervals=intervals._replace(gap=new_number[intervals.gap]),
            launch=self.launch[is_chosen],
            launch_returned=self.launch_returned[is_chosen],
            synchronizing_call=self.synchronizing_call[is_chosen],
            caught_up_call=self.caught_up_call[is_chosen],
            selected=selected,
        )


def time_by_cause(intervals: IdleIntervals, group: IntArray, groups: int) -> Int64Array:
    """Return the idle time by groups of intervals and by causes, ns, (groups, causes)."""
    cells = group * len(CAUSES) + intervals.cause
    times = grouping.sums(
        group_index=cells, values=intervals.duration, group_count=groups * len(CAUSES)
    )
    return times.reshape(groups, len(CAUSES))


class _GapLaunches(NamedTuple):
    """The launches of the events that end gaps, k of them."""

    row: Int64Array  #: the launch, `NONE` without one, (k,)
    thread: IntArray  #: its thread, `NONE` without one, (k,)
    begun: Int64Array  #: L; long ago without a launch, (k,)
    returned: Int64Array  #: R, moved into the gap; its start without a launch, (k,)


@cached_per_object
def classify_gaps(
    work: GpuEvents, scope: Scope = "stream", selection: EventFilter | None = None
) -> ClassifiedGaps:
    """Divide each gap of the streams, or of the devices, by its causes; see the module.

    Args:
        work: the GPU events.
        scope: whether gaps are those of streams, or of whole devices.
        selection: a gap counts when the event after it is selected. The gaps of a device belong to
            no stream, so the number of a stream does not restrict them.

    Raises:
        UsageError: there is no such scope, or nothing is selected.
    """
    scopes = get_args(Scope)
    if scope not in scopes:
        raise UsageError(
            f"there is no scope {scope!r}; choose from {', '.join(scopes)}"
        )
    if selection is not None:
        return _selected_gaps(work, scope, selection)
    gaps = find_gaps(work, scope)
    launches = _launches_of_gaps(work, gaps)
    parts = list(_gap_parts(work, gaps, launches))
    if scope == "device":
        parts.append(_edges(work))
    intervals = joined_intervals(*parts)
    intervals = intervals.chosen(intervals.end > intervals.start)
    if scope == "device":
        intervals = _with_cpu_work(
            work=work, gaps=gaps, launches=launches, intervals=intervals
        )
    caught_up = _with_waits(
        work=work, scope=scope, intervals=intervals, launches=launches
    )
    return ClassifiedGaps(
        gaps=gaps,
        intervals=_with_unrecorded_parts(work, scope, caught_up.intervals),
        launch=launches.row,
        launch_returned=launches.returned,
        synchronizing_call=_synchronizing_calls(work, gaps, launches),
        caught_up_call=caught_up.call,
        selected=np.ones(len(work), dtype=bool),
    )


def _selected_gaps(
    work: GpuEvents, scope: Scope, selection: EventFilter
) -> ClassifiedGaps:
    selected = selection.of(work)
    if scope == "device" and selection.stream is not None:
        selected = replace(selection, stream=None).of(work)
    all_gaps = classify_gaps(work, scope)
    if selected.all():
        return all_gaps
    return all_gaps.of(selected)


def _launches_of_gaps(work: GpuEvents, gaps: Gaps) -> _GapLaunches:
    trace = work.trace
    launch = work.tree.launch_of_gpu[gaps.after]
    has_launch = launch != NONE
    returned = values_at(trace.ts, launch) + values_at(trace.dur, launch)
    returned = np.where(has_launch, returned, gaps.start)
    return _GapLaunches(
        row=launch,
        thread=values_at(trace.thread, launch),
        begun=values_at(trace.ts, launch, missing=_LONG_AGO),
        returned=returned.clip(gaps.start, gaps.end),
    )


def _gap_parts(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches
) -> Iterator[IdleIntervals]:
    """Yield the parts of all gaps before, during and after the launch; some are of no length."""
    number = np.arange(len(gaps), dtype=np.int32)
    begun = np.clip(launches.begun, gaps.start, launches.returned)
    before_launch = IdleIntervals(
        start=gaps.start,
        end=begun,
        track=gaps.track.astype(np.int32),
        gap=number,
        cause=np.full_like(number, Cause.HOST.code, dtype=np.int8),
    )
    yield before_launch._replace(start=begun, end=launches.returned)
    yield before_launch._replace(
        start=launches.returned,
        end=gaps.end,
        cause=_causes_after_launch(work, gaps, launches),
    )
    yield from _split_at_blocking_calls(work, before_launch, launches.thread)


def _split_at_blocking_calls(
    work: GpuEvents, intervals: IdleIntervals, thread_of_gap: IntArray
) -> Iterator[IdleIntervals]:
    """Yield the intervals split at the blocking calls of the launching threads."""
    trace = work.trace
    calls = blocking_calls(work)
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


def _with_cpu_work(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches, intervals: IdleIntervals
) -> IdleIntervals:
    """Give the CPU the gaps of devices in which it is seen to work and launches nothing.

    What ends such a gap was launched long before, so nothing else tells why it did not start.
    """
    is_open = np.isin(intervals.cause, (Cause.UNKNOWN.code, Cause.DEPENDENCY.code))
    gap = np.unique(intervals.gap[is_open])
    gap = gap[(gap != NONE) & (launches.row[gap] != NONE)]
    gap = gap[launches.begun[gap] < gaps.start[gap]]
    after_launch = gaps.end[gap] - launches.returned[gap]
    gap = gap[after_launch > usual_launch_latency(work)[gaps.track[gap]]]
    if not len(gap):
        return intervals
    gap = gap[
        _nothing_launched(work, gaps, gap)
        & _no_wait_goes_on(work=work, gaps=gaps, launches=launches, gap=gap)
    ]
    seen = _cpu_work_in_gaps(work=work, gaps=gaps, launches=launches, gap=gap)
    gap = gap[2 * seen >= gaps.duration[gap]]
    is_of_cpu = is_open & np.isin(intervals.gap, gap)
    of_cpu = intervals.chosen(is_of_cpu).with_cause(Cause.HOST)
    split = _split_at_blocking_calls(work, of_cpu, launches.thread)
    return joined_intervals(intervals.chosen(~is_of_cpu), *split)


def _nothing_launched(work: GpuEvents, gaps: Gaps, gap: Int64Array) -> BoolArray:
    """Tell in the first half of which gaps nothing was launched on the device."""
    linked = work.tree.linked
    device = find_tracks(work, "device").of_gpu[linked]
    begun = work.trace.ts[work.tree.launch_of_gpu[linked]]
    order = sorted_groups.by_group_and_time(device, begun)
    device = device[order]
    begun = begun[order]
    middle = gaps.start[gap] + gaps.duration[gap] // 2
    until_start = sorted_groups.items_before(
        group=device,
        time=begun,
        query_group=gaps.track[gap],
        query_time=gaps.start[gap],
    )
    until_middle = sorted_groups.items_before(
        group=device, time=begun, query_group=gaps.track[gap], query_time=middle
    )
    nothing_launched: BoolArray = until_start == until_middle
    return nothing_launched


def _no_wait_goes_on(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches, gap: Int64Array
) -> BoolArray:
    """Tell at the end of which gaps the launching thread does not wait for the GPU."""
    trace = work.trace
    calls = blocking_calls(work)
    last = sorted_groups.last_before(
        group=trace.thread[calls],
        time=trace.ts[calls],
        query_group=launches.thread[gap],
        query_time=gaps.end[gap],
    )
    call_end = values_at(trace.end_of(calls), last, missing=_LONG_AGO)
    no_wait: BoolArray = call_end <= gaps.end[gap]
    return no_wait


def _cpu_work_in_gaps(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches, gap: Int64Array
) -> Int64Array:
    """Return how long host events of the launching thread are that lie in each of some gaps, ns.

    What only goes on around a gap, such as an iteration, tells nothing.
    """
    trace = work.trace
    rows = trace.rows_of(*HOST_KINDS)
    order = sorted_groups.by_group_and_time(launches.thread[gap], gaps.start[gap])
    thread = launches.thread[gap][order]
    start = gaps.start[gap][order]
    end = gaps.end[gap][order]
    last = sorted_groups.last_before(
        group=thread,
        time=start,
        query_group=trace.thread[rows],
        query_time=trace.ts[rows] + _AROUND_NS + 1,
    )
    within = last != NONE
    latest_end = values_at(end, last) + _AROUND_NS
    within &= trace.end_of(rows) <= latest_end
    rows = rows[within]
    number = last[within]
    by_start = np.lexsort((-trace.dur[rows], trace.ts[rows], number))
    rows = rows[by_start]
    number = number[by_start]
    is_outermost = sorted_groups.outermost(number, trace.end_of(rows))
    seen = np.zeros(len(gap), dtype=np.int64)
    seen[order] = grouping.sums(
        group_index=number[is_outermost],
        values=trace.dur[rows[is_outermost]],
        group_count=len(gap),
    )
    return seen


class _CaughtUp(NamedTuple):
    """Idle time of which some belongs to waits for which the CPU had to catch up."""

    intervals: IdleIntervals
    call: Int64Array  #: row of the call that waited, for each gap, `NONE` without one, (k,)


def _with_waits(
    work: GpuEvents, scope: Scope, intervals: IdleIntervals, launches: _GapLaunches
) -> _CaughtUp:
    """Split what belongs to waits of the CPU from the beginnings of the intervals."""
    call_of_gap = np.full(len(launches.row), NONE, dtype=np.int64)
    calls = blocking_calls(work)
    if not len(calls):
        return _CaughtUp(intervals, call_of_gap)
    late_causes = (Cause.HOST.code, Cause.LAUNCH_OVERHEAD.code)
    idle = IdleTime(
        start=intervals.start,
        end=intervals.end,
        track=intervals.track,
        thread=values_at(launches.thread, intervals.gap),
        is_late=np.isin(intervals.cause, late_causes),
    )
    after_waits = idle_after_waits(work=work, scope=scope, idle=idle, calls=calls)
    follows_wait = after_waits.call != NONE
    gaps_after_waits = intervals.gap[follows_wait]
    call_of_gap[gaps_after_waits] = after_waits.call[follows_wait]
    split = _split_after_waits(intervals, follows_wait, after_waits.length)
    return _CaughtUp(split, call_of_gap)


def _split_after_waits(
    intervals: IdleIntervals, follows_wait: BoolArray, length: Int64Array
) -> IdleIntervals:
    """Give the first `length` ns of the intervals that follow waits to synchronization.

    With intervals A, B, C of which B follows a wait, the result is A, B's first part, B's second
    part, C. A part of no length is dropped.
    """
    if not follows_wait.any():
        return intervals
    parts = np.where(follows_wait, 2, 1)
    split = intervals.chosen(np.repeat(np.arange(len(parts)), parts))
    divided = np.flatnonzero(follows_wait)
    first_part = divided + np.arange(len(divided))  # after one more row for each before
    second_part = first_part + 1
    middle = intervals.start[divided] + length[divided]
    split.end[first_part] = middle
    split.start[second_part] = middle
    split.cause[first_part] = Cause.SYNCHRONIZATION.code
    return split.chosen(split.end > split.start)


def _causes_after_launch(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches
) -> IntArray:
    """Return why each gap lasts on when its launch has returned, codes, (k,)."""
    device_index = find_tracks(work, "device").of_gpu[gaps.after]
    after_launch = gaps.end - launches.returned
    is_short = after_launch <= usual_launch_latency(work)[device_index]
    is_launched_within = launches.begun >= gaps.start
    is_known = _has_launches(work)[device_index]
    is_overhead = (is_short | is_launched_within) & is_known
    cause = np.full(len(gaps), Cause.UNKNOWN.code, dtype=np.int8)
    cause[is_overhead] = Cause.LAUNCH_OVERHEAD.code
    # The last thing before the launch on its thread is a wait of a stream: of the one that is
    # launched on next, as its target is not in the trace.
    calls = _gpu_calls(work)
    last_wait = _last_call_before(work, calls.stream_waits, launches)
    last_launch = _last_call_before(work, calls.launches, launches)
    waits_for_stream = (last_wait > last_launch) & ~(is_short & is_launched_within)
    after_return = replace(gaps, start=launches.returned)
    since_other_work = gaps.end - _last_end_on_other_streams(work, after_return)
    depends = waits_for_stream | (since_other_work <= DEPENDENCY_LATENCY_NS)
    cause[depends] = Cause.DEPENDENCY.code
    return cause


def _last_call_before(
    work: GpuEvents, calls: Int64Array, launches: _GapLaunches
) -> Int64Array:
    """Return when the last of some calls before each launch began on its thread, (k,)."""
    trace = work.trace
    last = sorted_groups.last_before(
        group=trace.thread[calls],
        time=trace.ts[calls],
        query_group=launches.thread,
        query_time=launches.begun,
    )
    return values_at(trace.ts[calls], last, missing=_LONG_AGO)


def _edges(work: GpuEvents) -> IdleIntervals:
    """Return the wall time before the first event of each device, and after its last."""
    tracks = find_tracks(work, "device")
    recording = recording_of(work)
    count = len(tracks)
    first_start = grouping.minima(
        group_index=tracks.of_gpu, values=work.start, group_count=count
    )
    last_end = grouping.maxima(
        group_index=tracks.of_gpu, values=work.end, group_count=count
    )
    return IdleIntervals(
        start=np.append(np.full(count, recording.wall_start), last_end),
        end=np.append(first_start, np.full(count, recording.wall_end)),
        track=np.tile(np.arange(count, dtype=np.int32), 2),
        gap=np.full(2 * count, NONE, dtype=np.int32),
        cause=np.full(2 * count, Cause.EDGE.code, dtype=np.int8),
    )


def _with_unrecorded_parts(
    work: GpuEvents, scope: Scope, intervals: IdleIntervals
) -> IdleIntervals:
    """Return the intervals split at the parts of the recording that cannot be analyzed."""
    parts = recording_of(work).parts
    if not len(parts):
        return intervals
    tracks = find_tracks(work, scope)
    device_of_track = np.zeros(len(tracks), dtype=np.int64)
    device_of_track[tracks.of_gpu] = find_tracks(work, "device").of_gpu
    device_of_interval = device_of_track[intervals.track]
    result = []
    for device in range(len(find_tracks(work, "device"))):
        remaining = intervals.chosen(device_of_interval == device)
        of_device = parts[parts["device"] == device]
        is_warm_up = of_device["kind"] == "warm_up"
        parts_of_cause = {
            Cause.NOT_RECORDED: of_device[~is_warm_up],
            Cause.WARM_UP: of_device[is_warm_up],
        }
        for cause, windows in parts_of_cause.items():
            start = windows["start"].to_numpy()
            end = windows["end"].to_numpy()
            split = remaining.split(*union(start, end))
            result.append(split.inside.with_cause(cause))
            remaining = split.outside
        result.append(remaining)
    return joined_intervals(*result)


@cached_per_object
def usual_launch_latency(work: GpuEvents) -> Int64Array:
    """Return how long a launch takes at most, as a rule, to start work on an idle stream.

    Twice the lower quartile of the times from launch to start over all events of the device that
    found their stream idle: what waits for other work only makes the upper half longer. Within 10
    and 100 µs; 20 µs where fewer than five events tell.

    Returns:
        ns, for each device, (p,).
    """
    tracks = find_tracks(work, "device")
    gaps = find_gaps(work, "stream")
    launch = work.tree.launch_of_gpu[gaps.after]
    launched_at = work.trace.ts[launch]
    found_idle = (launch != NONE) & (launched_at >= gaps.start)
    delay = (gaps.end - launched_at)[found_idle]
    device_index = tracks.of_gpu[gaps.after[found_idle]]
    latency = np.full(len(tracks), _UNKNOWN_LATENCY_NS, dtype=np.int64)
    for device in range(len(tracks)):
        delay_on_device = delay[device_index == device]
        if len(delay_on_device) >= _FEWEST_LATENCY_SAMPLES:
            usual = 2 * int(np.quantile(delay_on_device, 0.25))
            latency[device] = np.clip(usual, _LEAST_LATENCY_NS, _GREATEST_LATENCY_NS)
    return latency


def _has_launches(work: GpuEvents) -> BoolArray:
    """Return whether the trace has launches of work of each device, (p,).

    Where launches are recorded and none is linked, they may be of any device.
    """
    tracks = find_tracks(work, "device")
    linked_events = np.bincount(tracks.of_gpu[work.tree.linked], minlength=len(tracks))
    if linked_events.any():
        return linked_events > 0
    has_any = work.trace.count_of(*LAUNCH_KINDS) > 0
    return np.full(len(tracks), has_any)


class _GpuCalls(NamedTuple):
    """Rows of the calls that concern the GPU, each kind by thread and start."""

    stream_waits: Int64Array  #: calls that make a stream wait
    launches: Int64Array  #: calls that launched GPU work
    blocking: Int64Array  #: calls that wait for the GPU


@cached_per_object
def _gpu_calls(work: GpuEvents) -> _GpuCalls:
    """Find the calls that concern the GPU.

    Blocking calls are known by name, or copy and return after the copy.
    """
    trace = work.trace
    launch = work.tree.launch_of_gpu
    linked = work.tree.linked
    copies = np.flatnonzero(work.is_copy & linked)
    calls_of_copies = launch[copies]
    returns_after_copy = trace.end_of(calls_of_copies) >= work.end[copies]
    blocking_copies = calls_of_copies[returns_after_copy]
    named = trace.rows_named(_BLOCKING_CALL, *LAUNCH_KINDS)
    stream_waits = trace.rows_named(_STREAM_WAIT, *LAUNCH_KINDS)
    launches = distinct(launch[linked])
    blocking = np.union1d(named, blocking_copies)
    return _GpuCalls(
        stream_waits=_by_thread_and_start(work, stream_waits),
        launches=_by_thread_and_start(work, launches),
        blocking=_by_thread_and_start(work, blocking),
    )


def _by_thread_and_start(work: GpuEvents, rows: Int64Array) -> Int64Array:
    trace = work.trace
    return rows[sorted_groups.by_group_and_time(trace.thread[rows], trace.ts[rows])]


def blocking_calls(work: GpuEvents) -> Int64Array:
    """Return the rows of the calls that wait for the GPU, by thread and start."""
    return _gpu_calls(work).blocking


def _synchronizing_calls(
    work: GpuEvents, gaps: Gaps, launches: _GapLaunches
) -> Int64Array:
    """Return the row of the blocking call that delayed each launch, `NONE` without one, (k,).

    Of the blocking calls that began before the launch on its thread it is the one that ended last,
    if it ran within the gap, and either began before it or took half of it.
    """
    trace = work.trace
    rows = blocking_calls(work)
    result = np.full(len(gaps), NONE, dtype=np.int64)
    thread = trace.thread[rows]
    begin = trace.ts[rows]
    end = trace.end_of(rows)
    last = sorted_groups.last_before(
        group=thread, time=begin, query_group=launches.thread, query_time=launches.begun
    )
    gap = np.flatnonzero(last != NONE)
    _, longest_so_far = sorted_groups.running_maximum(thread, end)
    call = longest_so_far[last[gap]]
    overlap = np.minimum(end[call], gaps.end[gap]) - np.maximum(
        begin[call], gaps.start[gap]
    )
    spans_begin = begin[call] <= gaps.start[gap]
    takes_half = overlap * 2 >= gaps.duration[gap]
    delays = (overlap > 0) & (spans_begin | takes_half)
    result[gap[delays]] = rows[call[delays]]
    return result


class _Ends(NamedTuple):
    """When GPU events ended, by track and end."""

    track: Int64Array  #: (g,)
    end: Int64Array  #: ns, (g,)


@cached_per_object
def _ends(work: GpuEvents, scope: Scope) -> _Ends:
    track = find_tracks(work, scope).of_gpu
    order = sorted_groups.by_group_and_time(track, work.end)
    return _Ends(track=track[order], end=work.end[order])


def _last_end_on_other_streams(work: GpuEvents, gaps: Gaps) -> Int64Array:
    """Return when the last event that the device finished within each gap ended, (k,).

    What ends before a gap does ran on another stream. What ends with it may also be an event of no
    length that ended the gap itself, and for which nothing waited. Far back without such an event.
    """
    own_scope = gaps.tracks.scope
    ended_before = _events_ended(work=work, gaps=gaps, scope="device", until=gaps.end)
    ended_until = _events_ended(
        work=work, gaps=gaps, scope="device", until=gaps.end + 1
    )
    with_gap_on_device = ended_until - ended_before
    with_gap_on_track = _events_ended(
        work=work, gaps=gaps, scope=own_scope, until=gaps.end + 1
    )
    with_gap_on_track -= _events_ended(
        work=work, gaps=gaps, scope=own_scope, until=gaps.end
    )
    ends_with_gap_elsewhere = with_gap_on_device > with_gap_on_track
    last = np.where(ends_with_gap_elsewhere, ended_until, ended_before) - 1
    ends = _ends(work, "device")
    device_of_gap = find_tracks(work, "device").of_gpu[gaps.after]
    far_back = _LONG_AGO // 2
    last_end = values_at(ends.end, last, missing=far_back)
    is_of_device = values_at(ends.track, last) == device_of_gap
    return np.where(is_of_device & (last_end > gaps.start), last_end, far_back)


def _events_ended(
    work: GpuEvents, gaps: Gaps, scope: Scope, until: Int64Array
) -> Int64Array:
    """Return how many events have ended before a time on the track of each gap, (k,).

    Those on the tracks before it in the order of `_ends` count, too.
    """
    track = find_tracks(work, scope).of_gpu[gaps.after]
    ends = _ends(work, scope)
    return sorted_groups.items_before(
        group=ends.track, time=ends.end, query_group=track, query_time=until
    )
