"""A row a call of a process group over its ranks: what it is, what it lacks, how long it took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.collectives.collectives import bus_factor, element_bytes
from tracelens_ext.kernel_names import simple_name
from tracelens_ext.lazy import pd
from tracelens_ext.ranks.matching import match_group, match_unnamed, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Collectives that a rank may leave before the others come, unless they are these.
_EARLY, _ALL_WAIT = r"broadcast|reduce|gather|scatter", r"allreduce|reducescatter|allgather"


class GroupCalls(NamedTuple):
    """What the ranks of a process group show of its calls."""

    calls: pd.DataFrame  #: a row a call, `no` numbers them
    kernels: pd.DataFrame  #: a row a kernel, with the `no` of its call
    stuck: pd.DataFrame  #: a row a rank and its last call, launched and never recorded


def group_calls(rows: pd.DataFrame) -> GroupCalls:
    """The calls of a named process group, from the rows of `rank_calls` of all its ranks."""
    text, size = rows["Process Group Ranks"].iloc[0], rows["Group size"].iloc[0]
    members = _members(text, size, rows["rank"].unique().tolist())
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
    match_unnamed(matched, one_group=one_group, ranks=ranks)
    members, none = sorted(rows["rank"].unique().tolist()), matched[:0].assign(members="")
    return GroupCalls(*_described(matched, members, len(members)), none)


def _members(text: str, size: float, present: Sequence[int]) -> list[int] | None:
    """The ranks of a group; None where they are not known."""
    if re.fullmatch(r"\[[\d, ]*\d[\d, ]*\]", text):
        return sorted({int(r) for r in re.findall(r"\d{1,9}", text)})
    return sorted(present) if size == len(present) else None


def _described(
    matched: pd.DataFrame, members: list[int] | None, size: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The calls and their kernels, from kernels that have numbers."""
    alone = matched["no"].to_numpy() < 0
    most = int(matched["no"].max()) + 1 if len(matched) else 0
    matched.loc[alone, "no"] = most + np.arange(alone.sum())
    matched = matched.sort_values(["no", "dur", "rank"], kind="stable", ignore_index=True)
    first = {"process_group": "Process Group Name", "description": "Process Group Description"}
    first |= {"shortest": "dur", "last_rank": "rank"}
    first |= {n: n for n in ("iteration", "matched_by", "dtype", "kernel_name", "src", "dst")}
    calls = matched.groupby("no", sort=True).agg(
        **{name: (column, "first") for name, column in first.items()},
        collective=("kind", "max"),
        n=("rank", "size"),
        different=("sizes", "nunique"),
        most_in=("In msg nelems", "max"),
        most_out=("Out msg nelems", "max"),
        sum=("dur", "sum"),
    )
    calls = calls.reset_index()
    kernel = calls["kernel_name"].map({n: simple_name(n) for n in set(calls["kernel_name"])})
    calls["collective"] = calls["collective"].where(calls["collective"] != "", kernel)
    pair, single = calls["dst"] >= 0, calls["no"] >= most
    nobody = single & (calls["matched_by"] == "unnamed")
    ends = [f"[{min(p)}, {max(p)}]" for p in zip(calls["src"], calls["dst"], strict=True)]
    calls["ranks"] = np.where(pair, ends, str(members) if members else "")
    calls["ranks"] = calls["ranks"].mask(nobody, "").astype("str")
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
        missing = sorted({int(r) for r in re.findall(r"\d+", text)} - there[number])
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
