"""Finds the graphs that were captured in a trace: their launches, and the host events around them.

Between `…StreamBeginCapture` and `…StreamEndCapture` on a thread, a launch does not run anything on
the GPU. It adds a node to the graph (CUDA Programming Guide, "CUDA Graphs"; HIP does the same).
ROCm's profiler records the name of the kernel with the launch; NVIDIA's does not. Serving engines
enclose a capture in an annotation `capture_BATCHSIZE_MODE`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captured_graphs import (
    MEMCPY,
    MEMSET,
    NAMELESS,
    Capture,
    CapturedGraph,
)
from tracelens_ext.analysis.cuda_graphs.direct_kernels import kernels_elsewhere
from tracelens_ext.analysis.operations.experts import (
    EXPERTS_BELOW,
    experts_below,
    is_of_experts,
)
from tracelens_ext.text import json_value
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import texts
from tracelens_ext.trace.launches import begins_capture, captures
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above
from tracelens_ext.trace.sorted_groups import last_before

#: vLLM's `capture_BATCHSIZE_MODE`, ATOM's `capture_graph_bs_BATCHSIZE`.
_ANNOTATION: Final = re.compile(r"capture_(?:graph_bs_)?(\d{1,9})(?:_(\w+))?")
#: Kind of node → the runtime calls that add such a node to a graph.
_CALLS_OF_NODE_KIND: Final = {
    NAMELESS: re.compile(r"Launch(?:\w*Kernel|ByPtr)"),
    MEMCPY: re.compile(r"Memcpy"),
    MEMSET: re.compile(r"Memset"),
}


class _Segments(NamedTuple):
    """The s time segments in which graphs were captured, one graph in each; arrays are (s,)."""

    thread: Int64Array
    start: Int64Array  #: ns
    end: Int64Array  #: ns
    #: the row of the annotation around the segment, `NONE` without
    annotation: Int64Array


class _CapturedLaunches(NamedTuple):
    """The launches that added nodes to graphs, by start."""

    rows: Int64Array  #: (k,)
    segment: Int64Array  #: the index of the segment that contains each launch, (k,)

    def by_segment(self) -> dict[int, Int64Array]:
        """Return the rows of the launches in each segment; segments without launches are absent."""
        order = np.argsort(self.segment, kind="stable")
        rows = self.rows[order]
        segments, first = np.unique(self.segment[order], return_index=True)
        end = np.append(first[1:], len(rows))
        rows_by_segment = {}
        for segment, first_row, end_row in zip(
            segments.tolist(), first, end, strict=True
        ):
            rows_by_segment[segment] = rows[first_row:end_row]
        return rows_by_segment


def may_contain_captures(trace: Trace) -> bool:
    """Tell if a trace may contain the capture of a graph, from its distinct names alone."""
    return any(
        begins_capture(name) or _ANNOTATION.fullmatch(name) for name in trace.names
    )


def find_captures(tree: CallTree, file: str) -> list[Capture]:
    """Return the captures in a trace, in order of their first graph."""
    trace = tree.trace
    segments = _find_segments(tree)
    launches = _find_launches(tree, segments)
    if not len(launches.rows):
        return []
    kernel_elsewhere: dict[int, str] = {}
    if NAMELESS in _node_names(trace, launches.rows):
        kernel_elsewhere = kernels_elsewhere(tree, launches.rows)
    rows_by_segment = launches.by_segment()
    by_start = sorted(rows_by_segment, key=lambda number: int(segments.start[number]))
    captures: dict[int, Capture] = {}
    for number in by_start:
        annotation = int(segments.annotation[number])
        if annotation not in captures:
            captures[annotation] = _annotated_capture(trace, annotation, file)
        start = int(segments.start[number])
        graph = _graph_of(
            tree=tree,
            rows=rows_by_segment[number],
            start=start,
            kernel_elsewhere=kernel_elsewhere,
        )
        captures[annotation].graphs.append(graph)
    captures_by_size = []
    for capture in captures.values():
        captures_by_size += _by_size(capture)
    return captures_by_size


def _annotated_capture(trace: Trace, annotation: int, file: str) -> Capture:
    """Return a capture, still without graphs, with the batch size and mode of an annotation.

    Args:
        trace: the trace.
        annotation: the row of the annotation, `NONE` for a capture without one.
        file: the file of the trace.
    """
    batch_size = None
    mode = ""
    if annotation != NONE:
        name = trace.name_of(annotation)
        parts = _ANNOTATION.fullmatch(name)
        if parts:
            batch_size = int(parts[1])
            mode = parts[2] or ""
    return Capture(file=file, batch_size=batch_size, mode=mode, graphs=[])


def _by_size(capture: Capture) -> list[Capture]:
    """Split a capture of unknown batch size into one capture for each size that shapes show.

    It stays whole if the graphs of two sizes contain different operations: then these graphs are
    pieces of one model, not the same model captured for several batch sizes.
    """
    if capture.batch_size is not None:
        return [capture]
    graphs_by_size: defaultdict[int | None, list[CapturedGraph]] = defaultdict(list)
    for graph in capture.graphs:
        graphs_by_size[graph.common_size].append(graph)
    distinct_operations = set()
    for graphs in graphs_by_size.values():
        operations: set[str] = set()
        for graph in graphs:
            operations.update(graph.op_names)
        distinct_operations.add(frozenset(operations))
    if len(distinct_operations) > 1:
        return [capture]
    captures = []
    for size, graphs in graphs_by_size.items():
        captures.append(replace(capture, graphs=graphs, likely_size=size))
    return captures


def _find_segments(tree: CallTree) -> _Segments:
    """Return the segments of time in which graphs were captured, by thread and start.

    A segment lasts from a call that begins a capture to the next call on the same thread that ends
    one. An annotation `capture_…` that contains no such calls is a segment as a whole.
    """
    trace = tree.trace
    begin_calls, end_calls = captures(trace)
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    annotations = annotations[
        trace.named(trace.name[annotations], _ANNOTATION.fullmatch)
    ]
    is_annotation = np.zeros(len(tree.rows), dtype=bool)
    is_annotation[tree.position[annotations]] = True
    annotation_position = nearest_above(
        parent=tree.parent_position,
        nodes=tree.position[begin_calls],
        marked=is_annotation,
    )
    annotation_of_calls = values_at(tree.rows, annotation_position)
    without_calls = np.setdiff1d(annotations, annotation_of_calls)
    first_rows = np.append(begin_calls, without_calls)
    thread = trace.thread[first_rows].astype(np.int64)
    start_time = np.append(trace.end_of(begin_calls), trace.ts[without_calls])
    end_time = np.append(trace.ts[end_calls], trace.end_of(without_calls))
    annotation = np.append(annotation_of_calls, without_calls)
    order = np.lexsort((start_time, thread))
    return _Segments(
        thread=thread[order],
        start=start_time[order],
        end=end_time[order],
        annotation=annotation[order],
    )


def _find_launches(tree: CallTree, segments: _Segments) -> _CapturedLaunches:
    """Return the launches that added nodes to graphs.

    A launch belongs to the segment on its own thread that contains it, or else to a segment on
    another thread of its process: PyTorch's backward pass runs on a thread of its own.
    """
    trace = tree.trace
    makes_node = trace.names_matching(_makes_node)
    calls = trace.rows_of(*LAUNCH_KINDS)
    is_candidate = makes_node[trace.name[calls]]
    is_candidate &= ~np.isin(calls, tree.launch_of_gpu)
    calls = calls[is_candidate]
    # A launch call within another launch call is a part of it and adds no second node.
    parent_position = tree.parent_position[tree.position[calls]]
    parent_row = values_at(tree.rows, parent_position)
    is_within_call = np.isin(parent_row, calls)
    calls = calls[~is_within_call]
    by_start = np.argsort(trace.ts[calls], kind="stable")
    calls = calls[by_start]
    each_thread_alone = np.arange(len(trace.threads), dtype=np.int32)
    segment = _covering_segments(
        trace=trace, rows=calls, segments=segments, group_of_thread=each_thread_alone
    )
    is_uncovered = segment == NONE
    segment[is_uncovered] = _covering_segments(
        trace=trace,
        rows=calls[is_uncovered],
        segments=segments,
        group_of_thread=trace.process_of_thread,
    )
    is_captured = segment != NONE
    return _CapturedLaunches(rows=calls[is_captured], segment=segment[is_captured])


def _makes_node(name: str) -> bool:
    """Tell if a call of this name adds a node to a graph that is being captured."""
    return any(pattern.search(name) for pattern in _CALLS_OF_NODE_KIND.values())


def _covering_segments(
    trace: Trace, rows: Int64Array, segments: _Segments, group_of_thread: Int32Array
) -> Int64Array:
    """Return the segment that covers each event, `NONE` for an event without one.

    Only the segment that began last before the event, among those of its group of threads, is
    considered.

    Args:
        trace: the trace.
        rows: the events.
        segments: the segments to choose from.
        group_of_thread: the group of each thread: the thread itself, or its process.
    """
    if not len(segments.start):
        return np.full(len(rows), NONE, dtype=np.int64)
    group_of_segment = group_of_thread[segments.thread]
    order = np.lexsort((segments.start, group_of_segment))
    group_of_event = group_of_thread[trace.thread[rows]]
    # `last_before` leaves out a segment that begins exactly at the queried time.
    just_after_start = trace.ts[rows] + 1
    place_in_order = last_before(
        group=group_of_segment[order],
        time=segments.start[order],
        query_group=group_of_event,
        query_time=just_after_start,
    )
    latest = values_at(order, place_in_order)
    latest_end = values_at(segments.end, latest)
    is_covered = (latest != NONE) & (trace.end_of(rows) <= latest_end)
    return np.where(is_covered, latest, NONE)


def _graph_of(
    tree: CallTree, rows: Int64Array, start: int, kernel_elsewhere: dict[int, str]
) -> CapturedGraph:
    """Return the graph that launches were captured into, with the host events around them.

    Args:
        tree: the call tree.
        rows: the launches.
        start: the time when the capture began, ns; host events that began earlier are left out.
        kernel_elsewhere: row of a launch → the kernel that the same code starts outside of graphs.
    """
    trace = tree.trace
    launch_position = tree.position[rows]
    positions = _with_events_around(tree, launch_position, start)
    host = tree.rows[positions]
    parent_position = tree.parent_position[positions]
    has_parent = np.isin(parent_position, positions)
    parent = np.searchsorted(positions, parent_position)
    nodes = _node_names(trace, rows)
    likely_nodes = []
    for row, node in zip(rows.tolist(), nodes, strict=True):
        likely_node = node
        if node == NAMELESS:
            likely_node = kernel_elsewhere.get(row, node)
        likely_nodes.append(likely_node)
    return CapturedGraph(
        names=texts(trace.name[host], trace.names),
        kind=trace.kind[host],
        parent=np.where(has_parent, parent, ROOT).astype(np.int32),
        args=_arguments_of(tree, host),
        launches=np.searchsorted(positions, launch_position),
        nodes=nodes,
        likely_nodes=likely_nodes,
    )


def _with_events_around(tree: CallTree, positions: IntArray, start: int) -> IntArray:
    """Return positions in the tree and their ancestors that began at `start` or later, ascending.

    The search goes up level by level and stops at an ancestor that began earlier.
    """
    trace = tree.trace
    all_positions = np.unique(positions)
    outermost: IntArray = all_positions
    while len(outermost):
        parents = np.setdiff1d(tree.parent_position[outermost], all_positions)
        parents = parents[parents != ROOT]
        outermost = parents[trace.ts[tree.rows[parents]] >= start]
        all_positions = np.union1d(all_positions, outermost)
    return all_positions


def _arguments_of(
    tree: CallTree, host: Int64Array
) -> dict[str, tuple[Int64Array, list[str]]]:
    """Return the arguments of host events, in the form of `CapturedGraph.args`."""
    trace = tree.trace
    args: dict[str, tuple[Int64Array, list[str]]] = {}
    with_experts = np.flatnonzero(trace.named(trace.name[host], is_of_experts))
    if len(with_experts):
        experts = [experts_below(tree, row) for row in host[with_experts].tolist()]
        args[EXPERTS_BELOW] = (with_experts, experts)
    for name, column in trace.args.items():
        if column.texts is None or name == "kernel":
            continue
        codes = column.at(host)
        with_argument = np.flatnonzero(codes != NONE)
        if len(with_argument):
            raw_texts = texts(codes[with_argument], column.texts)
            args[name] = (with_argument, raw_texts)
    return args


def _node_names(trace: Trace, rows: Int64Array) -> list[str]:
    """Return the name of the node that each launch adds.

    It is the name of the kernel if the trace has it, else `NAMELESS`, `MEMCPY` or `MEMSET`.
    """
    column = trace.arg("kernel")
    names = []
    for code, row in zip(column.at(rows).tolist(), rows.tolist(), strict=True):
        name = _node_kind(trace.name_of(row))
        if name == NAMELESS and code != NONE and column.texts:
            kernel = json_value(column.texts[code], strict=False)
            if isinstance(kernel, str) and kernel:
                name = kernel
        names.append(name)
    return names


def _node_kind(call: str) -> str:
    """Return the kind of the node that a call adds: `NAMELESS`, `MEMCPY` or `MEMSET`."""
    return next(
        kind for kind, pattern in _CALLS_OF_NODE_KIND.items() if pattern.search(call)
    )
