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

_NEVER: Final = 2**62


class BusyTime:
    """Busy-time unions over groups of one set of intervals, without a Python loop over either."""

    def __init__(self, start: Int64Array, end: Int64Array) -> None:
        self._by_start = np.argsort(start, kind="stable")
        self._start = start[self._by_start]
        # Running maxima are taken of ranks: those leave room in 64 bits for the group's number.
        self._ends, self._end_rank = np.unique(end[self._by_start], return_inverse=True)

    def by_owner(self, owner: IntArray, owners: int) -> Int64Array:
        """Return the length of the union of each owner's intervals, ns, (owners,).

        The owner of an interval is a number below `owners`; `NONE` means no owner.
        """
        owner_by_start = owner[self._by_start]
        intervals = np.flatnonzero(owner_by_start != NONE)
        busy_ns = np.zeros(owners, dtype=np.int64)
        if not len(intervals):
            return busy_ns
        by_group = stable_order(owner_by_start[intervals])
        intervals = intervals[by_group]
        group = owner_by_start[intervals]
        is_first = begins_run(group)

        # The latest end so far within each group: ranks of later groups are larger.
        rank = self._end_rank[intervals]
        rank_offset = np.cumsum(is_first) * len(self._ends)
        highest_rank = np.maximum.accumulate(rank + rank_offset) - rank_offset
        latest_end = self._ends[highest_rank]

        start = self._start[intervals]
        covered_until = start.copy()
        covered_until[1:] = np.maximum(latest_end[:-1], start[1:])
        covered_until = np.where(is_first, start, covered_until)
        gain = np.maximum(self._ends[rank] - covered_until, 0)
        first = np.flatnonzero(is_first)
        busy_ns[group[first]] = np.add.reduceat(gain, first)
        return busy_ns

    def by_subtree(self, parent: Int32Array, owner: IntArray) -> Int64Array:
        """Return the length of the union of the intervals of each node of a forest and all below.

        Args:
            parent: the parent of each node, `ROOT` without one, (m,).
            owner: the node that each interval belongs to, `NONE` for none.

        Returns:
            ns, (m,).
        """
        owner_by_start = owner[self._by_start]
        end_by_start = self._ends[self._end_rank]
        has_owner = owner_by_start != NONE
        has_length = end_by_start > self._start
        intervals = np.flatnonzero(has_owner & has_length)
        node_of_interval = owner_by_start[intervals]
        start = self._start[intervals]
        end = end_by_start[intervals]

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
    """Return which intervals, ascending by start, overlap no other one."""
    next_start = np.append(start[1:], _NEVER)
    latest_end = np.maximum.accumulate(end)
    latest_end_before = np.full(len(end), -_NEVER)
    latest_end_before[1:] = latest_end[:-1]
    runs_alone: BoolArray = next_start >= end
    runs_alone &= latest_end_before <= start
    return runs_alone


class _NeighborPairs(NamedTuple):
    """Pairs of places next to one another among those whose intervals run at a time."""

    one: Int64Array
    other: Int64Array
    shared_ns: Int64Array  #: for how long they are next to one another


def _find_neighbors(
    place: Int64Array, start: Int64Array, end: Int64Array
) -> _NeighborPairs:
    """Find which places are next to one another among those whose intervals run, and how long.

    A moment at which intervals run at several nodes counts at each of them; taken off where the
    paths of neighbors meet, it counts once in whatever is above any. Places are in preorder.
    """
    time = np.concatenate((end, start))
    order = np.argsort(time, kind="stable")  # at one moment ends come first
    is_start = (order >= len(end)).tolist()
    places = np.tile(place, 2)[order].tolist()

    running: list[int] = []  # places, ascending
    since: list[int] = []  # when each got the neighbor behind it
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for now, starts, changed in zip(
        time[order].tolist(), is_start, places, strict=True
    ):
        index = bisect_left(running, changed)
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
