"""Unions, overlaps and gaps of time intervals (int64 ns)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array


class DisjointIntervals(NamedTuple):
    """Intervals in ascending order that do not touch or overlap one another."""

    start: Int64Array
    end: Int64Array


def union(start: Int64Array, end: Int64Array) -> DisjointIntervals:
    """Return the union of intervals in any order."""
    order = np.argsort(start, kind="stable")
    ordered_start = start[order]
    ordered_end = end[order]
    latest_end = np.maximum.accumulate(ordered_end)
    next_start = ordered_start[1:]
    # An interval is the last one of its part of the union if the next one starts after all ends so
    # far. The interval behind a last one is the first one of its part; the roll marks these.
    is_last = np.ones(len(order), dtype=bool)
    is_last[:-1] = next_start > latest_end[:-1]
    is_first = np.roll(is_last, 1)
    return DisjointIntervals(start=ordered_start[is_first], end=latest_end[is_last])


def union_length(start: Int64Array, end: Int64Array) -> int:
    """Return the total length of the union of intervals."""
    parts = union(start, end)
    return int((parts.end - parts.start).sum())


def covered(
    start: Int64Array, end: Int64Array, window_start: Int64Array, window_end: Int64Array
) -> Int64Array:
    """Return how much of each window the union of intervals covers; windows may overlap.

    Args:
        start: where each interval starts, (n,).
        end: where each interval ends, (n,).
        window_start: where each window starts, (k,).
        window_end: where each window ends, (k,).

    Returns:
        The covered length of each window, (k,).
    """
    parts = union(start, end)
    if not len(parts.start):
        return np.zeros(len(window_start), dtype=np.int64)
    length_before = np.zeros(len(parts.start) + 1, dtype=np.int64)
    length_before[1:] = np.cumsum(parts.end - parts.start)

    def covered_until(time: Int64Array) -> Int64Array:
        """Return how much the union covers from its beginning to each time."""
        started_parts = np.searchsorted(parts.start, time, side="right")
        latest = np.maximum(started_parts, 1) - 1
        end_of_latest = parts.end[latest]
        still_to_run = np.maximum(end_of_latest - time, 0)
        length = length_before[started_parts] - still_to_run
        return np.where(started_parts > 0, length, 0)

    return covered_until(window_end) - covered_until(window_start)


def non_overlapped_time(start: Int64Array, end: Int64Array) -> Int64Array:
    """Return how long each interval runs while no earlier one does; the sum is the union's length.

    An interval is earlier than another if it starts first, or, if both start together, if it comes
    first in the arrays. Intervals from 0 to 10, 5 to 12 and 6 to 8: 10, 2 and 0.
    """
    order = np.argsort(start, kind="stable")
    ordered_start = start[order]
    ordered_end = end[order]
    latest_end = np.maximum.accumulate(ordered_end)
    # The first interval has none before it, so its own start stands for their end.
    latest_end_before = ordered_start.copy()
    latest_end_before[1:] = latest_end[:-1]
    begin = np.maximum(ordered_start, latest_end_before)
    share = np.zeros(len(start), dtype=np.int64)
    remaining = ordered_end - begin
    share[order] = np.maximum(remaining, 0)
    return share


class Outside(NamedTuple):
    """The parts of windows that lie outside of other intervals, by window, then by time."""

    start: Int64Array
    end: Int64Array
    window: Int64Array  #: index of the window of each part


class Inside(NamedTuple):
    """The parts of windows that lie inside of other intervals, by window, then by time."""

    start: Int64Array
    end: Int64Array
    window: Int64Array  #: index of the window of each part
    other: Int64Array  #: index of the other interval of each part


def outside(
    start: Int64Array,
    end: Int64Array,
    other_start: Int64Array,
    other_end: Int64Array,
) -> Outside:
    """Return the parts of windows that lie outside of other intervals.

    Args:
        start: where each window starts, (k,).
        end: where each window ends, (k,).
        other_start: where each of the other intervals starts; they ascend and do not overlap, (n,).
        other_end: where each of the other intervals ends, (n,).
    """
    # What is outside of the intervals is inside of the gaps between them: from the smallest int64
    # to the first start, from each end to the next start, and from the last end to the largest.
    limits = np.iinfo(np.int64)
    parts = inside(
        start=start,
        end=end,
        other_start=np.append(limits.min, other_end),
        other_end=np.append(other_start, limits.max),
    )
    return Outside(start=parts.start, end=parts.end, window=parts.window)


def inside(
    start: Int64Array,
    end: Int64Array,
    other_start: Int64Array,
    other_end: Int64Array,
) -> Inside:
    """Return the parts of windows that lie inside of other intervals; arguments as of `outside`.

    A window from 0 to 10 and others from 1 to 3 and from 8 to 20 have two parts in common: from 1
    to 3 in window 0 and other interval 0, and from 8 to 10 in window 0 and other interval 1.
    """
    # The other intervals that overlap a window are neighbors: from `first_other` to `other_behind`.
    first_other = np.searchsorted(other_end, start, side="right")
    other_behind = np.searchsorted(other_start, end, side="left")
    count = np.maximum(other_behind - first_other, 0)
    # One entry for each pair of a window and an interval that overlaps it: windows that overlap
    # 2, 0 and 1 others give the windows [0, 0, 2], at the places [0, 1, 0] within their window.
    window = np.repeat(np.arange(len(start)), count)
    parts_before = np.cumsum(count) - count
    first_of_window = np.repeat(parts_before, count)
    place_in_window = np.arange(len(window)) - first_of_window
    other = place_in_window + first_other[window]
    begin = np.maximum(start[window], other_start[other])
    stop = np.minimum(end[window], other_end[other])
    has_length = stop > begin
    return Inside(
        start=begin[has_length],
        end=stop[has_length],
        window=window[has_length],
        other=other[has_length],
    )


def overlaps_any(
    start: Int64Array, end: Int64Array, others: DisjointIntervals
) -> BoolArray:
    """Return True for each interval that overlaps one of the others, or ends when one starts.

    An event without a duration thus overlaps what starts at the same time. An interval that only
    starts when another ends does not overlap it.
    """
    started_by_end = np.searchsorted(others.start, end, side="right")
    ended_by_start = np.searchsorted(others.end, start, side="right")
    overlaps: BoolArray = started_by_end > ended_by_start
    return overlaps
