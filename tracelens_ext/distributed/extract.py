"""What is kept of one rank, so that its calls can be matched with those of the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

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
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.intervals import covered, union, union_length

#: What a rank does outside of its calls; of each, ns from the recording's start to a moment.
OWN = ("computation", "data_loader", "host", "idle")
GROUP = ("Process Group Name", "Process Group Ranks", "Group size")
_LOADER = re.compile(r"enumerate\(DataLoader\)#")
_TEXTS = ("Collective name", *GROUP[:2], "Process Group Description", "dtype")
_NUMBERS = ("Group size", "In msg nelems", "Out msg nelems", "Seq", "Src Rank", "Dst Rank")
_LAUNCH = re.compile(r"(cuda|hip|cu)(Graph)?Launch")


def rank_tables(work: GpuEvents, rank: int, place: int) -> dict[str, pd.DataFrame]:
    """`rank_calls`, `rank_iterations`, `overlap`; devices are ranks where no rank is told."""
    devices = sorted({*work.trace.device.tolist()}) or [NONE]
    single = len(devices) < 2 or "distributedInfo" in work.trace.metadata
    frames = [
        _of_device(work, rank if single else place * len(devices) + at, device, single=single)
        for at, device in enumerate(devices[: 1 if single else None])
    ]
    names = ("rank_calls", "rank_iterations", "overlap")
    tables = zip(names, zip(*frames, strict=True), strict=True)
    return {name: pd.concat(parts, ignore_index=True) for name, parts in tables}


def communication_about(
    metadata: Mapping[str, object], tables: Mapping[str, pd.DataFrame], world: int | None
) -> dict[str, Any]:
    """What is noted of a trace's communication, as JSON.

    Its `ranks`, the `groups` whose calls it has, the `sets` of ranks of its process groups, and
    `positions`: group → index of the rank, size, whether all ranks are in it.
    """
    calls = tables["rank_calls"]
    ranks = sorted({*tables["overlap"]["rank"].tolist()})
    texts = calls.loc[calls["key"] != "", [*GROUP, "key"]].drop_duplicates()
    keys = {(name, text): key for name, text, _, key in texts.itertuples(index=False, name=None)}
    configured = {(name, str(of)): of for name, of in configured_groups(metadata).items()}
    listed = configured | {of: numbers_in(of[1]) for of in keys if of not in configured}
    positions = {}
    for group, of in listed.items():
        if ranks and ranks[0] in of:
            key = keys.get(group) or _digest("|".join((*group, str(float(len(of))))))
            positions[key] = of.index(ranks[0]), len(of), len(of) == world
    sets = sorted({_digest(str(sorted(of))) for of in listed.values()})
    return {"ranks": ranks, "groups": sorted({*calls["key"]}), "sets": sets, "positions": positions}


def numbers_in(text: str) -> list[int]:
    """The ranks in a text such as `[0, 8]`."""
    return [int(rank) for rank in re.findall(r"\d{1,9}", text)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def configured_groups(metadata: Mapping[str, object]) -> dict[str, list[int]]:
    """Name → ranks of the process groups that `distributedInfo` tells."""
    listed = distributed_info(metadata).get("pg_config")
    listed = json_value(listed) if isinstance(listed, str) else listed
    groups = {}
    for group in listed if isinstance(listed, list) else []:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(type(r) is int for r in ranks):
            groups[str(group.get("pg_name", ""))] = ranks
    return groups


def _of_device(
    work: GpuEvents, rank: int, device: int, *, single: bool
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    on = np.ones(len(work), dtype=bool) if single else work.trace.device == device
    moments = _Moments(work, on)
    calls = _calls(work, on)
    for at, times in (("start", calls["start"]), ("end", calls["start"] + calls["dur"])):
        spent = moments.until(times.to_numpy(np.int64))
        calls = calls.assign(**{f"{name}_{at}": spent[name] for name in OWN})
    if single and len(never := _never_recorded(work)):
        calls = pd.concat([calls, never.reindex(columns=calls.columns, fill_value=0)])
    calls["base"], calls["device"] = work.trace.base_ns, device
    name, ranks, size = (calls[each] for each in GROUP)
    whole = name.map({n: str(of) for n, of in configured_groups(work.trace.metadata).items()})
    ranks = whole.where(ranks.str.contains("...", regex=False) & whole.notna(), ranks)
    calls["Process Group Ranks"] = ranks
    # Name, ranks and size tell groups apart.
    texts = name + "|" + ranks + "|" + size.map(str).astype("str")
    keys = texts.map({text: _digest(text) for text in set(texts)}).astype("str")
    calls["key"] = keys.where((calls["Collective name"] != "") & ((name != "") | (ranks != "")), "")
    frames = calls, _iterations(work, on, moments), _overlap(calls, moments)
    for frame in frames:
        frame.insert(0, "rank", rank)
    return frames


class _Moments:
    """How long a rank had done what until a moment."""

    def __init__(self, work: GpuEvents, on: BoolArray) -> None:
        trace = work.trace
        tree = work.tree
        computes = on & ~work.is_communication
        kernels = computes & ~work.is_copy
        self.computation = union(work.start[computes], work.end[computes])
        self.kernels = union(work.start[kernels], work.end[kernels])
        process = trace.process_of_thread[trace.thread]
        mine = np.isin(process, np.unique(process[tree.launch_of_gpu[on & tree.linked]]))
        both = trace.rows_of(*HOST_KINDS), blocking_calls(work)
        rows, waiting = (each[mine[each]] for each in both)
        loading = rows[trace.named(trace.name[rows], _LOADER.match)]
        # Each is what none before it covers.
        sets = [(work.start[on], work.end[on])]
        sets += [(trace.ts[r], trace.end_of(r)) for r in (loading, waiting)]
        if len(rows):
            sets.append((trace.ts[rows].min(keepdims=True), trace.end_of(rows).max(keepdims=True)))
        self._layers: list[tuple[Int64Array, Int64Array]] = []
        begin = end = work.start[:0]
        for begins, ends in sets:
            begin, end = union(np.append(begin, begins), np.append(end, ends))
            self._layers.append((begin, end))

    def until(self, times: Int64Array) -> dict[str, Int64Array]:
        """What was spent in each of `OWN` until some moments, ns."""
        zero = np.zeros_like(times)
        layers = [covered(*layer, zero, times) for layer in (self.computation, *self._layers)]
        computation, busy, loading, waiting, *host = layers
        outside = host[0] if host else waiting
        spent = computation, loading - busy, outside - waiting, times - outside + waiting - loading
        return dict(zip(OWN, spent, strict=True))


def _calls(work: GpuEvents, on: BoolArray) -> pd.DataFrame:
    """A row a communication kernel, in the order of their launches."""
    chosen = np.flatnonzero(work.is_communication & on)
    launch = work.start[chosen]
    linked = work.tree.linked[chosen]
    launch[linked] = work.trace.ts[work.tree.launch_of_gpu[chosen[linked]]]
    steps = find_iterations(work.tree)
    described = collectives.described_by(work, chosen)
    table = _arguments(work, described)
    names = ["Collective name", "kernel_name"]
    table[names] = collectives.communication_of(work).loc[chosen, names].reset_index(drop=True)
    table["iteration"] = pd.array(steps.numbers(steps.of_gpu[chosen]), dtype="str")
    table["launch"], table["start"] = launch, work.start[chosen]
    table["dur"], table["recorded"] = work.duration[chosen], True
    return table.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def _arguments(work: GpuEvents, rows: Int64Array) -> pd.DataFrame:
    """What some events tell of a collective."""
    columns: dict[str, Any] = {n: collectives.text_argument(work, n, rows) for n in _TEXTS}
    columns |= {name: collectives.number_argument(work, name, rows) for name in _NUMBERS}
    return pd.DataFrame(columns).astype(dict.fromkeys(_TEXTS, "str"))


def _never_recorded(work: GpuEvents) -> pd.DataFrame:
    """Collectives that were launched and whose kernels were not recorded, as `_calls` has them."""
    trace = work.trace
    tree = work.tree
    steps = find_iterations(work.tree)
    calls = trace.rows_of(*LAUNCH_KINDS)
    calls = calls[trace.named(trace.name[calls], _LAUNCH.match)]
    calls = calls[~np.isin(calls, tree.launch_of_gpu)]
    above = collectives.events_above(tree, tree.position[calls], trace.arg("Collective name").rows)
    calls = calls[above != NONE]
    above = above[above != NONE]
    table = _arguments(work, above)
    table["launch"], table["kernel_name"], table["recorded"] = trace.ts[calls], "", False
    process = trace.process_of_thread[trace.thread[calls]].astype(np.int64)
    at = iteration_at((steps.process, steps.start, steps.end), process, trace.ts[calls])
    table["iteration"] = pd.array(steps.numbers(at), dtype="str")
    return table


def _iterations(work: GpuEvents, on: BoolArray, moments: _Moments) -> pd.DataFrame:
    """A row an iteration: how long it took, and the rank's own part in it, ns."""
    steps = find_iterations(work.tree)
    launched = work.tree.launch_of_gpu[on & work.tree.linked]
    mine = np.unique(work.trace.process_of_thread[work.trace.thread[launched]])
    those = np.flatnonzero(np.isin(steps.process, mine))
    begin = steps.start[those]
    end = steps.end[those]
    number = [steps.number[i] for i in those]
    computing = on & ~work.is_communication
    parts = [computing & (steps.of_gpu == i) for i in those.tolist()]
    if not len(those) and on.any():
        begin = work.start[on].min(keepdims=True)
        end = work.end[on].max(keepdims=True)
        number = [""]  # type: ignore[list-item]
        parts = [computing]
    first = moments.until(begin)
    last = moments.until(end)
    columns: dict[str, object] = {"iteration": pd.Series(list(map(str, number)), dtype="str")}
    columns |= {name: last[name] - first[name] for name in OWN[1:]}
    own = [union_length(work.start[part], work.end[part]) for part in parts]
    return pd.DataFrame({**columns, "computation": np.array(own, np.int64), "total": end - begin})


def _overlap(calls: pd.DataFrame, moments: _Moments) -> pd.DataFrame:
    """Communication by group and iteration, and how much of it computation hides."""
    keys = ["Process Group Name", "iteration"]
    recorded = calls[calls["recorded"]]
    rows = []
    groups = (each for each in recorded.groupby(keys) if each[0] != ("", ""))
    for key, part in ((("", ""), recorded), *groups):
        start = part["start"].to_numpy(np.int64)
        begin, end = union(start, start + part["dur"].to_numpy(np.int64))
        whole = (end - begin).sum()
        hidden = covered(*moments.kernels, begin, end).sum()
        percent = 100.0 * hidden / whole if whole else np.nan
        rows.append((*key, whole / NS_PER_MS, hidden / NS_PER_MS, percent))
    columns = ["process_group", "iteration", "communication_ms", "hidden_ms", "hidden (%)"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[:2], "str"))
