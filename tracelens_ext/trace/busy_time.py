"""Busy time of many groups of GPU events at once: overlaps within a group are counted once."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Final

import numpy as np

from tracelens_ext.trace import NONE, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.grouping import inverse
from tracelens_ext.trace.intervals import stable_order
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
        """The length of the union of each owner's intervals, ns; `NONE` owns for nobody."""
        of_sorted = owner[self._by_start]
        mine = np.flatnonzero(of_sorted != NONE)
        busy = np.zeros(owners, dtype=np.int64)
        if not len(mine):
            return busy
        mine = mine[stable_order(of_sorted[mine])]
        group = of_sorted[mine]
        first = np.concatenate(([True], group[1:] != group[:-1]))
        base = np.cumsum(first) * len(self._ends)
        reach = self._ends[np.maximum.accumulate(self._end_rank[mine] + base) - base]
        start = self._start[mine]
        covered = np.concatenate((start[:1], reach[:-1]))
        covered = np.where(first, start, np.maximum(covered, start))
        gain = np.maximum(self._ends[self._end_rank[mine]] - covered, 0)
        busy[group[first]] = np.add.reduceat(gain, np.flatnonzero(first))
        return busy

    def by_subtree(self, parent: Int32Array, owner: IntArray) -> Int64Array:
        """The length of the union of the intervals of each node of a forest and all below, ns."""
        of_sorted = owner[self._by_start]
        end = self._ends[self._end_rank]
        mine = np.flatnonzero((of_sorted != NONE) & (end > self._start))
        of = of_sorted[mine]
        start = self._start[mine]
        end = end[mine]
        busy = np.zeros(len(parent), dtype=np.int64)
        np.add.at(busy, of, end - start)
        depth = depths(parent)
        alone = np.append(start[1:], _NEVER) >= end
        alone &= np.maximum.accumulate(np.concatenate(([-_NEVER], end[:-1])))[: len(end)] <= start
        if not alone.all():
            size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
            place = preorder(parent, size, np.argsort(parent, kind="stable"))
            one, other, lasting = _neighbours(place[of[~alone]], start[~alone], end[~alone])
            node = inverse(place)
            both = lowest_common(parent, depth, node[one], node[other])
            np.subtract.at(busy, both[both != ROOT], lasting[both != ROOT])
        return summed_up(parent, depth, busy)


def _neighbours(
    place: Int64Array, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Pairs of places next to one another among those whose intervals run, and for how long.

    A moment at which intervals run at several nodes counts at each of them; taken off where the
    paths of neighbours meet, it counts once in whatever is above any. Places are in preorder.
    """
    time = np.concatenate((end, start))
    order = np.argsort(time, kind="stable")  # at one moment ends come first
    starts = (order >= len(end)).tolist()
    running: list[int] = []
    since: list[int] = []  # when each got the neighbour behind it
    lasting: dict[tuple[int, int], int] = defaultdict(int)
    for now, begins, here in zip(
        time[order].tolist(), starts, np.tile(place, 2)[order].tolist(), strict=True
    ):
        at = bisect_left(running, here)
        if at and (at < len(running)):
            lasting[running[at - 1], running[at]] += now - since[at - 1]
        if at:
            since[at - 1] = now
        if begins:
            running.insert(at, here)
            since.insert(at, now)
        else:
            if at + 1 < len(running):
                lasting[here, running[at + 1]] += now - since[at]
            del running[at], since[at]
    pairs = np.array(list(lasting), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1], np.array(list(lasting.values()), dtype=np.int64)
