"""Busy time of many groups of GPU events at once: overlaps within a group are counted once."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, BoolArray, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.grouping import inverse_permutation
from tracelens_ext.trace.integer_sorting import begins_run, stable_order
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
        # `by_owner` adds the number of the owner to what it takes maxima of. The ranks of ends are
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
        order = stable_order(owner_by_start[intervals])
        intervals = intervals[order]
        owner_of_interval = owner_by_start[intervals]
        is_first = begins_run(owner_of_interval)

        # The latest end so far among an owner's intervals, by one running maximum over all owners:
        # each owner's ranks are raised above all ranks of the owner before, and lowered again.
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
        first_intervals = np.flatnonzero(is_first)
        # reduceat sums from the first interval of each owner to the last one of the owner.
        owners = owner_of_interval[first_intervals]
        busy_ns[owners] = np.add.reduceat(added_ns, first_intervals)
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
            twice = _time_counted_twice(
                parent=parent,
                depth=depth,
                node_of_interval=node_of_interval[overlaps],
                start=start[overlaps],
                end=end[overlaps],
            )
            np.subtract.at(busy_ns, twice.node, twice.time_ns)
        return summed_up(parent, depth, busy_ns)


class _TimeCountedTwice(NamedTuple):
    """Time that sums over subtrees would count twice; a node may occur several times."""

    node: Int64Array  #: the lowest node that has both of two overlapping intervals below it
    time_ns: Int64Array  #: to be subtracted there


def _time_counted_twice(
    parent: Int32Array,
    depth: Int32Array,
    node_of_interval: IntArray,
    start: Int64Array,
    end: Int64Array,
) -> _TimeCountedTwice:
    """Return the time that a sum of intervals over each subtree of a forest would count twice.

    Args:
        parent: the parent of each node, (m,).
        depth: the depth of each node, (m,).
        node_of_interval: the node that each interval belongs to, (k,).
        start: ns, (k,).
        end: ns, later than the start, (k,).
    """
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    position_of_node = preorder(parent, size, np.argsort(parent, kind="stable"))
    pairs = _find_neighbors(
        position=position_of_node[node_of_interval], start=start, end=end
    )
    node_at_position = inverse_permutation(position_of_node)
    common = lowest_common(
        parent=parent,
        depth=depth,
        one=node_at_position[pairs.earlier],
        other=node_at_position[pairs.later],
    )
    # Nodes of two trees have no node in common, so nothing counts their overlap twice.
    has_common = common != ROOT
    return _TimeCountedTwice(
        node=common[has_common], time_ns=pairs.shared_ns[has_common]
    )


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
    """Pairs of positions that are neighbors among the positions with a running interval."""

    earlier: Int64Array  #: the position of each pair that comes first in preorder
    later: Int64Array  #: the next position with a running interval
    shared_ns: Int64Array  #: how long the two are neighbors


def _find_neighbors(
    position: Int64Array, start: Int64Array, end: Int64Array
) -> _NeighborPairs:
    """Find which positions are neighbors among those with a running interval, and how long.

    A moment at which intervals run at several nodes is counted at each of these nodes. Subtracting
    it once for each pair of neighbors in preorder, at the node where the paths of the two meet,
    leaves it counted once in every node that has any of them below it.

    This is a sweep over all starts and ends in order of time. It keeps the positions with a running
    interval, and for each of them since when it has had its next neighbor.

    Args:
        position: the position in preorder of each interval's node, (k,).
        start: ns, (k,).
        end: ns, later than the start, (k,).
    """
    time = np.concatenate((end, start))
    order = np.argsort(time, kind="stable")  # of equal times, ends come first
    is_start = (order >= len(end)).tolist()
    positions = np.tile(position, 2)[order].tolist()
    times = time[order].tolist()

    running: list[int] = []  # the positions with a running interval, ascending
    neighbor_since: list[int] = []  # since when each has had its next neighbor
    shared_ns: dict[tuple[int, int], int] = defaultdict(int)
    for now, begins, changed in zip(times, is_start, positions, strict=True):
        index = bisect_left(running, changed)
        # The position before the changed one gets another neighbor: its time with the old one ends.
        if index and index < len(running):
            old_pair = (running[index - 1], running[index])
            shared_ns[old_pair] += now - neighbor_since[index - 1]
        if index:
            neighbor_since[index - 1] = now
        if begins:
            running.insert(index, changed)
            neighbor_since.insert(index, now)
            continue
        if index + 1 < len(running):
            old_pair = (changed, running[index + 1])
            shared_ns[old_pair] += now - neighbor_since[index]
        del running[index]
        del neighbor_since[index]
    pairs = np.array(list(shared_ns), dtype=np.int64).reshape(-1, 2)
    return _NeighborPairs(
        earlier=pairs[:, 0],
        later=pairs[:, 1],
        shared_ns=np.array(list(shared_ns.values()), dtype=np.int64),
    )
