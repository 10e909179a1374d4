"""Finds the captured graph that each graph launch replays, and the captured launch of each event.

The annotation around a launch tells the tokens of its step, which engines pad to the next captured
batch size. Among captures of that size the kernel names decide, aligned by their longest common
subsequence (Wagner and Fischer, "The string-to-string correction problem", 1974), row by row.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.cuda_graphs.captures import (
    MEMCPY,
    MEMSET,
    NAMELESS,
    Capture,
    GraphLaunches,
)
from tracelens_ext.trace import NONE, EventKind, Int32Array, Int64Array, IntArray, Trace

#: What a row of the table takes beside its elements, in elements.
_ROW: Final = 4_000


class AlignmentBudget:
    """How much may still be aligned: pairs of elements to compare. A billion take seconds."""

    def __init__(self, cells: int = 2_000_000_000, at_once: int = 500_000_000) -> None:
        self._cells = cells
        self._at_once = at_once

    def take(self, cells: int) -> bool:
        """Take so many pairs from the budget; return False if it does not have them."""
        if cells > min(self._cells, self._at_once):
            return False
        self._cells -= cells
        return True


def align(first: IntArray, second: IntArray, budget: AlignmentBudget) -> Int64Array:
    """Return the element of a second sequence that each element of a first corresponds to.

    As many as possible correspond. Beyond the budget only the beginnings and ends that are alike
    do: of 1 2 3 4 and 1 5 4 the answer is 0, `NONE`, `NONE`, 2.

    Args:
        first: a sequence of numbers, (m,).
        second: a sequence of numbers, (n,).
        budget: what may be compared.

    Returns:
        Ascending indices into `second`, (m,); `NONE` for an element without a counterpart.
    """
    result = np.full(len(first), NONE, dtype=np.int64)
    # What the other does not have corresponds to nothing; what remains is often the same.
    places_in_first = np.flatnonzero(np.isin(first, second))
    places_in_second = np.flatnonzero(np.isin(second, first))
    first = first[places_in_first]
    second = second[places_in_second]
    shorter = min(len(first), len(second))
    head = _equal_elements(first[:shorter], second[:shorter])
    first_backwards = first[head:][::-1]
    second_backwards = second[head:][::-1]
    tail_length = shorter - head
    tail = _equal_elements(
        first_backwards[:tail_length], second_backwards[:tail_length]
    )
    first_end = len(first) - tail
    second_end = len(second) - tail
    result[places_in_first[:head]] = places_in_second[:head]
    result[places_in_first[first_end:]] = places_in_second[second_end:]
    first = first[head:first_end]
    places_in_first = places_in_first[head:first_end]
    second = second[head:second_end]
    places_in_second = places_in_second[head:second_end]
    rows = min(len(first), len(second))
    columns = max(len(first), len(second))
    if rows and budget.take(rows * (columns + _ROW)):
        if len(first) <= len(second):
            common = _longest_common(first, second)
            result[places_in_first[common.rows]] = places_in_second[common.columns]
        else:
            common = _longest_common(second, first)
            result[places_in_first[common.columns]] = places_in_second[common.rows]
    return result


def first_places(elements: IntArray, sequence: IntArray) -> Int64Array:
    """Return where the elements of a subsequence first come in a sequence, in order, (m,).

    Of 2 2 in 1 2 3 2 2 these are the places 1 and 3.
    """
    places_of_element: dict[int, list[int]] = {}
    for element in np.unique(elements).tolist():
        places_of_element[element] = np.flatnonzero(sequence == element).tolist()
    places = []
    next_place = 0
    for element in elements.tolist():
        candidates = places_of_element[element]
        place = candidates[bisect_left(candidates, next_place)]
        places.append(place)
        next_place = place + 1
    return np.array(places, dtype=np.int64)


def _equal_elements(first: IntArray, second: IntArray) -> int:
    """Return with how many equal elements two sequences of one length begin."""
    is_different = first != second
    places = np.flatnonzero(is_different)
    if not len(places):
        return len(first)
    return int(places[0])


class _CommonSubsequence(NamedTuple):
    """Where the elements of a common subsequence are, the last one first."""

    rows: list[int]  #: places in the shorter sequence
    columns: list[int]  #: places in the longer one


def _longest_common(shorter: IntArray, longer: IntArray) -> _CommonSubsequence:
    """Return a longest common subsequence.

    Row by row of the table, a cell has the length of the longest common subsequence of what is
    before it in both. Of each row only the bits are kept that say where it is as the row above.
    """
    above = np.zeros(len(longer) + 1, dtype=np.int32)
    current = np.zeros(len(longer) + 1, dtype=np.int32)
    bits_of_rows = []
    for element in shorter:
        np.maximum(above[1:], above[:-1] + (longer == element), out=current[1:])
        np.maximum.accumulate(current, out=current)
        bits_of_rows.append(np.packbits(current[1:] == above[1:]))
        above, current = current, above
    row = len(shorter) - 1
    column = len(longer) - 1
    common = _CommonSubsequence(rows=[], columns=[])
    while row >= 0 and column >= 0:
        if shorter[row] == longer[column]:
            common.rows.append(row)
            common.columns.append(column)
            row -= 1
            column -= 1
        elif _has_bit(bits_of_rows[row], column):
            row -= 1
        else:
            column -= 1
    return common


def _has_bit(packed_bits: npt.NDArray[np.uint8], place: int) -> bool:
    """Tell if a bit is set of those that `packbits` has packed, the first one highest."""
    byte = packed_bits[place >> 3]
    shift = 7 - (place & 7)
    return bool(byte >> shift & 1)


#: How ROCm's profiler may record copies and fills of a graph: as kernels.
_COPY: Final = re.compile(r"__amd_rocclr_copy|MEMORY_COPY_")
_FILL: Final = re.compile(r"__amd_rocclr_fill")
#: What looking at a pair of a launch and a captured graph takes at least, in elements compared.
_PAIR: Final = 10_000
_BYTES_OF_ELEMENT: Final = np.dtype(np.int32).itemsize


@dataclass(frozen=True, eq=False)
class GraphMatch:
    """The captured graph that a graph launch replays."""

    capture: int  #: index into the captures
    graph: int  #: index into the graphs of that capture
    #: the captured launch that each GPU event of the launch replays, by stream and start, `NONE`
    #: for one that was not captured, (m,)
    node: Int64Array


Matches = Sequence[GraphMatch | None]


class _Sequence(NamedTuple):
    """What the GPU events of a launch are, by stream and start, as bytes of int32."""

    node: bytes  #: their numbers among the nodes
    stream: bytes

    @property
    def events(self) -> int:
        """The number of GPU events."""
        return len(self.node) // _BYTES_OF_ELEMENT


class _Content(NamedTuple):
    """What the nodes of a captured graph are, in order, as bytes of int32."""

    node: bytes
    likely: bytes  #: with the kernels that nameless ones launched outside of graphs

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.node) // _BYTES_OF_ELEMENT


class _Score(NamedTuple):
    """How well a captured graph fits a launch; the larger, the better."""

    matched: int  #: events of the launch that have a node
    minus_nodes: int  #: of two that match as many events, the smaller graph is better


_NO_SCORE: Final = _Score(0, 0)


class _Fit(NamedTuple):
    """How well a capture fits a launch."""

    score: _Score  #: that of its best graphs
    graphs: list[int]  #: the best graphs, ascending


class _PieceOfCapture(NamedTuple):
    """A graph of a capture, by their numbers."""

    capture: int
    graph: int


_NO_PIECE: Final = _PieceOfCapture(NONE, NONE)


class _CommonNodes(NamedTuple):
    """A captured graph, and how many of its nodes can match at most."""

    bound: int
    content: _Content


class PaddedSize(NamedTuple):
    """A batch size and a mode that graphs were captured for."""

    batch_size: int | None
    mode: str


_UNKNOWN_SIZE: Final = PaddedSize(None, "")


def padded_sizes(tokens: int, captured: Iterable[PaddedSize]) -> set[PaddedSize]:
    """Return what so many tokens may be padded to: of each mode the next larger batch size."""
    size_of_mode: dict[str, int] = {}
    for size, mode in captured:
        if size is None or size < tokens:
            continue
        size_of_mode[mode] = min(size, size_of_mode.get(mode, size))
    return {PaddedSize(size, mode) for mode, size in size_of_mode.items()}


class GraphMatcher:
    """Aligns each distinct sequence of GPU events with each distinct captured graph, once."""

    def __init__(
        self, trace: Trace, launches: GraphLaunches, captures: Sequence[Capture]
    ) -> None:
        self._launches = launches
        self._captures = captures
        self._number_of_node = {NAMELESS: 0, MEMCPY: 1, MEMSET: 2}
        self._sequences = self._sequences_of(trace)
        self._graphs = [self._contents_of(capture) for capture in captures]
        self._budget = AlignmentBudget()
        self._candidates = cache(self._find_candidates)
        self._fit = cache(self._find_fit)
        self._aligned = cache(self._align)
        self._previous = _NO_PIECE

    def matches(self) -> list[GraphMatch | None]:
        """Return a match for each launch; None where no capture fits, or several that differ."""
        bounds = np.flatnonzero(np.diff(self._launches.step)) + 1
        launches_by_step = np.split(np.arange(len(self._launches.rows)), bounds)
        matches: list[GraphMatch | None] = []
        for launches in launches_by_step:
            if len(launches):
                matches += self._matches_of_step(launches.tolist())
        return matches

    # What is compared.

    def _numbered(self, nodes: Iterable[str]) -> Int32Array:
        """Return a number for each node."""
        numbers = self._number_of_node
        numbered = [numbers.setdefault(node, len(numbers)) for node in nodes]
        return np.array(numbered, dtype=np.int32)

    def _contents_of(self, capture: Capture) -> list[_Content]:
        """Return the nodes of the graphs of a capture."""
        contents = []
        for graph in capture.graphs:
            nodes = self._numbered(graph.nodes)
            likely = self._numbered(graph.likely)
            content = _Content(node=nodes.tobytes(), likely=likely.tobytes())
            contents.append(content)
        return contents

    def _sequences_of(self, trace: Trace) -> list[_Sequence]:
        """Return the GPU events of each launch."""
        events = np.concatenate([np.empty(0, np.int64)] + self._launches.events)
        rows = trace.gpu_rows[events]
        kind = trace.kind[rows]
        names, index = np.unique(trace.name[rows], return_inverse=True)
        kernels = [trace.names[name] for name in names.tolist()]
        node_of_name = self._numbered(map(_node_of_kernel, kernels))
        node = node_of_name[index]
        node[kind == EventKind.MEMCPY] = self._number_of_node[MEMCPY]
        node[kind == EventKind.MEMSET] = self._number_of_node[MEMSET]
        stream = self._launches.stream.astype(np.int32)
        sizes = [len(events) for events in self._launches.events]
        bounds = np.cumsum(sizes)[:-1]
        sequences = []
        nodes = np.split(node, bounds)
        streams = np.split(stream, bounds)
        for nodes_of_launch, streams_of_launch in zip(nodes, streams, strict=True):
            sequence = _Sequence(
                node=nodes_of_launch.tobytes(),
                stream=streams_of_launch.tobytes(),
            )
            sequences.append(sequence)
        return sequences

    # Which captures, and which of their graphs.

    def _matches_of_step(self, step: list[int]) -> list[GraphMatch | None]:
        """Return the matches of the launches of one step, or of all outside of steps."""
        tokens = int(self._launches.tokens[step[0]])
        candidates = self._candidates(tokens)
        likely = candidates
        if tokens != NONE:
            likely = self._of_likely_mode(step, candidates)
        matches = []
        for place, launch in enumerate(step):
            match = self._match(launch, place, len(step), likely)
            if match is None:
                match = self._match(launch, place, len(step), candidates)
            matches.append(match)
        return matches

    def _find_candidates(self, tokens: int) -> tuple[int, ...]:
        """Return the captures that a step of so many tokens may replay; all for `NONE`."""
        if tokens == NONE:
            return tuple(range(len(self._captures)))
        sizes = [
            PaddedSize(batch_size=capture.batch_size, mode=capture.mode)
            for capture in self._captures
        ]
        fitting = padded_sizes(tokens, sizes)
        candidates = []
        for capture, size in enumerate(sizes):
            if size in fitting or size.batch_size is None:
                candidates.append(capture)
        return tuple(candidates)

    def _of_likely_mode(
        self, step: list[int], candidates: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the captures that fit a step best; of equally good ones by shapes, then mode."""
        if not candidates:
            return ()
        matched = {
            capture: self._matched_events(step, capture) for capture in candidates
        }
        most_matched = max(matched.values())
        best = [capture for capture in candidates if matched[capture] == most_matched]
        best = self._of_likely_size(int(self._launches.tokens[step[0]]), best)
        annotation = self._launches.annotation[step[0]].lower()

        def mode_fits(capture: int) -> tuple[bool, bool]:
            mode = self._captures[capture].mode.lower()
            is_named = bool(mode) and mode in annotation
            is_full = mode == "full"
            is_whole_step = len(step) == 1
            return is_named, is_full == is_whole_step

        best_mode = max(mode_fits(capture) for capture in best)
        return tuple(capture for capture in best if mode_fits(capture) == best_mode)

    def _matched_events(self, step: list[int], capture: int) -> int:
        """Return how many events of a step match nodes of a capture."""
        fits = [self._fit(self._sequences[launch], capture) for launch in step]
        return sum(fit.score.matched for fit in fits)

    def _of_likely_size(self, tokens: int, captures: list[int]) -> list[int]:
        """Return the captures whose shapes suit so many tokens; all if there are none."""
        sizes = {}
        for capture in captures:
            sizes[capture] = PaddedSize(self._captures[capture].likely_size, "")
        fitting_sizes = padded_sizes(tokens, sizes.values()) | {_UNKNOWN_SIZE}
        fitting = [capture for capture in captures if sizes[capture] in fitting_sizes]
        return fitting or captures

    def _match(
        self, launch: int, place: int, count: int, captures: Sequence[int]
    ) -> GraphMatch | None:
        """Return the match of a launch; None where no capture fits, or several that differ.

        Args:
            launch: its number.
            place: its place among the launches of its step.
            count: the number of launches of the step.
            captures: those to choose from.
        """
        sequence = self._sequences[launch]
        fits = {capture: self._fit(sequence, capture) for capture in captures}
        best_score = max((fit.score for fit in fits.values()), default=_NO_SCORE)
        # At least half of the events and half of the nodes must match.
        needed = max(sequence.events, -best_score.minus_nodes)
        if not fits or 2 * best_score.matched < needed:
            return None
        pieces = []
        for capture, fit in fits.items():
            if fit.score == best_score:
                pieces.append(self._piece(capture, fit.graphs, place, count))
        if _NO_PIECE in pieces:
            return None
        operations = {self._operations_of(piece) for piece in pieces}
        if len(operations) > 1:
            return None
        piece = pieces[0]
        self._previous = piece
        node = self._aligned(sequence, self._graphs[piece.capture][piece.graph])
        return GraphMatch(capture=piece.capture, graph=piece.graph, node=node)

    def _operations_of(self, piece: _PieceOfCapture) -> int:
        return self._captures[piece.capture].graphs[piece.graph].operations

    def _piece(
        self, capture: int, graphs: list[int], place: int, count: int
    ) -> _PieceOfCapture:
        """Return which of equally good graphs of a capture a launch replays, `_NO_PIECE` if open.

        It is the one at its place, where a step launches all in order; else the one after the last.
        """
        graph_count = len(self._graphs[capture])
        graph_at_place = place % graph_count
        if count % graph_count == 0 and graph_at_place in graphs:
            return _PieceOfCapture(capture, graph_at_place)
        pieces = [_PieceOfCapture(capture, graph) for graph in graphs]
        if len({self._operations_of(piece) for piece in pieces}) > 1:
            return _NO_PIECE
        later = [piece for piece in pieces if piece > self._previous]
        if later:
            return later[0]
        return pieces[0]

    def _find_fit(self, sequence: _Sequence, capture: int) -> _Fit:
        """Return how well a capture fits a launch, and its graphs that fit best."""
        graphs_of_content: defaultdict[_Content, list[int]] = defaultdict(list)
        for graph, content in enumerate(self._graphs[capture]):
            graphs_of_content[content].append(graph)
        same_content = _Content(node=sequence.node, likely=sequence.node)
        if same_content in graphs_of_content:  # then none can be better
            candidates = [_CommonNodes(sequence.events, same_content)]
        else:
            candidates = self._most_common(sequence.node, graphs_of_content)
        best_score = _NO_SCORE
        best_graphs: list[int] = []
        for bound, content in candidates:
            if bound < best_score.matched or 2 * bound < sequence.events:
                break
            matched = int((self._aligned(sequence, content) != NONE).sum())
            score = _Score(matched=matched, minus_nodes=-content.nodes)
            if score > best_score:
                best_score = score
                best_graphs = []
            if matched and score == best_score:
                best_graphs += graphs_of_content[content]
        return _Fit(best_score, sorted(best_graphs))

    def _most_common(
        self, node: bytes, contents: Iterable[_Content]
    ) -> list[_CommonNodes]:
        """Return captured graphs by how many of their nodes can match at most, the most first."""
        node_count = len(self._number_of_node)
        events_of_node = np.bincount(_array(node), minlength=node_count)
        bounds = []
        for content in contents:
            if not self._budget.take(_PAIR + node_count):
                break
            captured_of_node = np.bincount(_array(content.node), minlength=node_count)
            common = np.minimum(events_of_node, captured_of_node).sum()
            nameless = captured_of_node[self._number_of_node[NAMELESS]]
            bounds.append(_CommonNodes(int(common + nameless), content))
        return sorted(bounds, key=attrgetter("bound"), reverse=True)

    # Which node each event replays.

    def _align(self, sequence: _Sequence, content: _Content) -> Int64Array:
        """Return the node of a captured graph that each event replays, `NONE` without, (m,)."""
        events = _array(sequence.node)
        stream = _array(sequence.stream)
        graph = _array(content.likely)
        streams, size = np.unique(stream, return_counts=True)
        node = np.full(len(events), NONE, dtype=np.int64)
        # The main stream is the longest; the rest is of the streams that were forked from it.
        longest_first = np.argsort(-size, kind="stable")
        for number in streams[longest_first]:
            of_stream = np.flatnonzero(stream == number)
            free = np.setdiff1d(np.arange(len(graph)), node)
            aligned = align(
                first=events[of_stream], second=graph[free], budget=self._budget
            )
            is_aligned = aligned != NONE
            matched = of_stream[is_aligned]
            places = aligned[is_aligned]
            if len(streams) > 1:
                places = first_places(events[matched], graph[free])
            node[matched] = free[places]
        nameless = self._number_of_node[NAMELESS]
        if len(streams) == 1 and (graph == nameless).any():
            self._fill_nameless(node, events, graph)
        return node

    def _fill_nameless(
        self, node: Int64Array, events: Int32Array, graph: Int32Array
    ) -> None:
        """Match nameless nodes between two that match with as many kernels of unknown names.

        Of the events a X Y b and the nodes a ? ? b, the two in the middle match.
        """
        is_matched = node != NONE
        is_kernel = events > self._number_of_node[MEMSET]
        is_unknown_kernel = is_kernel & ~is_matched & ~np.isin(events, graph)
        open_events = np.flatnonzero(is_unknown_kernel)
        matched_nodes = node[is_matched]
        nameless = np.flatnonzero(graph == self._number_of_node[NAMELESS])
        open_nodes = np.setdiff1d(nameless, matched_nodes)
        # The number of matched ones before each says between which two it is.
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
    """Return the node that a kernel is; ROCm's profiler records copies and fills as kernels."""
    if _COPY.match(name):
        return MEMCPY
    if _FILL.match(name):
        return MEMSET
    return name


def _array(content: bytes) -> Int32Array:
    return np.frombuffer(content, dtype=np.int32)
