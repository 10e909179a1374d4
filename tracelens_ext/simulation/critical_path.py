"""The critical path of a replay: the chain of dependencies that determines its wall time.

It is found backwards, from the end of the replay to whatever each start had to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.lookup import values_at


class Part(IntEnum):
    """What happens in a segment of the path."""

    RUNS = 0  #: a node runs
    GAP = 1  #: a node has not started yet, though the GPU work that it waited for has ended
    LAUNCH = 2  #: latency from a call to the start of its node
    HOST = 3  #: the host works
    SYNC = 4  #: a call blocks the host


class Edge(IntEnum):
    """The dependency that determined the start of a segment, in the order of `EDGE_LABELS`."""

    NONE = 0
    STREAM = 1
    WAIT = 2
    LAUNCH = 3
    SYNC = 4
    UNKNOWN = 5


EDGE_LABELS: Final = ("", "stream", "wait", "launch", "sync", "not in the file")


class Segment(NamedTuple):
    """A segment: a row of `CriticalPath`, with its fields in the same order."""

    start: int
    end: int
    part: Part
    source: int
    edge: Edge
    known: bool


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The s segments in order of time. They cover the replayed window without gaps."""

    start: Int64Array  #: ns since the window's start, (s,)
    end: Int64Array  #: ns since the window's start, (s,)
    part: Int64Array  #: a `Part`, (s,)
    #: For `SYNC` the block, for `HOST` the row of `Replay.recorded` from which host time runs, else
    #: the node, (s,).
    source: Int64Array
    edge: Int64Array  #: an `Edge`, (s,)
    known: BoolArray  #: True if the recording tells the dependency, (s,)

    def segments(self) -> Iterator[Segment]:
        """Yield the segments in order of time."""
        return map(
            Segment,
            self.start.tolist(),
            self.end.tolist(),
            self.part.tolist(),
            self.source.tolist(),
            self.edge.tolist(),
            self.known.tolist(),
        )

    @property
    def known_share(self) -> float:
        """The share of the waits on the path that the recording tells; 1 without waits."""
        is_wait = np.isin(self.part, (Part.GAP, Part.SYNC))
        is_wait &= np.isin(self.edge, (Edge.WAIT, Edge.SYNC, Edge.UNKNOWN))
        if not is_wait.any():
            return 1.0
        return float(self.known[is_wait].mean())


def find_critical_path(replay: Replay, replayed: Replayed) -> CriticalPath:
    """Return the critical path of an unchanged replay."""
    return _Walk(replay, replayed).run()


class _LastAwaited(NamedTuple):
    """The node that ends last among those that a block waits for."""

    node: int
    known: bool  #: True if the recording tells that the block waits for it


class _Position(NamedTuple):
    """Where a walk is: at the end of a node or at a moment of the host; `NONE` for the other."""

    node: int
    row: int  #: the row of `Replay.recorded` from which host time runs


_AT_NOTHING: Final = _Position(node=NONE, row=NONE)


class _Walk:
    """A walk from the end of a replay to its beginning, which adds the last segment first."""

    def __init__(self, replay: Replay, replayed: Replayed) -> None:
        program = replay.program
        self._replay = replay
        self._replayed = replayed
        self._segments: list[Segment] = []
        self._time = replayed.wall  #: the start of the segment that was added last
        end = replayed.start + program.duration
        bounds = _find_bounds(replay, replayed)
        # Lists, because reading single numbers of arrays is slow.
        self._start = replayed.start.tolist()
        self._end = end.tolist()
        self._returned = replayed.returned.tolist()
        self._edge = bounds.edge.tolist()
        self._node_before = bounds.node.tolist()
        self._latency = replay.latency.tolist()
        self._tail = replay.tail.tolist()
        self._standstill = program.standstill.tolist()
        self._is_known = np.ones(len(end), dtype=bool)
        self._is_known[program.waits[:, 0]] = program.wait_known
        self._last_awaited = _find_last_awaited(program, end)

    def run(self) -> CriticalPath:
        """Walk, and return the segments in order of time."""
        position = _AT_NOTHING
        if self._time in self._end:
            position = _at_node(self._end.index(self._time))
        elif self._replay.clocks:
            position = _at_row(self._row_of_last_clock())
        while self._time > 0 and position != _AT_NOTHING:
            if position.node != NONE:
                position = self._pass_node(position.node)
            else:
                position = self._pass_host(position.row)
        # If the walk ended early, nothing in the recording explains the beginning.
        self._add_back_to(
            start=0, part=Part.GAP, source=NONE, edge=Edge.UNKNOWN, known=False
        )
        in_order_of_time = self._segments[::-1]
        return _path_of(in_order_of_time)

    def _add_back_to(
        self, start: int, part: Part, source: int, edge: Edge, *, known: bool = True
    ) -> None:
        """Add the segment from a time up to the segment added last, unless it is empty."""
        if start < self._time:
            segment = Segment(
                start=start,
                end=self._time,
                part=part,
                source=source,
                edge=edge,
                known=known,
            )
            self._segments.append(segment)
            self._time = start

    def _row_of_last_clock(self) -> int:
        """Return the row from which host time runs to the end of the clock that ends last."""
        base = self._replay.base_of_clock
        end = self._replayed.returned[base] + self._replay.offsets.clock_end
        return int(base[int(np.argmax(end))])

    def _pass_host(self, row: int) -> _Position:
        """Pass host time that runs from a row, and the block of this row."""
        replay = self._replay
        returned = self._returned[row]
        self._add_back_to(start=returned, part=Part.HOST, source=row, edge=Edge.NONE)
        block = row - replay.clocks
        is_block = 0 <= block < len(self._tail)
        if not is_block:
            return _AT_NOTHING
        awaited = self._last_awaited[block]
        # When the last of call and awaited work was done.
        ready = returned - self._tail[block]
        was_called_later = self._end[awaited.node] < ready
        is_known = awaited.known or was_called_later
        self._add_back_to(
            start=ready, part=Part.SYNC, source=block, edge=Edge.SYNC, known=is_known
        )
        if was_called_later:
            return _at_row(int(replay.base_of_block[block]))
        return _at_node(awaited.node)

    def _pass_node(self, node: int) -> _Position:
        """Pass a node, and the time between it and what it waited for."""
        edge = self._edge[node]
        start = self._start[node]
        start_of_standstill = start - self._standstill[node]
        self._add_back_to(start=start, part=Part.RUNS, source=node, edge=Edge.NONE)
        if self._standstill[node] and edge in (Edge.LAUNCH, Edge.STREAM):
            self._add_back_to(
                start=start_of_standstill,
                part=Part.GAP,
                source=node,
                edge=Edge.UNKNOWN,
                known=False,
            )
        if edge == Edge.LAUNCH:
            called = start_of_standstill - self._latency[node]
            self._add_back_to(
                start=called, part=Part.LAUNCH, source=node, edge=Edge.LAUNCH
            )
            return _at_row(int(self._replay.base_of_node[node]))
        node_before = self._node_before[node]
        if node_before == NONE:
            return _AT_NOTHING
        is_known = bool(self._is_known[node]) and edge != Edge.UNKNOWN
        self._add_back_to(
            start=self._end[node_before],
            part=Part.GAP,
            source=node,
            edge=edge,
            known=is_known,
        )
        return _at_node(node_before)


def _at_node(node: int) -> _Position:
    return _Position(node=node, row=NONE)


def _at_row(row: int) -> _Position:
    return _Position(node=NONE, row=row)


class _Bounds(NamedTuple):
    """The dependency that determined the start of each node."""

    edge: Int64Array  #: an `Edge`, (n,)
    node: Int64Array  #: the node that it waited for, `NONE` without one, (n,)


def _find_bounds(replay: Replay, replayed: Replayed) -> _Bounds:
    """Return the dependency of each node that ended just when the node could start."""
    program = replay.program
    start = replayed.start
    end = start + program.duration
    nodes = np.arange(len(start))
    node_before = np.where(program.nodes.follows, nodes - 1, NONE)
    awaited = np.full(len(start), NONE, dtype=np.int64)
    awaited[program.waits[:, 0]] = program.waits[:, 1]

    by_wait = (awaited != NONE) & (values_at(end, awaited) == start)
    launched = replayed.returned[replay.base_of_node] + replay.offsets.node
    by_launch = program.nodes.is_called & (launched == start)
    free_again = values_at(end, node_before) + replay.gap_and_standstill
    by_stream = program.nodes.follows & (free_again == start)
    edge = np.select(
        [by_wait, by_launch, by_stream],
        [Edge.WAIT, Edge.LAUNCH, Edge.STREAM],
        Edge.UNKNOWN,
    )
    return _Bounds(edge, np.where(by_wait, awaited, node_before))


def _find_last_awaited(
    program: DependencyGraph, end: Int64Array
) -> dict[int, _LastAwaited]:
    """Return the node that ends last among those that each block waits for.

    If several nodes end at the same time, it is the first of them.
    """
    block, node = program.awaited.T
    is_known = program.awaited_known & (program.unusual_tail[block] == 0)
    # A later item of the loop replaces an earlier one, so the node that ends last comes last, and
    # the first of several that end together behind the others.
    order = np.lexsort((-np.arange(len(node)), end[node]))
    last_awaited: dict[int, _LastAwaited] = {}
    for block_number, awaited_node, wait_known in zip(
        block[order].tolist(),
        node[order].tolist(),
        is_known[order].tolist(),
        strict=True,
    ):
        last_awaited[block_number] = _LastAwaited(awaited_node, wait_known)
    return last_awaited


def _path_of(segments: list[Segment]) -> CriticalPath:
    """Return segments as columns."""
    columns = len(Segment._fields)
    rows = np.array(segments, dtype=np.int64).reshape(-1, columns)
    return CriticalPath(
        start=rows[:, 0],
        end=rows[:, 1],
        part=rows[:, 2],
        source=rows[:, 3],
        edge=rows[:, 4],
        known=rows[:, 5] > 0,
    )
