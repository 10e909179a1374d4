"""A row a call of a process group over its ranks: what it is, what it lacks, how long it took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.collectives.collectives import bus_factor, element_bytes
from tracelens_ext.lazy import pd
from tracelens_ext.ranks.matching import PAIR, match_group, match_unnamed

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Collectives that a rank may leave before the others come.
EARLY = re.compile(r"broadcast|reduce|gather|scatter")
_ALL_WAIT = re.compile(r"allreduce|reducescatter|allgather|alltoall|sendrecv")


class GroupCalls(NamedTuple):
    """What the ranks of a process group show of its calls."""

    calls: pd.DataFrame  #: a row a call, `no` numbers them
    kernels: pd.DataFrame  #: a row a kernel, with the `no` of its call
    stuck: pd.DataFrame  #: a row a rank and its last call, launched and never recorded


def members_of(text: str, size: float, present: Sequence[int]) -> list[int] | None:
    """The ranks of a group; None where they are not known."""
    if re.fullmatch(r"\[[\d, ]*\d[\d, ]*\]", text):
        return sorted({int(r) for r in re.findall(r"\d{1,9}", text)})
    return sorted(present) if size == len(present) else None


def group_calls(rows: pd.DataFrame) -> GroupCalls:
    """The calls of a named process group, from the rows of `rank_calls` of all its ranks."""
    text, size = rows["Process Group Ranks"].iloc[0], rows["Group size"].iloc[0]
    members = members_of(text, size, rows["rank"].unique().tolist())
    matched = match_group(rows[rows["recorded"]].reset_index(drop=True), members)
    stuck = _stuck(rows, matched, members)
    return GroupCalls(*_described(matched, members, size), stuck)


def unnamed_calls(rows: pd.DataFrame, *, one_group: bool, ranks: int) -> GroupCalls:
    """The calls of the kernels of which no group is known."""
    rows = rows[rows["recorded"]].reset_index(drop=True)
    matched = match_unnamed(rows, one_group=one_group, ranks=ranks)
    members = sorted(rows["rank"].unique().tolist())
    return GroupCalls(*_described(matched, members, len(members)), _stuck(rows[:0], rows[:0], None))


def _stuck(rows: pd.DataFrame, matched: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """The first call of each rank that it launched after all that were recorded of the group."""
    last = matched.groupby("rank")["launch"].max()
    open_ = rows[~rows["recorded"].astype(bool)]
    open_ = open_[open_["launch"] > open_["rank"].map(last).fillna(-1)]
    open_ = open_.sort_values("launch").drop_duplicates(["rank"]).copy()
    open_["members"] = str(members) if members else ""
    return open_


def _described(
    matched: pd.DataFrame, members: list[int] | None, size: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The calls and their kernels, from kernels that have numbers."""
    alone = matched["no"].to_numpy() < 0
    most = int(matched["no"].max()) + 1 if len(matched) else 0
    matched.loc[alone, "no"] = most + np.arange(alone.sum())
    matched = matched.sort_values(["no", "dur", "rank"], kind="stable", ignore_index=True)
    calls = matched.groupby("no", sort=True).agg(
        collective=("kind", "max"),
        process_group=("Process Group Name", "first"),
        description=("Process Group Description", "first"),
        iteration=("iteration", "first"),
        matched_by=("matched_by", "first"),
        dtype=("dtype", "first"),
        kernel_name=("collective", "first"),
        src=("src", "first"),
        dst=("dst", "first"),
        n=("rank", "size"),
        different=("sizes", "nunique"),
        most_in=("In msg nelems", "max"),
        most_out=("Out msg nelems", "max"),
        shortest=("dur", "first"),
        sum=("dur", "sum"),
        last_rank=("rank", "first"),
    )
    calls = calls.reset_index()
    calls["alone"] = calls["no"] >= most
    unnamed = calls["matched_by"] == "unnamed"
    calls["collective"] = calls["collective"].where(calls["collective"] != "", calls["kernel_name"])
    pair = (calls["collective"] == PAIR) & (calls["dst"] >= 0)
    calls["group_size"] = np.where(pair, 2, size)
    calls.loc[unnamed & calls["alone"], "group_size"] = np.nan
    calls["ranks"] = str(members) if members else ""
    calls.loc[unnamed & calls["alone"], "ranks"] = ""
    ends = np.sort(calls[["src", "dst"]].to_numpy(), axis=1)
    texts = [f"[{a}, {b}]" for a, b in ends.tolist()]
    calls["ranks"] = calls["ranks"].where(~pair, texts)
    _state(calls, matched, members, ends)
    _figures(calls)
    matched["complete"] = matched["no"].map(calls.set_index("no")["wait"].notna())
    keys = ["collective", "process_group", "dtype", "iteration", "ranks"]
    calls["sequence"] = calls.groupby(keys, sort=False).cumcount() + 1
    return calls.drop(columns=["kernel_name", "most_in", "most_out", "sum", "alone"]), matched


def _state(
    calls: pd.DataFrame,
    kernels: pd.DataFrame,
    members: list[int] | None,
    ends: np.ndarray[tuple[int, int], np.dtype[np.int64]],
) -> None:
    """Fill `state`, `missing_ranks` and the `reason` of what is not complete."""
    lacking = calls["n"] < calls["group_size"]
    state = np.where(calls["different"] > 1, "mismatch", "complete").astype(object)
    state[lacking] = "incomplete"
    unknown = (calls["n"] > calls["group_size"]) | calls["group_size"].isna() | calls["alone"]
    state[unknown] = "unmatched"
    calls["state"], calls["missing_ranks"], calls["reason"] = state, "", ""
    there = kernels.groupby("no")["rank"].agg(set)
    pairs = (calls["collective"] == PAIR) & (calls["dst"] >= 0)
    for at in np.flatnonzero(state == "incomplete").tolist():
        expected = ends[at].tolist() if pairs.iloc[at] else members
        if expected is not None:
            missing = sorted({*expected} - there.iloc[at])
            calls.loc[at, "missing_ranks"] = str(missing)
            calls.loc[at, "reason"] = f"no kernel of rank {str(missing)[1:-1]} belongs to it"
    incomplete = (calls["state"] == "incomplete") & (calls["reason"] == "")
    calls.loc[incomplete, "reason"] = "fewer ranks show it than the group has"
    calls.loc[state == "mismatch", "reason"] = "the sizes differ between ranks"
    named = calls["matched_by"] != "unnamed"
    calls.loc[unknown & named, "reason"] = "pairs with no call of the other ranks"
    calls.loc[unknown & ~named, "reason"] = "the trace does not tell whose call it is"


def _figures(calls: pd.DataFrame) -> None:
    """Fill the transfer, waits (ns), bytes and bandwidths where they are known."""
    squashed = calls["collective"].str.lower().str.replace(r"[_/]", "", regex=True)
    early = ~squashed.str.contains(_ALL_WAIT) & squashed.str.contains(EARLY)
    complete = calls["state"] == "complete"
    calls.loc[complete & early, "reason"] = "its ranks may leave before others come"
    known = complete & ~early
    size = calls["dtype"].map(element_bytes).astype("float64")
    calls["bytes"] = calls[["most_in", "most_out"]].max(axis=1) * size
    calls["in_sync"] = calls["shortest"].where(known).astype("float64")
    calls["wait"] = (calls["sum"] - calls["n"] * calls["shortest"]).where(known).astype("float64")
    calls["last_rank"] = calls["last_rank"].where(known).astype("Int64")
    named = calls[["collective", "group_size"]].drop_duplicates()
    factor = {(c, n): bus_factor(c, n) for c, n in named.itertuples(index=False, name=None)}
    keys = zip(calls["collective"], calls["group_size"], strict=True)
    bus = np.array([factor.get(key, np.nan) for key in keys], dtype=np.float64)
    unclear = known & ~(calls["bytes"] > 0)
    calls.loc[unclear, "reason"] = "its bytes are not known"
    whole = (calls["bytes"] > 0) & (calls["in_sync"] > 0) & (calls["matched_by"] != "unnamed")
    calls["algorithm"] = (calls["bytes"] / calls["in_sync"]).where(whole)
    calls["bus"] = calls["algorithm"] * bus
