"""The clocks of the host: threads that take turns share one, and waiting is no part of its time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import union
from tracelens_ext.trace import HOST_KINDS, LAUNCH_KINDS, NONE, EventKind
from tracelens_ext.work.group_search import by_group_and_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import Int64Array, Trace

#: Calls that the program waits in, or that the GPU waits for; others are time of the host.
_TELLING = re.compile(
    r"(?:cuda|hip|cu)(?:\w*Launch|Mem(?:cpy|set)|\w*Synchronize|StreamWaitEvent|EventRecord)"
)

#: Intervals of host time, and what their length is multiplied by.
Scaled = tuple["Int64Array", "Int64Array", float]


@dataclass(frozen=True, eq=False)
class Clocks:
    """Which clock each thread goes by, k clocks of t threads."""

    of_thread: Int64Array  #: `NONE` for a thread without calls, (t,)
    end: Int64Array  #: the last end of the calls of each, (k,)

    def __len__(self) -> int:
        return len(self.end)


def telling_calls(trace: Trace) -> Int64Array:
    """The calls that launch, wait or are waited for, in file order."""
    rows = trace.rows_of(*LAUNCH_KINDS)
    return rows[trace.names_matching(_TELLING.match)[trace.name[rows]]]


def find_clocks(trace: Trace, window: tuple[int, int]) -> Clocks:
    """Give each thread that calls the runtime a clock.

    A thread joins the clock of another where all that it records falls in pauses of that one: it
    was handed the work, as autograd's thread is. What records beside another keeps its own clock.
    """
    start, end = window
    rows = trace.rows_of(*HOST_KINDS)
    rows = rows[(trace.ts[rows] < end) & (trace.end_of(rows) > start)]
    kind, thread = trace.kind[rows], trace.thread[rows]
    is_call = np.isin(rows, telling_calls(trace))
    told = is_call | (kind == EventKind.CPU_OP)
    calls = np.bincount(thread[is_call], minlength=len(trace.threads))
    of_thread = np.full(len(trace.threads), NONE, dtype=np.int64)
    busy: list[list[tuple[Int64Array, Int64Array]]] = []  # of each clock: calls, and all points
    for number in np.argsort(-calls, kind="stable")[: np.count_nonzero(calls)].tolist():
        mine, called = (rows[which & (thread == number)] for which in (told, is_call))
        intervals = union(trace.ts[mine], trace.end_of(mine))
        points = np.sort(np.concatenate((trace.ts[mine], trace.end_of(mine))))
        in_calls = union(trace.ts[called], trace.end_of(called))
        process = trace.process_of_thread[number]
        same = [c for c in np.unique(of_thread[trace.process_of_thread == process]) if c != NONE]
        joined = next((c for c in same if _fits(*intervals, *busy[c])), len(busy))
        of_thread[number] = joined
        if joined == len(busy):
            busy.append([in_calls, (points, points)])
        else:
            both = [np.concatenate(pair) for pair in zip(busy[joined][0], in_calls, strict=True)]
            points = np.sort(np.concatenate((busy[joined][1][0], points)))
            busy[joined] = [union(both[0], both[1]), (points, points)]
    last = np.zeros(len(busy), dtype=np.int64)
    np.maximum.at(last, of_thread[thread[is_call]], np.minimum(trace.end_of(rows[is_call]), end))
    return Clocks(of_thread, last)


def _fits(
    start: Int64Array,
    end: Int64Array,
    calls: tuple[Int64Array, Int64Array],
    points: tuple[Int64Array, Int64Array],
) -> bool:
    """Whether intervals lie where a clock's threads record nothing and are in no call."""
    alone = np.searchsorted(points[0], start, "right") == np.searchsorted(points[0], end, "left")
    at = np.searchsorted(calls[0], start, "right") - 1
    return bool(np.all(alone & ((at < 0) | (calls[1][np.maximum(at, 0)] <= start))))


class HostTime:
    """How long the host needs from one moment to another when some of its time is scaled.

    Args:
        scaled: intervals by clock; where several overlap, each multiplies.
        frozen: intervals that stay as recorded, ascending and apart.
    """

    def __init__(
        self, scaled: Sequence[Sequence[Scaled]], frozen: tuple[Int64Array, Int64Array]
    ) -> None:
        self._curves = [_curve(of_clock, frozen) if of_clock else None for of_clock in scaled]

    def between(self, clock: Int64Array, begin: Int64Array, end: Int64Array) -> Int64Array:
        """From a moment to a later one on a clock each, ns."""
        length = end - begin
        for number, curve in enumerate(self._curves):
            if curve is not None:
                those = np.flatnonzero(clock == number)
                at_end, at_begin = (
                    np.rint(np.interp(t[those], *curve)).astype(np.int64) for t in (end, begin)
                )
                length[those] = at_end - at_begin
        return length


def _curve(
    scaled: Sequence[Scaled], frozen: tuple[Int64Array, Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """Recorded moments, and the host time that has passed until each."""
    pieces = [union(start, end) for start, end, _ in scaled]
    edges = np.unique(np.concatenate([np.concatenate(p) for p in (*pieces, frozen)] + [[0]]))
    factor = np.ones(len(edges))
    for (start, end), (_, _, times) in zip(pieces, scaled, strict=True):
        factor[_inside(edges, start, end)] *= times
    factor[_inside(edges, *frozen)] = 1.0
    passed = np.concatenate(([0.0], np.cumsum(np.diff(edges) * factor[:-1])))
    far = np.int64(2**62)
    return np.append(edges, far), np.append(passed, passed[-1] + (far - edges[-1]))


def _inside(moments: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Which moments lie in intervals that are ascending and apart, their starts included."""
    at = np.searchsorted(start, moments, "right") - 1
    return np.flatnonzero((at >= 0) & (moments < end[np.maximum(at, 0)])) if len(start) else at[:0]


def in_order(rows: Int64Array, trace: Trace) -> Int64Array:
    """Host events by thread and start."""
    return rows[by_group_and_time(trace.thread[rows], trace.ts[rows])]
