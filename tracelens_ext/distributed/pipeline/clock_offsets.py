"""How far the clocks of the ranks of a pipeline are apart, by the kernels that end together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.extract import SEND
from tracelens_ext.distributed.pipeline.simultaneous_ends import SAME_END_NS
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array

#: The share of the pairs of two ranks that must end together to tell the offset of their clocks.
_MIN_SHARE_OF_ENDS = 0.3
#: Times of two clocks that are compared may be off by this.
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
    """Return how far the clock of each rank is ahead of that of the lowest it is joined with, ns.

    Most pairs of kernels end together. The offset of two clocks is where most of the differences
    of their ends lie; it is followed from rank to rank, on the way with the smallest errors.

    Args:
        calls: sends and receives with `pair`.
    """
    neighbors: dict[int, dict[int, _Offset]] = {
        int(rank): {} for rank in calls["rank"].unique()
    }
    pairs = _pairs_of_ranks(both_sides(calls))
    for _, rows in pairs.groupby(["low", "high"], sort=True):
        low = int(rows["low"].iloc[0])
        high = int(rows["high"].iloc[0])
        offset = _clock_difference(rows)
        neighbors[low][high] = offset
        neighbors[high][low] = _Offset(-offset.ns, offset.error)
    offsets: dict[int, int] = {}
    for root in sorted(neighbors):
        if root not in offsets:
            _follow(
                root=root,
                neighbors=neighbors,
                offsets=offsets,
            )
    return offsets


class _Offset(NamedTuple):
    """How far one clock is ahead of another one."""

    ns: int
    error: float  #: how wrong that may be, ns


class _Step(NamedTuple):
    """A way to the clock of a rank; steps with small errors sort first."""

    error: float
    rank: int
    offset: int


def _follow(
    root: int, neighbors: Mapping[int, Mapping[int, _Offset]], offsets: dict[int, int]
) -> None:
    """Set the offsets of a rank and of all that can be reached from it.

    The next rank is always the one that the smallest error joins to those that are set.
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


def _clock_difference(pairs: pd.DataFrame) -> _Offset:
    """Return how far the second of two clocks is ahead.

    The kernel of a batch ends with its last transfer, and the other kernels of its transfers may
    end long before. So the most frequent difference of ends counts only if no kernel then ends
    before its transfer can begin. If none is like that, the offset is in the middle of what is
    possible.

    Args:
        pairs: the transfers between two ranks, of `_pairs_of_ranks`.
    """
    frequent = _frequent_offsets(pairs)
    possible = _possible_offsets(pairs)
    for offset in frequent:
        if possible.contains(offset):
            error = min(float(SAME_END_NS), possible.half_width)
            return _Offset(offset, error)
    if possible.is_limited:
        middle = int((possible.lowest + possible.highest) / 2)
        return _Offset(middle, possible.half_width)
    return _Offset(frequent[0] if frequent else 0, np.inf)


def _frequent_offsets(pairs: pd.DataFrame) -> list[int]:
    """Return offsets with which many kernels end together, the most frequent first, ns."""
    ahead = whole_numbers(pairs, "end_high") - whole_numbers(pairs, "end_low")
    ordered = np.sort(ahead)
    # From each difference on, those that are nearly the same: ordered[first:beyond].
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
    """Between which limits the offset of two clocks is, ns; infinite where nothing tells."""

    lowest: float
    highest: float

    @property
    def is_limited(self) -> bool:
        """True if both limits are known, and do not contradict each other."""
        if self.lowest > self.highest:
            return False
        return bool(np.isfinite(self.lowest) and np.isfinite(self.highest))

    @property
    def half_width(self) -> float:
        """How far the middle may be from the offset, ns."""
        return abs(self.highest - self.lowest) / 2

    def contains(self, offset: int) -> bool:
        """Tell whether an offset is possible."""
        lowest = self.lowest - _CLOCK_JITTER_NS
        highest = self.highest + _CLOCK_JITTER_NS
        return lowest <= offset <= highest


def _possible_offsets(pairs: pd.DataFrame) -> _PossibleOffsets:
    """Return the offsets with which no kernel ends before its transfer can begin.

    A receive never does. A send may be buffered, unless it is part of a batch.
    """
    low_is_bound = pairs["is_batch"] | ~pairs["is_upward"]
    high_is_bound = pairs["is_batch"] | pairs["is_upward"]
    until_end_of_low = pairs["start_high"] - pairs["end_low"]
    until_end_of_high = pairs["end_high"] - pairs["start_low"]
    lowest = -np.inf
    highest = np.inf
    if low_is_bound.any():
        lowest = float(until_end_of_low[low_is_bound].max())
    if high_is_bound.any():
        highest = float(until_end_of_high[high_is_bound].min())
    return _PossibleOffsets(lowest, highest)
