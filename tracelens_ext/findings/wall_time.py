"""The wall time of a trace. Each nanosecond of a device is claimed by at most one finding.

All devices share one wall time (see `coverage`), and each of them accounts for it separately. A
device is idle while none of its GPU events runs, and busy otherwise. A finding can claim busy time
only if all events that run at that time are its own: an event is hidden while work on another
stream of the device runs, and removing it then saves nothing. Times of several devices are combined
as their mean.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.part_kinds import DROPPED_EVENTS
from tracelens_ext.analysis.idle_time import causes
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.findings.finding import Claim, Intervals
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    Float64Array,
    Int64Array,
    IntArray,
    grouping,
    sorted_groups,
)
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.intervals import DisjointIntervals, inside, outside, union


class ThreadsOfGaps(NamedTuple):
    """The CPU threads that k gaps may wait for; `NONE` if unknown."""

    #: the thread that launched the work which ended the gap, (k,)
    launching: Int64Array
    #: The same, but if that launch was before the gap or is unknown, the thread of the next launch
    #: on the device, or of the last one if there is no next one, (k,).
    waited_for: Int64Array


class _Launches(NamedTuple):
    """The calls that launched GPU work, by device and time."""

    device_index: IntArray  #: the device of the work
    start: Int64Array  #: ns since the trace's first event
    thread: IntArray


class WallTime:
    """The wall time of a trace, and the findings that claim it.

    Attributes:
        gpu_events: the g GPU events, at least one.
        start, end: the limits of the wall time, ns since the trace's first event.
        tracks: the devices.
        classified: the k gaps with their causes.
        idle: idle time that can be judged and that no finding has claimed.
        free: True for GPU events that no finding has claimed and that are not set aside, (g,).
        claims: the claims so far.
    """

    def __init__(self, gpu_events: GpuEvents) -> None:
        self.gpu_events = gpu_events
        recording = coverage_of(gpu_events)
        self.start = recording.wall_start
        self.end = recording.wall_end
        holes = recording.parts[recording.parts["kind"] == DROPPED_EVENTS]
        self._holes = holes[["device", "start", "end"]].to_numpy()
        self.tracks = find_tracks(gpu_events, "device")
        self.classified = classify_gaps(gpu_events, "device")
        self.idle = self._judged_idle()
        self.free = ~recording.is_set_aside(gpu_events)
        self.claims: list[Claim] = []
        #: the time of each event before this moment is claimed, ns, (g,)
        self._unclaimed_from = gpu_events.start
        self._devices = self.tracks.device_labels

    @property
    def total_ns(self) -> int:
        """The length of the wall time."""
        return self.end - self.start

    @property
    def attributed_ns(self) -> float:
        """The time that is claimed so far."""
        return sum(claim.attributed_ns for claim in self.claims)

    def copy(self) -> WallTime:
        """Return a copy with the same claims; further claims on either do not affect the other."""
        # A shallow copy is enough: claims replace attributes, and change none in place.
        return copy(self)

    def idle_time_of_parts(self) -> list[Claim]:
        """Return the idle time of each part of the recording that cannot be judged.

        These are the parts without recorded work and warm-up, in the order of `Recording.parts`.
        """
        idle = self.classified.intervals
        cannot_be_judged = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code)
        idle = idle.chosen(np.isin(idle.cause, cannot_be_judged))
        claims = []
        limits = (
            coverage_of(self.gpu_events).parts[["device", "start", "end"]].to_numpy()
        )
        for device, start, end in limits.tolist():
            idle_of_device = idle.chosen(idle.track == device)
            split = idle_of_device.split(np.array([start]), np.array([end]))
            no_thread = np.full(len(split.inside.gap), NONE)
            intervals = self._intervals_of_gaps(split.inside, no_thread)
            claims.append(Claim(intervals, self._devices, self.start))
        return claims

    def mean_ms(self, ns: IntArray | Float64Array) -> float:
        """Return the sum of times on all devices as the mean over the devices, ms."""
        return float(ns.sum()) / len(self._devices) / NS_PER_MS

    def _judged_idle(self) -> causes.IdleIntervals:
        """Return all idle time that can be judged, claimed or not."""
        idle = self.classified.intervals
        not_judged = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code, Cause.EDGE.code)
        return idle.chosen(~np.isin(idle.cause, not_judged))

    def waits_for_cpu(self, idle: causes.IdleIntervals) -> BoolArray:
        """Return in which intervals of idle time the GPU waits for the CPU, by their causes."""
        waits_for_cpu: BoolArray = np.isin(
            idle.cause, (Cause.HOST.code, Cause.SYNCHRONIZATION.code)
        )
        return waits_for_cpu

    def is_launch_overhead(self, idle: causes.IdleIntervals) -> BoolArray:
        """Return which intervals of idle time are the latency of a launch, by their causes."""
        is_launch_overhead: BoolArray = idle.cause == Cause.LAUNCH_OVERHEAD.code
        return is_launch_overhead

    @cached_property
    def _launches(self) -> _Launches:
        """The calls that launched GPU work, by device and time."""
        linked = self.gpu_events.tree.linked
        trace = self.gpu_events.trace
        device_index = self.tracks.of_gpu[linked]
        rows = self.gpu_events.tree.launch_of_gpu[linked]
        order = sorted_groups.by_group_and_time(device_index, trace.ts[rows])
        rows = rows[order]
        return _Launches(
            device_index=device_index[order],
            start=trace.ts[rows],
            thread=trace.thread[rows],
        )

    @cached_property
    def threads_of_gaps(self) -> ThreadsOfGaps:
        """The CPU threads that each gap may wait for."""
        trace = self.gpu_events.trace
        gaps = self.classified.gaps
        launch = self.classified.launch
        has_launch = launch != NONE
        launch_row = np.maximum(launch, 0)  # row 0 stands for no launch
        launching = np.where(has_launch, trace.thread[launch_row], NONE)
        launching = launching.astype(np.int64)

        launches = self._launches
        next_launch = sorted_groups.items_before(
            group=launches.device_index,
            time=launches.start,
            query_group=gaps.track,
            query_time=gaps.start,
        )
        launches_up_to_device = np.searchsorted(
            launches.device_index, gaps.track, side="right"
        )
        last_launch = launches_up_to_device - 1
        next_or_last = np.minimum(next_launch, last_launch)
        # Without any launch the index is -1 and reads the `NONE` at the end.
        next_device = np.append(launches.device_index, NONE)[next_or_last]
        next_thread = np.append(launches.thread, NONE)[next_or_last]
        is_replaced = ~has_launch | (trace.ts[launch_row] < gaps.start)
        is_replaced &= next_device == gaps.track
        return ThreadsOfGaps(
            launching=launching,
            waited_for=np.where(is_replaced, next_thread, launching),
        )

    # Idle time.

    def forgo_idle_time(self) -> None:
        """Make all idle time unclaimable, because the GPU may have worked in it."""
        nothing = np.zeros(len(self.idle.gap), dtype=bool)
        self.idle = self.idle.chosen(nothing)

    def claim_idle(self, is_claimed: BoolArray) -> Claim:
        """Claim some of the intervals of `idle`, given as a mask."""
        claimed_intervals = self.idle.chosen(is_claimed)
        self.idle = self.idle.chosen(~is_claimed)
        return self._claim_of(self._intervals_of_gaps(claimed_intervals))

    def claim_idle_during(
        self, rows: Int64Array, until: Int64Array | None = None
    ) -> Claim:
        """Claim the idle time during which the launching thread was inside given CPU events.

        Args:
            rows: the rows of the e CPU events, (e,).
            until: the moment up to which each event counts, ns, (e,); None: its end.
        """
        trace = self.gpu_events.trace
        thread_of_event = trace.thread[rows]
        start = trace.ts[rows]
        end = until
        if end is None:
            end = trace.end_of(rows)
        threads = self.threads_of_gaps
        claim = self.claim_idle(np.zeros(len(self.idle.gap), dtype=bool))
        for thread in np.unique(thread_of_event).tolist():
            idle = self.idle
            waits_for_thread = threads.launching[idle.gap] == thread
            waits_for_thread |= threads.waited_for[idle.gap] == thread
            waits_for_thread &= self.waits_for_cpu(idle)
            is_of_thread = thread_of_event == thread
            events_time = union(start[is_of_thread], end[is_of_thread])
            split = idle.chosen(waits_for_thread).split(*events_time)
            self.idle = causes.joined_intervals(
                idle.chosen(~waits_for_thread), split.outside
            )
            thread_of_gap = np.full(len(split.inside.gap), thread)
            intervals = self._intervals_of_gaps(split.inside, thread_of_gap)
            claim = claim + self._claim_of(intervals)
        return claim

    def claim_idle_up_to(self, limit: Int64Array) -> Claim:
        """Claim the idle time at the beginning of each gap, up to a limit.

        Idle time of unknown cause cannot be claimed.

        Args:
            limit: the most time to claim of each gap, ns, at least 0, (k,).
        """
        has_known_cause = self._has_known_cause
        idle = self.idle.chosen(has_known_cause)
        idle_of_unknown_cause = self.idle.chosen(~has_known_cause)
        length = idle.end - idle.start
        claimed_before = _sum_of_earlier(group=idle.gap, values=length)
        claimed_ns = np.clip(limit[idle.gap] - claimed_before, 0, length)
        claimed_until = idle.start + claimed_ns
        unclaimed = idle._replace(start=claimed_until)
        unclaimed = unclaimed.chosen(claimed_ns < length)
        self.idle = causes.joined_intervals(unclaimed, idle_of_unknown_cause)
        claimed = idle._replace(end=claimed_until)
        intervals = self._intervals_of_gaps(claimed.chosen(claimed_ns > 0))
        return self._claim_of(intervals)

    @property
    def _has_known_cause(self) -> BoolArray:
        """True for each interval of idle time whose cause is known."""
        is_known: BoolArray = self.idle.cause != Cause.UNKNOWN.code
        return is_known

    def claim_idle_after(self, call: Int64Array, at_most: Int64Array) -> Claim:
        """Claim the idle time at the beginning of gaps that follow calls.

        All gaps that follow the same call may together claim no more than the call's duration.

        Args:
            call: the row of the call that each gap follows, `NONE` without one, (k,).
            at_most: the most that the gaps after the call of each gap may claim together, ns, (k,).
        """
        limit = np.zeros(len(call), dtype=np.int64)
        gaps = np.flatnonzero(call != NONE)
        if len(gaps):
            device_and_call = [self.classified.gaps.track[gaps], call[gaps]]
            _, call_number = grouping.number_groups(device_and_call)
            order = sorted_groups.by_group_and_time(call_number, gaps)
            call_number = call_number[order]
            gaps = gaps[order]
            unclaimed_ns = self.unclaimed_ns_of_gaps()[gaps]
            claimed_before = _sum_of_earlier(group=call_number, values=unclaimed_ns)
            call_ns = self.gpu_events.trace.dur[call[gaps]]
            limit_of_call = np.minimum(call_ns, at_most[gaps])
            limit[gaps] = np.maximum(limit_of_call - claimed_before, 0)
        return self.claim_idle_up_to(limit)

    def unclaimed_ns_of_gaps(self) -> Int64Array:
        """Return the idle time of known cause in each gap that no finding has claimed, ns, (k,)."""
        idle = self.idle.chosen(self._has_known_cause)
        return grouping.sums(idle.gap, idle.end - idle.start, len(self.classified))

    def _intervals_of_gaps(
        self, idle: causes.IdleIntervals, thread: Int64Array | None = None
    ) -> Intervals:
        """Return idle time as intervals of a claim.

        Args:
            idle: the idle time.
            thread: the thread that each interval waits for; None: the one of `threads_of_gaps`.
        """
        if thread is None:
            thread = self.threads_of_gaps.waited_for[idle.gap]
        return Intervals(
            start=idle.start,
            end=idle.end,
            device_index=idle.track,
            gap=idle.gap,
            event=np.full(len(idle.gap), NONE),
            thread=thread,
        )

    def _claim_of(self, intervals: Intervals) -> Claim:
        """Return a claim of some intervals, and remember it unless it is empty."""
        claim = Claim(intervals, self._devices, self.start)
        if len(intervals.start):
            self.claims = self.claims + [claim]
        return claim

    # Busy time.

    def _alone(self, events: BoolArray, hiding: BoolArray | None = None) -> Intervals:
        """Return when some GPU events run and no event that hides them does.

        Time during which several of them run belongs to the event that starts first.

        Args:
            events: True for the events, (g,).
            hiding: True for the events that hide them, (g,); None: all other events.
        """
        hides = ~events
        if hiding is not None:
            hides = hiding
        intervals_of_devices = []
        for device_index in range(len(self.tracks)):
            is_on_device = self.tracks.of_gpu == device_index
            hidden_time = [
                self._holes_of(device_index),
                DisjointIntervals(
                    start=self.gpu_events.start[hides & is_on_device],
                    end=self.gpu_events.end[hides & is_on_device],
                ),
            ]
            if hiding is not None:
                # An event that does not hide may have claimed the time in which it runs.
                hidden_time += self._claimed_busy_time(device_index)
            intervals_of_devices.append(
                self._outside_of_hidden_time(
                    events=np.flatnonzero(events & is_on_device),
                    device_index=device_index,
                    hidden_time=hidden_time,
                )
            )
        return Intervals.joined(intervals_of_devices)

    def _holes_of(self, device_index: int) -> DisjointIntervals:
        """Return the times in which GPU events of a device were lost: others may have run."""
        holes = self._holes[self._holes[:, 0] == device_index]
        return DisjointIntervals(start=holes[:, 1], end=holes[:, 2])

    def _claimed_busy_time(self, device_index: int) -> list[DisjointIntervals]:
        """Return the busy time of a device that each claim has."""
        claimed_time = []
        for claim in self.claims:
            intervals = claim.intervals
            is_busy = intervals.event != NONE
            is_busy &= intervals.device_index == device_index
            claimed_time.append(
                DisjointIntervals(
                    start=intervals.start[is_busy], end=intervals.end[is_busy]
                )
            )
        return claimed_time

    def _outside_of_hidden_time(
        self,
        events: Int64Array,
        device_index: int,
        hidden_time: list[DisjointIntervals],
    ) -> Intervals:
        """Return when some GPU events of a device run outside of hidden time.

        Args:
            events: the GPU events.
            device_index: their device.
            hidden_time: intervals in any order.
        """
        start = self._unclaimed_from[events]
        order = np.argsort(start, kind="stable")
        events = events[order]
        start = start[order]
        end = self.gpu_events.end[events]
        # Each event counts from the end of the events that started before it.
        latest_end_before = np.maximum.accumulate(np.append(self.start, end))[:-1]
        counted_from = np.minimum(np.maximum(start, latest_end_before), end)
        hidden = union(
            np.concatenate([intervals.start for intervals in hidden_time]),
            np.concatenate([intervals.end for intervals in hidden_time]),
        )
        alone_start, alone_end, index = outside(counted_from, end, *hidden)
        nothing = np.full_like(alone_start, NONE)
        return Intervals(
            start=alone_start,
            end=alone_end,
            device_index=np.full_like(alone_start, device_index),
            gap=nothing,
            event=events[index],
            thread=nothing,
        )

    def about(self, events: BoolArray) -> Claim:
        """Return the time that some GPU events (g,) run alone, without claiming it."""
        return Claim(self._alone(events), self._devices, self.start)

    def on_device(
        self, device_index: int, first: Int64Array, last: Int64Array
    ) -> Claim:
        """Return the idle and busy time of a device in some windows, without claiming it.

        Args:
            device_index: the device.
            first: the start of each window; windows ascend and do not overlap.
            last: the end of each window.
        """
        idle = self._judged_idle()
        idle = idle.chosen(idle.track == device_index)
        idle_intervals = self._intervals_of_gaps(idle.split(first, last).inside)
        events = self._alone(self.tracks.of_gpu == device_index)
        start, end, index, _ = inside(events.start, events.end, first, last)
        busy_intervals = events.chosen(index)._replace(start=start, end=end)
        intervals = Intervals.joined((idle_intervals, busy_intervals))
        # The claim has only this device, so its index is 0.
        no_index = np.zeros(len(intervals.start), dtype=np.int64)
        intervals = intervals._replace(device_index=no_index)
        return Claim(intervals, [self._devices[device_index]], self.start)

    def claim_events(
        self,
        events: BoolArray,
        share: Float64Array | float = 1.0,
        *,
        hiding: BoolArray | None = None,
        until: Int64Array | None = None,
    ) -> Claim:
        """Claim the time of GPU events that nobody has claimed, as far as it is not hidden.

        Args:
            events: True for the events, (g,). Afterwards, no other finding can claim them.
            share: the share of its time that each event would save, 0 to 1, (g,) or one for all.
            hiding: True for the events that hide them, (g,); None: all other events.
            until: the moment up to which each event is claimed, ns, (g,). Its later time stays for
                other findings. None: its end.
        """
        events = events & self.free
        claimed = self._alone(events, hiding)
        if until is None:
            self.free = self.free & ~events
        else:
            claimed_until = np.minimum(claimed.end, until[claimed.event])
            claimed = claimed._replace(end=claimed_until)
            unclaimed_from = np.clip(until, self._unclaimed_from, self.gpu_events.end)
            self._unclaimed_from = np.where(
                events, unclaimed_from, self._unclaimed_from
            )
        share_of_event = np.broadcast_to(np.clip(share, 0.0, 1.0), len(self.gpu_events))
        saved_ns = (claimed.end - claimed.start) * share_of_event[claimed.event]
        length = np.rint(saved_ns).astype(np.int64)
        claimed = claimed._replace(end=claimed.start + length)
        return self._claim_of(claimed.chosen(length > 0))


def _sum_of_earlier(group: IntArray, values: Int64Array) -> Int64Array:
    """Return the sum of the earlier values of the same group for each value.

    For groups 3, 3, 3, 8 and values 5, 2, 4, 6 it is 0, 5, 7, 0. Groups ascend.
    """
    sum_of_all_earlier = np.cumsum(values) - values
    if not len(values):
        return sum_of_all_earlier
    first_of_group = np.searchsorted(group, group)
    return sum_of_all_earlier - sum_of_all_earlier[first_of_group]
