"""CPU activity while the GPU waited for the CPU, as a tree of calls: a flame graph of idle time.

Idle time whose cause is the CPU (`Cause.HOST`) is divided among the call stacks of the launching
thread, which consist of annotations, Python frames, operations and API calls. The times of the tree
add up to the idle time of this cause over all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    event_labels,
    innermost_segments,
    nested_events,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Float64Array,
    Int32Array,
    Int64Array,
)
from tracelens_ext.trace.call_paths import find_paths
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import inverse_permutation, sums
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, depths, preorder, summed_up

_KINDS: Final = (
    EventKind.CPU_OP,
    EventKind.USER_ANNOTATION,
    EventKind.PYTHON_FUNCTION,
    *LAUNCH_KINDS,
)
_KIND_LABELS: Final = {
    EventKind.CPU_OP: "operation",
    EventKind.USER_ANNOTATION: "annotation",
    EventKind.PYTHON_FUNCTION: "python",
    **dict.fromkeys(LAUNCH_KINDS, "call"),
}
_NO_EVENT: Final = "(nothing recorded)"
#: All steps of the profiler share a node with this label.
_ANY_STEP: Final = "ProfilerStep#*"
_STEP_PREFIX: Final = "ProfilerStep#"
_MAX_NODES: Final = 1000
#: Replaces the characters that separate labels and stacks in the folded format.
_FOLDED_LABEL: Final = str.maketrans({";": ":", "\n": " ", "\r": " "})


@dataclass(frozen=True, eq=False)
class IdleStacks:
    """A tree of n CPU events during idle time, parents before children.

    Attributes:
        parent: the parent of each node, `ROOT` at the top, (n,).
        depth: the number of nodes above each node, (n,).
        labels: the name of each node.
        kinds: the kind of each node: `operation`, `annotation`, `python` or `call`.
        self_ns: idle time during which the node was the innermost event, ns, (n,).
        idle_ns: idle time during the node and the nodes below it, ns, (n,).
    """

    parent: Int32Array
    depth: Int32Array
    labels: list[str]
    kinds: list[str]
    self_ns: Int64Array
    idle_ns: Int64Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def total_ns(self) -> int:
        """The idle time whose cause is the CPU, over all devices, ns."""
        return int(self.self_ns.sum())

    def percent(self) -> Float64Array:
        """Return the share of each node in `total_ns`, 0 to 100, (n,)."""
        return 100.0 * self.idle_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Tell which nodes are shown with these limits, (n,).

        Args:
            depth: the number of levels to show, 1 for the roots only; None for all.
            min_percent: the least share of a node that is shown, percent.
        """
        is_shown: BoolArray = self.percent() >= min_percent
        if depth is not None:
            is_shown &= self.depth < depth
        return is_shown

    def folded(self) -> Iterator[str]:
        """Yield `a;b;c NANOSECONDS` for each stack whose last node has time of its own."""
        # Nodes are in tree order, so the path to a node shares its beginning with the path before.
        path: list[str] = []
        columns = zip(
            self.depth.tolist(), self.labels, self.self_ns.tolist(), strict=True
        )
        for depth, label, self_ns in columns:
            path[depth:] = [label.translate(_FOLDED_LABEL)]
            if self_ns:
                yield f"{';'.join(path)} {self_ns}"


def idle_stacks(gpu_events: GpuEvents) -> IdleStacks:
    """Return the call stacks of the launching threads while the GPU waited for them."""
    trace = gpu_events.trace
    idle = _idle_of_cpu(gpu_events)
    segments = innermost_segments(trace, _KINDS, idle)
    overlap = segments.during(idle.thread, idle.start, idle.end)
    unrecorded_ns = idle.end - idle.start - overlap.of_interval
    rows, parent = nested_events(trace, _events_of_threads(gpu_events, segments.row))
    # Idle time of each event, as the innermost one: the positions of events by row are looked up.
    by_row = np.argsort(rows, kind="stable")
    position = by_row[np.searchsorted(rows[by_row], segments.row)]
    self_of_event = sums(
        group_index=position, values=overlap.of_segment, group_count=len(rows)
    )
    # Events with equal labels on their paths are one node.
    code, labels = _labels(gpu_events, rows)
    paths = find_paths(parent.astype(np.int32), code)
    self_of_path = sums(
        group_index=paths.of_node, values=self_of_event, group_count=len(paths)
    )
    example = np.zeros(len(paths), dtype=np.int64)
    example[paths.of_node] = np.arange(len(rows))
    kinds = [
        _KIND_LABELS[EventKind(kind)] for kind in trace.kind[rows[example]].tolist()
    ]
    path_labels = [labels[label] for label in code[example].tolist()]
    nodes = _UnsortedNodes(
        parent=paths.parent.astype(np.int32),
        labels=path_labels,
        kinds=kinds,
        self_ns=self_of_path,
    )
    return _in_tree_order(_with_unrecorded_time(nodes, int(unrecorded_ns.sum())))


@dataclass(frozen=True, eq=False)
class _UnsortedNodes:
    """The nodes before they are put in tree order; shorter paths come first."""

    parent: Int32Array
    labels: list[str]
    kinds: list[str]
    self_ns: Int64Array


def _idle_of_cpu(gpu_events: GpuEvents) -> HostIntervals:
    """Return the idle time of devices whose cause is the CPU, with the launching threads."""
    classified = classify_gaps(gpu_events, "device")
    intervals = classified.within
    intervals = intervals.chosen(intervals.cause == Cause.HOST.code)
    launch = classified.launch[intervals.gap]
    return HostIntervals(
        thread=values_at(gpu_events.trace.thread, launch),
        start=intervals.start,
        end=intervals.end,
    )


def _events_of_threads(gpu_events: GpuEvents, innermost: Int64Array) -> Int64Array:
    """Return all host events on the threads of the given events, which may enclose these."""
    trace = gpu_events.trace
    rows = trace.rows_of(*_KINDS)
    threads = np.unique(trace.thread[innermost])
    return rows[np.isin(trace.thread[rows], threads)]


def _labels(
    gpu_events: GpuEvents, rows: Int64Array
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the label of each host event as a code, and the labels; all steps share a label."""
    name_code, names = event_labels(gpu_events.trace, rows)
    labels = [_ANY_STEP if name.startswith(_STEP_PREFIX) else name for name in names]
    code_of_label = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([code_of_label[label] for label in labels], dtype=np.int64)
    return values_at(codes, name_code), list(code_of_label)


def _with_unrecorded_time(nodes: _UnsortedNodes, unrecorded_ns: int) -> _UnsortedNodes:
    """Return the nodes with one more for idle time during which no CPU event was recorded."""
    if not unrecorded_ns:
        return nodes
    return _UnsortedNodes(
        parent=np.append(nodes.parent, np.int32(ROOT)),
        labels=nodes.labels + [_NO_EVENT],
        kinds=nodes.kinds + [""],
        self_ns=np.append(nodes.self_ns, unrecorded_ns),
    )


def _in_tree_order(nodes: _UnsortedNodes) -> IdleStacks:
    """Return the nodes with idle time in tree order, longest sibling first."""
    idle_of_node = summed_up(nodes.parent, depths(nodes.parent), nodes.self_ns)
    has_time = np.flatnonzero(idle_of_node > 0)
    count = len(has_time)
    new_index = np.full(len(idle_of_node), ROOT, dtype=np.int32)
    new_index[has_time] = np.arange(count)
    parent = values_at(new_index, nodes.parent[has_time], missing=ROOT)
    idle_ns = idle_of_node[has_time]
    depth = depths(parent)
    subtree_size = summed_up(parent, depth, np.ones(count, dtype=np.int64))
    by_parent_and_time = np.lexsort((np.arange(count), -idle_ns, parent))
    place = preorder(parent, subtree_size, by_parent_and_time)
    order = inverse_permutation(place)
    ordered_nodes = has_time[order]
    return IdleStacks(
        parent=values_at(place, parent[order], missing=ROOT).astype(np.int32),
        depth=depth[order],
        labels=[nodes.labels[node] for node in ordered_nodes.tolist()],
        kinds=[nodes.kinds[node] for node in ordered_nodes.tolist()],
        self_ns=nodes.self_ns[ordered_nodes],
        idle_ns=idle_ns[order],
    )


def idle_call_tree(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the largest nodes of the tree of CPU activity during idle time, a row per node."""
    stacks = idle_stacks(gpu_events)
    # A parent is at least as long as its children, so it is among the largest nodes, too.
    shown = np.sort(np.argsort(-stacks.idle_ns, kind="stable")[:_MAX_NODES])
    shown_index = np.full(len(stacks), NONE, dtype=np.int64)
    shown_index[shown] = np.arange(len(shown))
    return pd.DataFrame(
        {
            "node": np.arange(len(shown)),
            "parent": values_at(shown_index, stacks.parent[shown], missing=NONE),
            "label": pd.array([stacks.labels[node] for node in shown], dtype="str"),
            "kind": pd.array([stacks.kinds[node] for node in shown], dtype="str"),
            "idle_time_ns": stacks.idle_ns[shown],
            "self_time_ns": stacks.self_ns[shown],
        }
    )


IDLE_CALL_TREE = Table(
    name="idle_call_tree",
    description="What the CPU did while the GPU waited for it",
    columns=[
        Column("node", "number of the node, from 0"),
        Column("parent", "number of the node above; -1 for a root"),
        Column(
            "label",
            "name of the annotation, Python frame, operation or API call; "
            "`(nothing recorded)` for time without any",
        ),
        Column(
            "kind",
            "kind of the node: `annotation`, `python`, `operation` or `call`; "
            "empty if nothing was recorded",
        ),
        Column(
            "idle_time_ns", "idle time of all devices at the node and below", unit="ns"
        ),
        Column(
            "self_time_ns",
            "part of the idle time during which the node was the innermost event",
            unit="ns",
        ),
    ],
    build=of_gpu_events(idle_call_tree),
    enabled_by="call_tree",
    analyzer_call='table("idle_call_tree")',
    on_every_page=True,
    charts=[
        Chart(
            title="What the CPU did while the GPU waited for it",
            sheet="idle_call_tree",
            label_column="label",
            value_column="idle_time_ns",
            kind="idle_call_tree",
        )
    ],
)
