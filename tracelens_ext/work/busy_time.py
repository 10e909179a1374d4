"""Busy time of many groups of GPU events at once: overlaps within a group are counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.nesting import ROOT, depths
from tracelens_ext.ordering import stable_order
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace import Int32Array, Int64Array, IntArray


class BusyTime:
    """Busy-time unions over groups of one set of intervals, without a Python loop over either.

    Args:
        start: ns, shape (g,), in any order.
        end: no less than `start`, shape (g,).
    """

    def __init__(self, start: Int64Array, end: Int64Array) -> None:
        self._by_start = np.argsort(start, kind="stable")
        self._start = start[self._by_start]
        # Running maxima are taken of ranks: those leave room in 64 bits for the group's number.
        self._ends, self._end_rank = np.unique(end[self._by_start], return_inverse=True)

    def by_owner(self, owner: IntArray, owners: int) -> Int64Array:
        """The length of the union of each owner's intervals.

        Args:
            owner: who owns each interval, `NONE` for nobody, shape (g,).
            owners: number of owners.

        Returns:
            ns, shape (owners,); 0 for an owner without intervals.
        """
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
        """The length of the union of the intervals of each node of a forest and all below it.

        Args:
            parent: node → its parent, `ROOT` without one, shape (m,).
            owner: the node that owns each interval, `NONE` for nobody, shape (g,).

        Returns:
            ns, shape (m,).
        """
        depth = depths(parent)
        busy = np.zeros(len(parent), dtype=np.int64)
        owner = owner.astype(np.int64)
        owned = np.flatnonzero(owner != NONE)
        deepest = int(depth[owner[owned]].max()) if len(owned) else -1
        for level in range(deepest, -1, -1):
            here = owned[depth[owner[owned]] == level]
            of_level = np.full(len(owner), NONE, dtype=np.int64)
            of_level[here] = owner[here]
            busy += self.by_owner(of_level, len(parent))
            owner[here] = parent[owner[here]]
            owned = owned[owner[owned] != ROOT]
        return busy
