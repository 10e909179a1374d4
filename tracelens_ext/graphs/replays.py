"""What the graph launches of a trace replay: found in its captures, and put into its call tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import TraceError
from tracelens_ext.graphs.annotations import find_annotations, with_annotations
from tracelens_ext.graphs.files import read_captures
from tracelens_ext.graphs.launches import GraphLaunches, find_graph_launches
from tracelens_ext.graphs.matching import GraphMatcher, Match
from tracelens_ext.graphs.recorded import Capture, find_captures, holds_captures
from tracelens_ext.modules.modules import MODULE_PREFIX
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.settings import AS_USUAL, ReadingOptions
from tracelens_ext.trace import NONE, ArgColumn, EventKind, Replays
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.graphs.launches import GraphLaunches
    from tracelens_ext.graphs.matching import Match
    from tracelens_ext.graphs.recorded import Capture, CapturedGraph
    from tracelens_ext.trace import Int32Array, Int64Array, Trace


@dataclass(frozen=True, eq=False)
class GraphReplays:
    """What the graph launches of a trace replay, n of them.

    Attributes:
        tree: the call tree, with the host events of the captures.
        launches: the graph launches.
        matches: what each replays; None where no capture fits.
        captures: what `matches` refers to; none where only annotations tell what is replayed.
    """

    tree: CallTree
    launches: GraphLaunches
    matches: list[Match | None]
    captures: list[Capture]


def find_replays(
    tree: CallTree,
    source: str | os.PathLike[str] | None = None,
    cache: TraceCache | None = None,
    reading: ReadingOptions = AS_USUAL,
) -> GraphReplays | None:
    """Find what the graph launches of a trace replay.

    Args:
        tree: the call tree of the trace, which may hold captures itself.
        source: the trace of further captures, or a folder of such traces.
        cache: where these are looked for.
        reading: how they are read, and where annotations are.

    Returns:
        None if there is no graph launch, or neither a capture to look in nor an annotation.

    Raises:
        TraceError: `source` holds no capture, or cannot be read.
    """
    trace = tree.trace
    own = holds_captures(trace)
    annotations = find_annotations(trace, reading.kernel_annotations)
    if not (own or annotations or source is not None) or not tree.by_graph.any():
        return None
    launches = find_graph_launches(tree)
    captures: list[Capture] = []
    if own:
        full = tree if tree.add_python_func else CallTree(trace, add_python_func=True)
        captures += find_captures(full, trace.provenance.path)
    if source is not None:
        steps = np.unique(launches.tokens)
        tokens = None if NONE in steps else steps.tolist()
        known = trace.provenance.path if captures else ""
        captures += read_captures(source, tokens, cache, known, reading)
    if not captures and source is None and annotations is None:
        return None
    matches = GraphMatcher(trace, launches, captures).matches()
    shown, graphs = matches, captures
    if annotations is not None:
        shown, graphs = with_annotations(annotations, launches, matches, captures)
    if any(match is not None for match in shown):
        tree = with_replays(tree, launches, shown, graphs)
    return GraphReplays(tree, launches, matches, captures)


#: Captured events that may be added, over all replays: two gigabytes of them.
_MOST_ROWS: Final = 2**25


def with_replays(
    tree: CallTree,
    launches: GraphLaunches,
    matches: Sequence[Match | None],
    captures: Sequence[Capture],
) -> CallTree:
    """Add what was around the captured launches, once for each graph launch that replays them.

    If the tree has no Python frames, none are added but modules.
    """
    added = _Added(tree.trace, python_frames=tree.add_python_func)
    same: dict[tuple[int, int, bytes], list[int]] = {}
    for number, match in enumerate(matches):
        if match is not None:
            key = match.capture, match.graph, match.node.tobytes()
            same.setdefault(key, []).append(number)
    for (capture, graph, node), numbers in same.items():
        added.add(
            captures[capture].graphs[graph],
            np.frombuffer(node, dtype=np.int64),
            launches.rows[numbers],
            np.stack([launches.events[number] for number in numbers]),
        )
    return tree.with_replays(added.finish())


class _Added:
    """Collects the rows that are added to a trace."""

    def __init__(self, trace: Trace, *, python_frames: bool) -> None:
        self._trace, self._python_frames = trace, python_frames
        self._names = {name: code for code, name in enumerate(trace.names)}
        self._rows = 0
        self._name: list[Int32Array] = []
        self._kind: list[np.ndarray] = []
        self._parent: list[Int64Array] = []
        self._graph_launch: list[Int64Array] = []
        self._launch_of_gpu = np.full(len(trace.gpu_rows), NONE, dtype=np.int64)
        #: argument → rows and codes; and its distinct texts with their codes
        self._args: dict[str, list[tuple[Int64Array, Int64Array]]] = {}
        self._texts: dict[str, dict[str, int]] = {}

    def add(
        self, graph: CapturedGraph, node: Int64Array, launches: Int64Array, events: Int64Array
    ) -> None:
        """Add a graph, once for each of n launches that replay the same nodes of it.

        `node` is the one that each of m events replays, `NONE` for none; `events` are the GPU
        events, (n, m).
        """
        needed = np.zeros(len(graph.names), dtype=bool)
        at = np.unique(graph.launches[node[node != NONE]])
        while len(at):
            needed[at] = True
            at = np.unique(graph.parent[at])
            at = at[at != ROOT]
            at = at[~needed[at]]
        if not self._python_frames:
            is_module = np.array([name.startswith(MODULE_PREFIX) for name in graph.names])
            needed &= is_module | (graph.kind != EventKind.PYTHON_FUNCTION)
        above = nearest_marked(graph.parent, needed)
        places = np.flatnonzero(needed)
        index = np.full(len(needed) + 1, ROOT, dtype=np.int64)
        index[places] = np.arange(len(places))
        if self._rows + len(places) * len(launches) > _MOST_ROWS:
            raise TraceError(
                self._trace.provenance.path,
                f"its graph launches replay over {_MOST_ROWS:,} captured events",
                "analyse fewer steps, or without Python frames",
            )
        begin = self._rows + len(places) * np.arange(len(launches))[:, None]
        parent = index[above[places]]
        self._parent.append(np.where(parent == ROOT, ROOT, parent + begin).ravel())
        codes = [self._names.setdefault(graph.names[i], len(self._names)) for i in places.tolist()]
        self._name.append(np.tile(np.array(codes, dtype=np.int32), len(launches)))
        self._kind.append(np.tile(graph.kind[places], len(launches)))
        self._graph_launch.append(np.repeat(launches, len(places)))
        replayed = np.flatnonzero(node != NONE)
        captured = index[graph.launches[node[replayed]]]
        self._launch_of_gpu[events[:, replayed]] = len(self._trace) + begin + captured
        for name, (having, texts) in graph.args.items():
            kept = np.flatnonzero(needed[having])
            rows = (begin + index[having[kept]]).ravel()
            known = self._texts.get(name)
            if known is None:
                column = self._trace.arg(name)
                known = {text: code for code, text in enumerate(column.texts or [])}
                self._texts[name] = known
            values = [known.setdefault(texts[i], len(known)) for i in kept.tolist()]
            self._args.setdefault(name, []).append((rows, np.tile(values, len(launches))))
        self._rows += len(places) * len(launches)

    def finish(self) -> Trace:
        """The trace with all that was added."""
        trace = self._trace
        launch = np.concatenate([np.empty(0, dtype=np.int64), *self._graph_launch])
        none = np.full(self._rows, NONE)
        return replace(
            trace,
            ts=np.append(trace.ts, trace.ts[launch]),
            dur=np.append(trace.dur, np.zeros(self._rows, dtype=np.int64)),
            name=np.concatenate([trace.name, *self._name]),
            kind=np.concatenate([trace.kind, *self._kind]),
            thread=np.append(trace.thread, trace.thread[launch]),
            category=np.append(trace.category, trace.category[launch]),
            correlation=np.append(trace.correlation, none),
            external_id=np.append(trace.external_id, none),
            names=list(self._names),
            args={**trace.args, **{name: self._argument(name) for name in self._args}},
            replays=Replays(
                parent=np.concatenate([np.empty(0), *self._parent]).astype(np.int32),
                graph_launch=launch,
                launch_of_gpu=self._launch_of_gpu,
            ),
        )

    def _argument(self, name: str) -> ArgColumn:
        """An argument of the trace with that of the added rows."""
        column = self._trace.arg(name)
        rows, values = (np.concatenate(parts) for parts in zip(*self._args[name], strict=True))
        return ArgColumn(
            np.append(column.rows, len(self._trace) + rows).astype(np.int32),
            np.append(column.values, values.astype(np.int64)),
            list(self._texts[name]),
        )
