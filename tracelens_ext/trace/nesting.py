"""Nest intervals, and compute properties of the forests that they form, without a Python loop.

`nest` finds the parent of every event. In order of thread, start, and longest first, the parent of
an event is the nearest earlier event of its thread that does not end before the event does. Each
event begins with its predecessor as the candidate for its parent. While a candidate ends too soon,
it is replaced by its own candidate. The events that this jump skips end even sooner, so none of
them can be the parent. The jumps double in length, so a few passes over all events are enough.

Clocks are not exact. An event that ends only slightly later than the sibling before it is nested
again as if it ended together with that sibling.

A forest is given by the parent of each node, `ROOT` for a node without a parent. "In tree order"
means that every parent comes before its children, and that all nodes below a node follow it
directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.integer_sorting import stable_order

#: The parent of a node without a parent.
ROOT = -1
#: An event may end this much after its parent, ns, because profilers round times to µs.
LATE_END_NS: Final = 1_000
#: The most rounds of cutting ends. A cut interval may contain another one that ends late.
_MOST_CUTS: Final = 4
#: With fewer nodes per level, a Python loop over nodes is quicker than numpy over levels.
_NARROW: Final = 50

AnyInt = TypeVar("AnyInt", "Int32Array", "Int64Array")


@dataclass(frozen=True, eq=False)
class Nesting:
    """The m intervals in tree order: thread by thread, parents before their children."""

    order: Int32Array  #: index of the interval at each position in tree order, (m,)
    #: position of the parent of the interval at each position, `ROOT` without a parent, (m,)
    parent: Int32Array


def nest(
    thread: Int32Array,
    start: Int64Array,
    end: Int64Array,
    tie: Int64Array,
    childless: BoolArray,
) -> Nesting:
    """Nest intervals by time on their threads.

    Intervals that overlap without nesting are siblings, except if the later one lies mostly within
    the earlier one and ends at most `LATE_END_NS` after it. Then it is a child.

    Args:
        thread: the thread of each interval, not negative, (m,).
        start: ns, (m,).
        end: ns, (m,).
        tie: a number that decides between two equal intervals: the one with the lower number is the
            parent, or the first one if the numbers are equal, (m,).
        childless: True for intervals that cannot contain an equal interval that is marked, too:
            two such intervals are siblings, (m,).
    """
    cut_end = end
    strict = _nest_strictly(
        thread=thread, start=start, end=cut_end, tie=tie, childless=childless
    )
    for _ in range(_MOST_CUTS):
        if not strict.has_overlaps:
            break
        is_late = _ends_late(
            nesting=strict.nesting, thread=thread, start=start, cut_end=cut_end, end=end
        )
        if not is_late.any():
            break
        cut_end = _with_cut_ends(
            nesting=strict.nesting,
            thread=thread,
            start=start,
            cut_end=cut_end,
            is_late=is_late,
        )
        strict = _nest_strictly(
            thread=thread, start=start, end=cut_end, tie=tie, childless=childless
        )
    return strict.nesting


class _StrictNesting(NamedTuple):
    """A nesting in which every interval lies within its parent."""

    nesting: Nesting
    #: True if some intervals overlap without one being within the other
    has_overlaps: bool


def _nest_strictly(
    thread: Int32Array,
    start: Int64Array,
    end: Int64Array,
    tie: Int64Array,
    childless: BoolArray,
) -> _StrictNesting:
    """Nest intervals so that all that only overlap are siblings. Arguments as of `nest`."""
    order = _tree_order(thread=thread, start=start, end=end, tie=tie)
    ordered_start = start[order]
    ordered_end = end[order]
    ordered_childless = childless[order]

    # A twin is a childless interval that equals the one before it: in tree order, equal intervals
    # are neighbors.
    is_twin = np.zeros(len(order), dtype=bool)
    is_twin[1:] = ordered_childless[1:]
    is_twin[1:] &= ordered_start[1:] == ordered_start[:-1]
    is_twin[1:] &= ordered_end[1:] == ordered_end[:-1]

    has_overlaps = False
    # The first candidate of each interval is its predecessor on the thread.
    candidate = np.arange(-1, len(order) - 1, dtype=np.int32)
    candidate[np.diff(thread[order], prepend=-1) != 0] = ROOT
    unsettled = np.flatnonzero(candidate != ROOT)
    while len(unsettled):
        parent = candidate[unsettled]
        is_outside = ordered_end[parent] < ordered_end[unsettled]

        # A twin cannot be below an equal childless interval either.
        twin_index = np.flatnonzero(is_twin[unsettled])
        twin = unsettled[twin_index]
        parent_of_twin = parent[twin_index]
        is_equal = ordered_childless[parent_of_twin]
        is_equal &= ordered_start[twin] == ordered_start[parent_of_twin]
        is_equal &= ordered_end[twin] == ordered_end[parent_of_twin]
        is_outside[twin_index] |= is_equal

        unsettled = unsettled[is_outside]
        parent = parent[is_outside]
        has_overlaps |= bool((ordered_start[unsettled] < ordered_end[parent]).any())
        candidate[unsettled] = candidate[parent]
        unsettled = unsettled[candidate[unsettled] != ROOT]
    return _StrictNesting(Nesting(order, candidate), has_overlaps)


def _siblings_before(nesting: Nesting, thread: Int32Array) -> Int64Array:
    """Return the position of the sibling before each position, `ROOT` without one, (m,)."""
    # Sorted by parent, siblings are neighbors in tree order.
    parent = nesting.parent
    by_parent = np.argsort(parent, kind="stable")
    ordered_thread = thread[nesting.order]
    is_next_sibling = np.diff(parent[by_parent]) == 0
    is_next_sibling &= np.diff(ordered_thread[by_parent]) == 0
    node = by_parent[1:][is_next_sibling]
    node_before = by_parent[:-1][is_next_sibling]
    sibling = np.full(len(parent), ROOT, dtype=np.int64)
    sibling[node] = node_before
    return sibling


def _ends_late(
    nesting: Nesting,
    thread: Int32Array,
    start: Int64Array,
    cut_end: Int64Array,
    end: Int64Array,
) -> BoolArray:
    """Return True for each position whose interval ends slightly after the sibling before it.

    An interval is not compared with a sibling that is late itself. Otherwise many intervals that
    overlap like the steps of a staircase would all be late.
    """
    sibling = _siblings_before(nesting, thread)
    positions = np.flatnonzero(sibling != ROOT)
    intervals = nesting.order[positions]
    end_of_sibling = cut_end[nesting.order[sibling[positions]]]
    time_within_sibling = end_of_sibling - start[intervals]
    time_after_sibling = end[intervals] - end_of_sibling
    is_late = np.zeros(len(sibling), dtype=bool)
    is_late[positions] = time_after_sibling <= LATE_END_NS
    is_late[positions] &= time_after_sibling < time_within_sibling
    is_late[positions] &= cut_end[intervals] > end_of_sibling
    is_late[positions] &= ~is_late[sibling[positions]]
    return is_late


def _with_cut_ends(
    nesting: Nesting,
    thread: Int32Array,
    start: Int64Array,
    cut_end: Int64Array,
    is_late: BoolArray,
) -> Int64Array:
    """Return the ends of intervals, with late intervals cut at the end of the sibling before them.

    The intervals within a late interval are cut there, too.
    """
    ordered_end = cut_end[nesting.order]
    sibling = _siblings_before(nesting, thread)
    new_end = ordered_end.copy()
    new_end[is_late] = ordered_end[sibling[is_late]]
    new_end = ends_within(nesting.parent, new_end)
    # An interval that starts after the cut keeps its end: it will not be within the sibling.
    starts_after_cut = new_end <= start[nesting.order]
    new_end[starts_after_cut] = ordered_end[starts_after_cut]
    result = cut_end.copy()
    result[nesting.order] = new_end
    return result


def ends_within(parent: IntArray, end: Int64Array) -> Int64Array:
    """Return the ends of nested intervals, cut at the ends of their parents, (m,)."""
    cut_end = end.copy()
    nodes = np.flatnonzero(parent != ROOT)
    while True:
        end_of_parent = cut_end[parent[nodes]]
        is_late = cut_end[nodes] > end_of_parent
        if not is_late.any():
            return cut_end
        late_nodes = nodes[is_late]
        cut_end[late_nodes] = end_of_parent[is_late]


def _tree_order(
    thread: Int32Array, start: Int64Array, end: Int64Array, tie: Int64Array
) -> Int32Array:
    """Return the order by thread, start, longest first, tie, index.

    Traces are nearly sorted by start already, so a stable sort by start takes little time. Only
    intervals that start together on a thread are sorted by the other keys.
    """
    order = np.argsort(start, kind="stable")
    order = order[stable_order(thread[order])]
    starts_with_next = np.diff(start[order]) == 0
    starts_with_next &= np.diff(thread[order]) == 0
    if starts_with_next.any():
        # A run is a series of neighbors that start together.
        starts_with_other = np.zeros(len(order), dtype=bool)
        starts_with_other[:-1] |= starts_with_next
        starts_with_other[1:] |= starts_with_next
        run = np.zeros(len(order), dtype=np.int64)
        run[1:] = np.cumsum(~starts_with_next)

        places = np.flatnonzero(starts_with_other)
        intervals = order[places]
        keys = (intervals, tie[intervals], -end[intervals], run[places])
        order[places] = intervals[np.lexsort(keys)]
    return order.astype(np.int32)


def nearest_marked(parent: Int32Array, marked: BoolArray) -> Int32Array:
    """Return the nearest marked ancestor of each node, `ROOT` if none is marked, (m,).

    In each pass, a node whose candidate is not marked takes over the candidate of that candidate,
    so the distance doubles from pass to pass.
    """
    nearest = parent.copy()
    unsettled = np.flatnonzero(nearest != ROOT)
    while len(unsettled):
        candidate = nearest[unsettled]
        is_unsettled = ~marked[candidate]
        is_unsettled &= candidate != ROOT
        unsettled = unsettled[is_unsettled]
        candidate = candidate[is_unsettled]
        nearest[unsettled] = nearest[candidate]
    return nearest


def nearest_above(parent: Int32Array, nodes: IntArray, marked: BoolArray) -> Int64Array:
    """Return the nearest marked ancestor of some nodes, `ROOT` if none is marked."""
    return nearest_marked(parent, marked)[nodes].astype(np.int64)


def at_or_above(parent: Int32Array, nodes: IntArray) -> BoolArray:
    """Return True for the given nodes of a forest and all of their ancestors, (m,)."""
    is_reached = np.zeros(len(parent), dtype=bool)
    while len(nodes):
        is_reached[nodes] = True
        parents = np.unique(parent[nodes])
        parents = parents[parents != ROOT]
        is_new = ~is_reached[parents]
        nodes = parents[is_new]
    return is_reached


def path_sums(parent: Int32Array, values: AnyInt) -> AnyInt:
    """Return the sum of the values of each node and all of its ancestors, (m,).

    In each pass, a node adds the sum of the node that its jump leads to, and its jump doubles. The
    first pass adds the parent, the second the two nodes above it, the third the four above these.
    """
    path_sum = values.copy()
    jump = parent.copy()
    unsettled = np.flatnonzero(jump != ROOT)
    while len(unsettled):
        target = jump[unsettled]
        path_sum[unsettled] += path_sum[target]
        jump[unsettled] = jump[target]
        is_unsettled = jump[unsettled] != ROOT
        unsettled = unsettled[is_unsettled]
    return path_sum


def depths(parent: Int32Array) -> Int32Array:
    """Return the number of ancestors of each node, (m,)."""
    has_parent = (parent != ROOT).astype(np.int32)
    return path_sums(parent, has_parent)


def levels(depth: Int32Array) -> list[Int64Array]:
    """Return the nodes of each depth, the roots first, ascending within a depth."""
    if not len(depth):
        return []
    order = np.argsort(depth, kind="stable")
    ordered_depth = depth[order]
    is_last_of_level = np.diff(ordered_depth) != 0
    last_of_level = np.flatnonzero(is_last_of_level)
    first_of_next_level = last_of_level + 1
    return np.split(order, first_of_next_level)


def is_narrow(depth: Int32Array) -> bool:
    """Return True for a forest with so few nodes per level that a loop over nodes is quicker."""
    return len(depth) < _NARROW * int(depth.max(initial=0))


def summed_up(parent: Int32Array, depth: Int32Array, values: IntArray) -> Int64Array:
    """Return the sum of the values of each node and all nodes below it, (m,)."""
    if is_narrow(depth):
        return _summed_up_one_by_one(parent, depth, values)
    subtree_sum: Int64Array = values.astype(np.int64)
    levels_below_roots = levels(depth)[1:]
    for level in reversed(levels_below_roots):
        sums = subtree_sum[level]
        parents = parent[level]
        np.add.at(subtree_sum, parents, sums)
    return subtree_sum


def _summed_up_one_by_one(
    parent: Int32Array, depth: Int32Array, values: IntArray
) -> Int64Array:
    deepest_first = np.argsort(-depth, kind="stable")
    totals: list[int] = values.astype(np.int64).tolist()
    nodes = deepest_first.tolist()
    parents = parent[deepest_first].tolist()
    for node, node_above in zip(nodes, parents, strict=True):
        if node_above == ROOT:
            continue
        totals[node_above] += totals[node]
    return np.array(totals, dtype=np.int64)


def preorder(parent: Int32Array, size: Int64Array, siblings: Int64Array) -> Int64Array:
    """Return the place of each node in preorder: a node, then all nodes below it, (m,).

    Of three nodes, 1 and 2 are below 0, and 2 comes before 1:

        parent [-1, 0, 0], size [3, 1, 1], siblings [0, 2, 1]: places [0, 2, 1]

    Args:
        parent: the parent of each node, (m,).
        size: the number of nodes at and below each node, (m,).
        siblings: all nodes sorted by parent; nodes of one parent in the order that they will have,
            (m,).
    """
    # The place of a node is that of its parent, plus 1, plus the sizes of the siblings before it.
    # The sum of these offsets along the path from the root is the place.
    ordered_size = size[siblings]
    size_before = np.cumsum(ordered_size) - ordered_size  # also of earlier parents
    parent_of_sibling = parent[siblings]
    first = np.flatnonzero(np.diff(parent_of_sibling, prepend=ROOT - 1))
    count = np.diff(np.append(first, len(siblings)))
    size_before_first = size_before[first]
    size_before -= np.repeat(size_before_first, count)
    offset = np.empty(len(parent), dtype=np.int64)
    offset[siblings] = size_before
    is_below_another = parent != ROOT
    return path_sums(parent, offset + is_below_another)


def lowest_common(
    parent: Int32Array, depth: Int32Array, one: Int64Array, other: Int64Array
) -> Int64Array:
    """Return the lowest node at or above both nodes of each pair, `ROOT` if there is none.

    The deeper node of a pair climbs to the depth of the other node. Then both climb as far as they
    can without meeting, by jumps of 2^k nodes, the longest first. The parent of both is the result.

    Args:
        parent: the parent of each node, (m,).
        depth: the number of ancestors of each node, (m,).
        one: the first node of each pair, (k,).
        other: the second node of each pair, (k,).
    """
    # Entry k has the node 2^k above each node. The last item is for `ROOT`, which is -1.
    jumps = [np.append(parent, ROOT)]
    while (jumps[-1] != ROOT).any():
        jumps.append(jumps[-1][jumps[-1]])
    is_higher = depth[one] < depth[other]
    deeper = np.where(is_higher, other, one)
    higher = np.where(is_higher, one, other)
    for power in reversed(range(len(jumps))):
        levels_apart = depth[deeper] - depth[higher]
        can_jump = levels_apart >= 1 << power
        deeper = np.where(can_jump, jumps[power][deeper], deeper)
    for jump in reversed(jumps):
        above_deeper = jump[deeper]
        above_higher = jump[higher]
        stays_apart = above_deeper != above_higher
        deeper = np.where(stays_apart, above_deeper, deeper)
        higher = np.where(stays_apart, above_higher, higher)
    parent_of_both = jumps[0][deeper]
    return np.where(deeper == higher, deeper, parent_of_both)


def subtree_ends(parent: Int32Array, depth: Int32Array) -> Int64Array:
    """Return the position behind each node's subtree, for a forest in tree order, (m,)."""
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    return np.arange(len(parent)) + size


class Inserted(NamedTuple):
    """A forest in tree order into which events were inserted."""

    rows: Int64Array  #: the event at each position
    parent: Int32Array  #: the position of each parent, `ROOT` for an event without one


def insert_below(
    rows: Int64Array,
    parent: Int32Array,
    new: Int64Array,
    above: Int64Array,
    owner: Int64Array,
) -> Inserted:
    """Insert events into a forest in tree order, each below a node and before its children.

    Events 8 and 9 are inserted below the first of two nodes, and 9 is below 8:

        rows [5, 6], parent [-1, -1], new [8, 9], above [-1, 0], owner [0, 0]:
        rows [5, 8, 9, 6], parent [-1, 0, 1, -1]

    Args:
        rows: the event at each position, (m,).
        parent: the position of the parent of each event, (m,).
        new: the events to insert, parents before children; events with the same owner are
            neighbors, (k,).
        above: index in `new` of the parent of each new event, `ROOT` for an event directly below
            its owner, (k,).
        owner: the position in the forest of the event that each new event goes below, (k,).
    """
    # A new event comes right behind its owner and all new events before it. An old event moves up
    # by the number of new events whose owners come before it.
    order = np.argsort(owner, kind="stable")
    place_of_new = np.empty(len(new), dtype=np.int64)
    place_of_new[order] = owner[order] + 1 + np.arange(len(new))
    new_before = np.cumsum(np.bincount(owner + 1, minlength=len(rows) + 1))[: len(rows)]
    place_of_old = np.arange(len(rows)) + new_before

    all_rows = np.empty(len(rows) + len(new), dtype=np.int64)
    all_rows[place_of_old] = rows
    all_rows[place_of_new] = new
    all_parents = np.empty(len(all_rows), dtype=np.int32)
    all_parents[place_of_old] = np.where(parent == ROOT, ROOT, place_of_old[parent])
    is_right_below = above == ROOT
    all_parents[place_of_new] = np.where(
        is_right_below, place_of_old[owner], place_of_new[above]
    )
    return Inserted(all_rows, all_parents)
