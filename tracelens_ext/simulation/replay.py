"""The replay: when everything starts and ends, by edges and constants alone, for all changes.

Threads that take turns share a clock of the host, and waiting is no part of its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
    runtime_calls,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import last_before, running_maximum
from tracelens_ext.trace.intervals import distinct, union

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

Scaled = tuple[Int64Array, Int64Array, float]
Curve = tuple[Int64Array, Int64Array] | None
Offsets = tuple[Int64Array, Int64Array, Int64Array]

_ROWS_AT_ONCE: Final = 4096
_NUMBERS_AT_ONCE: Final = 1 << 21
_NEVER: Final = -(2**62)


@dataclass(frozen=True, eq=False)
class Change:
    """A program with other durations; as recorded by default."""

    duration: Int64Array | None = None  #: of each node, ns
    host: Sequence[Curve] = ()  #: the time of each clock; as recorded without
    gap: float = 1.0  #: what gaps are multiplied by
    at_least: int = 0  #: how long it lasts anyhow, ns
    sooner: Int64Array | int = (
        0  #: by how much each node starts sooner after its call, ns, (n,)
    )
    tail: Int64Array | int = 0  #: by how much each block returns sooner, ns, (b,)
    standstill: Int64Array | int = (
        0  #: by how much each node stands still for less, ns, (n,)
    )


@dataclass(eq=False)
class Replayed:
    """The unchanged replay: when each node and each block ended, and all of it, ns."""

    start: Int64Array  #: of each node, (n,)
    returned: (
        Int64Array  #: of the beginning of each clock, 0, and of each block, (k + b,)
    )
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

    def __init__(self, program: DependencyGraph) -> None:
        self.program = program
        self.clocks = len(program.clocks.end)
        clock_numbers = np.arange(self.clocks)
        self.clock = np.append(clock_numbers, program.block_clock)
        self.recorded = np.concatenate((clock_numbers * 0, program.block_end, [0]))
        order = np.argsort(program.block_clock, kind="stable")
        clock = program.block_clock[order]
        begin = program.block_start[order]
        end = program.block_end[order]

        def base(of: Int64Array, moment: Int64Array) -> Int64Array:
            at = last_before(clock, end, of, moment + 1)
            at = np.minimum(
                at, last_before(clock, begin, of, moment)
            )  # which may take no time
            return np.where(at == NONE, of, self.clocks + np.append(order, 0)[at])

        called = program.call != NONE
        real = program.event != NONE
        # A hole may begin after its turn: what blocks between the two has not returned by then.
        self.base_of_node = base(program.clock, np.minimum(program.call, program.key))
        self.base_of_node[~called] = len(self.clock)
        self.base_of_block = base(program.block_clock, program.block_start)
        self.base_of_clock = base(clock_numbers, program.clocks.end)
        self.latency = np.where(called & real, program.constant("latency"), 0)
        self.gap = np.where(real, program.constant("gap"), 0)
        self.tail = np.zeros(len(program.block_start), dtype=np.int64)
        self.tail[program.awaited[:, 0]] = program.constant("tail")[
            program.awaited[:, 1]
        ]
        is_unusual = program.unusual_tail > 0
        self.tail[is_unusual] = program.unusual_tail[is_unusual]
        self.standstill = program.standstill
        self.offsets = self.host_time(())
        # Others by the identity of the curves, which are kept with them.
        self._changed: dict[int, tuple[Offsets, Sequence[Curve]]] = {}
        self.order = _Order(program, self.gap)
        self.gap_and_standstill = self.gap + self.standstill

    def host_time(self, curves: Sequence[Curve]) -> Offsets:
        """From the base of each node to its earliest start, of each block, and of each end."""
        program = self.program
        found = []
        for base, until in (
            (self.base_of_node, np.maximum(program.call, 0)),
            (self.base_of_block, program.block_start),
            (self.base_of_clock, program.clocks.end),
        ):
            begin = np.minimum(self.recorded[base], until)
            clock = np.append(self.clock, NONE)[base]
            length = until - begin
            for number, curve in enumerate(curves):
                if curve is not None:
                    mine = clock == number
                    length[mine] = np.rint(np.interp(until[mine], *curve)).astype(
                        np.int64
                    )
                    length[mine] -= np.rint(np.interp(begin[mine], *curve)).astype(
                        np.int64
                    )
            found.append(length)
        return found[0] + self.latency + self.standstill, found[1], found[2]

    def run(self, changes: Iterable[Change]) -> tuple[Int64Array, Replayed]:
        """The wall time of each change, ns, and the unchanged replay."""
        most = max(1, _NUMBERS_AT_ONCE // max(len(self.program.track), 1))
        todo = iter(changes)
        first = _Pass(self, chain((Change(),), islice(todo, most - 1)))
        walls = [first.run()]
        unchanged = Replayed(first.start, first.returned[:, 0].copy(), int(walls[0][0]))
        del first
        walls += [
            _Pass(self, chain((each,), islice(todo, most - 1))).run() for each in todo
        ]
        return np.concatenate(walls)[1:], unchanged

    def columns(self, change: Change) -> tuple[Any, ...]:
        """Offsets of nodes, blocks, ends of clocks; durations, tails, gaps; the least time."""
        program = self.program
        host = change.host
        if host and id(host) not in self._changed:
            while len(self._changed) > _NUMBERS_AT_ONCE // max(len(program.track), 1):
                del self._changed[next(iter(self._changed))]  # the oldest
            self._changed[id(host)] = self.host_time(host), host
        node, block, last = self._changed[id(host)][0] if host else self.offsets
        duration = program.duration if change.duration is None else change.duration
        gap = self.gap_and_standstill
        if change.gap != 1.0:
            gap = np.rint(self.gap * change.gap).astype(np.int64) + self.standstill
        if not isinstance(change.standstill, int):
            shorter = np.minimum(change.standstill, self.standstill)
            gap = gap - shorter
            node = node - np.where(program.call != NONE, shorter, 0)
        # Several changes may each take the same latency, or the same tail.
        node = node - np.minimum(change.sooner, self.latency)
        tail = self.tail - np.minimum(change.tail, np.maximum(self.tail, 0))
        return node, block, last, duration, tail, gap, change.at_least


class _Order:
    """In which order a pass runs the n nodes and b blocks of a program.

    Blocks, and every so many calls, cut it into chunks. In a chunk streams run each by itself, but
    for its marks: nodes that wait, and nodes of the chunk that they wait for.

    Attributes:
        steps: by chunk the runs of nodes, (chunk, 0, first, stop), then blocks, (chunk, 1, b, 0).
        mark, by_node, marks_by_node: the nodes of the m marks in the order of calls; sorted; and
            which mark each of those is.
        before, source: the mark before each on its stream, and the one it waits for, as numbers
            from the first mark of the chunk on; `NONE` without, and for one of an earlier chunk.
        awaited: the node that each mark waits for, `NONE` for one that does not wait.
        bounds: where the marks of each chunk begin, and end.
    """

    def __init__(self, program: DependencyGraph, gap: Int64Array) -> None:
        key = program.key
        track = program.track
        cuts = np.sort(np.append(program.block_start, np.sort(key)[::_ROWS_AT_ONCE]))
        chunk = np.searchsorted(cuts, key)
        of_block = np.searchsorted(cuts, program.block_start)
        first = np.flatnonzero(_new(track) | _new(chunk))
        stop = np.append(first, len(key))[1:]
        runs = zip(*map(np.ndarray.tolist, (chunk[first], first, stop)), strict=True)
        self.steps = [(number, 0, begin, end) for number, begin, end in runs]
        self.steps += [
            (number, 1, block, 0) for block, number in enumerate(of_block.tolist())
        ]
        self.steps.sort()
        by_call = np.lexsort((program.waits[:, 0], key[program.waits[:, 0]]))
        node, source = program.waits[by_call].T
        # Who has waited for a node of a stream has waited for all before it, unless work overlaps.
        overlaps = bool((gap < 0).any())
        pair = track[node] * (int(track.max(initial=0)) + 1) + track[source]
        by_pair = np.argsort(pair, kind="stable")
        latest = running_maximum(pair[by_pair], source[by_pair])[0]
        waits = by_pair[
            _new(pair[by_pair]) | (np.roll(latest, 1) < source[by_pair]) | overlaps
        ]
        node = node[waits]
        source = source[waits]
        own = source[chunk[source] == chunk[node]]
        by_node = distinct(np.append(node, own))
        order = np.lexsort((by_node, key[by_node]))
        self.mark = by_node[order]
        self.marks_by_node = np.argsort(order)
        self.bounds = np.searchsorted(chunk[self.mark], np.arange(len(cuts) + 2))
        begin = self.bounds[chunk[self.mark]]
        follows = np.append(NONE, self.marks_by_node)[: len(order)]
        follows = np.where(_new(track[by_node]) | _new(chunk[by_node]), NONE, follows)[
            order
        ]
        self.before = np.where(follows == NONE, NONE, follows - begin)
        self.awaited = np.full(len(order), NONE)
        self.awaited[self.marks_by_node[np.searchsorted(by_node, node)]] = source
        here = (self.awaited != NONE) & (chunk[self.awaited] == chunk[self.mark])
        self.source = np.full(len(order), NONE)
        at = np.searchsorted(by_node, self.awaited[here])
        self.source[here] = self.marks_by_node[at] - begin[here]
        self.by_node = by_node

    def marks_of(self, rows: slice) -> Int64Array:
        """The marks among some nodes, in their order."""
        begin, end = np.searchsorted(self.by_node, (rows.start, rows.stop))
        return self.marks_by_node[begin:end]


class _Pass:
    """One pass in the order of calls; a row a node or a block, a column a change."""

    def __init__(self, replay: Replay, changes: Iterable[Change]) -> None:
        self.replay = replay
        self.program = replay.program
        program = replay.program
        *times, gaps, least = zip(*map(replay.columns, changes), strict=True)
        self.offset = np.column_stack(
            times.pop(0)
        )  # each list goes before the next matrix comes
        self.block_offset, self.last_offset = (
            np.column_stack(times.pop(0)) for _ in range(2)
        )
        self.end = np.column_stack(
            times.pop(0)
        )  # how long each takes, and then when it ended
        self.tail = np.column_stack(times.pop(0))
        self.gap = np.column_stack(gaps if len(set(map(id, gaps))) > 1 else gaps[:1])
        self.wall = np.array(least)
        self.earliest = program.earliest[:, None]
        self.start = np.zeros(len(program.track), dtype=np.int64)
        self.returned = np.zeros((len(replay.recorded), len(least)), dtype=np.int64)
        self.reached = np.full(
            (len(program.tracks), len(least)), _NEVER
        )  # the end of each stream

    def run(self) -> Int64Array:
        """The wall times, (c,)."""
        replay = self.replay
        base = replay.base_of_block.tolist()
        awaited: list[list[int]] = [[] for _ in base]
        for block, node in self.program.awaited.tolist():
            awaited[block].append(node)
        for (chunk, is_block), steps in groupby(replay.order.steps, itemgetter(0, 1)):
            if not is_block:
                self._run_streams(chunk, [slice(*step[2:]) for step in steps])
                continue
            for _, _, block, _ in steps:
                time = self.returned[base[block]] + self.block_offset[block]
                time = np.maximum(
                    time, self.end[awaited[block]].max(axis=0, initial=_NEVER)
                )
                self.returned[replay.clocks + block] = time + self.tail[block]
        ends = self.returned[replay.base_of_clock] + self.last_offset
        every = np.concatenate((self.wall[None], self.reached, ends))
        self.wall = every.max(axis=0)
        return self.wall

    def _run_streams(self, chunk: int, runs: Sequence[slice]) -> None:
        """Run the nodes of a chunk.

        Each starts when it may and its predecessor has ended: with c the time that the ones before
        it take, at c + the greatest (ready - c) so far, which needs no loop.
        """
        order = self.replay.order
        parts = []
        marks = slice(*order.bounds[chunk : chunk + 2].tolist())
        awaited = order.awaited[marks]
        # At each mark: the greatest (ready - c) since the one before it; c; and c at its end.
        least, begun, ended = np.empty(
            (3, len(awaited), len(self.wall)), dtype=np.int64
        )
        for rows in runs:
            track = self.program.track[rows.start]
            gaps = self.gap[rows]
            own = order.marks_of(rows)
            at = order.mark[own] - rows.start
            own = own - marks.start
            ready = self.returned[self.replay.base_of_node[rows]] + self.offset[rows]
            np.maximum(ready, self.earliest[rows], out=ready)
            ready[at[awaited[own] != NONE]] = _NEVER
            taken = np.zeros_like(ready)
            np.cumsum(self.end[rows][:-1] + gaps[1:], axis=0, out=taken[1:])
            ready -= taken
            np.maximum(ready[0], self.reached[track] + gaps[0], out=ready[0])
            if len(own):
                begins = np.append(0, at[:-1] + 1)
                least[own] = np.maximum.reduceat(ready[: at[-1] + 1], begins)
                begun[own] = taken[at]
                ended[own] = taken[at] + self.end[rows][at]
            parts.append((rows, track, ready, taken, at, own))
        if len(awaited):
            self._mark(marks, least, begun, ended)
        for rows, track, ready, taken, at, own in parts:
            ready[at] = least[own]
            start = np.maximum.accumulate(ready, axis=0) + taken
            self.start[rows] = start[:, 0]
            self.end[rows] += start
            self.reached[track] = self.end[rows.stop - 1]

    def _mark(
        self, marks: slice, least: Int64Array, begun: Int64Array, ended: Int64Array
    ) -> None:
        """Make `least` the greatest (ready - c) so far at each mark of a chunk, waits included."""
        order = self.replay.order
        awaited = self.replay.order.awaited[marks]
        before = order.before[marks]
        source = order.source[marks]
        earlier = (awaited != NONE) & (source == NONE)
        late = self.end[awaited[earlier]] - begun[earlier]
        least[earlier] = np.maximum(least[earlier], late)
        found = list(least)
        later = ended[source] - begun
        for own, late, last, its in zip(
            found, later, before.tolist(), source.tolist(), strict=True
        ):
            if last != NONE:
                np.maximum(own, found[last], out=own)
            if its != NONE:
                np.maximum(own, found[its] + late, out=own)


def _new(number: IntArray) -> BoolArray:
    """Whether each of some numbers begins a run of equal ones."""
    return np.append(True, np.diff(number) != 0)[: len(number)]


def run_starts(number: IntArray) -> Int64Array:
    """Where runs of equal numbers begin."""
    return np.flatnonzero(_new(number))


#: Calls that the program waits in, or that the GPU waits for; others are time of the host.
_TELLING: Final = runtime_calls.any_of(
    re.compile(r"(?:cuda|hip|cu)(?:\w*Launch|Memset|\w*Synchronize)"),
    runtime_calls.LAUNCHES_KERNEL,
    runtime_calls.COPIES,
    runtime_calls.WAITS_FOR_DEVICE,
    runtime_calls.WAITS_FOR_STREAM,
    runtime_calls.WAITS_FOR_EVENT,
    runtime_calls.STREAM_WAITS_FOR_EVENT,
    runtime_calls.RECORDS_EVENT,
)


@dataclass(frozen=True, eq=False)
class Clocks:
    """Which clock each thread goes by, k clocks of t threads; the first calls most."""

    of_thread: Int64Array  #: `NONE` for a thread without calls, (t,)
    end: (
        Int64Array  #: the last end of the calls of each, since the window's start, (k,)
    )


def telling_calls(work: GpuEvents) -> Int64Array:
    """The calls that launch, wait or are waited for, in file order.

    Whatever its name is, a call with GPU work has launched that.
    """
    named = work.trace.rows_named(_TELLING, *LAUNCH_KINDS)
    return np.union1d(named, work.tree.launch_of_gpu[work.tree.linked])


#: Threads that may get a clock each; the others, which call least, share the last one.
_MOST_THREADS = 256


def find_clocks(work: GpuEvents, window: tuple[int, int]) -> Clocks:
    """Give each thread that calls the runtime a clock.

    A thread joins the clock of another of its process where all that it records falls in pauses of
    that one: it was handed the work, as autograd's thread is. Others keep their own.
    """
    trace = work.trace
    told = [telling_calls(work), trace.rows_of(EventKind.CPU_OP)]
    calls, rows = (
        r[
            (trace.ts[r] < window[1])
            & (np.maximum(trace.end_of(r), trace.ts[r] + 1) > window[0])
        ]
        for r in (told[0], np.concatenate(told))
    )
    count = np.bincount(trace.thread[calls], minlength=len(trace.threads))
    of_thread = np.full(len(trace.threads), NONE, dtype=np.int64)
    busy: list[
        tuple[Int64Array, Int64Array, Int64Array]
    ] = []  # of a clock: its calls, all points
    end: list[int] = []
    calling_threads = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
    for number in calling_threads[:_MOST_THREADS].tolist():
        mine, called = (r[trace.thread[r] == number] for r in (rows, calls))
        intervals = union(trace.ts[mine], trace.end_of(mine))
        points = np.concatenate((trace.ts[mine], trace.end_of(mine)))
        first = trace.ts[called]
        last = trace.end_of(called)
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
    (start, end) = intervals
    (call_start, call_end, points) = busy
    alone = np.searchsorted(points, start, "right") == np.searchsorted(
        points, end, "left"
    )
    at = np.searchsorted(call_start, start, "right")
    return bool(
        np.all(alone & (np.append(np.iinfo(np.int64).min, call_end)[at] <= start))
    )


def host_curve(
    scaled: Sequence[Scaled], frozen: tuple[Int64Array, Int64Array]
) -> Curve:
    """The time of a clock of which intervals are scaled, which multiply; `frozen` ones stay."""
    if not scaled:
        return None
    terms = [*scaled, (*frozen, NONE)]
    far = 2**62
    edges = distinct(
        np.concatenate([t for term in terms for t in term[:2]] + [[0, far]])
    )
    factor = np.ones(len(edges))
    for start, end, times in terms:
        first, last = union(start, end)
        at = np.searchsorted(first, edges, "right")
        inside = edges < np.append(-1, last)[at]
        factor[inside] = 1.0 if times == NONE else factor[inside] * times
    passed = np.append(0.0, np.cumsum(np.diff(edges) * factor[:-1]))
    return edges, passed
