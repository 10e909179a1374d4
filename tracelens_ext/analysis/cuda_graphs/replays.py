"""What the graph launches of a trace replay, of captures here or in other files; the call tree."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tracelens_ext.analysis.cuda_graphs import captures as recorded
from tracelens_ext.analysis.cuda_graphs.annotations import find_annotations, with_annotations
from tracelens_ext.analysis.cuda_graphs.captures import Capture, CapturedGraph, GraphLaunches
from tracelens_ext.analysis.cuda_graphs.matching import (
    GraphMatch,
    GraphMatcher,
    Matches,
    padded_sizes,
)
from tracelens_ext.analysis.modules import MODULE_PREFIX
from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError, TraceNotFoundError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import NONE, ArgColumn, EventKind, Int64Array, Replays, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.nesting import ROOT, at_or_above, nearest_marked


@dataclass(frozen=True, eq=False)
class GraphReplays:
    """What the graph launches of a trace replay, n of them."""

    tree: CallTree  #: the call tree, with the host events of the captures
    launches: GraphLaunches  #: the graph launches
    matches: list[GraphMatch | None]  #: what each replays; None where no capture fits
    #: what `matches` refers to; none where only annotations tell what is replayed
    captures: list[Capture]


def find_replays(
    tree: CallTree,
    source: str | os.PathLike[str] | None = None,
    cache: TraceCache | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> GraphReplays | None:
    """Find what the graph launches of a trace replay: in its own captures, and those of `source`.

    None if there is no graph launch, or nothing to look in. Raises TraceError where `source` (a
    trace, or a folder of traces) holds no capture, or cannot be read.
    """
    if not tree.by_graph.any():  # as in most traces
        return None
    trace = tree.trace
    own = recorded.holds_captures(trace)
    annotations = find_annotations(trace, reading)
    if not (own or annotations or source is not None):
        return None
    launches = recorded.find_graph_launches(tree)
    captures: list[Capture] = []
    if own:
        full = tree if tree.add_python_func else CallTree(trace, add_python_func=True)
        captures += recorded.find_captures(full, trace.provenance.path)
    if source is not None:
        steps = np.unique(launches.tokens)
        tokens = None if NONE in steps else steps.tolist()
        known = trace.provenance.path if captures else ""
        captures += read_captures(source, tokens, cache, known, reading)
    if not captures and source is None and annotations is None:
        return None
    matches = GraphMatcher(trace, launches, captures).matches()
    shown = matches
    graphs = captures
    if annotations is not None:
        shown, graphs = with_annotations(annotations, launches, matches, captures)
    if any(match is not None for match in shown):
        tree = with_replays(tree, launches, shown, graphs)
    return GraphReplays(tree, launches, matches, captures)


#: Captured events that may be added, over all replays: two gigabytes of them.
_MOST_ROWS: Final = 2**25


def with_replays(
    tree: CallTree, launches: GraphLaunches, matches: Matches, captures: Sequence[Capture]
) -> CallTree:
    """Add what was around the captured launches, once for each graph launch that replays them."""
    added = _Added(tree.trace, python_frames=tree.add_python_func)
    same: defaultdict[tuple[int, int, bytes], list[int]] = defaultdict(list)
    for number, match in enumerate(matches):
        if match is not None:
            same[match.capture, match.graph, match.node.tobytes()].append(number)
    for (capture, graph, content), numbers in same.items():
        node = np.frombuffer(content, np.int64)
        events = [launches.events[i] for i in numbers]
        added.add(captures[capture].graphs[graph], node, launches.rows[numbers], np.stack(events))
    return tree.with_replays(added.finish())


class _Added:
    """Collects the rows that are added to a trace."""

    def __init__(self, trace: Trace, *, python_frames: bool) -> None:
        self._trace = trace
        self._python_frames = python_frames
        self._names: Interner[str] = Interner()
        self._names.codes(trace.names, -1)
        self._rows = 0
        #: code of the name, kind, parent, graph launch of the rows, part by part
        self._parts: list[tuple[np.ndarray, ...]] = [(np.empty(0, dtype=np.int64),) * 4]
        self._launch_of_gpu = np.full(len(trace.gpu_rows), NONE, dtype=np.int64)
        #: argument → rows and codes; and its distinct texts with their codes
        self._args: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
        self._texts: dict[str, Interner[str]] = {}

    def add(
        self, graph: CapturedGraph, node: Int64Array, launches: Int64Array, events: Int64Array
    ) -> None:
        """Add a graph for n launches whose `events`, (n, m), replay the same nodes of it, (m,)."""
        needed = at_or_above(graph.parent, graph.launches[node[node != NONE]])
        if not self._python_frames:
            is_module = np.array([name.startswith(MODULE_PREFIX) for name in graph.names])
            needed &= is_module | (graph.kind != EventKind.PYTHON_FUNCTION)
        above = nearest_marked(graph.parent, needed)
        places = np.flatnonzero(needed)
        index = np.full(len(needed) + 1, ROOT, dtype=np.int64)
        index[places] = np.arange(len(places))
        if self._rows + len(places) * len(launches) > _MOST_ROWS:
            problem = f"its graph launches replay over {_MOST_ROWS:,} captured events"
            remedy = "analyse fewer steps, or without Python frames"
            raise TraceError(self._trace.provenance.path, problem, remedy)
        begin = self._rows + len(places) * np.arange(len(launches))[:, None]
        parent = index[above[places]]
        parent = np.where(parent == ROOT, ROOT, parent + begin).ravel()
        codes = [self._names[graph.names[i]] for i in places.tolist()]
        columns = [np.tile(each, len(launches)) for each in (codes, graph.kind[places])]
        self._parts.append((*columns, parent, np.repeat(launches, len(places))))
        replayed = np.flatnonzero(node != NONE)
        captured = index[graph.launches[node[replayed]]]
        self._launch_of_gpu[events[:, replayed]] = len(self._trace) + begin + captured
        for name, (having, said) in graph.args.items():
            kept = np.flatnonzero(needed[having])
            rows = (begin + index[having[kept]]).ravel()
            if (known := self._texts.get(name)) is None:
                known = self._texts[name] = Interner()
                known.codes(self._trace.arg(name).texts or [], -1)
            values = [known[said[i]] for i in kept.tolist()]
            self._args.setdefault(name, []).append((rows, np.tile(values, len(launches))))
        self._rows += len(places) * len(launches)

    def finish(self) -> Trace:
        """The trace with all that was added."""
        trace = self._trace
        name, kind, parent, launch = map(np.concatenate, zip(*self._parts, strict=True))
        none = np.full(self._rows, NONE)
        args = dict(trace.args)
        for argument, parts in self._args.items():
            column = trace.arg(argument)
            rows, values = map(np.concatenate, zip(*parts, strict=True))
            args[argument] = ArgColumn(
                np.append(column.rows, len(trace) + rows).astype(np.int32),
                np.append(column.values, values.astype(np.int64)),
                list(self._texts[argument]),
            )
        added = {"dur": np.zeros(self._rows, np.int64), "name": name, "kind": kind}
        added |= {each: getattr(trace, each)[launch] for each in ("ts", "thread", "category")}
        added |= {"correlation": none, "external_id": none}
        columns: dict[str, Any] = {}
        for each, more in added.items():
            of = getattr(trace, each)
            columns[each] = np.append(of, more.astype(of.dtype))
        replays = Replays(parent.astype(np.int32), launch, self._launch_of_gpu)
        return replace(trace, **columns, names=list(self._names), args=args, replays=replays)


#: Says of each file of its folder what it was captured for.
DETAILS: Final = "execution_details.json"
_SUFFIXES: Final = (".json", ".json.gz")
_MOST_BYTES: Final = 10**7


class _Detail(msgspec.Struct):
    """What `execution_details.json` says of a file."""

    file: str
    batch_size: int | None = None
    mode: str | None = None


def read_captures(
    source: str | os.PathLike[str],
    tokens: Collection[int] | None,
    cache: TraceCache | None,
    known: str = "",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> list[Capture]:
    """The captures in a trace, or in all traces in a folder and below it, but for that of `known`.

    Files that the details list under other batch sizes than `tokens` (None: all) are not read.
    Raises TraceError where there is no other capture, or a file cannot be read.
    """
    path = Path(source)
    is_folder = path.is_dir()
    files = _files_in(path) if is_folder else [path]
    if known:
        files = [file for file in files if os.path.realpath(known) != os.path.realpath(file)]
    details = {folder: _read_details(folder / DETAILS) for folder in {f.parent for f in files}}
    said = {file: details[file.parent].get(file.name, []) for file in files}
    found: list[Capture] = []
    passed_over: TraceFormatError | None = None
    wanted = _wanted(said, tokens)
    for file in wanted:
        try:
            tree = CallTree(read_trace(file, cache=cache, reading=reading), add_python_func=True)
        except TraceFormatError as error:
            if not is_folder or isinstance(error, TraceCutOffError):
                raise
            passed_over = error
            continue
        for capture in recorded.find_captures(tree, file.name):
            if capture.batch_size is None and len(said[file]) == 1:
                (about,) = said[file]
                capture = replace(capture, batch_size=about.batch_size, mode=about.mode or "")
            found.append(capture)
    if wanted and not found:
        remedy = "name the profile of the engine's start, in which it captured its graphs"
        raise passed_over or TraceFormatError(path, "holds no capture of a CUDA graph", remedy)
    return found


def _files_in(folder: Path) -> list[Path]:
    """The files in a folder, and in those below it, that may be traces."""

    def refuse(error: OSError) -> None:
        raise TraceNotFoundError.of(Path(error.filename or folder), error) from error

    every = (Path(at, name) for at, _, names in os.walk(folder, onerror=refuse) for name in names)
    files = [file for file in every if file.name.endswith(_SUFFIXES) and file.name != DETAILS]
    if not files:
        remedy = "name the folder of the capture traces"
        raise TraceNotFoundError(folder, "holds no .json or .json.gz file", remedy)
    return sorted(files)


def _read_details(path: Path) -> dict[str, list[_Detail]]:
    """What the details say, by name of file; nothing without that file."""
    try:
        with path.open("rb") as file:
            details = msgspec.json.decode(file.read(_MOST_BYTES), type=list[_Detail])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problem = f"is no list of file, batch_size and mode ({error})"
        raise TraceFormatError(path, problem, "correct it, or take it away") from error
    by_file: defaultdict[str, list[_Detail]] = defaultdict(list)
    for detail in details:
        by_file[Path(detail.file).name].append(detail)
    return by_file


def _wanted(said: dict[Path, list[_Detail]], tokens: Collection[int] | None) -> list[Path]:
    """The files that may hold what is looked for, of those with what the details say of each."""
    captured = {file: {(d.batch_size, d.mode or "") for d in its} for file, its in said.items()}
    sizes = set().union(*captured.values())
    if tokens is None or not all(captured.values()) or any(size is None for size, _ in sizes):
        return list(said)
    wanted = set().union(*(padded_sizes(each, sizes) for each in tokens))
    return [file for file, its in captured.items() if wanted & its]
