"""What is kept of one rank, so that its calls can be matched with those of the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.idle_time.causes import blocking_calls
from tracelens_ext.analysis.iterations.selection import find_iterations, iteration_at
from tracelens_ext.lazy import pd
from tracelens_ext.text import json_value
from tracelens_ext.trace import (
    HOST_KINDS,
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    Int64Array,
    distributed_info,
)
from tracelens_ext.trace.intervals import covered, union, union_length

if TYPE_CHECKING:
    from tracelens_ext.distributed.rank_numbers import TraceRanks
    from tracelens_ext.trace.gpu_events import GpuEvents

#: The tables of `rank_tables`.
RANK_TABLES = ("rank_calls", "rank_iterations", "overlap")
#: What a rank does outside of its calls. Of each, tables have the time in ns from the start of the
#: recording to an instant.
OWN_ACTIVITIES = ("computation", "data_loader", "host", "idle")
#: The columns that tell process groups apart.
GROUP_COLUMNS = ("Process Group Name", "Process Group Ranks", "Group size")

_DATA_LOADER = re.compile(r"enumerate\(DataLoader\)#")
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
#: What stands in a list of ranks that the profiler shortened.
_ELLIPSIS = "..."
_DIGEST_BYTES = 6

#: Name of a process group → its ranks.
ConfiguredGroups = Mapping[str, Sequence[int]]


def rank_tables(gpu_events: GpuEvents, ranks: TraceRanks) -> dict[str, pd.DataFrame]:
    """Return `rank_calls`, `rank_iterations` and `overlap` of the rank or ranks of a trace."""
    if ranks.of_device:
        parts = []
        for device, rank in ranks.of_device.items():
            is_on_device = gpu_events.trace.device == device
            parts.append(
                _tables_of_rank(
                    gpu_events=gpu_events,
                    is_of_rank=is_on_device,
                    rank=rank,
                    device=device,
                )
            )
    else:
        everything = np.ones(len(gpu_events), dtype=bool)
        device = int(gpu_events.trace.device.min()) if len(gpu_events) else NONE
        tables = _tables_of_rank(
            gpu_events=gpu_events,
            is_of_rank=everything,
            rank=ranks.first,
            device=device,
        )
        parts = [tables]
    return {
        name: pd.concat([part[name] for part in parts], ignore_index=True)
        for name in RANK_TABLES
    }


def communication_about(
    configured: ConfiguredGroups,
    tables: Mapping[str, pd.DataFrame],
    ranks: Sequence[int],
    world_size: int | None,
) -> dict[str, Any]:
    """Return what is noted of a trace's communication, as JSON.

    Args:
        configured: the process groups that the trace's metadata lists.
        tables: of the trace, by name; without `rank_calls` nothing is known of its communication.
        ranks: those of the trace, ascending.
        world_size: how many ranks the job had; None if the trace does not say.

    Returns:
        Its `ranks`, the keys of the `groups` whose calls it has, a digest of the ranks of each of
        its process groups (`sets`), and `positions`: key of a group → the index of the rank in it,
        its size, and whether it has all ranks of the job.
    """
    calls = tables.get("rank_calls")
    if calls is None:
        return {"ranks": list(ranks), "groups": [], "sets": [], "positions": {}}
    key_of_group = _keys_of_groups(calls)
    members_of_group: dict[tuple[str, str], Sequence[int]] = {
        (name, str(members)): members for name, members in configured.items()
    }
    for name, ranks_text in key_of_group:
        members_of_group.setdefault((name, ranks_text), numbers_in(ranks_text))
    positions = {}
    for (name, ranks_text), members in members_of_group.items():
        if ranks[0] in members:
            size = len(members)
            key = key_of_group.get((name, ranks_text))
            if key is None:
                key = _group_key(
                    name=name,
                    ranks_text=ranks_text,
                    size=float(size),
                )
            positions[key] = (members.index(ranks[0]), size, size == world_size)
    sets = {_digest(str(sorted(members))) for members in members_of_group.values()}
    return {
        "ranks": list(ranks),
        "groups": sorted(set(calls["key"])),
        "sets": sorted(sets),
        "positions": positions,
    }


def _keys_of_groups(calls: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the key of each process group, by its name and the text of its ranks."""
    groups = calls[calls["key"] != ""]
    groups = groups.drop_duplicates([*GROUP_COLUMNS, "key"])
    keys = {}
    for _, row in groups.iterrows():
        name = row["Process Group Name"]
        ranks = row["Process Group Ranks"]
        keys[name, ranks] = row["key"]
    return keys


def numbers_in(text: str) -> list[int]:
    """Return the ranks in a text such as `[0, 8]`."""
    return [int(rank) for rank in re.findall(r"\d{1,9}", text)]


def configured_groups(metadata: Mapping[str, object]) -> dict[str, list[int]]:
    """Return name → ranks of the process groups that `distributedInfo` lists."""
    listed = distributed_info(metadata).get("pg_config")
    if isinstance(listed, str):
        listed = json_value(listed)
    if not isinstance(listed, list):
        return {}
    groups = {}
    for group in listed:
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            groups[str(group.get("pg_name", ""))] = ranks
    return groups


def _group_key(name: str, ranks_text: str, size: float) -> str:
    """Return what tells a process group from all others: a digest of name, ranks and size."""
    return _digest(f"{name}|{ranks_text}|{size}")


def _digest(text: str) -> str:
    content = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _tables_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray, rank: int, device: int
) -> dict[str, pd.DataFrame]:
    """Return the tables of one rank, whose GPU events `is_of_rank` selects."""
    activity = _RankActivity(gpu_events, is_of_rank)
    calls = _calls(gpu_events, is_of_rank)
    ends = calls["start"] + calls["dur"]
    for suffix, instants in (("start", calls["start"]), ("end", ends)):
        spent = activity.until(instants.to_numpy(np.int64))
        for name in OWN_ACTIVITIES:
            calls[f"{name}_{suffix}"] = spent[name]
    if is_of_rank.all():
        never_recorded = _never_recorded(gpu_events)
        if len(never_recorded):
            never_recorded = never_recorded.reindex(columns=calls.columns, fill_value=0)
            calls = pd.concat([calls, never_recorded])
    calls["base"] = gpu_events.trace.base_ns
    calls["device"] = device
    _add_groups(calls, configured_groups(gpu_events.trace.metadata))
    tables = {
        "rank_calls": calls,
        "rank_iterations": _iterations(
            gpu_events=gpu_events,
            is_of_rank=is_of_rank,
            activity=activity,
        ),
        "overlap": _overlap(calls, activity),
    }
    for frame in tables.values():
        frame.insert(0, "rank", rank)
    return tables


def _add_groups(calls: pd.DataFrame, configured: ConfiguredGroups) -> None:
    """Complete the ranks of process groups, and add the column `key`, empty for unknown groups."""
    name = calls["Process Group Name"]
    ranks = calls["Process Group Ranks"]
    text_of_name = {name: str(members) for name, members in configured.items()}
    configured_ranks = name.map(text_of_name)
    is_shortened = ranks.str.contains(_ELLIPSIS, regex=False)
    is_configured = configured_ranks.notna()
    ranks = configured_ranks.where(is_shortened & is_configured, ranks)
    calls["Process Group Ranks"] = ranks
    size = calls["Group size"].map(str).astype("str")
    descriptions = name + "|" + ranks + "|" + size
    distinct = descriptions.unique()
    key_of_description = {text: _digest(text) for text in distinct}
    keys = descriptions.map(key_of_description).astype("str")
    has_group = (name != "") | (ranks != "")
    is_known = has_group & (calls["Collective name"] != "")
    calls["key"] = keys.where(is_known, "")


class _Intervals(NamedTuple):
    """Disjoint intervals of time, ascending, ns since the trace's first event."""

    start: Int64Array
    end: Int64Array

    def with_others(self, start: Int64Array, end: Int64Array) -> _Intervals:
        """Return the union with other intervals."""
        return _Intervals(
            *union(np.append(self.start, start), np.append(self.end, end))
        )

    def time_until(self, instants: Int64Array) -> Int64Array:
        """Return how much of these intervals lies before each instant, ns."""
        return covered(
            start=self.start,
            end=self.end,
            window_start=np.zeros_like(instants),
            window_end=instants,
        )


@dataclass(frozen=True)
class _HostEvents:
    """The CPU events of the processes that launched the GPU work of a rank, as rows."""

    all_rows: Int64Array
    data_loader: Int64Array  #: those that load data
    waiting: Int64Array  #: calls that wait for the GPU

    @classmethod
    def of_rank(cls, gpu_events: GpuEvents, is_of_rank: BoolArray) -> _HostEvents:
        """Find the CPU events of a rank."""
        trace = gpu_events.trace
        tree = gpu_events.tree
        process_of_event = trace.process_of_thread[trace.thread]
        launches = tree.launch_of_gpu[is_of_rank & tree.linked]
        processes = np.unique(process_of_event[launches])
        is_in_process = np.isin(process_of_event, processes)
        rows = trace.rows_of(*HOST_KINDS)
        rows = rows[is_in_process[rows]]
        waiting = blocking_calls(gpu_events)
        waiting = waiting[is_in_process[waiting]]
        data_loader = rows[trace.named(trace.name[rows], _DATA_LOADER.match)]
        return cls(rows, data_loader, waiting)


class _RankActivity:
    """How long a rank had done what until an instant.

    Every nanosecond that is not computation belongs to the first of these that covers it: the GPU
    is busy; data are loaded; the CPU waits for the GPU; the CPU is recorded.
    """

    def __init__(self, gpu_events: GpuEvents, is_of_rank: BoolArray) -> None:
        trace = gpu_events.trace
        is_computation = is_of_rank & ~gpu_events.is_communication
        self._computation = _union_of(gpu_events, is_computation)
        #: intervals with kernels that compute, without copies
        self.kernels = _union_of(gpu_events, is_computation & ~gpu_events.is_copy)
        host = _HostEvents.of_rank(gpu_events, is_of_rank)
        self._busy = _union_of(gpu_events, is_of_rank)
        self._or_loading = self._busy.with_others(
            trace.ts[host.data_loader], trace.end_of(host.data_loader)
        )
        self._or_waiting = self._or_loading.with_others(
            trace.ts[host.waiting], trace.end_of(host.waiting)
        )
        self._or_recorded = self._or_waiting
        if len(host.all_rows):
            first_start = trace.ts[host.all_rows].min(keepdims=True)
            last_end = trace.end_of(host.all_rows).max(keepdims=True)
            self._or_recorded = self._or_waiting.with_others(first_start, last_end)

    def until(self, instants: Int64Array) -> dict[str, Int64Array]:
        """Return the time spent in each of `OWN_ACTIVITIES` until some instants, ns."""
        or_loading = self._or_loading.time_until(instants)
        or_waiting = self._or_waiting.time_until(instants)
        or_recorded = self._or_recorded.time_until(instants)
        waiting = or_waiting - or_loading
        not_recorded = instants - or_recorded
        return {
            "computation": self._computation.time_until(instants),
            "data_loader": or_loading - self._busy.time_until(instants),
            "host": or_recorded - or_waiting,
            "idle": waiting + not_recorded,
        }


def _union_of(gpu_events: GpuEvents, selected: BoolArray) -> _Intervals:
    """Return the time in which any of the selected GPU events runs."""
    return _Intervals(*union(gpu_events.start[selected], gpu_events.end[selected]))


def _calls(gpu_events: GpuEvents, is_of_rank: BoolArray) -> pd.DataFrame:
    """Return a row for each communication kernel, in the order of their launches."""
    tree = gpu_events.tree
    selected = np.flatnonzero(gpu_events.is_communication & is_of_rank)
    launch_time = gpu_events.start[selected]
    is_linked = tree.linked[selected]
    linked_launches = tree.launch_of_gpu[selected[is_linked]]
    launch_time[is_linked] = gpu_events.trace.ts[linked_launches]
    iterations = find_iterations(tree)
    described = collectives.describing_events(gpu_events, selected)
    table = _arguments(gpu_events, described)
    names = ["Collective name", "kernel_name"]
    communication = collectives.communication_of(gpu_events)
    table[names] = communication.loc[selected, names].reset_index(drop=True)
    iteration = iterations.numbers(iterations.of_gpu[selected])
    table["iteration"] = pd.array(iteration, dtype="str")
    table["launch"] = launch_time
    table["start"] = gpu_events.start[selected]
    table["dur"] = gpu_events.duration[selected]
    table["recorded"] = True
    return table.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def _arguments(gpu_events: GpuEvents, rows: Int64Array) -> pd.DataFrame:
    """Return what some events say of the collective that they belong to."""
    columns: dict[str, Any] = {}
    for name in _TEXT_ARGUMENTS:
        columns[name] = collectives.text_argument(gpu_events, name, rows)
    for name in _NUMBER_ARGUMENTS:
        columns[name] = collectives.number_argument(gpu_events, name, rows)
    return pd.DataFrame(columns).astype(dict.fromkeys(_TEXT_ARGUMENTS, "str"))


def _never_recorded(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return collectives that were launched and whose kernels were not recorded, like `_calls`."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    launches = trace.rows_of(*LAUNCH_KINDS)
    launches = launches[trace.named(trace.name[launches], _KERNEL_LAUNCH.match)]
    launches = launches[~np.isin(launches, tree.launch_of_gpu)]
    describing_rows = trace.arg("Collective name").rows
    described = collectives.events_above(tree, tree.position[launches], describing_rows)
    is_collective = described != NONE
    launches = launches[is_collective]
    described = described[is_collective]
    table = _arguments(gpu_events, described)
    table["launch"] = trace.ts[launches]
    table["kernel_name"] = ""
    table["recorded"] = False
    iterations = find_iterations(tree)
    spans = (iterations.process, iterations.start, iterations.end)
    process = trace.process_of_thread[trace.thread[launches]].astype(np.int64)
    iteration = iteration_at(spans, process, trace.ts[launches])
    table["iteration"] = pd.array(iterations.numbers(iteration), dtype="str")
    return table


class _RankIteration(NamedTuple):
    """An iteration of a rank; the whole recording if it has none."""

    name: str
    start: int  #: ns since the trace's first event
    end: int
    is_computation: BoolArray  #: which GPU events it computes with, (g,)


def _iterations_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray
) -> list[_RankIteration]:
    """Return the iterations of the processes that launched the GPU work of a rank."""
    trace = gpu_events.trace
    iterations = find_iterations(gpu_events.tree)
    launches = gpu_events.tree.launch_of_gpu[is_of_rank & gpu_events.tree.linked]
    processes = np.unique(trace.process_of_thread[trace.thread[launches]])
    is_computation = is_of_rank & ~gpu_events.is_communication
    found = []
    for index in np.flatnonzero(np.isin(iterations.process, processes)).tolist():
        name = str(iterations.number[index])
        start = int(iterations.start[index])
        end = int(iterations.end[index])
        is_in_iteration = iterations.of_gpu == index
        found.append(
            _RankIteration(
                name=name,
                start=start,
                end=end,
                is_computation=is_computation & is_in_iteration,
            )
        )
    if not found and is_of_rank.any():
        start = int(gpu_events.start[is_of_rank].min())
        end = int(gpu_events.end[is_of_rank].max())
        found.append(
            _RankIteration(
                name="",
                start=start,
                end=end,
                is_computation=is_computation,
            )
        )
    return found


def _iterations(
    gpu_events: GpuEvents, is_of_rank: BoolArray, activity: _RankActivity
) -> pd.DataFrame:
    """Return a row for each iteration: how long it took, and what the rank did in it, ns."""
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
    at_start = activity.until(start)
    at_end = activity.until(end)
    names = [iteration.name for iteration in iterations]
    columns: dict[str, object] = {"iteration": pd.Series(names, dtype="str")}
    for name in OWN_ACTIVITIES:
        if name != "computation":
            columns[name] = at_end[name] - at_start[name]
    columns["computation"] = np.array(computation, dtype=np.int64)
    columns["total"] = end - start
    return pd.DataFrame(columns)


def _overlap(calls: pd.DataFrame, activity: _RankActivity) -> pd.DataFrame:
    """Return communication by group and iteration, and how much of it computation hides."""
    recorded = calls[calls["recorded"]]
    whole_trace = ("", "")
    parts: list[tuple[Collection[object], pd.DataFrame]] = [(whole_trace, recorded)]
    for key, part in recorded.groupby(["Process Group Name", "iteration"]):
        if key != whole_trace:
            parts.append((key, part))
    rows = []
    for (group, iteration), part in parts:
        call_start = part["start"].to_numpy(np.int64)
        call_end = call_start + part["dur"].to_numpy(np.int64)
        start, end = union(call_start, call_end)
        communication_ns = (end - start).sum()
        hidden_ns = covered(*activity.kernels, start, end).sum()
        hidden_percent = np.nan
        if communication_ns:
            hidden_percent = 100.0 * hidden_ns / communication_ns
        rows.append(
            {
                "process_group": group,
                "iteration": iteration,
                "communication_ms": communication_ns / NS_PER_MS,
                "hidden_ms": hidden_ns / NS_PER_MS,
                "hidden_percent": hidden_percent,
            }
        )
    return pd.DataFrame(rows).astype({"process_group": "str", "iteration": "str"})
