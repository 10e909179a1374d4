"""The union of intervals: busy time, in which overlaps count once.

All times are int64; intervals are given as start and end arrays of one shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array


def union(start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Merge intervals that overlap or touch.

    Args:
        start: shape (k,), in any order.
        end: no less than `start`, shape (k,).

    Returns:
        Starts and ends of the union, ascending and apart, shape (u,) with u ≤ k.
    """
    if not len(start):
        return start[:0], end[:0]
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def union_length(start: Int64Array, end: Int64Array) -> int:
    """Total length of the union of the intervals."""
    first, last = union(start, end)
    return int((last - first).sum())


def gaps(start: Int64Array, end: Int64Array) -> Int64Array:
    """Lengths of the holes between the first start and the last end, in order of time."""
    first, last = union(start, end)
    return first[1:] - last[:-1]


def covered(
    start: Int64Array, end: Int64Array, window_start: Int64Array, window_end: Int64Array
) -> Int64Array:
    """How much of each window the union of the intervals covers.

    Args:
        start: of the intervals, shape (k,), in any order.
        end: no less than `start`, shape (k,).
        window_start: of the windows, which may overlap, shape (w,).
        window_end: no less than `window_start`, shape (w,).

    Returns:
        Shape (w,).
    """
    first, last = union(start, end)
    if not len(first):
        return np.zeros(len(window_start), dtype=np.int64)
    length = np.concatenate(([0], np.cumsum(last - first)))

    def covered_until(time: Int64Array) -> Int64Array:
        at = np.searchsorted(first, time, side="right")
        beyond = np.maximum(last[np.maximum(at, 1) - 1] - time, 0)
        return np.where(at > 0, length[at] - beyond, 0)

    return covered_until(window_end) - covered_until(window_start)
