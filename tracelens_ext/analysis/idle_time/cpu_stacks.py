"""What the CPU did while the GPU waited for it, as a tree of calls: a flame graph of idle time.

Idle time whose cause is the CPU (`Cause.HOST`) is divided over the stacks of the launching thread:
annotations, Python frames, operations and API calls, one below the other. The times of the tree sum
to what `gaps` gives to the CPU, over all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.causes import Cause, classify_gaps
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
_ANY_STEP: Final = "ProfilerStep#*"
_STEP: Final = "ProfilerStep#"
_MOST_NODES: Final = 1000
_SEPARATORS: Final = str.maketrans({";": ":", "\n": " ", "\r": " "})


@dataclass(frozen=True, eq=False)
class IdleStacks:
    """What the CPU was in during idle time, n nodes, parents before children.

    Attributes:
        parent: the node above each, `ROOT` at the top, (n,).
        depth: how many nodes are above it, (n,).
        labels: what nodes are called, n of them.
        kinds: what they are, n of them.
        self_ns: idle time of which a node was the innermost event, ns, (n,).
        idle_ns: idle time in a node and below it, ns, (n,).
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
        """All idle time that waits for the CPU, over all devices, ns."""
        return int(self.self_ns.sum())

    def percent(self) -> Float64Array:
        """Return the share of each node in all of that time, 0 to 100, (n,)."""
        return 100.0 * self.idle_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Return which nodes are shown, (n,).

        Args:
            depth: levels that are shown, 1 for the roots alone; all by default.
            min_percent: the least share that is shown.
        """
        keep: BoolArray = self.percent() >= min_percent
        if depth is not None:
            keep &= self.depth < depth
        return keep

    def folded(self) -> Iterator[str]:
        """Yield `a;b;c NANOSECONDS` for each stack that has time of its own."""
        # Each node follows the one above it, so one path is in memory at a time.
        path: list[str] = []
        columns = zip(
            self.depth.tolist(), self.labels, self.self_ns.tolist(), strict=True
        )
        for depth, label, self_ns in columns:
            path[depth:] = [label.translate(_SEPARATORS)]
            if self_ns:
                yield f"{';'.join(path)} {self_ns}"


def idle_stacks(work: GpuEvents) -> IdleStacks:
    """Return what the launching threads did while the GPU waited for them."""
    trace = work.trace
    idle = _idle_of_cpu(work)
    segments = innermost_segments(trace, _KINDS, idle)
    overlap = segments.during(idle.thread, idle.start, idle.end)
    outside_ns = idle.end - idle.start - overlap.of_interval
    rows, parent = nested_events(trace, _rows_around(work, segments.row))
    order = np.argsort(rows, kind="stable")
    position = order[np.searchsorted(rows[order], segments.row)]
    self_of_row = sums(
        group_index=position, values=overlap.of_segment, group_count=len(rows)
    )
    code, labels = _labels(work, rows)
    paths = find_paths(parent.astype(np.int32), code)
    self_of_path = sums(
        group_index=paths.of_node, values=self_of_row, group_count=len(paths)
    )
    example = np.zeros(len(paths), dtype=np.int64)
    example[paths.of_node] = np.arange(len(rows))
    kinds = [
        _KIND_LABELS[EventKind(kind)] for kind in trace.kind[rows[example]].tolist()
    ]
    path_labels = [labels[number] for number in code[example].tolist()]
    stacks = _Paths(
        parent=paths.parent.astype(np.int32),
        labels=path_labels,
        kinds=kinds,
        self_ns=self_of_path,
    )
    return _in_order(_with_rest(stacks, int(outside_ns.sum())))


@dataclass(frozen=True, eq=False)
class _Paths:
    """Nodes before they are put in order, shorter paths first."""

    parent: Int32Array
    labels: list[str]
    kinds: list[str]
    self_ns: Int64Array


def _idle_of_cpu(work: GpuEvents) -> HostIntervals:
    """Return the idle time of devices that waits for the CPU, with the launching threads."""
    classified = classify_gaps(work, "device")
    intervals = classified.within
    intervals = intervals.chosen(intervals.cause == Cause.HOST.code)
    launch = classified.launch[intervals.gap]
    return HostIntervals(
        thread=values_at(work.trace.thread, launch),
        start=intervals.start,
        end=intervals.end,
    )


def _rows_around(work: GpuEvents, innermost: Int64Array) -> Int64Array:
    """Return some host events and all that may enclose them: the others of their threads."""
    trace = work.trace
    rows = trace.rows_of(*_KINDS)
    threads = np.unique(trace.thread[innermost])
    return rows[np.isin(trace.thread[rows], threads)]


def _labels(
    work: GpuEvents, rows: Int64Array
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the label of each host event as a code, and the labels; all steps have one."""
    code, labels = event_labels(work.trace, rows)
    shown = [_ANY_STEP if label.startswith(_STEP) else label for label in labels]
    distinct = {label: number for number, label in enumerate(dict.fromkeys(shown))}
    number_of_code = np.array([distinct[label] for label in shown], dtype=np.int64)
    return values_at(number_of_code, code), list(distinct)


def _with_rest(paths: _Paths, rest_ns: int) -> _Paths:
    """Return the nodes with one more for idle time in which nothing was recorded."""
    if not rest_ns:
        return paths
    return _Paths(
        parent=np.append(paths.parent, np.int32(ROOT)),
        labels=paths.labels + [_NO_EVENT],
        kinds=paths.kinds + [""],
        self_ns=np.append(paths.self_ns, rest_ns),
    )


def _in_order(paths: _Paths) -> IdleStacks:
    """Return the nodes that have time, parents before children, longest sibling first."""
    idle_of_path = summed_up(paths.parent, depths(paths.parent), paths.self_ns)
    has_time = np.flatnonzero(idle_of_path > 0)
    count = len(has_time)
    new_number = np.full(len(idle_of_path), ROOT, dtype=np.int32)
    new_number[has_time] = np.arange(count)
    parent = values_at(new_number, paths.parent[has_time], missing=ROOT)
    idle_ns = idle_of_path[has_time]
    depth = depths(parent)
    size = summed_up(parent, depth, np.ones(count, dtype=np.int64))
    siblings = np.lexsort((np.arange(count), -idle_ns, parent))
    place = preorder(parent, size, siblings)
    order = inverse_permutation(place)
    chosen = has_time[order]
    return IdleStacks(
        parent=values_at(place, parent[order], missing=ROOT).astype(np.int32),
        depth=depth[order],
        labels=[paths.labels[number] for number in chosen.tolist()],
        kinds=[paths.kinds[number] for number in chosen.tolist()],
        self_ns=paths.self_ns[chosen],
        idle_ns=idle_ns[order],
    )


def idle_call_tree(work: GpuEvents) -> pd.DataFrame:
    """What the CPU did while the GPU waited for it; the largest nodes, a row each."""
    stacks = idle_stacks(work)
    shown = np.sort(np.argsort(-stacks.idle_ns, kind="stable")[:_MOST_NODES])
    number = np.full(len(stacks), NONE, dtype=np.int64)
    number[shown] = np.arange(len(shown))
    return pd.DataFrame(
        {
            "node": np.arange(len(shown)),
            "parent": values_at(number, stacks.parent[shown], missing=NONE),
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
        Column("node", "its number"),
        Column("parent", "the node above it; -1 at the top"),
        Column("label", "annotation, Python frame, operation or API call"),
        Column("kind", "`annotation`, `python`, `operation` or `call`"),
        Column("idle_time_ns", "idle time of all devices in it and below", unit="ns"),
        Column("self_time_ns", "of which it was the innermost event", unit="ns"),
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
