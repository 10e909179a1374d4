"""The partner of a send or receive by its end, for traces that do not record the partner.

The kernel of a send and the kernel of its receive end together. So the partner of a kernel is the
neighboring stage that has a kernel of the opposite direction with the same end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.sends_and_receives import RECEIVE, SEND
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, Float64Array, Int64Array

#: The two ends of a transfer differ by less than this on a common clock.
SAME_END_NS = 60_000
#: The longest transfer of a link takes at most this many times as long as the median.
_MAX_SPREAD = 2.0
_OPPOSITE = {SEND: RECEIVE, RECEIVE: SEND}


def peers_by_ends(calls: pd.DataFrame, members: Sequence[int]) -> pd.Series:
    """Return the peer of each send and receive of a process group, NaN where it is not found.

    Args:
        calls: sends and receives without a recorded peer.
        members: the ranks of the group, in the order of the stages.
    """
    if len(members) < 3:
        return pd.Series(np.nan, index=calls.index)
    along_chain = _peers_along_chain(calls, members)
    if along_chain.notna().all():
        return along_chain
    return _peers_in_ring(calls, members)


# A chain of stages.


def _peers_along_chain(calls: pd.DataFrame, members: Sequence[int]) -> pd.Series:
    """Return the peers of a group whose ranks exchange with the member before and after them.

    The first rank exchanges with the second one only, so each of its kernels takes one kernel of
    the second rank. What the second rank has left is for the third one, and so on. This decides
    even if kernels of several stages end at once.

    Returns:
        NaN where a kernel finds no other kernel; NaN for all calls if the transfers of a link take
        unequally long, because kernels of different transfers seem to be paired then.
    """
    peer = pd.Series(np.nan, index=calls.index)
    for rank, next_rank in pairwise(members):
        for direction, opposite in _OPPOSITE.items():
            is_open = peer.isna()
            is_own = (calls["rank"] == rank) & (calls["direction"] == direction)
            is_next = (calls["rank"] == next_rank) & (calls["direction"] == opposite)
            own = calls[is_own & is_open]
            of_next = calls[is_next & is_open]
            partner = _one_to_one(
                ends=whole_numbers(own, "end"),
                other_ends=whole_numbers(of_next, "end"),
            )
            has_partner = partner != NONE
            if not _take_equally_long(
                own[has_partner], of_next.iloc[partner[has_partner]]
            ):
                return pd.Series(np.nan, index=calls.index)
            peer[own.index[has_partner]] = next_rank
            peer[of_next.index[partner[has_partner]]] = rank
    return peer


def _take_equally_long(calls: pd.DataFrame, partners: pd.DataFrame) -> bool:
    """Tell whether transfers take about equally long: each begins when both kernels run.

    Args:
        calls: the kernels on one side of a link.
        partners: the kernel on the other side of each.
    """
    if not len(calls):
        return True
    begin = np.maximum(whole_numbers(calls, "start"), whole_numbers(partners, "start"))
    duration = whole_numbers(calls, "end") - begin
    return bool(duration.max() <= _MAX_SPREAD * np.median(duration))


def _one_to_one(ends: Int64Array, other_ends: Int64Array) -> Int64Array:
    """Return the position of the nearest other end for each end, so that no two ends share one.

    It is `NONE` for an end without an other end nearby. Where several ends want the same other
    end, the nearest one gets it, and the others choose again among what is left.
    """
    partner = np.full(len(ends), NONE, dtype=np.int64)
    is_free = np.ones(len(other_ends), dtype=bool)
    while is_free.any():
        free = np.flatnonzero(is_free)
        free = free[np.argsort(other_ends[free], kind="stable")]
        waiting = np.flatnonzero(partner == NONE)
        nearest = _nearest(ends[waiting], other_ends[free])
        wanted = free[nearest]
        distance = np.abs(other_ends[wanted] - ends[waiting])
        choices = pd.DataFrame({"end": waiting, "wanted": wanted, "distance": distance})
        choices = choices[choices["distance"] < SAME_END_NS]
        if not len(choices):
            break
        choices = choices.sort_values("distance", kind="stable")
        choices = choices.drop_duplicates("wanted")
        partner[choices["end"]] = choices["wanted"]
        is_free[choices["wanted"]] = False
    return partner


# A ring of stages.


class _Side(NamedTuple):
    """The sends, or the receives, of a rank in one group."""

    rank: int
    direction: str


def _peers_in_ring(calls: pd.DataFrame, members: Sequence[int]) -> pd.Series:
    """Return for each call the neighbor in the ring of members with the nearest end."""
    ends_of_side = {}
    calls_of_side = {}
    for _, side_calls in calls.groupby(["rank", "direction"]):
        first = side_calls.iloc[0]
        side = _Side(rank=int(first["rank"]), direction=str(first["direction"]))
        calls_of_side[side] = side_calls
        ends_of_side[side] = np.sort(whole_numbers(side_calls, "end"))
    peer = pd.Series(np.nan, index=calls.index)
    for side, side_calls in calls_of_side.items():
        ends_of_neighbor = {}
        for neighbor in _neighbors_in_ring(side.rank, members):
            opposite_side = _Side(neighbor, _OPPOSITE[side.direction])
            if opposite_side in ends_of_side:
                ends_of_neighbor[neighbor] = ends_of_side[opposite_side]
        peer[side_calls.index] = nearest_ranks(side_calls, ends_of_neighbor)
    return peer


def _neighbors_in_ring(rank: int, members: Sequence[int]) -> list[int]:
    """Return the member after a rank and the one before it; none if it is not a member."""
    if rank not in members:
        return []
    position = members.index(rank)
    following = members[(position + 1) % len(members)]
    previous = members[position - 1]
    return [following, previous]


def nearest_ranks(
    calls: pd.DataFrame, ends_of_rank: Mapping[int, Int64Array]
) -> Float64Array:
    """Return for each call the rank with the nearest end of a kernel, NaN without one, (n,).

    Args:
        calls: sends and receives.
        ends_of_rank: the ends of the kernels of each candidate, ascending, ns.
    """
    ends = whole_numbers(calls, "end")
    nearest_distance = np.full(len(ends), SAME_END_NS)
    nearest_rank = np.full(len(ends), np.nan)
    for rank, other_ends in ends_of_rank.items():
        nearest = _nearest(ends, other_ends)
        distance = np.abs(other_ends[nearest] - ends)
        is_nearer = distance < nearest_distance
        nearest_distance[is_nearer] = distance[is_nearer]
        nearest_rank[is_nearer] = rank
    return nearest_rank


def _nearest(instants: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the position of the end that is nearest to each instant; ends ascend, (n,)."""
    after = np.searchsorted(ends, instants)
    after = np.minimum(after, len(ends) - 1)
    before = np.maximum(after - 1, 0)
    is_before_nearer = instants - ends[before] <= ends[after] - instants
    positions: Int64Array = np.where(is_before_nearer, before, after)
    # Before the first end, both positions are 0; beyond the last one, `after` is the last.
    is_beyond = instants > ends[after]
    return np.where(is_beyond, after, positions)
