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
#: Times of two clocks that are compared may be off by this.
_CLOCK_JITTER_NS = 20_000
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
    pairs = _pairs_of_ranks(_both_sides(calls))
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
    end long before. So the most frequent difference of ends counts only if no receive then ends
    before its send begins. If none is like that, the offset is in the middle of what is possible.

    Args:
        pairs: the transfers between two ranks, of `_pairs_of_ranks`.
    """
    frequent = _frequent_offsets(pairs)
    possible = _possible_offsets(pairs)
    for offset in frequent:
        is_late_enough = offset >= possible.lowest - _CLOCK_JITTER_NS
        is_early_enough = offset <= possible.highest + _CLOCK_JITTER_NS
        if is_late_enough and is_early_enough:
            return offset
    is_limited = np.isfinite(possible.lowest) and np.isfinite(possible.highest)
    if is_limited and possible.lowest <= possible.highest:
        return int((possible.lowest + possible.highest) / 2)
    return frequent[0] if frequent else 0


def _frequent_offsets(pairs: pd.DataFrame) -> list[int]:
    """Return offsets with which many kernels end together, the most frequent first, ns."""
    ahead = pairs["end_high"] - pairs["end_low"]
    ordered = np.sort(ahead.to_numpy(np.int64))
    first = np.arange(len(ordered))
    beyond = np.searchsorted(ordered, ordered + _SAME_END_NS, side="right")
    counts = beyond - first
    offsets: list[int] = []
    while counts.max(initial=0) >= _MIN_SHARE_OF_ENDS * len(ordered):
        densest = int(np.argmax(counts))
        together = ordered[densest : beyond[densest]]
        offsets.append(int(np.median(together)))
        overlaps = (beyond > densest) & (first < beyond[densest])
        counts = np.where(overlaps, 0, counts)
    return offsets


class _PossibleOffsets(NamedTuple):
    """Between which limits the offset of two clocks is, ns; infinite where nothing tells."""

    lowest: float
    highest: float


def _possible_offsets(pairs: pd.DataFrame) -> _PossibleOffsets:
    """Return the offsets with which no kernel ends before its transfer can begin.

    A receive never does. A send may be buffered, unless it is part of a batch.
    """
    low_is_bound = pairs["is_batch"] | ~pairs["is_upward"]
    high_is_bound = pairs["is_batch"] | pairs["is_upward"]
    until_end_of_low = (pairs["start_high"] - pairs["end_low"])[low_is_bound]
    until_end_of_high = (pairs["end_high"] - pairs["start_low"])[high_is_bound]
    return _PossibleOffsets(
        lowest=float(until_end_of_low.max()) if low_is_bound.any() else -np.inf,
        highest=float(until_end_of_high.min()) if high_is_bound.any() else np.inf,
    )


def _pairs_of_ranks(both: pd.DataFrame) -> pd.DataFrame:
    """Return the times of both kernels of each pair by rank instead of by direction.

    Args:
        both: of `_both_sides`.

    Returns:
        `low` and `high`, the two ranks; `is_upward`, true if the lower one sends; `is_batch`; and
        `start_low`, `end_low`, `start_high`, `end_high`.
    """
    is_upward = both["source"] < both["target"]
    pairs = pd.DataFrame({"is_upward": is_upward, "is_batch": both["is_batch"]})
    pairs["low"] = both["source"].where(is_upward, both["target"])
    pairs["high"] = both["target"].where(is_upward, both["source"])
    for time in ("start", "end"):
        of_source = both[f"{time}_source"]
        of_target = both[f"{time}_target"]
        pairs[f"{time}_low"] = of_source.where(is_upward, of_target)
        pairs[f"{time}_high"] = of_target.where(is_upward, of_source)
    return pairs


def _both_sides(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair of a send and its receive.

    Returns:
        `pair`, `source`, `target`, `iteration`; `start_source`, `end_source`, `start_target`,
        `end_target`, of the two kernels; `is_batch`, true if one of them has further transfers.
    """
    paired = calls[calls["pair"] >= 0]
    parts = calls.groupby(["rank", "kernel"], sort=False)["rank"].transform("size")
    paired = paired.assign(is_batch=parts[paired.index] > 1)
    columns = ["pair", "start", "end", "is_batch"]
    is_send = paired["direction"] == SEND
    sends = paired.loc[is_send, columns + ["source", "target", "iteration"]]
    receives = paired.loc[~is_send, columns]
    both = sends.merge(receives, on="pair", suffixes=("_source", "_target"))
    both["is_batch"] = both["is_batch_source"] | both["is_batch_target"]
    return both


# Transfers.


def _with_begins(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with what is known of their transfers.

    Returns:
        `other_start`, of the kernel on the other side; `part_begin` and `part_end`, of the
        transfer itself; `is_decisive`, true for the part of a kernel that ends it; `begin`, of the
        transfer that ends the kernel.
    """
    both = _both_sides(calls).set_index("pair")
    is_send = calls["direction"] == SEND
    other = {}
    for time in ("start", "end"):
        of_source = calls["pair"].map(both[f"{time}_source"])
        of_target = calls["pair"].map(both[f"{time}_target"])
        other[time] = of_target.where(is_send, of_source)
    calls = calls.assign(other_start=other["start"])
    # It is over when the first of both kernels ends; the other one may have further transfers.
    calls["part_end"] = calls["end"].astype("float64").clip(upper=other["end"])
    calls["part_end"] = calls["part_end"].fillna(calls["end"])
    calls["part_begin"] = _part_begins(calls, both)
    calls["is_decisive"] = _ends_its_kernel(calls)
    kernels = [calls["rank"], calls["kernel"]]
    decisive_begin = calls["part_begin"].where(calls["is_decisive"])
    begin = decisive_begin.groupby(kernels, sort=False).transform("max")
    return calls.assign(begin=begin.astype("int64"))


def _part_begins(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return when each transfer began: when both kernels ran, ns."""
    start = calls["start"].astype("float64")
    has_other = calls["other_start"].notna()
    begin = start.clip(lower=calls["other_start"]).where(has_other)
    begin = begin.mask(_is_buffered(calls, both), start)
    begin = begin.fillna(calls["end"] - _usual_transfer(calls, begin))
    result: pd.Series = begin.clip(lower=calls["start"], upper=calls["end"])
    return result


def _ends_its_kernel(calls: pd.DataFrame) -> pd.Series:
    """Return which parts end their kernels: those that end last if each takes as long as usual."""
    duration = (calls["part_end"] - calls["part_begin"]).clip(lower=0)
    is_known = calls["other_start"].notna()
    low = calls["source"].clip(upper=calls["target"])
    high = calls["source"].clip(lower=calls["target"])
    links = duration.where(is_known).groupby([low, high], sort=False)
    usual = links.transform("quantile", _USUAL_QUANTILE)
    likely_end = calls["part_begin"] + usual.fillna(duration)
    kernels = [calls["rank"], calls["kernel"]]
    result: pd.Series = likely_end == likely_end.groupby(kernels).transform("max")
    return result


def _is_buffered(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return which sends did not wait for their receive: they end before it, and are short.

    Args:
        calls: with `pair`.
        both: of `_both_sides`, by pair.
    """
    duration = both["end_source"] - both["start_source"]
    links = duration.groupby([both["source"], both["target"]])
    usual = links.transform("quantile", _USUAL_QUANTILE)
    is_short = duration <= _USUAL_FACTOR * usual
    ends_earlier = both["end_source"] < both["end_target"] - _BUFFERED_END_NS
    is_buffered = is_short & ends_earlier & ~both["is_batch"]
    buffered_pairs = both.index[is_buffered]
    is_send = calls["direction"] == SEND
    return is_send & calls["pair"].isin(buffered_pairs)


def _usual_transfer(calls: pd.DataFrame, begin: pd.Series) -> Float64Array:
    """Return how long transfers like each call take, ns: for calls whose other side is missing."""
    keys = ["rank", "peer", "direction"]
    shortest = (calls["end"] - calls["start"]).groupby([calls[key] for key in keys])
    of_link = (calls["end"] - begin).groupby([calls[key] for key in keys])
    usual = of_link.transform("median").fillna(shortest.transform("min"))
    result: Float64Array = usual.to_numpy(np.float64)
    return result
