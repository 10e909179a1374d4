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

_NEEDED = (
    *("rank", "device", "no", "start", "dur", "end", "base", "sizes", "complete", "matched_by"),
    *("Process Group Name", "iteration", "src", "dst", "In msg nelems", "Out msg nelems"),
    *(f"{name}_{at}" for at in ("start", "end") for name in OWN),
)
_SYNC = (
    *("call", "collective", "process_group", "description", "ranks", "group_size", "iteration"),
    *("sequence", "matched_by", "state", "missing_ranks", "dtype", "bytes", "in_sync_us"),
    *("wait_us", "last_rank", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s", "span", "reason"),
)
_WAITS = ("call", "rank", "start_us", "duration_us", "wait_us", "cause", "caused_by_call")


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
    offset = pd.Series((common["offset_us"] * NS_PER_US).round().to_numpy(), index=ranks)
    named = shared[shared["matched_by"] != "unnamed"]
    clocks = common if len(named) == len(shared) else fit_clocks(named, ranks)
    last = np.full(len(calls), -1, dtype=np.int64)
    last[calls["call"]] = calls["last_rank"].fillna(-1).astype("int64")
    wait = kernels["dur"] - kernels["call"].map(calls.set_index("call")["in_sync"])
    kernels["wait"] = wait.where(kernels["complete"])
    kernels, origins = find_origins(kernels, last)
    waits = _waits(kernels)
    kernels["start"] += kernels["base"]
    for name in ("start", "end"):
        kernels[name] = kernels[name] - kernels["rank"].map(offset)
    stuck["launch"] = stuck["launch"] + stuck["base"] - stuck["rank"].map(offset)
    ends = kernels.groupby("call").agg(start=("start", "max"), end=("end", "max"))
    calls = calls.join(ends, on="call")
    calls["span"] = _span(calls, kernels, ranks_per_node)
    places = _places(calls, abouts, ranks)
    job = Job(calls, kernels, stuck, origins, iterations, places, world, failed)
    verdicts = find_verdicts(job)
    return {
        "verdicts": verdicts,
        "collective_sync": _sync(calls),
        "collective_waits": waits,
        "wait_origins": origins,
        "collective_groups": _groups(calls),
        "clocks": clocks,
    }


def _numbered(groups: Sequence[GroupCalls]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The calls, kernels and stuck launches of all groups, with numbers of calls and of sets."""
    calls, kernels, stuck, first = [], [], [], 0
    for number, group in enumerate(groups):
        count = len(group.calls)
        key = group.kernels["key"].iloc[0] if count else ""
        calls.append(group.calls.assign(call=first + np.arange(count), group=number, key=key))
        place = np.searchsorted(group.calls["no"], group.kernels["no"])
        kernels.append(group.kernels[list(_NEEDED)].assign(call=first + place, group=number))
        stuck.append(group.stuck.assign(group=number))
        first += count
    frames = [pd.concat(each, ignore_index=True) for each in (calls, kernels, stuck)]
    for frame in frames:
        same = ["group", *(c for c in ("src", "dst") if c in frame)]
        pair = frame[same].fillna(-1).astype("int64")
        code = pair["group"].to_numpy() << np.int64(42)
        frame["set"] = code + (pair["src"].to_numpy() + 1 << np.int64(21)) + pair["dst"] + 1
    found = frames[1].rename(columns={"Process Group Name": "process_group"})
    found["elements"] = found[["In msg nelems", "Out msg nelems"]].max(axis=1)
    return frames[0], found, frames[2]


def _span(calls: pd.DataFrame, kernels: pd.DataFrame, ranks_per_node: int | None) -> pd.Series:
    """Whether a call stays in a node, as far as nodes are known."""
    device = kernels.groupby("rank")["device"].first()
    if ranks_per_node is None and len(device):
        count = int(device.max()) + 1
        if count > 1 and (device.index.to_numpy() % count == device.to_numpy()).all():
            ranks_per_node = count
    texts = calls["ranks"].drop_duplicates()
    spans = {}
    for text in texts:
        nodes = {int(r) // (ranks_per_node or 1) for r in re.findall(r"\d+", text)}
        spans[text] = (
            "" if not ranks_per_node or not nodes else "node" if len(nodes) == 1 else "across"
        )
    return calls["ranks"].map(spans)


def _places(
    calls: pd.DataFrame, abouts: Sequence[Mapping[str, Any]], ranks: np.ndarray[Any, Any]
) -> dict[int, object]:
    """The index of each rank in the groups in which it sends and receives."""
    pairs = calls[(calls["collective"] == PAIR)]
    piped = {*pairs["key"]}
    unnamed = bool((calls["matched_by"] == "unnamed").any())
    named = {*calls["key"]}
    places: dict[int, object] = {}
    for about in abouts:
        found = [
            (index, size)
            for key, (index, size, whole) in sorted(about["positions"].items())
            if key in piped or (unnamed and key not in named and not whole)
        ]
        places |= dict.fromkeys(about["ranks"], tuple(found))
    return {int(rank): places[int(rank)] for rank in ranks}


def _sync(calls: pd.DataFrame) -> pd.DataFrame:
    frame = calls.sort_values(["start", "call"], kind="stable", ignore_index=True)
    frame["in_sync_us"], frame["wait_us"] = frame["in_sync"] / NS_PER_US, frame["wait"] / NS_PER_US
    frame = frame.rename(
        columns={"algorithm": "algorithm_bandwidth_gb_s", "bus": "bus_bandwidth_gb_s"}
    )
    frame = frame[list(_SYNC)].copy()
    return frame.astype({"group_size": "Int64", "bytes": "Int64"})


def _waits(kernels: pd.DataFrame) -> pd.DataFrame:
    frame = kernels.sort_values(["call", "rank"], kind="stable", ignore_index=True)
    for name in ("start", "dur", "wait"):
        frame[name] = frame[name] / NS_PER_US
    frame = frame.rename(columns={"start": "start_us", "dur": "duration_us", "wait": "wait_us"})
    return frame[[*_WAITS, "caused_by_rank"]]


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
