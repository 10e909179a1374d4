"""When intervals run, and when none does; sorting of integers. Times are int64 nanoseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray


class Union(NamedTuple):
    """Intervals that are ascending and apart."""

    start: Int64Array
    end: Int64Array


def union(start: Int64Array, end: Int64Array) -> Union:
    """Return the union of intervals in any order."""
    order = np.argsort(start, kind="stable")
    ordered_start = start[order]
    ordered_end = end[order]
    latest_end = np.maximum.accumulate(ordered_end)
    next_start = ordered_start[1:]
    is_last = np.ones(len(order), dtype=bool)  # what follows is apart
    is_last[:-1] = next_start > latest_end[:-1]
    is_first = np.roll(is_last, 1)
    return Union(start=ordered_start[is_first], end=latest_end[is_last])


def union_length(start: Int64Array, end: Int64Array) -> int:
    """Return the total length of the union of intervals."""
    parts = union(start, end)
    return int((parts.end - parts.start).sum())


def covered(
    start: Int64Array, end: Int64Array, window_start: Int64Array, window_end: Int64Array
) -> Int64Array:
    """Return how much of each window, which may overlap, the union of intervals covers."""
    parts = union(start, end)
    if not len(parts.start):
        return np.zeros(len(window_start), dtype=np.int64)
    length_before = np.zeros(len(parts.start) + 1, dtype=np.int64)
    length_before[1:] = np.cumsum(parts.end - parts.start)

    def covered_until(time: Int64Array) -> Int64Array:
        begun = np.searchsorted(parts.start, time, side="right")
        latest = np.maximum(begun, 1) - 1
        end_of_latest = parts.end[latest]
        still_to_run = np.maximum(end_of_latest - time, 0)
        length = length_before[begun] - still_to_run
        return np.where(begun > 0, length, 0)

    return covered_until(window_end) - covered_until(window_start)


def non_overlapped_time(start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the part of each event during which no earlier one runs; they add up to the union.

    Of two events the one that starts first is the earlier; of two that start together, the one that
    comes first in the arrays.
    """
    order = np.argsort(start, kind="stable")
    ordered_start = start[order]
    ordered_end = end[order]
    latest_end = np.maximum.accumulate(ordered_end)
    covered_until = ordered_start.copy()  # before the first event nothing is covered
    covered_until[1:] = latest_end[:-1]
    begin = np.maximum(ordered_start, covered_until)
    share = np.zeros(len(start), dtype=np.int64)
    remaining = ordered_end - begin
    share[order] = np.maximum(remaining, 0)
    return share


class Outside(NamedTuple):
    """Parts of windows that lie outside of other intervals, by window and time."""

    start: Int64Array
    end: Int64Array
    window: Int64Array  #: index of the window of each part


class Inside(NamedTuple):
    """Parts of windows that lie inside of other intervals, by window and time."""

    start: Int64Array
    end: Int64Array
    window: Int64Array  #: index of the window of each part
    other: Int64Array  #: index of the other interval of each part


def outside(
    start: Int64Array, end: Int64Array, first: Int64Array, last: Int64Array
) -> Outside:
    """Return what of some windows lies outside of other intervals.

    Args:
        start: where each window starts.
        end: where it ends.
        first: where each of the others starts; they are ascending and apart.
        last: where it ends.
    """
    limits = np.iinfo(np.int64)
    parts = inside(
        start=start,
        end=end,
        first=np.append(limits.min, last),
        last=np.append(first, limits.max),
    )
    return Outside(start=parts.start, end=parts.end, window=parts.window)


def inside(
    start: Int64Array, end: Int64Array, first: Int64Array, last: Int64Array
) -> Inside:
    """Return what of some windows lies inside of other intervals; arguments as of `outside`.

    A window from 0 to 10, and others from 1 to 3 and from 8 to 20: parts from 1 to 3 and from 8 to
    10, each of window 0, of the others 0 and 1.
    """
    first_other = np.searchsorted(last, start, side="right")
    other_behind = np.searchsorted(first, end, side="left")
    count = np.maximum(other_behind - first_other, 0)
    window = np.repeat(np.arange(len(start)), count)
    parts_before = np.cumsum(count) - count
    first_of_window = np.repeat(parts_before, count)
    place_in_window = np.arange(len(window)) - first_of_window
    other = place_in_window + first_other[window]
    begin = np.maximum(start[window], first[other])
    stop = np.minimum(end[window], last[other])
    has_length = stop > begin
    return Inside(
        start=begin[has_length],
        end=stop[has_length],
        window=window[has_length],
        other=other[has_length],
    )


def overlaps_any(start: Int64Array, end: Int64Array, others: Union) -> BoolArray:
    """Return which intervals overlap one of others, or end when one of those starts."""
    begun = np.searchsorted(others.start, end, side="right")
    ended_before = np.searchsorted(others.end, start, side="right")
    overlaps: BoolArray = begun > ended_before
    return overlaps


def stable_order(numbers: IntArray) -> Int64Array:
    """Return a stable argsort; numpy sorts numbers of 16 bits by radix, in linear time."""
    least = numbers.min(initial=0)
    largest = numbers.max(initial=0)
    fits = least >= 0 and largest < 1 << 16
    if fits:
        numbers = numbers.astype(np.uint16)
    return np.argsort(numbers, kind="stable")


def distinct(numbers: IntArray) -> Int64Array:
    """Return each number once, ascending.

    `np.unique` hashes numbers, which takes ten times as long.
    """
    ordered: Int64Array = np.sort(numbers)
    return ordered[begins_run(ordered)]


def begins_run(numbers: IntArray) -> BoolArray:
    """Return which numbers differ from the one before them; the first one does."""
    begins = np.ones(len(numbers), dtype=bool)
    begins[1:] = numbers[1:] != numbers[:-1]
    return begins
