"""Divides the idle time of streams and devices into intervals, each with one cause.

A gap is divided at the launch of the event that ends it. E is the end of the event before the gap,
S the start of the event after it; L and R are the begin and the return of the launch:

    E ───────── L ───────── R ───────── S
        CPU      launching       GPU

Until R, the GPU waits for the CPU, which waits for the GPU itself, catches up after such a wait
(`waits`), or does something else. After R (`after_launch`), the GPU needs time to start the event,
or waits for other GPU work, or the reason is unknown. Parts of the time that were not recorded, and
the warm-up (`analysis.coverage`), have causes of their own. So have the edges of a device: the wall
time before its first event and after its last event.

If the event after a gap has no launch in a trace that contains launches, it was launched before the
recording began, and so before E. In a trace without launches, nothing is known about the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.idle_time.after_launch import causes_after_launch
from tracelens_ext.analysis.idle_time.causes import (
    CAUSES,
    Cause,
    IdleIntervals,
    joined_intervals,
    time_by_cause,
)
from tracelens_ext.analysis.idle_time.cpu_work import with_cpu_work
from tracelens_ext.analysis.idle_time.gpu_calls import (
    GapLaunches,
    blocking_calls,
    launches_of_gaps,
    split_at_blocking_calls,
    synchronizing_calls,
)
from tracelens_ext.analysis.idle_time.waits import IdleTime, idle_after_waits
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    Int64Array,
    grouping,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import (
    Gaps,
    GpuEvents,
    Scope,
    find_gaps,
    find_tracks,
)
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at


@dataclass(frozen=True, eq=False)
class ClassifiedGaps:
    """The k gaps of streams or devices, and their causes.

    Attributes:
        gaps: the gaps, with the GPU events before and after them.
        intervals: the gaps divided by cause. For whole devices without a selection, they include
            the edges.
        launch: the row of the launch of the event after each gap, `NONE` without one, (k,).
        launch_returned: when this launch returned, ns, moved into the gap, (k,).
        synchronizing_call: the row of the call that waited for the GPU and so delayed the launch,
            `NONE` without one, (k,).
        caught_up_call: the row of the call that waited for the GPU and after which the CPU had to
            catch up, `NONE` without one, (k,).
        selected: marks the selected GPU events, (g,).
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
        """The intervals of gaps, without edges."""
        return self.intervals.chosen(self.intervals.gap != NONE)

    @cached_property
    def cause(self) -> Int64Array:
        """The code of the cause of most of each gap, (k,)."""
        return self.main_cause(np.arange(len(self)), len(self))

    def main_cause(self, group: Int64Array, group_count: int) -> Int64Array:
        """Return the code of the cause of most of the idle time of each group of gaps.

        Args:
            group: the group of each gap, (k,).
            group_count: the number of groups.
        """
        times = time_by_cause(self.within, group[self.within.gap], group_count)
        main: Int64Array = times.argmax(axis=1)
        return main

    def idle_by_cause_ms(self) -> dict[int | str, dict[str, float]]:
        """Return device → cause → idle time, ms.

        Without a selection, the times of a device are all of its wall time that is not busy.
        """
        tracks = self.gaps.tracks
        times_ns = time_by_cause(self.intervals, self.intervals.track, len(tracks))
        times_ms = times_ns / NS_PER_MS
        idle_ms: dict[int | str, dict[str, float]] = {}
        for label, row in zip(tracks.device_labels, times_ms.tolist(), strict=True):
            idle_ms[label] = dict(zip(CAUSES, row, strict=True))
        return idle_ms

    def of(self, selected: BoolArray) -> ClassifiedGaps:
        """Return the gaps that selected GPU events end, without edges."""
        is_chosen = selected[self.gaps.after]
        intervals = self.within.chosen(is_chosen[self.within.gap])
        new_index = np.cumsum(is_chosen, dtype=np.int32) - 1
        return ClassifiedGaps(
            gaps=self.gaps.chosen(is_chosen),
            intervals=intervals._replace(gap=new_index[intervals.gap]),
            launch=self.launch[is_chosen],
            launch_returned=self.launch_returned[is_chosen],
            synchronizing_call=self.synchronizing_call[is_chosen],
            caught_up_call=self.caught_up_call[is_chosen],
            selected=selected,
        )


@cached_per_object
def classify_gaps(
    gpu_events: GpuEvents,
    scope: Scope = "stream",
    selection: EventFilter | None = None,
) -> ClassifiedGaps:
    """Divide each gap of the streams or devices by cause, as the module describes.

    Args:
        gpu_events: the GPU events.
        scope: `stream` for the gaps of each stream, `device` for the gaps of whole devices.
        selection: the GPU events that end the gaps; None for all. The gaps of a device belong to no
            stream, so a selected stream does not restrict them.

    Raises:
        UsageError: there is no such scope, or nothing is selected.
    """
    scopes = get_args(Scope)
    if scope not in scopes:
        raise UsageError(
            f"there is no scope {scope!r}; choose from {', '.join(scopes)}"
        )
    if selection is not None:
        return _selected_gaps(gpu_events, scope, selection)
    gaps = find_gaps(gpu_events, scope)
    launches = launches_of_gaps(gpu_events, gaps)
    parts = list(_gap_parts(gpu_events, gaps, launches))
    if scope == "device":
        parts.append(_edges(gpu_events))
    intervals = joined_intervals(*parts)
    intervals = intervals.chosen(intervals.end > intervals.start)
    if scope == "device":
        intervals = with_cpu_work(gpu_events, gaps, launches, intervals)
    caught_up = _with_waits(gpu_events, scope, intervals, launches)
    return ClassifiedGaps(
        gaps=gaps,
        intervals=_with_unrecorded_parts(gpu_events, scope, caught_up.intervals),
        launch=launches.row,
        launch_returned=launches.returned,
        synchronizing_call=synchronizing_calls(gpu_events, gaps, launches),
        caught_up_call=caught_up.call,
        selected=np.ones(len(gpu_events), dtype=bool),
    )


def _selected_gaps(
    gpu_events: GpuEvents, scope: Scope, selection: EventFilter
) -> ClassifiedGaps:
    selected = selection.of(gpu_events)
    if scope == "device" and selection.stream is not None:
        selected = replace(selection, stream=None).of(gpu_events)
    all_gaps = classify_gaps(gpu_events, scope)
    if selected.all():
        return all_gaps
    return all_gaps.of(selected)


def _gap_parts(
    gpu_events: GpuEvents, gaps: Gaps, launches: GapLaunches
) -> Iterator[IdleIntervals]:
    """Yield the parts of all gaps before, during and after the launch; some have no length."""
    index = np.arange(len(gaps), dtype=np.int32)
    launch_begin = np.clip(launches.begin, gaps.start, launches.returned)
    before_launch = IdleIntervals(
        start=gaps.start,
        end=launch_begin,
        track=gaps.track.astype(np.int32),
        gap=index,
        cause=np.full_like(index, Cause.HOST.code, dtype=np.int8),
    )
    during_launch = before_launch._replace(start=launch_begin, end=launches.returned)
    yield during_launch
    after_launch = before_launch._replace(
        start=launches.returned,
        end=gaps.end,
        cause=causes_after_launch(gpu_events, gaps, launches),
    )
    yield after_launch
    yield from split_at_blocking_calls(gpu_events, before_launch, launches.thread)


def _edges(gpu_events: GpuEvents) -> IdleIntervals:
    """Return the wall time before the first event of each device and after its last event."""
    tracks = find_tracks(gpu_events, "device")
    recording = coverage_of(gpu_events)
    count = len(tracks)
    first_start = grouping.minima(tracks.of_gpu, gpu_events.start, count)
    last_end = grouping.maxima(tracks.of_gpu, gpu_events.end, count)
    return IdleIntervals(
        start=np.append(np.full(count, recording.wall_start), last_end),
        end=np.append(first_start, np.full(count, recording.wall_end)),
        track=np.tile(np.arange(count, dtype=np.int32), 2),
        gap=np.full(2 * count, NONE, dtype=np.int32),
        cause=np.full(2 * count, Cause.EDGE.code, dtype=np.int8),
    )


class _CaughtUp(NamedTuple):
    """Intervals of idle time, divided where the CPU catches up after waits."""

    intervals: IdleIntervals
    #: the row of the call that waited before each gap, `NONE` for a gap without one, (k,)
    call: Int64Array


def _with_waits(
    gpu_events: GpuEvents,
    scope: Scope,
    intervals: IdleIntervals,
    launches: GapLaunches,
) -> _CaughtUp:
    """Attribute the beginnings of intervals to the waits after which the CPU has to catch up."""
    call_of_gap = np.full(len(launches.row), NONE, dtype=np.int64)
    calls = blocking_calls(gpu_events)
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
    after_waits = idle_after_waits(gpu_events, scope, idle, calls)
    follows_wait = after_waits.call != NONE
    gaps_after_waits = intervals.gap[follows_wait]
    call_of_gap[gaps_after_waits] = after_waits.call[follows_wait]
    split = _split_after_waits(intervals, follows_wait, after_waits.length)
    return _CaughtUp(split, call_of_gap)


def _split_after_waits(
    intervals: IdleIntervals, follows_wait: BoolArray, length: Int64Array
) -> IdleIntervals:
    """Give the first `length` ns of the intervals that follow waits the cause `SYNCHRONIZATION`.

    For the intervals A, B, C of which B follows a wait, the result is A, the first part of B, the
    second part of B, C. Parts without length are dropped.
    """
    if not follows_wait.any():
        return intervals
    part_count = np.where(follows_wait, 2, 1)
    split = intervals.chosen(np.repeat(np.arange(len(part_count)), part_count))
    divided = np.flatnonzero(follows_wait)
    # Each interval that is divided moves all later ones by one.
    first_part = divided + np.arange(len(divided))
    second_part = first_part + 1
    middle = intervals.start[divided] + length[divided]
    split.end[first_part] = middle
    split.start[second_part] = middle
    split.cause[first_part] = Cause.SYNCHRONIZATION.code
    return split.chosen(split.end > split.start)


def _with_unrecorded_parts(
    gpu_events: GpuEvents, scope: Scope, intervals: IdleIntervals
) -> IdleIntervals:
    """Return the intervals, split at the parts of the recording that cannot be analyzed.

    These parts get the cause `NOT_RECORDED` or `WARM_UP`.
    """
    parts = coverage_of(gpu_events).parts
    if not len(parts):
        return intervals
    tracks = find_tracks(gpu_events, scope)
    devices = find_tracks(gpu_events, "device")
    device_of_track = np.zeros(len(tracks), dtype=np.int64)
    device_of_track[tracks.of_gpu] = devices.of_gpu
    device_of_interval = device_of_track[intervals.track]
    split_parts = []
    for device in range(len(devices)):
        remaining = intervals.chosen(device_of_interval == device)
        parts_of_device = parts[parts["device"] == device]
        is_warm_up = parts_of_device["kind"] == "warm_up"
        parts_of_cause = {
            Cause.NOT_RECORDED: parts_of_device[~is_warm_up],
            Cause.WARM_UP: parts_of_device[is_warm_up],
        }
        for cause, windows in parts_of_cause.items():
            start = windows["start"].to_numpy()
            end = windows["end"].to_numpy()
            split = remaining.split(*union(start, end))
            split_parts.append(split.inside.with_cause(cause))
            remaining = split.outside
        split_parts.append(remaining)
    return joined_intervals(*split_parts)
