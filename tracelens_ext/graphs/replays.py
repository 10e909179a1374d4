"""What the graph launches of a trace replay: found in its captures, and put into its call tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.graphs.annotations import find_annotations, with_annotations
from tracelens_ext.graphs.files import read_captures
from tracelens_ext.graphs.launches import GraphLaunches, find_graph_launches
from tracelens_ext.graphs.matching import GraphMatcher, Match
from tracelens_ext.graphs.merging import with_replays
from tracelens_ext.graphs.recorded import Capture, find_captures, holds_captures
from tracelens_ext.settings import AS_USUAL, ReadingOptions
from tracelens_ext.trace import NONE
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    import os

    from tracelens_ext.cache.store import TraceCache


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
