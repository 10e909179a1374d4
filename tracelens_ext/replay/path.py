"""The critical path: back from the end of the replay over what bound each start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.replay.program import Program
    from tracelens_ext.replay.replay import Replay, Replayed
    from tracelens_ext.trace import BoolArray, Int64Array

#: What a segment is of: a node runs, or what comes before it; the host's time; what blocks it.
RUNS, GAP, LAUNCH, HOST, SYNC = range(5)
#: What bound a start, for each edge.
EDGES: Final = ("", "stream", "wait", "launch", "sync", "not in the file")
_NO, _STREAM, _WAIT, _CALL, _SYNC, _UNKNOWN = range(6)
WAITS: Final = (_WAIT, _SYNC, _UNKNOWN)


@dataclass(frozen=True, eq=False)
class Path:
    """Segments in order of time, which partition the replayed window, s of them."""

    start: Int64Array  #: ns since the window's start, (s,)
    end: Int64Array  #: (s,)
    what: Int64Array  #: `RUNS`, `GAP` …, (s,)
    #: the node; of a sync the block; the row of `Replay.recorded` from which host time runs, (s,)
    of: Int64Array
    edge: Int64Array  #: an index into `EDGES`: what bound it, (s,)
    known: BoolArray  #: whether the recording says so, (s,)


def critical_path(replay: Replay, replayed: Replayed) -> Path:
    """Walk back from the end of the unchanged replay to its beginning."""
    program, clocks, blocks = replay.program, replay.clocks, len(replay.program.block_start)
    edge, before = (column.tolist() for column in _bound_by(replay, replayed))
    start, returned = replayed.start.tolist(), replayed.returned.tolist()
    end = (replayed.start + program.duration).tolist()
    known = np.ones(len(end), dtype=bool)
    known[program.waits[:, 0]] = program.wait_known
    awaited = _awaited(program, end)
    latency, tail = replay.latency.tolist(), replay.tail.tolist()
    segments: list[tuple[int, int, int, int, int, bool]] = []
    time = replayed.wall

    def back_to(begin: int, what: int, of: int, edge: int = _NO, known: bool = True) -> None:
        nonlocal time
        if begin < time:
            segments.append((begin, time, what, of, edge, known))
            time = begin

    is_host, at = _last(replay, replayed, end)
    while time > 0:
        if is_host:
            back_to(returned[at], HOST, at)
            if not clocks <= at < clocks + blocks:
                break
            node, sure = awaited[at - clocks]
            ready = returned[at] - tail[at - clocks]
            is_host = end[node] < ready
            back_to(ready, SYNC, at - clocks, _SYNC, sure or is_host)
            at = int(replay.base_of_block[at - clocks]) if is_host else node
            continue
        back_to(start[at], RUNS, at)
        if edge[at] == _CALL:
            back_to(start[at] - latency[at], LAUNCH, at, _CALL)
            is_host, at = True, int(replay.base_of_node[at])
            continue
        if before[at] == NONE:
            break
        sure = bool(known[at]) and edge[at] != _UNKNOWN
        back_to(end[before[at]], GAP, at, edge[at], sure)
        at = before[at]
    back_to(0, GAP, NONE, _UNKNOWN, False)
    columns = np.array(segments[::-1], dtype=np.int64).reshape(-1, 6).T
    start_ns, end_ns, what, of, by, known_of = columns
    return Path(start_ns, end_ns, what, of, by, known_of.astype(bool))


def _bound_by(replay: Replay, replayed: Replayed) -> tuple[Int64Array, Int64Array]:
    """What bound the start of each node, an index into `EDGES`, and the node that did, if any."""
    program, start = replay.program, replayed.start
    lane, end = program.lane, start + program.duration
    before = np.full(len(lane), NONE, dtype=np.int64)
    same = np.flatnonzero(lane[1:] == lane[:-1]) + 1
    before[same] = same - 1
    source = np.full(len(lane), NONE, dtype=np.int64)
    source[program.waits[:, 0]] = program.waits[:, 1]
    waits = (source != NONE) & (end[source] == start)
    ready = replayed.returned[replay.base_of_node] + replay.offsets[0]
    calls = (program.call != NONE) & (ready == start)
    follows = (before != NONE) & (end[before] + replay.gap == start)
    edge = np.select([waits, calls, follows], [_WAIT, _CALL, _STREAM], _UNKNOWN)
    return edge, np.where(waits, source, before)


def _awaited(program: Program, end: list[int]) -> dict[int, tuple[int, bool]]:
    """What each block waits for that ends last, and whether that is known."""
    result: dict[int, tuple[int, bool]] = {}
    pairs = zip(program.awaited.tolist(), program.awaited_known.tolist(), strict=True)
    for (block, node), known in pairs:
        if block not in result or end[node] > end[result[block][0]]:
            result[block] = node, known
    return result


def _last(replay: Replay, replayed: Replayed, end: list[int]) -> tuple[bool, int]:
    """Whether the host ends last, and the node, or the row of `returned` since which it runs."""
    if replayed.wall in end:
        return False, end.index(replayed.wall)
    last = replayed.returned[replay.base_of_clock] + replay.offsets[2]
    return True, int(replay.base_of_clock[int(np.argmax(last))])
