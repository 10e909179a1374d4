"""The call tree with GPU time, in which siblings with the same name are merged.

The leaves are GPU events, below the calls that launched them. Events that launched nothing are left
out. The time of a node is the busy time of the GPU events at and below it. Children whose GPU
events overlap may therefore add up to more than their parent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.categorize.user_patterns import Expression, UserPattern, user_pattern
from tracelens_ext.trace import (
    NONE,
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
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import inverse_permutation, sums
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


@dataclass(frozen=True, eq=False)
class MergedTree:
    """A call tree with GPU time, whose k nodes stand for one or several events each.

    Parents come before their children, and the longest of several siblings comes first.

    Attributes:
        parent: index of the parent of each node, `ROOT` for a node without one, (k,).
        depth: number of ancestors of each node, (k,).
        name: index of the name of each node in `names`, (k,).
        names: the names.
        kind: the `EventKind` of each node; `OTHER` for a thread and for `(unlinked)`, (k,).
        count: number of events that each node stands for, (k,).
        gpu_events: number of GPU events at and below each node, (k,).
        busy_ns: busy time of the GPU events at and below each node, ns, (k,).
        self_ns: summed durations of the GPU events that a node stands for; 0 for all other nodes,
            ns, (k,).
        total_ns: busy time of all GPU events of the trace, ns.
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
        """Return the name of a node."""
        return self.names[int(self.name[node])]

    def percent(self) -> Float64Array:
        """Return the busy time of each node as a percentage of that of the trace, (k,)."""
        return 100.0 * self.busy_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Return a mask of the nodes to show, (k,).

        Args:
            depth: number of levels to show, 1 for the roots only; all levels by default.
            min_percent: nodes with a smaller share of the GPU's busy time are not shown.
        """
        keep: BoolArray = self.percent() >= min_percent
        if depth is not None:
            keep &= self.depth < depth
        return keep


class _Chosen(NamedTuple):
    """The events that nodes of the tree stand for."""

    host: Int64Array  #: positions of host events in the call tree, ascending
    gpu: Int64Array  #: indices of GPU events, ascending


class _Nodes(NamedTuple):
    """Nodes before equal siblings are merged, n of them."""

    parent: Int64Array  #: index of the parent of each node, `ROOT` for a node without one, (n,)
    name: Int64Array  #: index of the name of each node in the names of the tree, (n,)
    kind: IntArray  #: the `EventKind` of each node, (n,)
    events: IntArray  #: number of events that each node stands for, (n,)


def merged_tree(
    gpu_events: GpuEvents, *, op: Expression | None = None, merge: bool = True
) -> MergedTree:
    """Return the call tree with GPU time.

    Args:
        gpu_events: the GPU events.
        op: a regular expression that is searched in the names of host events. The tree then
            consists of the outermost events with a match, as roots, and of all events below them.
            Without it, each thread that launches is a root if there are several, and GPU events
            without a launch in the trace are below a root `(unlinked)`.
        merge: whether siblings with the same name become one node. All `ProfilerStep#N` count as
            the same name.
    """
    trace = gpu_events.trace
    chosen = _chosen_events(gpu_events, user_pattern(op, "op"))
    threads = _shown_threads(gpu_events, chosen) if op is None else []
    thread_labels = [_thread_label(gpu_events, thread) for thread in threads]
    # The names of the trace are followed by a name for any step, the names of threads, and that of
    # the root of unlinked GPU events.
    any_step = len(trace.names)
    names = trace.names + [_ANY_STEP] + thread_labels + [UNLINKED]
    shown_name = np.arange(len(trace.names))
    if merge:
        shown_name = _with_steps_merged(trace.names, any_step)
    parts = [
        _thread_nodes(threads, any_step + 1),
        _host_nodes(
            gpu_events=gpu_events, chosen=chosen, threads=threads, shown_name=shown_name
        ),
        _unlinked_nodes(gpu_events, len(names) - 1) if op is None else _no_nodes(),
        _gpu_nodes(
            gpu_events=gpu_events, chosen=chosen, threads=threads, shown_name=shown_name
        ),
    ]
    nodes = _joined_nodes(parts)
    node_count = len(nodes.parent)
    is_gpu = np.arange(node_count) >= node_count - len(chosen.gpu)
    # Siblings with the same key become one node. Without merging, each node has a key of its own.
    key = np.arange(node_count)
    if merge:
        key = (is_gpu * len(names) + nodes.name) * len(EventKind) + nodes.kind
    paths = find_paths(nodes.parent.astype(np.int32), key)
    node_of_gpu = np.full(len(gpu_events), NONE, dtype=np.int64)
    node_of_gpu[chosen.gpu] = paths.of_node[is_gpu]
    return _tree_in_shown_order(
        gpu_events=gpu_events,
        paths=paths,
        names=names,
        path_of_gpu=node_of_gpu,
        nodes=nodes,
    )


def _with_steps_merged(names: list[str], any_step: int) -> Int64Array:
    """Return the index of the name to show for each name: `any_step` for several steps, (names,).

    The name of a single step is shown as it is.
    """
    shown_name = np.arange(len(names))
    steps = [code for code, name in enumerate(names) if _STEP.fullmatch(name)]
    if len(steps) > 1:
        shown_name[steps] = any_step
    return shown_name


def _shown_threads(gpu_events: GpuEvents, chosen: _Chosen) -> list[int]:
    """Return the threads that launch GPU work, or none if there is only one."""
    trace = gpu_events.trace
    threads: list[int] = np.unique(
        trace.thread[gpu_events.tree.rows[chosen.host]]
    ).tolist()
    return threads if len(threads) > 1 else []


def _thread_nodes(threads: list[int], first_name: int) -> _Nodes:
    """Return a root for each thread; `first_name` is the index of the first thread's name."""
    return _headings(first_name, [1] * len(threads))


def _unlinked_nodes(gpu_events: GpuEvents, name: int) -> _Nodes:
    """Return the root of GPU events without a launch in the trace, if there are such events."""
    unlinked_count = len(gpu_events) - int(gpu_events.tree.linked.sum())
    return _headings(name, [unlinked_count] if unlinked_count else [])


def _no_nodes() -> _Nodes:
    return _headings(0, [])


def _headings(first_name: int, counts: list[int]) -> _Nodes:
    """Return roots that are not events themselves.

    Args:
        first_name: index of the name of the first root; the others have the next indices.
        counts: the number of events that each root stands for.
    """
    name = np.arange(first_name, first_name + len(counts))
    return _Nodes(
        parent=np.full_like(name, ROOT),
        name=name,
        kind=np.full_like(name, EventKind.OTHER),
        events=np.array(counts, dtype=np.int64),
    )


def _node_of_position(
    gpu_events: GpuEvents, chosen: _Chosen, threads: list[int]
) -> Int64Array:
    """Return the node of each position of the call tree, `ROOT` for a position without one.

    The nodes of host events come after those of threads.
    """
    node = np.full(len(gpu_events.tree.rows), ROOT, dtype=np.int64)
    node[chosen.host] = len(threads) + np.arange(len(chosen.host))
    return node


def _host_nodes(
    gpu_events: GpuEvents, chosen: _Chosen, threads: list[int], shown_name: Int64Array
) -> _Nodes:
    """Return the nodes of host events, which are below other host events or below their thread."""
    tree = gpu_events.tree
    trace = gpu_events.trace
    rows = tree.rows[chosen.host]
    node = _node_of_position(gpu_events, chosen, threads)
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
    gpu_events: GpuEvents, chosen: _Chosen, threads: list[int], shown_name: Int64Array
) -> _Nodes:
    """Return the nodes of GPU events, which are below their launches or below `(unlinked)`."""
    tree = gpu_events.tree
    node = _node_of_position(gpu_events, chosen, threads)
    launch = values_at(node, tree.launch_position_of_gpu[chosen.gpu], missing=ROOT)
    unlinked_node = len(threads) + len(chosen.host)
    return _Nodes(
        parent=np.where(tree.linked[chosen.gpu], launch, unlinked_node),
        name=shown_name[gpu_events.name[chosen.gpu]],
        kind=gpu_events.kind[chosen.gpu],
        events=np.ones_like(chosen.gpu),
    )


def _joined_nodes(parts: list[_Nodes]) -> _Nodes:
    return _Nodes(
        parent=np.concatenate([part.parent for part in parts]).astype(np.int64),
        name=np.concatenate([part.name for part in parts]).astype(np.int64),
        kind=np.concatenate([part.kind for part in parts]).astype(np.int64),
        events=np.concatenate([part.events for part in parts]).astype(np.int64),
    )


def _chosen_events(gpu_events: GpuEvents, op: UserPattern | None) -> _Chosen:
    """Return the host events with GPU work below them, and the GPU events.

    With a pattern, only events at or below a host event whose name it matches are returned.
    """
    tree = gpu_events.tree
    launch = tree.launch_position_of_gpu
    linked = np.flatnonzero(tree.linked)
    gpu_events_of_position = np.bincount(launch[linked], minlength=len(tree.rows))
    # Positions below an event are contiguous, so a difference of running counts is their sum.
    gpu_events_before = np.append(0, np.cumsum(gpu_events_of_position))
    has_gpu_work = gpu_events_before[tree.subtree_end] > gpu_events_before[:-1]
    if op is None:
        all_gpu_events = np.arange(len(gpu_events))
        return _Chosen(host=np.flatnonzero(has_gpu_work), gpu=all_gpu_events)
    is_matching_name = gpu_events.trace.names_matching(op.search)
    matches = is_matching_name[gpu_events.trace.name[tree.rows]]
    is_below = nearest_marked(tree.parent_position, matches) != ROOT
    is_shown = has_gpu_work & (matches | is_below)
    is_launch_shown = is_shown[launch[linked]]
    shown_gpu = linked[is_launch_shown]
    return _Chosen(host=np.flatnonzero(is_shown), gpu=shown_gpu)


def _tree_in_shown_order(
    gpu_events: GpuEvents,
    paths: CallPaths,
    names: list[str],
    path_of_gpu: Int64Array,
    nodes: _Nodes,
) -> MergedTree:
    """Return the merged nodes with their times, in the order in which they are shown.

    Args:
        gpu_events: the GPU events.
        paths: the k merged nodes, and which of them each node before merging belongs to.
        names: the names.
        path_of_gpu: index of the merged node of each GPU event, `NONE` for an event without one,
            (g,).
        nodes: the nodes before merging.
    """
    node_count = len(paths)
    # One of the nodes that were merged; they have the same name and kind.
    example = np.zeros(node_count, dtype=np.int64)
    example[paths.of_node] = np.arange(len(nodes.parent))
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    is_shown = path_of_gpu != NONE
    path_of_shown = path_of_gpu[is_shown]
    own_events = np.bincount(path_of_shown, minlength=node_count)
    busy_ns = BusyTime(start=gpu_events.start, end=gpu_events.end).by_subtree(
        parent, path_of_gpu
    )
    new_index = _shown_index(parent, depth, busy_ns)
    order = inverse_permutation(new_index)
    return MergedTree(
        parent=values_at(new_index, parent[order], missing=ROOT).astype(np.int32),
        depth=depth[order],
        name=nodes.name[example][order],
        names=names,
        kind=nodes.kind[example].astype(np.uint8)[order],
        count=sums(
            group_index=paths.of_node, values=nodes.events, group_count=node_count
        )[order],
        gpu_events=summed_up(parent, depth, own_events)[order],
        busy_ns=busy_ns[order],
        self_ns=sums(path_of_shown, gpu_events.duration[is_shown], node_count)[order],
        total_ns=union_length(gpu_events.start, gpu_events.end),
    )


def _shown_index(
    parent: Int32Array, depth: Int32Array, busy_ns: Int64Array
) -> Int64Array:
    """Return the place of each of k nodes in the order in which nodes are shown, (k,).

    Each node is followed by all nodes below it, the longest of several siblings first.
    """
    node_count = len(parent)
    subtree_size = summed_up(parent, depth, np.ones(node_count, dtype=np.int64))
    siblings = np.lexsort((np.arange(node_count), -busy_ns, parent))
    return preorder(parent, subtree_size, siblings)


def _thread_label(gpu_events: GpuEvents, thread: int) -> str:
    """Return the name of a thread, with its process if the trace has several processes."""
    trace = gpu_events.trace
    process, number = trace.threads[thread]
    name = trace.thread_names.get((process, number), f"thread {number}")
    processes = {process for process, _ in trace.threads}
    if len(processes) == 1:
        return name
    process_name = trace.process_names.get(process, "process")
    if process_name == process:
        return f"{name}, {process_name}"
    return f"{name}, {process_name} {process}"
