"""Reads PyTorch's annotations of the kernels, copies and fills of CUDA graphs.

Keys of a dict given while the graph was captured: in the arguments of GPU events, or a side file.
`module_fqn` is a path of modules, as torchtitan writes; without it `name` is a range. Written by
PyTorch's `cuda/_annotate_cuda_graph_trace.py` and `profiler/_cupti/monitor_trace.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captures import (
    Capture,
    CapturedGraph,
    GraphLaunches,
)
from tracelens_ext.analysis.cuda_graphs.matching import GraphMatch, Matches
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, json_value
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.lookup import is_within, values_at
from tracelens_ext.trace.nesting import ROOT


class _Place(NamedTuple):
    """Where an annotated GPU event belongs; one of the two may be empty."""

    modules: str  #: a path of modules
    name: str  #: of a range in them


#: The arguments of GPU events that annotate them; the first has a whole annotation.
_ARGUMENTS: Final = ("annotation", "module_fqn", "name")
_MOST_BYTES: Final = 10**9
#: A graph and a node below these are told by two numbers, others by that of the node alone.
_BITS_OF_NODE: Final = 32
_MOST_NODES: Final = 1 << _BITS_OF_NODE
_MOST_GRAPHS: Final = 1 << 31
_MOST_NODE_ID: Final = 1 << 63


@dataclass(frozen=True, eq=False)
class Annotations:
    """What is known of the GPU events of a trace, g of them."""

    place_of_gpu: Int64Array  #: an index into `places` for each, `NONE` without, (g,)
    places: list[_Place]


def find_annotations(
    trace: Trace, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Annotations | None:
    """Return the annotations of GPU events; None if there are none.

    An event has its own, that of another replay of its node, or that of its node in a side file.
    """
    has_own = any(name in trace.args for name in _ARGUMENTS)
    side_files: list[Path] = []
    if "graph node id" in trace.args:
        side_files = _side_files(trace, reading)
    if not (has_own or side_files):
        return None
    places: Interner[_Place] = Interner()
    place_of_gpu = _own_places(trace, places)
    node = _node_ids(trace)
    is_known = (place_of_gpu != NONE) & (node > 0)
    _fill(
        place_of_gpu=place_of_gpu,
        node=node,
        known_nodes=node[is_known],
        codes=place_of_gpu[is_known],
    )
    for path in side_files:
        node_ids = []
        codes = []
        for node_id, entries in _read(path).items():
            node_ids.append(node_id)
            codes.append(_place_code(entries, places))
        known_nodes = np.array(node_ids, dtype=np.int64)
        _fill(
            place_of_gpu=place_of_gpu,
            node=node,
            known_nodes=known_nodes,
            codes=np.array(codes, dtype=np.int64),
        )
    if not places:
        return None
    return Annotations(place_of_gpu=place_of_gpu, places=list(places))


def _own_places(trace: Trace, places: Interner[_Place]) -> Int64Array:
    """Return the codes of the places in the arguments of GPU events, (g,)."""
    columns = [trace.arg(name).at(trace.gpu_rows) for name in _ARGUMENTS]
    example, group = number_groups(columns)
    if not len(example):
        return np.full(len(trace.gpu_rows), NONE, dtype=np.int64)
    codes = []
    for row in example.tolist():
        entries: list[object] = []
        for name, column in zip(_ARGUMENTS, columns, strict=True):
            entries += _argument_entries(trace, name, int(column[row]))
        codes.append(_place_code(entries, places))
    return np.array(codes, dtype=np.int64)[group]


def _argument_entries(trace: Trace, name: str, code: int) -> list[object]:
    """Return the entries of an annotation that an argument has, by the code of its text."""
    texts = trace.arg(name).texts
    if code == NONE or not texts:
        return []
    value = json_value(texts[code], texts[code])
    if name == "annotation":
        return _as_entries(value)
    return [{name: value}]


def _node_ids(trace: Trace) -> Int64Array:
    """Return a number for the graph node of each GPU event, (g,).

    It is the number of the node as a side file has it: that of the graph in the upper 32 bits.
    """
    graph = trace.arg("graph id").at(trace.gpu_rows)
    node = trace.arg("graph node id").at(trace.gpu_rows)
    fits = node >= 0
    fits &= node < _MOST_NODES
    fits &= graph > 0
    fits &= graph < _MOST_GRAPHS
    node_of_graph = graph << _BITS_OF_NODE | node
    return np.where(fits, node_of_graph, node)


def _side_files(trace: Trace, reading: ReadingOptions) -> list[Path]:
    """Return the side files of a trace.

    They lie one folder above it, and have the rank in their name that its name begins with.
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


def _read(path: Path) -> dict[int, list[object]]:
    """Return the entries for each node in a side file."""
    entries_of_node = {}
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
        for key, value in content.items():
            entries_of_node[int(key)] = _as_entries(value)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = f"contains no kernel annotations as JSON ({type(error).__name__})"
        remedy = "give a kernel_annotations_rank….json, or leave out the option"
        raise TraceFormatError(path, problem, remedy) from None
    return {
        node: entries
        for node, entries in entries_of_node.items()
        if 0 < node < _MOST_NODE_ID
    }


def _fill(
    place_of_gpu: Int64Array,
    node: Int64Array,
    known_nodes: Int64Array,
    codes: Int64Array,
) -> None:
    """Give events without a place that of their node, in place.

    Args:
        place_of_gpu: the place of each GPU event, (g,).
        node: of each GPU event, (g,).
        known_nodes: nodes of which a place is known, (k,).
        codes: the places of these, (k,).
    """
    if not len(known_nodes):
        return
    sorted_nodes, first = np.unique(known_nodes, return_index=True)
    index = np.searchsorted(sorted_nodes, node)
    is_known = (values_at(sorted_nodes, index) == node) & is_within(sorted_nodes, index)
    events = np.flatnonzero((place_of_gpu == NONE) & is_known)
    place_of_gpu[events] = codes[first[index[events]]]


def _as_entries(value: object) -> list[object]:
    """Return the entries of an annotation: a list, one entry, or JSON of these."""
    if isinstance(value, str) and value[:1] in {"[", "{", '"'}:
        value = json_value(value, value)
    if isinstance(value, list):
        return value
    return [value]


def _place_code(entries: Iterable[object], places: Interner[_Place]) -> int:
    """Return the code of the place that entries name together, `NONE` if they name none.

    Of two entries with the same key the later one wins.
    """
    members: dict[str, object] = {}
    for entry in entries:
        if isinstance(entry, dict):
            members |= entry
        else:
            members["name"] = entry
    modules = _shown(members.get("module_fqn"))
    name = _shown(members.get("name", members.get("str")))
    if not (modules or name):
        return NONE
    return places[_Place(modules, name)]


def _shown(value: object) -> str:
    if value is None:
        return ""
    return encodable(str(value))


def with_annotations(
    annotations: Annotations,
    launches: GraphLaunches,
    matches: Matches,
    captures: Sequence[Capture],
) -> tuple[list[GraphMatch | None], list[Capture]]:
    """Return matches and captures with what is annotated, which wins over captures.

    Args:
        annotations: of the GPU events.
        launches: the graph launches, n of them.
        matches: what each replays, (n,).
        captures: what the matches refer to.

    Returns:
        The new matches, (n,), and the captures with one more: the annotated graphs.
    """
    annotated = _AnnotatedGraphs(annotations.places, captures)
    new_matches = list(matches)
    for number, events in enumerate(launches.events):
        places = annotations.place_of_gpu[events]
        if (places != NONE).any():
            new_matches[number] = annotated.match(places, matches[number])
    return new_matches, list(captures) + [
        Capture(file="", batch_size=None, mode="", graphs=annotated.graphs)
    ]


class _AnnotatedGraphs:
    """Graphs with what is annotated: one for each distinct match and places.

    Attributes:
        graphs: the graphs so far; they become one more capture, behind the others.
    """

    def __init__(self, places: Sequence[_Place], captures: Sequence[Capture]) -> None:
        self.graphs: list[CapturedGraph] = []
        self._places = places
        self._captures = captures
        self._matches: dict[tuple[object, ...], GraphMatch] = {}

    def match(self, places: Int64Array, match: GraphMatch | None) -> GraphMatch:
        """Return what a launch replays.

        Args:
            places: those of its GPU events, (m,), of which one at least is known.
            match: what it replays of a capture.
        """
        key: tuple[object, ...] = (places.tobytes(),)
        if match is not None:
            nodes = match.node.tobytes()
            key += (match.capture, match.graph, nodes)
        if key not in self._matches:
            self._matches[key] = self._add_graph(places, match)
        return self._matches[key]

    def _add_graph(self, places: Int64Array, match: GraphMatch | None) -> GraphMatch:
        base = _NO_GRAPH
        node = np.full(len(places), NONE, dtype=np.int64)
        if match is not None:
            base = self._captures[match.capture].graphs[match.graph]
            node = match.node.copy()
        is_annotated = places != NONE
        annotated_places = places[is_annotated]
        distinct = np.unique(annotated_places)
        annotations = [self._places[code] for code in distinct.tolist()]
        graph = _annotated_graph(annotations, base)
        first_new_node = len(base.launches)
        number = np.searchsorted(distinct, annotated_places)
        node[is_annotated] = first_new_node + number
        self.graphs.append(graph)
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
    likely=[],
)


def _annotated_graph(places: Sequence[_Place], base: CapturedGraph) -> CapturedGraph:
    """Return a graph with a launch for each place behind its own: a range within its modules."""
    names = list(base.names)
    kinds = base.kind.tolist()
    parents = base.parent.tolist()
    launches = base.launches.tolist()
    module_events: dict[tuple[int, str], int] = {}

    def add(name: str, kind: EventKind, parent: int) -> int:
        names.append(name)
        kinds.append(kind)
        parents.append(parent)
        return len(names) - 1

    for place in places:
        parent = ROOT
        for module in module_names(place.modules):
            key = (parent, module)
            if key not in module_events:
                name = MODULE_PREFIX + module
                module_events[key] = add(name, EventKind.PYTHON_FUNCTION, parent)
            parent = module_events[key]
        launch = add(place.name or place.modules, EventKind.USER_ANNOTATION, parent)
        launches.append(launch)
    return replace(
        base,
        names=names,
        kind=np.array(kinds, dtype=np.uint8),
        parent=np.array(parents, dtype=np.int32),
        launches=np.array(launches, dtype=np.int64),
    )


def module_names(path: str) -> list[str]:
    """Return the modules of a path: of `layers.0.attention` these are `layers/0`, `attention`."""
    names: list[str] = []
    for part in filter(None, path.split(".")):
        if part.isdecimal() and names:
            names[-1] += SEPARATOR + part
        else:
            names.append(part)
    return names
