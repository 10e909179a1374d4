"""The call tree with GPU time: what ran below what, equal siblings merged.

The leaves are GPU events, under the calls that launched them; what launched nothing is not in it.
The time of a node is the busy-time union of the GPU events at and below it, so children that
overlap on the GPU may add up to more than their parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.categorize.user_patterns import Expression, UserPattern, user_pattern
from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    EventKind,
    Float64Array,
    Int32Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.call_paths import CallPaths, find_paths
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import KIND_LABELS, GpuEvents
from tracelens_ext.trace.grouping import inverse_permutation, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import (
    ROOT,
    depths,
    nearest_marked,
    preorder,
    summed_up,
)

_STEP = re.compile(r"ProfilerStep#[0-9]+")
_ANY_STEP = "ProfilerStep#*"
_OTHER = "(other)"
_KIND_LABELS = {
    EventKind.CPU_OP: "cpu_op",
    EventKind.USER_ANNOTATION: "annotation",
    EventKind.PYTHON_FUNCTION: "python",
    **dict.fromkeys(LAUNCH_KINDS, "launch"),
    **KIND_LABELS,
}
# Two numbers at the end of a line mean a difference to flame-graph tools.
_NUMBER_AT_END = re.compile(r" ([0-9]+(?:\.[0-9]*)?)$")
_SEPARATORS = str.maketrans({";": ":", "\n": " ", "\r": " "})


@dataclass(frozen=True, eq=False)
class MergedTree:
    """A call tree with GPU time, k nodes, parents before children, longest sibling first.

    Attributes:
        parent: node → its parent, `ROOT` without one, (k,).
        depth: number of ancestors, (k,).
        name: index into `names`, (k,).
        names: what nodes are called.
        kind: an `EventKind`; `OTHER` for a thread and for `(unlinked)`, (k,).
        count: events that a node stands for, (k,).
        gpu_events: GPU events at and below it, (k,).
        busy_ns: their busy-time union, ns, (k,).
        self_ns: summed durations of a node that is GPU events, else 0, ns, (k,).
        total_ns: busy-time union of all GPU events of the trace.
    """

    parent: Int32Array
    depth: Int32Array
    name: Int64Array
    names: list[str]
    kind: npt.NDArray[np.uint8]
    count: Int64Array
    gpu_events: Int64Array
    busy_ns: Int64Array
    self_ns: Int64Array
    total_ns: int

    def __len__(self) -> int:
        return len(self.parent)

    def label(self, node: int) -> str:
        """Return what a node is called."""
        return self.names[int(self.name[node])]

    def percent(self) -> Float64Array:
        """Return the share of each node in the GPU's busy time, 0 to 100, (k,)."""
        return 100.0 * self.busy_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Return which nodes are shown, (k,).

        Args:
            depth: levels that are shown, 1 for the roots alone; all by default.
            min_percent: the least share in the GPU's busy time that is shown.
        """
        keep: BoolArray = self.percent() >= min_percent
        if depth is not None:
            keep &= self.depth < depth
        return keep


def call_tree_table(
    work: GpuEvents, op: str | re.Pattern[str] | None = None, *, merge: bool = True
) -> pd.DataFrame:
    """The call tree with GPU time, a row a node, parents before children, as the sheet `tree`.

    `op`: a regular expression; only what is at or below host events whose name it matches. With
    `merge` siblings of one name are one row.
    """
    return tree_rows(merged_tree(work, op=op, merge=merge))


def tree_rows(tree: MergedTree, kept: BoolArray | None = None) -> pd.DataFrame:
    """Return a tree, or some of its nodes, as rows; see `call_tree_table`."""
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
    if kept is None:
        return frame
    return frame[kept].reset_index(drop=True)


class _Chosen(NamedTuple):
    """The events of a tree that are shown."""

    host: Int64Array  #: positions of the tree, ascending, h of them
    gpu: Int64Array  #: GPU events, ascending, g of them


class _Nodes(NamedTuple):
    """Nodes of the forest before equal siblings are merged."""

    parent: Int64Array  #: index of the node above, `ROOT` without one
    name: Int64Array  #: index into the names of the tree
    kind: IntArray  #: an `EventKind`
    events: IntArray  #: events that the node stands for


def merged_tree(
    work: GpuEvents, *, op: Expression | None = None, merge: bool = True
) -> MergedTree:
    """Return the call tree with GPU time.

    Args:
        work: the GPU events.
        op: a regular expression, searched in the names of host events: only the outermost events
            that it matches, as roots, and what is below them. Without it every thread that launches
            is a root when there are several, and GPU events without a launch in the trace are below
            a root `(unlinked)`.
        merge: whether siblings of one name are one node, `ProfilerStep#N` being one name.
    """
    trace = work.trace
    chosen = _chosen_events(work, user_pattern(op, "op"))
    threads = _shown_threads(work, chosen) if op is None else []
    thread_labels = [_thread_label(work, thread) for thread in threads]
    # After the names of the trace come one for any step, those of threads, and that of unlinked.
    any_step = len(trace.names)
    names = list(trace.names)
    names.append(_ANY_STEP)
    names.extend(thread_labels)
    names.append(UNLINKED)
    shown_name = np.arange(len(trace.names))
    if merge:
        steps = [code for code, name in enumerate(trace.names) if _STEP.fullmatch(name)]
        if len(steps) > 1:
            shown_name[steps] = any_step
    parts = [
        _thread_nodes(threads, any_step + 1),
        _host_nodes(work=work, chosen=chosen, threads=threads, shown_name=shown_name),
        _unlinked_nodes(work, len(names) - 1) if op is None else _no_nodes(),
        _gpu_nodes(work=work, chosen=chosen, threads=threads, shown_name=shown_name),
    ]
    nodes = _joined_nodes(parts)
    is_gpu = np.arange(len(nodes.parent)) >= len(nodes.parent) - len(chosen.gpu)
    key = np.arange(len(nodes.parent))
    if merge:
        key = (is_gpu * len(names) + nodes.name) * len(EventKind) + nodes.kind
    paths = find_paths(nodes.parent.astype(np.int32), key)
    node_of_gpu = np.full(len(work), NONE, dtype=np.int64)
    node_of_gpu[chosen.gpu] = paths.of_node[is_gpu]
    return _tree(
        work=work, paths=paths, names=names, path_of_gpu=node_of_gpu, nodes=nodes
    )


def _shown_threads(work: GpuEvents, chosen: _Chosen) -> list[int]:
    """Return the threads that launch, if there are several."""
    trace = work.trace
    threads: list[int] = np.unique(trace.thread[work.tree.rows[chosen.host]]).tolist()
    return threads if len(threads) > 1 else []


def _thread_nodes(threads: list[int], first_name: int) -> _Nodes:
    return _headings(first_name, [1] * len(threads))


def _unlinked_nodes(work: GpuEvents, name: int) -> _Nodes:
    """Return the root of the GPU events that have no launch in the trace, if there are some."""
    unlinked_count = len(work) - int(work.tree.linked.sum())
    return _headings(name, [unlinked_count] if unlinked_count else [])


def _no_nodes() -> _Nodes:
    return _headings(0, [])


def _headings(first_name: int, counts: list[int]) -> _Nodes:
    """Return roots that are not events; they have successive names."""
    name = np.arange(first_name, first_name + len(counts))
    return _Nodes(
        parent=np.full_like(name, ROOT),
        name=name,
        kind=np.full_like(name, EventKind.OTHER),
        events=np.array(counts, dtype=np.int64),
    )


def _node_of_position(
    work: GpuEvents, chosen: _Chosen, threads: list[int]
) -> Int64Array:
    """Return the node of each position of the tree, `ROOT` for one that is not shown.

    Nodes of host events come after those of threads.
    """
    node = np.full(len(work.tree.rows), ROOT, dtype=np.int64)
    node[chosen.host] = len(threads) + np.arange(len(chosen.host))
    return node


def _host_nodes(
    work: GpuEvents, chosen: _Chosen, threads: list[int], shown_name: Int64Array
) -> _Nodes:
    """Return the nodes of the host events, below each other and below their threads."""
    tree = work.tree
    trace = work.trace
    rows = tree.rows[chosen.host]
    node = _node_of_position(work, chosen, threads)
    above = values_at(node, tree.parent_position[chosen.host], missing=ROOT)
    node_of_thread = np.full(len(trace.threads), ROOT, dtype=np.int64)
    node_of_thread[threads] = np.arange(len(threads))
    return _Nodes(
        parent=np.where(above == ROOT, node_of_thread[trace.thread[rows]], above),
        name=shown_name[trace.name[rows]],
        kind=trace.kind[rows],
        events=np.ones_like(rows),
    )


def _gpu_nodes(
    work: GpuEvents, chosen: _Chosen, threads: list[int], shown_name: Int64Array
) -> _Nodes:
    """Return the nodes of the GPU events, below their launches, or below `(unlinked)`."""
    tree = work.tree
    node = _node_of_position(work, chosen, threads)
    launch = values_at(node, tree.launch_position_of_gpu[chosen.gpu], missing=ROOT)
    unlinked_node = len(threads) + len(chosen.host)
    return _Nodes(
        parent=np.where(tree.linked[chosen.gpu], launch, unlinked_node),
        name=shown_name[work.name[chosen.gpu]],
        kind=work.kind[chosen.gpu],
        events=np.ones_like(chosen.gpu),
    )


def _joined_nodes(parts: list[_Nodes]) -> _Nodes:
    return _Nodes(
        parent=np.concatenate([part.parent for part in parts]).astype(np.int64),
        name=np.concatenate([part.name for part in parts]).astype(np.int64),
        kind=np.concatenate([part.kind for part in parts]).astype(np.int64),
        events=np.concatenate([part.events for part in parts]).astype(np.int64),
    )


def _chosen_events(work: GpuEvents, op: UserPattern | None) -> _Chosen:
    """Return the host events that have GPU work below them, and GPU events; at or below `op`."""
    tree = work.tree
    launch = tree.launch_position_of_gpu
    linked = np.flatnonzero(tree.linked)
    gpu_events_of_position = np.bincount(launch[linked], minlength=len(tree.rows))
    gpu_events_before = np.append(0, np.cumsum(gpu_events_of_position))
    has_gpu_work = gpu_events_before[tree.subtree_end] > gpu_events_before[:-1]
    if op is None:
        all_gpu_events = np.arange(len(work))
        return _Chosen(host=np.flatnonzero(has_gpu_work), gpu=all_gpu_events)
    is_matching_name = work.trace.names_matching(op.search)
    matches = is_matching_name[work.trace.name[tree.rows]]
    is_below = nearest_marked(tree.parent_position, matches) != ROOT
    is_shown = has_gpu_work & (matches | is_below)
    is_launch_shown = is_shown[launch[linked]]
    shown_gpu = linked[is_launch_shown]
    return _Chosen(host=np.flatnonzero(is_shown), gpu=shown_gpu)


def _tree(
    work: GpuEvents,
    paths: CallPaths,
    names: list[str],
    path_of_gpu: Int64Array,
    nodes: _Nodes,
) -> MergedTree:
    """Return the merged nodes with their times, in the order in which they are shown.

    Args:
        work: the GPU events.
        paths: which nodes are one node of the tree, k of them.
        names: what nodes are called.
        path_of_gpu: the merged node of each GPU event, `NONE` for none, (g,).
        nodes: the nodes before they were merged.
    """
    node_count = len(paths)
    example = np.zeros(node_count, dtype=np.int64)
    example[paths.of_node] = np.arange(len(nodes.parent))
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    is_shown = path_of_gpu != NONE
    path_of_shown = path_of_gpu[is_shown]
    own_events = np.bincount(path_of_shown, minlength=node_count)
    busy_ns = BusyTime(start=work.start, end=work.end).by_subtree(parent, path_of_gpu)
    # Each node is followed by all below it, longest sibling first.
    size = summed_up(parent, depth, np.ones(node_count, dtype=np.int64))
    siblings = np.lexsort((np.arange(node_count), -busy_ns, parent))
    place = preorder(parent, size, siblings)
    order = inverse_permutation(place)
    return MergedTree(
        parent=values_at(place, parent[order], missing=ROOT).astype(np.int32),
        depth=depth[order],
        name=nodes.name[example][order],
        names=names,
        kind=nodes.kind[example].astype(np.uint8)[order],
        count=sums(
            group_index=paths.of_node, values=nodes.events, group_count=node_count
        )[order],
        gpu_events=summed_up(parent, depth, own_events)[order],
        busy_ns=busy_ns[order],
        self_ns=sums(path_of_shown, work.duration[is_shown], node_count)[order],
        total_ns=union_length(work.start, work.end),
    )


def _thread_label(work: GpuEvents, thread: int) -> str:
    """Return the name of a thread, and of its process where there are several."""
    trace = work.trace
    process, number = trace.threads[thread]
    name = trace.thread_names.get((process, number), f"thread {number}")
    processes = {process for process, _ in trace.threads}
    if len(processes) == 1:
        return name
    process_name = trace.process_names.get(process, "process")
    if process_name == process:
        return f"{name}, {process_name}"
    return f"{name}, {process_name} {process}"


def folded_stacks(
    tree: MergedTree, *, depth: int | None = None, min_percent: float = 0.0
) -> Iterator[str]:
    """Yield the tree as folded stacks, a line each: `outermost;…;innermost 1234`.

    The value is the summed duration of GPU events in ns, so the values of all lines add up to that
    of the tree (overlaps on the GPU count as often as they are). `;` in names becomes `:`, line
    ends become blanks, and a number at the end of a name is joined to it by `_`. The time of what
    is deeper than `depth` levels, or has a smaller share than `min_percent`, goes to the last level
    that is kept.
    """
    keep = tree.kept(depth, min_percent)
    kept_above = nearest_marked(tree.parent, keep)
    target = np.where(keep, np.arange(len(tree)), kept_above)
    has_target = target != ROOT
    values = sums(
        group_index=target[has_target],
        values=tree.self_ns[has_target],
        group_count=len(tree),
    )
    remaining = int(tree.self_ns[~has_target].sum())
    # to the node, which its descendants follow: one path is in memory
    path: list[str] = []
    for node in np.flatnonzero(keep).tolist():
        name = tree.label(node).translate(_SEPARATORS).strip()
        name = _NUMBER_AT_END.sub(r"_\1", name)
        path[int(tree.depth[node]) :] = [name or NO_NAME]
        value = int(values[node])
        if value:
            yield f"{';'.join(path)} {value}"
    if remaining:
        yield f"{_OTHER} {remaining}"
