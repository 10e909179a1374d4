"""Idle time after the CPU waited for the GPU until that had nothing left to do.

    CPU   launches ── waits ──────────┐ launches   launches   launches …
    GPU   ── works ───────────────── E  idle works  idle works  works works …

When such a wait returns, the queue of the GPU is empty and the CPU is behind. Until it is ahead
again, the GPU idles before each launch. Without the wait the CPU would have launched earlier by as
long as it waited: so much idle time belongs to the wait. But where the CPU needs more time between
two waits than the GPU, the GPU would idle for the difference without waits, too. A millisecond or
more without any launch is a phase of the CPU. Right after a wait it would have run beside the work
that was waited for; later on it has nothing to do with the wait. Many such phases are pauses of
the program.
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
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at

#: The CPU is ahead again when work waits in the queue for this share of the wait.
_AHEAD_SHARE = 0.5
#: A wait counts if it is no shorter than this share of those before it since the CPU was ahead.
_LONG_SHARE = 0.5
#: Who launches nothing for so long does not catch up, but works on something else.
_PHASE_NS = 1_000_000
#: So many phases after waits, and more, are pauses of the program.
_MOST_PHASES_OF_WAITS = 3
_ALL_OF_IT = np.iinfo(np.int64).max // 2


class IdleTime(NamedTuple):
    """Intervals of idle time by track and time, p of them."""

    start: Int64Array  #: ns since the trace's first event, (p,)
    end: Int64Array  #: ns since the trace's first event, (p,)
    track: IntArray  #: an index, (p,)
    thread: IntArray  #: the thread that launched what ended the idle time, `NONE` if unknown, (p,)
    is_late: BoolArray  #: True where the GPU waits for that launch, or for it to take effect, (p,)


class IdleAfterWaits(NamedTuple):
    """What of p intervals of idle time belongs to waits."""

    length: Int64Array  #: so much from the beginning of each interval, ns, (p,)
    call: Int64Array  #: row of the call that waited, `NONE` where nothing belongs to one, (p,)


class _Waits(NamedTuple):
    """The waits of a thread by time, which are apart, w of them."""

    row: Int64Array  #: the call, (w,)
    start: Int64Array  #: ns since the trace's first event, (w,)
    end: Int64Array  #: ns since the trace's first event, (w,)

    @property
    def duration(self) -> Int64Array:
        """The length of each wait, ns, (w,)."""
        return self.end - self.start

    def last_before(self, time: Int64Array) -> Int64Array:
        """Return the last wait that has ended by some times, `NONE` (-1) without one."""
        return np.searchsorted(self.end, time, side="right") - 1


def idle_after_waits(
    work: GpuEvents, scope: Scope, idle: IdleTime, calls: Int64Array
) -> IdleAfterWaits:
    """Return which idle time belongs to waits of the CPU; see the module.

    Args:
        work: the GPU events.
        scope: of which the tracks are.
        idle: all idle time of the tracks.
        calls: rows of the calls that wait for the GPU, by thread and start.
    """
    length = np.zeros(len(idle.start), dtype=np.int64)
    call = np.full(len(idle.start), NONE, dtype=np.int64)
    thread_of_call = work.trace.thread[calls]
    may_follow = idle.is_late & np.isin(idle.thread, thread_of_call)
    candidates = np.flatnonzero(may_follow)
    track_of_candidate = idle.track[candidates]
    for track in np.unique(track_of_candidate).tolist():
        idle_of_track = candidates[track_of_candidate == track]
        queue = _queue(work, scope, track)
        busy = _busy_times(work, scope, track)
        kernels = _busy_times(work, scope, track, only_kernels=True)
        thread_of_idle = idle.thread[idle_of_track]
        for thread in np.unique(thread_of_idle).tolist():
            late = idle_of_track[thread_of_idle == thread]
            catching_up = _CatchingUp(
                waits=_waits_of_thread(work, calls[thread_of_call == thread]),
                queue=queue,
                busy=busy,
                kernels=kernels,
                last_launch=_last_launch(work, thread),
            )
            after_waits = catching_up.belonging(idle.start[late], idle.end[late])
            length[late] = after_waits.length
            call[late] = after_waits.call
    return IdleAfterWaits(length, call)


def _waits_of_thread(work: GpuEvents, calls: Int64Array) -> _Waits:
    """Return calls of a thread that are not inside of others."""
    trace = work.trace
    latest_end = np.maximum.accumulate(trace.end_of(calls))
    end_before = np.append(0, latest_end)[:-1]
    is_outermost = trace.ts[calls] >= end_before
    rows = calls[is_outermost]
    start = trace.ts[rows]
    end = trace.end_of(rows)
    return _Waits(row=rows, start=start, end=end)


def _last_launch(work: GpuEvents, thread: int) -> int:
    """Return when a thread launched last, ns since the trace's first event."""
    launches = work.tree.launch_of_gpu[work.tree.linked]
    of_thread = launches[work.trace.thread[launches] == thread]
    return int(work.trace.end_of(of_thread).max(initial=0))


class _Queue(NamedTuple):
    """What was launched on a track, by the time of the launch, q events."""

    launched: Int64Array  #: when, ns since the trace's first event, (q,)
    done: Int64Array  #: when that and all that was launched before has ended, ns, (q,)

    def length_at(self, time: Int64Array) -> Int64Array:
        """Return how long the GPU goes on with what was launched before some times, ns."""
        last = np.searchsorted(self.launched, time, side="left") - 1
        remaining: Int64Array = values_at(self.done, last, missing=0) - time
        return remaining.clip(0)


def _queue(work: GpuEvents, scope: Scope, track: int) -> _Queue:
    """Return what was launched on a track."""
    of_track = find_tracks(work, scope).of_gpu == track
    events = np.flatnonzero(of_track & work.tree.linked)
    launch = work.tree.launch_of_gpu[events]
    launched = work.trace.ts[launch]
    order = np.argsort(launched, kind="stable")
    end = work.end[events[order]]
    done = np.maximum.accumulate(end)
    return _Queue(launched=launched[order], done=done)


class _Times(NamedTuple):
    """Intervals of time, ascending and apart."""

    start: Int64Array  #: ns since the trace's first event
    end: Int64Array  #: ns since the trace's first event

    def between(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return how much of them lies between some times, ns."""
        return self._until(end) - self._until(start)

    def _until(self, time: Int64Array) -> Int64Array:
        length = self.end - self.start
        passed = np.append(0, np.cumsum(length))
        begun = np.searchsorted(self.start, time, side="left")
        last_end = values_at(self.end, begun - 1, missing=0)
        unfinished = last_end - time
        until: Int64Array = passed[begun] - unfinished.clip(0)
        return until


def _busy_times(
    work: GpuEvents, scope: Scope, track: int, *, only_kernels: bool = False
) -> _Times:
    """Return when a track runs anything, or runs kernels."""
    chosen = find_tracks(work, scope).of_gpu == track
    if only_kernels:
        chosen &= work.is_kernel
    busy = union(work.start[chosen], work.end[chosen])
    return _Times(start=busy.start, end=busy.end)


@dataclass(frozen=True, eq=False)
class _CatchingUp:
    """How a thread catches up with a track after its waits.

    Attributes:
        waits: those of the thread, w of them.
        queue: what was launched on the track.
        busy: when the track runs anything.
        kernels: when it runs kernels.
        last_launch: when the thread launched last, ns since the trace's first event.
    """

    waits: _Waits
    queue: _Queue
    busy: _Times
    kernels: _Times
    last_launch: int

    def belonging(self, start: Int64Array, end: Int64Array) -> IdleAfterWaits:
        """Return what of intervals of idle time, by time, belongs to the waits.

        The CPU owes the GPU what it waited. Each interval takes what is left of that debt, which
        ends when the CPU is ahead again.
        """
        debt = self._debt()
        if not debt.any():
            nothing = np.zeros(len(start), dtype=np.int64)
            return IdleAfterWaits(length=nothing, call=np.full_like(nothing, NONE))
        ahead_again = self._ahead_again()
        epoch_of_wait = np.searchsorted(ahead_again, self.waits.end, side="right")
        longest_so_far = sorted_groups.running_maximum(epoch_of_wait, debt).value
        # Short waits on the way change nothing.
        is_long = (debt > 0) & (debt >= _LONG_SHARE * longest_so_far)
        long_waits = np.flatnonzero(is_long)
        last_long = np.searchsorted(self.waits.end[long_waits], start, side="right") - 1
        wait = values_at(long_waits, last_long)
        epoch = np.searchsorted(ahead_again, start, side="right")
        is_behind = (wait != NONE) & (values_at(epoch_of_wait, wait) == epoch)

        length = np.where(is_behind, end - start, 0)
        is_later_phase = (length >= _PHASE_NS) & self._has_launched(wait, start)
        length[is_later_phase] = 0
        phases = np.flatnonzero(length >= _PHASE_NS)
        if len(phases) > _MOST_PHASES_OF_WAITS:
            length[phases] = 0
        late_idle = grouping.sums(
            group_index=wait + 1, values=length, group_count=len(debt) + 1
        )[1:]
        next_epoch = np.append(epoch_of_wait[long_waits[1:]], len(ahead_again))
        catches_up = next_epoch > epoch_of_wait[long_waits]
        lack = self._lack_without_waits(long_waits, catches_up)
        limit = np.maximum(late_idle[long_waits] - lack, 0)
        debt[long_waits] = np.minimum(debt[long_waits], limit)

        taken_before = np.cumsum(length) - length
        taken_before = taken_before - taken_before[np.searchsorted(wait, wait)]
        debt_left = values_at(debt, wait, missing=0) - taken_before
        taken = np.clip(debt_left, 0, length)
        row = values_at(self.waits.row, wait)
        return IdleAfterWaits(taken, np.where(taken > 0, row, NONE))

    def _has_launched(self, wait: Int64Array, time: Int64Array) -> BoolArray:
        """Tell whether anything was launched between the ends of waits and some times."""
        wait_end = values_at(self.waits.end, wait)
        launched = self.queue.launched
        before_end = np.searchsorted(launched, wait_end, side="left")
        before_time = np.searchsorted(launched, time, side="left")
        has_launched: BoolArray = before_time > before_end
        return has_launched

    def _enough(self) -> Int64Array:
        """Return how much queued work keeps the CPU ahead after each wait, ns, (w,)."""
        return (_AHEAD_SHARE * self.waits.duration).astype(np.int64)

    def _ahead_again(self) -> Int64Array:
        """Return when launches found the CPU ahead of the GPU, ns, ascending."""
        launched = self.queue.launched
        enough = values_at(self._enough(), self.waits.last_before(launched), missing=0)
        return launched[self.queue.length_at(launched) > enough]

    def _debt(self) -> Int64Array:
        """Return how much idle time may belong to each wait, ns, (w,).

        That is how long kernels ran meanwhile: with them the CPU could have worked at a time. What
        it waits for copies is the copies' time.
        """
        waits = self.waits
        kernels_meanwhile = self.kernels.between(waits.start, waits.end)
        has_drained = self.queue.length_at(waits.end) <= self._enough()
        return np.where(has_drained, kernels_meanwhile, 0)

    def _lack_without_waits(
        self, wait: Int64Array, catches_up: BoolArray
    ) -> Int64Array:
        """Return how long the GPU would idle after some waits if there were none, ns.

        By so much the CPU needs more time than the GPU until the next wait, unless it catches up
        with the GPU before. After the last wait it is taken to do as after most of the others;
        where there are no others and it needs more time, the wait explains nothing.
        """
        begin = self.waits.end[wait]
        next_start = np.append(self.waits.start[wait[1:]], self.last_launch)
        next_end = np.append(self.waits.end[wait[1:]], self.queue.done[-1:])
        cpu_time = next_start - begin
        gpu_time = self.busy.between(begin, np.maximum(next_end, begin))
        lack: Int64Array = np.maximum(cpu_time - gpu_time, 0)
        lack[catches_up] = 0
        if len(wait) == 1 and lack[0] > 0:
            lack[0] = _ALL_OF_IT
        elif 2 * int((lack[:-1] == 0).sum()) > len(wait) - 1:
            lack[-1:] = 0
        return lack
