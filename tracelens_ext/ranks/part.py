"""What is kept of one rank, so that its calls can be matched with those of the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens_ext.collectives.collectives import (
    communication_of,
    described_by,
    events_above,
    number_argument,
    text_argument,
)
from tracelens_ext.gaps.causes import blocking_calls
from tracelens_ext.intervals import covered, union, union_length
from tracelens_ext.iterations.iterations import find_iterations, iteration_at
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
from tracelens_ext.work.gpu_work import GpuWork

Intervals = tuple[Int64Array, Int64Array]

#: What a rank does outside of its calls; of each, ns from the recording's start to a moment.
OWN = ("computation", "data_loader", "host", "idle")
GROUP = ("Process Group Name", "Process Group Ranks", "Group size")
_LOADER = re.compile(r"enumerate\(DataLoader\)#")
_TEXTS = ("Collective name", *GROUP[:2], "Process Group Description", "dtype")
_NUMBERS = ("Group size", "In msg nelems", "Out msg nelems", "Seq", "Src Rank", "Dst Rank")
_LAUNCH = re.compile(r"(cuda|hip|cu)(Graph)?Launch")
_CUT = "..."


def rank_tables(work: GpuWork, rank: int, place: int) -> dict[str, pd.DataFrame]:
    """`rank_calls`, `rank_iterations`, `overlap`; devices are ranks where no rank is told."""
    devices = sorted({*work.trace.device.tolist()}) or [NONE]
    single = len(devices) < 2 or "distributedInfo" in work.trace.metadata
    frames = [
        _of_device(work, rank if single else place * len(devices) + at, device, single=single)
        for at, device in enumerate(devices[: 1 if single else None])
    ]
    calls, iterations, overlap = (
        pd.concat(t, ignore_index=True) for t in zip(*frames, strict=True)
    )
    return {"rank_calls": calls, "rank_iterations": iterations, "overlap": overlap}


def communication_about(
    metadata: Mapping[str, object], tables: Mapping[str, pd.DataFrame], world: int | None
) -> dict[str, Any]:
    """What is noted of a trace's communication, as JSON.

    Its `ranks`, the `groups` whose calls it has, the `sets` of ranks of its process groups, and
    `positions`: group → index of the rank, size, whether all ranks are in it.
    """
    calls, ranks = tables["rank_calls"], sorted({int(rank) for rank in tables["overlap"]["rank"]})
    configured = configured_groups(metadata)
    listed = {(name, str(of)): of for name, of in configured.items()}
    texts = calls.loc[calls["key"] != "", [*GROUP, "key"]].drop_duplicates()
    keys = {(name, text): key for name, text, _, key in texts.itertuples(index=False, name=None)}
    for name, text in keys:
        listed.setdefault((name, text), numbers_in(text))
    positions = {
        keys.get(group) or _digest("|".join((*group, str(float(len(of)))))): (
            of.index(ranks[0]),
            len(of),
            len(of) == world,
        )
        for group, of in listed.items()
        if ranks and ranks[0] in of
    }
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
    work: GpuWork, rank: int, device: int, *, single: bool
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    on = np.ones(len(work), dtype=bool) if single else work.trace.device == device
    moments = _Moments(work, on)
    calls = _calls(work, on)
    for at, times in (("start", calls["start"]), ("end", calls["start"] + calls["dur"])):
        for name, spent in moments.until(times.to_numpy(np.int64)).items():
            calls[f"{name}_{at}"] = spent
    if single and len(never := _never_recorded(work)):
        calls = pd.concat([calls, never.reindex(columns=calls.columns, fill_value=0)])
    calls["base"], calls["device"] = work.trace.base_ns, device
    ranks_of = configured_groups(work.trace.metadata)
    cut = calls["Process Group Ranks"].str.contains(_CUT, regex=False)
    whole = calls["Process Group Name"].map({name: str(of) for name, of in ranks_of.items()})
    calls["Process Group Ranks"] = whole.where(cut & whole.notna(), calls["Process Group Ranks"])
    named = (calls["Collective name"] != "") & (calls[list(GROUP[:2])] != "").any(axis=1)
    # Name, ranks and size tell groups apart.
    texts = calls["Process Group Name"] + "|" + calls["Process Group Ranks"] + "|"
    texts += calls["Group size"].map(str).astype("str")
    keys = texts.map({text: _digest(text) for text in set(texts)}).astype("str")
    calls["key"] = keys.where(named, "")
    frames = calls, _iterations(work, on, moments), _overlap(calls, moments)
    for frame in frames:
        frame.insert(0, "rank", rank)
    return frames


class _Moments:
    """How long a rank had done what until a moment."""

    def __init__(self, work: GpuWork, on: BoolArray) -> None:
        trace, tree = work.trace, work.tree
        computes = on & ~work.is_communication
        kernels = computes & ~work.is_copy
        self.computation = union(work.start[computes], work.end[computes])
        self.kernels = union(work.start[kernels], work.end[kernels])
        rows = trace.rows_of(*HOST_KINDS)
        launch = tree.launch_of_gpu[on & tree.linked]
        mine = trace.process_of_thread[trace.thread]
        rows = rows[np.isin(mine[rows], np.unique(mine[launch]))]
        loading = rows[trace.named(trace.name[rows], _LOADER.match)]
        waiting = blocking_calls(work)
        waiting = waiting[np.isin(mine[waiting], np.unique(mine[launch]))]
        # Each is what none before it covers.
        sets = [(work.start[on], work.end[on])]
        sets += [(trace.ts[r], trace.end_of(r)) for r in (loading, waiting)]
        if len(rows):
            sets.append((trace.ts[rows].min(keepdims=True), trace.end_of(rows).max(keepdims=True)))
        self._layers: list[Intervals] = []
        begin = end = work.start[:0]
        for begins, ends in sets:
            begin, end = union(np.append(begin, begins), np.append(end, ends))
            self._layers.append((begin, end))

    def until(self, times: Int64Array) -> dict[str, Int64Array]:
        """What was spent in each of `OWN` until some moments, ns."""
        zero = np.zeros_like(times)
        layers = [covered(*layer, zero, times) for layer in self._layers]
        layers += [layers[-1]] * (4 - len(layers))
        busy, loading, waiting, host = layers
        return {
            "computation": covered(*self.computation, zero, times),
            "data_loader": loading - busy,
            "host": host - waiting,
            "idle": times - host + waiting - loading,
        }


def _calls(work: GpuWork, on: BoolArray) -> pd.DataFrame:
    """A row a communication kernel, in the order of their launches."""
    chosen = np.flatnonzero(work.is_communication & on)
    launch, linked = work.start[chosen], work.tree.linked[chosen]
    launch[linked] = work.trace.ts[work.tree.launch_of_gpu[chosen[linked]]]
    table = _arguments(work, described_by(work, chosen))
    told = communication_of(work).loc[chosen].reset_index(drop=True)
    table["Collective name"], table["kernel_name"] = told["Collective name"], told["kernel_name"]
    steps = find_iterations(work.tree)
    table["iteration"] = pd.array(steps.numbers(steps.of_gpu[chosen]), dtype="str")
    table["launch"], table["start"] = launch, work.start[chosen]
    table["dur"], table["recorded"] = work.duration[chosen], True
    return table.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def _arguments(work: GpuWork, rows: Int64Array) -> pd.DataFrame:
    """What some events tell of a collective."""
    texts = {name: pd.array(text_argument(work, name, rows), dtype="str") for name in _TEXTS}
    return pd.DataFrame(texts | {name: number_argument(work, name, rows) for name in _NUMBERS})


def _never_recorded(work: GpuWork) -> pd.DataFrame:
    """Collectives that were launched and whose kernels were not recorded, as `_calls` has them."""
    trace, tree = work.trace, work.tree
    calls = trace.rows_of(*LAUNCH_KINDS)
    calls = calls[trace.named(trace.name[calls], _LAUNCH.match)]
    calls = calls[~np.isin(calls, tree.launch_of_gpu)]
    above = events_above(tree, tree.position[calls], trace.arg("Collective name").rows)
    calls, above = calls[above != NONE], above[above != NONE]
    table = _arguments(work, above)
    table["launch"], table["kernel_name"], table["recorded"] = trace.ts[calls], "", False
    steps = find_iterations(tree)
    process = trace.process_of_thread[trace.thread[calls]].astype(np.int64)
    at = iteration_at((steps.process, steps.start, steps.end), process, trace.ts[calls])
    table["iteration"] = pd.array(steps.numbers(at), dtype="str")
    return table


def _iterations(work: GpuWork, on: BoolArray, moments: _Moments) -> pd.DataFrame:
    """A row an iteration: how long it took, and the rank's own part in it, ns."""
    steps = find_iterations(work.tree)
    launched = work.tree.launch_of_gpu[on & work.tree.linked]
    mine = np.unique(work.trace.process_of_thread[work.trace.thread[launched]])
    those = np.flatnonzero(np.isin(steps.process, mine))
    begin, end, number = steps.start[those], steps.end[those], [steps.number[i] for i in those]
    computing = on & ~work.is_communication
    parts = [computing & (steps.of_gpu == i) for i in those.tolist()]
    if not len(those) and on.any():
        begin, end = work.start[on].min(keepdims=True), work.end[on].max(keepdims=True)
        number, parts = [""], [computing]  # type: ignore[list-item]
    first, last = moments.until(begin), moments.until(end)
    frame = pd.DataFrame({name: last[name] - first[name] for name in OWN[1:]})
    own = [union_length(work.start[part], work.end[part]) for part in parts]
    frame["computation"] = np.array(own, dtype=np.int64)
    frame.insert(0, "iteration", pd.Series(list(map(str, number)), dtype="str"))
    frame["total"] = end - begin
    return frame


def _overlap(calls: pd.DataFrame, moments: _Moments) -> pd.DataFrame:
    """Communication by group and iteration, and how much of it computation hides."""
    keys = ["Process Group Name", "iteration"]
    recorded = calls[calls["recorded"]]
    sets: list[tuple[Any, pd.DataFrame]] = [(("", ""), recorded)]
    sets += [each for each in recorded.groupby(keys) if each[0] != ("", "")]
    rows = []
    for key, part in sets:
        start = part["start"].to_numpy(np.int64)
        begin, end = union(start, start + part["dur"].to_numpy(np.int64))
        whole, hidden = (end - begin).sum(), covered(*moments.kernels, begin, end).sum()
        percent = 100.0 * hidden / whole if whole else np.nan
        rows.append((*key, whole / NS_PER_MS, hidden / NS_PER_MS, percent))
    columns = ["process_group", "iteration", "communication_ms", "hidden_ms", "hidden (%)"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[:2], "str"))
