"""What PyTorch's annotations say of the kernels, copies and fills of CUDA graphs.

Keys of a dict given while the graph was captured: in the arguments of GPU events, or a side file.
`module_fqn` is a path of modules, as torchtitan writes; without it `name` is a range. Written by
PyTorch's `cuda/_annotate_cuda_graph_trace.py` and `profiler/_cupti/monitor_trace.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captures import Capture, CapturedGraph, GraphLaunches
from tracelens_ext.analysis.cuda_graphs.matching import GraphMatch, Matches
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable, json_value
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.nesting import ROOT

#: A path of modules, and a name; one of them may be empty.
_Word = tuple[str, str]
_ARGUMENTS: Final = ("annotation", "module_fqn", "name")
_MOST_BYTES: Final = 10**9


#: What is said of the GPU events of a trace: of each an index into the words, `NONE` without, (g,).
Annotations = tuple[Int64Array, list[_Word]]


def find_annotations(
    trace: Trace, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Annotations | None:
    """What is said of GPU events: by themselves, other replays of their node, or a side file."""
    has_own = any(name in trace.args for name in _ARGUMENTS)
    sides = _side_files(trace, reading) if "graph node id" in trace.args else []
    if not (has_own or sides):
        return None
    words: Interner[_Word] = Interner()
    gpu = trace.gpu_rows
    codes = [trace.arg(name).at(gpu) for name in _ARGUMENTS]
    first, group = number_groups(codes)
    said = []
    for distinct in zip(*(column[first].tolist() for column in codes), strict=True):
        entries: list[object] = []
        for name, code in zip(_ARGUMENTS, distinct, strict=True):
            if code != NONE and (texts := trace.arg(name).texts):
                value = json_value(texts[code], texts[code])
                entries += _listed(value) if name == "annotation" else [{name: value}]
        said.append(_code(entries, words))
    of_gpu = np.array(said or [NONE], dtype=np.int64)[group]
    graph, node = (trace.arg(name).at(gpu) for name in ("graph id", "graph node id"))
    whole = (node >= 0) & (node < 1 << 32) & (graph > 0) & (graph < 1 << 31)
    node = np.where(whole, graph << 32 | node, node)
    known = (of_gpu != NONE) & (node > 0)
    _fill(of_gpu, node, node[known], of_gpu[known])
    for path in sides:
        beside = {number: _code(entries, words) for number, entries in _read(path)}
        ids, values = (np.array(list(part), np.int64) for part in (beside, beside.values()))
        _fill(of_gpu, node, ids, values)
    return (of_gpu, list(words)) if words else None


def _side_files(trace: Trace, reading: ReadingOptions) -> list[Path]:
    """The files beside a trace: its name begins with the rank, they are one folder above."""
    if reading.kernel_annotations is not None:
        return [Path(reading.kernel_annotations)]
    path = Path(trace.provenance.path)
    rank = re.match(r"\d{1,9}", path.name)
    if rank is None or not path.is_file():
        return []
    pattern = f"kernel_annotations_rank{int(rank[0])}_*.json"
    return sorted(filter(reading.may_read, path.absolute().parent.parent.glob(pattern)))


def _read(path: Path) -> Iterable[tuple[int, list[object]]]:
    """The node ids of a side file, and what it says of each."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
        items = [(int(key), _listed(value)) for key, value in content.items()]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = f"holds no annotations of kernels as JSON ({type(error).__name__})"
        remedy = "name a kernel_annotations_rank….json, or take it away"
        raise TraceFormatError(path, problem, remedy) from None
    return [(number, entries) for number, entries in items if 0 < number < 1 << 63]


def _fill(of_gpu: Int64Array, node: Int64Array, ids: Int64Array, codes: Int64Array) -> None:
    """Give events without a word that of their node."""
    if not len(ids):
        return
    ids, first = np.unique(ids, return_index=True)
    at = np.minimum(np.searchsorted(ids, node), len(ids) - 1)
    those = (of_gpu == NONE) & (ids[at] == node)
    of_gpu[those] = codes[first[at[those]]]


def _listed(value: object) -> list[object]:
    """The entries of an annotation: a list, one entry, or JSON of these."""
    if isinstance(value, str) and value[:1] in {"[", "{", '"'}:
        value = json_value(value, value)
    return value if isinstance(value, list) else [value]


def _code(entries: Iterable[object], words: Interner[_Word]) -> int:
    """The word of the entries together, of which later ones win; `NONE` if they tell no place."""
    said: dict[str, object] = {}
    for entry in entries:
        said |= entry if isinstance(entry, dict) else {"name": entry}
    names = (said.get("module_fqn"), said.get("name", said.get("str")))
    module, name = (encodable(str(each)) if each is not None else "" for each in names)
    return words[module, name] if module or name else NONE


def with_annotations(
    said: Annotations, launches: GraphLaunches, matches: Matches, captures: Sequence[Capture]
) -> tuple[list[GraphMatch | None], list[Capture]]:
    """Matches and captures with what is annotated, which wins over captures."""
    of_gpu, words = said
    graphs: list[CapturedGraph] = []
    known: dict[tuple[object, ...], GraphMatch] = {}
    result = list(matches)
    for number, (events, match) in enumerate(zip(launches.events, matches, strict=True)):
        codes = of_gpu[events]
        if (codes == NONE).all():
            continue
        base = None
        node = np.full(len(codes), NONE, dtype=np.int64)
        key = codes.tobytes(), NONE, NONE, b""
        if match is not None:
            base = captures[match.capture].graphs[match.graph]
            node = match.node
            key = codes.tobytes(), match.capture, match.graph, node.tobytes()
        if key not in known:
            distinct, place = np.unique(codes, return_inverse=True)
            graph = _annotated_graph([words[c] for c in distinct if c != NONE], base)
            leaf = place.reshape(-1) + (0 if base is None else len(base.launches))
            leaf -= int(distinct[0] == NONE)
            known[key] = GraphMatch(len(captures), len(graphs), np.where(codes == NONE, node, leaf))
            graphs.append(graph)
        result[number] = known[key]
    return result, [*captures, Capture("", None, "", graphs)]


def _annotated_graph(words: Sequence[_Word], base: CapturedGraph | None) -> CapturedGraph:
    """Modules with a range in them for each word, its launch; behind those of a capture."""
    none = np.empty(0, np.int64)
    base = base or CapturedGraph([], none, none, {}, none, [], [])  # type: ignore[arg-type]
    first = len(base.names)
    leaves = []
    added: list[tuple[str, EventKind, int]] = []
    modules: dict[tuple[int, str], int] = {}
    for path, name in words:
        at = ROOT
        for module in module_names(path):
            if (at, module) not in modules:
                modules[at, module] = first + len(added)
                added.append((MODULE_PREFIX + module, EventKind.PYTHON_FUNCTION, at))
            at = modules[at, module]
        leaves.append(first + len(added))
        added.append((name or path, EventKind.USER_ANNOTATION, at))
    names, kinds, parents = zip(*added, strict=True)
    kind = np.append(base.kind, kinds).astype(np.uint8)
    parent = np.append(base.parent, parents).astype(np.int32)
    launches = np.append(base.launches, leaves).astype(np.int64)
    return replace(base, names=[*base.names, *names], kind=kind, parent=parent, launches=launches)


def module_names(path: str) -> list[str]:
    """The modules of `layers.0.attention`: `layers/0`, `attention`."""
    names: list[str] = []
    for part in filter(None, path.split(".")):
        if part.isdecimal() and names:
            names[-1] += SEPARATOR + part
        else:
            names.append(part)
    return names
