"""Finds the captured graphs that the graph launches of a trace replay, from all sources.

Captures are in the trace itself or in other files (`capture_files`). PyTorch may have annotated the
nodes of a graph, too (`annotations`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from tracelens_ext.analysis.cuda_graphs.annotations import (
    GraphAnnotations,
    find_annotations,
    with_annotations,
)
from tracelens_ext.analysis.cuda_graphs.capture_files import read_captures
from tracelens_ext.analysis.cuda_graphs.captured_graphs import Capture
from tracelens_ext.analysis.cuda_graphs.captures import (
    find_captures,
    may_contain_captures,
)
from tracelens_ext.analysis.cuda_graphs.graph_launches import (
    GraphLaunches,
    find_graph_launches,
)
from tracelens_ext.analysis.cuda_graphs.matching import GraphMatch, GraphMatcher
from tracelens_ext.analysis.cuda_graphs.replayed_events import with_replays
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import NONE
from tracelens_ext.trace.call_tree import CallTree


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
    has_own_captures = may_contain_captures(trace)
    annotations = find_annotations(trace, reading)
    if not (has_own_captures or annotations or source is not None):
        return None
    launches = find_graph_launches(tree)
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
    replays = GraphReplays(
        tree=tree, launches=launches, matches=matches, captures=captures
    )
    return replace(replays, tree=_tree_with_replays(replays, annotations))


def _tree_with_replays(
    replays: GraphReplays, annotations: GraphAnnotations | None
) -> CallTree:
    """Return the call tree of replays with the host events of their captures and annotations.

    Annotations change the call tree alone: they are no captures that the tables could list.
    """
    matches = replays.matches
    captures = replays.captures
    if annotations is not None:
        matches, captures = with_annotations(
            annotations=annotations,
            launches=replays.launches,
            matches=matches,
            captures=captures,
        )
    if not any(match is not None for match in matches):
        return replays.tree
    return with_replays(
        tree=replays.tree,
        launches=replays.launches,
        matches=matches,
        captures=captures,
    )


def _own_captures(tree: CallTree) -> list[Capture]:
    """Return the captures in a trace, with their Python frames even if the tree has none."""
    trace = tree.trace
    tree_with_frames = tree
    if not tree.add_python_func:
        tree_with_frames = CallTree(trace, add_python_func=True)
    return find_captures(tree_with_frames, trace.provenance.path)


def _tokens_of_steps(launches: GraphLaunches) -> list[int] | None:
    """Return the distinct token counts of steps with graph launches; None if any is unknown."""
    distinct = np.unique(launches.tokens)
    tokens: list[int] = distinct.tolist()
    if NONE in tokens:
        return None
    return tokens
