"""A row a call of a process group over its ranks: what it is, what it lacks, how long it took."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.collectives import bus_factor, element_bytes
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.distributed.extract import numbers_in
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array

#: Collectives that a rank may leave before the others come, unless they are these.
_EARLY = r"broadcast|reduce|gather|scatter"
_ALL_WAIT = r"allreduce|reducescatter|allgather"


class GroupCalls(NamedTuple):
    """What the ranks of a process group show of its calls."""

    calls: pd.DataFrame  #: a row a call, `no` numbers them
    kernels: pd.DataFrame  #: a row a kernel, with the `no` of its call
    stuck: pd.DataFrame  #: a row a rank and its last call, launched and never recorded


def group_calls(rows: pd.DataFrame) -> GroupCalls:
    """The calls of a named process group, from the rows of `rank_calls` of all its ranks."""
    text = rows["Process Group Ranks"].iloc[0]
    size = rows["Group size"].iloc[0]
    present = {*rows["rank"].tolist()}
    told = re.fullmatch(r"\[[\d, ]*\d[\d, ]*\]", text)
    members: list[int] | None = sorted({*numbers_in(text)} if told else present)
    if not told and size != len(present):
        members = None  # not known
    rows = prepared(rows, members)
    matched = rows[rows["recorded"]].reset_index(drop=True)
    match_group(matched)
    last = matched.groupby("rank")["launch"].max()
    stuck = rows[~rows["recorded"] & (rows["launch"] > rows["rank"].map(last).fillna(-1))]
    stuck = stuck.sort_values("launch").drop_duplicates("rank").assign(members=str(members))
    return GroupCalls(*_described(matched, members, size), stuck)


def unnamed_calls(rows: pd.DataFrame, *, one_group: bool, ranks: int) -> GroupCalls:
    """The calls of the kernels of which no group is known."""
    matched = prepared(rows[rows["recorded"]].reset_index(drop=True), None)
    matched = matched.assign(matched_by="unnamed", kind=matched["Collective name"])
    matched = matched.assign(src=-1, dst=-1, sizes=0, like=pd.factorize(matched["kernel_name"])[0])
    if one_group and matched["rank"].nunique() == ranks > 1:  # by order in the iteration
        number, alike = _ordinals(matched, ranks)
        matched["no"] = np.where(alike, number, -1)
    members = sorted(rows["rank"].unique().tolist())
    none = matched[:0].assign(members="")
    return GroupCalls(*_described(matched, members, len(members)), none)


def _described(
    matched: pd.DataFrame, members: list[int] | None, size: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The calls and their kernels, from kernels that have numbers."""
    alone = matched["no"].to_numpy() < 0
    most = int(matched["no"].max()) + 1 if len(matched) else 0
    matched.loc[alone, "no"] = most + np.arange(alone.sum())
    matched = matched.sort_values(["no", "dur", "rank"], kind="stable", ignore_index=True)
    first = {"process_group": "Process Group Name", "description": "Process Group Description"}
    first |= {"key": "key", "shortest": "dur", "last_rank": "rank"}
    first |= {n: n for n in ("iteration", "matched_by", "dtype", "kernel_name", "src", "dst")}
    told = {name: (column, "first") for name, column in first.items()}
    told |= {"collective": ("kind", "max"), "n": ("rank", "size"), "sum": ("dur", "sum")}
    told |= {"different": ("sizes", "nunique"), "most_in": ("In msg nelems", "max")}
    told["most_out"] = "Out msg nelems", "max"
    calls = matched.groupby("no", sort=True).agg(**told).reset_index()
    kernel = calls["kernel_name"].map({n: simple_name(n) for n in set(calls["kernel_name"])})
    calls["collective"] = calls["collective"].where(calls["collective"] != "", kernel)
    pair = calls["dst"] >= 0
    single = calls["no"] >= most
    nobody = single & (calls["matched_by"] == "unnamed")
    ends = [str(sorted(both)) for both in zip(calls["src"], calls["dst"], strict=True)]
    ranks = pd.Series(np.where(pair, ends, str(members) if members else ""))
    calls["ranks"] = ranks.mask(nobody, "").astype("str")
    calls["group_size"] = pd.Series(np.where(pair, 2.0, size)).mask(nobody)
    _state(calls, matched, single)
    _figures(calls)
    matched["complete"] = matched["no"].map(calls.set_index("no")["wait"].notna()).astype(bool)
    keys = ["collective", "process_group", "dtype", "iteration", "ranks"]
    calls["sequence"] = calls.groupby(keys, sort=False, dropna=False).cumcount() + 1
    return calls, matched


def _state(calls: pd.DataFrame, kernels: pd.DataFrame, alone: pd.Series) -> None:
    """Fill `state`, `missing_ranks` and the `reason` of what is not complete."""
    wrong = alone | ~(calls["n"] <= calls["group_size"])
    named = calls["matched_by"] != "unnamed"
    cases = [
        (wrong & named, "unmatched", "it pairs with no call of the other ranks"),
        (wrong, "unmatched", "the trace does not tell whose call it is"),
        (calls["n"] < calls["group_size"], "incomplete", "fewer ranks show it than the group has"),
        (calls["different"] > 1, "mismatch", "the sizes differ between ranks"),
    ]
    holds, states, reasons = zip(*cases, strict=True)
    calls["state"] = np.select(holds, states, "complete")
    calls["reason"], calls["missing_ranks"] = np.select(holds, reasons, ""), ""
    known = calls[(calls["state"] == "incomplete") & (calls["ranks"] != "")]
    there = kernels[kernels["no"].isin(known["no"])].groupby("no")["rank"].agg(set)
    for at, number, text in zip(known.index, known["no"], known["ranks"], strict=True):
        missing = sorted({*numbers_in(text)} - there[number])
        calls.loc[at, "missing_ranks"] = str(missing)
        calls.loc[at, "reason"] = f"no kernel of rank {str(missing)[1:-1]} belongs to it"


def _figures(calls: pd.DataFrame) -> None:
    """Fill the transfer, waits (ns), bytes and bandwidths where they are known."""
    plain = calls["collective"].str.lower().str.replace("_", "")
    early = ~plain.str.contains(_ALL_WAIT) & plain.str.contains(_EARLY) & (calls["dst"] < 0)
    known = (calls["state"] == "complete") & ~early
    early &= calls["state"] == "complete"
    calls["bytes"] = calls[["most_in", "most_out"]].max(axis=1)
    calls["bytes"] *= calls["dtype"].map(element_bytes).astype("float64")
    calls["in_sync"] = calls["shortest"].where(known).astype("float64")
    calls["wait"] = (calls["sum"] - calls["n"] * calls["shortest"]).where(known).astype("float64")
    calls["last_rank"] = calls["last_rank"].where(known).astype("Int64")
    keys = list(zip(calls["collective"], calls["group_size"], strict=True))
    factor = {key: bus_factor(*key) for key in set(keys)}
    whole = (calls["bytes"] > 0) & (calls["in_sync"] > 0) & (calls["matched_by"] != "unnamed")
    calls["algorithm"] = (calls["bytes"] / calls["in_sync"]).where(whole)
    calls["bus"] = calls["algorithm"] * np.array([factor[key] for key in keys], dtype=np.float64)
    calls.loc[early, "reason"] = "its ranks may leave before others come"
    calls.loc[known & ~whole, "reason"] = "its bytes are not known"


PAIR = "send/recv"
_SAME_CLOCK_NS = 100_000  #: ends of one call differ by less, shifted ones by more
#: sure pairs that tell an offset, and calls that are tried without
_USUAL = 21
_TRIED = 2000
_TRUSTED = 0.5  #: the share of its calls that a `Seq` must pair, and count one by one


def prepared(rows: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """Rows of `rank_calls` of a group to be numbered, each rank's in the order of launch.

    Adds `kind`, `like`, `sizes`, `src`, `dst` (of a pair, else -1), `no` and `matched_by`.
    """
    name = rows["Collective name"]
    even = ~name.str.lower().str.replace("_", "").str.contains("alltoall")
    p2p = name.isin(["send", "recv"])
    own = rows["rank"].astype("float64")
    src = rows["Src Rank"].where(name != "send", own).where(p2p)
    dst = rows["Dst Rank"].where(name != "recv", own).where(p2p)
    if members is not None and len(members) == 2:  # the other one
        src, dst = src.fillna(sum(members) - dst), dst.fillna(sum(members) - src)
    known = src.notna() & dst.notna()
    rows = rows.assign(kind=name.where(~p2p, PAIR), no=-1, matched_by="order")
    rows["src"], rows["dst"] = (end.where(known, -1).astype("int64") for end in (src, dst))
    rows["like"] = rows.groupby(["kind", "dtype"], sort=False, dropna=False).ngroup()
    sizes = [rows["In msg nelems"].where(even), rows["Out msg nelems"].where(even & ~p2p)]
    rows["sizes"] = rows.groupby(["like", *sizes], sort=False, dropna=False).ngroup()
    rows["end"] = rows["base"] + rows["start"] + rows["dur"]
    return rows


def match_group(rows: pd.DataFrame) -> None:
    """Number the calls of a process group, in place.

    By `Seq` where that pairs like with like; else by order within an iteration; where ranks differ
    there, calls of equal signature whose ends differ by the usual offset of the two clocks.
    """
    first = 0
    pairable = (rows["kind"] != PAIR) | (rows["dst"] >= 0)
    for _, part in rows[pairable].groupby(["src", "dst"], sort=True):
        number, by = _by_seq(part) or _by_order(part)
        rows.loc[part.index, "no"] = np.where(number >= 0, number + first, -1)
        rows.loc[part.index, "matched_by"] = by
        first += int(number.max(initial=-1)) + 1


def _ordinals(rows: pd.DataFrame, ranks: int) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Calls counted in each iteration, and whether all ranks have the same there."""
    order = rows.groupby(["rank", "iteration"], sort=False).cumcount()
    slots = rows.groupby(["iteration", order.rename("order")], sort=False)
    there = rows.groupby("iteration", sort=False)["rank"].transform("nunique")
    alike = (slots["like"].transform("nunique") == 1) & (slots["rank"].transform("size") == there)
    alike = alike.groupby(rows["iteration"]).transform("all")
    if ranks:
        alike &= there == ranks
    return slots.ngroup().to_numpy().astype(np.int64), alike.to_numpy().astype(bool)


def _by_seq(part: pd.DataFrame) -> tuple[Int64Array, Any] | None:
    """Calls by `Seq`; None where it cannot be trusted."""
    # A count of all calls of the process, or twice a call, pairs by chance if at all.
    steps = part.groupby("rank", sort=False)["Seq"].diff()
    if part["Seq"].isna().any() or not (steps.dropna() == 1).mean() >= _TRUSTED:
        return None
    slots = part.groupby("Seq", sort=True)
    seen = slots[["kind", "iteration", "rank"]].nunique()
    like = (seen[["kind", "iteration"]] == 1).all(axis=None)
    like = like and (seen["rank"] == slots.size()).all()  # a rank is in each call once
    good = like and (seen["rank"] == part["rank"].nunique()).mean() >= _TRUSTED
    return (slots.ngroup().to_numpy().astype(np.int64), "seq") if good else None


def _by_order(part: pd.DataFrame) -> tuple[Int64Array, Any]:
    """Calls by order in each iteration, aligned where ranks differ."""
    number, alike = _ordinals(part, 0)
    number = np.where(alike, number, -1)
    by = np.where(alike, "order", "alignment").astype(object)
    if alike.all():
        return number, by
    sure = part[alike].assign(no=number[alike])[["no", "rank", "end"]]
    odd = part.assign(place=np.arange(len(part)))[~alike].groupby("iteration", sort=False)
    slots = chain.from_iterable(_aligned(each, sure) for _, each in odd)
    for following, slot in enumerate(slots, int(number.max(initial=-1)) + 1):
        number[slot] = following
    return number, by


def _aligned(odd: pd.DataFrame, sure: pd.DataFrame) -> list[list[int]]:
    """The calls of an iteration in which ranks differ, each as the places of its kernels."""
    ranks = {int(part["rank"].iloc[0]): part for _, part in odd.groupby("rank", sort=True)}
    first = max(ranks, key=lambda r: (len(ranks[r]), -r))
    columns = ["like", "sizes", "end", "place"]
    base = ranks.pop(first)[columns]
    slots = {int(place): [int(place)] for place in base["place"]}
    ends = {rank: part.set_index("no")["end"] for rank, part in sure.groupby("rank")}
    for rank, part in ranks.items():
        both = rank in ends and first in ends
        gaps = (ends[rank] - ends[first]).dropna() if both else pd.Series(dtype="float64")
        if len(gaps):  # clocks drift: those of about the same time
            near = (ends[rank].reindex(gaps.index) - part["end"].iloc[len(part) // 2]).abs()
            offset = float(gaps[near.nsmallest(_USUAL).index].median())
        else:
            offset = _densest(base, part)
        same = base["like"].tolist() == part["like"].tolist()
        pairs = np.stack([np.arange(len(part))] * 2) if same else _by_ends(base, part, offset)
        paired = base["place"].iloc[pairs[0]], part["place"].iloc[pairs[1]]
        for one, other in zip(*paired, strict=True):
            slots[one].append(other)
        # What this rank has and none before it stands where it ended.
        more = part[columns].drop(part.index[pairs[1]])
        slots |= {int(place): [int(place)] for place in more["place"]}
        more = more.assign(end=more["end"] - int(offset))
        base = pd.concat([base, more]).sort_values("end", kind="stable") if len(more) else base
    own = {*odd.loc[odd["rank"] == first, "place"]}
    # What a single rank has more than the others is no call of the group.
    return [slot for place, slot in slots.items() if len(slot) > 1 or place in own]


def _by_ends(base: pd.DataFrame, part: pd.DataFrame, offset: float) -> Int64Array:
    """Equal calls whose ends differ by the offset of the two clocks: their indices."""
    mine, theirs = (
        each[["sizes", "end"]].astype({"end": "float64"}).assign(at=np.arange(len(each)))
        for each in (base, part)
    )
    mine["end"] += offset
    mine, theirs = (each.sort_values("end", kind="stable") for each in (mine, theirs))
    theirs["ended"] = theirs["end"]
    near = pd.merge_asof(mine, theirs, on="end", by="sizes", direction="nearest").dropna()
    near["away"] = (near["ended"] - near["end"]).abs()
    near = near[near["away"] < _SAME_CLOCK_NS].sort_values("away", kind="stable")
    return near.drop_duplicates("at_y")[["at_x", "at_y"]].to_numpy(np.int64).T


def _densest(base: pd.DataFrame, part: pd.DataFrame) -> float:
    """The offset near which most gaps between the ends of equal calls lie."""
    sizes = part["sizes"].to_numpy()[:_TRIED]
    ends = part["end"].to_numpy()[:_TRIED]
    equal = base["sizes"].to_numpy()[:_TRIED, None] == sizes
    gaps = np.sort((ends - base["end"].to_numpy()[:_TRIED, None])[equal]).astype(np.float64)
    if not len(gaps):
        return 0.0
    reach = np.searchsorted(gaps, gaps + _SAME_CLOCK_NS, side="right")
    best = int(np.argmax(reach - np.arange(len(gaps))))
    return float(np.median(gaps[best : reach[best]]))
