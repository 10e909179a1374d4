"""Look-ups and running maxima among items that are sorted by group and time.

A group is for example a thread or a stream. There are few groups, so the loops below over groups
cost next to nothing; within a group numpy does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE
from tracelens_ext.trace.integer_sorting import begins_run, stable_order
from tracelens_ext.trace.lookup import values_at

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray


def by_group_and_time(group: IntArray, time: Int64Array) -> Int64Array:
    """Return the order that sorts items by group, then by time.

    Sorting by time first is quick because traces are nearly sorted by time already.
    """
    order = np.argsort(time, kind="stable")
    return order[stable_order(group[order])]


def items_before(
    group: IntArray, time: Int64Array, query_group: IntArray, query_time: Int64Array
) -> Int64Array:
    """Return how many of the sorted items come before each queried group and time.

    This count is also the index of the first item of the queried group that is not earlier than
    the queried time, or of the item behind the group if all of its items are earlier.

    Three items, two of group 1 at times 5 and 8, and one of group 2 at time 3:

        group [1, 1, 2], time [5, 8, 3]
        query group 1, time 8: 1 item comes before, at time 5
        query group 2, time 0: 2 items come before, those of group 1

    Args:
        group: the group of each item, ascending, (n,).
        time: the time of each item, ascending within a group, (n,).
        query_group: the group of each query, (k,).
        query_time: the time of each query, (k,).

    Returns:
        A count for each query, (k,).
    """
    result = np.empty(len(query_group), dtype=np.int64)
    least_group = int(query_group.min(initial=0))
    query_count = np.bincount(query_group - least_group)
    queried = np.flatnonzero(query_count)
    # With a different dtype, searchsorted would convert the whole column of groups.
    queried_groups = (queried + least_group).astype(group.dtype)
    first_items = np.searchsorted(group, queried_groups, "left").tolist()
    item_ends = np.searchsorted(group, queried_groups, "right").tolist()

    # The queries of each group: their indices, sorted by group, cut behind each group's last one.
    # The cut behind the very last group leaves an empty part, which zip ignores.
    queries_by_group = stable_order(query_group - least_group)
    query_ends = np.cumsum(query_count[queried])
    queries_of_groups = np.split(queries_by_group, query_ends)
    for first, end, queries in zip(
        first_items, item_ends, queries_of_groups, strict=False
    ):
        time_of_group = time[first:end]
        result[queries] = first + np.searchsorted(time_of_group, query_time[queries])
    return result


def last_before(
    group: IntArray, time: Int64Array, query_group: IntArray, query_time: Int64Array
) -> Int64Array:
    """Return the index of the last item of each queried group before the queried time.

    A query without an earlier item in its group is answered with `NONE`. The arguments are those
    of `items_before`.
    """
    count_before = items_before(
        group=group, time=time, query_group=query_group, query_time=query_time
    )
    last = count_before - 1
    group_of_last = values_at(group, last)
    is_of_group = (last >= 0) & (group_of_last == query_group)
    return np.where(is_of_group, last, NONE)


class RunningMaximum(NamedTuple):
    """The largest value of a group so far, at each of n items."""

    #: largest value from the first item of the group to this one, (n,)
    value: Int64Array
    item: Int64Array  #: index of the item that has it; of equal values the last, (n,)


def running_maximum(group: IntArray, values: Int64Array) -> RunningMaximum:
    """Return the largest value so far within each group; items of a group are neighbors.

    Values 5, 3, 7 of one group: largest so far 5, 5, 7, found at items 0, 0, 2.
    """
    index = np.arange(len(values))
    first_items = np.flatnonzero(begins_run(group)).tolist()
    if not first_items:
        return RunningMaximum(values[index], index)
    ends = first_items[1:] + [len(values)]
    for first, end in zip(first_items, ends, strict=True):
        values_of_group = values[first:end]
        index_of_group = index[first:end]
        highest = np.maximum.accumulate(values_of_group)
        # Items below the maximum get the lowest index of the group. The running maximum of the
        # indices then repeats the index of the last item that reached the maximum.
        is_lower = values_of_group < highest
        index_of_group[is_lower] = first
        np.maximum.accumulate(index_of_group, out=index_of_group)
    return RunningMaximum(values[index], index)


def outermost(group: IntArray, end: Int64Array) -> BoolArray:
    """Return True for each range that lies in no other range of its group, (n,).

    A range lies in an earlier one exactly if it does not end after all earlier ranges of its group.

    Args:
        group: the group of each range, (n,).
        end: where each range ends; the ranges are sorted by group, start, and descending end, (n,).
    """
    latest_end = running_maximum(group, end).value
    latest_end_before = latest_end[:-1]
    is_outermost = begins_run(group)
    is_outermost[1:] |= end[1:] > latest_end_before
    return is_outermost
