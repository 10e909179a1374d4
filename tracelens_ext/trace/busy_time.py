"""Busy time of many groups of GPU events at once: overlaps within a group are counted once."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, BoolArray, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.grouping import inverse_permutation
from tracelens_ext.trace.intervals import begins_run, stable_order
from tracelens_ext.trace.nesting import ROOT, depths, lowest_common, preorder, summed_up

#: A time later than all times of a trace; negative, earlier than all.
_NEVER: Final = 2**62


class BusyTime:
    """Lengths of the unions of groups of intervals: overlaps within a group count once.

    The intervals are sorted once, for any number of ways to group them.
    """

    def __init__(self, start: Int64Array, end: Int64Array) -> None:
        self._by_start = np.argsort(start, kind="stable")
        self._start = start[self._by_start]
        # `by_owner` adds the number of the group to what it takes maxima of. The ranks of ends are
        # small, so the sum fits in 64 bits; the ends themselves would not leave room.
        self._ends, self._end_rank = np.unique(end[self._by_start], return_inverse=True)

    def by_owner(self, owner: IntArray, owner_count: int) -> Int64Array:
        """Return the length of the union of each owner's intervals, ns, (owner_count,).

        Args:
            owner: index of the owner of each interval, `NONE` for an interval without one.
            owner_count: the number of owners.
        """
        owner_by_start = owner[self._by_start]
        intervals = np.flatnonzero(owner_by_start != NONE)
        busy_ns = np.zeros(owner_count, dtype=np.int64)
        if not len(intervals):
            return busy_ns
        by_group = stable_order(owner_by_start[intervals])
        intervals = intervals[by_group]
        group = owner_by_start[intervals]
        is_first = begins_run(group)

        # The latest end so far within each group, by one running maximum over all groups: each
        # group's ranks are raised above all ranks of the group before, and lowered again.
        rank = self._end_rank[intervals]
        rank_offset = np.cumsum(is_first) * len(self._ends)
        highest_rank = np.maximum.accumulate(rank + rank_offset) - rank_offset
        latest_end = self._ends[highest_rank]

        # Each interval adds the part of it that lies behind the latest end before it.
        start = self._start[intervals]
        covered_until = start.copy()
        covered_until[1:] = np.maximum(latest_end[:-1], start[1:])
        covered_until = np.where(is_first, start, covered_until)
        added_ns = np.maximum(self._ends[rank] - covered_until, 0)
        first = np.flatnonzero(is_first)
        # reduceat sums from the first interval of each group to the last one of the group.
        busy_ns[group[first]] = np.add.reduceat(added_ns, first)
        return busy_ns

    def by_subtree(self, parent: Int32Array, owner: IntArray) -> Int64Array:
        """Return the length of the union of the intervals at and below each node of a forest.

        Args:
            parent: the parent of each node, `ROOT` for a node without one, (m,).
            owner: the node that each interval belongs to, `NONE` for an interval without one.

        Returns:
            The length for each node, ns, (m,).
        """
        owner_by_start = owner[self._by_start]
        end_by_start = self._ends[self._end_rank]
        has_owner = owner_by_start != NONE
        has_length = end_by_start > self._start
        intervals = np.flatnonzero(has_owner & has_length)
        node_of_interval = owner_by_start[intervals]
        start = self._start[intervals]
        end = end_by_start[intervals]

        # The sum of all lengths at and below a node counts overlaps twice. For each overlap of two
        # intervals, its length is subtracted once at the lowest node that has both below it.
        busy_ns = np.zeros(len(parent), dtype=np.int64)
        np.add.at(busy_ns, node_of_interval, end - start)
        depth = depths(parent)
        overlaps = ~_runs_alone(start, end)
        if overlaps.any():
            size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
            place = preorder(parent, size, np.argsort(parent, kind="stable"))
            pairs = _find_neighbors(
                place=place[node_of_interval[overlaps]],
                start=start[overlaps],
                end=end[overlaps],
            )
            node_at_place = inverse_permutation(place)
            one = node_at_place[pairs.one]
            other = node_at_place[pairs.other]
            common = lowest_common(parent=parent, depth=depth, one=one, other=other)
            is_counted_twice = common != ROOT
            np.subtract.at(
                busy_ns, common[is_counted_twice], pairs.shared_ns[is_counted_twice]
            )
        return summed_up(parent, depth, busy_ns)


def _runs_alone(start: Int64Array, end: Int64Array) -> BoolArray:
    """Return True for each interval that overlaps no other; intervals are sorted by start."""
    next_start = np.append(start[1:], _NEVER)
    latest_end = np.maximum.accumulate(end)
    latest_end_before = np.full(len(end), -_NEVER)
    latest_end_before[1:] = latest_end[:-1]
    runs_alone: BoolArray = next_start >= end
    runs_alone &= latest_end_before <= start
    return runs_alone


class _NeighborPairs(NamedTuple):
    """Pairs of places that are neighbors among the places with an interval that runs."""

    one: Int64Array  #: the place of each pair that comes first
    other: Int64Array  #: the place behind it
    shared_ns: Int64Array  #: how long the two are neighbors


def _find_neighbors(
    place: Int64Array, start: Int64Array, end: Int64Array
) -> _NeighborPairs:
    """Find which places are neighbors among the places with an interval that runs, and how long.

    A moment at which intervals run at several nodes is counted at each of these nodes. Subtracting
    it once for each pair of neighbors in preorder, at the node where the paths of the two meet,
    leaves it counted once in every node that has any of them below it.

    This is a sweep over all starts and ends in order of time. It keeps the places that run now, and
    for each the time since when it has had the place behind it as its neighbor.

    Args:
        place: the place in preorder of each interval's node, (k,).
        start: ns, (k,).
        end: ns, later than the start, (k,).
    """
    time = np.concatenate((end, start))
    order = np.argsort(time, kind="stable")  # of equal times, ends come first
    is_start = (order >= len(end)).tolist()
    places = np.tile(place, 2)[order].tolist()

    running: list[int] = []  # the places that run now, ascending
    since: list[int] = []  # since when each has had its neighbor behind it
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for now, starts, changed in zip(
        time[order].tolist(), is_start, places, strict=True
    ):
        index = bisect_left(running, changed)
        # The place before the changed one gets another neighbor: its time with the old one ends.
        if index and index < len(running):
            shared[running[index - 1], running[index]] += now - since[index - 1]
        if index:
            since[index - 1] = now
        if starts:
            running.insert(index, changed)
            since.insert(index, now)
            continue
        if index + 1 < len(running):
            shared[changed, running[index + 1]] += now - since[index]
        del running[index]
        del since[index]
    pairs = np.array(list(shared), dtype=np.int64).reshape(-1, 2)
    shared_ns = np.array(list(shared.values()), dtype=np.int64)
    return _NeighborPairs(one=pairs[:, 0], other=pairs[:, 1], shared_ns=shared_ns)
