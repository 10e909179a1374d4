"""Adds the host events around captured launches to the call tree, below the graph launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captured_graphs import Capture, CapturedGraph
from tracelens_ext.analysis.cuda_graphs.graph_launches import GraphLaunches
from tracelens_ext.analysis.cuda_graphs.matching import Matches
from tracelens_ext.analysis.modules import MODULE_PREFIX
from tracelens_ext.errors import TraceError
from tracelens_ext.readers.builder import Interner
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

#: Maximum number of captured events that are added over all replays; they take two gigabytes.
_MAX_ADDED_EVENTS: Final = 2**25


class _MatchKey(NamedTuple):
    """A `GraphMatch` as a hashable key; launches with equal keys get the same events."""

    capture: int
    graph: int
    nodes: bytes  #: `GraphMatch.node` as bytes of int64


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
                capture=match.capture, graph=match.graph, nodes=match.node.tobytes()
            )
            launches_by_key[key].append(launch)
    added = _AddedEvents(tree.trace, python_frames=tree.add_python_func)
    for key, same_launches in launches_by_key.items():
        graph = captures[key.capture].graphs[key.graph]
        added.add(
            graph=graph,
            nodes=np.frombuffer(key.nodes, np.int64),
            launches=launches.rows[same_launches],
            events=np.stack([launches.events[launch] for launch in same_launches]),
        )
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
        nodes: Int64Array,
        launches: Int64Array,
        events: Int64Array,
    ) -> None:
        """Add the host events of a graph once for each launch.

        For example, two graph launches replay a graph of which three events are needed: a module
        M, its operation O, and O's launch L. If 10 events were added before, the new ones are
        M 10, O 11, L 12 for the first graph launch, and M 13, O 14, L 15 for the second one.

        Args:
            graph: the captured graph.
            nodes: the captured launch that each GPU event replays, `NONE` without; the same for all
                launches, (m,).
            launches: the rows of the graph launches that replay the graph, (n,).
            events: the GPU events of each launch, (n, m).
        """
        is_needed = self._needed_events(graph, nodes)
        needed = np.flatnonzero(is_needed)
        count = len(needed) * len(launches)
        self._check_memory(count)
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
        replayed = np.flatnonzero(nodes != NONE)
        captured_launch = index_of_event[graph.launches[nodes[replayed]]]
        launch_row = len(self._trace) + first_of_launch + captured_launch
        self._launch_of_gpu[events[:, replayed]] = launch_row
        self._add_arguments(graph, index_of_event, first_of_launch)
        self._count += count

    def _check_memory(self, new_count: int) -> None:
        """Raise a `TraceError` if so many more events do not fit into memory."""
        if self._count + new_count > _MAX_ADDED_EVENTS:
            problem = f"its graph launches replay more than {_MAX_ADDED_EVENTS:,} captured events"
            remedy = "analyze fewer steps, or record without Python frames"
            raise TraceError(
                path=self._trace.provenance.path, problem=problem, remedy=remedy
            )

    def _needed_events(self, graph: CapturedGraph, nodes: Int64Array) -> BoolArray:
        """Tell which host events of a graph are replayed launches or their ancestors, (h,).

        Without Python frames, only those that are modules are needed.
        """
        replayed_launches = graph.launches[nodes[nodes != NONE]]
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
        launch = _concatenate([rows.launch for rows in rows_of_graphs])
        none = np.full(self._count, NONE, dtype=np.int64)
        added: dict[str, IntArray] = {
            "dur": np.zeros(self._count, dtype=np.int64),
            "name": _concatenate([rows.name for rows in rows_of_graphs]),
            "kind": _concatenate([rows.kind for rows in rows_of_graphs]),
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
        parent = _concatenate([rows.parent for rows in rows_of_graphs])
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
            new_rows = len(self._trace) + _concatenate(argument.rows)
            rows = np.append(column.rows, new_rows)
            new_values = _concatenate(argument.codes)
            args[name] = ArgColumn(
                rows=rows.astype(np.int32),
                values=np.append(column.values, new_values),
                texts=list(argument.texts),
            )
        return args


def _concatenate(arrays: Sequence[Int64Array]) -> Int64Array:
    """Return the arrays as one; it is empty if there are no arrays."""
    return np.concatenate([np.empty(0, dtype=np.int64)] + list(arrays))
