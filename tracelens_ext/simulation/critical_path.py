"""The critical path: back from the end of the replay over what bound each start."""

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
    """What a segment is."""

    RUNS = 0  #: a node runs
    GAP = 1  #: the time between a node and what it waited for on the GPU
    LAUNCH = 2  #: the latency from a call to its node
    HOST = 3  #: time of the host
    SYNC = 4  #: a call that blocks the host


class Edge(IntEnum):
    """What bound the start of a segment; the order is that of `EDGE_LABELS`."""

    NONE = 0
    STREAM = 1
    WAIT = 2
    LAUNCH = 3
    SYNC = 4
    UNKNOWN = 5


EDGE_LABELS: Final = ("", "stream", "wait", "launch", "sync", "not in the file")


class Segment(NamedTuple):
    """A row of `CriticalPath`; its fields in that order."""

    start: int
    end: int
    part: Part
    source: int
    edge: Edge
    known: bool


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Segments in order of time, which partition the replayed window, s of them."""

    start: Int64Array  #: ns since the window's start, (s,)
    end: Int64Array  #: (s,)
    part: Int64Array  #: a `Part`, (s,)
    #: the node; of a sync the block; the row of `Replay.recorded` from which host time runs, (s,)
    source: Int64Array
    edge: Int64Array  #: an `Edge`: what bound it, (s,)
    known: BoolArray  #: True where the recording says so, (s,)

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
        """The share of the waits that the recording tells."""
        is_wait = np.isin(self.part, (Part.GAP, Part.SYNC))
        is_wait &= np.isin(self.edge, (Edge.WAIT, Edge.SYNC, Edge.UNKNOWN))
        if not is_wait.any():
            return 1.0
        return float(self.known[is_wait].mean())


def critical_path(replay: Replay, replayed: Replayed) -> CriticalPath:
    """Walk back from the end of the unchanged replay to its beginning."""
    return _Walk(replay, replayed).run()


class _LastAwaited(NamedTuple):
    """What a block waits for that ends last."""

    node: int
    known: bool  #: True if the recording says so


class _Walk:
    """A walk from the end of a replay to its beginning, a segment at a time, the last one first.

    It is either at a node, or at a moment of the host: a row of `Replay.recorded` from which time
    of the host runs.
    """

    def __init__(self, replay: Replay, replayed: Replayed) -> None:
        program = replay.program
        self._replay = replay
        self._replayed = replayed
        self._segments: list[Segment] = []
        self._time = replayed.wall  #: where the last segment begins
        end = replayed.start + program.duration
        bounds = _find_bounds(replay, replayed)
        # Lists, as numbers are read one by one.
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
        """Return the segments in order of time."""
        node = NONE
        row = NONE
        if self._time in self._end:
            node = self._end.index(self._time)
        elif self._replay.clocks:
            row = self._row_of_last_clock()
        while self._time > 0:
            if node != NONE:
                node, row = self._pass_node(node)
            elif row != NONE:
                node, row = self._pass_host(row)
            else:
                break
        self._back_to(
            start=0, part=Part.GAP, source=NONE, edge=Edge.UNKNOWN, known=False
        )
        in_order_of_time = self._segments[::-1]
        return _path_of(in_order_of_time)

    def _back_to(
        self, start: int, part: Part, source: int, edge: Edge, *, known: bool = True
    ) -> None:
        """Add the segment from a time to the last segment, if it has a length."""
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
        """Return from where the time of the clock runs that ends last."""
        base = self._replay.base_of_clock
        end = self._replayed.returned[base] + self._replay.offsets.clock_end
        return int(base[int(np.argmax(end))])

    def _pass_host(self, row: int) -> tuple[int, int]:
        """Pass time of the host and the block before it; return the node or the row before."""
        replay = self._replay
        returned = self._returned[row]
        self._back_to(start=returned, part=Part.HOST, source=row, edge=Edge.NONE)
        block = row - replay.clocks
        if not 0 <= block < len(self._tail):
            return NONE, NONE
        awaited = self._last_awaited[block]
        ready = returned - self._tail[block]
        host_was_later = self._end[awaited.node] < ready
        is_known = awaited.known or host_was_later
        self._back_to(
            start=ready, part=Part.SYNC, source=block, edge=Edge.SYNC, known=is_known
        )
        if host_was_later:
            return NONE, int(replay.base_of_block[block])
        return awaited.node, NONE

    def _pass_node(self, node: int) -> tuple[int, int]:
        """Pass a node and what it waited for; return the node or the row before."""
        edge = self._edge[node]
        start = self._start[node]
        called = start - self._standstill[node]
        self._back_to(start=start, part=Part.RUNS, source=node, edge=Edge.NONE)
        if self._standstill[node] and edge in (Edge.LAUNCH, Edge.STREAM):
            self._back_to(
                start=called, part=Part.GAP, source=node, edge=Edge.UNKNOWN, known=False
            )
        if edge == Edge.LAUNCH:
            launched = called - self._latency[node]
            self._back_to(
                start=launched, part=Part.LAUNCH, source=node, edge=Edge.LAUNCH
            )
            return NONE, int(self._replay.base_of_node[node])
        before = self._node_before[node]
        if before == NONE:
            return NONE, NONE
        is_known = bool(self._is_known[node]) and edge != Edge.UNKNOWN
        self._back_to(
            start=self._end[before],
            part=Part.GAP,
            source=node,
            edge=edge,
            known=is_known,
        )
        return before, NONE


class _Bounds(NamedTuple):
    """What bound the start of each node."""

    edge: Int64Array  #: an `Edge`, (n,)
    node: Int64Array  #: the node that it waited for, `NONE` without, (n,)


def _find_bounds(replay: Replay, replayed: Replayed) -> _Bounds:
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
    """Return what each block waits for that ends last; of several, the first one."""
    block, node = program.awaited.T
    is_known = program.awaited_known & (program.unusual_tail[block] == 0)
    # Later entries replace earlier ones: the last to end, and the first of equals, comes last.
    order = np.lexsort((-np.arange(len(node)), end[node]))
    last_awaited: dict[int, _LastAwaited] = {}
    for number, awaited, wait_known in zip(
        block[order].tolist(),
        node[order].tolist(),
        is_known[order].tolist(),
        strict=True,
    ):
        last_awaited[number] = _LastAwaited(awaited, wait_known)
    return last_awaited


def _path_of(segments: list[Segment]) -> CriticalPath:
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
