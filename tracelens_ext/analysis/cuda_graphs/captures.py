"""Finds the graphs that were captured in a trace: their launches, and the host events around them.

Between `…StreamBeginCapture` and `…StreamEndCapture` of a thread, launches run nothing: each is a
node of the graph (CUDA Programming Guide, "CUDA Graphs"; HIP likewise). ROCm's profiler names the
kernel in the launch; NVIDIA's does not. Engines put an annotation `capture_BATCHSIZE_MODE` around.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
from tracelens_ext.trace.grouping import maxima, minima, number_groups, texts
from tracelens_ext.trace.launches import begins_capture, captures
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above
from tracelens_ext.trace.sorted_groups import last_before

#: What stands for the name of a node that is no kernel, and of a kernel without a name.
MEMCPY = "\0memcpy"
MEMSET = "\0memset"
NAMELESS = "\0kernel"

#: vLLM's `capture_BATCHSIZE_MODE`, ATOM's `capture_graph_bs_BATCHSIZE`.
_ANNOTATION: Final = re.compile(r"capture_(?:graph_bs_)?(\d{1,9})(?:_(\w+))?")
#: Of the first input that has dimensions, in the raw text of those of all inputs.
_FIRST_DIMENSION: Final = re.compile(r"[\[\], ]*(\d{1,9})")
#: Calls that make nodes which run on the GPU.
_NODES: Final = {
    NAMELESS: re.compile(r"Launch(?:\w*Kernel|ByPtr)"),
    MEMCPY: re.compile(r"Memcpy"),
    MEMSET: re.compile(r"Memset"),
}


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph as it was captured: k launches, in order, within h host events."""

    names: list[str]  #: of the host events, parents before children, (h,)
    kind: npt.NDArray[np.uint8]  #: an `EventKind`, (h,)
    #: index of the event around each, `ROOT` for the outermost, (h,)
    parent: Int32Array
    #: argument → the events that have it, and its raw JSON texts
    args: dict[str, tuple[Int64Array, list[str]]]
    launches: Int64Array  #: index of each launch among the events, (k,)
    #: the kernel that each launches, or `MEMCPY`, `MEMSET`, `NAMELESS`, (k,)
    nodes: list[str]
    #: as `nodes`, but nameless ones have the kernel that they launched outside of graphs, (k,)
    likely: list[str]

    @property
    def op_names(self) -> list[str]:
        """The names of its CPU ops, in order."""
        ops = np.flatnonzero(self.kind == EventKind.CPU_OP)
        return [self.names[op] for op in ops.tolist()]

    @cached_property
    def operations(self) -> int:
        """A number that graphs share which hold the same CPU ops with the same arguments."""
        args = []
        for name, (rows, raw_texts) in self.args.items():
            args.append((name, *rows.tolist(), *raw_texts))
        return hash((*self.op_names, *sorted(args)))

    @cached_property
    def rows(self) -> int | None:
        """The first dimension that the first inputs of most operations have: tokens or requests."""
        _, shapes = self.args.get("Input Dims", (None, []))
        sizes: Counter[int] = Counter()
        for shape in shapes:
            first_dimension = _FIRST_DIMENSION.match(shape)
            if first_dimension:
                size = int(first_dimension[1])
                sizes[size] += 1
        if not sizes:
            return None
        return sizes.most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class Capture:
    """The graphs that were captured together, in order: a whole model, or a piece after another."""

    file: str  #: the trace that holds it
    #: requests or tokens that it was captured for; None if unknown
    batch_size: int | None
    mode: str  #: such as `FULL` or `PIECEWISE`; empty if unknown
    graphs: list[CapturedGraph]
    #: the batch size by the shapes of operations; None if unknown
    likely_size: int | None = None


class _Segments(NamedTuple):
    """Times in which graphs were captured, s of them, each of shape (s,)."""

    thread: Int64Array
    start: Int64Array  #: ns
    end: Int64Array  #: ns
    annotation: Int64Array  #: the row of the annotation around each, `NONE` without


class _CapturedLaunches(NamedTuple):
    """Launches that made nodes of graphs, by start."""

    rows: Int64Array  #: (k,)
    segment: Int64Array  #: in which segment each is, (k,)

    def by_segment(self) -> dict[int, Int64Array]:
        """Return the rows in each segment, which may be none."""
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


def holds_captures(trace: Trace) -> bool:
    """Tell if a trace may hold the capture of a graph; takes no time."""
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
        kernel_elsewhere = _kernels_elsewhere(tree, launches.rows)
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
    """Return a capture without graphs, as the annotation in a row names it; `NONE` for none."""
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
    """Return the captures of each size, if the shapes show several of the same operations."""
    if capture.batch_size is not None:
        return [capture]
    graphs_by_size: defaultdict[int | None, list[CapturedGraph]] = defaultdict(list)
    for graph in capture.graphs:
        graphs_by_size[graph.rows].append(graph)
    distinct_operations = set()
    for graphs in graphs_by_size.values():
        operations: set[str] = set()
        for graph in graphs:
            operations.update(graph.op_names)
        distinct_operations.add(frozenset(operations))
    if len(distinct_operations) > 1:
        return [capture]  # pieces of different shapes
    captures = []
    for size, graphs in graphs_by_size.items():
        captures.append(replace(capture, graphs=graphs, likely_size=size))
    return captures


def _find_segments(tree: CallTree) -> _Segments:
    """Return the times in which graphs were captured, by thread and start.

    They last from each call that begins a capture to the next on its thread that ends one, or as
    long as an annotation `capture_…` without such calls.
    """
    trace = tree.trace
    begin, end = captures(trace)
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    annotations = annotations[
        trace.named(trace.name[annotations], _ANNOTATION.fullmatch)
    ]
    is_annotation = np.zeros(len(tree.rows), dtype=bool)
    is_annotation[tree.position[annotations]] = True
    around = nearest_above(
        parent=tree.parent_position, nodes=tree.position[begin], marked=is_annotation
    )
    annotation = values_at(tree.rows, around)
    alone = np.setdiff1d(annotations, annotation)
    first = np.append(begin, alone)
    thread = trace.thread[first].astype(np.int64)
    start_time = np.append(trace.end_of(begin), trace.ts[alone])
    end_time = np.append(trace.ts[end], trace.end_of(alone))
    annotation = np.append(annotation, alone)
    order = np.lexsort((start_time, thread))
    return _Segments(
        thread=thread[order],
        start=start_time[order],
        end=end_time[order],
        annotation=annotation[order],
    )


def _find_launches(tree: CallTree, segments: _Segments) -> _CapturedLaunches:
    """Return the launches that made nodes; they may be on other threads of the process.

    PyTorch's backward pass has a thread of its own.
    """
    trace = tree.trace
    makes_node = trace.names_matching(_makes_node)
    calls = trace.rows_of(*LAUNCH_KINDS)
    is_candidate = makes_node[trace.name[calls]]
    is_candidate &= ~np.isin(calls, tree.launch_of_gpu)
    calls = calls[is_candidate]
    above = tree.parent_position[tree.position[calls]]
    row_above = values_at(tree.rows, above)
    is_within_call = np.isin(row_above, calls)
    calls = calls[~is_within_call]
    by_start = np.argsort(trace.ts[calls], kind="stable")
    calls = calls[by_start]
    threads = np.arange(len(trace.threads), dtype=np.int32)
    segment = _covering_segments(
        trace=trace, rows=calls, segments=segments, place_of_thread=threads
    )
    is_uncovered = segment == NONE
    segment[is_uncovered] = _covering_segments(
        trace=trace,
        rows=calls[is_uncovered],
        segments=segments,
        place_of_thread=trace.process_of_thread,
    )
    is_captured = segment != NONE
    return _CapturedLaunches(rows=calls[is_captured], segment=segment[is_captured])


def _makes_node(name: str) -> bool:
    """Tell if a call of that name makes a node of a graph."""
    return any(pattern.search(name) for pattern in _NODES.values())


def _covering_segments(
    trace: Trace, rows: Int64Array, segments: _Segments, place_of_thread: Int32Array
) -> Int64Array:
    """Return the latest segment at the place of each event, if it covers it, else `NONE`.

    Args:
        trace: the trace.
        rows: the events.
        segments: those to choose from.
        place_of_thread: where a thread is: a number of its own, or that of its process.
    """
    if not len(segments.start):
        return np.full(len(rows), NONE, dtype=np.int64)
    segment_place = place_of_thread[segments.thread]
    order = np.lexsort((segments.start, segment_place))
    place = place_of_thread[trace.thread[rows]]
    just_after = trace.ts[rows] + 1
    begun = last_before(
        group=segment_place[order],
        time=segments.start[order],
        query_group=place,
        query_time=just_after,
    )
    latest = values_at(order, begun)
    latest_end = values_at(segments.end, latest)
    is_covered = (latest != NONE) & (trace.end_of(rows) <= latest_end)
    return np.where(is_covered, latest, NONE)


def _kernels_elsewhere(tree: CallTree, rows: Int64Array) -> dict[int, str]:
    """Return the kernels that captured launches start where the same code runs outside of graphs.

    The same are launches at the same place of calls of one name, shapes and number of launches.
    """
    trace = tree.trace
    launches, kernel = _single_kernels(tree)
    calls = np.concatenate((launches, rows))
    kernel = np.append(kernel, np.full(len(rows), NONE))
    is_op = trace.kind[tree.rows] == EventKind.CPU_OP
    op_position = nearest_above(
        parent=tree.parent_position, nodes=tree.position[calls], marked=is_op
    )
    is_in_op = op_position != ROOT
    calls = calls[is_in_op]
    kernel = kernel[is_in_op]
    op = tree.rows[op_position[is_in_op]]
    by_op = np.lexsort((trace.ts[calls], op))
    calls = calls[by_op]
    kernel = kernel[by_op]
    op = op[by_op]
    first_of_op = np.flatnonzero(np.diff(op, prepend=NONE))
    calls_of_op = np.diff(np.append(first_of_op, len(op)))
    place_in_op = np.arange(len(op)) - np.repeat(first_of_op, calls_of_op)
    shapes = trace.arg("Input Dims").at(op)
    call_count = np.repeat(calls_of_op, calls_of_op)
    first, group = number_groups([trace.name[op], shapes, call_count, place_in_op])
    is_known = kernel != NONE
    known_kernel = kernel[is_known].astype(np.int64)
    smallest = minima(
        group_index=group[is_known], values=known_kernel, group_count=len(first)
    )
    largest = maxima(
        group_index=group[is_known], values=known_kernel, group_count=len(first)
    )
    has_one_kernel = smallest == largest
    is_wanted = np.isin(calls, rows) & has_one_kernel[group]
    names = texts(largest[group[is_wanted]], trace.names)
    return dict(zip(calls[is_wanted].tolist(), names, strict=True))


def _single_kernels(tree: CallTree) -> tuple[Int64Array, Int64Array]:
    """Return launches outside of graphs, and the name of the kernel if one launched only one."""
    trace = tree.trace
    events = np.flatnonzero(tree.linked & ~tree.by_graph)
    launch_of_event = tree.launch_of_gpu[events]
    launches, first, count = np.unique(
        launch_of_event, return_index=True, return_counts=True
    )
    first_kernel = trace.name[trace.gpu_rows[events[first]]]
    return launches, np.where(count == 1, first_kernel, NONE)


def _graph_of(
    tree: CallTree, rows: Int64Array, start: int, kernel_elsewhere: dict[int, str]
) -> CapturedGraph:
    """Return the graph of some launches, with the host events around them.

    Args:
        tree: the call tree.
        rows: the launches.
        start: when the capture began; events that began before are no part of it.
        kernel_elsewhere: the kernels that nameless launches started elsewhere.
    """
    trace = tree.trace
    launch_position = tree.position[rows]
    positions = _with_events_around(tree, launch_position, start)
    host = tree.rows[positions]
    parent_position = tree.parent_position[positions]
    has_parent = np.isin(parent_position, positions)
    parent = np.searchsorted(positions, parent_position)
    nodes = _node_names(trace, rows)
    likely = []
    for row, node in zip(rows.tolist(), nodes, strict=True):
        likely_node = node
        if node == NAMELESS:
            likely_node = kernel_elsewhere.get(row, node)
        likely.append(likely_node)
    return CapturedGraph(
        names=texts(trace.name[host], trace.names),
        kind=trace.kind[host],
        parent=np.where(has_parent, parent, ROOT).astype(np.int32),
        args=_arguments_of(tree, host),
        launches=np.searchsorted(positions, launch_position),
        nodes=nodes,
        likely=likely,
    )


def _with_events_around(tree: CallTree, positions: IntArray, start: int) -> IntArray:
    """Return positions in the tree and those around them that began after a time, ascending."""
    trace = tree.trace
    all_positions = np.unique(positions)
    outermost: IntArray = all_positions
    while len(outermost):
        above = np.setdiff1d(tree.parent_position[outermost], all_positions)
        above = above[above != ROOT]
        outermost = above[trace.ts[tree.rows[above]] >= start]
        all_positions = np.union1d(all_positions, outermost)
    return all_positions


def _arguments_of(
    tree: CallTree, host: Int64Array
) -> dict[str, tuple[Int64Array, list[str]]]:
    """Return the arguments of host events: which of these have each, and its raw texts."""
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
        having = np.flatnonzero(codes != NONE)
        if len(having):
            args[name] = (having, texts(codes[having], column.texts))
    return args


def _node_names(trace: Trace, rows: Int64Array) -> list[str]:
    """Return what each launch starts: the kernel that the trace names, else its kind."""
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
    """Return the kind of the node that a call makes."""
    return next(kind for kind, pattern in _NODES.items() if pattern.search(call))


#: How many tokens (requests, if the engine captures by them) an annotation says that a step has:
#: vLLM's two forms, xDiT's, ATOM's (with the padded size), SGLang's.
_SIZES: Final = (
    re.compile(r"execute_(\d{1,9})_context_"),
    re.compile(
        r"execute_context_\d+\((?:sq)?(\d{1,9}).*?\)_generation_\d+\((?:sq)?(\d{1,9})"
    ),
    re.compile(r"execute_diffusion_(\d{1,9})_"),
    re.compile(r"(?:\w+_)?decode\[bs=\d+/(\d{1,9})"),
    re.compile(r"(?:step\[DECODE|(?:\w+_)?decode\[).*?\bbs=(\d{1,9})"),
    re.compile(r"(?:step\[|(?:\w+_)?prefill\[).*?\btoks?=(\d{1,9})"),
    re.compile(r"step\[.*?\bbs=(\d{1,9})"),
)


def tokens_of_step(annotation: str) -> int | None:
    """Return the tokens of a step by an engine's annotation; None for any other name."""
    for pattern in _SIZES:
        sizes = pattern.match(annotation)
        if sizes:
            return sum(map(int, sizes.groups()))
    return None


@dataclass(frozen=True, eq=False)
class GraphLaunches:
    """The graph launches that started GPU events, by thread and start, n of them."""

    rows: Int64Array  #: the launches, (n,)
    #: the GPU events of each by stream and start, places in `trace.gpu_rows`
    events: list[Int64Array]
    stream: Int64Array  #: a number for the stream of each of those, launch after launch
    #: a number for the step around each, another for each thread outside, (n,)
    step: Int64Array
    annotation: list[str]  #: the name of that step; empty outside
    tokens: Int64Array  #: how many it computes, `NONE` outside, (n,)


def find_graph_launches(tree: CallTree) -> GraphLaunches:
    """Return the graph launches of a trace that started GPU events."""
    trace = tree.trace
    events = np.flatnonzero(tree.by_graph)
    launch = tree.launch_of_gpu[events]
    gpu_rows = trace.gpu_rows[events]
    _, stream = number_groups([trace.device[events], trace.stream[events]])
    by_thread_and_launch = (
        trace.ts[gpu_rows],
        stream,
        launch,
        trace.ts[launch],
        trace.thread[launch],
    )
    order = np.lexsort(by_thread_and_launch)
    events = events[order]
    launch = launch[order]
    first = np.flatnonzero(np.diff(launch, prepend=NONE))
    rows = launch[first]
    tokens_by_name = _tokens_by_name(trace)
    is_annotation = trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    is_step_name = np.isin(trace.name[tree.rows], list(tokens_by_name))
    is_step = is_annotation & is_step_name
    step_position = nearest_above(
        parent=tree.parent_position, nodes=tree.position[rows], marked=is_step
    )
    step_row = values_at(tree.rows, step_position)
    step_name = values_at(trace.name, step_row).tolist()
    annotations = []
    tokens = []
    for name in step_name:
        annotation = ""
        if name != NONE:
            annotation = trace.names[name]
        annotations.append(annotation)
        tokens.append(tokens_by_name.get(name, NONE))
    outside = -1 - trace.thread[rows]
    return GraphLaunches(
        rows=rows,
        events=np.split(events, first[1:]),
        stream=stream[order],
        step=np.where(step_position == ROOT, outside, step_position),
        annotation=annotations,
        tokens=np.array(tokens, dtype=np.int64),
    )


def _tokens_by_name(trace: Trace) -> dict[int, int]:
    """Return the tokens of the steps that annotations name, by code of the name."""
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    tokens_by_name = {}
    distinct_names = np.unique(trace.name[annotations])
    for name in distinct_names.tolist():
        tokens = tokens_of_step(trace.names[name])
        if tokens is not None:
            tokens_by_name[name] = tokens
    return tokens_by_name
