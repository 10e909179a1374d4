"""The replay: when everything starts and ends, by edges and constants alone, for all changes.

Threads that take turns share a clock of the host, and waiting is no part of its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_ext.intervals import distinct, union
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Int64Array, Trace
from tracelens_ext.work.grouping import last_before

if TYPE_CHECKING:
    from tracelens_ext.replay.program import Program

Scaled = tuple[Int64Array, Int64Array, float]
Curve = tuple[Int64Array, Int64Array] | None

_ROWS_AT_ONCE: Final = 4096
_NUMBERS_AT_ONCE: Final = 1 << 23


@dataclass(frozen=True, eq=False)
class Change:
    """A program with other durations; as recorded by default."""

    duration: Int64Array | None = None  #: of each node, ns
    host: Sequence[Curve] = ()  #: the time of each clock; as recorded without
    gap: float = 1.0  #: what gaps are multiplied by
    at_least: int = 0  #: how long it lasts anyhow, ns
    sooner: Int64Array | int = 0  #: by how much each node starts sooner after its call, ns, (n,)
    tail: Int64Array | int = 0  #: by how much each block returns sooner, ns, (b,)


@dataclass(eq=False)
class Replayed:
    """The unchanged replay: when each node and each block ended, and all of it, ns."""

    start: Int64Array  #: of each node, (n,)
    returned: Int64Array  #: of the beginning of each clock, 0, and of each block, (k + b,)
    wall: int


class Replay:
    """Runs a program again.

    Attributes:
        clock: of each row of `recorded`: the k beginnings of clocks, then the b blocks.
        recorded: when each began or returned; the last row is for what no call precedes.
        base_of_node, base_of_block, base_of_clock: the row from which host time runs to each node's
            call, each block, and each clock's end.
        latency, gap: before each node, (n,).
        tail: of each block, (b,).
    """

    def __init__(self, program: Program) -> None:
        self.program, self.clocks = program, len(program.clocks.end)
        clock_numbers = np.arange(self.clocks)
        self.clock = np.append(clock_numbers, program.block_clock)
        self.recorded = np.concatenate((clock_numbers * 0, program.block_end, [0]))
        order = np.argsort(program.block_clock, kind="stable")
        clock, end = program.block_clock[order], program.block_end[order]

        def base(of: Int64Array, moment: Int64Array) -> Int64Array:
            at = last_before(clock, end, of, moment + 1)
            return np.where(at == NONE, of, self.clocks + np.append(order, 0)[at])

        called, real = program.call != NONE, program.event != NONE
        self.base_of_node = base(program.clock, program.call)
        self.base_of_node[~called] = len(self.clock)
        self.base_of_block = base(program.block_clock, program.block_start)
        self.base_of_clock = base(clock_numbers, program.clocks.end)
        self.latency = np.where(called & real, program.constant("latency"), 0)
        self.gap = np.where(real, program.constant("gap"), 0)
        self.tail = np.zeros(len(program.block_start), dtype=np.int64)
        self.tail[program.awaited[:, 0]] = program.constant("tail")[program.awaited[:, 1]]
        self.offsets = self.host_time(())

    def host_time(self, curves: Sequence[Curve]) -> tuple[Int64Array, Int64Array, Int64Array]:
        """From the base of each node to its earliest start, of each block, and of each end."""
        program, found = self.program, []
        for base, until in (
            (self.base_of_node, np.maximum(program.call, 0)),
            (self.base_of_block, program.block_start),
            (self.base_of_clock, program.clocks.end),
        ):
            begin, clock = np.minimum(self.recorded[base], until), np.append(self.clock, NONE)[base]
            length = until - begin
            for number, curve in enumerate(curves):
                if curve is not None:
                    mine = clock == number
                    length[mine] = np.rint(np.interp(until[mine], *curve)).astype(np.int64)
                    length[mine] -= np.rint(np.interp(begin[mine], *curve)).astype(np.int64)
            found.append(length)
        return found[0] + self.latency, found[1], found[2]

    def run(self, changes: Iterable[Change]) -> tuple[Int64Array, Replayed]:
        """The wall time of each change, ns, and the unchanged replay."""
        most = max(1, _NUMBERS_AT_ONCE // max(len(self.program.lane), 1))
        todo = iter(changes)
        first = _Pass(self, chain((Change(),), islice(todo, most - 1)))
        walls = [first.run()]
        unchanged = Replayed(first.start, first.returned[:, 0].copy(), int(walls[0][0]))
        del first
        walls += [_Pass(self, chain((each,), islice(todo, most - 1))).run() for each in todo]
        return np.concatenate(walls)[1:], unchanged

    def columns(self, change: Change) -> tuple[Any, ...]:
        """Offsets of nodes, blocks, ends of clocks; durations, tails, gaps; the least time."""
        program, host = self.program, change.host
        node, block, last = self.host_time(host) if host else self.offsets
        duration = program.duration if change.duration is None else change.duration
        gap = np.rint(self.gap * change.gap).astype(np.int64) if change.gap != 1.0 else self.gap
        tail = self.tail - change.tail
        return node - change.sooner, block, last, duration, tail, gap, change.at_least


class _Pass:
    """One pass in the order of calls; a row a node or a block, a column a change."""

    def __init__(self, replay: Replay, changes: Iterable[Change]) -> None:
        self.replay, self.program = replay, replay.program
        program, lanes = replay.program, distinct(replay.program.lane)
        *times, gaps, least = zip(*map(replay.columns, changes), strict=True)
        # `end` is how long each node takes, and then when it ended.
        self.offset, self.block_offset, self.last_offset, self.end, self.tail = map(
            np.column_stack, times
        )
        self.gap = np.column_stack(gaps if len(set(map(id, gaps))) > 1 else gaps[:1])
        self.wall, self.earliest = np.array(least), program.earliest[:, None]
        self.start = np.zeros(len(program.lane), dtype=np.int64)
        self.returned = np.zeros((len(replay.recorded), len(least)), dtype=np.int64)
        first = np.searchsorted(program.lane, lanes).tolist()
        self.next = dict(zip(lanes.tolist(), first, strict=True))
        never = np.full(len(least), -(2**62))
        self.reached = dict.fromkeys(self.next, never)  # the end of each stream so far

    def run(self) -> Int64Array:
        """The wall times, (c,)."""
        replay, program, lane = self.replay, self.program, self.program.lane.tolist()
        base, pairs = replay.base_of_block.tolist(), program.waits.tolist()
        awaited: list[list[int]] = [[] for _ in base]
        for block, node in program.awaited.tolist():
            awaited[block].append(node)
        points = [(key, 0, w) for w, key in enumerate(program.key[program.waits[:, 0]].tolist())]
        points += [(begin, 1, b) for b, begin in enumerate(program.block_start.tolist())]
        for _, is_block, at in sorted(points):
            if not is_block:
                node, source = pairs[at]
                self._advance(lane[source], source)
                self._advance(lane[node], node - 1)
                time = np.maximum(self.reached[lane[node]], self.end[source])
                self._reach(lane[node], slice(node, node + 1), time[None])
                continue
            time = self.returned[base[at]] + self.block_offset[at]
            for node in awaited[at]:
                self._advance(lane[node], node)
                time = np.maximum(time, self.end[node])
            self.returned[replay.clocks + at] = time + self.tail[at]
        if replay.clocks:
            ends = self.returned[replay.base_of_clock] + self.last_offset
            self.wall = np.maximum(self.wall, ends.max(axis=0))
        stops = np.searchsorted(program.lane, list(self.next), "right").tolist()
        for number, stop in zip(list(self.next), stops, strict=True):
            self._advance(number, stop - 1)
            self.wall = np.maximum(self.wall, self.reached[number])
        return self.wall

    def _advance(self, lane: int, until: int) -> None:
        """Run the nodes of a stream up to one.

        Each starts when it may and its predecessor has ended: with c the time that the ones before
        it take, at c + the greatest (ready - c) so far, which needs no loop.
        """
        while (first := self.next[lane]) <= until:
            rows = slice(first, min(until + 1, first + _ROWS_AT_ONCE))
            if first == until:  # as most often, in half the time
                start = np.maximum(self._ready(first), self.reached[lane] + self.gap[first])
                self._reach(lane, rows, start[None])
                continue
            ready, gaps = self._ready(rows), self.gap[rows]
            np.maximum(ready[0], self.reached[lane] + gaps[0], out=ready[0])
            taken = np.zeros_like(ready)
            np.cumsum(self.end[rows][:-1] + gaps[1:], axis=0, out=taken[1:])
            self._reach(lane, rows, np.maximum.accumulate(ready - taken, axis=0) + taken)

    def _ready(self, rows: int | slice) -> Int64Array:
        """When nodes may start, but for their stream."""
        called = self.returned[self.replay.base_of_node[rows]] + self.offset[rows]
        ready: Int64Array = np.maximum(called, self.earliest[rows])
        return ready

    def _reach(self, lane: int, rows: slice, start: Int64Array) -> None:
        """Take down when nodes of a stream started and ended."""
        self.start[rows] = start[:, 0]
        self.end[rows] += start
        self.next[lane], self.reached[lane] = rows.stop, self.end[rows.stop - 1]


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
    return trace.rows_named(_TELLING, *LAUNCH_KINDS)


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
        clock = next((c for c in there if _fits(intervals, busy[c])), len(busy))
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


def _fits(intervals: tuple[Int64Array, ...], busy: tuple[Int64Array, ...]) -> bool:
    """Whether intervals lie where a clock's threads record nothing and are in no call."""
    (start, end), (call_start, call_end, points) = intervals, busy
    alone = np.searchsorted(points, start, "right") == np.searchsorted(points, end, "left")
    at = np.searchsorted(call_start, start, "right")
    return bool(np.all(alone & (np.append(np.iinfo(np.int64).min, call_end)[at] <= start)))


def host_curve(scaled: Sequence[Scaled], frozen: tuple[Int64Array, Int64Array]) -> Curve:
    """The time of a clock of which intervals are scaled, which multiply; `frozen` ones stay."""
    if not scaled:
        return None
    terms = [*scaled, (*frozen, NONE)]
    far = 2**62
    edges = distinct(np.concatenate([t for term in terms for t in term[:2]] + [[0, far]]))
    factor = np.ones(len(edges))
    for start, end, times in terms:
        first, last = union(start, end)
        at = np.searchsorted(first, edges, "right")
        inside = edges < np.append(-1, last)[at]
        factor[inside] = 1.0 if times == NONE else factor[inside] * times
    passed = np.append(0.0, np.cumsum(np.diff(edges) * factor[:-1]))
    return edges, passed
