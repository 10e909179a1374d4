"""Finds what graph launches replay, and adds it to the call tree.

Captures of the graphs are in the trace itself or in other files.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.analysis.cuda_graphs import captures as recorded
from tracelens_ext.analysis.cuda_graphs.annotations import (
    find_annotations,
    with_annotations,
)
from tracelens_ext.analysis.cuda_graphs.captures import (
    Capture,
    CapturedGraph,
    GraphLaunches,
)
from tracelens_ext.analysis.cuda_graphs.matching import (
    GraphMatch,
    GraphMatcher,
    Matches,
    PaddedSize,
    padded_sizes,
)
from tracelens_ext.analysis.modules import MODULE_PREFIX
from tracelens_ext.errors import (
    TraceCutOffError,
    TraceError,
    TraceFormatError,
    TraceNotFoundError,
)
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import (
    NONE,
    ArgColumn,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
    Replays,
    Trace,
)
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
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
    """Return what the graph launches of a trace replay.

    Args:
        tree: the call tree of the trace, whose own captures are used too.
        source: a trace, or a folder of traces, with captures.
        cache: of parsed traces.
        reading: how files are read.

    Returns:
        None if there is no graph launch, or nothing to look in.

    Raises:
        TraceError: `source` holds no capture, or cannot be read.
    """
    if not tree.by_graph.any():  # as in most traces
        return None
    trace = tree.trace
    has_own_captures = recorded.holds_captures(trace)
    annotations = find_annotations(trace, reading)
    if not (has_own_captures or annotations or source is not None):
        return None
    launches = recorded.find_graph_launches(tree)
    captures: list[Capture] = []
    if has_own_captures:
        captures += _own_captures(tree)
    if source is not None:
        own_file = ""
        if captures:
            own_file = trace.provenance.path
        captures += read_captures(
            source=source,
            tokens=_tokens_of_steps(launches),
            cache=cache,
            known=own_file,
            reading=reading,
        )
    if not captures and source is None and annotations is None:
        return None
    matches = GraphMatcher(trace=trace, launches=launches, captures=captures).matches()
    shown_matches = matches
    shown_captures = captures
    if annotations is not None:
        shown_matches, shown_captures = with_annotations(
            annotations=annotations,
            launches=launches,
            matches=matches,
            captures=captures,
        )
    if any(match is not None for match in shown_matches):
        tree = with_replays(
            tree=tree, launches=launches, matches=shown_matches, captures=shown_captures
        )
    return GraphReplays(
        tree=tree, launches=launches, matches=matches, captures=captures
    )


def _own_captures(tree: CallTree) -> list[Capture]:
    """Return the captures in a trace; their operations are told by Python frames, too."""
    trace = tree.trace
    tree_with_frames = tree
    if not tree.add_python_func:
        tree_with_frames = CallTree(trace, add_python_func=True)
    return recorded.find_captures(tree_with_frames, trace.provenance.path)


def _tokens_of_steps(launches: GraphLaunches) -> list[int] | None:
    """Return the distinct tokens of the steps with graph launches; None if some are unknown."""
    distinct = np.unique(launches.tokens)
    tokens: list[int] = distinct.tolist()
    if NONE in tokens:
        return None
    return tokens


#: Captured events that may be added, over all replays: two gigabytes of them.
_MOST_ROWS: Final = 2**25


class _Replayed(NamedTuple):
    """What launches that are replayed alike have in common."""

    capture: int
    graph: int
    node: bytes  #: as `GraphMatch.node`


def with_replays(
    tree: CallTree,
    launches: GraphLaunches,
    matches: Matches,
    captures: Sequence[Capture],
) -> CallTree:
    """Add what was around the captured launches, once for each graph launch that replays them.

    Raises:
        TraceError: that would be too much.
    """
    launches_by_replayed: defaultdict[_Replayed, list[int]] = defaultdict(list)
    for number, match in enumerate(matches):
        if match is not None:
            replayed = _Replayed(
                capture=match.capture, graph=match.graph, node=match.node.tobytes()
            )
            launches_by_replayed[replayed].append(number)
    added = _AddedEvents(tree.trace, python_frames=tree.add_python_func)
    for replayed, numbers in launches_by_replayed.items():
        capture = captures[replayed.capture]
        graph = capture.graphs[replayed.graph]
        node = np.frombuffer(replayed.node, np.int64)
        events = np.stack([launches.events[number] for number in numbers])
        added.add(graph, node, launches.rows[numbers], events)
    return tree.with_replays(added.finish())


class _Rows(NamedTuple):
    """Host events that are added to a trace, r of them, each of shape (r,)."""

    name: Int64Array  #: code
    kind: Int64Array
    parent: Int64Array  #: place among all that are added, `ROOT` for the outermost
    launch: Int64Array  #: the graph launch that replays them


class _AddedArgument:
    """An argument of the events that are added.

    Attributes:
        rows: pieces of rows that have it.
        codes: as many pieces of codes of its texts.
        texts: the distinct texts, beginning with those of the trace.
    """

    def __init__(self, texts_of_trace: Sequence[str]) -> None:
        self.rows: list[Int64Array] = []
        self.codes: list[Int64Array] = []
        self.texts: Interner[str] = Interner()
        self.texts.codes(texts_of_trace, len(texts_of_trace))


class _AddedEvents:
    """Collects the events that are added to a trace."""

    def __init__(self, trace: Trace, *, python_frames: bool) -> None:
        self._trace = trace
        self._python_frames = python_frames
        self._names: Interner[str] = Interner()
        self._names.codes(trace.names, len(trace.names))
        self._count = 0
        self._parts: list[_Rows] = []
        self._launch_of_gpu = np.full(len(trace.gpu_rows), NONE, dtype=np.int64)
        self._args: dict[str, _AddedArgument] = {}

    def add(
        self,
        graph: CapturedGraph,
        node: Int64Array,
        launches: Int64Array,
        events: Int64Array,
    ) -> None:
        """Add the host events of a graph once for each launch.

        Args:
            graph: what is replayed.
            node: the captured launch of each GPU event of a launch, `NONE` without, (m,).
            launches: the graph launches, (n,).
            events: the GPU events of each, (n, m).
        """
        is_needed = self._needed_events(graph, node)
        places = np.flatnonzero(is_needed)
        count = len(places) * len(launches)
        if self._count + count > _MOST_ROWS:
            problem = (
                f"its graph launches replay more than {_MOST_ROWS:,} captured events"
            )
            remedy = "analyze fewer steps, or record without Python frames"
            raise TraceError(
                path=self._trace.provenance.path, problem=problem, remedy=remedy
            )
        #: Event of the graph → its place among those that are needed.
        index = np.full(len(is_needed), NONE, dtype=np.int64)
        index[places] = np.arange(len(places))
        number_of_launch = np.arange(len(launches))[:, None]
        begin = self._count + len(places) * number_of_launch
        needed_above = nearest_marked(graph.parent, is_needed)[places]
        parent = values_at(index, needed_above)
        parent_of_launch = np.where(parent == NONE, ROOT, parent + begin)
        codes = [self._names[graph.names[place]] for place in places.tolist()]
        name = np.array(codes, dtype=np.int64)
        kind = graph.kind[places].astype(np.int64)
        rows = _Rows(
            name=np.tile(name, len(launches)),
            kind=np.tile(kind, len(launches)),
            parent=parent_of_launch.ravel(),
            launch=np.repeat(launches, len(places)),
        )
        self._parts.append(rows)
        replayed = np.flatnonzero(node != NONE)
        captured_launch = index[graph.launches[node[replayed]]]
        launch_row = len(self._trace) + begin + captured_launch
        replayed_events = events[:, replayed]
        self._launch_of_gpu[replayed_events] = launch_row
        self._add_arguments(graph, index, begin)
        self._count += count

    def _needed_events(self, graph: CapturedGraph, node: Int64Array) -> BoolArray:
        """Tell which host events of a graph are launches that are replayed, or around these."""
        replayed_launches = graph.launches[node[node != NONE]]
        is_needed = at_or_above(graph.parent, replayed_launches)
        if not self._python_frames:
            modules = [name.startswith(MODULE_PREFIX) for name in graph.names]
            is_module = np.array(modules, dtype=bool)
            is_needed &= is_module | (graph.kind != EventKind.PYTHON_FUNCTION)
        return is_needed

    def _add_arguments(
        self, graph: CapturedGraph, index: Int64Array, begin: Int64Array
    ) -> None:
        """Add the arguments of a graph.

        Args:
            graph: the graph.
            index: event of the graph → its place among those that are added, `NONE` without, (h,).
            begin: the place where the events of each launch begin, (n, 1).
        """
        for name, (having, texts) in graph.args.items():
            kept = np.flatnonzero(index[having] != NONE)
            if name not in self._args:
                self._args[name] = _AddedArgument(self._trace.arg(name).texts or [])
            argument = self._args[name]
            rows = begin + index[having[kept]]
            kept_texts = [texts[place] for place in kept.tolist()]
            codes = argument.texts.codes(kept_texts, len(kept_texts))
            codes_of_launches = np.tile(codes, len(begin))
            argument.rows.append(rows.ravel())
            argument.codes.append(codes_of_launches.astype(np.int64))

    def finish(self) -> Trace:
        """Return the trace with all that was added."""
        trace = self._trace
        parts = self._parts
        launch = _joined([part.launch for part in parts])
        none = np.full(self._count, NONE, dtype=np.int64)
        added: dict[str, IntArray] = {
            "dur": np.zeros(self._count, dtype=np.int64),
            "name": _joined([part.name for part in parts]),
            "kind": _joined([part.kind for part in parts]),
            "ts": trace.ts[launch],
            "thread": trace.thread[launch],
            "category": trace.category[launch],
            "correlation": none,
            "external_id": none,
        }
        columns: dict[str, Any] = {}
        for name, values in added.items():
            recorded_values = getattr(trace, name)
            columns[name] = np.append(
                recorded_values, values.astype(recorded_values.dtype)
            )
        parent = _joined([part.parent for part in parts])
        return replace(
            trace,
            **columns,
            names=list(self._names),
            args=self._all_arguments(),
            replays=Replays(
                parent=parent.astype(np.int32),
                graph_launch=launch,
                launch_of_gpu=self._launch_of_gpu,
            ),
        )

    def _all_arguments(self) -> dict[str, ArgColumn]:
        args = dict(self._trace.args)
        for name, argument in self._args.items():
            column = self._trace.arg(name)
            new_rows = len(self._trace) + _joined(argument.rows)
            rows = np.append(column.rows, new_rows)
            new_values = _joined(argument.codes)
            args[name] = ArgColumn(
                rows=rows.astype(np.int32),
                values=np.append(column.values, new_values),
                texts=list(argument.texts),
            )
        return args


def _joined(pieces: Sequence[Int64Array]) -> Int64Array:
    """Return pieces in one array; there may be none."""
    return np.concatenate([np.empty(0, dtype=np.int64)] + list(pieces))


#: Describes for each file of its folder what it was captured for.
DETAILS: Final = "execution_details.json"
_SUFFIXES: Final = (".json", ".json.gz")
_MOST_BYTES: Final = 10**7


class _Detail(msgspec.Struct):
    """What `execution_details.json` has about a file."""

    file: str
    batch_size: int | None = None
    mode: str | None = None

    @property
    def size(self) -> PaddedSize:
        """The batch size and the mode."""
        return PaddedSize(batch_size=self.batch_size, mode=self.mode or "")


#: Files, and what the details have about each.
_Details = dict[Path, list[_Detail]]


def read_captures(
    source: str | os.PathLike[str],
    tokens: Collection[int] | None,
    cache: TraceCache | None,
    known: str = "",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> list[Capture]:
    """Return the captures in a trace, or in all traces in a folder and below it.

    Args:
        source: the trace or the folder.
        tokens: files that the details list under other batch sizes are not read; None: all are.
        cache: of parsed traces.
        known: a file whose captures are known, which is passed over; empty without.
        reading: how files are read.

    Raises:
        TraceError: there is no other capture, or a file cannot be read.
    """
    path = Path(source)
    is_folder = path.is_dir()
    files = [path]
    if is_folder:
        files = _files_in(path)
    if known:
        known_file = os.path.realpath(known)
        files = [file for file in files if os.path.realpath(file) != known_file]
    details = _details_of(files)
    wanted = _wanted(details, tokens)
    captures: list[Capture] = []
    passed_over: TraceFormatError | None = None
    for file in wanted:
        try:
            trace = read_trace(file, cache=cache, reading=reading)
            tree = CallTree(trace, add_python_func=True)
        except TraceFormatError as error:
            if not is_folder or isinstance(error, TraceCutOffError):
                raise
            passed_over = error
            continue
        captures_of_file = recorded.find_captures(tree, file.name)
        captures += [
            _with_detail(capture, details[file]) for capture in captures_of_file
        ]
    if wanted and not captures:
        remedy = (
            "give the profile of the engine's start, in which it captured its graphs"
        )
        raise passed_over or TraceFormatError(
            path, "contains no CUDA graph capture", remedy
        )
    return captures


def _with_detail(capture: Capture, details: list[_Detail]) -> Capture:
    """Return a capture with the batch size and the mode of its file, if it has none of its own."""
    if capture.batch_size is not None or len(details) != 1:
        return capture
    return replace(
        capture, batch_size=details[0].batch_size, mode=details[0].mode or ""
    )


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder, and in those below it, that may be traces."""

    def refuse(error: OSError) -> None:
        raise TraceNotFoundError.of(Path(error.filename or folder), error) from error

    files = []
    for below, _, names in os.walk(folder, onerror=refuse):
        trace_names = [name for name in names if name.endswith(_SUFFIXES)]
        files += [Path(below, name) for name in trace_names if name != DETAILS]
    if not files:
        remedy = "give the folder of the capture traces"
        raise TraceNotFoundError(folder, "contains no .json or .json.gz file", remedy)
    return sorted(files)


def _details_of(files: Sequence[Path]) -> _Details:
    """Return what the details in the folders of files have about each."""
    details_of_folder = {}
    for folder in {file.parent for file in files}:
        details_of_folder[folder] = _read_details(folder / DETAILS)
    return {file: details_of_folder[file.parent].get(file.name, []) for file in files}


def _read_details(path: Path) -> dict[str, list[_Detail]]:
    """Return the details, by name of file; nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        details = msgspec.json.decode(content, type=list[_Detail])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problem = f"is not a list of file, batch_size and mode ({error})"
        raise TraceFormatError(path, problem, "correct it, or remove it") from error
    by_file: defaultdict[str, list[_Detail]] = defaultdict(list)
    for detail in details:
        name = Path(detail.file).name
        by_file[name].append(detail)
    return by_file


def _wanted(details: _Details, tokens: Collection[int] | None) -> list[Path]:
    """Return the files that may have captures for steps of so many tokens; None: of any."""
    if tokens is None:
        return list(details)
    sizes: set[PaddedSize] = set()
    for details_of_file in details.values():
        if not details_of_file:
            return list(details)
        for detail in details_of_file:
            sizes.add(detail.size)
    if any(size.batch_size is None for size in sizes):
        return list(details)
    wanted_sizes: set[PaddedSize] = set()
    for tokens_of_step in tokens:
        wanted_sizes |= padded_sizes(tokens_of_step, sizes)
    wanted = []
    for file, details_of_file in details.items():
        if any(detail.size in wanted_sizes for detail in details_of_file):
            wanted.append(file)
    return wanted
