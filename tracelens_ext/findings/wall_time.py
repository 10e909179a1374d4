"""The wall time of a trace, of which each nanosecond of a device is claimed by one finding at most.

All devices share one wall time (see `coverage`); each of them accounts for it separately. A device
is idle while none of its GPU events runs, and busy otherwise. A finding can claim busy time only if
all events that run then are its own: work that overlaps with work on another stream of the device
is hidden, and removing it saves nothing. Times of several devices are combined as their mean.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.part_kinds import DROPPED_EVENTS
from tracelens_ext.analysis.idle_time import causes
from tracelens_ext.analysis.idle_time.causes import Cause, classify_gaps
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
from tracelens_ext.trace.intervals import inside, outside, union


class WallTime:
    """The wall time of a trace, and which findings claim it."""

    def __init__(self, work: GpuEvents) -> None:
        self.work = work  #: the GPU events, g of them, at least one
        recording = recording_of(work)
        #: where it begins and ends, ns since the trace's first event
        self.start = recording.wall_start
        self.end = recording.wall_end
        holes = recording.parts[recording.parts["kind"] == DROPPED_EVENTS]
        self._holes = holes[["device", "start", "end"]].to_numpy()
        self.tracks = find_tracks(work, "device")
        #: the gaps with their causes, k of them
        self.classified = classify_gaps(work, "device")
        #: idle time that can be judged and that nothing has claimed
        self.idle = self._judged_idle()
        #: GPU events that nothing has claimed and that are not set aside, (g,)
        self.free = ~recording.set_aside(work)
        self.claims: list[Claim] = []  #: what is claimed so far
        #: from when on the time of each event is not claimed, ns, (g,)
        self._unclaimed_from = work.start
        self._devices = self.tracks.device_labels

    @property
    def total_ns(self) -> int:
        """Length of the wall time."""
        return self.end - self.start

    @property
    def attributed_ns(self) -> float:
        """All that is claimed so far."""
        return sum(claim.attributed_ns for claim in self.claims)

    def copy(self) -> WallTime:
        """Return a copy with the same claims; further claims on either do not affect the other."""
        # A shallow copy is enough: claims replace attributes, and change none in place.
        return copy(self)

    def parts(self) -> list[Claim]:
        """The idle time in each part of the recording that cannot be judged, in their order."""
        pieces = self.classified.intervals
        cannot_be_judged = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code)
        idle = pieces.chosen(np.isin(pieces.cause, cannot_be_judged))
        found = []
        times = recording_of(self.work).parts[["device", "start", "end"]].to_numpy()
        for device, start, end in times.tolist():
            idle_of_device = idle.chosen(idle.track == device)
            within, _ = idle_of_device.split(np.array([start]), np.array([end]))
            no_thread = np.full(len(within.gap), NONE)
            intervals = self._of_gaps(within, no_thread)
            found.append(Claim(intervals, self._devices, self.start))
        return found

    def mean_ms(self, ns: IntArray | Float64Array) -> float:
        """Times on all devices as the mean over them, ms."""
        return float(ns.sum()) / len(self._devices) / NS_PER_MS

    def _judged_idle(self) -> causes.IdleIntervals:
        pieces = self.classified.intervals
        others = Cause.NOT_RECORDED.code, Cause.WARM_UP.code, Cause.EDGE.code
        return pieces.chosen(~np.isin(pieces.cause, others))

    def may_wait(self, idle: causes.IdleIntervals) -> BoolArray:
        """Tell in which intervals of idle time the GPU waits for the CPU, by their causes."""
        of_cpu: BoolArray = np.isin(
            idle.cause, (Cause.HOST.code, Cause.SYNCHRONIZATION.code)
        )
        return of_cpu

    def starts(self, idle: causes.IdleIntervals) -> BoolArray:
        """Tell in which intervals of idle time the GPU takes its time to start work."""
        is_overhead: BoolArray = idle.cause == Cause.LAUNCH_OVERHEAD.code
        return is_overhead

    @cached_property
    def _launches(self) -> tuple[IntArray, Int64Array, IntArray]:
        """The calls that launched GPU work, by device and time.

        Returns:
            The device of the work, when the call began, and its thread.
        """
        linked = self.work.tree.linked
        trace = self.work.trace
        device_index = self.tracks.of_gpu[linked]
        rows = self.work.tree.launch_of_gpu[linked]
        order = sorted_groups.by_group_and_time(device_index, trace.ts[rows])
        rows = rows[order]
        return device_index[order], trace.ts[rows], trace.thread[rows]

    @cached_property
    def threads_of_gap(self) -> tuple[Int64Array, Int64Array]:
        """The CPU threads that each gap may wait for; `NONE` where unknown.

        Returns:
            The thread that launched the work which ended the gap, (k,); and the same, but where
            that launch came before the gap or is unknown, the thread that launched next on the
            device, or last, (k,).
        """
        trace = self.work.trace
        launch = self.classified.launch
        gaps = self.classified.gaps
        safe = np.maximum(launch, 0)
        (of_device, begun, thread) = self._launches
        launched = np.where(launch != NONE, trace.thread[safe], NONE).astype(np.int64)
        last = np.searchsorted(of_device, gaps.track, side="right") - 1
        position = sorted_groups.items_before(of_device, begun, gaps.track, gaps.start)
        position = np.minimum(position, last)
        next_device = np.append(of_device, NONE)[position]
        next_thread = np.append(thread, NONE)[position]
        others = (launch == NONE) | (trace.ts[safe] < gaps.start)
        others &= next_device == gaps.track
        following = np.where(others, next_thread, launched)
        return launched, following

    # Idle time.

    def forgo_idle_time(self) -> None:
        """Leave all idle time to nobody, because it may be time in which the GPU worked."""
        nothing = np.zeros(len(self.idle.gap), dtype=bool)
        self.idle = self.idle.chosen(nothing)

    def claim_idle(self, which: BoolArray) -> Claim:
        """Claim some of the pieces of `idle`."""
        claimed = self.idle.chosen(which)
        self.idle = self.idle.chosen(~which)
        return self._claimed(self._of_gaps(claimed))

    def claim_idle_during(
        self, rows: Int64Array, until: Int64Array | None = None
    ) -> Claim:
        """Claim the idle time during which the launching thread was inside given CPU events.

        Args:
            rows: the CPU events, (e,).
            until: until when each of them counts, ns, (e,); by default until its end.
        """
        trace = self.work.trace
        thread = trace.thread[rows]
        start = trace.ts[rows]
        end = trace.end_of(rows) if until is None else until
        launched, following = self.threads_of_gap
        claim = self.claim_idle(np.zeros(len(self.idle.gap), dtype=bool))
        for number in np.unique(thread).tolist():
            mine = thread == number
            idle = self.idle
            asked = launched[idle.gap] == number
            asked |= following[idle.gap] == number
            asked &= self.may_wait(idle)
            stretches = union(start[mine], end[mine])
            inside, rest = idle.chosen(asked).split(*stretches)
            self.idle = causes.joined_intervals(idle.chosen(~asked), rest)
            asking = np.full(len(inside.gap), number)
            claim = claim + self._claimed(self._of_gaps(inside, asking))
        return claim

    def claim_idle_up_to(self, limit: Int64Array) -> Claim:
        """Claim idle time of each gap from its beginning, up to a limit, ns, at least 0, (k,).

        Idle time of unknown cause is nobody's.
        """
        is_known = self._has_known_cause
        idle = self.idle.chosen(is_known)
        unknown = self.idle.chosen(~is_known)
        length = idle.end - idle.start
        before = np.cumsum(length) - length
        if len(length):  # of the same gap only
            first_of_gap = np.searchsorted(idle.gap, idle.gap)
            before -= before[first_of_gap]
        left_of_limit = limit[idle.gap] - before
        take = np.clip(left_of_limit, 0, length)
        taken_until = idle.start + take
        rest = idle._replace(start=taken_until)
        self.idle = causes.joined_intervals(rest.chosen(take < length), unknown)
        taken = idle._replace(end=taken_until)
        intervals = self._of_gaps(taken.chosen(take > 0))
        return self._claimed(intervals)

    @property
    def _has_known_cause(self) -> BoolArray:
        """Tell in which intervals of idle time the cause is known."""
        is_known: BoolArray = self.idle.cause != Cause.UNKNOWN.code
        return is_known

    def claim_idle_after(self, call: Int64Array, at_most: Int64Array) -> Claim:
        """Claim idle time of gaps after calls, from the beginning of each gap.

        The gaps after one call share its duration, in their order: together they claim no more.

        Args:
            call: the row of the call of each gap, `NONE` without one, (k,).
            at_most: the most that the gaps after the call of each gap may claim together, ns, (k,).
        """
        asked = np.flatnonzero(call != NONE)
        limit = np.zeros(len(call), dtype=np.int64)
        if len(asked):
            _, number = grouping.number_groups(
                [self.classified.gaps.track[asked], call[asked]]
            )
            order = sorted_groups.by_group_and_time(number, asked)
            number = number[order]
            gap = asked[order]
            left = self.left_of_gaps()[gap]
            before = np.cumsum(left) - left
            first_of_number = np.searchsorted(number, number)
            before -= before[first_of_number]
            lasts = self.work.trace.dur[call[gap]]
            lasts = np.minimum(lasts, at_most[gap])
            limit[gap] = np.maximum(lasts - before, 0)
        return self.claim_idle_up_to(limit)

    def left_of_gaps(self) -> Int64Array:
        """The idle time of each gap that nobody has claimed and whose cause is known, ns, (k,)."""
        idle = self.idle.chosen(self._has_known_cause)
        return grouping.sums(idle.gap, idle.end - idle.start, len(self.classified))

    def _of_gaps(
        self, idle: causes.IdleIntervals, thread: Int64Array | None = None
    ) -> Intervals:
        nothing = np.full(len(idle.gap), NONE)
        waited_for = self.threads_of_gap[1][idle.gap] if thread is None else thread
        return Intervals(
            idle.start, idle.end, idle.track, idle.gap, nothing, waited_for
        )

    def _claimed(self, intervals: Intervals) -> Claim:
        claim = Claim(intervals, self._devices, self.start)
        if len(intervals.start):
            self.claims = self.claims + [claim]
        return claim

    # Busy time.

    def _alone(self, which: BoolArray, hiding: BoolArray | None = None) -> Intervals:
        """Return when given GPU events run and no event that hides them does.

        Time during which several of them run belongs to the one that starts first.

        Args:
            which: the events, (g,).
            hiding: the events that hide them, (g,); by default all others.
        """
        start = self._unclaimed_from
        end = self.work.end
        others = ~which if hiding is None else hiding
        found = []
        for device_index in range(len(self.tracks)):
            here = self.tracks.of_gpu == device_index
            chosen = np.flatnonzero(which & here)
            hide = others & here
            order = chosen[np.argsort(start[chosen], kind="stable")]
            reach = np.maximum.accumulate(np.append(self.start, end[order]))[:-1]
            begins = np.minimum(np.maximum(start[order], reach), end[order])
            # What ran in a hole beside an event is not known.
            hole = self._holes[self._holes[:, 0] == device_index]
            begun = [self.work.start[hide], hole[:, 1]]
            ended = [end[hide], hole[:, 2]]
            if hiding is not None:
                # What runs beside an event, and does not hide it, may have claimed its time.
                for claim in self.claims:
                    on_device = (claim.intervals.device_index == device_index) & (
                        claim.intervals.event != NONE
                    )
                    begun.append(claim.intervals.start[on_device])
                    ended.append(claim.intervals.end[on_device])
            others_run = union(np.concatenate(begun), np.concatenate(ended))
            first, last, event = outside(begins, end[order], *others_run)
            devices = np.full_like(first, device_index)
            nothing = np.full_like(first, NONE)
            found.append(
                Intervals(first, last, devices, nothing, order[event], nothing)
            )
        return Intervals.joined(found)

    def about(self, which: BoolArray) -> Claim:
        """The time that some GPU events run alone, without claiming it."""
        return Claim(self._alone(which), self._devices, self.start)

    def on_device(
        self, device_index: int, first: Int64Array, last: Int64Array
    ) -> Claim:
        """What a device does in some windows, which are ascending and apart; claims nothing."""
        pieces = self._judged_idle()
        pieces = pieces.chosen(pieces.track == device_index)
        idle, _ = pieces.split(first, last)
        events = self._alone(self.tracks.of_gpu == device_index)
        start, end, which, _ = inside(events.start, events.end, first, last)
        idle_intervals = self._of_gaps(idle)
        busy_intervals = events.chosen(which)._replace(start=start, end=end)
        both = Intervals.joined((idle_intervals, busy_intervals))
        # The claim has this device only, so its number is 0.
        devices = np.zeros(len(both.start), dtype=np.int64)
        intervals = both._replace(device_index=devices)
        return Claim(intervals, [self._devices[device_index]], self.start)

    def claim_events(
        self,
        which: BoolArray,
        share: Float64Array | float = 1.0,
        *,
        hiding: BoolArray | None = None,
        until: Int64Array | None = None,
    ) -> Claim:
        """Claim the time of GPU events that nobody has claimed, as far as it is not hidden.

        Args:
            which: the events, (g,). No other finding claims them after that.
            share: the share of its time that each would save, 0 to 1, (g,) or one for all.
            hiding: the events that hide them, all others by default, (g,).
            until: claim each event up to this moment only, and leave the rest to others, (g,).
        """
        which = which & self.free
        found = self._alone(which, hiding)
        if until is None:
            self.free = self.free & ~which
        else:
            claimed_until = np.minimum(found.end, until[found.event])
            found = found._replace(end=claimed_until)
            begun = self._unclaimed_from
            left_from = np.clip(until, begun, self.work.end)
            self._unclaimed_from = np.where(which, left_from, begun)
        share = np.clip(share, 0.0, 1.0)
        share_of_gpu = np.broadcast_to(share, len(self.work))
        found_ns = found.end - found.start
        claimed_ns = found_ns * share_of_gpu[found.event]
        length = np.rint(claimed_ns).astype(np.int64)
        found = found._replace(end=found.start + length)
        return self._claimed(found.chosen(length > 0))
