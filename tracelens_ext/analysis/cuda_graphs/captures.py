"""The graphs whose capture a trace holds: their launches in order, and the host events around them.

Between `…StreamBeginCapture` and `…StreamEndCapture` of a thread, launches run nothing: each is a
node of the graph (CUDA Programming Guide, "CUDA Graphs"; HIP likewise). ROCm's profiler names the
kernel in the launch; NVIDIA's does not. Engines put an annotation `capture_BATCHSIZE_MODE` around.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.operations.experts import EXPERTS_BELOW, experts_below, is_of_experts
from tracelens_ext.text import json_value
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Int32Array, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import last_before, maxima, minima, number_groups, texts
from tracelens_ext.trace.launches import begins_capture, captures
from tracelens_ext.trace.nesting import ROOT, nearest_above

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
    parent: Int32Array  #: index of the event around each, `ROOT` for the outermost, (h,)
    #: argument → the events that have it, and its raw JSON texts
    args: dict[str, tuple[Int64Array, list[str]]]
    launches: Int64Array  #: index of each launch among the events, (k,)
    nodes: list[str]  #: the kernel that each launches, or `MEMCPY`, `MEMSET`, `NAMELESS`, (k,)
    #: likewise, with the kernel that a nameless one launched where it ran outside of graphs, (k,)
    likely: list[str]

    @property
    def op_names(self) -> list[str]:
        """The names of its CPU ops, in order."""
        return [self.names[i] for i in np.flatnonzero(self.kind == EventKind.CPU_OP).tolist()]

    @cached_property
    def operations(self) -> int:
        """A number that graphs share which hold the same CPU ops with the same arguments."""
        args = sorted((name, *rows.tolist(), *texts) for name, (rows, texts) in self.args.items())
        return hash((*self.op_names, *args))

    @cached_property
    def rows(self) -> int | None:
        """The first dimension that the first inputs of most operations have: tokens or requests."""
        _, texts = self.args.get("Input Dims", (None, []))
        count = Counter(int(each[1]) for each in map(_FIRST_DIMENSION.match, texts) if each)
        return count.most_common(1)[0][0] if count else None


@dataclass(frozen=True, eq=False)
class Capture:
    """The graphs that were captured together, in order: a whole model, or a piece after another."""

    file: str  #: the trace that holds it
    batch_size: int | None  #: requests or tokens that it was captured for; None if nothing tells
    mode: str  #: such as `FULL` or `PIECEWISE`; empty if nothing tells
    graphs: list[CapturedGraph]
    likely_size: int | None = None  #: the batch size by the shapes of operations, likewise


#: Times in which graphs were captured: threads, starts, ends, rows of annotations, (s,) each.
_Segments = list[Int64Array]


def holds_captures(trace: Trace) -> bool:
    """Whether a trace may hold the capture of a graph; takes no time."""
    return any(begins_capture(name) or _ANNOTATION.fullmatch(name) for name in trace.names)


def find_captures(tree: CallTree, file: str) -> list[Capture]:
    """The captures in a trace, in order of their first graph."""
    segments = _find_segments(tree)
    _, start, _, around = segments
    rows, segment = _find_launches(tree, segments)
    if not len(rows):
        return []
    order = np.argsort(segment, kind="stable")
    found, first = np.unique(segment[order], return_index=True)
    launches = dict(zip(found.tolist(), np.split(rows[order], first[1:]), strict=True))
    ran = _kernels_elsewhere(tree, rows) if NAMELESS in _node_names(tree.trace, rows) else {}
    captures: dict[int, Capture] = {}
    for number in found[np.argsort(start[found], kind="stable")].tolist():
        annotation = int(around[number])
        if annotation not in captures:
            name = tree.trace.name_of(annotation) if annotation != NONE else ""
            named = _ANNOTATION.fullmatch(name)
            batch_size, mode = (int(named[1]), named[2] or "") if named else (None, "")
            captures[annotation] = Capture(file, batch_size, mode, [])
        graph = _graph_of(tree, launches[number], int(start[number]), ran)
        captures[annotation].graphs.append(graph)
    return [part for each in captures.values() for part in _by_size(each)]


def _by_size(capture: Capture) -> list[Capture]:
    """The captures of each size, if the shapes show several of the same operations."""
    if capture.batch_size is not None:
        return [capture]
    graphs: defaultdict[int | None, list[CapturedGraph]] = defaultdict(list)
    for graph in capture.graphs:
        graphs[graph.rows].append(graph)
    if len({frozenset(n for g in part for n in g.op_names) for part in graphs.values()}) > 1:
        return [capture]  # pieces of different shapes
    return [replace(capture, graphs=part, likely_size=size) for size, part in graphs.items()]


def _find_segments(tree: CallTree) -> _Segments:
    """The times in which graphs were captured.

    From each call that begins a capture to the next on its thread that ends one, and annotations
    without such calls; by thread and start. `NONE` for one that no `capture_…` is around.
    """
    trace = tree.trace
    first, last = captures(trace)
    is_annotation = np.zeros(len(tree.rows), dtype=bool)
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    annotations = annotations[trace.named(trace.name[annotations], _ANNOTATION.fullmatch)]
    is_annotation[tree.position[annotations]] = True
    above = nearest_above(tree.parent_position, tree.position[first], is_annotation)
    around = np.where(above == ROOT, NONE, tree.rows[above]) if len(tree.rows) else above
    alone = np.setdiff1d(annotations, around)
    thread = trace.thread[np.append(first, alone)].astype(np.int64)
    start = np.append(trace.end_of(first), trace.ts[alone])
    end = np.append(trace.ts[last], trace.end_of(alone))
    order = np.lexsort((start, thread))
    return [column[order] for column in (thread, start, end, np.append(around, alone))]


def _find_launches(tree: CallTree, segments: _Segments) -> tuple[Int64Array, Int64Array]:
    """The launches that made nodes (of any thread, as PyTorch's backward has its own), by start."""
    trace = tree.trace
    makes_node = trace.names_matching(lambda name: any(p.search(name) for p in _NODES.values()))
    calls = trace.rows_of(*LAUNCH_KINDS)
    calls = calls[makes_node[trace.name[calls]]]
    calls = calls[~np.isin(calls, tree.launch_of_gpu)]
    above = tree.parent_position[tree.position[calls]]
    calls = calls[(above == ROOT) | ~np.isin(tree.rows[above], calls)]
    calls = calls[np.argsort(trace.ts[calls], kind="stable")]
    segment = _covering(trace, calls, segments, np.arange(len(trace.threads), dtype=np.int32))
    others = segment == NONE
    segment[others] = _covering(trace, calls[others], segments, trace.process_of_thread)
    return calls[segment != NONE], segment[segment != NONE]


def _covering(trace: Trace, rows: Int64Array, segments: _Segments, place: Int32Array) -> Int64Array:
    """The latest segment at the place (thread or process) of each event that covers it."""
    thread, start, end, _ = segments
    if not len(start):
        return np.full(len(rows), NONE, dtype=np.int64)
    order = np.lexsort((start, place[thread]))
    asked = place[trace.thread[rows]], trace.ts[rows] + 1
    begun = last_before(place[thread][order], start[order], *asked)
    latest = order[begun]
    return np.where((begun != NONE) & (trace.end_of(rows) <= end[latest]), latest, NONE)


def _kernels_elsewhere(tree: CallTree, rows: Int64Array) -> dict[int, str]:
    """The kernels that captured launches start where the same operations run outside of graphs.

    The same are launches at the same place of calls of one name, shapes and number of launches.
    """
    trace = tree.trace
    events = np.flatnonzero(tree.linked & ~tree.by_graph)
    started = tree.launch_of_gpu[events]
    launches, first, count = np.unique(started, return_index=True, return_counts=True)
    kernel = np.where(count == 1, trace.name[trace.gpu_rows[events[first]]], NONE)
    calls = np.concatenate((launches, rows))
    kernel = np.append(kernel, np.full(len(rows), NONE))
    is_op = trace.kind[tree.rows] == EventKind.CPU_OP
    ops = nearest_above(tree.parent_position, tree.position[calls], is_op)
    inside = ops != ROOT
    calls = calls[inside]
    kernel = kernel[inside]
    op = tree.rows[ops[inside]]
    order = np.lexsort((trace.ts[calls], op))
    calls = calls[order]
    kernel = kernel[order]
    op = op[order]
    begins = np.flatnonzero(np.diff(op, prepend=NONE))
    size = np.diff(np.append(begins, len(op)))
    place = np.arange(len(op)) - np.repeat(begins, size)
    shapes = trace.arg("Input Dims").at(op)
    first, number = number_groups([trace.name[op], shapes, np.repeat(size, size), place])
    known = kernel != NONE
    of_known = number[known], kernel[known].astype(np.int64), len(first)
    least = minima(*of_known)
    greatest = maxima(*of_known)
    wanted = np.isin(calls, rows) & (least == greatest)[number]
    found = texts(greatest[number[wanted]], trace.names)
    return dict(zip(calls[wanted].tolist(), found, strict=True))


def _graph_of(tree: CallTree, rows: Int64Array, start: int, ran: dict[int, str]) -> CapturedGraph:
    """The graph of some launches, with the host events around them that began in the capture."""
    trace = tree.trace
    position = tree.position[rows]
    places = at = np.unique(position)
    while len(at):
        at = np.setdiff1d(tree.parent_position[at], places)
        at = at[at != ROOT]
        at = at[trace.ts[tree.rows[at]] >= start]
        places = np.union1d(places, at)
    host = tree.rows[places]
    parent = tree.parent_position[places]
    inside = np.isin(parent, places)
    nodes = _node_names(trace, rows)
    args: dict[str, tuple[Int64Array, list[str]]] = {}
    if len(own := np.flatnonzero(trace.named(trace.name[host], is_of_experts))):
        args[EXPERTS_BELOW] = own, [experts_below(tree, row) for row in host[own].tolist()]
    for name, column in trace.args.items():
        if column.texts is not None and name != "kernel":
            codes = column.at(host)
            if len(having := np.flatnonzero(codes != NONE)):
                args[name] = having, texts(codes[having], column.texts)
    return CapturedGraph(
        names=texts(trace.name[host], trace.names),
        kind=trace.kind[host],
        parent=np.where(inside, np.searchsorted(places, parent), ROOT).astype(np.int32),
        args=args,
        launches=np.searchsorted(places, position),
        nodes=nodes,
        likely=[
            ran.get(row, node) if node == NAMELESS else node
            for row, node in zip(rows.tolist(), nodes, strict=True)
        ],
    )


def _node_names(trace: Trace, rows: Int64Array) -> list[str]:
    """What each launch starts: the kernel that the trace names, else of what kind it is."""
    column = trace.arg("kernel")
    names = []
    for code, row in zip(column.at(rows).tolist(), rows.tolist(), strict=True):
        kind = next(kind for kind, p in _NODES.items() if p.search(trace.name_of(row)))
        if kind == NAMELESS and code != NONE and column.texts:
            said = json_value(column.texts[code], strict=False)
            kind = said if isinstance(said, str) and said else kind
        names.append(kind)
    return names


#: How many tokens (requests, if the engine captures by them) an annotation says that a step has:
#: vLLM's two forms, xDiT's, ATOM's (with the padded size), SGLang's.
_SIZES: Final = (
    re.compile(r"execute_(\d{1,9})_context_"),
    re.compile(r"execute_context_\d+\((?:sq)?(\d{1,9}).*?\)_generation_\d+\((?:sq)?(\d{1,9})"),
    re.compile(r"execute_diffusion_(\d{1,9})_"),
    re.compile(r"(?:\w+_)?decode\[bs=\d+/(\d{1,9})"),
    re.compile(r"(?:step\[DECODE|(?:\w+_)?decode\[).*?\bbs=(\d{1,9})"),
    re.compile(r"(?:step\[|(?:\w+_)?prefill\[).*?\btoks?=(\d{1,9})"),
    re.compile(r"step\[.*?\bbs=(\d{1,9})"),
)


def tokens_of_step(annotation: str) -> int | None:
    """How many tokens an engine's annotation says that its step computes; None of another name."""
    found = next(filter(None, (pattern.match(annotation) for pattern in _SIZES)), None)
    return None if found is None else sum(map(int, found.groups()))


@dataclass(frozen=True, eq=False)
class GraphLaunches:
    """The graph launches that started GPU events, by thread and start, n of them."""

    rows: Int64Array  #: the launches, (n,)
    #: the GPU events of each by stream and start, places in `trace.gpu_rows`
    events: list[Int64Array]
    stream: Int64Array  #: a number for the stream of each of those, launch after launch
    step: Int64Array  #: a number for the step around each, another for each thread outside, (n,)
    annotation: list[str]  #: the name of that step; empty outside
    tokens: Int64Array  #: how many it computes, `NONE` outside, (n,)


def find_graph_launches(tree: CallTree) -> GraphLaunches:
    """The graph launches of a trace."""
    trace = tree.trace
    events = np.flatnonzero(tree.by_graph)
    launch = tree.launch_of_gpu[events]
    rows = trace.gpu_rows[events]
    _, stream = number_groups([trace.device[events], trace.stream[events]])
    order = np.lexsort((trace.ts[rows], stream, launch, trace.ts[launch], trace.thread[launch]))
    events = events[order]
    launch = launch[order]
    first = np.flatnonzero(np.diff(launch, prepend=NONE))
    rows = launch[first]
    annotations = np.unique(trace.name[trace.rows_of(EventKind.USER_ANNOTATION)]).tolist()
    told = ((code, tokens_of_step(trace.names[code])) for code in annotations)
    sizes = {code: tokens for code, tokens in told if tokens is not None}
    tells = np.isin(trace.name[tree.rows], list(sizes))
    tells &= trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    around = nearest_above(tree.parent_position, tree.position[rows], tells)
    codes = np.where(around == ROOT, NONE, trace.name[tree.rows[around]]) if len(rows) else rows
    return GraphLaunches(
        rows=rows,
        events=np.split(events, first[1:]),
        stream=stream[order],
        step=np.where(around == ROOT, -1 - trace.thread[rows], around),
        annotation=[trace.names[code] if code != NONE else "" for code in codes.tolist()],
        tokens=np.array([sizes.get(code, NONE) for code in codes.tolist()], dtype=np.int64),
    )
