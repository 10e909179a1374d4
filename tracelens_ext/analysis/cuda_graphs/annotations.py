"""Reads the annotations that PyTorch attaches to the nodes of CUDA graphs.

A program annotates the kernels, copies and fills of a graph with a dict while it captures the
graph. PyTorch writes the keys of this dict into the arguments of the GPU events, or into a side
file next to the trace (`cuda/_annotate_cuda_graph_trace.py`, `profiler/_cupti/monitor_trace.py`).
The key `module_fqn` is a path of modules, as torchtitan writes it; `name` is a range within them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captured_graphs import (
    Capture,
    CapturedGraph,
)
from tracelens_ext.analysis.cuda_graphs.graph_launches import GraphLaunches
from tracelens_ext.analysis.cuda_graphs.matching import GraphMatch, Matches
from tracelens_ext.analysis.cuda_graphs.side_files import read_side_file
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, json_value
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.lookup import is_within, values_at
from tracelens_ext.trace.nesting import ROOT


class _Annotation(NamedTuple):
    """The modules and the range of an annotated GPU event; either may be empty."""

    module_path: str  #: separated by dots, such as `layers.0.attention`
    range_name: str  #: the name of a range within the innermost module


#: The arguments of GPU events that contain annotations. `annotation` is a whole dict or a list of
#: dicts; each of the others is one key of the dict.
_ARGUMENTS: Final = ("annotation", "module_fqn", "name")
_MAX_FILE_BYTES: Final = 10**9
#: A side file numbers a node by `graph id << 32 | node id`. A trace may have both ids as separate
#: arguments; they are combined only if each of them fits into its half of the number.
_BITS_OF_NODE_ID: Final = 32
_NODE_ID_LIMIT: Final = 1 << _BITS_OF_NODE_ID
_GRAPH_ID_LIMIT: Final = 1 << 31
_COMBINED_ID_LIMIT: Final = 1 << 63


@dataclass(frozen=True, eq=False)
class GraphAnnotations:
    """The annotations of the g GPU events of a trace."""

    #: an index into `distinct` for each GPU event, `NONE` for an event without annotation, (g,)
    annotation_of_gpu: Int64Array
    distinct: list[_Annotation]


def find_annotations(
    trace: Trace, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> GraphAnnotations | None:
    """Return the annotations of the GPU events of a trace; None if no event has one.

    An event without an annotation of its own takes the annotation of another replay of the same
    graph node, or else the annotation that a side file has for that node.
    """
    has_own = any(name in trace.args for name in _ARGUMENTS)
    side_files: list[Path] = []
    if "graph node id" in trace.args:
        side_files = _side_files(trace, reading)
    if not (has_own or side_files):
        return None
    distinct: Interner[_Annotation] = Interner()
    annotation_of_gpu = _annotations_in_arguments(trace, distinct)
    node_of_gpu = _node_ids(trace)
    is_annotated_node = (annotation_of_gpu != NONE) & (node_of_gpu > 0)
    _annotate_by_node(
        annotation_of_gpu=annotation_of_gpu,
        node_of_gpu=node_of_gpu,
        annotated_nodes=node_of_gpu[is_annotated_node],
        annotations=annotation_of_gpu[is_annotated_node],
    )
    for path in side_files:
        node_ids = []
        codes = []
        for node_id, entries in _read_side_file(path).items():
            node_ids.append(node_id)
            codes.append(_annotation_code(entries, distinct))
        _annotate_by_node(
            annotation_of_gpu=annotation_of_gpu,
            node_of_gpu=node_of_gpu,
            annotated_nodes=np.array(node_ids, dtype=np.int64),
            annotations=np.array(codes, dtype=np.int64),
        )
    if not distinct:
        return None
    return GraphAnnotations(
        annotation_of_gpu=annotation_of_gpu, distinct=list(distinct)
    )


def _annotations_in_arguments(
    trace: Trace, distinct: Interner[_Annotation]
) -> Int64Array:
    """Return the code of the annotation in the arguments of each GPU event, (g,)."""
    columns = [trace.arg(name).at(trace.gpu_rows) for name in _ARGUMENTS]
    # Events with equal arguments are parsed once, by the first event of their group.
    first_event_of_group, group_of_event = number_groups(columns)
    if not len(first_event_of_group):
        return np.full(len(trace.gpu_rows), NONE, dtype=np.int64)
    code_of_group = []
    for event in first_event_of_group.tolist():
        entries: list[object] = []
        for name, column in zip(_ARGUMENTS, columns, strict=True):
            entries += _argument_entries(trace, name, int(column[event]))
        code_of_group.append(_annotation_code(entries, distinct))
    return np.array(code_of_group, dtype=np.int64)[group_of_event]


def _argument_entries(trace: Trace, name: str, code: int) -> list[object]:
    """Return the annotation entries in one text of an argument; `NONE` is no text.

    Args:
        trace: the trace.
        name: one of `_ARGUMENTS`.
        code: the code of the text among the texts of the argument.
    """
    texts = trace.arg(name).texts
    if code == NONE or not texts:
        return []
    value = json_value(texts[code], texts[code])
    if name == "annotation":
        return _as_entries(value)
    return [{name: value}]


def _node_ids(trace: Trace) -> Int64Array:
    """Return a number for the graph node of each GPU event, as side files number nodes, (g,).

    The graph id is in the upper 32 bits of the number. The `graph node id` of a trace either
    contains it already or is a small number beside a `graph id`.
    """
    graph = trace.arg("graph id").at(trace.gpu_rows)
    node = trace.arg("graph node id").at(trace.gpu_rows)
    fits = node >= 0
    fits &= node < _NODE_ID_LIMIT
    fits &= graph > 0
    fits &= graph < _GRAPH_ID_LIMIT
    combined_id = graph << _BITS_OF_NODE_ID | node
    return np.where(fits, combined_id, node)


def _side_files(trace: Trace, reading: ReadingOptions) -> list[Path]:
    """Return the side files with the annotations of a trace.

    A side file lies one folder above the trace. The name of the trace begins with its rank, and
    the name of the side file contains the same rank.
    """
    if reading.kernel_annotations is not None:
        return [Path(reading.kernel_annotations)]
    path = Path(trace.provenance.path)
    rank = re.match(r"\d{1,9}", path.name)
    if rank is None or not path.is_file():
        return []
    pattern = f"kernel_annotations_rank{int(rank[0])}_*.json"
    files = path.absolute().parent.parent.glob(pattern)
    return sorted(file for file in files if reading.may_read(file))


def _read_side_file(path: Path) -> dict[int, list[object]]:
    """Return the annotation entries of each node in a side file."""
    entries_of_node = {}
    too_large_remedy = "give a file with fewer annotations, or leave out the option"
    try:
        content = read_side_file(path, _MAX_FILE_BYTES, too_large_remedy)
        for key, value in json.loads(content).items():
            entries_of_node[int(key)] = _as_entries(value)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = f"contains no kernel annotations as JSON ({type(error).__name__})"
        remedy = "give a kernel_annotations_rank….json, or leave out the option"
        raise TraceFormatError(path, problem, remedy) from None
    return {
        node: entries
        for node, entries in entries_of_node.items()
        if 0 < node < _COMBINED_ID_LIMIT
    }


def _annotate_by_node(
    annotation_of_gpu: Int64Array,
    node_of_gpu: Int64Array,
    annotated_nodes: Int64Array,
    annotations: Int64Array,
) -> None:
    """Assign events without an annotation the first annotation of their graph node.

    Args:
        annotation_of_gpu: the annotation of each GPU event, `NONE` without; modified, (g,).
        node_of_gpu: the graph node of each GPU event, (g,).
        annotated_nodes: graph nodes with an annotation, in any order, (k,).
        annotations: the annotation of each of these nodes, (k,).
    """
    if not len(annotated_nodes):
        return
    sorted_nodes, first_of_node = np.unique(annotated_nodes, return_index=True)
    # `searchsorted` returns an index for every event, also if the node there is a different one.
    index_of_gpu = np.searchsorted(sorted_nodes, node_of_gpu)
    is_found = is_within(sorted_nodes, index_of_gpu)
    is_found &= values_at(sorted_nodes, index_of_gpu) == node_of_gpu
    events = np.flatnonzero((annotation_of_gpu == NONE) & is_found)
    annotation_of_gpu[events] = annotations[first_of_node[index_of_gpu[events]]]


def _as_entries(value: object) -> list[object]:
    """Return the entries of an annotation, which is a list, a single entry, or JSON of either."""
    if isinstance(value, str) and value[:1] in {"[", "{", '"'}:
        value = json_value(value, value)
    if isinstance(value, list):
        return value
    return [value]


def _annotation_code(entries: Iterable[object], distinct: Interner[_Annotation]) -> int:
    """Return the code of the annotation that entries form together; `NONE` if it is empty.

    If two entries have the same key, the later entry wins. An entry that is not a dict is a name.
    """
    merged: dict[str, object] = {}
    for entry in entries:
        if isinstance(entry, dict):
            merged |= entry
        else:
            merged["name"] = entry
    module_path = _as_text(merged.get("module_fqn"))
    range_name = _as_text(merged.get("name", merged.get("str")))
    if not (module_path or range_name):
        return NONE
    return distinct[_Annotation(module_path, range_name)]


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return encodable(str(value))


def with_annotations(
    annotations: GraphAnnotations,
    launches: GraphLaunches,
    matches: Matches,
    captures: Sequence[Capture],
) -> tuple[list[GraphMatch | None], list[Capture]]:
    """Return the matches and captures after annotations replaced what captures say.

    An annotated GPU event belongs to the modules and the range of its annotation. Events without
    an annotation keep the captured launch that they match.

    Args:
        annotations: the annotations of the GPU events.
        launches: the n graph launches.
        matches: the captured graph that each launch replays, (n,).
        captures: the captures that the matches refer to.

    Returns:
        The new matches, (n,), and the captures followed by one more, which holds the graphs that
        were made from annotations.
    """
    annotated = _AnnotatedGraphs(annotations.distinct, captures)
    new_matches = list(matches)
    for launch, events in enumerate(launches.events):
        codes = annotations.annotation_of_gpu[events]
        if (codes != NONE).any():
            new_matches[launch] = annotated.match(codes, matches[launch])
    return new_matches, list(captures) + [
        Capture(file="", batch_size=None, mode="", graphs=annotated.graphs)
    ]


class _AnnotatedGraphs:
    """Makes one graph for each distinct combination of a match and annotations.

    Attributes:
        graphs: the graphs so far; they become one more capture after the others.
    """

    def __init__(
        self, annotations: Sequence[_Annotation], captures: Sequence[Capture]
    ) -> None:
        self.graphs: list[CapturedGraph] = []
        self._annotations = annotations
        self._captures = captures
        self._matches: dict[tuple[object, ...], GraphMatch] = {}

    def match(self, codes: Int64Array, match: GraphMatch | None) -> GraphMatch:
        """Return the match of a launch with an annotated graph.

        Args:
            codes: the annotation of each GPU event of the launch, `NONE` without, (m,); at least
                one event has an annotation.
            match: the captured graph that the launch replays; None if it is unknown.
        """
        key: tuple[object, ...] = (codes.tobytes(),)
        if match is not None:
            nodes = match.node.tobytes()
            key += (match.capture, match.graph, nodes)
        if key not in self._matches:
            self._matches[key] = self._add_graph(codes, match)
        return self._matches[key]

    def _add_graph(self, codes: Int64Array, match: GraphMatch | None) -> GraphMatch:
        """Make a graph for a launch and return the match of the launch with it."""
        base = _NO_GRAPH
        node = np.full(len(codes), NONE, dtype=np.int64)
        if match is not None:
            base = self._captures[match.capture].graphs[match.graph]
            node = match.node.copy()
        is_annotated = codes != NONE
        distinct_codes, index_of_code = np.unique(
            codes[is_annotated], return_inverse=True
        )
        annotations = [self._annotations[code] for code in distinct_codes.tolist()]
        self.graphs.append(_annotated_graph(annotations, base))
        # The graph has one more launch for each annotation, after the launches of `base`.
        node[is_annotated] = len(base.launches) + index_of_code
        return GraphMatch(
            capture=len(self._captures), graph=len(self.graphs) - 1, node=node
        )


_NO_GRAPH: Final = CapturedGraph(
    names=[],
    kind=np.empty(0, dtype=np.uint8),
    parent=np.empty(0, dtype=np.int32),
    args={},
    launches=np.empty(0, dtype=np.int64),
    nodes=[],
    likely_nodes=[],
)


def _annotated_graph(
    annotations: Sequence[_Annotation], base: CapturedGraph
) -> CapturedGraph:
    """Return a graph with one more launch for each annotation, within the annotation's modules.

    The launch is a range, named after the annotation's range or, without one, its module path.
    """
    names = list(base.names)
    kinds = base.kind.tolist()
    parents = base.parent.tolist()
    launches = base.launches.tolist()
    event_of_module: dict[tuple[int, str], int] = {}

    def add_event(name: str, kind: EventKind, parent: int) -> int:
        names.append(name)
        kinds.append(kind)
        parents.append(parent)
        return len(names) - 1

    for annotation in annotations:
        parent = ROOT
        for module in module_names(annotation.module_path):
            key = (parent, module)
            if key not in event_of_module:
                event_name = MODULE_PREFIX + module
                event_of_module[key] = add_event(
                    event_name, EventKind.PYTHON_FUNCTION, parent
                )
            parent = event_of_module[key]
        range_name = annotation.range_name or annotation.module_path
        launches.append(add_event(range_name, EventKind.USER_ANNOTATION, parent))
    return replace(
        base,
        names=names,
        kind=np.array(kinds, dtype=np.uint8),
        parent=np.array(parents, dtype=np.int32),
        launches=np.array(launches, dtype=np.int64),
    )


def module_names(path: str) -> list[str]:
    """Return the modules of a path: `layers/0` and `attention` for `layers.0.attention`."""
    names: list[str] = []
    for part in filter(None, path.split(".")):
        if part.isdecimal() and names:
            names[-1] += SEPARATOR + part
        else:
            names.append(part)
    return names
