"""All groups of a job together: the tables about its calls, waits, clocks and verdicts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.ranks.clocks import fit_clocks
from tracelens_ext.ranks.matching import PAIR
from tracelens_ext.ranks.origins import find_origins
from tracelens_ext.ranks.part import OWN
from tracelens_ext.ranks.verdicts import Job, find_verdicts
from tracelens_ext.trace import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.ranks.calls import GroupCalls

_NEEDED = [
    *("rank", "device", "no", "start", "dur", "end", "base", "sizes", "complete", "matched_by"),
    *("Process Group Name", "iteration", "src", "dst", "In msg nelems", "Out msg nelems"),
    *(f"{name}_{at}" for at in ("start", "end") for name in OWN),
]
_SYNC = [
    *("call", "collective", "process_group", "description", "ranks", "group_size", "iteration"),
    *("sequence", "matched_by", "state", "missing_ranks", "dtype", "bytes", "in_sync_us"),
    *("wait_us", "last_rank", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s", "span", "reason"),
]
_WAITS = ["call", "rank", "start_us", "duration_us", "wait_us", "cause", "caused_by_call"]
_IN_US = {"in_sync": "in_sync_us", "wait": "wait_us", "start": "start_us", "dur": "duration_us"}


def job_tables(
    groups: Sequence[GroupCalls],
    iterations: pd.DataFrame,
    abouts: Sequence[Mapping[str, Any]],
    *,
    world: int | None,
    failed: Sequence[int],
    ranks_per_node: int | None,
) -> dict[str, pd.DataFrame]:
    """The tables over all ranks.

    Args:
        groups: what each group shows.
        iterations: the parts `rank_iterations`.
        abouts: what is noted of the communication of each trace.
        world: how many ranks the job had.
        failed: ranks whose traces could not be read.
        ranks_per_node: None to tell nodes by devices.
    """
    calls, kernels, stuck = _numbered(groups)
    ranks = np.array(sorted({r for about in abouts for r in about["ranks"]}), dtype=np.int64)
    shared = kernels[kernels["complete"]]
    common = fit_clocks(shared, ranks)
    named = shared["matched_by"] != "unnamed"
    clocks = common if named.all() else fit_clocks(shared[named], ranks)
    last = calls["last_rank"].fillna(-1).to_numpy(np.int64)
    wait = kernels["dur"] - calls["in_sync"].to_numpy()[kernels["call"]]
    kernels, origins = find_origins(kernels.assign(wait=wait.where(kernels["complete"])), last)
    waits = _in_us(kernels.sort_values(["call", "rank"], kind="stable", ignore_index=True))
    offset = pd.Series((common["offset_us"] * NS_PER_US).round().to_numpy(), index=ranks)
    kernels["start"] += kernels["base"]
    kernels["start"] -= kernels["rank"].map(offset)
    kernels["end"] -= kernels["rank"].map(offset)
    stuck["launch"] += stuck["base"] - stuck["rank"].map(offset)
    ends = kernels.groupby("call").agg(start=("start", "max"), end=("end", "max"))
    calls = calls.join(ends, on="call")
    calls["span"] = _span(calls, kernels, ranks_per_node)
    places = _places(calls, abouts)
    job = Job(calls, kernels, stuck, origins, iterations, places, world, failed)
    verdicts = find_verdicts(job)
    sync = _in_us(calls.sort_values(["start", "call"], kind="stable", ignore_index=True))
    names = {"algorithm": "algorithm_bandwidth_gb_s", "bus": "bus_bandwidth_gb_s"}
    sync = sync.rename(columns=names)[_SYNC].astype({"group_size": "Int64", "bytes": "Int64"})
    return {
        "verdicts": verdicts,
        "collective_sync": sync,
        "collective_waits": waits[[*_WAITS, "caused_by_rank"]],
        "wait_origins": origins,
        "collective_groups": _groups(calls),
        "clocks": clocks,
    }


def _in_us(frame: pd.DataFrame) -> pd.DataFrame:
    times = [name for name in _IN_US if name in frame]
    return frame.assign(**{_IN_US[name]: frame[name] / NS_PER_US for name in times})


def _numbered(groups: Sequence[GroupCalls]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The calls, kernels and stuck launches of all groups, with numbers of calls and of sets."""
    calls, kernels, stuck, first = [], [], [], 0
    for number, group in enumerate(groups):
        of = {"group": number, "key": group.kernels["key"].iloc[0] if len(group.kernels) else ""}
        calls.append(group.calls.assign(call=first + np.arange(len(group.calls)), **of))
        place = np.searchsorted(group.calls["no"], group.kernels["no"])
        kernels.append(group.kernels[_NEEDED].assign(call=first + place, **of))
        stuck.append(group.stuck.assign(**of))
        first += len(group.calls)
    frames = [pd.concat(each, ignore_index=True) for each in (calls, kernels, stuck)]
    for frame in frames:
        pair = (frame["src"].astype("int64") + 1) * 2**21 + frame["dst"].astype("int64") + 1
        frame["set"] = frame["group"].astype("int64") * 2**42 + pair
    elements = frames[1][["In msg nelems", "Out msg nelems"]].max(axis=1)
    found = frames[1].rename(columns={"Process Group Name": "process_group"})
    return frames[0], found.assign(elements=elements), frames[2]


def _span(calls: pd.DataFrame, kernels: pd.DataFrame, ranks_per_node: int | None) -> pd.Series:
    """Whether a call stays in a node, as far as nodes are known."""
    device = kernels.groupby("rank")["device"].first()
    count = ranks_per_node or int(device.max()) + 1
    if not ranks_per_node and (count < 2 or (device.index % count != device).any()):
        count = 0
    spans = {}
    for text in calls["ranks"].unique():
        nodes = {int(rank) // max(count, 1) for rank in re.findall(r"\d+", text)}
        spans[text] = ("across" if len(nodes) > 1 else "node") if count and nodes else ""
    return calls["ranks"].map(spans)


def _places(calls: pd.DataFrame, abouts: Sequence[Mapping[str, Any]]) -> dict[int, object]:
    """The index of each rank in the groups in which it sends and receives."""
    piped, named = {*calls.loc[calls["collective"] == PAIR, "key"]}, {*calls["key"]}
    unnamed = bool((calls["matched_by"] == "unnamed").any())
    places: dict[int, object] = {}
    for about in abouts:
        found = [
            (index, size)
            for key, (index, size, whole) in sorted(about["positions"].items())
            if key in piped or (unnamed and key not in named and not whole)
        ]
        places |= dict.fromkeys(about["ranks"], sorted(found))
    return places


def _groups(calls: pd.DataFrame) -> pd.DataFrame:
    known = calls[calls["in_sync"].notna()]
    grouped = known.groupby(["key", "collective"], sort=True)
    frame = grouped.agg(
        process_group=("process_group", "first"),
        calls=("call", "size"),
        transfer_ms=("in_sync", "sum"),
        wait_ms=("wait", "sum"),
    ).reset_index()
    transfer, wait = frame["transfer_ms"] / NS_PER_MS, frame["wait_ms"] / NS_PER_MS
    bound = np.where(wait >= 2 * transfer, "wait", "mixed")
    bound = np.where(transfer >= 2 * wait, "transfer", bound)
    frame = frame.assign(transfer_ms=transfer, wait_ms=wait, bound=pd.array(bound, dtype="str"))
    return frame[["process_group", "collective", "calls", "transfer_ms", "wait_ms", "bound"]]
