"""When intervals run, and when none does; sorting of integers. Times are int64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray


def union(start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The union of intervals in any order: starts and ends, ascending and apart."""
    order = np.argsort(start, kind="stable")
    start = start[order]
    reach = np.maximum.accumulate(end[order])
    lasts = np.append(start[1:] > reach[:-1], True)[: len(start)]  # what follows is apart
    return start[np.roll(lasts, 1)], reach[lasts]


def union_length(start: Int64Array, end: Int64Array) -> int:
    """Total length of the union of the intervals."""
    first, last = union(start, end)
    return int((last - first).sum())


def covered(
    start: Int64Array, end: Int64Array, window_start: Int64Array, window_end: Int64Array
) -> Int64Array:
    """How much of each window, which may overlap, the union of the intervals covers."""
    first, last = union(start, end)
    if not len(first):
        return np.zeros(len(window_start), dtype=np.int64)
    length = np.concatenate(([0], np.cumsum(last - first)))

    def covered_until(time: Int64Array) -> Int64Array:
        at = np.searchsorted(first, time, side="right")
        beyond = np.maximum(last[np.maximum(at, 1) - 1] - time, 0)
        return np.where(at > 0, length[at] - beyond, 0)

    return covered_until(window_end) - covered_until(window_start)


def non_overlapped_time(start: Int64Array, end: Int64Array) -> Int64Array:
    """The part of each event during which no earlier one runs, ns, (k,); they add up to the union.

    Of two events the one that starts first is the earlier; of two that start together, the one
    that comes first here.
    """
    share = np.zeros(len(start), dtype=np.int64)
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = end[order]
    # Before the first event nothing is covered.
    covered = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    share[order] = np.maximum(end - np.maximum(start, covered), 0)
    return share


def outside(
    start: Int64Array, end: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """What of some windows lies outside of others, which are ascending and apart.

    Starts and ends of the parts that are left, and the window of each, by window and time.
    """
    ever = np.iinfo(np.int64)
    return inside(start, end, np.append(ever.min, last), np.append(first, ever.max))[:3]


def inside(
    start: Int64Array, end: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """What of some windows lies inside of others; arguments as for `outside`.

    Starts and ends of the parts, the window and the other of each, by window and time.
    """
    begin = np.searchsorted(last, start, side="right")
    count = np.maximum(np.searchsorted(first, end, side="left") - begin, 0)
    window = np.repeat(np.arange(len(start)), count)
    other = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count) + begin[window]
    opens = np.maximum(start[window], first[other])
    closes = np.minimum(end[window], last[other])
    real = closes > opens
    return opens[real], closes[real], window[real], other[real]


def stable_order(numbers: IntArray) -> Int64Array:
    """A stable argsort; numpy sorts numbers of 16 bits by radix, in linear time."""
    least = numbers.min(initial=0)
    greatest = numbers.max(initial=0)
    few = least >= 0 and greatest < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if few else numbers, kind="stable")


def distinct(numbers: IntArray) -> Int64Array:
    """Each number once, ascending; `np.unique` hashes them, which takes ten times as long."""
    ordered = np.sort(numbers)
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    once: Int64Array = ordered[first]
    return once
