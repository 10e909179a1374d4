"""Idle time after the CPU has waited until the GPU had no work left.

    CPU   launches ── waits ──────────┐ launches   launches   launches …
    GPU   ── works ───────────────── E  idle works  idle works  works works …

At E, the queue of the GPU is empty, and the wait returns: the CPU is behind. Until the CPU is ahead
again, the GPU is idle before each launch. Without the wait, the CPU would have launched earlier, by
the time that it waited. So this much of the idle time belongs to the wait, at most.

* If the CPU needs more time between two waits than the GPU, the GPU would be idle for the
  difference even without waits. This difference does not belong to the wait.
* Idle time of a millisecond or more without any launch is a phase in which the CPU does something
  else. If it follows directly after a wait, it belongs to the wait: without the wait, it would have
  run at the same time as the GPU work. A later phase has nothing to do with the wait.
* If there are many of these phases, they are pauses of the program and belong to no wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import (
    NONE,
    BoolArray,
    Int64Array,
    IntArray,
    grouping,
    sorted_groups,
)
from tracelens_ext.trace.gpu_events import GpuEvents, Scope, find_tracks
from tracelens_ext.trace.intervals import DisjointIntervals, covered, union
from tracelens_ext.trace.lookup import values_at

#: The CPU is ahead again when the queue holds work for more than this share of the wait.
_AHEAD_SHARE = 0.5
#: A wait counts if its debt is at least this share of the largest debt since the CPU was ahead.
_MIN_SHARE_OF_LARGEST_DEBT = 0.5
#: If the CPU launches nothing for this time, it does not catch up but does something else.
_PHASE_NS = 1_000_000
#: If there are more phases than this, they are pauses of the program and belong to no wait.
_MAX_PHASES_OF_WAITS = 3
#: A lack that is larger than every debt.
_UNLIMITED_NS = np.iinfo(np.int64).max // 2


class IdleTime(NamedTuple):
    """The p intervals of idle time by track and time."""

    start: Int64Array  #: ns since the trace's first event, (p,)
    end: Int64Array  #: ns since the trace's first event, (p,)
    track: IntArray  #: the index of the stream or device, (p,)
    #: the thread that launched the event after the idle time, `NONE` if unknown, (p,)
    thread: IntArray
    is_late: BoolArray  #: the GPU waits for this launch, or for the launch to take effect, (p,)


class IdleAfterWaits(NamedTuple):
    """The parts of p intervals of idle time that belong to waits."""

    #: the length of the part, from the start of each interval, ns, (p,)
    length: Int64Array
    call: Int64Array  #: the row of the call that waited, `NONE` if there is no such part, (p,)


class _Waits(NamedTuple):
    """The w waits of a thread by time; they do not overlap."""

    row: Int64Array  #: the call that waited, (w,)
    start: Int64Array  #: ns since the trace's first event, (w,)
    end: Int64Array  #: ns since the trace's first event, (w,)

    @property
    def duration(self) -> Int64Array:
        """The length of each wait, ns, (w,)."""
        return self.end - self.start

    def last_ended(self, time: Int64Array) -> Int64Array:
        """Return the last wait that has ended by each time, `NONE` (-1) without one."""
        return np.searchsorted(self.end, time, side="right") - 1


def idle_after_waits(
    gpu_events: GpuEvents, scope: Scope, idle: IdleTime, calls: Int64Array
) -> IdleAfterWaits:
    """Return the idle time that belongs to waits of the CPU, as the module describes.

    Args:
        gpu_events: the GPU events.
        scope: the scope of the tracks, streams or devices.
        idle: all idle time of the tracks.
        calls: the rows of the calls that wait for the GPU, by thread and start.
    """
    length = np.zeros(len(idle.start), dtype=np.int64)
    call = np.full(len(idle.start), NONE, dtype=np.int64)
    thread_of_call = gpu_events.trace.thread[calls]
    may_follow = idle.is_late & np.isin(idle.thread, thread_of_call)
    candidates = np.flatnonzero(may_follow)
    track_of_candidate = idle.track[candidates]
    for track in np.unique(track_of_candidate).tolist():
        idle_of_track = candidates[track_of_candidate == track]
        queue = _queue_of_track(gpu_events, scope, track)
        busy = _busy_times(gpu_events, scope, track)
        kernels = _busy_times(gpu_events, scope, track, only_kernels=True)
        thread_of_idle = idle.thread[idle_of_track]
        for thread in np.unique(thread_of_idle).tolist():
            idle_of_thread = idle_of_track[thread_of_idle == thread]
            catching_up = _CatchingUp(
                waits=_waits_of_thread(gpu_events, calls[thread_of_call == thread]),
                queue=queue,
                busy=busy,
                kernels=kernels,
                last_launch=_last_launch(gpu_events, thread),
            )
            after_waits = catching_up.parts_after_waits(
                idle.start[idle_of_thread], idle.end[idle_of_thread]
            )
            length[idle_of_thread] = after_waits.length
            call[idle_of_thread] = after_waits.call
    return IdleAfterWaits(length, call)


def _waits_of_thread(gpu_events: GpuEvents, calls: Int64Array) -> _Waits:
    """Return the waits of a thread: its calls, by start, that are not within other calls."""
    trace = gpu_events.trace
    latest_end = np.maximum.accumulate(trace.end_of(calls))
    end_before = np.append(0, latest_end)[:-1]
    is_outermost = trace.ts[calls] >= end_before
    rows = calls[is_outermost]
    start = trace.ts[rows]
    end = trace.end_of(rows)
    return _Waits(row=rows, start=start, end=end)


def _last_launch(gpu_events: GpuEvents, thread: int) -> int:
    """Return the end of the last launch of a thread, ns since the trace's first event."""
    launches = gpu_events.tree.launch_of_gpu[gpu_events.tree.linked]
    launches_of_thread = launches[gpu_events.trace.thread[launches] == thread]
    return int(gpu_events.trace.end_of(launches_of_thread).max(initial=0))


class _Queue(NamedTuple):
    """The q events that were launched on a track, by the time of the launch."""

    launch_time: Int64Array  #: when each event was launched, ns since the trace's first event, (q,)
    #: when the event and all events launched before it have ended, ns, (q,)
    done: Int64Array

    def length_at(self, time: Int64Array) -> Int64Array:
        """Return how long the GPU still works on the events launched before each time, ns."""
        last_launched = np.searchsorted(self.launch_time, time, side="left") - 1
        remaining: Int64Array = values_at(self.done, last_launched, missing=0) - time
        return remaining.clip(0)


def _queue_of_track(gpu_events: GpuEvents, scope: Scope, track: int) -> _Queue:
    """Return the events that were launched on a track."""
    is_on_track = find_tracks(gpu_events, scope).of_gpu == track
    events = np.flatnonzero(is_on_track & gpu_events.tree.linked)
    launch = gpu_events.tree.launch_of_gpu[events]
    launch_time = gpu_events.trace.ts[launch]
    order = np.argsort(launch_time, kind="stable")
    end = gpu_events.end[events[order]]
    done = np.maximum.accumulate(end)
    return _Queue(launch_time=launch_time[order], done=done)


def _busy_times(
    gpu_events: GpuEvents, scope: Scope, track: int, *, only_kernels: bool = False
) -> DisjointIntervals:
    """Return the times when a track runs GPU events, or only those when it runs kernels."""
    is_chosen = find_tracks(gpu_events, scope).of_gpu == track
    if only_kernels:
        is_chosen &= gpu_events.is_kernel
    return union(gpu_events.start[is_chosen], gpu_events.end[is_chosen])


class _LargeDebts(NamedTuple):
    """The l waits that leave the CPU behind; those with much smaller debts are left out."""

    wait: Int64Array  #: indices of the waits, ascending, (l,)
    #: the CPU is ahead again before the next of these waits, (l,)
    catches_up: BoolArray


@dataclass(frozen=True, eq=False)
class _CatchingUp:
    """A thread that catches up with a track after its waits.

    The CPU owes the GPU the time that it waited: the debt of the wait. The idle time after the wait
    pays the debt, until it is paid or the CPU is ahead again. An epoch is the time from one moment
    when the CPU was ahead to the next.

    Attributes:
        waits: the w waits of the thread.
        queue: the events that were launched on the track.
        busy: the times when the track runs GPU events.
        kernels: the times when the track runs kernels.
        last_launch: the end of the last launch of the thread, ns since the trace's first event.
    """

    waits: _Waits
    queue: _Queue
    busy: DisjointIntervals
    kernels: DisjointIntervals
    last_launch: int

    def parts_after_waits(self, start: Int64Array, end: Int64Array) -> IdleAfterWaits:
        """Return the parts of intervals of idle time that belong to the waits.

        Args:
            start: the ascending starts of the intervals, ns, (p,).
            end: the end of each interval, ns, (p,).
        """
        debt = self._debt()
        if not debt.any():
            nothing = np.zeros(len(start), dtype=np.int64)
            return IdleAfterWaits(length=nothing, call=np.full_like(nothing, NONE))
        ahead_times = self._times_when_ahead()
        epoch_of_wait = np.searchsorted(ahead_times, self.waits.end, side="right")
        large_debts = _find_large_debts(debt, epoch_of_wait, len(ahead_times))

        # The last wait with a large debt before each interval counts if it is in the same epoch.
        end_of_wait = self.waits.end[large_debts.wait]
        last_ended = np.searchsorted(end_of_wait, start, side="right") - 1
        wait = values_at(large_debts.wait, last_ended)
        epoch = np.searchsorted(ahead_times, start, side="right")
        is_behind = (wait != NONE) & (values_at(epoch_of_wait, wait) == epoch)

        length = np.where(is_behind, end - start, 0)
        length = self._without_phases(length, wait, start)
        debt = self._limited_debt(debt, large_debts, wait, length)

        # Each interval pays what the earlier intervals of its wait have left of the debt. The waits
        # ascend, so a search for each wait among them finds the first interval of the same wait.
        length_before = np.cumsum(length) - length
        first_interval_of_wait = np.searchsorted(wait, wait)
        paid_before = length_before - length_before[first_interval_of_wait]
        remaining_debt = values_at(debt, wait, missing=0) - paid_before
        paid = np.clip(remaining_debt, 0, length)
        row = values_at(self.waits.row, wait)
        return IdleAfterWaits(paid, np.where(paid > 0, row, NONE))

    def _debt(self) -> Int64Array:
        """Return the idle time that may belong to each wait, ns, (w,).

        It is the time of kernels during the wait: at this time, the CPU could have worked. Copies
        do not count, because the wait for a copy is the time of the copy itself. A wait that did
        not drain the queue has no debt.
        """
        waits = self.waits
        kernels_during_wait = covered(
            start=self.kernels.start,
            end=self.kernels.end,
            window_start=waits.start,
            window_end=waits.end,
        )
        has_drained = self.queue.length_at(waits.end) <= self._queue_when_ahead()
        return np.where(has_drained, kernels_during_wait, 0)

    def _queue_when_ahead(self) -> Int64Array:
        """Return the length of the queue above which the CPU is ahead after each wait, ns, (w,)."""
        return (_AHEAD_SHARE * self.waits.duration).astype(np.int64)

    def _times_when_ahead(self) -> Int64Array:
        """Return the times of launches before which the CPU was ahead of the GPU, ns, ascending."""
        launch_time = self.queue.launch_time
        last_wait = self.waits.last_ended(launch_time)
        min_queue = values_at(self._queue_when_ahead(), last_wait, missing=0)
        return launch_time[self.queue.length_at(launch_time) > min_queue]

    def _without_phases(
        self, length: Int64Array, wait: Int64Array, start: Int64Array
    ) -> Int64Array:
        """Return the length of intervals, 0 for those in which the CPU does something else.

        A phase that directly follows a wait keeps its length, unless there are many of them.

        Args:
            length: the length of each interval, ns, (p,).
            wait: the wait before each interval, `NONE` without one, (p,).
            start: the start of each interval, ns, (p,).
        """
        is_phase = length >= _PHASE_NS
        is_later_phase = is_phase & self._has_launched(wait, start)
        phases_after_waits = np.count_nonzero(is_phase & ~is_later_phase)
        if phases_after_waits > _MAX_PHASES_OF_WAITS:
            return np.where(is_phase, 0, length)
        return np.where(is_later_phase, 0, length)

    def _has_launched(self, wait: Int64Array, time: Int64Array) -> BoolArray:
        """Return whether an event was launched between the end of each wait and a time."""
        wait_end = values_at(self.waits.end, wait)
        launch_time = self.queue.launch_time
        launches_before_end = np.searchsorted(launch_time, wait_end, side="left")
        launches_before_time = np.searchsorted(launch_time, time, side="left")
        has_launched: BoolArray = launches_before_time > launches_before_end
        return has_launched

    def _limited_debt(
        self,
        debt: Int64Array,
        large_debts: _LargeDebts,
        wait: Int64Array,
        length: Int64Array,
    ) -> Int64Array:
        """Return the debts without the idle time that the GPU would have even without the waits.

        Args:
            debt: the debt of each wait, ns, (w,).
            large_debts: the waits with large debts.
            wait: the wait before each interval of idle time, `NONE` without one, (p,).
            length: the length of each interval that may belong to its wait, ns, (p,).
        """
        # `NONE` is -1, so group 0 has the intervals without a wait, and is left out.
        idle_after_wait = grouping.sums(
            group_index=wait + 1, values=length, group_count=len(debt) + 1
        )[1:]
        lack = self._lack_without_waits(large_debts)
        limit = np.maximum(idle_after_wait[large_debts.wait] - lack, 0)
        limited = debt.copy()
        limited[large_debts.wait] = np.minimum(debt[large_debts.wait], limit)
        return limited

    def _lack_without_waits(self, large_debts: _LargeDebts) -> Int64Array:
        """Return how long the GPU would be idle after each large debt without waits, ns, (l,).

        It is the time by which the CPU needs longer than the GPU until the next wait, or 0 if the
        CPU catches up before the next wait. After the last wait, the CPU is assumed to catch up if
        it does so after most of the other waits. If there are no other waits and the CPU needs
        longer, the lack is unlimited, so no idle time belongs to the wait.
        """
        wait = large_debts.wait
        begin = self.waits.end[wait]
        # When the next wait starts, the CPU has launched all of this work, and when that wait ends,
        # the GPU has run it. For the last wait, the last launch and the end of all work count.
        next_start = np.append(self.waits.start[wait[1:]], self.last_launch)
        next_end = np.append(self.waits.end[wait[1:]], self.queue.done[-1:])
        cpu_time = next_start - begin
        gpu_time = covered(
            start=self.busy.start,
            end=self.busy.end,
            window_start=begin,
            window_end=np.maximum(next_end, begin),
        )
        lack: Int64Array = np.maximum(cpu_time - gpu_time, 0)
        lack[large_debts.catches_up] = 0
        if len(wait) == 1 and lack[0] > 0:
            lack[0] = _UNLIMITED_NS
        elif 2 * int((lack[:-1] == 0).sum()) > len(wait) - 1:
            lack[-1:] = 0
        return lack


def _find_large_debts(
    debt: Int64Array, epoch_of_wait: Int64Array, last_epoch: int
) -> _LargeDebts:
    """Return the waits whose debt is not much smaller than that of earlier waits in their epoch.

    Args:
        debt: the debt of each wait, ns, (w,).
        epoch_of_wait: the epoch of each wait, ascending, (w,).
        last_epoch: the epoch after the last time when the CPU was ahead.
    """
    largest_so_far = sorted_groups.running_maximum(epoch_of_wait, debt).value
    is_large = (debt > 0) & (debt >= _MIN_SHARE_OF_LARGEST_DEBT * largest_so_far)
    wait = np.flatnonzero(is_large)
    next_epoch = np.append(epoch_of_wait[wait[1:]], last_epoch)
    return _LargeDebts(wait=wait, catches_up=next_epoch > epoch_of_wait[wait])
