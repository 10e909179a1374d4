"""Which interval encloses which: the parent of every event on its thread, without a Python loop.

Sorted by thread, start and longest first, the parent of an event is the nearest earlier event of
its thread that ends no sooner. Every event starts with its predecessor as the candidate. If the
candidate ends too soon, the candidate's own candidate is tried, until all fit. The events that such
a jump skips end even sooner, so none of them can be the parent. The jumps double in length, so a
few passes are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.intervals import stable_order

ROOT = -1
#: Below so many nodes a level, numpy takes longer for a level than a loop for its nodes.
_NARROW: Final = 50

AnyInt = TypeVar("AnyInt", "Int32Array", "Int64Array")


@dataclass(frozen=True, eq=False)
class Nesting:
    """Intervals in tree order: thread by thread, parents before their children."""

    order: Int32Array  #: position in tree order → index of the interval, shape (m,)
    parent: Int32Array  #: position → position of the parent, `ROOT` without one, shape (m,)


def nest(
    thread: Int32Array, start: Int64Array, end: Int64Array, tie: Int64Array, childless: BoolArray
) -> Nesting:
    """Nest intervals by time on their threads (non-negative); all of shape (m,).

    Of two equal intervals the one with the lower `tie` is the parent, with equal numbers the first;
    if both are marked as `childless` neither is. Those that overlap without nesting are siblings.
    """
    order = _tree_order(thread, start, end, tie)
    lane = thread[order]
    left = start[order]
    right = end[order]
    candidate = np.arange(-1, len(order) - 1, dtype=np.int32)
    candidate[np.diff(lane, prepend=-1) != 0] = ROOT
    leaf = childless[order]
    # Of two equal intervals that have no children neither is the parent; they follow one another.
    twin = np.zeros(len(order), dtype=bool)
    twin[1:] = leaf[1:] & (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    unsettled = np.flatnonzero(candidate != ROOT)
    while len(unsettled):
        at = candidate[unsettled]
        jumps = right[at] < right[unsettled]
        asked = np.flatnonzero(twin[unsettled])
        one = unsettled[asked]
        other = at[asked]
        jumps[asked] |= leaf[other] & (left[one] == left[other]) & (right[one] == right[other])
        unsettled = unsettled[jumps]
        at = at[jumps]
        candidate[unsettled] = candidate[at]
        unsettled = unsettled[candidate[unsettled] != ROOT]
    return Nesting(order, candidate)


def _tree_order(
    thread: Int32Array, start: Int64Array, end: Int64Array, tie: Int64Array
) -> Int32Array:
    """By thread, start, longest first, tie, index. Traces are nearly sorted by start already."""
    order = np.argsort(start, kind="stable")
    order = order[stable_order(thread[order])]
    same = (np.diff(start[order]) == 0) & (np.diff(thread[order]) == 0)
    if same.any():
        places = np.flatnonzero(np.append(False, same) | np.append(same, False))
        run = np.cumsum(np.append(True, ~same))[places]
        those = order[places]
        order[places] = those[np.lexsort((those, tie[those], -end[those], run))]
    return order.astype(np.int32)


def nearest_marked(parent: Int32Array, marked: BoolArray) -> Int32Array:
    """The nearest marked ancestor of each position, `ROOT` without one."""
    result = parent.copy()
    unsettled = np.flatnonzero(result != ROOT)
    unsettled = unsettled[~marked[result[unsettled]]]
    while len(unsettled):
        result[unsettled] = result[result[unsettled]]
        unsettled = unsettled[result[unsettled] != ROOT]
        unsettled = unsettled[~marked[result[unsettled]]]
    return result


def nearest_above(parent: Int32Array, nodes: IntArray, marked: BoolArray) -> Int64Array:
    """The nearest marked ancestor of some nodes, `ROOT` without one."""
    return nearest_marked(parent, marked)[nodes].astype(np.int64)


def at_or_above(parent: Int32Array, nodes: IntArray) -> BoolArray:
    """Which positions are some nodes, or their ancestors, (m,)."""
    found = np.zeros(len(parent), dtype=bool)
    while len(nodes):
        found[nodes] = True
        nodes = np.unique(parent[nodes])
        nodes = nodes[nodes != ROOT]
        nodes = nodes[~found[nodes]]
    return found


def path_sums(parent: Int32Array, values: AnyInt) -> AnyInt:
    """The sum of the values of each position and of its ancestors, shape (m,)."""
    sums = values.copy()
    jump = parent.copy()
    unsettled = np.flatnonzero(jump != ROOT)
    while len(unsettled):
        at = jump[unsettled]
        sums[unsettled] += sums[at]
        jump[unsettled] = jump[at]
        unsettled = unsettled[jump[unsettled] != ROOT]
    return sums


def depths(parent: Int32Array) -> Int32Array:
    """How many ancestors each position has, shape (m,)."""
    return path_sums(parent, (parent != ROOT).astype(np.int32))


def levels(depth: Int32Array) -> list[Int64Array]:
    """The nodes of each depth that occurs, roots first, each level in ascending order."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []


def is_narrow(depth: Int32Array) -> bool:
    """Whether a forest has so few nodes a level that it is quicker to go node by node."""
    return len(depth) < _NARROW * int(depth.max(initial=0))


def summed_up(parent: Int32Array, depth: Int32Array, values: IntArray) -> Int64Array:
    """The sum of each node's value and those of all nodes below it, shape (m,)."""
    sums: Int64Array = values.astype(np.int64)
    if is_narrow(depth):
        order = np.argsort(-depth, kind="stable")
        totals = sums.tolist()
        for node, above in zip(order.tolist(), parent[order].tolist(), strict=True):
            if above != ROOT:
                totals[above] += totals[node]
        return np.array(totals, dtype=np.int64)
    for level in reversed(levels(depth)[1:]):
        np.add.at(sums, parent[level], sums[level])
    return sums


def preorder(parent: Int32Array, size: Int64Array, siblings: Int64Array) -> Int64Array:
    """The place of each node where all that is below a node follows it, shape (m,).

    `size` counts the nodes at and below each; `siblings` are all nodes by parent, as ordered.
    """
    before = np.cumsum(size[siblings]) - size[siblings]
    above = parent[siblings]
    first = np.flatnonzero(np.diff(above, prepend=ROOT - 1))
    before -= np.repeat(before[first], np.diff(np.append(first, len(siblings))))
    offset = np.empty(len(parent), dtype=np.int64)
    offset[siblings] = before
    return path_sums(parent, offset + (parent != ROOT))


def lowest_common(
    parent: Int32Array, depth: Int32Array, one: Int64Array, other: Int64Array
) -> Int64Array:
    """The lowest node that is at or above both of each pair, `ROOT` without one; shape of `one`."""
    jumps = [np.append(parent, ROOT)]
    while (jumps[-1] != ROOT).any():
        jumps.append(jumps[-1][jumps[-1]])
    higher = depth[one] < depth[other]
    one, other = np.where(higher, other, one), np.where(higher, one, other)
    for far, jump in reversed(list(enumerate(jumps))):
        one = np.where(depth[one] - depth[other] >= 1 << far, jump[one], one)
    for jump in reversed(jumps):
        apart = jump[one] != jump[other]
        one = np.where(apart, jump[one], one)
        other = np.where(apart, jump[other], other)
    return np.where(one == other, one, jumps[0][one])


def subtree_ends(parent: Int32Array, depth: Int32Array) -> Int64Array:
    """One past the last position of each subtree; a subtree is a contiguous range, shape (m,)."""
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    return np.arange(len(parent)) + size


def insert_below(
    rows: Int64Array, parent: Int32Array, new: Int64Array, above: Int64Array, owner: Int64Array
) -> tuple[Int64Array, Int32Array]:
    """Put further events into a forest in tree order, each below a node and before its children.

    Of the new ones, those of one owner (a position) follow one another, parents first; `above` is
    the parent of each, an index into `new`, `ROOT` for one right below its owner.
    """
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(new), dtype=np.int64)
    place[order] = owner[order] + 1 + np.arange(len(new))
    before = np.cumsum(np.bincount(owner + 1, minlength=len(rows) + 1))[: len(rows)]
    moved = np.arange(len(rows)) + before  # where each of `rows` goes
    all_rows = np.empty(len(rows) + len(new), dtype=np.int64)
    all_rows[moved], all_rows[place] = rows, new
    parents = np.empty(len(all_rows), dtype=np.int32)
    parents[moved] = np.where(parent == ROOT, ROOT, moved[parent])
    parents[place] = np.where(above == ROOT, moved[owner], place[above])
    return all_rows, parents
