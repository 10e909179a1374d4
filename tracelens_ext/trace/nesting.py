"""Nest intervals: the parent of every event on its thread, without a Python loop.

Sorted by thread, start and longest first, the parent of an event is the nearest earlier event of
its thread that ends no sooner. Every event starts with its predecessor as the candidate. If the
candidate ends too soon, the candidate's own candidate is tried, until all fit. The events that such
a jump skips end even sooner, so none of them can be the parent. The jumps double in length, so a
few passes are enough. An event that ends so little later than the sibling before it that only the
clock can be the reason is nested again, as if it ended in time.

A forest is given by the parent of each node, `ROOT` without one. Functions that say "in tree order"
need every parent before its children, and all that is below a node right behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray
from tracelens_ext.trace.intervals import stable_order

ROOT = -1
#: How long an event may end after its parent, ns: profilers round times to µs.
LATE_END_NS: Final = 1_000
#: How often ends are cut: intervals may be late within such that are late themselves.
_MOST_CUTS: Final = 4
#: Below so many nodes a level, numpy takes longer for a level than a loop for its nodes.
_NARROW: Final = 50

AnyInt = TypeVar("AnyInt", "Int32Array", "Int64Array")


@dataclass(frozen=True, eq=False)
class Nesting:
    """Intervals in tree order: thread by thread, parents before their children."""

    order: Int32Array  #: position in tree order → index of the interval, shape (m,)
    #: position → position of the parent, `ROOT` without one, shape (m,)
    parent: Int32Array


def nest(
    thread: Int32Array,
    start: Int64Array,
    end: Int64Array,
    tie: Int64Array,
    childless: BoolArray,
) -> Nesting:
    """Nest intervals by time on their threads.

    Those that overlap without nesting are siblings, unless the later one lies mostly within the
    other and ends at most `LATE_END_NS` after it.

    Args:
        thread: not negative, (m,).
        start: ns, (m,).
        end: ns, (m,).
        tie: of two equal intervals the one with the lower number is the parent, with equal numbers
            the first one, (m,).
        childless: of two equal intervals that are both marked neither is the parent, (m,).
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
    """Intervals that are within their parents."""

    nesting: Nesting
    #: False if no interval overlaps the one before it without being within it
    has_overlaps: bool


def _nest_strictly(
    thread: Int32Array,
    start: Int64Array,
    end: Int64Array,
    tie: Int64Array,
    childless: BoolArray,
) -> _StrictNesting:
    """Nest intervals; those that overlap are siblings. Arguments as of `nest`."""
    order = _tree_order(thread=thread, start=start, end=end, tie=tie)
    ordered_start = start[order]
    ordered_end = end[order]
    ordered_childless = childless[order]

    # Equal intervals that have no children follow one another.
    is_twin = np.zeros(len(order), dtype=bool)
    is_twin[1:] = ordered_childless[1:]
    is_twin[1:] &= ordered_start[1:] == ordered_start[:-1]
    is_twin[1:] &= ordered_end[1:] == ordered_end[:-1]

    has_overlaps = False
    candidate = np.arange(-1, len(order) - 1, dtype=np.int32)
    candidate[np.diff(thread[order], prepend=-1) != 0] = ROOT
    unsettled = np.flatnonzero(candidate != ROOT)
    while len(unsettled):
        parent = candidate[unsettled]
        is_outside = ordered_end[parent] < ordered_end[unsettled]

        twins = np.flatnonzero(is_twin[unsettled])
        one = unsettled[twins]
        other = parent[twins]
        is_equal = ordered_childless[other]
        is_equal &= ordered_start[one] == ordered_start[other]
        is_equal &= ordered_end[one] == ordered_end[other]
        is_outside[twins] |= is_equal

        unsettled = unsettled[is_outside]
        parent = parent[is_outside]
        has_overlaps |= bool((ordered_start[unsettled] < ordered_end[parent]).any())
        candidate[unsettled] = candidate[parent]
        unsettled = unsettled[candidate[unsettled] != ROOT]
    return _StrictNesting(Nesting(order, candidate), has_overlaps)


def _siblings_before(nesting: Nesting, thread: Int32Array) -> Int64Array:
    """Return the position of the sibling before each position, `ROOT` without one, (m,)."""
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
    """Return which positions hold intervals that end a little after the sibling before them.

    An interval is not compared with a sibling that is late itself: of many that overlap like the
    steps of a staircase, each would end a little later than the one before.
    """
    sibling = _siblings_before(nesting, thread)
    places = np.flatnonzero(sibling != ROOT)
    intervals = nesting.order[places]
    end_of_sibling = cut_end[nesting.order[sibling[places]]]
    within = end_of_sibling - start[intervals]
    late = end[intervals] - end_of_sibling
    is_late = np.zeros(len(sibling), dtype=bool)
    is_late[places] = (late <= LATE_END_NS) & (late < within)
    is_late[places] &= cut_end[intervals] > end_of_sibling
    is_late[places] &= ~is_late[sibling[places]]
    return is_late


def _with_cut_ends(
    nesting: Nesting,
    thread: Int32Array,
    start: Int64Array,
    cut_end: Int64Array,
    is_late: BoolArray,
) -> Int64Array:
    """Return the ends of intervals, late ones and what is within them cut at the sibling's end."""
    ordered_end = cut_end[nesting.order]
    sibling = _siblings_before(nesting, thread)
    wanted_end = ordered_end.copy()
    wanted_end[is_late] = ordered_end[sibling[is_late]]
    wanted_end = ends_within(nesting.parent, wanted_end)
    # what only begins when the sibling has ended
    is_left = wanted_end <= start[nesting.order]
    wanted_end[is_left] = ordered_end[is_left]
    result = cut_end.copy()
    result[nesting.order] = wanted_end
    return result


def ends_within(parent: IntArray, end: Int64Array) -> Int64Array:
    """Return where nested intervals end, those that end late cut where their parents end, (m,)."""
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

    Traces are nearly sorted by start already, so that a stable sort by start takes little time, and
    only intervals that start together need the other keys.
    """
    order = np.argsort(start, kind="stable")
    order = order[stable_order(thread[order])]
    starts_with_next = np.diff(start[order]) == 0
    starts_with_next &= np.diff(thread[order]) == 0
    if starts_with_next.any():
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
    """Return the nearest marked ancestor of each node, `ROOT` without one, (m,)."""
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
    """Return the nearest marked ancestor of some nodes, `ROOT` without one."""
    return nearest_marked(parent, marked)[nodes].astype(np.int64)


def at_or_above(parent: Int32Array, nodes: IntArray) -> BoolArray:
    """Return which nodes of a forest are some nodes, or their ancestors, (m,)."""
    is_reached = np.zeros(len(parent), dtype=bool)
    while len(nodes):
        is_reached[nodes] = True
        parents = np.unique(parent[nodes])
        parents = parents[parents != ROOT]
        is_new = ~is_reached[parents]
        nodes = parents[is_new]
    return is_reached


def path_sums(parent: Int32Array, values: AnyInt) -> AnyInt:
    """Return the sum of the values of each node and of its ancestors, (m,).

    In each pass a node adds the sum of the node that its jump leads to, and jumps as far again: the
    first pass adds the parent, the second the two above that, the third the four above those.
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
    """Return how many ancestors each node has, (m,)."""
    has_parent = (parent != ROOT).astype(np.int32)
    return path_sums(parent, has_parent)


def levels(depth: Int32Array) -> list[Int64Array]:
    """Return the nodes of each depth that occurs, roots first, each level in ascending order."""
    if not len(depth):
        return []
    order = np.argsort(depth, kind="stable")
    ordered_depth = depth[order]
    is_last_of_level = np.diff(ordered_depth) != 0
    last_of_level = np.flatnonzero(is_last_of_level)
    first_of_next_level = last_of_level + 1
    return np.split(order, first_of_next_level)


def is_narrow(depth: Int32Array) -> bool:
    """Return True for a forest with so few nodes a level that a loop over nodes is quicker."""
    return len(depth) < _NARROW * int(depth.max(initial=0))


def summed_up(parent: Int32Array, depth: Int32Array, values: IntArray) -> Int64Array:
    """Return the sum of each node's value and those of all nodes below it, (m,)."""
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
    """Return the place of each node where all that is below a node follows it, (m,).

    Three nodes, of which 1 and 2 are below 0, and 2 comes first:

        parent [-1, 0, 0], size [3, 1, 1], siblings [0, 2, 1]: places [0, 2, 1]

    Args:
        parent: of each node, (m,).
        size: how many nodes are at and below each, (m,).
        siblings: all nodes by parent, those of one parent in the order that is wanted, (m,).
    """
    ordered_size = size[siblings]
    size_before = np.cumsum(ordered_size) - ordered_size
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
    """Return the lowest node at or above both nodes of each pair, `ROOT` without one.

    The deeper node of a pair climbs to the depth of the other. Then both climb as far as they can
    without meeting, by jumps of 2^k nodes, the longest first; their parent is the answer.

    Args:
        parent: of each node, (m,).
        depth: how many ancestors each node has, (m,).
        one: a node of each pair, (k,).
        other: the other node, (k,).
    """
    jumps = [np.append(parent, ROOT)]  # the last entry is that of `ROOT`, -1
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
    """Return one past the last position of each subtree of a forest in tree order, (m,)."""
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    return np.arange(len(parent)) + size


class Inserted(NamedTuple):
    """A forest in tree order, with further events."""

    rows: Int64Array  #: the event at each position
    parent: Int32Array  #: the position of its parent, `ROOT` without one


def insert_below(
    rows: Int64Array,
    parent: Int32Array,
    new: Int64Array,
    above: Int64Array,
    owner: Int64Array,
) -> Inserted:
    """Put further events into a forest in tree order, each below a node and before its children.

    Two new events, 8 and 9, below the first of two nodes, 9 within 8:

        rows [5, 6], parent [-1, -1], new [8, 9], above [-1, 0], owner [0, 0]:
        rows [5, 8, 9, 6], parent [-1, 0, 1, -1]

    Args:
        rows: the event at each position, (m,).
        parent: the position of its parent, (m,).
        new: the events that are put in, those of one owner one after another, parents first, (k,).
        above: the parent of each, an index into `new`; `ROOT` for one right below its owner, (k,).
        owner: the position of the event that each goes below, (k,).
    """
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
