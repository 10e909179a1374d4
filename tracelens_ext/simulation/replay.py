"""The replay: computes when all work starts and ends from its dependencies and a few constants.

Many changes are replayed at once. Threads that take turns share a clock of the host. The time that
the host waits for the GPU is not part of the time of a clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.change import Change, Curve, Scaled, host_curve
from tracelens_ext.simulation.replay_order import Chunk, Order
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import last_before

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

#: How many numbers a matrix of a pass has at most: nodes times changes.
_NUMBERS_AT_ONCE: Final = 1 << 21
#: A time before all others.
_BEFORE_ALL: Final = -(2**62)


@dataclass(eq=False)
class Replayed:
    """The unchanged replay. Times are ns since the window's start."""

    start: Int64Array  #: start of each node, (n,)
    #: the beginning of each clock, which is 0, then the return of each block, (k + b,)
    returned: Int64Array
    wall: int  #: the wall time


class Offsets(NamedTuple):
    """How long after its base something happens in the time of its clock, ns.

    The base is the return of the block before it on its clock, or the beginning of the clock.
    """

    node: Int64Array  #: from the base of each node's call to its earliest start, (n,)
    block: Int64Array  #: from the base of each block to its start, (b,)
    clock_end: Int64Array  #: from the base of each clock's end to this end, (k,)


class _CachedOffsets(NamedTuple):
    """Offsets, and the scaled intervals that they were computed for."""

    #: kept alive, so that no other array gets the address of one of these
    host: Sequence[Sequence[Scaled]]
    offsets: Offsets


class Parameters(NamedTuple):
    """The numbers of one change that a pass needs, ns."""

    node_offset: Int64Array  #: as in `Offsets`, (n,)
    block_offset: Int64Array  #: as in `Offsets`, (b,)
    clock_end_offset: Int64Array  #: as in `Offsets`, (k,)
    duration: Int64Array  #: duration of each node, (n,)
    tail: Int64Array  #: time from the end of GPU work to the return of each block, (b,)
    gap: Int64Array  #: gap and standstill before each node, (n,)
    least_wall: int  #: the least wall time
    nonblocking: BoolArray | None  #: blocks that do not wait, (b,); None: no block


class Replay:
    """Runs a program again.

    Host time runs from a row of `recorded`: the beginning of a clock or the return of a block.

    Attributes:
        recorded: the recorded time of each row: the beginnings of the k clocks, which are 0, the
            returns of the b blocks, and a last row for nodes without a call, (k + b + 1,).
        clock: the clock of each row but the last, (k + b,).
        base_of_node, base_of_block, base_of_clock: the row from which host time runs to the call of
            each node, to each block, and to the end of each clock.
        latency, gap: latency and gap before each node, (n,).
        tail: tail of each block, (b,).
    """

    def __init__(self, program: DependencyGraph) -> None:
        self.program = program
        self.clocks = len(program.clocks.end)
        clock_numbers = np.arange(self.clocks)
        self.clock = np.append(clock_numbers, program.block_clock)
        begin_of_clock = np.zeros_like(clock_numbers)
        self.recorded = np.concatenate((begin_of_clock, program.block_end, [0]))

        is_called = program.call != NONE
        is_event = program.event != NONE
        # A hole may have a call after its key, its turn on the stream. Blocks between the two have
        # not returned at the key.
        called = np.minimum(program.call, program.key)
        self.base_of_node = self._base(program.clock, called)
        self.base_of_node[~is_called] = len(self.clock)
        self.base_of_block = self._base(program.block_clock, program.block_start)
        self.base_of_clock = self._base(clock_numbers, program.clocks.end)

        self.latency = np.where(is_called & is_event, program.latency, 0)
        self.gap = np.where(is_event, program.gap, 0)
        self.standstill = program.standstill
        self.gap_and_standstill = self.gap + self.standstill
        block, node = program.awaited.T
        self.tail = np.zeros(len(program.block_start), dtype=np.int64)
        self.tail[block] = program.tail[node]
        is_unusual = program.unusual_tail > 0
        self.tail[is_unusual] = program.unusual_tail[is_unusual]

        self.offsets = self._offsets(())
        self._offsets_by_host: dict[Hashable, _CachedOffsets] = {}
        self.order = Order(program, self.gap)

    def _base(self, clock: Int64Array, time: Int64Array) -> Int64Array:
        """Return the row of the last block on a clock that returned by a time.

        Without such a block it is the row of the beginning of the clock.

        Args:
            clock: the clock of each of m questions, (m,).
            time: the time of each question, (m,).
        """
        program = self.program
        by_clock = np.argsort(program.block_clock, kind="stable")
        clock_of_block = program.block_clock[by_clock]
        start = program.block_start[by_clock]
        end = program.block_end[by_clock]
        last_returned = last_before(
            group=clock_of_block, time=end, query_group=clock, query_time=time + 1
        )
        # A block of no length returns when it starts. It must not be its own base, so the base has
        # to start before the time, too.
        last_begun = last_before(
            group=clock_of_block, time=start, query_group=clock, query_time=time
        )
        last = np.minimum(last_returned, last_begun)
        block = values_at(by_clock, last)
        row_of_block = self.clocks + block
        return np.where(last == NONE, clock, row_of_block)

    def _offsets(self, curves: Sequence[Curve | None]) -> Offsets:
        """Return the offsets in the time of changed clocks.

        Args:
            curves: the changed time of each clock; empty: all clocks run as recorded.
        """
        program = self.program
        called = np.maximum(program.call, 0)
        node = self._host_time(self.base_of_node, called, curves)
        return Offsets(
            node=node + self.latency + self.standstill,
            block=self._host_time(
                base=self.base_of_block, until=program.block_start, curves=curves
            ),
            clock_end=self._host_time(
                base=self.base_of_clock, until=program.clocks.end, curves=curves
            ),
        )

    def _host_time(
        self, base: Int64Array, until: Int64Array, curves: Sequence[Curve | None]
    ) -> Int64Array:
        """Return the host time from rows of `recorded` until recorded times, ns."""
        begin = np.minimum(self.recorded[base], until)
        clock = values_at(self.clock, base)
        length = until - begin
        for clock_number, curve in enumerate(curves):
            if curve is not None:
                is_of_clock = clock == clock_number
                length[is_of_clock] = curve.time_between(
                    begin[is_of_clock], until[is_of_clock]
                )
        return length

    @property
    def _changes_at_once(self) -> int:
        """The number of changes that a pass runs at once, so that its matrices stay small."""
        return max(1, _NUMBERS_AT_ONCE // max(len(self.program.track), 1))

    def _changed_offsets(self, host: Sequence[Sequence[Scaled]]) -> Offsets:
        """Return the offsets for scaled intervals of each clock.

        They are computed once for the same intervals, which are told by the `id()` of their arrays.
        """
        if not any(host):
            return self.offsets
        cache = self._offsets_by_host
        key = _identity(host)
        if key not in cache:
            while len(cache) >= self._changes_at_once:
                oldest = next(iter(cache))
                del cache[oldest]
            frozen = self.program.frozen
            curves = [host_curve(scaled_of_clock, frozen) for scaled_of_clock in host]
            cache[key] = _CachedOffsets(host, self._offsets(curves))
        return cache[key].offsets

    def run(
        self, changes: Iterable[Change], change_count: int
    ) -> tuple[Int64Array, Replayed]:
        """Run the unchanged program and each change of it.

        A change may hold arrays as long as the program, so an iterator that makes one change at
        a time takes the least memory.

        Returns:
            The wall time of each change, ns, (change_count,), and the unchanged replay.
        """
        # The unchanged program is the first column of the first pass.
        passes = self._passes(chain([Change()], changes), change_count + 1)
        first_pass = next(passes)
        walls = [first_pass.run()]
        unchanged = Replayed(
            start=first_pass.start,
            returned=first_pass.returned[:, 0].copy(),
            wall=int(walls[0][0]),
        )
        del first_pass  # free its matrices before the next pass allocates its own
        walls.extend(map(_Pass.run, passes))  # `map` keeps no pass alive
        return np.concatenate(walls)[1:], unchanged

    def _passes(self, changes: Iterable[Change], count: int) -> Iterator[_Pass]:
        """Yield passes over `count` changes, each with as many changes as memory allows."""
        remaining = iter(changes)
        at_once = self._changes_at_once
        for first in range(0, count, at_once):
            columns = min(at_once, count - first)
            yield _Pass(self, islice(remaining, columns), columns)

    def parameters(self, change: Change) -> Parameters:
        """Return the numbers of a change that a pass needs."""
        program = self.program
        offsets = self._changed_offsets(change.host)
        node_offset = offsets.node
        duration = program.duration
        if change.duration is not None:
            duration = change.duration
        gap = self.gap_and_standstill
        if change.gap_factor != 1.0:
            scaled_gap = np.rint(self.gap * change.gap_factor).astype(np.int64)
            gap = scaled_gap + self.standstill
        # The savings of several findings add up, so each is limited to the delay that it shortens.
        delays = change.delays
        if not isinstance(delays.standstill, int):
            shorter_standstill = np.minimum(delays.standstill, self.standstill)
            gap = gap - shorter_standstill
            is_called = program.call != NONE
            node_offset = node_offset - np.where(is_called, shorter_standstill, 0)
        if not isinstance(delays.gap, int):
            gap = gap - np.clip(delays.gap, 0, np.maximum(self.gap, 0))
        shorter_latency = np.minimum(delays.latency, self.latency)
        shorter_tail = np.minimum(delays.tail, np.maximum(self.tail, 0))
        return Parameters(
            node_offset=node_offset - shorter_latency,
            block_offset=offsets.block,
            clock_end_offset=offsets.clock_end,
            duration=duration,
            tail=self.tail - shorter_tail,
            gap=gap,
            least_wall=change.least_wall,
            nonblocking=change.nonblocking,
        )


class _Run(NamedTuple):
    """The r nodes of a stream in a chunk. Matrices have a column for each of c changes."""

    nodes: slice
    track: int
    #: when each node may start, less its `elapsed`, (r, c)
    ready: Int64Array
    #: the time that the nodes before each node in the run take, with the gaps between them, (r, c)
    elapsed: Int64Array
    marked: Int64Array  #: index in the run of each of its nodes that is a mark
    marks: Int64Array  #: index among the marks of the chunk of each of these


class _ChunkMarks(NamedTuple):
    """The m marks of a chunk. Matrices have a column for each of c changes."""

    #: the greatest `ready` of the nodes behind the mark before, up to this mark, (m, c)
    ready: Int64Array
    elapsed: Int64Array  #: as in `_Run`, at the start of each mark, (m, c)
    elapsed_at_end: Int64Array  #: as in `_Run`, at the end of each mark, (m, c)


class _Pass:
    """One pass over the program in the order of calls, for many changes at once.

    Matrices have a row for each node or block, and a column for each change.
    """

    def __init__(self, replay: Replay, changes: Iterable[Change], count: int) -> None:
        self.replay = replay
        self.program = replay.program
        nodes = len(self.program.track)
        blocks = len(self.program.block_start)

        self.offset = np.empty((nodes, count), dtype=np.int64)
        self.block_offset = np.empty((blocks, count), dtype=np.int64)
        self.clock_end_offset = np.empty((replay.clocks, count), dtype=np.int64)
        self.tail = np.empty((blocks, count), dtype=np.int64)
        self.wall = np.empty(count, dtype=np.int64)
        #: first the duration of each node; its end, as soon as the node has run
        self.end = np.empty((nodes, count), dtype=np.int64)
        #: True for the blocks that do not wait
        self.nonblocking = np.zeros((blocks, count), dtype=bool)
        self.gap = replay.gap_and_standstill[:, None]
        for column, change in enumerate(changes):
            parameters = replay.parameters(change)
            self.offset[:, column] = parameters.node_offset
            self.block_offset[:, column] = parameters.block_offset
            self.clock_end_offset[:, column] = parameters.clock_end_offset
            self.tail[:, column] = parameters.tail
            self.end[:, column] = parameters.duration
            self.wall[column] = parameters.least_wall
            if parameters.nonblocking is not None:
                self.nonblocking[:, column] = parameters.nonblocking
            if parameters.gap is replay.gap_and_standstill:
                continue
            if self.gap.shape[1] < count:
                # One column serves all changes until one of them has other gaps.
                self.gap = np.repeat(self.gap, count, axis=1)
            self.gap[:, column] = parameters.gap
        self.earliest = self.program.earliest[:, None]
        self.start = np.zeros(nodes, dtype=np.int64)
        self.returned = np.zeros((len(replay.recorded), count), dtype=np.int64)
        #: the end of the last node that ran on each stream
        self.reached = np.full((len(self.program.tracks), count), _BEFORE_ALL)
        self._nodes_of_block: list[list[int]] = [[] for _ in range(blocks)]
        for block, node in self.program.awaited.tolist():
            self._nodes_of_block[block].append(node)

    def run(self) -> Int64Array:
        """Return the wall times, (c,)."""
        replay = self.replay
        bases = replay.base_of_block.tolist()
        for chunk in replay.order.chunks:
            if chunk.runs:
                self._run_streams(chunk)
            for block in chunk.blocks:
                self._run_block(block, bases[block])
        ends = self.returned[replay.base_of_clock] + self.clock_end_offset
        all_ends = np.concatenate((self.wall[None], self.reached, ends))
        wall: Int64Array = all_ends.max(axis=0)
        self.wall = wall
        return wall

    def _run_block(self, block: int, base: int) -> None:
        """Compute when a block returns: after its call and all the work that it waits for."""
        called = self.returned[base] + self.block_offset[block]
        awaited_nodes = self._nodes_of_block[block]
        awaited_end = self.end[awaited_nodes].max(axis=0, initial=_BEFORE_ALL)
        awaited_end = np.where(self.nonblocking[block], _BEFORE_ALL, awaited_end)
        row = self.replay.clocks + block
        self.returned[row] = np.maximum(called, awaited_end) + self.tail[block]

    def _run_streams(self, chunk: Chunk) -> None:
        """Compute when the nodes of a chunk start and end.

        A node starts when it is ready and the node before it on its stream has ended. With
        `elapsed`, the time that all nodes before it take, its start is `elapsed` plus the greatest
        `ready - elapsed` so far. This needs no loop. A stream with gaps of 1, whose nodes take 10
        and are ready at 0, 5 and 40:

            elapsed              0, 11, 22
            ready - elapsed      0, -6, 18
            greatest so far      0,  0, 18
            start                0, 11, 40
        """
        shape = (chunk.marks.stop - chunk.marks.start, len(self.wall))
        marks = _ChunkMarks(
            ready=np.empty(shape, dtype=np.int64),
            elapsed=np.empty(shape, dtype=np.int64),
            elapsed_at_end=np.empty(shape, dtype=np.int64),
        )
        runs = [self._prepare(nodes, chunk, marks) for nodes in chunk.runs]
        if shape[0]:
            self._run_marks(chunk, marks)
        for run in runs:
            run.ready[run.marked] = marks.ready[run.marks]
            start = np.maximum.accumulate(run.ready, axis=0) + run.elapsed
            self.start[run.nodes] = start[:, 0]
            self.end[run.nodes] += start
            self.reached[run.track] = self.end[run.nodes.stop - 1]

    def _prepare(self, nodes: slice, chunk: Chunk, marks: _ChunkMarks) -> _Run:
        """Return a run of nodes on a stream, and fill in the rows of its marks in `marks`."""
        replay = self.replay
        track = int(self.program.track[nodes.start])
        marks_of_nodes = replay.order.marks.of_nodes(nodes)
        marked = replay.order.marks.node[marks_of_nodes] - nodes.start
        awaited = replay.order.marks.awaited_node[marks_of_nodes]
        gaps = self.gap[nodes]
        duration = self.end[nodes]

        ready = self.returned[replay.base_of_node[nodes]] + self.offset[nodes]
        np.maximum(ready, self.earliest[nodes], out=ready)
        # Nodes that wait for another stream become ready in `_run_marks`.
        ready[marked[awaited != NONE]] = _BEFORE_ALL
        elapsed = np.zeros_like(ready)
        np.cumsum(duration[:-1] + gaps[1:], axis=0, out=elapsed[1:])
        ready -= elapsed
        np.maximum(ready[0], self.reached[track] + gaps[0], out=ready[0])

        rows = marks_of_nodes - chunk.marks.start
        if len(rows):
            # For marks at nodes 2 and 5 of the run: the maxima of nodes 0 to 2 and 3 to 5.
            after_last_mark = np.append(0, marked[:-1] + 1)
            until_last = ready[: marked[-1] + 1]
            marks.ready[rows] = np.maximum.reduceat(until_last, after_last_mark)
            marks.elapsed[rows] = elapsed[marked]
            marks.elapsed_at_end[rows] = elapsed[marked] + duration[marked]
        return _Run(
            nodes=nodes,
            track=track,
            ready=ready,
            elapsed=elapsed,
            marked=marked,
            marks=rows,
        )

    def _run_marks(self, chunk: Chunk, marks: _ChunkMarks) -> None:
        """Make `ready` of each mark the greatest up to this mark, with the waits of marks."""
        order = self.replay.order.marks
        awaited_node = order.awaited_node[chunk.marks]
        awaited_mark = order.awaited_mark[chunk.marks]
        before = order.before[chunk.marks]

        awaits_earlier_chunk = (awaited_node != NONE) & (awaited_mark == NONE)
        awaited_end = self.end[awaited_node[awaits_earlier_chunk]]
        ready = awaited_end - marks.elapsed[awaits_earlier_chunk]
        marks.ready[awaits_earlier_chunk] = np.maximum(
            marks.ready[awaits_earlier_chunk], ready
        )
        ready_of_mark = list(marks.ready)  # views of the rows, which change in place
        # The index `NONE` reads the last mark here, but the loop does not use that row.
        later_than_awaited = marks.elapsed_at_end[awaited_mark] - marks.elapsed
        for ready, mark_before, awaited, later in zip(
            ready_of_mark,
            before.tolist(),
            awaited_mark.tolist(),
            later_than_awaited,
            strict=True,
        ):
            if mark_before != NONE:
                np.maximum(ready, ready_of_mark[mark_before], out=ready)
            if awaited != NONE:
                np.maximum(ready, ready_of_mark[awaited] + later, out=ready)


def _identity(host: Sequence[Sequence[Scaled]]) -> Hashable:
    """Return a key of scaled intervals: the addresses of their arrays, not their times."""
    key = []
    for scaled_of_clock in host:
        key_of_clock = [
            (id(intervals.start), id(intervals.end), intervals.factor)
            for intervals in scaled_of_clock
        ]
        key.append(tuple(key_of_clock))
    return tuple(key)
