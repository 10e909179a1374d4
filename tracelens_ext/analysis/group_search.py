"""Look-ups among events that are sorted by group (a thread, a stream) and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.grouping import MOST_COMBINATIONS, ranks
from tracelens_ext.ordering import stable_order
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array

    IntArray = npt.NDArray[np.integer]


def by_group_and_time(group: IntArray, time: Int64Array) -> Int64Array:
    """The order by group, then by time. Traces are nearly sorted by time already.

    Args:
        group: small numbers, shape (m,).
        time: shape (m,).
    """
    order = np.argsort(time, kind="stable")
    return order[stable_order(group[order])]


def items_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """How many items come before a group and time.

    Args:
        group: of the items, sorted by group and time, shape (m,).
        time: of the items, shape (m,).
        asked_group: shape (k,).
        asked_time: shape (k,).

    Returns:
        The index of the first item of the group that is not earlier, or of what would follow it;
        shape (k,).
    """
    if not len(group):
        return np.zeros(len(asked_group), dtype=np.int64)
    least_group, greatest_group = int(group[0]), int(group[-1])
    least, greatest = int(time.min()), int(time.max())
    step = greatest - least + 2
    if (greatest_group - least_group + 2) * step < MOST_COMBINATIONS > greatest:
        key = (group.astype(np.int64) - least_group) * step + (time - least)
        wanted = np.clip(asked_group, least_group - 1, greatest_group + 1).astype(np.int64)
        wanted = (wanted - least_group) * step + (np.clip(asked_time, least, greatest + 1) - least)
    else:  # the places of the numbers leave room where the numbers themselves do not
        times, groups = np.unique(time), np.unique(group)
        step = len(times) + 1
        key = np.searchsorted(groups, group) * step + np.searchsorted(times, time)
        wanted = np.searchsorted(groups, asked_group) * step
        there = np.isin(asked_group, groups)  # else no time matters
        wanted[there] += np.searchsorted(times, asked_time[there])
    return np.searchsorted(key, wanted, side="left")


def last_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """The last item of a group that is earlier than a time; arguments as for `items_before`.

    Returns:
        An index into the items, `NONE` where none is earlier, shape (k,).
    """
    at = items_before(group, time, asked_group, asked_time) - 1
    found = at >= 0
    found[found] = group[at[found]] == asked_group[found]
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
    if (int(group[-1]) + 1) * (greatest - least + 1) < MOST_COMBINATIONS:
        keyed = (values - least) + group.astype(np.int64) * (greatest - least + 1)
    else:  # ranks leave room for the group
        rank, count = ranks(values)
        keyed = rank + group.astype(np.int64) * count
    highest = np.maximum.accumulate(keyed)
    holds = np.where(keyed == highest, np.arange(len(keyed)), 0)
    place = np.maximum.accumulate(holds)
    return values[place], place
