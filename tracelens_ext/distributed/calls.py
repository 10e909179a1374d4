"""A row for each call of a process group: what it is, which ranks it lacks, how long it took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.collectives import bus_factor, element_bytes
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.distributed.matching import (
    MatchedBy,
    match_group,
    order_in_iterations,
    prepared,
)
from tracelens_ext.distributed.peers import peers_in_job
from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE

#: Collectives that a rank may leave before the others come, unless the second pattern matches too.
_RANKS_MAY_LEAVE_EARLY = r"broadcast|reduce|gather|scatter"
_ALL_RANKS_WAIT = r"allreduce|reducescatter|allgather"
_LISTED_RANKS = re.compile(r"\[[\d, ]*\d[\d, ]*\]")
#: Columns of a call that are those of its shortest kernel.
_OF_SHORTEST_KERNEL = {
    "process_group": "Process Group Name",
    "description": "Process Group Description",
    "key": "key",
    "shortest": "dur",
    "last_rank": "rank",
    "iteration": "iteration",
    "matched_by": "matched_by",
    "dtype": "dtype",
    "kernel_name": "kernel_name",
    "src": "src",
    "dst": "dst",
}


class CallState(StrEnum):
    """What became of a call."""

    COMPLETE = "complete"  #: every rank of the group has it
    INCOMPLETE = "incomplete"  #: fewer ranks have it than the group has
    UNMATCHED = "unmatched"  #: it pairs with no call of the other ranks
    MISMATCH = "mismatch"  #: its sizes differ between ranks
    HANG = "hang"  #: it never ended


class GroupCalls(NamedTuple):
    """What the ranks of a process group show of its calls."""

    calls: pd.DataFrame  #: a row for each call, numbered by `no`
    kernels: pd.DataFrame  #: a row for each kernel, with the `no` of its call
    #: a row for each rank with its last call, if that was launched and never recorded
    stuck: pd.DataFrame


def group_calls(rows: pd.DataFrame) -> GroupCalls:
    """Return the calls of a named process group.

    Args:
        rows: of `rank_calls` of all its ranks, not empty.
    """
    ranks_text = rows["Process Group Ranks"].iloc[0]
    size = rows["Group size"].iloc[0]
    members = _members(
        ranks_text=ranks_text,
        size=size,
        present=set(rows["rank"].tolist()),
    )
    rows = prepared(_with_peers_in_job(rows, members), members)
    matched = rows[rows["recorded"]].reset_index(drop=True)
    match_group(matched)
    last_recorded = matched.groupby("rank")["launch"].max()
    is_after_last = rows["launch"] > rows["rank"].map(last_recorded).fillna(NONE)
    stuck = (
        rows[~rows["recorded"] & is_after_last]
        .sort_values("launch")
        .drop_duplicates("rank")
    )
    calls, kernels = _described(
        kernels=matched,
        members=members,
        size=size,
    )
    return GroupCalls(
        calls=calls,
        kernels=kernels,
        stuck=stuck.assign(members=str(members)),
    )


def _with_peers_in_job(rows: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """Return `rank_calls` of a group whose sends and receives name ranks of the job."""
    if members is None or len(members) < 3:
        return rows
    name = rows["Collective name"]
    is_send = name == "send"
    is_receive = name == "recv"
    peer = rows["Dst Rank"].where(is_send, rows["Src Rank"].where(is_receive))
    in_job = peers_in_job(
        peer=peer,
        rank=rows["rank"],
        members=members,
    )
    return rows.assign(
        **{
            "Dst Rank": rows["Dst Rank"].where(~is_send, in_job),
            "Src Rank": rows["Src Rank"].where(~is_receive, in_job),
        }
    )


def _members(ranks_text: str, size: float, present: set[int]) -> list[int] | None:
    """Return the ranks of a process group; None if they are not known."""
    if _LISTED_RANKS.fullmatch(ranks_text):
        return sorted(set(numbers_in(ranks_text)))
    if size == len(present):
        return sorted(present)
    return None


def unnamed_calls(rows: pd.DataFrame, *, one_group: bool, ranks: int) -> GroupCalls:
    """Return the calls of kernels whose process group is not known.

    Args:
        rows: of `rank_calls` of all ranks.
        one_group: all communication of the job may be that of one group.
        ranks: how many ranks there are.
    """
    matched = prepared(rows[rows["recorded"]].reset_index(drop=True), None)
    matched = matched.assign(
        matched_by=MatchedBy.UNNAMED.value,
        kind=matched["Collective name"],
        src=NONE,
        dst=NONE,
        sizes=0,
        like=pd.factorize(matched["kernel_name"])[0],
    )
    if one_group and ranks > 1 and matched["rank"].nunique() == ranks:
        order = order_in_iterations(matched, needed_ranks=ranks)
        matched["no"] = np.where(order.is_alike, order.number, NONE)
    members = sorted(rows["rank"].unique().tolist())
    calls, kernels = _described(
        kernels=matched,
        members=members,
        size=len(members),
    )
    return GroupCalls(calls, kernels, stuck=matched[:0].assign(members=""))


class _Described(NamedTuple):
    """Calls with all their columns, and their kernels."""

    calls: pd.DataFrame
    kernels: pd.DataFrame


def _described(
    kernels: pd.DataFrame, members: Sequence[int] | None, size: float
) -> _Described:
    """Return the calls of kernels that are numbered; one without a number is a call of its own."""
    is_alone = kernels["no"].to_numpy() < 0
    matched_count = int(kernels["no"].max()) + 1 if len(kernels) else 0
    kernels.loc[is_alone, "no"] = matched_count + np.arange(is_alone.sum())
    kernels = kernels.sort_values(
        ["no", "dur", "rank"], kind="stable", ignore_index=True
    )
    of_shortest = {
        name: (column, "first") for name, column in _OF_SHORTEST_KERNEL.items()
    }
    calls = (
        kernels.groupby("no", sort=True)
        .agg(
            **of_shortest,
            collective=("kind", "max"),
            n=("rank", "size"),
            sum=("dur", "sum"),
            different=("sizes", "nunique"),
            most_in=("In msg nelems", "max"),
            most_out=("Out msg nelems", "max"),
        )
        .reset_index()
    )
    _name_unnamed_collectives(calls)
    is_single = calls["no"] >= matched_count
    _add_ranks(
        calls=calls,
        members=members,
        size=size,
        is_single=is_single,
    )
    _add_state(
        calls=calls,
        kernels=kernels,
        is_single=is_single,
    )
    _add_figures(calls)
    wait = calls.set_index("no")["wait"]
    kernels["complete"] = kernels["no"].map(wait.notna()).astype(bool)
    keys = ["collective", "process_group", "dtype", "iteration", "ranks"]
    calls["sequence"] = calls.groupby(keys, sort=False, dropna=False).cumcount() + 1
    return _Described(calls, kernels)


def _name_unnamed_collectives(calls: pd.DataFrame) -> None:
    """Call a collective that has no name by its kernel."""
    simple_names = {name: simple_name(name) for name in calls["kernel_name"].unique()}
    kernel = calls["kernel_name"].map(simple_names)
    calls["collective"] = calls["collective"].where(calls["collective"] != "", kernel)


def _add_ranks(
    calls: pd.DataFrame,
    members: Sequence[int] | None,
    size: float,
    is_single: pd.Series,
) -> None:
    """Add `ranks`, as text, and `group_size`; both are empty where no group is known."""
    is_pair = calls["dst"] >= 0
    ends = [
        str(sorted([source, destination]))
        for source, destination in zip(calls["src"], calls["dst"], strict=True)
    ]
    text = str(members) if members else ""
    belongs_to_nobody = is_single & (calls["matched_by"] == MatchedBy.UNNAMED)
    ranks = pd.Series(np.where(is_pair, ends, text))
    calls["ranks"] = ranks.mask(belongs_to_nobody, "").astype("str")
    calls["group_size"] = pd.Series(np.where(is_pair, 2.0, size)).mask(
        belongs_to_nobody
    )


def _add_state(
    calls: pd.DataFrame, kernels: pd.DataFrame, is_single: pd.Series
) -> None:
    """Add `state`, `missing_ranks`, and the `reason` why a call is not complete."""
    is_unmatched = is_single | ~(calls["n"] <= calls["group_size"])
    is_named = calls["matched_by"] != MatchedBy.UNNAMED
    cases = [is_unmatched & is_named, is_unmatched]
    cases.append(calls["n"] < calls["group_size"])
    cases.append(calls["different"] > 1)
    states = [
        CallState.UNMATCHED,
        CallState.UNMATCHED,
        CallState.INCOMPLETE,
        CallState.MISMATCH,
    ]
    reasons = [
        "it matches no call of the other ranks",
        "the trace does not record which group made it",
        "fewer ranks recorded it than the group has",
        "the sizes differ between ranks",
    ]
    state_texts = [state.value for state in states]
    calls["state"] = np.select(cases, state_texts, CallState.COMPLETE.value)
    calls["reason"] = np.select(cases, reasons, "")
    calls["missing_ranks"] = ""
    incomplete = calls[
        (calls["state"] == CallState.INCOMPLETE) & (calls["ranks"] != "")
    ]
    kernels_of_incomplete = kernels[kernels["no"].isin(incomplete["no"])]
    present_ranks = kernels_of_incomplete.groupby("no")["rank"].agg(set)
    for row, number, ranks in zip(
        incomplete.index, incomplete["no"], incomplete["ranks"], strict=True
    ):
        missing = sorted(set(numbers_in(ranks)) - present_ranks[number])
        listed = ", ".join(map(str, missing))
        calls.loc[row, "missing_ranks"] = str(missing)
        calls.loc[row, "reason"] = f"no kernel of rank {listed} belongs to it"


def _add_figures(calls: pd.DataFrame) -> None:
    """Add transfer and wait time (ns), bytes and bandwidths, where they are known."""
    is_complete = calls["state"] == CallState.COMPLETE
    ends_early = is_complete & _may_leave_early(calls)
    has_times = is_complete & ~ends_early
    size = calls["dtype"].map(element_bytes)
    elements = calls[["most_in", "most_out"]].max(axis=1)
    calls["bytes"] = elements * size.astype("float64")
    shortest = calls["shortest"]
    wait = calls["sum"] - calls["n"] * shortest
    last_rank = calls["last_rank"].where(has_times)
    calls["in_sync"] = shortest.where(has_times).astype("float64")
    calls["wait"] = wait.where(has_times).astype("float64")
    calls["last_rank"] = last_rank.astype("Int64")
    has_amounts = (calls["bytes"] > 0) & (calls["in_sync"] > 0)
    is_named = calls["matched_by"] != MatchedBy.UNNAMED
    has_bandwidth = has_amounts & is_named
    bandwidth = calls["bytes"] / calls["in_sync"]
    calls["algorithm"] = bandwidth.where(has_bandwidth)
    calls["bus"] = calls["algorithm"] * _bus_factors(calls)
    calls.loc[ends_early, "reason"] = "its ranks may leave before others arrive"
    calls.loc[has_times & ~has_bandwidth, "reason"] = "its size in bytes is unknown"


def _may_leave_early(calls: pd.DataFrame) -> pd.Series:
    """Return which calls ranks may leave before others come; not sends and receives."""
    lower_case = calls["collective"].str.lower()
    plain_name = lower_case.str.replace("_", "")
    waits_for_all = plain_name.str.contains(_ALL_RANKS_WAIT)
    leaves_early = plain_name.str.contains(_RANKS_MAY_LEAVE_EARLY)
    is_collective = calls["dst"] < 0
    return leaves_early & ~waits_for_all & is_collective


def _bus_factors(calls: pd.DataFrame) -> pd.Series:
    """Return the bus bandwidth of each call by its algorithm bandwidth."""
    kinds = calls.groupby(["collective", "group_size"], sort=False, dropna=False)
    factors = pd.Series(1.0, calls.index)
    for _, rows in kinds:
        first = rows.iloc[0]
        factor = bus_factor(first["collective"], first["group_size"])
        factors[rows.index] = factor
    return factors
