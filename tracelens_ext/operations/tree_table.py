"""The call tree with GPU time: what ran below what, equal siblings merged.

The leaves are GPU events, under the calls that launched them; what launched nothing is not in it.
The time of a node is the busy-time union of the GPU events at and below it, so children that
overlap on the GPU may add up to more than their parent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import union_length
from tracelens_ext.lazy import pd
from tracelens_ext.nesting import (
    ROOT,
    depths,
    is_narrow,
    levels,
    nearest_marked,
    preorder,
    summed_up,
)
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, NS_PER_MS, EventKind
from tracelens_ext.tree import UNLINKED
from tracelens_ext.work.busy_time import BusyTime
from tracelens_ext.work.gpu_work import KIND_LABELS
from tracelens_ext.work.grouping import inverse, sums, texts
from tracelens_ext.work.patterns import Expression, UserPattern, user_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracelens_ext.trace import BoolArray, Float64Array, Int32Array, Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

_STEP = re.compile(r"ProfilerStep#[0-9]+")
_ANY_STEP = "ProfilerStep#*"
_OTHER = "(other)"
_KIND_LABELS = {
    EventKind.CPU_OP: "cpu_op",
    EventKind.USER_ANNOTATION: "annotation",
    EventKind.PYTHON_FUNCTION: "python",
    EventKind.RUNTIME: "launch",
    EventKind.DRIVER: "launch",
    EventKind.OTHER: "",
    **KIND_LABELS,
}
# Two numbers at the end of a line mean a difference to flame-graph tools.
_NUMBER_AT_END = re.compile(r" ([0-9]+(?:\.[0-9]*)?)$")
_SEPARATORS = str.maketrans({";": ":", "\n": " ", "\r": " "})


@dataclass(frozen=True, eq=False)
class MergedTree:
    """A call tree with GPU time, k nodes, parents before children, longest sibling first."""

    parent: Int32Array  #: node → its parent, `ROOT` without one, (k,)
    depth: Int32Array  #: number of ancestors, (k,)
    name: Int64Array  #: index into `names`, (k,)
    names: list[str]  #: what nodes are called
    kind: npt.NDArray[np.uint8]  #: an `EventKind`; `OTHER` for a thread and for `(unlinked)`, (k,)
    count: Int64Array  #: events that a node stands for, (k,)
    gpu_events: Int64Array  #: GPU events at and below it, (k,)
    busy_ns: Int64Array  #: their busy-time union, ns, (k,)
    self_ns: Int64Array  #: summed durations of a node that is GPU events, else 0, ns, (k,)
    total_ns: int  #: busy-time union of all GPU events of the trace

    def __len__(self) -> int:
        return len(self.parent)

    def label(self, node: int) -> str:
        """What a node is called."""
        return self.names[int(self.name[node])]

    def percent(self) -> Float64Array:
        """The share of each node in the GPU's busy time, 0 to 100, (k,)."""
        return 100.0 * self.busy_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Which nodes are within a depth (levels, 1 for the roots alone) and over a share, (k,)."""
        keep: BoolArray = self.percent() >= min_percent
        if depth is not None:
            keep &= self.depth < depth
        return keep


def call_tree_table(
    work: GpuWork, op: str | re.Pattern[str] | None = None, *, merge: bool = True
) -> pd.DataFrame:
    """The call tree with GPU time, a row a node, parents before children, as the sheet `tree`.

    Args:
        work: the GPU events.
        op: a regular expression; only what is at or below host events whose name it matches.
        merge: whether siblings of one name are one row.

    Raises:
        UsageError: `op` is no regular expression.
    """
    return tree_rows(merged_tree(work, op=op, merge=merge))


def tree_rows(tree: MergedTree, kept: BoolArray | None = None) -> pd.DataFrame:
    """A tree, or some of its nodes, as rows; see `call_tree_table`."""
    kinds = [_KIND_LABELS.get(EventKind(kind), "") for kind in tree.kind.tolist()]
    frame = pd.DataFrame(
        {
            "depth": tree.depth,
            "name": pd.array(texts(tree.name, tree.names), dtype="str"),
            "kind": pd.array(kinds, dtype="str"),
            "count": tree.count,
            "gpu_events": tree.gpu_events,
            "busy_time_ms": tree.busy_ns / NS_PER_MS,
            "% of GPU busy time": tree.percent(),
        }
    )
    return frame if kept is None else frame[kept].reset_index(drop=True)


def merged_tree(work: GpuWork, *, op: Expression | None = None, merge: bool = True) -> MergedTree:
    """The call tree with GPU time.

    Args:
        work: the GPU events.
        op: a regular expression, searched in the names of host events: only the outermost events
            that it matches, as roots, and what is below them. Without it every thread that
            launches is a root when there are several, and GPU events without a launch in the trace
            are below a root `(unlinked)`.
        merge: whether siblings of one name are one node, `ProfilerStep#N` counting as one name.

    Raises:
        UsageError: `op` is no regular expression.
    """
    grown = _Growth(work, merge=merge)
    depth, chosen, below_op = _chosen_positions(work, user_pattern(op, "op"))
    roots = grown.threads(chosen) if op is None else {}
    node_of = grown.host_events(depth, chosen, roots)
    launch = work.tree.launch_position_of_gpu
    parent = np.full(len(work), NONE, dtype=np.int64)
    linked = np.flatnonzero(work.tree.linked)
    parent[linked] = node_of[launch[linked]]
    unlinked = np.flatnonzero(~work.tree.linked)
    if op is None and len(unlinked):
        parent[unlinked] = grown.heading(UNLINKED, count=len(unlinked))
    taken = np.flatnonzero(parent != NONE) if op is None else np.flatnonzero(below_op)
    owner = np.full(len(work), NONE, dtype=np.int64)
    owner[taken] = grown.add(parent[taken], work.name[taken], work.kind[taken])
    return grown.finish(owner)


def _chosen_positions(
    work: GpuWork, op: UserPattern | None
) -> tuple[Int32Array, Int64Array, BoolArray]:
    """The host events that have GPU work below them, and are at or below `op`.

    The depth of every position of the tree below its root among the chosen; the chosen positions,
    ascending; whether each GPU event is below one of them.
    """
    tree = work.tree
    launch = tree.launch_position_of_gpu
    needed = np.zeros(len(tree.rows), dtype=bool)
    at = np.unique(launch[tree.linked])
    while len(at):
        needed[at] = True
        at = tree.parent_position[at]
        at = np.unique(at[at != ROOT])
        at = at[~needed[at]]
    depth = tree.depth
    if op is not None:
        found = work.trace.names_matching(op.search)
        roots = np.flatnonzero(needed & found[work.trace.name[tree.rows]])
        ends = tree.subtree_end[roots]
        reach = np.maximum.accumulate(ends) if len(roots) else ends
        outermost = np.concatenate(([True], roots[1:] >= reach[:-1]))[: len(roots)]
        roots, ends = roots[outermost], ends[outermost]
        positions = np.arange(len(needed))
        of_root = np.searchsorted(roots, positions, side="right") - 1
        inside = of_root >= 0
        inside[inside] = positions[inside] < ends[of_root[inside]]
        needed &= inside
        depth = depth.copy()
        depth[inside] -= depth[roots[of_root[inside]]]
    below = tree.linked.copy()
    below[below] = needed[launch[below]]
    return depth, np.flatnonzero(needed), below


class _Growth:
    """Adds nodes level by level; parents get lower numbers than their children."""

    def __init__(self, work: GpuWork, *, merge: bool) -> None:
        self._work = work
        self._merge = merge
        self._names = list(work.trace.names)
        self._same_name = np.arange(len(self._names), dtype=np.int64)
        if merge:
            steps = [code for code, name in enumerate(self._names) if _STEP.fullmatch(name)]
            if len(steps) > 1:
                self._same_name[steps] = self._name(_ANY_STEP)
        self._parts: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
        self._nodes = 0

    def _name(self, name: str) -> int:
        self._names.append(name)
        return len(self._names) - 1

    def heading(self, name: str, count: int) -> int:
        """A root that is no event; its number."""
        columns = (ROOT, self._name(name), int(EventKind.OTHER), count)
        self._parts.append(tuple(np.array([value]) for value in columns))  # type: ignore[arg-type]
        self._nodes += 1
        return self._nodes - 1

    def threads(self, chosen: Int64Array) -> dict[int, int]:
        """A root for each thread that launches, where there are several: thread → node."""
        work = self._work
        thread = work.trace.thread[work.tree.rows[chosen]]
        used = np.unique(thread)
        if len(used) < 2:
            return {}
        labels = [_thread_label(work, number) for number in used.tolist()]
        numbers = zip(used.tolist(), labels, strict=True)
        return {number: self.heading(label, count=1) for number, label in numbers}

    def host_events(
        self, depth: Int32Array, chosen: Int64Array, roots: dict[int, int]
    ) -> Int64Array:
        """Add host events; the node of each position of the tree, `NONE` for one not chosen."""
        tree, trace = self._work.tree, self._work.trace
        node_of = np.full(len(tree.rows) + 1, NONE, dtype=np.int64)
        of_thread = np.full(len(trace.threads), ROOT, dtype=np.int64)
        of_thread[list(roots)] = list(roots.values())
        if is_narrow(depth[chosen]):
            self._add_one_by_one(chosen, of_thread, node_of)
            return node_of[:-1]
        for level in (chosen[places] for places in levels(depth[chosen])):
            rows = tree.rows[level]
            is_root = int(depth[level[0]]) == 0
            parent = (
                of_thread[trace.thread[rows]] if is_root else node_of[tree.parent_position[level]]
            )
            node_of[level] = self.add(parent, trace.name[rows], trace.kind[rows])
        return node_of[:-1]

    def _add_one_by_one(
        self, chosen: Int64Array, of_thread: Int64Array, node_of: Int64Array
    ) -> None:
        """Fill in `node_of` event by event."""
        tree, trace = self._work.tree, self._work.trace
        rows = tree.rows[chosen]
        distinct: dict[tuple[int, int, int, int], int] = {}
        nodes = node_of.tolist()
        roots = of_thread[trace.thread[rows]].tolist()
        above = tree.parent_position[chosen].tolist()
        names, kinds = self._same_name[trace.name[rows]].tolist(), trace.kind[rows].tolist()
        for position, up, root, name, kind in zip(
            chosen.tolist(), above, roots, names, kinds, strict=True
        ):
            parent = root if up == ROOT or nodes[up] == NONE else nodes[up]
            key = parent, name, kind, NONE if self._merge else position
            nodes[position] = self._nodes + distinct.setdefault(key, len(distinct))
        node_of[:] = nodes
        node = node_of[chosen] - self._nodes
        parents, codes, event_kinds, _ = np.array(list(distinct), dtype=np.int64).T
        self._append(parents, codes, event_kinds, np.bincount(node), node)

    def add(
        self,
        parent: Int64Array,
        name: IntArray,
        kind: npt.NDArray[np.uint8],
    ) -> Int64Array:
        """Add events below nodes; the node of each."""
        name = self._same_name[name]
        if not self._merge:
            ones = np.ones(len(parent), dtype=np.int64)
            return self._append(parent, name, kind, ones, np.arange(len(parent)))
        kinds = len(EventKind)
        key = ((parent + 1) * len(self._names) + name) * kinds + kind
        distinct, inverse, count = np.unique(key, return_inverse=True, return_counts=True)
        above, name_of = np.divmod(distinct // kinds, len(self._names))
        return self._append(above - 1, name_of, distinct % kinds, count, inverse)

    def _append(
        self,
        parent: Int64Array,
        name: IntArray,
        kind: IntArray,
        count: Int64Array,
        node: Int64Array,
    ) -> Int64Array:
        self._parts.append((parent, name.astype(np.int64), kind.astype(np.int64), count))
        first, self._nodes = self._nodes, self._nodes + len(parent)
        return node + first

    def finish(self, owner: Int64Array) -> MergedTree:
        """The tree, of which each GPU event has a node, or `NONE`."""
        work = self._work
        parts = zip(*self._parts, strict=True) if self._parts else [()] * 4
        empty = np.empty(0, dtype=np.int64)
        parent, name, kind, count = (np.concatenate([empty, *part]) for part in parts)
        parent = parent.astype(np.int32)
        depth = depths(parent)
        taken = owner[owner != NONE]
        durations = sums(taken, work.duration[owner != NONE], len(parent))
        busy = BusyTime(work.start, work.end).by_subtree(parent, owner)
        gpu_events = summed_up(parent, depth, np.bincount(taken, minlength=len(parent)))
        order, place = _display_order(parent, depth, busy)
        above = parent[order]
        return MergedTree(
            parent=np.where(above == ROOT, ROOT, place[above]).astype(np.int32),
            depth=depth[order],
            name=name[order],
            names=self._names,
            kind=kind[order].astype(np.uint8),
            count=count[order],
            gpu_events=gpu_events[order],
            busy_ns=busy[order],
            self_ns=durations[order],
            total_ns=union_length(work.start, work.end),
        )


def _thread_label(work: GpuWork, thread: int) -> str:
    process, number = work.trace.threads[thread]
    name = work.trace.thread_names.get((process, number), f"thread {number}")
    many = len({pid for pid, _ in work.trace.threads}) > 1
    process_name = work.trace.process_names.get(process, "process")
    place = process_name if process_name == process else f"{process_name} {process}"
    return f"{name}, {place}" if many else name


def _display_order(
    parent: Int32Array, depth: Int32Array, busy: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Nodes so that each is followed by all below it, longest sibling first; and its inverse."""
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    place = preorder(parent, size, np.lexsort((np.arange(len(parent)), -busy, parent)))
    return inverse(place), place


def folded_stacks(
    tree: MergedTree, *, depth: int | None = None, min_percent: float = 0.0
) -> Iterator[str]:
    """The tree as folded stacks, a line each: `outermost;…;innermost 1234`.

    The value is the summed duration of GPU events in ns, so the values of all lines add up to that
    of the tree (overlaps on the GPU count as often as they are). `;` in names becomes `:`, line
    ends become blanks, and a number at the end of a name is joined to it by `_`.

    Args:
        tree: the tree.
        depth: levels to keep; the time of what is deeper goes to the last level kept.
        min_percent: so does the time of nodes with a smaller share of the busy time.
    """
    keep = tree.kept(depth, min_percent)
    above = nearest_marked(tree.parent, keep)
    target = np.where(keep, np.arange(len(tree)), above)
    values = sums(target, tree.self_ns, len(tree) + 1)  # `ROOT` is the last
    path: list[str] = []  # to the node, which its descendants follow: one path is in memory
    for node in np.flatnonzero(keep).tolist():
        name = _NUMBER_AT_END.sub(r"_\1", tree.label(node).translate(_SEPARATORS).strip())
        path[int(tree.depth[node]) :] = [name or NO_NAME]
        if value := int(values[node]):
            yield f"{';'.join(path)} {value}"
    if rest := int(values[-1]):
        yield f"{_OTHER} {rest}"
