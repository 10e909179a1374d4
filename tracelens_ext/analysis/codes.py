"""Codes for groups, look-ups and statistics within groups, without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.ordering import stable_order
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array

    Float64Array = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.integer]


_MOST_COMBINATIONS = 2**62
_ROOM_A_VALUE = 4  # entries of a table of all values between the least and the greatest
_ROOM_ANYHOW = 1 << 16


def dense_codes(keys: Sequence[IntArray]) -> tuple[Int64Array, Int64Array]:
    """Number the distinct combinations of several columns, in ascending order.

    Args:
        keys: one column or more of any integers, each shape (m,).

    Returns:
        The first place of each combination, shape (k,), and the number of each place, shape (m,).
    """
    combined, bound = _from_zero(keys[0])
    for key in keys[1:]:
        code, count = _from_zero(key)
        if bound * count > _MOST_COMBINATIONS:  # dense again, before it overflows
            combined, bound = ranks(combined)
        combined, bound = combined * count + code, bound * count
    code, count = ranks(combined)
    first = np.empty(count, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # the last to be written is the first
    return first, code


def _from_zero(values: IntArray) -> tuple[Int64Array, int]:
    """Numbers in the order of the values, from 0 on, and a bound; not dense if that takes time."""
    if not len(values):
        return np.empty(0, dtype=np.int64), 0
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= _ROOM_ANYHOW:
        return ranks(values)
    return np.subtract(values, least, dtype=np.int64), greatest - least + 1


def ranks(values: IntArray) -> tuple[Int64Array, int]:
    """The place of each value among the distinct ones, in ascending order, and how many those are.

    Args:
        values: any integers, shape (m,). Where they lie close together nothing is sorted.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), 0
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= max(_ROOM_ANYHOW, _ROOM_A_VALUE * len(values)):
        distinct, code = np.unique(values, return_inverse=True)
        return code.astype(np.int64, copy=False), len(distinct)
    from_least = values.astype(np.int64) - least
    there = np.zeros(greatest - least + 1, dtype=bool)
    there[from_least] = True
    rank = np.cumsum(there) - 1
    return rank[from_least], int(rank[-1]) + 1


def last_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """The last item of a group that is earlier than a time.

    Args:
        group: of the items, sorted by group and time, shape (m,).
        time: of the items, shape (m,).
        asked_group: shape (k,).
        asked_time: shape (k,).

    Returns:
        An index into the items, `NONE` where none is earlier, shape (k,).
    """
    if not len(group):
        return np.full(len(asked_group), NONE, dtype=np.int64)
    least_group, greatest_group = int(group[0]), int(group[-1])
    least, greatest = int(time.min()), int(time.max())
    step = greatest - least + 2
    if (greatest_group - least_group + 1) * step < _MOST_COMBINATIONS > greatest:
        key = (group.astype(np.int64) - least_group) * step + (time - least)
        wanted = np.clip(asked_group, least_group, greatest_group).astype(np.int64) - least_group
        wanted = wanted * step + (np.clip(asked_time, least, greatest + 1) - least)
    else:  # the places of the numbers leave room where the numbers themselves do not
        times, groups = np.unique(time), np.unique(group)
        step = len(times) + 1
        key = np.searchsorted(groups, group) * step + np.searchsorted(times, time)
        wanted = np.searchsorted(groups, asked_group) * step + np.searchsorted(times, asked_time)
    at = np.searchsorted(key, wanted, side="left") - 1
    found = (at >= 0) & (group[np.maximum(at, 0)] == asked_group)
    return np.where(found, at, NONE)


def running_maximum(group: IntArray, values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The largest value so far within each group.

    Args:
        group: non-negative, ascending, shape (m,).
        values: shape (m,).

    Returns:
        The maxima, and the places that hold them (the last of equals), both shape (m,).
    """
    if not len(values):
        return values, np.empty(0, dtype=np.int64)
    least, greatest = int(values.min()), int(values.max())
    if (int(group[-1]) + 1) * (greatest - least + 1) < _MOST_COMBINATIONS:
        keyed = (values - least) + group.astype(np.int64) * (greatest - least + 1)
    else:  # ranks leave room for the group
        rank, count = ranks(values)
        keyed = rank + group.astype(np.int64) * count
    highest = np.maximum.accumulate(keyed)
    holds = np.where(keyed == highest, np.arange(len(keyed)), 0)
    place = np.maximum.accumulate(holds)
    return values[place], place


@dataclass(frozen=True, eq=False)
class Spread:
    """How the values of each group spread, k groups by their number.

    Attributes:
        count: values of each group, at least one, (k,).
        total, smallest, largest: as the values, (k,).
        mean: (k,).
        deviation: of a sample (n - 1); 0 for a single value, (k,).
        first: place of the group's first value, (k,).
    """

    count: Int64Array
    total: Int64Array
    smallest: Int64Array
    largest: Int64Array
    mean: Float64Array
    deviation: Float64Array
    first: Int64Array

    def __len__(self) -> int:
        return len(self.count)


def spread(code: IntArray, values: Int64Array) -> Spread:
    """Statistics of values by group.

    Args:
        code: the group of each value, 0 to k - 1, each at least once, shape (m,).
        values: shape (m,).
    """
    count = np.bincount(code)
    order = stable_order(code)
    starts = np.concatenate(([0], np.cumsum(count)))[: len(count)].astype(np.int64)
    ordered = values[order]
    empty = np.empty(0, dtype=np.int64)
    total, smallest, largest = (
        f.reduceat(ordered, starts) if len(count) else empty
        for f in (np.add, np.minimum, np.maximum)
    )
    mean = total / np.maximum(count, 1)
    # From a whole number near the mean, differences are exact and small.
    centre = np.rint(mean).astype(np.int64)
    off = (values - centre[code]).astype(np.float64)
    squares = np.bincount(code, weights=off * off, minlength=len(count)).astype(np.float64)
    beside: Float64Array = (mean - centre).astype(np.float64)
    squares = squares - beside * beside * count.astype(np.float64)
    deviation = np.sqrt(np.maximum(squares, 0) / np.maximum(count - 1, 1))
    deviation[count == 1] = 0.0
    return Spread(count, total, smallest, largest, mean, deviation, order[starts])
