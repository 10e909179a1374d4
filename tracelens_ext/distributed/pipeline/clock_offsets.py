"""How far the clocks of the ranks of a pipeline are apart.

The kernels of a send and its receive end together, so the difference of their recorded ends is the
difference of two clocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.sends_and_receives import SEND
from tracelens_ext.distributed.pipeline.simultaneous_ends import SAME_END_NS
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array

#: An offset of two clocks is plausible if this share of their pairs of kernels ends together.
_MIN_SHARE_OF_ENDS = 0.3
#: A limit of the offset is reached often if this many transfers and this share of all are near it.
#: Near means within this share of half of the distance between the limits.
_MIN_NEAR_LIMIT = 3
_MIN_SHARE_NEAR_LIMIT = 0.1
_NEAR_LIMIT = 0.02
#: The middle between limits that are reached often has this share of its largest possible error.
_ERROR_OF_REACHED_LIMITS = 0.1
#: Two ranks exchange batches if more than this share of their pairs of kernels has a batch.
_MIN_SHARE_OF_BATCHES = 0.5
#: The recorded times of two clocks may be wrong by this, apart from their offset.
_CLOCK_JITTER_NS = 20_000


def both_sides(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair of a send and its receive.

    Returns:
        `pair`, `source`, `target`, `iteration`, `is_shape`; `start_source`, `end_source`,
        `start_target`, `end_target`, of the two kernels; `is_batch`, true if one of them has
        further transfers.
    """
    kernels = calls.groupby(["rank", "kernel"], sort=False)
    parts = kernels["rank"].transform("size")
    calls = calls.assign(is_batch=parts > 1)
    paired = calls[calls["pair"] >= 0]
    is_send = paired["direction"] == SEND
    of_kernel = ["pair", "start", "end", "is_batch"]
    of_pair = ["source", "target", "iteration", "is_shape"]
    sends = paired.loc[is_send, of_kernel + of_pair]
    receives = paired.loc[~is_send, of_kernel]
    both = sends.merge(receives, on="pair", suffixes=("_source", "_target"))
    both["is_batch"] = both["is_batch_source"] | both["is_batch_target"]
    return both


def clock_offsets(calls: pd.DataFrame) -> dict[int, int]:
    """Return how far the clock of each rank is ahead of the clock of its root, ns.

    The root is the lowest rank among those that are joined with the rank by transfers, directly or
    over other ranks. The offsets of pairs of ranks are added up from the root, along the pairs
    whose offsets are most certain.

    Args:
        calls: sends and receives with `pair`.
    """
    # rank → neighbor → the offset of the neighbor's clock
    neighbors: dict[int, dict[int, _Offset]] = {
        int(rank): {} for rank in calls["rank"].unique()
    }
    pairs = _pairs_of_ranks(both_sides(calls))
    links = [rows for _, rows in pairs.groupby(["low", "high"], sort=True)]
    half_widths = [_possible_offsets(rows).half_width for rows in links]
    for rows in links:
        low = int(rows["low"].iloc[0])
        high = int(rows["high"].iloc[0])
        offset = _clock_difference(rows, smallest_error=min(half_widths))
        neighbors[low][high] = offset
        neighbors[high][low] = _Offset(-offset.ns, offset.error)
    offsets: dict[int, int] = {}
    for root in sorted(neighbors):
        if root not in offsets:
            _set_offsets_from(
                root=root,
                neighbors=neighbors,
                offsets=offsets,
            )
    return offsets


class _Offset(NamedTuple):
    """The offset of two clocks: how far the second one is ahead of the first one."""

    ns: int
    error: float  #: how wrong the offset may be, ns


class _Step(NamedTuple):
    """A step from a rank with a known offset to a neighbor; steps with small errors sort first."""

    error: float  #: of the offset between the two ranks, ns
    rank: int  #: the neighbor
    offset: int  #: of the neighbor from the root, ns


def _set_offsets_from(
    root: int, neighbors: Mapping[int, Mapping[int, _Offset]], offsets: dict[int, int]
) -> None:
    """Set the offset of a root, and of all ranks that transfers join with it, in `offsets`.

    The next rank is always the neighbor of a rank in `offsets` whose step has the smallest error.
    """
    steps = [_Step(error=0.0, rank=root, offset=0)]
    while steps:
        step = heapq.heappop(steps)
        if step.rank in offsets:
            continue
        offsets[step.rank] = step.offset
        for neighbor, difference in neighbors[step.rank].items():
            next_step = _Step(
                error=difference.error,
                rank=neighbor,
                offset=step.offset + difference.ns,
            )
            heapq.heappush(steps, next_step)


def _pairs_of_ranks(both: pd.DataFrame) -> pd.DataFrame:
    """Return the times of both kernels of each pair by rank instead of by direction.

    Args:
        both: of `both_sides`.

    Returns:
        `low` and `high`, the two ranks; `is_upward`, true if the lower one sends; `is_batch`; and
        `start_low`, `end_low`, `start_high`, `end_high`.
    """
    is_upward = both["source"] < both["target"]
    source = both["source"]
    target = both["target"]
    pairs = pd.DataFrame(
        {
            "is_upward": is_upward,
            "is_batch": both["is_batch"],
            "low": source.where(is_upward, target),
            "high": target.where(is_upward, source),
        }
    )
    for time in ("start", "end"):
        of_source = both[f"{time}_source"]
        of_target = both[f"{time}_target"]
        pairs[f"{time}_low"] = of_source.where(is_upward, of_target)
        pairs[f"{time}_high"] = of_target.where(is_upward, of_source)
    return pairs


def _clock_difference(pairs: pd.DataFrame, smallest_error: float) -> _Offset:
    """Return how far the second of two clocks is ahead.

    If most kernels send or receive alone, it is the most frequent difference of ends that is
    possible.

    Batches end with their last transfer, possibly long after the other kernels of their earlier
    transfers. For them it is the middle of the possible offsets: if each rank is once the later one
    in a transfer that ends both batches, both limits are one transfer away from the offset.

    Args:
        pairs: the transfers between two ranks, of `_pairs_of_ranks`.
        smallest_error: the error of the pair of ranks with the narrowest limits, ns.
    """
    frequent = _frequent_offsets(pairs)
    possible = _possible_offsets(pairs)
    are_batches = bool(pairs["is_batch"].mean() > _MIN_SHARE_OF_BATCHES)
    if not (are_batches and possible.is_limited):
        for offset in frequent:
            if possible.contains(offset):
                error = min(float(SAME_END_NS), possible.half_width)
                return _Offset(offset, error)
    if possible.is_limited:
        error = possible.half_width
        if possible.is_reached_often:
            error = max(_ERROR_OF_REACHED_LIMITS * error, smallest_error)
        return _Offset(possible.middle, error)
    return _Offset(frequent[0] if frequent else 0, np.inf)


def _frequent_offsets(pairs: pd.DataFrame) -> list[int]:
    """Return the offsets with which many kernels end together, the most frequent first, ns.

    Differences of ends within `SAME_END_NS` are one offset, their median. The densest group of
    differences comes first; groups that overlap with it are dropped, and so on.
    """
    ahead = whole_numbers(pairs, "end_high") - whole_numbers(pairs, "end_low")
    ordered = np.sort(ahead)
    # The group of each difference is that difference and all that are larger by at most
    # SAME_END_NS: ordered[first:beyond].
    first = np.arange(len(ordered))
    beyond = np.searchsorted(
        ordered,
        ordered + SAME_END_NS,
        side="right",
    )
    counts = beyond - first
    fewest = _MIN_SHARE_OF_ENDS * len(ordered)
    offsets: list[int] = []
    while counts.max(initial=0) >= fewest:
        densest = int(np.argmax(counts))
        offsets.append(_middle(ordered[densest : beyond[densest]]))
        begins_later = first >= beyond[densest]
        ends_earlier = beyond <= densest
        counts = np.where(begins_later | ends_earlier, counts, 0)
    return offsets


def _middle(values: Int64Array) -> int:
    return int(np.median(values))


class _PossibleOffsets(NamedTuple):
    """The limits of the offset of two clocks, ns; infinite for a limit that is not known."""

    lowest: float
    highest: float
    is_reached_often: bool  #: true if several transfers are near each limit

    @property
    def is_limited(self) -> bool:
        """True if both limits are known and do not contradict each other."""
        if self.lowest > self.highest:
            return False
        return bool(np.isfinite(self.lowest) and np.isfinite(self.highest))

    @property
    def middle(self) -> int:
        """The offset in the middle of the limits, ns."""
        return int((self.lowest + self.highest) / 2)

    @property
    def half_width(self) -> float:
        """How far the middle may be from the offset, ns."""
        return abs(self.highest - self.lowest) / 2

    def contains(self, offset: int) -> bool:
        """Tell whether an offset lies within the limits, apart from jitter."""
        lowest = self.lowest - _CLOCK_JITTER_NS
        highest = self.highest + _CLOCK_JITTER_NS
        return lowest <= offset <= highest


def _possible_offsets(pairs: pd.DataFrame) -> _PossibleOffsets:
    """Return the limits of the offsets with which no kernel ends before its transfer can begin.

    A transfer can begin when the other kernel starts. Only a buffered send may end earlier, and
    sends in batches are not buffered. So receives and batches set the limits.
    """
    low_waits = pairs["is_batch"] | ~pairs["is_upward"]
    high_waits = pairs["is_batch"] | pairs["is_upward"]
    until_end_of_low = (pairs["start_high"] - pairs["end_low"])[low_waits]
    until_end_of_high = (pairs["end_high"] - pairs["start_low"])[high_waits]
    lowest = -np.inf
    highest = np.inf
    if len(until_end_of_low):
        lowest = float(until_end_of_low.max())
    if len(until_end_of_high):
        highest = float(until_end_of_high.min())
    near = _NEAR_LIMIT * abs(highest - lowest) / 2
    near_lowest = int((until_end_of_low >= lowest - near).sum())
    near_highest = int((until_end_of_high <= highest + near).sum())
    fewest = max(_MIN_NEAR_LIMIT, _MIN_SHARE_NEAR_LIMIT * len(pairs))
    return _PossibleOffsets(
        lowest=lowest,
        highest=highest,
        is_reached_often=min(near_lowest, near_highest) >= fewest,
    )
