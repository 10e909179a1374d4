"""The critical path as a table: what each segment is of, host time by operation and launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.gaps.host_activity import innermost_during
from tracelens_ext.lazy import pd
from tracelens_ext.replay.path import EDGES, GAP, HOST, LAUNCH, RUNS, SYNC
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_US, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.replay.path import Path
    from tracelens_ext.replay.what_if import Simulation
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray

_OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
_OTHER_RANK: Final = "other rank"


def described(simulation: Simulation, nodes: Int64Array) -> pd.DataFrame:
    """Kind, category, name, operation and stream of nodes; empty, and -1, where they have none."""
    program, changes = simulation.program, simulation.changes
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
        "stream": np.where(nodes == NONE, NONE, program.lanes.stream[program.lane[node]]),
    }
    return pd.DataFrame(columns)


def _labels(code: IntArray, labels: Sequence[str]) -> npt.NDArray[np.object_]:
    """What codes stand for; empty for `NONE`."""
    return np.array([*labels, ""], dtype=object)[code]


def path_table(simulation: Simulation, path: Path) -> pd.DataFrame:
    """The segments of a critical path, host time cut where launching calls begin and end."""
    program, work = simulation.program, simulation.program.work
    segment, start, end, marked = _cut(simulation, path)
    what, of = path.what[segment], path.of[segment]
    on_stream = np.isin(what, (RUNS, GAP, LAUNCH))
    table = described(simulation, np.where(on_stream, of, NONE))
    runs, host, called = what == RUNS, what == HOST, what == LAUNCH
    table["kind"] = np.select(
        [what == GAP, what == SYNC, called | (host & marked), host, runs & marked],
        ["gap", "sync", "launch", "host", _OTHER_RANK],
        table["kind"],
    )
    sure = simulation.waits_known | (table["kind"] != "communication").to_numpy()
    table.loc[~runs, ["category", "name"]] = ""
    launch = work.tree.launch_of_gpu[program.event[of[called]]]
    table.loc[called, "name"] = _labels(work.trace.name[launch], work.trace.names)
    for column, kinds in (("name", LAUNCH_KINDS), ("operation", _OPERATIONS)):
        table.loc[host, column] = _host(simulation, of[host], start[host], end[host], kinds)
    table.insert(0, "start_us", start / NS_PER_US)
    table.insert(1, "duration_us", (end - start) / NS_PER_US)
    table["edge"] = _labels(path.edge[segment], EDGES)
    table["known"] = path.known[segment] & sure
    return table


def _cut(
    simulation: Simulation, path: Path
) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
    """Cut host time at launching calls, and collectives where their waiting ends.

    Returns:
        The segment, start and end of each piece, and whether it is such a call, or waiting.
    """
    program, replay = simulation.program, simulation.replay
    calls = simulation.changes.host_intervals("launch")
    inner: list[Int64Array] = []
    for what, of, begin, stop in zip(path.what, path.of, path.start, path.end, strict=True):
        cuts = np.empty(0, dtype=np.int64)
        if what == RUNS and program.waiting[of]:
            cuts = np.array([begin, simulation.replayed.start[of] + program.waiting[of]])
        elif what == HOST and of < len(replay.clock):
            later = simulation.replayed.returned[of] - replay.recorded[of]
            cuts = np.ravel(np.column_stack(calls[replay.clock[of]])) + later
            first, last = np.searchsorted(cuts, [begin, stop])
            cuts = cuts[first:last] if first % 2 == 0 else np.append(begin, cuts[first:last])
        inner.append(np.clip(cuts, begin, stop))
    count = np.array([len(cuts) for cuts in inner], dtype=np.int64) + 1
    segment = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    start = np.insert(
        np.concatenate([*inner, [0]])[:-1].astype(np.int64),
        first - np.arange(len(count)),
        path.start,
    )
    end = np.append(start[1:], path.end[-1:])
    within = np.arange(len(segment)) - np.repeat(first, count)
    some = end > start
    return segment[some], start[some], end[some], (within % 2 == 1)[some]


def _host(
    simulation: Simulation,
    of: Int64Array,
    start: Int64Array,
    end: Int64Array,
    kinds: Sequence[EventKind],
) -> npt.NDArray[np.object_]:
    """The innermost event of some kinds that covers at least half of each piece of host time."""
    replay, work = simulation.replay, simulation.program.work
    later = simulation.replayed.returned[of] - replay.recorded[of] - simulation.program.window[0]
    clock = np.append(replay.clock, NONE)[np.minimum(of, len(replay.clock))]
    result = np.full(len(of), NONE, dtype=np.int64)
    for thread, number in enumerate(simulation.program.clocks.of_thread.tolist()):
        asked = np.flatnonzero((clock == number) & (result == NONE)) if number != NONE else of[:0]
        if len(asked):
            threads = np.full(len(asked), thread)
            begin, stop = start[asked] - later[asked], end[asked] - later[asked]
            result[asked] = innermost_during(
                work.tree, kinds, threads, begin, stop, "ProfilerStep#"
            )
    return _labels(np.where(result == NONE, NONE, work.trace.name[result]), work.trace.names)
