"""The clocks of the host: threads that take turns share one, and waiting is no part of its time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.intervals import union
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import Int64Array

    #: Intervals of host time, and what their length is multiplied by
    Scaled = tuple[Int64Array, Int64Array, float]

#: Calls that the program waits in, or that the GPU waits for; others are time of the host.
_TELLING: Final = re.compile(
    r"(?:cuda|hip|cu)(?:\w*Launch|Mem(?:cpy|set)|\w*Synchronize|StreamWaitEvent|EventRecord)"
)


@dataclass(frozen=True, eq=False)
class Clocks:
    """Which clock each thread goes by, k clocks of t threads; the first calls most."""

    of_thread: Int64Array  #: `NONE` for a thread without calls, (t,)
    end: Int64Array  #: the last end of the calls of each, since the window's start, (k,)


def telling_calls(trace: Trace) -> Int64Array:
    """The calls that launch, wait or are waited for, in file order."""
    rows = trace.rows_of(*LAUNCH_KINDS)
    return rows[trace.named(trace.name[rows], _TELLING.match)]


#: Threads that may get a clock each; the others, which call least, share the last one.
_MOST_THREADS = 256


def find_clocks(trace: Trace, window: tuple[int, int]) -> Clocks:
    """Give each thread that calls the runtime a clock.

    A thread joins the clock of another of its process where all that it records falls in pauses of
    that one: it was handed the work, as autograd's thread is. Others keep their own.
    """
    told = [telling_calls(trace), trace.rows_of(EventKind.CPU_OP)]
    calls, rows = (
        r[(trace.ts[r] < window[1]) & (trace.end_of(r) > window[0])]
        for r in (told[0], np.concatenate(told))
    )
    count = np.bincount(trace.thread[calls], minlength=len(trace.threads))
    of_thread = np.full(len(trace.threads), NONE, dtype=np.int64)
    busy: list[tuple[Int64Array, Int64Array, Int64Array]] = []  # of a clock: its calls, all points
    end: list[int] = []
    calling_threads = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
    for number in calling_threads[:_MOST_THREADS].tolist():
        mine, called = (r[trace.thread[r] == number] for r in (rows, calls))
        intervals = union(trace.ts[mine], trace.end_of(mine))
        points = np.concatenate((trace.ts[mine], trace.end_of(mine)))
        first, last = trace.ts[called], trace.end_of(called)
        process = trace.process_of_thread == trace.process_of_thread[number]
        there = [c for c in np.unique(of_thread[process]).tolist() if c != NONE]
        clock = next((c for c in there if _fits(*intervals, *busy[c])), len(busy))
        of_thread[number] = clock
        if clock == len(busy):
            busy.append((first[:0], first[:0], points[:0]))
            end.append(0)
        joined = zip(busy[clock][:2], (first, last), strict=True)
        calling = union(*(np.concatenate(pair) for pair in joined))
        busy[clock] = (*calling, np.sort(np.append(busy[clock][2], points)))
        end[clock] = max(end[clock], min(int(last.max()), window[1]) - window[0])
    if len(others := calling_threads[_MOST_THREADS:]):
        of_thread[others] = len(busy) - 1
        last = trace.end_of(calls[np.isin(trace.thread[calls], others)])
        end[-1] = max(end[-1], min(int(last.max()), window[1]) - window[0])
    return Clocks(of_thread, np.array(end, dtype=np.int64))


def _fits(
    start: Int64Array,
    end: Int64Array,
    call_start: Int64Array,
    call_end: Int64Array,
    points: Int64Array,
) -> bool:
    """Whether intervals lie where a clock's threads record nothing and are in no call."""
    alone = np.searchsorted(points, start, "right") == np.searchsorted(points, end, "left")
    at = np.searchsorted(call_start, start, "right")
    return bool(np.all(alone & (np.append(np.iinfo(np.int64).min, call_end)[at] <= start)))


class HostTime:
    """How long the host needs from one moment to another when some of its time is scaled.

    `scaled` are intervals of each clock, which multiply where they overlap; `frozen` ones stay.
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
                mine = clock == number
                length[mine] = np.rint(np.interp(end[mine], *curve)).astype(np.int64)
                length[mine] -= np.rint(np.interp(begin[mine], *curve)).astype(np.int64)
        return length


def _curve(
    scaled: Sequence[Scaled], frozen: tuple[Int64Array, Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """Recorded moments, and the host time that has passed until each."""
    terms = [*scaled, (*frozen, NONE)]
    far = 2**62
    edges = np.sort(np.concatenate([t for term in terms for t in term[:2]] + [[0, far]]))
    edges = edges[np.diff(edges, append=far + 1) > 0]  # each once; `unique` hashes, which is slow
    factor = np.ones(len(edges))
    for start, end, times in terms:
        first, last = union(start, end)
        at = np.searchsorted(first, edges, "right")
        inside = edges < np.append(-1, last)[at]
        factor[inside] = 1.0 if times == NONE else factor[inside] * times
    passed = np.append(0.0, np.cumsum(np.diff(edges) * factor[:-1]))
    return edges, passed
