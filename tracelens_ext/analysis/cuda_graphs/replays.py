"""Finds the captured graphs that graph launches replay, and adds their events to the call tree.

The captures are in the trace itself or in other files.
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
    """The n graph launches of a trace and the captured graphs that they replay."""

    tree: CallTree  #: the call tree, with the host events of the captures
    launches: GraphLaunches  #: the graph launches
    #: the captured graph that each launch replays; None for a launch that no capture fits, (n,)
    matches: list[GraphMatch | None]
    #: the captures that `matches` refers to; empty if the trace only has annotations
    captures: list[Capture]


def find_replays(
    tree: CallTree,
    source: str | os.PathLike[str] | None = None,
    cache: TraceCache | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> GraphReplays | None:
    """Return the captured graphs that the graph launches of a trace replay.

    Args:
        tree: the call tree of the trace; captures in the trace itself are used, too.
        source: a trace with captures, or a folder of such traces.
        cache: the cache of parsed traces.
        reading: the options for reading files.

    Returns:
        The replays; None if the trace has no graph launch, or neither captures nor annotations.

    Raises:
        TraceError: `source` contains no capture, or cannot be read.
    """
    if not tree.by_graph.any():
        return None
    trace = tree.trace
    has_own_captures = recorded.may_contain_captures(trace)
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
            skipped_file=own_file,
            reading=reading,
        )
    if not captures and source is None and annotations is None:
        return None
    matches = GraphMatcher(trace=trace, launches=launches, captures=captures).matches()
    # Annotations change the call tree, but they are no captures that the tables could list.
    tree_matches = matches
    tree_captures = captures
    if annotations is not None:
        tree_matches, tree_captures = with_annotations(
            annotations=annotations,
            launches=launches,
            matches=matches,
            captures=captures,
        )
    if any(match is not None for match in tree_matches):
        tree = with_replays(
            tree=tree, launches=launches, matches=tree_matches, captures=tree_captures
        )
    return GraphReplays(
        tree=tree, launches=launches, matches=matches, captures=captures
    )


def _own_captures(tree: CallTree) -> list[Capture]:
    """Return the captures in a trace, with their Python frames even if the tree has none."""
    trace = tree.trace
    tree_with_frames = tree
    if not tree.add_python_func:
        tree_with_frames = CallTree(trace, add_python_func=True)
    return recorded.find_captures(tree_with_frames, trace.provenance.path)


def _tokens_of_steps(launches: GraphLaunches) -> list[int] | None:
    """Return the distinct token counts of steps with graph launches; None if any is unknown."""
    distinct = np.unique(launches.tokens)
    tokens: list[int] = distinct.tolist()
    if NONE in tokens:
        return None
    return tokens


#: Maximum number of captured events that are added over all replays; they take two gigabytes.
_MAX_ADDED_EVENTS: Final = 2**25


class _MatchKey(NamedTuple):
    """A `GraphMatch` as a hashable key; launches with equal keys get the same events."""

    capture: int
    graph: int
    node: bytes  #: `GraphMatch.node` as bytes of int64


def with_replays(
    tree: CallTree,
    launches: GraphLaunches,
    matches: Matches,
    captures: Sequence[Capture],
) -> CallTree:
    """Return the call tree with the host events around captured launches.

    The events are added once for each graph launch that replays them.

    Raises:
        TraceError: the replays have more events than fit into memory.
    """
    launches_by_key: defaultdict[_MatchKey, list[int]] = defaultdict(list)
    for launch, match in enumerate(matches):
        if match is not None:
            key = _MatchKey(
                capture=match.capture, graph=match.graph, node=match.node.tobytes()
            )
            launches_by_key[key].append(launch)
    added = _AddedEvents(tree.trace, python_frames=tree.add_python_func)
    for key, same_launches in launches_by_key.items():
        graph = captures[key.capture].graphs[key.graph]
        node = np.frombuffer(key.node, np.int64)
        events = np.stack([launches.events[launch] for launch in same_launches])
        added.add(graph, node, launches.rows[same_launches], events)
    return tree.with_replays(added.trace_with_events())


class _AddedRows(NamedTuple):
    """The host events of one graph that are added to a trace; each array is (r,)."""

    name: Int64Array  #: code of the name
    kind: Int64Array  #: an `EventKind`
    parent: Int64Array  #: index of the parent among all added events, `ROOT` for the outermost
    launch: Int64Array  #: the row of the graph launch that replays the event


class _AddedArgument:
    """The values of an argument of the added events.

    Attributes:
        rows: arrays of indices of the added events that have the argument, one array per graph.
        codes: arrays of the codes of their texts, parallel to `rows`.
        texts: the distinct texts; those of the trace come first and keep their codes.
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
        self._rows_of_graphs: list[_AddedRows] = []
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
            graph: the captured graph.
            node: the captured launch that each GPU event replays, `NONE` without; the same for all
                launches, (m,).
            launches: the rows of the graph launches that replay the graph, (n,).
            events: the GPU events of each launch, (n, m).
        """
        is_needed = self._needed_events(graph, node)
        needed = np.flatnonzero(is_needed)
        count = len(needed) * len(launches)
        if self._count + count > _MAX_ADDED_EVENTS:
            problem = f"its graph launches replay more than {_MAX_ADDED_EVENTS:,} captured events"
            remedy = "analyze fewer steps, or record without Python frames"
            raise TraceError(
                path=self._trace.provenance.path, problem=problem, remedy=remedy
            )
        # Event of the graph → its index among the needed events.
        index_of_event = np.full(len(is_needed), NONE, dtype=np.int64)
        index_of_event[needed] = np.arange(len(needed))
        # The added events of one launch follow those of the launch before it.
        first_of_launch = self._count + len(needed) * np.arange(len(launches))
        first_of_launch = first_of_launch[:, None]
        needed_parent = nearest_marked(graph.parent, is_needed)[needed]
        parent = values_at(index_of_event, needed_parent)
        parent_in_launch = np.where(parent == NONE, ROOT, parent + first_of_launch)
        codes = [self._names[graph.names[event]] for event in needed.tolist()]
        name = np.array(codes, dtype=np.int64)
        kind = graph.kind[needed].astype(np.int64)
        rows = _AddedRows(
            name=np.tile(name, len(launches)),
            kind=np.tile(kind, len(launches)),
            parent=parent_in_launch.ravel(),
            launch=np.repeat(launches, len(needed)),
        )
        self._rows_of_graphs.append(rows)
        replayed = np.flatnonzero(node != NONE)
        captured_launch = index_of_event[graph.launches[node[replayed]]]
        launch_row = len(self._trace) + first_of_launch + captured_launch
        self._launch_of_gpu[events[:, replayed]] = launch_row
        self._add_arguments(graph, index_of_event, first_of_launch)
        self._count += count

    def _needed_events(self, graph: CapturedGraph, node: Int64Array) -> BoolArray:
        """Tell which host events of a graph are replayed launches or their ancestors, (h,).

        Without Python frames, only those that are modules are needed.
        """
        replayed_launches = graph.launches[node[node != NONE]]
        is_needed = at_or_above(graph.parent, replayed_launches)
        if not self._python_frames:
            modules = [name.startswith(MODULE_PREFIX) for name in graph.names]
            is_module = np.array(modules, dtype=bool)
            is_needed &= is_module | (graph.kind != EventKind.PYTHON_FUNCTION)
        return is_needed

    def _add_arguments(
        self,
        graph: CapturedGraph,
        index_of_event: Int64Array,
        first_of_launch: Int64Array,
    ) -> None:
        """Add the arguments of the needed events of a graph, once for each launch.

        Args:
            graph: the graph.
            index_of_event: the index of each event of the graph among the needed events, `NONE`
                for an event that is not needed, (h,).
            first_of_launch: the index of each launch's first added event, (n, 1).
        """
        for name, (events, texts) in graph.args.items():
            needed = np.flatnonzero(index_of_event[events] != NONE)
            if name not in self._args:
                self._args[name] = _AddedArgument(self._trace.arg(name).texts or [])
            argument = self._args[name]
            rows = first_of_launch + index_of_event[events[needed]]
            needed_texts = [texts[place] for place in needed.tolist()]
            codes = argument.texts.codes(needed_texts, len(needed_texts))
            codes_of_launches = np.tile(codes, len(first_of_launch))
            argument.rows.append(rows.ravel())
            argument.codes.append(codes_of_launches.astype(np.int64))

    def trace_with_events(self) -> Trace:
        """Return the trace with the added events after its own.

        An added event has the start and the thread of its graph launch, and no duration.
        """
        trace = self._trace
        rows_of_graphs = self._rows_of_graphs
        launch = _joined([rows.launch for rows in rows_of_graphs])
        none = np.full(self._count, NONE, dtype=np.int64)
        added: dict[str, IntArray] = {
            "dur": np.zeros(self._count, dtype=np.int64),
            "name": _joined([rows.name for rows in rows_of_graphs]),
            "kind": _joined([rows.kind for rows in rows_of_graphs]),
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
        parent = _joined([rows.parent for rows in rows_of_graphs])
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
        """Return the arguments of the trace together with those of the added events."""
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


def _joined(arrays: Sequence[Int64Array]) -> Int64Array:
    """Return the arrays as one; it is empty if there are no arrays."""
    return np.concatenate([np.empty(0, dtype=np.int64)] + list(arrays))


#: The file that lists the batch size and mode of each capture trace in its folder.
DETAILS: Final = "execution_details.json"
_TRACE_SUFFIXES: Final = (".json", ".json.gz")
_MAX_DETAILS_BYTES: Final = 10**7


class _Detail(msgspec.Struct):
    """An entry of `execution_details.json`."""

    file: str
    batch_size: int | None = None
    mode: str | None = None

    @property
    def size(self) -> PaddedSize:
        """The batch size and the mode as one key."""
        return PaddedSize(batch_size=self.batch_size, mode=self.mode or "")


#: Trace file → its entries in the details of its folder.
_Details = dict[Path, list[_Detail]]


def read_captures(
    source: str | os.PathLike[str],
    tokens: Collection[int] | None,
    cache: TraceCache | None,
    skipped_file: str = "",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> list[Capture]:
    """Return the captures in a trace, or in all traces in a folder and its subfolders.

    Args:
        source: the trace or the folder.
        tokens: the numbers of tokens of the steps. Files that the details list only under batch
            sizes of other steps are not read; with None, all files are read.
        cache: the cache of parsed traces.
        skipped_file: a file that is not read because its captures are known; empty for none.
        reading: the options for reading files.

    Raises:
        TraceError: no file that is read contains a capture, or a file cannot be read.
    """
    path = Path(source)
    is_folder = path.is_dir()
    files = [path]
    if is_folder:
        files = _files_in(path)
    if skipped_file:
        skipped_path = os.path.realpath(skipped_file)
        files = [file for file in files if os.path.realpath(file) != skipped_path]
    details = _details_of(files)
    files_to_read = _files_for_tokens(details, tokens)
    captures: list[Capture] = []
    # A folder may contain JSON files that are not traces.
    format_error: TraceFormatError | None = None
    for file in files_to_read:
        try:
            trace = read_trace(file, cache=cache, reading=reading)
            tree = CallTree(trace, add_python_func=True)
        except TraceFormatError as error:
            if not is_folder or isinstance(error, TraceCutOffError):
                raise
            format_error = error
            continue
        captures_of_file = recorded.find_captures(tree, file.name)
        captures += [
            _with_detail(capture, details[file]) for capture in captures_of_file
        ]
    if files_to_read and not captures:
        remedy = (
            "give the profile of the engine's start, in which it captured its graphs"
        )
        raise format_error or TraceFormatError(
            path, "contains no CUDA graph capture", remedy
        )
    return captures


def _with_detail(capture: Capture, details: list[_Detail]) -> Capture:
    """Return a capture; without a batch size, it takes size and mode of its file's only entry."""
    if capture.batch_size is not None or len(details) != 1:
        return capture
    return replace(
        capture, batch_size=details[0].batch_size, mode=details[0].mode or ""
    )


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders that may be traces, by path."""

    def raise_trace_error(error: OSError) -> None:
        raise TraceNotFoundError.of(Path(error.filename or folder), error) from error

    files = []
    for subfolder, _, names in os.walk(folder, onerror=raise_trace_error):
        trace_names = [name for name in names if name.endswith(_TRACE_SUFFIXES)]
        files += [Path(subfolder, name) for name in trace_names if name != DETAILS]
    if not files:
        remedy = "give the folder of the capture traces"
        raise TraceNotFoundError(folder, "contains no .json or .json.gz file", remedy)
    return sorted(files)


def _details_of(files: Sequence[Path]) -> _Details:
    """Return the entries of each file in the details of its folder."""
    details_of_folder = {}
    for folder in {file.parent for file in files}:
        details_of_folder[folder] = _read_details(folder / DETAILS)
    return {file: details_of_folder[file.parent].get(file.name, []) for file in files}


def _read_details(path: Path) -> dict[str, list[_Detail]]:
    """Return the entries of a details file by file name; an empty dict if the file is missing."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_DETAILS_BYTES)
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


def _files_for_tokens(details: _Details, tokens: Collection[int] | None) -> list[Path]:
    """Return the files that may contain captures for steps with these numbers of tokens.

    These are all files if `tokens` is None, or if the details lack a file or a batch size.
    """
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
    possible_sizes: set[PaddedSize] = set()
    for tokens_of_step in tokens:
        possible_sizes |= padded_sizes(tokens_of_step, sizes)
    files = []
    for file, details_of_file in details.items():
        if any(detail.size in possible_sizes for detail in details_of_file):
            files.append(file)
    return files
