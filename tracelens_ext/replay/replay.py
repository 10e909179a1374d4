"""The replay: when everything starts and ends, by edges and constants alone, for all changes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.replay.host import HostTime
from tracelens_ext.trace import NONE
from tracelens_ext.work.group_search import items_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.replay.program import Program
    from tracelens_ext.trace import Float64Array, Int64Array

_ROWS_AT_ONCE: Final = 4096
_NUMBERS_AT_ONCE: Final = 1 << 23


@dataclass(frozen=True, eq=False)
class Change:
    """A program with other durations; as recorded by default."""

    duration: Int64Array | None = None  #: of each node, ns
    host: HostTime | None = None
    gap: float = 1.0  #: what gaps are multiplied by
    at_least: int = 0  #: how long it lasts anyhow, ns


@dataclass(eq=False)
class Replayed:
    """The unchanged replay: when each node and each block ended, and all of it, ns."""

    start: Int64Array  #: of each node, (n,)
    returned: Int64Array  #: of the beginning of each clock, 0, and of each block, (k + b,)
    wall: int


class Replay:
    """Runs a program again.

    Args:
        program: the nodes and edges.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        clocks, blocks = len(program.clocks.end), len(program.block_start)
        self.clocks = clocks
        order = np.argsort(program.block_clock, kind="stable")
        clock, end = program.block_clock[order], program.block_end[order]
        places = np.append(order + clocks, 0)

        def base(of: Int64Array, moment: Int64Array) -> Int64Array:
            """The block that returned last on a clock before a moment, or the clock's beginning."""
            at = items_before(clock, end, of, moment + 1) - 1
            found = (at >= 0) & (np.append(clock, NONE)[at] == of)
            return np.where(found, places[at], of)

        called = program.call != NONE
        self.base_of_node = np.where(called, base(program.clock, program.call), clocks + blocks)
        #: of each clock's beginning, and of each block
        self.clock = np.concatenate((np.arange(clocks), program.block_clock))
        self.base_of_block = base(program.block_clock, program.block_start)
        self.base_of_clock = base(
            np.arange(clocks), program.clocks.end
        )
        #: when each clock began, and when each block returned, as recorded
        self.recorded = np.concatenate((np.zeros(clocks, np.int64), program.block_end, [0]))
        real = program.event != NONE
        self.latency = np.where(called, program.constant("latency", slice(None)), 0)
        self.gap = np.where(real, program.constant("gap", slice(None)), 0)
        tail = program.constant("tail", slice(None))
        self.tail = np.zeros(blocks, dtype=np.int64)
        self.tail[program.awaited[:, 0]] = tail[program.awaited[:, 1]]

    def host_time(self, change: Change) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Host time from the last return to each node's start, each block's, and the end."""
        program, recorded = self.program, self.recorded
        called = program.call != NONE
        call = np.where(called, program.call, 0)
        ends = program.clocks.end
        parts = (
            (program.clock, self.base_of_node, call),
            (program.block_clock, self.base_of_block, program.block_start),
            (np.arange(self.clocks), self.base_of_clock, ends),
        )
        if change.host is None:
            nodes, blocks, last = (to - recorded[base] for _, base, to in parts)
        else:
            nodes, blocks, last = (
                change.host.between(clock, np.minimum(recorded[base], to), to)
                for clock, base, to in parts
            )
        return nodes + self.latency, blocks, last

    def run(self, changes: Sequence[Change]) -> tuple[Int64Array, Replayed]:
        """The wall time of each change, ns, and the unchanged replay."""
        most = max(1, _NUMBERS_AT_ONCE // max(len(self.program.lane), 1))
        walls, unchanged = [], None
        todo = [Change(), *changes]
        for first in range(0, len(todo), most):
            one = _Pass(self, todo[first : first + most])
            walls.append(one.run())
            unchanged = unchanged or Replayed(
                one.start, one.returned[:, 0].copy(), int(walls[0][0])
            )
        assert unchanged is not None
        return np.concatenate(walls)[1:], unchanged


class _Pass:
    """One pass in the order of calls; a row a node or a block, a column a change."""

    def __init__(self, replay: Replay, changes: Sequence[Change]) -> None:
        self.replay, self.program, count = replay, replay.program, len(changes)
        program = self.program
        shared: dict[int, int] = {}
        columns = [shared.setdefault(id(each.host), len(shared)) for each in changes]
        times = [
            replay.host_time(next(c for c, k in zip(changes, columns, strict=True) if k == kind))
            for kind in range(len(shared))
        ]
        node, block, last = (
            np.column_stack(parts)[:, columns] for parts in zip(*times, strict=True)
        )
        self.offset, self.block_offset, self.last_offset = node, block, last
        self.duration = np.column_stack(
            [program.duration if each.duration is None else each.duration for each in changes]
        )
        factor = np.array([each.gap for each in changes])
        self.at_least = np.array([each.at_least for each in changes])
        self.gap = {g: np.rint(g * factor).astype(np.int64) for g in np.unique(replay.gap).tolist()}
        self.gap_of_node = replay.gap
        self.start = np.zeros(len(program.lane), dtype=np.int64)
        self.earliest = program.earliest[:, None]
        self.returned = np.zeros((len(replay.recorded), count), dtype=np.int64)
        awaited = np.concatenate((program.awaited[:, 1], program.waits[:, 1]))
        self.kept = np.unique(awaited).tolist()
        self.ends: dict[int, Int64Array] = {}
        lanes = np.unique(program.lane)
        self.next = dict(
            zip(lanes.tolist(), np.searchsorted(program.lane, lanes).tolist(), strict=True)
        )
        self.reached = {lane: None for lane in self.next}

    def run(self) -> Int64Array:
        """The wall times, (c,)."""
        replay, program = self.replay, self.program
        lane = program.lane.tolist()
        waits = program.waits[np.argsort(program.key[program.waits[:, 0]], kind="stable")]
        begins = program.block_start.tolist()
        of_block = np.searchsorted(program.awaited[:, 0], np.arange(len(begins) + 1)).tolist()
        awaited = program.awaited[:, 1].tolist()
        points = [(key, 0, w) for w, key in enumerate(program.key[waits[:, 0]].tolist())]
        points += [(begin, 1, b) for b, begin in enumerate(begins)]
        base, pairs = replay.base_of_block.tolist(), waits.tolist()
        for _, is_block, at in sorted(points):
            if not is_block:
                node, source = pairs[at]
                self._advance(lane[source], source)
                self._advance(lane[node], node - 1)
                self._advance(lane[node], node, self.ends[source])
                continue
            time = self.returned[base[at]] + self.block_offset[at]
            for node in awaited[of_block[at] : of_block[at + 1]]:
                self._advance(lane[node], node)
                time = np.maximum(time, self.ends[node])
            self.returned[replay.clocks + at] = time + replay.tail[at]
        wall = self.at_least
        if replay.clocks:
            ends = self.returned[replay.base_of_clock] + self.last_offset
            wall = np.maximum(wall, ends.max(axis=0))
        stops = np.searchsorted(program.lane, list(self.next), "right").tolist()
        for number, stop in zip(list(self.next), stops, strict=True):
            self._advance(number, stop - 1)
            wall = np.maximum(wall, self.reached[number])
        return wall

    def _advance(self, lane: int, until: int, waited: Int64Array | None = None) -> None:
        """Run the nodes of a stream up to one.

        Each starts when it may and its predecessor has ended: with c the time that the ones before
        it take, at c + the greatest (ready - c) so far, which needs no loop.
        """
        while (first := self.next[lane]) <= until:
            stop = min(until + 1, first + _ROWS_AT_ONCE)
            rows = slice(first, stop)
            ready = self.returned[self.replay.base_of_node[rows]] + self.offset[rows]
            np.maximum(ready, self.earliest[rows], out=ready)
            before, duration = self.reached[lane], self.duration[rows]
            gaps = self.gap_of_node[rows]
            if waited is not None:
                ready = np.maximum(ready, waited)
            if before is not None:
                ready[0] = np.maximum(ready[0], before + self.gap[int(gaps[0])])
            if stop - first > 1:
                taken = np.zeros_like(ready)
                taken[1:] = duration[:-1]
                real = int(gaps.max())
                taken[1:] += np.where((gaps[1:] > 0)[:, None], self.gap[real], 0)
                np.cumsum(taken, axis=0, out=taken)
                ready = np.maximum.accumulate(ready - taken, axis=0) + taken
            end = ready + duration
            self.start[rows] = ready[:, 0]
            for node in self.kept[bisect_left(self.kept, first) : bisect_left(self.kept, stop)]:
                self.ends[node] = end[node - first]
            self.reached[lane], self.next[lane] = end[-1], stop
