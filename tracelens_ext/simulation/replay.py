"""The replay: when everything starts and ends, by edges and constants alone, for all changes.

Threads that take turns share a clock of the host, and waiting is no part of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.replay_order import Chunk, Order
from tracelens_ext.trace import NONE, BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.intervals import Union, distinct, union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import last_before

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

_NUMBERS_AT_ONCE: Final = 1 << 21
_NEVER: Final = -(2**62)
_FAR: Final = 2**62


class Scaled(NamedTuple):
    """Intervals of a clock that take another time, ns since the window's start."""

    start: Int64Array
    end: Int64Array
    factor: float  #: what their time is multiplied by


class Curve(NamedTuple):
    """The changed time of a clock, a line between each two of k points."""

    recorded: Int64Array  #: ns since the window's start, ascending, (k,)
    changed: Float64Array  #: how much time has passed by then, ns, (k,)

    def time_between(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return how long recorded intervals take, each limit rounded, ns."""
        changed_end = np.rint(np.interp(end, self.recorded, self.changed))
        changed_start = np.rint(np.interp(start, self.recorded, self.changed))
        return changed_end.astype(np.int64) - changed_start.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Change:
    """A program with other durations; as recorded by default."""

    duration: Int64Array | None = None  #: of each node, ns
    #: the time of each clock; None for one that runs as recorded
    host: Sequence[Curve | None] = ()
    gap: float = 1.0  #: what gaps are multiplied by
    at_least: int = 0  #: how long it lasts anyhow, ns
    #: by how much each node starts sooner after its call, ns, (n,)
    sooner: Int64Array | int = 0
    tail: Int64Array | int = 0  #: by how much each block returns sooner, ns, (b,)
    #: by how much each node stands still for less, ns, (n,)
    standstill: Int64Array | int = 0
    #: by how much the gap before each node is shorter, ns, (n,)
    shorter_gap: Int64Array | int = 0
    #: blocks that do not wait, so that the CPU runs ahead, (b,); None for none
    freed: BoolArray | None = None


@dataclass(eq=False)
class Replayed:
    """The unchanged replay: when each node started and each block returned, and all of it, ns."""

    start: Int64Array  #: of each node, (n,)
    #: of the beginning of each clock, 0, and of each block, (k + b,)
    returned: Int64Array
    wall: int


class Offsets(NamedTuple):
    """How long things happen after what they follow in the time of their clock, ns."""

    node: Int64Array  #: from the base of each node to its earliest start, (n,)
    block: Int64Array  #: from the base of each block to its start, (b,)
    clock_end: Int64Array  #: from the base of each clock's end to it, (k,)


class Parameters(NamedTuple):
    """All that a pass knows of one change, ns."""

    node_offset: Int64Array  #: as in `Offsets`, (n,)
    block_offset: Int64Array  #: (b,)
    clock_end_offset: Int64Array  #: (k,)
    duration: Int64Array  #: of each node, (n,)
    tail: Int64Array  #: of each block, (b,)
    gap: Int64Array  #: before each node, (n,)
    at_least: int  #: how long it lasts anyhow
    freed: BoolArray | None  #: blocks that do not wait, (b,); None for none


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
        begin_of_clock = np.zeros_like(clock_numbers)
        self.recorded = np.concatenate((begin_of_clock, program.block_end, [0]))

        is_called = program.call != NONE
        is_event = program.event != NONE
        # A hole may begin after its turn: what blocks between the two has not returned by then.
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
        # Those of other curves by the identity of the curves, which are kept with them.
        self._offsets_by_curves: dict[int, tuple[Offsets, Sequence[Curve | None]]] = {}
        self.order = Order(program, self.gap)

    def _base(self, clock: Int64Array, time: Int64Array) -> Int64Array:
        """Return the row of the last block of a clock that returned by a time, or its beginning."""
        program = self.program
        by_clock = np.argsort(program.block_clock, kind="stable")
        clock_of_block = program.block_clock[by_clock]
        start = program.block_start[by_clock]
        end = program.block_end[by_clock]
        last_returned = last_before(
            group=clock_of_block, time=end, query_group=clock, query_time=time + 1
        )
        # A block that takes no time may return when it is called itself: it began before.
        last_begun = last_before(
            group=clock_of_block, time=start, query_group=clock, query_time=time
        )
        last = np.minimum(last_returned, last_begun)
        block = values_at(by_clock, last)
        row_of_block = self.clocks + block
        return np.where(last == NONE, clock, row_of_block)

    def _offsets(self, curves: Sequence[Curve | None]) -> Offsets:
        """Return how long things happen after their base, by the curves of the clocks."""
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
        """Return the time of the host from rows of `recorded` until recorded times, ns."""
        begin = np.minimum(self.recorded[base], until)
        clock = values_at(self.clock, base)
        length = until - begin
        for number, curve in enumerate(curves):
            if curve is not None:
                is_of_clock = clock == number
                length[is_of_clock] = curve.time_between(
                    begin[is_of_clock], until[is_of_clock]
                )
        return length

    def _changed_offsets(self, curves: Sequence[Curve | None]) -> Offsets:
        """Return the offsets of curves, found once for the same ones."""
        if not curves:
            return self.offsets
        known_offsets = self._offsets_by_curves
        if id(curves) not in known_offsets:
            most = _NUMBERS_AT_ONCE // max(len(self.program.track), 1)
            while len(known_offsets) > most:
                oldest = next(iter(known_offsets))
                del known_offsets[oldest]
            known_offsets[id(curves)] = (self._offsets(curves), curves)
        offsets, _ = known_offsets[id(curves)]
        return offsets

    def run(self, changes: Iterable[Change]) -> tuple[Int64Array, Replayed]:
        """Return the wall time of each change, ns, and the unchanged replay."""
        most = max(1, _NUMBERS_AT_ONCE // max(len(self.program.track), 1))
        remaining = iter(changes)
        first_changes = [Change()]
        first_changes.extend(islice(remaining, most - 1))
        first_pass = _Pass(self, first_changes)
        walls = [first_pass.run()]
        unchanged = Replayed(
            start=first_pass.start,
            returned=first_pass.returned[:, 0].copy(),
            wall=int(walls[0][0]),
        )
        del first_pass  # its matrices go before the next pass makes others
        for change in remaining:
            changes_of_pass = [change]
            changes_of_pass.extend(islice(remaining, most - 1))
            walls.append(_Pass(self, changes_of_pass).run())
        return np.concatenate(walls)[1:], unchanged

    def parameters(self, change: Change) -> Parameters:
        """Return all that a pass knows of a change."""
        program = self.program
        offsets = self._changed_offsets(change.host)
        node_offset = offsets.node
        duration = program.duration
        if change.duration is not None:
            duration = change.duration
        gap = self.gap_and_standstill
        if change.gap != 1.0:
            scaled_gap = np.rint(self.gap * change.gap).astype(np.int64)
            gap = scaled_gap + self.standstill
        if not isinstance(change.standstill, int):
            shorter = np.minimum(change.standstill, self.standstill)
            gap = gap - shorter
            is_called = program.call != NONE
            node_offset = node_offset - np.where(is_called, shorter, 0)
        if not isinstance(change.shorter_gap, int):
            gap = gap - np.clip(change.shorter_gap, 0, np.maximum(self.gap, 0))
        # Several changes may each take the same latency, or the same tail.
        sooner = np.minimum(change.sooner, self.latency)
        shorter_tail = np.minimum(change.tail, np.maximum(self.tail, 0))
        return Parameters(
            node_offset=node_offset - sooner,
            block_offset=offsets.block,
            clock_end_offset=offsets.clock_end,
            duration=duration,
            tail=self.tail - shorter_tail,
            gap=gap,
            at_least=change.at_least,
            freed=change.freed,
        )


class _Run(NamedTuple):
    """The nodes of a stream in a chunk, r of them, while they run; a column a change.

    `elapsed` is the time that the nodes of the run before each one take, with the gaps between.
    `ready` is when each may start, less that.
    """

    nodes: slice
    track: int
    ready: Int64Array  #: (r, c)
    elapsed: Int64Array  #: (r, c)
    marked: Int64Array  #: which of the nodes are marks, in their order
    marks: Int64Array  #: the marks that those are, from the first one of the chunk on


class _ChunkMarks(NamedTuple):
    """What is known of the m marks of a chunk, while its runs are run; a column a change."""

    #: the greatest `ready` of the nodes from the mark before each one on, (m, c)
    ready: Int64Array
    elapsed: Int64Array  #: as of the run, at the start of each mark, (m, c)
    elapsed_at_end: Int64Array  #: at its end, (m, c)


class _Pass:
    """One pass in the order of calls; a row a node or a block, a column a change."""

    def __init__(self, replay: Replay, changes: Sequence[Change]) -> None:
        self.replay = replay
        self.program = replay.program
        nodes = len(self.program.track)
        blocks = len(self.program.block_start)
        count = len(changes)
        self.offset = np.empty((nodes, count), dtype=np.int64)
        self.block_offset = np.empty((blocks, count), dtype=np.int64)
        self.clock_end_offset = np.empty((replay.clocks, count), dtype=np.int64)
        self.tail = np.empty((blocks, count), dtype=np.int64)
        self.wall = np.empty(count, dtype=np.int64)
        #: how long each node takes, and once it has run, when it ended
        self.end = np.empty((nodes, count), dtype=np.int64)
        #: which blocks do not wait in each change
        self.freed = np.zeros((blocks, count), dtype=bool)
        gaps: list[Int64Array] = []
        for column, change in enumerate(changes):
            parameters = replay.parameters(change)
            self.offset[:, column] = parameters.node_offset
            self.block_offset[:, column] = parameters.block_offset
            self.clock_end_offset[:, column] = parameters.clock_end_offset
            self.tail[:, column] = parameters.tail
            self.end[:, column] = parameters.duration
            self.wall[column] = parameters.at_least
            if parameters.freed is not None:
                self.freed[:, column] = parameters.freed
            gaps.append(parameters.gap)
        if all(gap is gaps[0] for gap in gaps):
            del gaps[1:]  # one column for all changes
        self.gap = np.column_stack(gaps)
        self.earliest = self.program.earliest[:, None]
        self.start = np.zeros(nodes, dtype=np.int64)
        self.returned = np.zeros((len(replay.recorded), count), dtype=np.int64)
        #: the end of each stream so far
        self.reached = np.full((len(self.program.tracks), count), _NEVER)
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
        """Let a block return when all that it waits for has ended."""
        called = self.returned[base] + self.block_offset[block]
        awaited_nodes = self._nodes_of_block[block]
        awaited_end = self.end[awaited_nodes].max(axis=0, initial=_NEVER)
        awaited_end = np.where(self.freed[block], _NEVER, awaited_end)
        row = self.replay.clocks + block
        self.returned[row] = np.maximum(called, awaited_end) + self.tail[block]

    def _run_streams(self, chunk: Chunk) -> None:
        """Run the nodes of a chunk.

        Each starts when it may and its predecessor has ended: with c the time that the ones before
        it take, at c + the greatest (ready - c) so far, which needs no loop. A stream with gaps of
        1, whose nodes take 10 and are ready at 0, 5 and 40:

            c = 0, 11, 22; ready - c = 0, -6, 18; the greatest = 0, 0, 18; start = 0, 11, 40
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
        """Return when nodes of a stream may start, and set what marks need of that."""
        replay = self.replay
        track = int(self.program.track[nodes.start])
        marks_of_nodes = replay.order.marks.of_nodes(nodes)
        marked = replay.order.marks.node[marks_of_nodes] - nodes.start
        awaited = replay.order.marks.awaited_node[marks_of_nodes]
        gaps = self.gap[nodes]
        duration = self.end[nodes]

        ready = self.returned[replay.base_of_node[nodes]] + self.offset[nodes]
        np.maximum(ready, self.earliest[nodes], out=ready)
        ready[marked[awaited != NONE]] = (
            _NEVER  # these are ready when what they await ends
        )
        elapsed = np.zeros_like(ready)
        np.cumsum(duration[:-1] + gaps[1:], axis=0, out=elapsed[1:])
        ready -= elapsed
        np.maximum(ready[0], self.reached[track] + gaps[0], out=ready[0])

        rows = marks_of_nodes - chunk.marks.start
        if len(rows):
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
        """Make `ready` the greatest so far at each mark of a chunk, waits included."""
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
        ready_of_mark = list(marks.ready)  # rows that are changed in place
        # `NONE` reads the last mark here; it is not used.
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


def host_curve(scaled: Sequence[Scaled], frozen: Union) -> Curve | None:
    """Return the time of a clock of which intervals are scaled.

    Factors of intervals that overlap multiply; `frozen` intervals take what was recorded.
    """
    if not scaled:
        return None
    edges = [np.array([0, _FAR]), frozen.start, frozen.end]
    for term in scaled:
        edges.append(term.start)
        edges.append(term.end)
    recorded = distinct(np.concatenate(edges))
    factor = np.ones(len(recorded))
    for term in scaled:
        factor[_begins_in(recorded, union(term.start, term.end))] *= term.factor
    factor[_begins_in(recorded, frozen)] = 1.0
    changed = np.zeros(len(recorded))
    changed[1:] = np.cumsum(np.diff(recorded) * factor[:-1])
    return Curve(recorded, changed)


def _begins_in(time: Int64Array, intervals: Union) -> BoolArray:
    """Return which times lie in an interval, or are its start."""
    begun = np.searchsorted(intervals.start, time, "right")
    last = begun - 1
    end_of_last = values_at(intervals.end, last)
    is_inside: BoolArray = time < end_of_last
    return is_inside
