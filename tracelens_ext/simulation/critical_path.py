"""The critical path: back from the end of the replay over what bound each start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_during,
)
from tracelens_ext.lazy import pd
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_US, EventKind

if TYPE_CHECKING:
    from tracelens_ext.simulation.simulation import Simulation
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray

#: What a segment is of: a node runs, or what comes before it; the host's time; what blocks it.
RUNS, GAP, LAUNCH, HOST, SYNC = range(5)
#: What bound a start, for each edge.
EDGES: Final = ("", "stream", "wait", "launch", "sync", "not in the file")
_NO, _STREAM, _WAIT, _CALL, _SYNC, _UNKNOWN = range(6)


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Segments in order of time, which partition the replayed window, s of them."""

    start: Int64Array  #: ns since the window's start, (s,)
    end: Int64Array  #: (s,)
    what: Int64Array  #: `RUNS`, `GAP` …, (s,)
    #: the node; of a sync the block; the row of `Replay.recorded` from which host time runs, (s,)
    of: Int64Array
    edge: Int64Array  #: an index into `EDGES`: what bound it, (s,)
    known: BoolArray  #: whether the recording says so, (s,)

    @property
    def known_share(self) -> float:
        """Which share of the waits the recording tells."""
        waits = np.isin(self.what, (GAP, SYNC)) & np.isin(
            self.edge, (_WAIT, _SYNC, _UNKNOWN)
        )
        return float(self.known[waits].mean()) if waits.any() else 1.0


def critical_path(replay: Replay, replayed: Replayed) -> CriticalPath:
    """Walk back from the end of the unchanged replay to its beginning."""
    program = replay.program
    clocks = replay.clocks
    blocks = len(replay.program.block_start)
    edge, before = (column.tolist() for column in _bound_by(replay, replayed))
    start = replayed.start.tolist()
    returned = replayed.returned.tolist()
    end = (replayed.start + program.duration).tolist()
    known = np.ones(len(end), dtype=bool)
    known[program.waits[:, 0]] = program.wait_known
    # What each block waits for that ends last, the first of several, and whether that is known.
    block, node = program.awaited.T
    order = np.lexsort((-np.arange(len(node)), np.array(end, dtype=np.int64)[node]))
    is_known_block = program.awaited_known & (program.unusual_tail[block] == 0)
    told = zip(node[order].tolist(), is_known_block[order].tolist(), strict=True)
    awaited = dict(zip(block[order].tolist(), told, strict=True))
    latency = replay.latency.tolist()
    tail = replay.tail.tolist()
    standstill = program.standstill.tolist()
    segments: list[tuple[int, int, int, int, int, bool]] = []
    time = replayed.wall

    def back_to(
        begin: int, what: int, of: int, edge: int = _NO, known: bool = True
    ) -> None:
        nonlocal time
        if begin < time:
            segments.append((begin, time, what, of, edge, known))
            time = begin

    is_host = time not in end
    if is_host and clocks:
        last = replayed.returned[replay.base_of_clock] + replay.offsets[2]
        at = int(replay.base_of_clock[int(np.argmax(last))])
    elif not is_host:
        at = end.index(time)
    while time > 0:
        if is_host:
            back_to(returned[at], HOST, at)
            if not clocks <= at < clocks + blocks:
                break
            last_node, is_known = awaited[at - clocks]
            ready = returned[at] - tail[at - clocks]
            is_host = end[last_node] < ready
            back_to(ready, SYNC, at - clocks, _SYNC, is_known or is_host)
            at = int(replay.base_of_block[at - clocks]) if is_host else last_node
            continue
        back_to(start[at], RUNS, at)
        if standstill[at] and edge[at] in (_CALL, _STREAM):
            back_to(start[at] - standstill[at], GAP, at, _UNKNOWN, False)
        if edge[at] == _CALL:
            back_to(start[at] - standstill[at] - latency[at], LAUNCH, at, _CALL)
            is_host = True
            at = int(replay.base_of_node[at])
            continue
        if before[at] == NONE:
            break
        back_to(
            end[before[at]], GAP, at, edge[at], bool(known[at]) and edge[at] != _UNKNOWN
        )
        at = before[at]
    back_to(0, GAP, NONE, _UNKNOWN, False)
    start_ns, end_ns, what, of, by, sure = (
        np.array(segments[::-1], np.int64).reshape(-1, 6).T
    )
    return CriticalPath(start_ns, end_ns, what, of, by, sure > 0)


def _bound_by(replay: Replay, replayed: Replayed) -> tuple[Int64Array, Int64Array]:
    """What bound the start of each node, an index into `EDGES`, and the node that did, if any."""
    program = replay.program
    start = replayed.start
    track = program.track
    end = start + program.duration
    follows = np.append(False, track[1:] == track[:-1])[: len(track)]
    before = np.where(follows, np.arange(len(track)) - 1, NONE)
    source = np.full(len(track), NONE, dtype=np.int64)
    source[program.waits[:, 0]] = program.waits[:, 1]
    waits = (source != NONE) & (end[source] == start)
    ready = replayed.returned[replay.base_of_node] + replay.offsets[0]
    calls = (program.call != NONE) & (ready == start)
    follows &= end[before] + replay.gap_and_standstill == start
    edge = np.select([waits, calls, follows], [_WAIT, _CALL, _STREAM], _UNKNOWN)
    return edge, np.where(waits, source, before)


_OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


def described(simulation: Simulation, nodes: Int64Array) -> pd.DataFrame:
    """Kind, category, name, operation and stream of nodes; empty, and -1, where they have none."""
    program = simulation.program
    changes = simulation.changes
    work = program.work
    node = np.maximum(nodes, 0)
    event = np.where(nodes == NONE, NONE, program.event[node])
    real = event != NONE
    kind = np.where(work.is_communication[event], "communication", "kernel")
    kind = np.where(changes.is_copy[node], "copy", kind)
    code, labels = changes.category
    operation, operations = work.tree.cpu_op_label_of_gpu
    columns = {
        "kind": np.where(real, kind, "gap"),
        "category": _labels(np.where(real, code[node], NONE), labels),
        "name": _labels(np.where(real, work.name[event], NONE), work.trace.names),
        "operation": _labels(np.where(real, operation[event], NONE), operations),
        "stream": np.where(
            nodes == NONE, NONE, program.tracks.stream[program.track[node]]
        ),
    }
    return pd.DataFrame(columns)


def _labels(code: IntArray, labels: Sequence[str]) -> npt.NDArray[np.object_]:
    """What codes stand for; empty for `NONE`."""
    return np.array([*labels, ""], dtype=object)[code]


def path_table(simulation: Simulation, path: CriticalPath) -> pd.DataFrame:
    """The segments of a critical path, host time cut where launching calls begin and end."""
    program = simulation.program
    work = simulation.program.work
    segment, start, end, marked = _cut(simulation, path)
    what = path.what[segment]
    of = path.of[segment]
    on_stream = np.isin(what, (RUNS, GAP, LAUNCH))
    table = described(simulation, np.where(on_stream, of, NONE))
    runs = what == RUNS
    host = what == HOST
    called = what == LAUNCH
    table["kind"] = np.select(
        [what == GAP, what == SYNC, called | (host & marked), host, runs & marked],
        ["gap", "sync", "launch", "host", "other rank"],
        table["kind"],
    )
    sure = simulation.waits_known | (table["kind"] != "communication").to_numpy()
    table.loc[~runs, ["category", "name"]] = ""
    launch = work.tree.launch_of_gpu[program.event[of[called]]]
    table.loc[called, "name"] = _labels(work.trace.name[launch], work.trace.names)
    for column, kinds in (("name", LAUNCH_KINDS), ("operation", _OPERATIONS)):
        table.loc[host, column] = _host(
            simulation, kinds, of[host], start[host], end[host]
        )
    table.insert(0, "start_us", start / NS_PER_US)
    table.insert(1, "duration_us", (end - start) / NS_PER_US)
    table["edge"] = _labels(path.edge[segment], EDGES)
    table["known"] = path.known[segment] & sure
    return table


def _cut(
    simulation: Simulation, path: CriticalPath
) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
    """Cut host time at launching calls, and collectives where their waiting ends."""
    program = simulation.program
    replay = simulation.replay
    intervals = simulation.changes.host_intervals("launch")
    calls = [np.ravel(np.column_stack(of_clock)) for of_clock in intervals]
    pieces: list[tuple[int, int, int, bool]] = []
    columns = (column.tolist() for column in (path.what, path.of, path.start, path.end))
    for segment, (what, of, begin, stop) in enumerate(zip(*columns, strict=True)):
        cuts = np.empty(0, dtype=np.int64)
        if what == RUNS and program.waiting[of]:
            cuts = np.array(
                [begin, simulation.replayed.start[of] + program.waiting[of]]
            )
        elif what == HOST and of < len(replay.clock):
            later = simulation.replayed.returned[of] - replay.recorded[of]
            of_clock = calls[replay.clock[of]]
            first, last = np.searchsorted(of_clock, [begin - later, stop - later])
            cuts = of_clock[first:last] + later
            cuts = np.append(begin, cuts) if first % 2 else cuts
        bounds = [begin, *cuts.clip(begin, stop).tolist(), stop]
        pieces += [
            (segment, a, b, n % 2 > 0)
            for n, (a, b) in enumerate(pairwise(bounds))
            if a < b
        ]
    cut = np.array(pieces, dtype=np.int64).reshape(-1, 4).T
    return cut[0], cut[1], cut[2], cut[3] > 0


def _host(
    simulation: Simulation, kinds: Sequence[EventKind], *pieces: Int64Array
) -> npt.NDArray[np.object_]:
    """The innermost event of some kinds that covers at least half of each piece of host time.

    Of each the row of `Replay.recorded` from which it runs, its start and its end.
    """
    of, start, end = pieces
    replay = simulation.replay
    work = simulation.program.work
    later = (
        simulation.replayed.returned[of]
        - replay.recorded[of]
        - simulation.program.window[0]
    )
    clock = np.append(replay.clock, NONE)[np.minimum(of, len(replay.clock))]
    result = np.full(len(of), NONE, dtype=np.int64)
    for thread, number in enumerate(simulation.program.clocks.of_thread.tolist()):
        asked = (
            np.flatnonzero((clock == number) & (result == NONE))
            if number != NONE
            else of[:0]
        )
        if len(asked):
            threads = np.full(len(asked), thread)
            begin = start[asked] - later[asked]
            stop = end[asked] - later[asked]
            intervals = HostIntervals(threads, begin, stop)
            result[asked] = innermost_during(
                work.trace, kinds, intervals, ("ProfilerStep#",)
            )
    return _labels(
        np.where(result == NONE, NONE, work.trace.name[result]), work.trace.names
    )
