"""The wall time of a trace, of which each nanosecond is claimed by one finding at most.

It runs from the first start of GPU work to its last end. While no GPU event runs it is idle, and
belongs to the gap of the device whose next event ends it. While GPU events run it is busy, and a
finding claims it only if all events that run there are its own: work beside other work, on another
stream or another device, is hidden, and removing it saves nothing.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.gaps.causes import (
    DEPENDENCY,
    HOST,
    LAUNCH_OVERHEAD,
    usual_launch_latency,
)
from tracelens_ext.gaps.classified import classify_gaps
from tracelens_ext.intervals import covered, union
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Float64Array, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass(frozen=True, eq=False)
class Claim:
    """Wall time that a finding claims: of some gaps and of some GPU events."""

    gaps: Int64Array  #: indices into the gaps of the devices, (i,)
    gap_ns: Int64Array  #: idle time claimed of each, (i,)
    events: Int64Array  #: indices of GPU events, (j,)
    event_ns: Float64Array  #: busy time claimed of each, (j,)

    @property
    def saving_ns(self) -> float:
        """All of it."""
        return float(self.gap_ns.sum() + self.event_ns.sum())

    def __add__(self, other: Claim) -> Claim:
        """Both claims, which have nothing in common."""
        return Claim(
            np.concatenate((self.gaps, other.gaps)),
            np.concatenate((self.gap_ns, other.gap_ns)),
            np.concatenate((self.events, other.events)),
            np.concatenate((self.event_ns, other.event_ns)),
        )


_NO_INDEX = np.empty(0, dtype=np.int64)
_NO_TIME = np.empty(0, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Stretches of idle time, ascending and apart, p of them."""

    start: Int64Array
    end: Int64Array
    gap: Int64Array  #: the gap that each is a part of

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, which: BoolArray) -> _Pieces:
        return _Pieces(self.start[which], self.end[which], self.gap[which])

    def joined(self, other: _Pieces) -> _Pieces:
        start = np.concatenate((self.start, other.start))
        order = np.argsort(start, kind="stable")
        end, gap = (np.concatenate((a, b))[order] for a, b in _pairs(self, other))
        return _Pieces(start[order], end, gap)

    def cut(self, first: Int64Array, last: Int64Array) -> tuple[_Pieces, _Pieces]:
        """What lies inside some windows, which are ascending and apart, and what outside."""
        if not len(first):
            return self.chosen(np.zeros(len(self), dtype=bool)), self
        begin = np.searchsorted(last, self.start, side="right")
        count = np.maximum(np.searchsorted(first, self.end, side="left") - begin, 0)
        inside = self._repeated(count)
        window = _numbered(begin, count)
        inside = _Pieces(
            np.maximum(inside.start, first[window]),
            np.minimum(inside.end, last[window]),
            inside.gap,
        )
        outside = self._repeated(count + 1)
        after = _numbered(begin, count + 1)  # the window that follows each part
        leads = np.zeros(len(outside), dtype=bool)
        ends = np.cumsum(count + 1)
        leads[ends - count - 1] = True
        trails = np.zeros(len(outside), dtype=bool)
        trails[ends - 1] = True
        start = np.where(leads, outside.start, last[np.maximum(after - 1, 0)])
        end = np.where(trails, outside.end, first[np.minimum(after, len(first) - 1)])
        outside = _Pieces(start, end, outside.gap)
        return inside.chosen(inside.end > inside.start), outside.chosen(end > start)

    def _repeated(self, count: Int64Array) -> _Pieces:
        return _Pieces(*(np.repeat(column, count) for column in (self.start, self.end, self.gap)))


def _pairs(one: _Pieces, other: _Pieces) -> list[tuple[Int64Array, Int64Array]]:
    return [(one.end, other.end), (one.gap, other.gap)]


def _numbered(begin: Int64Array, count: Int64Array) -> Int64Array:
    """`begin[i]`, `begin[i] + 1` … of each i, `count[i]` numbers."""
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(begin, count) + within


class WallTime:
    """The wall time of a trace, and who claims it.

    Args:
        work: the GPU events, g of them, at least one.

    Attributes:
        start: the first start of GPU work, ns since the trace's first event.
        end: its last end.
        classified: the gaps of the devices with their causes, k of them.
        free: which GPU events no finding has claimed, (g,).
        claimed_of_gap: ns claimed so far of each gap, (k,).
        claimed_of_event: ns claimed so far of each GPU event, (g,).
    """

    def __init__(self, work: GpuWork) -> None:
        self.work = work
        self.start, self.end = int(work.start.min()), int(work.end.max())
        self.classified = classify_gaps(work, "device")
        self.free = np.ones(len(work), dtype=bool)
        self.claimed_of_gap = np.zeros(len(self.classified), dtype=np.int64)
        self.claimed_of_event = np.zeros(len(work), dtype=np.float64)
        self._idle = self._idle_pieces()

    @property
    def total_ns(self) -> int:
        """Length of the wall time."""
        return self.end - self.start

    @property
    def claimed_ns(self) -> float:
        """All that is claimed so far."""
        return float(self.claimed_of_gap.sum() + self.claimed_of_event.sum())

    def copy(self) -> WallTime:
        """The same claims; further ones on either do not concern the other."""
        result = copy(self)
        result.free, result.claimed_of_gap = self.free.copy(), self.claimed_of_gap.copy()
        result.claimed_of_event = self.claimed_of_event.copy()
        return result

    def _idle_pieces(self) -> _Pieces:
        """When nothing runs on any device."""
        gaps = self.classified.gaps
        first, last = self._busy
        at = np.searchsorted(first, gaps.end, side="left") - 1  # the stretch of work before
        start = np.maximum(gaps.start, last[at])
        ends_it = first[np.minimum(at + 1, len(first) - 1)] == gaps.end
        number = np.flatnonzero(ends_it & (start < gaps.end))
        order = number[np.argsort(gaps.end[number], kind="stable")]
        # Events of two devices that start together end one stretch of idle time.
        order = order[np.diff(gaps.end[order], prepend=-1) > 0]
        return _Pieces(start[order], gaps.end[order], order)

    @cached_property
    def _busy(self) -> tuple[Int64Array, Int64Array]:
        """The stretches of time in which anything runs."""
        return union(self.work.start, self.work.end)

    @cached_property
    def waits_for_host(self) -> BoolArray:
        """Whether the GPU may wait for the host in each gap, (k,).

        Not for other work, nor because of what starting queued work takes, whatever the host does.
        While a whole device is idle, a stream that was told to wait does so for no work of it, but
        for as long as it takes to see that it is done.
        """
        cause = self.classified.cause
        short = self.classified.gaps.duration <= usual_launch_latency(self.work)
        waits: BoolArray = (cause != LAUNCH_OVERHEAD) & ((cause != DEPENDENCY) | ~short)
        return waits

    @cached_property
    def threads_of_gap(self) -> tuple[Int64Array, Int64Array]:
        """The host threads that each gap may wait for, both (k,).

        The one that launched what ended the gap; and where that was before the gap, or nobody
        knows, the one that launched next, or last. `NONE` where unknown.
        """
        trace, launch = self.work.trace, self.classified.launch
        launched = np.where(launch != NONE, trace.thread[np.maximum(launch, 0)], NONE)
        rows = self._launches
        if not len(rows):
            return launched, launched
        begun = self.classified.gaps.start
        at = np.minimum(np.searchsorted(trace.ts[rows], begun), len(rows) - 1)
        later = (launch != NONE) & (trace.ts[np.maximum(launch, 0)] >= begun)
        return launched, np.where(later, launched, trace.thread[rows[at]])

    @cached_property
    def nothing_launched(self) -> BoolArray:
        """Whether the host launched nothing in the first half of each gap, or longer, (k,)."""
        gaps, begun = self.classified.gaps, self.work.trace.ts[self._launches]
        middle = gaps.start + gaps.duration // 2
        result: BoolArray = np.searchsorted(begun, gaps.start) == np.searchsorted(begun, middle)
        return result & bool(len(begun))

    @cached_property
    def _launches(self) -> Int64Array:
        """Rows of the calls that started GPU work, by time."""
        rows = self.work.tree.launch_of_gpu[self.work.tree.linked]
        return rows[np.argsort(self.work.trace.ts[rows], kind="stable")]

    @cached_property
    def gpu_limited(self) -> BoolArray:
        """Whether time saved in each GPU event is wall time saved, (g,).

        It is not where the stretch of work around it is followed by a gap because of the host,
        which would come as late as it did: there the gap would grow.
        """
        classified = self.classified
        late = np.sort(classified.gaps.start[classified.cause == HOST])
        other = np.sort(classified.gaps.start[classified.cause != HOST])
        end = self.work.end
        never = np.iinfo(np.int64).max
        next_late, next_other = (
            np.append(begins, never)[np.searchsorted(begins, end, side="left")]
            for begins in (late, other)
        )
        result: BoolArray = (next_other < next_late) | (next_late == never)
        return result

    # Idle time.

    def claim_idle_during(self, rows: Int64Array) -> Claim:
        """Claim the idle time during which the launching thread was in one of some host events."""
        trace = self.work.trace
        thread = trace.thread[rows]
        start, end = trace.ts[rows], trace.end_of(rows)
        launched, following = self.threads_of_gap
        claimed = self._idle.chosen(np.zeros(len(self._idle), dtype=bool))
        left = self._idle
        for number in np.unique(thread).tolist():
            mine = thread == number
            asked = self.waits_for_host[left.gap]
            asked &= (launched[left.gap] == number) | (following[left.gap] == number)
            inside, outside = left.chosen(asked).cut(*union(start[mine], end[mine]))
            claimed, left = claimed.joined(inside), left.chosen(~asked).joined(outside)
        self._idle = left
        return self._idle_claim(claimed)

    def claim_idle_up_to(self, limit: Int64Array) -> Claim:
        """Claim idle time of each gap from its beginning, up to a limit.

        Args:
            limit: ns, at least 0, (k,).
        """
        idle = self._idle
        length = idle.end - idle.start
        order = np.lexsort((idle.start, idle.gap))
        gap, ordered = idle.gap[order], length[order]
        before = np.cumsum(ordered) - ordered
        if len(gap):  # of the same gap only
            first = np.searchsorted(gap, gap, side="left")
            before -= before[first]
        take = np.empty(len(idle), dtype=np.int64)
        take[order] = np.clip(limit[gap] - before, 0, ordered)
        middle = idle.start + take
        claimed = _Pieces(idle.start, middle, idle.gap).chosen(take > 0)
        self._idle = _Pieces(middle, idle.end, idle.gap).chosen(take < length)
        return self._idle_claim(claimed)

    def left_of_gaps(self) -> Int64Array:
        """The idle time of each gap that nobody has claimed, ns, (k,)."""
        length = self._idle.end - self._idle.start
        result = np.zeros(len(self.classified), dtype=np.int64)
        np.add.at(result, self._idle.gap, length)
        return result

    def claimed_idle_within(self, start: Int64Array, end: Int64Array) -> Float64Array:
        """The claimed idle time within some windows, ns; that of a gap counts as spread over it."""
        pieces = self._idle_pieces()
        if not len(pieces):
            return np.zeros(len(start))
        claimed = np.cumsum(self.claimed_of_gap[pieces.gap])
        edges = np.column_stack((pieces.start, pieces.end)).ravel()
        grown = np.column_stack((np.append(0, claimed[:-1]), claimed)).ravel()
        within: Float64Array = np.interp(end, edges, grown) - np.interp(start, edges, grown)
        return within

    def _idle_claim(self, pieces: _Pieces) -> Claim:
        ns = np.zeros(len(self.classified), dtype=np.int64)
        np.add.at(ns, pieces.gap, pieces.end - pieces.start)
        self.claimed_of_gap += ns
        gaps = np.flatnonzero(ns)
        return Claim(gaps, ns[gaps], _NO_INDEX, _NO_TIME)

    # Busy time.

    def alone(self, which: BoolArray, hiding: BoolArray | None = None) -> Int64Array:
        """How long each of some GPU events runs without any other beside it, ns, (g,).

        Time during which several of them run belongs to the one that starts first.

        Args:
            which: the events, (g,).
            hiding: the events that hide them, all others by default, (g,).
        """
        start, end = self.work.start, self.work.end
        result = np.zeros(len(self.work), dtype=np.int64)
        chosen = np.flatnonzero(which)
        if not len(chosen):
            return result
        others = ~which if hiding is None else hiding
        order = chosen[np.argsort(start[chosen], kind="stable")]
        reach = np.maximum.accumulate(end[order])
        begins = start[order].copy()
        begins[1:] = np.maximum(begins[1:], reach[:-1])
        begins = np.minimum(begins, end[order])
        hidden = covered(start[others], end[others], begins, end[order])
        result[order] = end[order] - begins - hidden
        return result

    def claim_events(
        self,
        which: BoolArray,
        share: Float64Array | float = 1.0,
        *,
        hiding: BoolArray | None = None,
    ) -> Claim:
        """Claim the time of GPU events that nobody has claimed, as far as it is not hidden.

        Args:
            which: the events, (g,). No other finding claims them after that.
            share: the share of its time that each would save, 0 to 1, (g,) or one for all.
            hiding: see `alone`.
        """
        which = which & self.free
        time = self.alone(which, hiding) * np.clip(share, 0.0, 1.0)
        self.free &= ~which
        self.claimed_of_event += time
        events = np.flatnonzero(time)
        return Claim(_NO_INDEX, np.empty(0, dtype=np.int64), events, time[events])
