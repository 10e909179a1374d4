"""Extracts the tables of one rank that are needed to match its calls with those of other ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.iterations.iterations import find_iterations, iteration_at
from tracelens_ext.distributed.process_groups import complete_groups, configured_groups
from tracelens_ext.distributed.rank_activity import OWN_ACTIVITIES, RankActivity
from tracelens_ext.lazy import pd
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, BoolArray, Int64Array
from tracelens_ext.trace.intervals import covered, union, union_length

if TYPE_CHECKING:
    from tracelens_ext.distributed.rank_numbers import TraceRanks
    from tracelens_ext.trace.gpu_events import GpuEvents

#: The tables that `rank_tables` returns.
RANK_TABLES = ("rank_calls", "rank_iterations", "overlap")

#: Runtime calls that launch a kernel or a graph, which may contain a collective.
_KERNEL_LAUNCH = re.compile(r"(cuda|hip|cu)(Graph)?Launch")
_TEXT_ARGUMENTS = (
    "Collective name",
    "Process Group Name",
    "Process Group Ranks",
    "Process Group Description",
    "dtype",
)
_NUMBER_ARGUMENTS = (
    "Group size",
    "In msg nelems",
    "Out msg nelems",
    "Seq",
    "Src Rank",
    "Dst Rank",
)


def rank_tables(gpu_events: GpuEvents, ranks: TraceRanks) -> dict[str, pd.DataFrame]:
    """Return `rank_calls`, `rank_iterations` and `overlap` of the rank or ranks of a trace.

    If the devices of the trace are different ranks, each table has the rows of all of them.
    """
    if not ranks.of_device:
        everything = np.ones(len(gpu_events), dtype=bool)
        device = int(gpu_events.trace.device.min()) if len(gpu_events) else NONE
        return _tables_of_rank(
            gpu_events=gpu_events,
            is_of_rank=everything,
            rank=ranks.first,
            device=device,
        )
    tables_of_ranks = []
    for device, rank in ranks.of_device.items():
        is_on_device = gpu_events.trace.device == device
        tables = _tables_of_rank(
            gpu_events=gpu_events,
            is_of_rank=is_on_device,
            rank=rank,
            device=device,
        )
        tables_of_ranks.append(tables)
    return {
        name: pd.concat([tables[name] for tables in tables_of_ranks], ignore_index=True)
        for name in RANK_TABLES
    }


def _tables_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray, rank: int, device: int
) -> dict[str, pd.DataFrame]:
    """Return the tables of one rank, whose GPU events `is_of_rank` selects, (g,)."""
    activity = RankActivity(gpu_events, is_of_rank)
    calls = _recorded_calls(gpu_events, is_of_rank)
    _add_activities(calls, activity)
    if is_of_rank.all():
        # With several ranks in a trace, it is not known which rank launched a call whose
        # kernel was never recorded.
        never_recorded = _calls_never_recorded(gpu_events)
        if len(never_recorded):
            never_recorded = never_recorded.reindex(columns=calls.columns, fill_value=0)
            calls = pd.concat([calls, never_recorded])
    calls["base"] = gpu_events.trace.base_ns
    calls["device"] = device
    complete_groups(calls, configured_groups(gpu_events.trace.metadata))
    tables = {
        "rank_calls": calls.reset_index(drop=True),
        "rank_iterations": _iteration_table(
            gpu_events=gpu_events,
            is_of_rank=is_of_rank,
            activity=activity,
        ),
        "overlap": _overlap_table(calls, activity),
    }
    for frame in tables.values():
        frame.insert(0, "rank", rank)
    return tables


# The calls of a rank.


def _add_activities(calls: pd.DataFrame, activity: RankActivity) -> None:
    """Add what the rank had done until the start and until the end of each call, ns, in place.

    The columns are `computation_start`, `computation_end` and so on, for each of `OWN_ACTIVITIES`.
    """
    instants_of_suffix = {
        "start": calls["start"],
        "end": calls["start"] + calls["dur"],
    }
    for suffix, instants in instants_of_suffix.items():
        spent = activity.until(instants.to_numpy(np.int64))
        for name in OWN_ACTIVITIES:
            calls[f"{name}_{suffix}"] = spent[name]


def _recorded_calls(gpu_events: GpuEvents, is_of_rank: BoolArray) -> pd.DataFrame:
    """Return a row for each communication kernel of a rank, in the order of their launches."""
    tree = gpu_events.tree
    selected = np.flatnonzero(gpu_events.is_communication & is_of_rank)
    # Kernels whose launch is not in the trace are ordered by their start.
    launch_time = gpu_events.start[selected]
    is_linked = tree.linked[selected]
    linked_launches = tree.launch_of_gpu[selected[is_linked]]
    launch_time[is_linked] = gpu_events.trace.ts[linked_launches]
    describing_events = collectives.describing_events(gpu_events, selected)
    table = _arguments(gpu_events, describing_events)
    names = ["Collective name", "kernel_name"]
    communication = collectives.communication_of(gpu_events)
    table[names] = communication.loc[selected, names].reset_index(drop=True)
    iterations = find_iterations(tree)
    iteration = iterations.numbers(iterations.of_gpu[selected])
    table["iteration"] = pd.array(iteration, dtype="str")
    table["launch"] = launch_time
    table["start"] = gpu_events.start[selected]
    table["dur"] = gpu_events.duration[selected]
    table["recorded"] = True
    return table.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def _calls_never_recorded(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row for each collective that was launched and whose kernel was not recorded.

    Apart from `start` and `dur`, the columns are those of `_recorded_calls`.
    """
    trace = gpu_events.trace
    tree = gpu_events.tree
    launches = trace.rows_of(*LAUNCH_KINDS)
    launches = launches[trace.named(trace.name[launches], _KERNEL_LAUNCH.match)]
    launches = launches[~np.isin(launches, tree.launch_of_gpu)]
    events_of_collectives = trace.arg("Collective name").rows
    describing_events = collectives.events_above(
        tree, tree.position[launches], events_of_collectives
    )
    is_collective = describing_events != NONE
    launches = launches[is_collective]
    table = _arguments(gpu_events, describing_events[is_collective])
    table["launch"] = trace.ts[launches]
    table["kernel_name"] = ""
    table["recorded"] = False
    iterations = find_iterations(tree)
    spans = (iterations.process, iterations.start, iterations.end)
    process = trace.process_of_thread[trace.thread[launches]].astype(np.int64)
    iteration = iteration_at(spans, process, trace.ts[launches])
    table["iteration"] = pd.array(iterations.numbers(iteration), dtype="str")
    return table


def _arguments(gpu_events: GpuEvents, rows: Int64Array) -> pd.DataFrame:
    """Return the arguments of collectives that the events in `rows` record, a row for each."""
    columns: dict[str, Any] = {}
    for name in _TEXT_ARGUMENTS:
        columns[name] = collectives.text_argument(gpu_events, name, rows)
    for name in _NUMBER_ARGUMENTS:
        columns[name] = collectives.number_argument(gpu_events, name, rows)
    return pd.DataFrame(columns).astype(dict.fromkeys(_TEXT_ARGUMENTS, "str"))


# The iterations of a rank.


class _RankIteration(NamedTuple):
    """An iteration of a rank, or its whole recording if it has no iterations."""

    name: str  #: the number of the iteration; empty for the whole recording
    start: int  #: ns since the trace's first event
    end: int  #: ns since the trace's first event
    is_computation: BoolArray  #: the GPU events of its computation, (g,)


def _iterations_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray
) -> list[_RankIteration]:
    """Return the iterations of the processes that launched the GPU work of a rank."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    iterations = find_iterations(tree)
    launches = tree.launch_of_gpu[is_of_rank & tree.linked]
    processes_of_rank = np.unique(trace.process_of_thread[trace.thread[launches]])
    is_computation = is_of_rank & ~gpu_events.is_communication
    is_iteration_of_rank = np.isin(iterations.process, processes_of_rank)
    rank_iterations = []
    for index in np.flatnonzero(is_iteration_of_rank).tolist():
        is_in_iteration = iterations.of_gpu == index
        iteration = _RankIteration(
            name=str(iterations.number[index]),
            start=int(iterations.start[index]),
            end=int(iterations.end[index]),
            is_computation=is_computation & is_in_iteration,
        )
        rank_iterations.append(iteration)
    if not rank_iterations and is_of_rank.any():
        whole_recording = _RankIteration(
            name="",
            start=int(gpu_events.start[is_of_rank].min()),
            end=int(gpu_events.end[is_of_rank].max()),
            is_computation=is_computation,
        )
        rank_iterations.append(whole_recording)
    return rank_iterations


def _iteration_table(
    gpu_events: GpuEvents, is_of_rank: BoolArray, activity: RankActivity
) -> pd.DataFrame:
    """Return a row for each iteration: how long it took, and what the rank did in it, ns.

    `computation` is that of the kernels that belong to the iteration, even if they run after its
    end. The other activities are those between its start and its end.
    """
    iterations = _iterations_of_rank(gpu_events, is_of_rank)
    start = np.array([iteration.start for iteration in iterations], dtype=np.int64)
    end = np.array([iteration.end for iteration in iterations], dtype=np.int64)
    computation = [
        union_length(
            gpu_events.start[iteration.is_computation],
            gpu_events.end[iteration.is_computation],
        )
        for iteration in iterations
    ]
    until_start = activity.until(start)
    until_end = activity.until(end)
    names = [iteration.name for iteration in iterations]
    columns: dict[str, object] = {"iteration": pd.Series(names, dtype="str")}
    for name in OWN_ACTIVITIES:
        if name != "computation":
            columns[name] = until_end[name] - until_start[name]
    columns["computation"] = np.array(computation, dtype=np.int64)
    columns["total"] = end - start
    return pd.DataFrame(columns)


# How much communication is hidden.


def _overlap_table(calls: pd.DataFrame, activity: RankActivity) -> pd.DataFrame:
    """Return how much of the communication is hidden by computation.

    The first row, whose process group and iteration are empty, is about all communication of the
    rank. The other rows are about the communication of one process group in one iteration.
    """
    recorded_calls = calls[calls["recorded"]]
    rows = [_overlap_row("", "", recorded_calls, activity)]
    groups = recorded_calls.groupby(["Process Group Name", "iteration"])
    for (process_group, iteration), calls_of_group in groups:
        if process_group == "" and iteration == "":
            continue  # it would look like the row about all communication
        row = _overlap_row(str(process_group), str(iteration), calls_of_group, activity)
        rows.append(row)
    return pd.DataFrame(rows).astype({"process_group": "str", "iteration": "str"})


def _overlap_row(
    process_group: str, iteration: str, calls: pd.DataFrame, activity: RankActivity
) -> dict[str, object]:
    """Return how long some calls ran, and for how long kernels computed meanwhile."""
    call_start = calls["start"].to_numpy(np.int64)
    call_end = call_start + calls["dur"].to_numpy(np.int64)
    communication = union(call_start, call_end)
    communication_ns = (communication.end - communication.start).sum()
    hidden_ns = covered(
        start=activity.kernels.start,
        end=activity.kernels.end,
        window_start=communication.start,
        window_end=communication.end,
    ).sum()
    hidden_percent = np.nan
    if communication_ns:
        hidden_percent = 100.0 * hidden_ns / communication_ns
    return {
        "process_group": process_group,
        "iteration": iteration,
        "communication_ms": communication_ns / NS_PER_MS,
        "hidden_ms": hidden_ns / NS_PER_MS,
        "hidden_percent": hidden_percent,
    }
