"""Finds the captured graph that each graph launch replays, and the captured launch of each event.

The annotation around a launch contains the number of tokens of its step, which engines pad to the
next batch size that was captured. Among the captures of that size, the one whose kernel names agree
best with the launch is chosen (`sequence_alignment`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.cuda_graphs.captured_graphs import (
    MEMCPY,
    MEMSET,
    NAMELESS,
    Capture,
)
from tracelens_ext.analysis.cuda_graphs.graph_launches import GraphLaunches
from tracelens_ext.analysis.cuda_graphs.sequence_alignment import (
    AlignmentBudget,
    align,
    earliest_places_of,
)
from tracelens_ext.trace import NONE, EventKind, Int32Array, Int64Array, Trace

#: Names of kernels as which ROCm's profiler may record the copies and fills of a graph.
_COPY_KERNEL: Final = re.compile(r"__amd_rocclr_copy|MEMORY_COPY_")
_FILL_KERNEL: Final = re.compile(r"__amd_rocclr_fill")
#: Fixed cost of comparing a launch with a captured graph, as a number of cells that take as long.
_PAIR_COST: Final = 10_000
_BYTES_OF_ELEMENT: Final = np.dtype(np.int32).itemsize


@dataclass(frozen=True, eq=False)
class GraphMatch:
    """The captured graph that a graph launch replays."""

    capture: int  #: index into the captures
    graph: int  #: index into the graphs of that capture
    #: the captured launch that each of the launch's m GPU events replays, by stream and start;
    #: `NONE` for an event that no captured launch matches, (m,)
    node: Int64Array


Matches = Sequence[GraphMatch | None]


class _LaunchedWork(NamedTuple):
    """The GPU events of a graph launch, by stream and start, as a hashable key."""

    names: bytes  #: the number of each event's name, int32
    streams: bytes  #: the number of each event's stream, int32

    @property
    def event_count(self) -> int:
        """The number of GPU events."""
        return len(self.names) // _BYTES_OF_ELEMENT


class _GraphContent(NamedTuple):
    """The nodes of a captured graph, in order, as a hashable key."""

    names: bytes  #: the number of each node's name (`CapturedGraph.nodes`), int32
    #: the number of each node's name in `CapturedGraph.likely_nodes`, int32
    likely_names: bytes

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self.names) // _BYTES_OF_ELEMENT


class _Score(NamedTuple):
    """How well a captured graph fits a launch; the larger tuple is the better fit."""

    matched: int  #: the number of the launch's events that match a node
    #: minus the number of nodes: of two graphs that match as many events, the smaller one is better
    minus_nodes: int


_NO_SCORE: Final = _Score(0, 0)


class _Fit(NamedTuple):
    """How well a capture fits a launch."""

    score: _Score  #: the score of its best graphs
    graphs: list[int]  #: the indices of the best graphs, ascending


class _GraphIndex(NamedTuple):
    """The index of a capture, and of a graph in that capture."""

    capture: int
    graph: int


_NO_GRAPH: Final = _GraphIndex(NONE, NONE)


class _BoundedContent(NamedTuple):
    """The content of a captured graph, and the largest number of its nodes that can match."""

    bound: int
    content: _GraphContent


class PaddedSize(NamedTuple):
    """A batch size and a mode that graphs were captured for."""

    batch_size: int | None
    mode: str


_UNKNOWN_SIZE: Final = PaddedSize(None, "")


def padded_sizes(tokens: int, captured: Iterable[PaddedSize]) -> set[PaddedSize]:
    """Return the sizes that an engine may pad a number of tokens to.

    For each mode, it is the smallest captured batch size that is large enough.
    """
    size_of_mode: dict[str, int] = {}
    for size, mode in captured:
        if size is None or size < tokens:
            continue
        size_of_mode[mode] = min(size, size_of_mode.get(mode, size))
    return {PaddedSize(size, mode) for mode, size in size_of_mode.items()}


class GraphMatcher:
    """Finds the captured graph that each graph launch replays.

    Each distinct sequence of GPU events is aligned once with each distinct captured graph.
    """

    def __init__(
        self, trace: Trace, launches: GraphLaunches, captures: Sequence[Capture]
    ) -> None:
        self._launches = launches
        self._captures = captures
        self._number_of_name = {NAMELESS: 0, MEMCPY: 1, MEMSET: 2}
        self._launched_work = self._work_of_launches(trace)
        self._contents = [self._contents_of(capture) for capture in captures]
        self._budget = AlignmentBudget()
        self._candidates = cache(self._find_candidates)
        self._fit = cache(self._find_fit)
        self._aligned = cache(self._align)
        self._previous_graph = _NO_GRAPH

    def matches(self) -> list[GraphMatch | None]:
        """Return the match of each launch.

        It is None if no capture fits, or if captures of different operations fit equally well.
        """
        bounds = np.flatnonzero(np.diff(self._launches.step)) + 1
        launches_by_step = np.split(np.arange(len(self._launches.rows)), bounds)
        matches: list[GraphMatch | None] = []
        for launches in launches_by_step:
            if len(launches):
                matches += self._matches_of_step(launches.tolist())
        return matches

    # Names become numbers, so that launches and graphs are compared as arrays.

    def _numbers_of_names(self, names: Iterable[str]) -> Int32Array:
        """Return a number for each name; equal names have equal numbers."""
        numbers = self._number_of_name
        numbered = [numbers.setdefault(name, len(numbers)) for name in names]
        return np.array(numbered, dtype=np.int32)

    def _contents_of(self, capture: Capture) -> list[_GraphContent]:
        """Return the content of each graph of a capture."""
        contents = []
        for graph in capture.graphs:
            names = self._numbers_of_names(graph.nodes)
            likely_names = self._numbers_of_names(graph.likely_nodes)
            content = _GraphContent(
                names=names.tobytes(), likely_names=likely_names.tobytes()
            )
            contents.append(content)
        return contents

    def _work_of_launches(self, trace: Trace) -> list[_LaunchedWork]:
        """Return the GPU events of each launch."""
        events = np.concatenate([np.empty(0, np.int64)] + self._launches.events)
        rows = trace.gpu_rows[events]
        kind = trace.kind[rows]
        name_codes, index = np.unique(trace.name[rows], return_inverse=True)
        kernels = [trace.names[code] for code in name_codes.tolist()]
        number_of_kernel = self._numbers_of_names(map(_node_of_kernel, kernels))
        number = number_of_kernel[index]
        number[kind == EventKind.MEMCPY] = self._number_of_name[MEMCPY]
        number[kind == EventKind.MEMSET] = self._number_of_name[MEMSET]
        stream = self._launches.stream.astype(np.int32)
        event_counts = [len(events) for events in self._launches.events]
        bounds = np.cumsum(event_counts)[:-1]
        numbers_by_launch = np.split(number, bounds)
        streams_by_launch = np.split(stream, bounds)
        works = []
        for numbers, streams in zip(numbers_by_launch, streams_by_launch, strict=True):
            launched_work = _LaunchedWork(
                names=numbers.tobytes(), streams=streams.tobytes()
            )
            works.append(launched_work)
        return works

    # The choice of the capture, and of the graph in the capture.

    def _matches_of_step(self, step: list[int]) -> list[GraphMatch | None]:
        """Return the matches of the launches of a step, or of a thread's launches outside of steps.

        The captures that fit the whole step best are tried first, then the other candidates.
        """
        tokens = int(self._launches.tokens[step[0]])
        candidates = self._candidates(tokens)
        best_captures = candidates
        if tokens != NONE:
            best_captures = self._best_of_step(step, candidates)
        matches = []
        for place, launch in enumerate(step):
            match = self._match(launch, place, len(step), best_captures)
            if match is None:
                match = self._match(launch, place, len(step), candidates)
            matches.append(match)
        return matches

    def _find_candidates(self, tokens: int) -> tuple[int, ...]:
        """Return the captures that a step with this number of tokens may replay; all for `NONE`."""
        if tokens == NONE:
            return tuple(range(len(self._captures)))
        sizes = [
            PaddedSize(batch_size=capture.batch_size, mode=capture.mode)
            for capture in self._captures
        ]
        possible_sizes = padded_sizes(tokens, sizes)
        candidates = []
        for capture, size in enumerate(sizes):
            if size in possible_sizes or size.batch_size is None:
                candidates.append(capture)
        return tuple(candidates)

    def _best_of_step(
        self, step: list[int], candidates: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the captures that fit a step best.

        The number of events that match decides first, then the size that the shapes suggest, then
        the mode: its name in the annotation, and `FULL` for a step with a single launch.
        """
        if not candidates:
            return ()
        matched = {
            capture: self._matched_events(step, capture) for capture in candidates
        }
        most_matched = max(matched.values())
        best = [capture for capture in candidates if matched[capture] == most_matched]
        best = self._of_likely_size(int(self._launches.tokens[step[0]]), best)
        annotation = self._launches.annotation[step[0]].lower()

        def mode_score(capture: int) -> tuple[bool, bool]:
            mode = self._captures[capture].mode.lower()
            is_named = bool(mode) and mode in annotation
            is_full = mode == "full"
            is_whole_step = len(step) == 1
            return is_named, is_full == is_whole_step

        best_score = max(mode_score(capture) for capture in best)
        return tuple(capture for capture in best if mode_score(capture) == best_score)

    def _matched_events(self, step: list[int], capture: int) -> int:
        """Return the number of a step's events that match nodes of a capture."""
        fits = [self._fit(self._launched_work[launch], capture) for launch in step]
        return sum(fit.score.matched for fit in fits)

    def _of_likely_size(self, tokens: int, captures: list[int]) -> list[int]:
        """Return the captures whose shapes suit a number of tokens; all captures if none does."""
        sizes = {}
        for capture in captures:
            sizes[capture] = PaddedSize(self._captures[capture].likely_size, "")
        fitting_sizes = padded_sizes(tokens, sizes.values()) | {_UNKNOWN_SIZE}
        fitting = [capture for capture in captures if sizes[capture] in fitting_sizes]
        return fitting or captures

    def _match(
        self, launch: int, place: int, count: int, captures: Sequence[int]
    ) -> GraphMatch | None:
        """Return the match of a launch.

        It is None if no capture fits, or if captures of different operations fit equally well.
        The order of calls matters: of equal graphs, the one after the previous match is chosen.

        Args:
            launch: the index of the launch.
            place: the place of the launch among the launches of its step.
            count: the number of launches of the step.
            captures: the captures to choose from.
        """
        launched_work = self._launched_work[launch]
        fits = {capture: self._fit(launched_work, capture) for capture in captures}
        best_score = max((fit.score for fit in fits.values()), default=_NO_SCORE)
        # At least half of the events and half of the nodes must match.
        node_count = -best_score.minus_nodes
        if not fits or 2 * best_score.matched < max(
            launched_work.event_count, node_count
        ):
            return None
        graphs = []
        for capture, fit in fits.items():
            if fit.score == best_score:
                graphs.append(self._choose_graph(capture, fit.graphs, place, count))
        if _NO_GRAPH in graphs:
            return None
        operations = {self._operations_of(graph) for graph in graphs}
        if len(operations) > 1:
            return None
        chosen = graphs[0]
        self._previous_graph = chosen
        node = self._aligned(
            launched_work, self._contents[chosen.capture][chosen.graph]
        )
        return GraphMatch(capture=chosen.capture, graph=chosen.graph, node=node)

    def _operations_of(self, index: _GraphIndex) -> int:
        return self._captures[index.capture].graphs[index.graph].operations

    def _choose_graph(
        self, capture: int, graphs: list[int], place: int, count: int
    ) -> _GraphIndex:
        """Return the graph that a launch replays, of graphs of a capture that fit equally well.

        A step that launches all graphs of the capture in order replays the graph at the place of
        the launch. Otherwise it is the next of these graphs after the previous match, if their
        operations are the same. If they differ, the choice is open: `_NO_GRAPH`.
        """
        graph_count = len(self._contents[capture])
        graph_at_place = place % graph_count
        if count % graph_count == 0 and graph_at_place in graphs:
            return _GraphIndex(capture, graph_at_place)
        candidates = [_GraphIndex(capture, graph) for graph in graphs]
        if len({self._operations_of(candidate) for candidate in candidates}) > 1:
            return _NO_GRAPH
        for candidate in candidates:
            if candidate > self._previous_graph:
                return candidate
        return candidates[0]

    def _find_fit(self, launched_work: _LaunchedWork, capture: int) -> _Fit:
        """Return how well a capture fits a launch, and its graphs that fit best."""
        graphs_of_content: defaultdict[_GraphContent, list[int]] = defaultdict(list)
        for graph, content in enumerate(self._contents[capture]):
            graphs_of_content[content].append(graph)
        same_content = _GraphContent(
            names=launched_work.names, likely_names=launched_work.names
        )
        if same_content in graphs_of_content:  # no other graph can fit better
            candidates = [_BoundedContent(launched_work.event_count, same_content)]
        else:
            candidates = self._bounded_contents(launched_work.names, graphs_of_content)
        best_score = _NO_SCORE
        best_graphs: list[int] = []
        for bound, content in candidates:
            if bound < best_score.matched or 2 * bound < launched_work.event_count:
                break
            matched = int((self._aligned(launched_work, content) != NONE).sum())
            score = _Score(matched=matched, minus_nodes=-content.node_count)
            if score > best_score:
                best_score = score
                best_graphs = []
            if matched and score == best_score:
                best_graphs += graphs_of_content[content]
        return _Fit(best_score, sorted(best_graphs))

    def _bounded_contents(
        self, names: bytes, contents: Iterable[_GraphContent]
    ) -> list[_BoundedContent]:
        """Return the contents by the largest number of nodes that can match, descending.

        A node can match at most as many events as have its name; a nameless node can match any
        event. Contents for which the budget does not suffice are left out.
        """
        name_count = len(self._number_of_name)
        events_of_name = np.bincount(_array(names), minlength=name_count)
        bounded = []
        for content in contents:
            if not self._budget.take(_PAIR_COST + name_count):
                break
            nodes_of_name = np.bincount(_array(content.names), minlength=name_count)
            common = np.minimum(events_of_name, nodes_of_name).sum()
            nameless = nodes_of_name[self._number_of_name[NAMELESS]]
            bounded.append(_BoundedContent(int(common + nameless), content))
        return sorted(bounded, key=attrgetter("bound"), reverse=True)

    # The captured launch that each event replays.

    def _align(
        self, launched_work: _LaunchedWork, content: _GraphContent
    ) -> Int64Array:
        """Return the node of a captured graph that each event replays, `NONE` without, (m,)."""
        event_names = _array(launched_work.names)
        event_streams = _array(launched_work.streams)
        node_names = _array(content.likely_names)
        streams, events_of_stream = np.unique(event_streams, return_counts=True)
        node = np.full(len(event_names), NONE, dtype=np.int64)
        # The longest stream is the main one. Nodes that it leaves over belong to the streams that
        # were forked from it.
        longest_first = np.argsort(-events_of_stream, kind="stable")
        for stream in streams[longest_first]:
            events = np.flatnonzero(event_streams == stream)
            free_nodes = np.setdiff1d(np.arange(len(node_names)), node)
            free_names = node_names[free_nodes]
            aligned = align(
                first=event_names[events], second=free_names, budget=self._budget
            )
            is_aligned = aligned != NONE
            matched_events = events[is_aligned]
            places = aligned[is_aligned]
            if len(streams) > 1:
                # Take the earliest nodes of these names and leave later ones to other streams.
                places = earliest_places_of(event_names[matched_events], free_names)
            node[matched_events] = free_nodes[places]
        nameless = self._number_of_name[NAMELESS]
        if len(streams) == 1 and (node_names == nameless).any():
            self._fill_nameless(node, event_names, node_names)
        return node

    def _fill_nameless(
        self, node: Int64Array, event_names: Int32Array, node_names: Int32Array
    ) -> None:
        """Match nameless nodes with events between the same two matches, if their numbers agree.

        For the events a X Y b and the nodes a ? ? b, the two in the middle match. Only kernels
        whose name is on no node of the graph are matched.

        Args:
            node: the node that each event replays, `NONE` without; modified, (m,).
            event_names: the number of each event's name, (m,).
            node_names: the number of each node's name.
        """
        is_matched = node != NONE
        is_kernel = event_names > self._number_of_name[MEMSET]
        has_named_node = np.isin(event_names, node_names)
        open_events = np.flatnonzero(is_kernel & ~is_matched & ~has_named_node)
        matched_nodes = node[is_matched]
        nameless = np.flatnonzero(node_names == self._number_of_name[NAMELESS])
        open_nodes = np.setdiff1d(nameless, matched_nodes)
        # Gap g lies between the matches number g - 1 and g.
        gap_of_event = np.cumsum(is_matched)[open_events]
        gap_of_node = np.searchsorted(matched_nodes, open_nodes)
        gap_count = len(matched_nodes) + 1
        events_of_gap = np.bincount(gap_of_event, minlength=gap_count)
        nodes_of_gap = np.bincount(gap_of_node, minlength=gap_count)
        is_same_count = events_of_gap == nodes_of_gap
        filled_events = open_events[is_same_count[gap_of_event]]
        filled_nodes = open_nodes[is_same_count[gap_of_node]]
        node[filled_events] = filled_nodes


def _node_of_kernel(name: str) -> str:
    """Return the name of the node that a kernel replays: its own, or `MEMCPY` or `MEMSET`."""
    if _COPY_KERNEL.match(name):
        return MEMCPY
    if _FILL_KERNEL.match(name):
        return MEMSET
    return name


def _array(numbers: bytes) -> Int32Array:
    return np.frombuffer(numbers, dtype=np.int32)
