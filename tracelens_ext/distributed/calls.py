"""Builds the calls of a process group from the kernels of its ranks.

Each call gets a row that says what it is, which ranks are missing, and how long transfer and wait
took.
"""

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
    number_calls,
    numbered_by_order,
    with_matching_columns,
)
from tracelens_ext.distributed.peers import peers_in_job
from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE

#: Names of collectives that may end on one rank before another rank has entered them. The names of
#: some other collectives contain these words, too; the second pattern excludes them.
_RANKS_MAY_LEAVE_EARLY = r"broadcast|reduce|gather|scatter"
_ALL_RANKS_WAIT = r"allreduce|reducescatter|allgather"
#: A list of ranks that the profiler did not shorten.
_COMPLETE_LIST = re.compile(r"\[[\d, ]*\d[\d, ]*\]")
#: Column of a call → column of its shortest kernel from which the value is taken. The shortest
#: kernel is that of the rank that came last.
_COLUMNS_OF_SHORTEST_KERNEL = {
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
    """Whether a call was recorded completely."""

    COMPLETE = "complete"  #: every rank of the group recorded the call
    INCOMPLETE = "incomplete"  #: some ranks of the group did not record the call
    UNMATCHED = "unmatched"  #: the kernel matches no kernel of the other ranks
    MISMATCH = "mismatch"  #: the sizes of the call differ between ranks
    HANG = "hang"  #: the call never ended


class CallsOfGroup(NamedTuple):
    """The calls of a process group."""

    calls: pd.DataFrame  #: a row for each call, numbered by `call_in_group`
    #: a row for each kernel, with the `call_in_group` of its call
    kernels: pd.DataFrame
    #: for each rank, the first call that was launched after its last recorded one, if there is any
    stuck: pd.DataFrame


def calls_of_group(rows: pd.DataFrame) -> CallsOfGroup:
    """Return the calls of a process group that the traces name.

    Args:
        rows: the rows of `rank_calls` of all ranks of the group, at least one.
    """
    ranks_text = rows["Process Group Ranks"].iloc[0]
    size = rows["Group size"].iloc[0]
    members = _members(
        ranks_text=ranks_text,
        size=size,
        present=set(rows["rank"].tolist()),
    )
    rows = with_matching_columns(_with_peers_in_job(rows, members), members)
    recorded = rows[rows["recorded"]].reset_index(drop=True)
    number_calls(recorded)
    calls, kernels = _calls_of_kernels(
        kernels=recorded,
        members=members,
        size=size,
    )
    # The first call of each rank that was launched after its last recorded one.
    last_recorded_launch = recorded.groupby("rank")["launch"].max()
    last_launch = rows["rank"].map(last_recorded_launch).fillna(NONE)
    is_after_last = rows["launch"] > last_launch
    stuck = rows[~rows["recorded"] & is_after_last]
    stuck = stuck.sort_values("launch").drop_duplicates("rank")
    return CallsOfGroup(
        calls=calls,
        kernels=kernels,
        stuck=stuck.assign(members=str(members)),
    )


def _with_peers_in_job(rows: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """Return the rows of `rank_calls` with the peers of sends and receives as ranks of the job.

    Groups of two ranks need no conversion: `with_matching_columns` knows their peers.
    """
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
    """Return the ranks of a process group, ascending; None if they are not known.

    Args:
        ranks_text: the ranks as the profiler lists them, possibly shortened.
        size: the number of ranks of the group.
        present: the ranks that have calls of the group.
    """
    if _COMPLETE_LIST.fullmatch(ranks_text):
        return sorted(set(numbers_in(ranks_text)))
    if size == len(present):
        return sorted(present)
    return None


def unnamed_calls(
    rows: pd.DataFrame, *, is_only_group: bool, rank_count: int
) -> CallsOfGroup:
    """Return the calls of kernels whose process group is not known.

    They are matched by their order, but only if all ranks may form a single group.

    Args:
        rows: the rows of `rank_calls` of all ranks without a group.
        is_only_group: True if all communication of the job may belong to one group.
        rank_count: the number of ranks of the job.
    """
    recorded = rows[rows["recorded"]].reset_index(drop=True)
    matched = with_matching_columns(recorded, None)
    matched = matched.assign(
        matched_by=MatchedBy.UNNAMED.value,
        kind=matched["Collective name"],
        src=NONE,
        dst=NONE,
        signature=0,
        kind_number=pd.factorize(matched["kernel_name"])[0],
    )
    has_all_ranks = matched["rank"].nunique() == rank_count
    if is_only_group and rank_count > 1 and has_all_ranks:
        order = numbered_by_order(matched, needed_ranks=rank_count)
        matched["call_in_group"] = np.where(order.is_alike, order.number, NONE)
    members = sorted(rows["rank"].unique().tolist())
    calls, kernels = _calls_of_kernels(
        kernels=matched,
        members=members,
        size=len(members),
    )
    return CallsOfGroup(calls, kernels, stuck=matched[:0].assign(members=""))


class _CallsAndKernels(NamedTuple):
    """Calls with all their columns, and their kernels."""

    calls: pd.DataFrame
    kernels: pd.DataFrame


def _calls_of_kernels(
    kernels: pd.DataFrame, members: Sequence[int] | None, size: float
) -> _CallsAndKernels:
    """Return the calls that kernels belong to by their `call_in_group`, and the sorted kernels.

    A kernel that was not matched becomes a call of its own.

    Args:
        kernels: the recorded kernels; their `call_in_group` is completed in place.
        members: the ranks of the group; None if they are not known.
        size: the number of ranks of the group.
    """
    is_alone = kernels["call_in_group"].to_numpy() < 0
    matched_count = int(kernels["call_in_group"].max()) + 1 if len(kernels) else 0
    kernels.loc[is_alone, "call_in_group"] = matched_count + np.arange(is_alone.sum())
    kernels = kernels.sort_values(
        ["call_in_group", "dur", "rank"], kind="stable", ignore_index=True
    )
    # The kernels of a call are sorted by duration, so the first one is the shortest.
    of_shortest = {
        name: (column, "first") for name, column in _COLUMNS_OF_SHORTEST_KERNEL.items()
    }
    calls = (
        kernels.groupby("call_in_group", sort=True)
        .agg(
            **of_shortest,
            collective=("kind", "max"),
            kernel_count=("rank", "size"),
            total_duration=("dur", "sum"),
            signature_count=("signature", "nunique"),
            elements_in=("In msg nelems", "max"),
            elements_out=("Out msg nelems", "max"),
        )
        .reset_index()
    )
    _name_unnamed_collectives(calls)
    is_unmatched_kernel = calls["call_in_group"] >= matched_count
    _add_ranks(
        calls=calls,
        members=members,
        size=size,
        is_unmatched_kernel=is_unmatched_kernel,
    )
    _add_state(
        calls=calls,
        kernels=kernels,
        is_unmatched_kernel=is_unmatched_kernel,
    )
    _add_figures(calls)
    wait = calls.set_index("call_in_group")["wait"]
    kernels["has_wait"] = kernels["call_in_group"].map(wait.notna()).astype(bool)
    keys = ["collective", "process_group", "dtype", "iteration", "ranks"]
    calls["sequence"] = calls.groupby(keys, sort=False, dropna=False).cumcount() + 1
    return _CallsAndKernels(calls, kernels)


def _name_unnamed_collectives(calls: pd.DataFrame) -> None:
    """Give collectives without a name the names of their kernels, in place."""
    simple_names = {name: simple_name(name) for name in calls["kernel_name"].unique()}
    name_of_kernel = calls["kernel_name"].map(simple_names)
    has_name = calls["collective"] != ""
    calls["collective"] = calls["collective"].where(has_name, name_of_kernel)


def _add_ranks(
    calls: pd.DataFrame,
    members: Sequence[int] | None,
    size: float,
    is_unmatched_kernel: pd.Series,
) -> None:
    """Add `ranks`, as text, and `group_size` in place.

    Both are those of the two ranks for sends and receives, and empty if the group is not known.
    """
    is_pair = calls["dst"] >= 0
    ranks_of_pair = [
        str(sorted([source, destination]))
        for source, destination in zip(calls["src"], calls["dst"], strict=True)
    ]
    ranks_of_group = str(members) if members else ""
    ranks = pd.Series(np.where(is_pair, ranks_of_pair, ranks_of_group))
    group_size = pd.Series(np.where(is_pair, 2.0, size))
    has_no_group = is_unmatched_kernel & (calls["matched_by"] == MatchedBy.UNNAMED)
    calls["ranks"] = ranks.mask(has_no_group, "").astype("str")
    calls["group_size"] = group_size.mask(has_no_group)


def _add_state(
    calls: pd.DataFrame, kernels: pd.DataFrame, is_unmatched_kernel: pd.Series
) -> None:
    """Add `state`, `missing_ranks`, and the `reason` why a call is not complete, in place."""
    # "Not less or equal" also finds calls whose group size is not known (NaN).
    has_too_many_kernels = ~(calls["kernel_count"] <= calls["group_size"])
    is_unmatched = is_unmatched_kernel | has_too_many_kernels
    is_named = calls["matched_by"] != MatchedBy.UNNAMED
    # The first case that is true decides the state and the reason.
    cases = [
        is_unmatched & is_named,
        is_unmatched,
        calls["kernel_count"] < calls["group_size"],
        calls["signature_count"] > 1,
    ]
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
    _add_missing_ranks(calls, kernels)


def _add_missing_ranks(calls: pd.DataFrame, kernels: pd.DataFrame) -> None:
    """Add `missing_ranks`, and name these ranks in the `reason` of incomplete calls, in place."""
    calls["missing_ranks"] = ""
    is_incomplete = calls["state"] == CallState.INCOMPLETE
    incomplete = calls[is_incomplete & (calls["ranks"] != "")]
    is_of_incomplete = kernels["call_in_group"].isin(incomplete["call_in_group"])
    kernels_of_incomplete = kernels[is_of_incomplete]
    present_ranks = kernels_of_incomplete.groupby("call_in_group")["rank"].agg(set)
    for row, number, ranks in zip(
        incomplete.index, incomplete["call_in_group"], incomplete["ranks"], strict=True
    ):
        missing = sorted(set(numbers_in(ranks)) - present_ranks[number])
        listed = ", ".join(map(str, missing))
        calls.loc[row, "missing_ranks"] = str(missing)
        calls.loc[row, "reason"] = f"no kernel of rank {listed} belongs to it"


def _add_figures(calls: pd.DataFrame) -> None:
    """Add transfer and wait time (ns), bytes and bandwidths in place, NaN if they are not known.

    The last rank does not wait, so its kernel, the shortest one, shows the transfer time. What the
    other kernels run longer is their wait. This does not hold for collectives that may end on one
    rank before another rank enters them.
    """
    is_complete = calls["state"] == CallState.COMPLETE
    ends_early = is_complete & _may_leave_early(calls)
    has_times = is_complete & ~ends_early
    element_size = calls["dtype"].map(element_bytes)
    elements = calls[["elements_in", "elements_out"]].max(axis=1)
    calls["bytes"] = elements * element_size.astype("float64")
    shortest = calls["shortest"]
    # The sum over all ranks of what their kernels run longer than the shortest one.
    wait = calls["total_duration"] - calls["kernel_count"] * shortest
    last_rank = calls["last_rank"].where(has_times)
    calls["transfer"] = shortest.where(has_times).astype("float64")
    calls["wait"] = wait.where(has_times).astype("float64")
    calls["last_rank"] = last_rank.astype("Int64")
    has_amounts = (calls["bytes"] > 0) & (calls["transfer"] > 0)
    is_named = calls["matched_by"] != MatchedBy.UNNAMED
    has_bandwidth = has_amounts & is_named
    bandwidth = calls["bytes"] / calls["transfer"]
    calls["algorithm"] = bandwidth.where(has_bandwidth)
    calls["bus"] = calls["algorithm"] * _bus_factors(calls)
    calls.loc[ends_early, "reason"] = "its ranks may leave before others arrive"
    calls.loc[has_times & ~has_bandwidth, "reason"] = "its size in bytes is unknown"


def _may_leave_early(calls: pd.DataFrame) -> pd.Series:
    """Return which calls may end on one rank before another rank enters them, (n,)."""
    lower_case = calls["collective"].str.lower()
    plain_name = lower_case.str.replace("_", "")
    waits_for_all = plain_name.str.contains(_ALL_RANKS_WAIT)
    leaves_early = plain_name.str.contains(_RANKS_MAY_LEAVE_EARLY)
    is_collective = calls["dst"] < 0
    return leaves_early & ~waits_for_all & is_collective


def _bus_factors(calls: pd.DataFrame) -> pd.Series:
    """Return the ratio of bus bandwidth to algorithm bandwidth of each call, (n,)."""
    kinds = calls.groupby(["collective", "group_size"], sort=False, dropna=False)
    factors = pd.Series(1.0, calls.index)
    for _, rows in kinds:
        first = rows.iloc[0]
        factor = bus_factor(first["collective"], first["group_size"])
        factors[rows.index] = factor
    return factors
