"""The partner of each send and receive of a pipeline, as a rank of the job.

A trace may record the partner as a rank of the job, as a rank of the process group, or not at all.
A partner that is not recorded is found by the ends of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tracelens_ext.distributed.peers import peers_in_job
from tracelens_ext.distributed.pipeline.sends_and_receives import RECEIVE, SEND
from tracelens_ext.distributed.pipeline.simultaneous_ends import (
    nearest_ranks,
    peers_by_ends,
)
from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.distributed.table_rows import table_rows, whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array

#: Names of process groups that belong to another kind of parallelism.
_OTHER_GROUPS = (
    r"(?i)context|expert|tensor|sequence|(?:^|[_\W])(?:cp|ep|tp|sp)(?:$|[_\W])"
)
#: Names of process groups that belong to a pipeline.
PIPELINE_GROUPS = r"(?i)pipe|(?:^|[_\W])pp(?:$|[_\W])"
_ORDER = ["rank", "launch", "start"]


def with_partners(
    calls: pd.DataFrame, stages: Sequence[Sequence[int]] = ()
) -> pd.DataFrame:
    """Return the sends and receives of a job whose partner is known, with `peer` as its rank.

    Args:
        calls: `pipeline_calls` of all ranks.
        stages: the ranks of each stage; empty if they are not named.
    """
    calls = _of_pipeline_groups(calls)
    calls = _with_assumed_groups(calls, stages)
    calls = _with_ranks_of_job(calls)
    calls = _with_batches(calls)
    has_direction = calls["direction"].isin([SEND, RECEIVE])
    has_peer = calls["peer"].notna()
    is_to_itself = calls["peer"] == calls["rank"]
    calls = calls[has_direction & has_peer & ~is_to_itself]
    calls = calls.reset_index(drop=True)
    return calls.astype({"peer": "int64"})


def _of_pipeline_groups(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of process groups whose names do not exclude a pipeline."""
    names = calls["description"] + " " + calls["group_name"]
    is_other = names.str.contains(_OTHER_GROUPS)
    is_pipeline = names.str.contains(PIPELINE_GROUPS)
    return calls[is_pipeline | ~is_other].reset_index(drop=True)


def _ordered(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return calls in the order in which their ranks made them."""
    calls = pd.concat(parts, ignore_index=True)
    return calls.sort_values(_ORDER, kind="stable", ignore_index=True)


# Recorded partners.


def _with_assumed_groups(
    calls: pd.DataFrame, stages: Sequence[Sequence[int]]
) -> pd.DataFrame:
    """Return the calls with an assumed group for those that record neither group nor peer.

    The ranks of each replica of the named stages become a group. If no stages are named, all ranks
    become one group.
    """
    has_direction = calls["direction"].isin([SEND, RECEIVE])
    has_group = calls["group"] != ""
    is_unknown = has_direction & ~has_group & calls["peer"].isna()
    if not is_unknown.any():
        return calls
    replicas: list[list[int]] = [sorted(calls["rank"].unique().tolist())]
    if stages:
        replicas = [list(ranks) for ranks in zip(*stages, strict=False)]
    group = calls["group"].copy()
    for ranks in replicas:
        group[is_unknown & calls["rank"].isin(ranks)] = str(ranks)
    return calls.assign(group=group)


def _with_ranks_of_job(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with `peer` as a rank of the job, NaN where it is not found."""
    parts = []
    for _, rows in calls.groupby(["group_name", "group"], sort=True):
        members = _members(rows["group"].iloc[0])
        with_peers = _with_recorded_peers(rows, members)
        has_direction = with_peers["direction"].isin([SEND, RECEIVE])
        unknown = with_peers[has_direction & with_peers["peer"].isna()]
        found = peers_by_ends(unknown, members)
        parts.append(with_peers.assign(peer=with_peers["peer"].fillna(found)))
    if not parts:
        return calls
    return _ordered(parts)


def _members(text: str) -> list[int]:
    """Return the ranks of a group; an empty list if the trace lists only some of them."""
    if "..." in text:
        return []
    return numbers_in(text)


def _with_recorded_peers(rows: pd.DataFrame, members: list[int]) -> pd.DataFrame:
    """Return the calls of a group with the recorded peers as ranks of the job."""
    is_group_rank = rows["is_group_rank"]
    peer = rows["peer"]
    if not members:
        # A position in the group tells nothing if the ranks of the group are not known.
        peer = peer.where(~is_group_rank)
    peer = peers_in_job(
        peer=peer,
        rank=rows["rank"],
        members=members,
        count_in_group=bool(is_group_rank.any()),
    )
    return rows.assign(peer=peer)


# Batches without a record of what is in them.


def _with_batches(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with a send and a receive in place of each kernel without a direction.

    Such a kernel is a batch without records. Its partner is the rank among the possible ones that
    has a kernel with the nearest end.
    """
    has_direction = calls["direction"].isin([SEND, RECEIVE])
    batches = calls[~has_direction].assign(peer=np.nan)
    if not len(batches):
        return calls
    ends_of_rank = _ends_of_ranks(calls)
    possible_partners = _possible_partners(calls)
    for rank in sorted(set(batches["rank"])):
        batches_of_rank = batches[batches["rank"] == rank]
        ends_of_partner = {
            partner: ends_of_rank[partner]
            for partner in sorted(possible_partners.get(rank, ()))
            if partner in ends_of_rank
        }
        batches.loc[batches_of_rank.index, "peer"] = nearest_ranks(
            batches_of_rank, ends_of_partner
        )
    sends = batches.assign(direction=SEND)
    receives = batches.assign(direction=RECEIVE)
    return _ordered([calls[has_direction], sends, receives])


def _ends_of_ranks(calls: pd.DataFrame) -> dict[int, Int64Array]:
    """Return the ends of the kernels of each rank, ascending, ns."""
    kernels = calls.drop_duplicates(["rank", "kernel"])
    ends = {}
    for _, rows in kernels.groupby("rank"):
        rank = int(rows["rank"].iloc[0])
        ends[rank] = np.sort(whole_numbers(rows, "end"))
    return ends


def _possible_partners(calls: pd.DataFrame) -> dict[int, set[int]]:
    """Return the ranks that each rank may exchange with.

    They are the peers of its other calls, and its neighbors in groups with calls without a peer.
    """
    partners: dict[int, set[int]] = {}

    def join(first: int, second: int) -> None:
        partners.setdefault(first, set()).add(second)
        partners.setdefault(second, set()).add(first)

    has_peer = calls["peer"].notna()
    ranks_and_peers = calls.loc[has_peer, ["rank", "peer"]].drop_duplicates()
    for row in table_rows(ranks_and_peers):
        join(int(row.rank), int(row.peer))
    for text in calls.loc[~has_peer, "group"].unique():
        for first, second in pairwise(numbers_in(text)):
            join(first, second)
    return partners
