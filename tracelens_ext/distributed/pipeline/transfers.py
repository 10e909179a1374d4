"""Sends and receives paired over all ranks, on one clock: how long each transfer took.

NCCL moves data once both ranks are there, and both kernels end with the transfer. So a transfer
begins with the later of the two kernels. A batch ends with the last of its transfers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.extract import numbers_in
from tracelens_ext.distributed.peers import peers_in_job
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Float64Array, Int64Array

SEND = "send"
RECEIVE = "recv"
#: Ends of one transfer differ by less than this on a common clock.
_SAME_END_NS = 60_000
#: A send that ends so much before its receive, and takes at most so many times as long as a
#: transfer of its link, was buffered.
_BUFFERED_END_NS = 5_000
_USUAL_FACTOR = 1.5
_USUAL_QUANTILE = 0.1
#: The share of the pairs of two ranks that must end together to tell the offset of their clocks.
_MIN_SHARE_OF_ENDS = 0.3
#: Equally frequent offsets that are tried.
_MAX_TIES = 16
#: Groups whose names say that they are none of a pipeline, and words that say the opposite.
_OTHER_GROUPS = (
    r"(?i)context|expert|tensor|sequence|(?:^|[_\W])(?:cp|ep|tp|sp)(?:$|[_\W])"
)
PIPELINE_GROUPS = r"(?i)pipe|(?:^|[_\W])pp(?:$|[_\W])"


class Transfers(NamedTuple):
    """All sends and receives of a job."""

    #: as `pipeline_calls`, with `peer` as a rank of the job, `pair` (a number that the send and
    #: the receive share, -1 for none), times on the common clock, and `begin`: when the transfer
    #: of the whole kernel began, ns
    calls: pd.DataFrame
    offset_of_rank: dict[int, int]  #: ns that each rank's clock is ahead


def match_transfers(calls: pd.DataFrame) -> Transfers:
    """Pair the sends and receives of a job.

    Args:
        calls: `pipeline_calls` of all ranks.
    """
    calls = _with_batches(_with_ranks_of_job(calls))
    has_direction = calls["direction"].isin([SEND, RECEIVE])
    calls = calls[has_direction & calls["peer"].notna()].reset_index(drop=True)
    calls["peer"] = calls["peer"].astype("int64")
    calls = calls[calls["peer"] != calls["rank"]].reset_index(drop=True)
    is_send = calls["direction"] == SEND
    calls["source"] = calls["rank"].where(is_send, calls["peer"])
    calls["target"] = calls["peer"].where(is_send, calls["rank"])
    calls["pair"] = _pairs(calls)
    offsets = _offsets(calls)
    offset = calls["rank"].map(offsets).to_numpy(np.int64)
    for name in ("start", "end", "launch"):
        calls[name] -= offset
    return Transfers(_with_begins(calls), offsets)


# Whom a rank sends to.


def _with_ranks_of_job(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of groups that may be a pipeline's, with peers as ranks of the job."""
    description = calls["description"] + " " + calls["group_name"]
    is_other = description.str.contains(_OTHER_GROUPS)
    is_pipeline = description.str.contains(PIPELINE_GROUPS)
    calls = calls[is_pipeline | ~is_other].reset_index(drop=True)
    parts = []
    for _, rows in calls.groupby(["group_name", "group"], sort=True):
        members = numbers_in(rows["group"].iloc[0])
        if "..." in rows["group"].iloc[0]:
            members = []
        count_in_group = bool(rows["is_group_rank"].any())
        peer = rows["peer"]
        if not members:
            # What counts in a group that is not known is not known either.
            peer = peer.where(~rows["is_group_rank"])
        peer = peers_in_job(peer, rows["rank"], members, count_in_group=count_in_group)
        rows = rows.assign(peer=peer)
        _find_peers_by_ends(rows, members)
        parts.append(rows)
    if not parts:
        return calls
    return pd.concat(parts, ignore_index=True).sort_values(
        ["rank", "launch", "start"], kind="stable", ignore_index=True
    )


def _find_peers_by_ends(rows: pd.DataFrame, members: list[int]) -> None:
    """Set the peers that the trace does not tell: the neighbors whose kernels end together.

    Args:
        rows: the calls of one group, changed in place.
        members: the ranks of the group, in the order of the stages.
    """
    unknown = rows[rows["peer"].isna() & rows["direction"].isin([SEND, RECEIVE])]
    if not len(unknown) or len(members) < 3:
        return
    place = {rank: index for index, rank in enumerate(members)}
    distance = pd.Series(float(_SAME_END_NS), index=unknown.index)
    sides: dict[tuple[int, str], pd.DataFrame] = {}
    for _, rows_of_side in unknown.groupby(["rank", "direction"]):
        first = rows_of_side.iloc[0]
        sides[int(first["rank"]), str(first["direction"])] = rows_of_side
    for (rank, direction), own in sides.items():
        opposite = RECEIVE if direction == SEND else SEND
        for step in (1, -1):
            neighbor = members[(place.get(rank, 0) + step) % len(members)]
            others = sides.get((neighbor, opposite))
            if others is None or rank not in place:
                continue
            ends = np.sort(others["end"].to_numpy(np.int64))
            nearest = _distances(own["end"], ends)
            is_nearer = nearest < distance[own.index].to_numpy()
            chosen = own.index[is_nearer]
            distance[chosen] = nearest[is_nearer]
            rows.loc[chosen, "peer"] = float(neighbor)


def _with_batches(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with a send and a receive for each batch that does not tell what it has.

    A batch exchanges with one neighbor as a rule: the one that has a kernel with the same end.
    """
    is_batch = ~calls["direction"].isin([SEND, RECEIVE])
    batches = calls[is_batch].assign(peer=np.nan)
    if not len(batches):
        return calls
    kernels = calls.drop_duplicates(["rank", "kernel"])
    ends_of_rank = {
        int(rows["rank"].iloc[0]): np.sort(rows["end"].to_numpy(np.int64))
        for _, rows in kernels.groupby("rank")
    }
    neighbors = _neighbors(calls)
    for rank in sorted(set(batches["rank"])):
        own = batches[batches["rank"] == rank]
        distance = np.full(len(own), float(_SAME_END_NS))
        peer = np.full(len(own), np.nan)
        for neighbor in sorted(neighbors.get(rank, ())):
            if neighbor not in ends_of_rank:
                continue
            nearest = _distances(own["end"], ends_of_rank[neighbor])
            is_nearer = nearest < distance
            distance[is_nearer] = nearest[is_nearer]
            peer[is_nearer] = neighbor
        batches.loc[own.index, "peer"] = peer
    parts = [calls[~is_batch]]
    parts += [batches.assign(direction=direction) for direction in (SEND, RECEIVE)]
    return pd.concat(parts, ignore_index=True).sort_values(
        ["rank", "launch", "start"], kind="stable", ignore_index=True
    )


def _neighbors(calls: pd.DataFrame) -> dict[int, set[int]]:
    """Return the ranks that each rank may exchange with: peers, or neighbors in a group."""
    neighbors: dict[int, set[int]] = {}
    known = calls[calls["peer"].notna()]
    pairs = set(zip(known["rank"].tolist(), known["peer"].astype(int), strict=True))
    unknown = calls[calls["peer"].isna()]
    for text in unknown["group"].unique():
        members = numbers_in(text)
        pairs.update(pairwise(members))
    for first, second in pairs:
        neighbors.setdefault(first, set()).add(second)
        neighbors.setdefault(second, set()).add(first)
    return neighbors


def _distances(instants: pd.Series, ends: Int64Array) -> Int64Array:
    """Return how far each instant is from the nearest of some ends, which ascend, ns."""
    own = instants.to_numpy(np.int64)
    after = np.minimum(np.searchsorted(ends, own), len(ends) - 1)
    before = np.maximum(after - 1, 0)
    distances: Int64Array = np.minimum(
        np.abs(ends[after] - own), np.abs(ends[before] - own)
    )
    return distances


# Which send belongs to which receive.


def _pairs(calls: pd.DataFrame) -> Int64Array:
    """Return a number for each call that its send and its receive share; -1 for none.

    The transfers of two ranks are in order. Where one of them recorded fewer in an iteration, the
    last ones of it are paired: a recording that begins late lacks the first.
    """
    keys = ["source", "target", "iteration"]
    sides = calls.groupby([*keys, "direction"], sort=False)
    from_end = sides.cumcount(ascending=False)
    slot = calls.groupby([*keys, from_end.rename("from_end")], sort=False)
    number = slot.ngroup().to_numpy(np.int64)
    has_both = slot["direction"].transform("nunique") == 2
    return np.where(has_both.to_numpy(), number, -1)


# Clocks.


def _offsets(calls: pd.DataFrame) -> dict[int, int]:
    """Return how far the clock of each rank is ahead of that of the lowest it is joined with.

    Most pairs of kernels end together. The offset of two clocks is where most of the differences
    of their ends lie; it is followed from rank to rank.
    """
    neighbors: dict[int, dict[int, int]] = {rank: {} for rank in calls["rank"].unique()}
    both = _both_sides(calls)
    is_forward = both["source"] < both["target"]
    low = both["source"].where(is_forward, both["target"])
    high = both["target"].where(is_forward, both["source"])
    pairs = pd.DataFrame({"low": low, "high": high})
    for time in ("start", "end"):
        source = both[f"{time}_source"]
        target = both[f"{time}_target"]
        pairs[f"{time}_low"] = source.where(is_forward, target)
        pairs[f"{time}_high"] = target.where(is_forward, source)
    for _, rows in pairs.groupby(["low", "high"], sort=True):
        first = int(rows["low"].iloc[0])
        second = int(rows["high"].iloc[0])
        offset = _clock_difference(rows)
        neighbors[first][second] = offset
        neighbors[second][first] = -offset
    offsets: dict[int, int] = {}
    for root in sorted(neighbors):
        if root in offsets:
            continue
        offsets[root] = 0
        reached = [root]
        while reached:
            rank = reached.pop()
            for neighbor, offset in neighbors[rank].items():
                if neighbor not in offsets:
                    offsets[neighbor] = offsets[rank] + offset
                    reached.append(neighbor)
    return offsets


def _clock_difference(pairs: pd.DataFrame) -> int:
    """Return how far the second of two clocks is ahead, ns.

    The kernel of a batch ends with its last transfer, and the other kernels of its transfers may
    end long before. Where such differences are as frequent as those of kernels that end together,
    the offset is that with which most kernels overlap: no transfer is over before both run.

    Args:
        pairs: the transfers between two ranks: `start_low`, `end_low`, `start_high`, `end_high`.
    """
    start_low = pairs["start_low"].to_numpy(np.int64)
    end_low = pairs["end_low"].to_numpy(np.int64)
    start_high = pairs["start_high"].to_numpy(np.int64)
    end_high = pairs["end_high"].to_numpy(np.int64)
    ordered = np.sort(end_high - end_low)
    beyond = np.searchsorted(ordered, ordered + _SAME_END_NS, side="right")
    counts = beyond - np.arange(len(ordered))
    most = int(counts.max())
    if most < _MIN_SHARE_OF_ENDS * len(ordered):
        return 0
    best_offset = 0
    best_overlaps = -1
    for densest in np.flatnonzero(counts == most)[:_MAX_TIES]:
        offset = int(np.median(ordered[densest : beyond[densest]]))
        has_both = (start_high - offset < end_low) & (start_low < end_high - offset)
        overlaps = int(has_both.sum())
        if overlaps > best_overlaps:
            best_offset = offset
            best_overlaps = overlaps
    return best_offset


def _both_sides(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair: `source`, `target`, and the times of both kernels."""
    columns = ["pair", "source", "target", "start", "end"]
    paired = calls[calls["pair"] >= 0]
    sends = paired.loc[paired["direction"] == SEND, columns]
    receives = paired.loc[
        paired["direction"] == RECEIVE, ["pair", "start", "end", "iteration"]
    ]
    return sends.merge(receives, on="pair", suffixes=("_source", "_target"))


# Transfers.


def _with_begins(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with `other_start`, and `begin` of their kernel's last transfer."""
    both = _both_sides(calls).set_index("pair")
    start_of_source = calls["pair"].map(both["start_source"])
    start_of_target = calls["pair"].map(both["start_target"])
    is_send = calls["direction"] == SEND
    other_start = start_of_target.where(is_send, start_of_source)
    calls = calls.assign(other_start=other_start)
    has_other = other_start.notna()
    begin = calls["start"].astype("float64").clip(lower=other_start).where(has_other)
    begin = begin.mask(_is_buffered(calls, both), calls["start"])
    usual = _usual_transfer(calls, begin)
    begin = begin.fillna(calls["end"] - usual)
    begin = begin.clip(lower=calls["start"], upper=calls["end"])
    calls["part_begin"] = begin
    kernels = calls.groupby(["rank", "kernel"], sort=False)
    calls["begin"] = kernels["part_begin"].transform("max").astype("int64")
    # The part that the kernel waited for longest says for whom it waited.
    calls["is_decisive"] = begin == calls["begin"]
    return calls


def _is_buffered(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return which sends did not wait for their receive: they end before it, and are short.

    Args:
        calls: with `pair`.
        both: of `_both_sides`, by pair.
    """
    duration_of_source = both["end_source"] - both["start_source"]
    links = duration_of_source.groupby([both["source"], both["target"]])
    usual = links.transform("quantile", _USUAL_QUANTILE)
    is_short = duration_of_source <= _USUAL_FACTOR * usual
    ends_earlier = both["end_source"] < both["end_target"] - _BUFFERED_END_NS
    is_send = calls["direction"] == SEND
    parts = calls.groupby(["rank", "kernel"], sort=False)
    is_alone = parts["direction"].transform("size") == 1
    alone_of_pair = is_alone[calls["pair"] >= 0].groupby(calls["pair"]).all()
    buffered = both.index.isin(alone_of_pair.index[alone_of_pair])
    buffered_pairs = both.index[buffered & is_short & ends_earlier]
    return is_send & calls["pair"].isin(buffered_pairs)


def _usual_transfer(calls: pd.DataFrame, begin: pd.Series) -> Float64Array:
    """Return how long transfers like each call take, ns: for calls whose other side is missing."""
    keys = ["rank", "peer", "direction"]
    shortest = (calls["end"] - calls["start"]).groupby([calls[key] for key in keys])
    of_link = (calls["end"] - begin).groupby([calls[key] for key in keys])
    usual = of_link.transform("median").fillna(shortest.transform("min"))
    result: Float64Array = usual.to_numpy(np.float64)
    return result
