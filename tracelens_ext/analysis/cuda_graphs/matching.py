"""Which captured graph each graph launch replays, and which captured launch each of its events.

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
from typing import Final, NamedTuple

import numpy as np

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
        """Whether so many pairs may be compared; they are taken from the budget then."""
        if cells > min(self._cells, self._at_once):
            return False
        self._cells -= cells
        return True


def align(a: IntArray, b: IntArray, budget: AlignmentBudget) -> Int64Array:
    """The element of `b`, (n,), that each element of `a`, (m,), corresponds to: indices, (m,).

    They ascend, `NONE` for an element that has none; as many as possible have one. Beyond the
    budget only the beginnings and ends that are alike correspond.
    """
    result = np.full(len(a), NONE, dtype=np.int64)
    # What the other does not have corresponds to nothing; what is left is often the same.
    in_a = np.flatnonzero(np.isin(a, b))
    in_b = np.flatnonzero(np.isin(b, a))
    a = a[in_a]
    b = b[in_b]
    least = min(len(a), len(b))
    head = _equal(a[:least], b[:least])
    tail = _equal(a[head:][::-1][: least - head], b[head:][::-1][: least - head])
    result[in_a[:head]] = in_b[:head]
    result[in_a[len(a) - tail :]] = in_b[len(b) - tail :]
    a = a[head : len(a) - tail]
    in_a = in_a[head : len(in_a) - tail]
    b = b[head : len(b) - tail]
    in_b = in_b[head : len(in_b) - tail]
    rows, columns = sorted((len(a), len(b)))
    if rows and budget.take(rows * (columns + _ROW)):
        if len(a) <= len(b):
            of_a, of_b = _longest_common(a, b)
        else:
            of_b, of_a = _longest_common(b, a)
        result[in_a[of_a]] = in_b[of_b]
    return result


def first_places(a: IntArray, b: IntArray) -> Int64Array:
    """Where the elements of `a`, a subsequence of `b`, first come in `b`, in order; shape (m,)."""
    places = {element: np.flatnonzero(b == element).tolist() for element in np.unique(a).tolist()}
    found = []
    at = 0
    for element in a.tolist():
        of_element = places[element]
        at = of_element[bisect_left(of_element, at)] + 1
        found.append(at - 1)
    return np.array(found, dtype=np.int64)


def _equal(a: IntArray, b: IntArray) -> int:
    """How many elements two sequences of one length begin with alike."""
    differs = np.flatnonzero(a != b)
    return int(differs[0]) if len(differs) else len(a)


def _longest_common(a: IntArray, b: IntArray) -> tuple[list[int], list[int]]:
    """The places in `a` and in `b` of a longest common subsequence; `a` is the shorter one."""
    above = np.zeros(len(b) + 1, dtype=np.int32)
    row = np.zeros(len(b) + 1, dtype=np.int32)
    same_as_above = []
    for element in a:
        np.maximum(above[1:], above[:-1] + (b == element), out=row[1:])
        np.maximum.accumulate(row, out=row)
        same_as_above.append(np.packbits(row[1:] == above[1:]))
        above, row = row, above
    i = len(a) - 1
    j = len(b) - 1
    of_a = []
    of_b = []
    while i >= 0 and j >= 0:
        if a[i] == b[j]:
            of_a.append(i)
            of_b.append(j)
            i = i - 1
            j = j - 1
        elif same_as_above[i][j >> 3] >> (7 - (j & 7)) & 1:
            i -= 1
        else:
            j -= 1
    return of_a, of_b


#: How ROCm's profiler may record copies and fills of a graph: as kernels.
_COPY: Final = re.compile(r"__amd_rocclr_copy|MEMORY_COPY_")
_FILL: Final = re.compile(r"__amd_rocclr_fill")
#: What looking at a pair of a launch and a captured graph takes at least, in elements compared.
_PAIR: Final = 10_000
_ITEM: Final = np.dtype(np.int32).itemsize


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


class _Content(NamedTuple):
    """What the nodes of a captured graph are, in order, as bytes of int32."""

    node: bytes
    likely: bytes  #: with the kernels that nameless ones launched outside of graphs


_Size = tuple[int | None, str]  # a batch size and a mode


def padded_sizes(tokens: int, captured: Iterable[_Size]) -> set[_Size]:
    """The batch sizes and modes, one a mode at most, that so many tokens may be padded to."""
    found: dict[str, int] = {}
    for size, mode in captured:
        if size is not None and tokens <= size < found.get(mode, size + 1):
            found[mode] = size
    return {(size, mode) for mode, size in found.items()}


class GraphMatcher:
    """Aligns each distinct sequence of GPU events with each distinct captured graph, once."""

    def __init__(self, trace: Trace, launches: GraphLaunches, captures: Sequence[Capture]) -> None:
        self._launches = launches
        self._captures = captures
        self._numbers = {NAMELESS: 0, MEMCPY: 1, MEMSET: 2}
        self._sequences = self._sequences_of(trace)
        self._graphs = [
            [_Content(*map(self._bytes, (g.nodes, g.likely))) for g in capture.graphs]
            for capture in captures
        ]
        self._budget = AlignmentBudget()
        self._candidates = cache(self._find_candidates)
        self._fit = cache(self._find_fit)
        self._aligned = cache(self._align)
        self._previous = (NONE, NONE)

    def matches(self) -> list[GraphMatch | None]:
        """A match a launch; None where no capture fits, or several that are not the same."""
        bounds = np.flatnonzero(np.diff(self._launches.step)) + 1
        steps = np.split(np.arange(len(self._launches.rows)), bounds)
        return [match for step in steps if len(step) for match in self._of_step(step.tolist())]

    def _numbered(self, nodes: Iterable[str]) -> Int32Array:
        numbers = self._numbers
        return np.array([numbers.setdefault(node, len(numbers)) for node in nodes], dtype=np.int32)

    def _bytes(self, nodes: Iterable[str]) -> bytes:
        return self._numbered(nodes).tobytes()

    def _sequences_of(self, trace: Trace) -> list[_Sequence]:
        rows = trace.gpu_rows[np.concatenate([np.empty(0, np.int64), *self._launches.events])]
        used, name = np.unique(trace.name[rows], return_inverse=True)
        names = (trace.names[code] for code in used.tolist())
        node = self._numbered(
            MEMCPY if _COPY.match(text) else MEMSET if _FILL.match(text) else text for text in names
        )[name]
        node[trace.kind[rows] == EventKind.MEMCPY] = self._numbers[MEMCPY]
        node[trace.kind[rows] == EventKind.MEMSET] = self._numbers[MEMSET]
        bounds = np.cumsum([len(each) for each in self._launches.events])[:-1]
        columns = node, self._launches.stream.astype(np.int32)
        parts = ([part.tobytes() for part in np.split(column, bounds)] for column in columns)
        return list(map(_Sequence, *parts))

    def _of_step(self, step: list[int]) -> list[GraphMatch | None]:
        """The matches of the launches of one step, or of all outside of steps."""
        tokens = int(self._launches.tokens[step[0]])
        among = self._candidates(tokens)
        likely = among if tokens == NONE else self._of_likely_mode(step, among)
        count = len(step)
        return [
            self._of_launch(launch, i, count, likely) or self._of_launch(launch, i, count, among)
            for i, launch in enumerate(step)
        ]

    def _find_candidates(self, tokens: int) -> tuple[int, ...]:
        """The captures that a step of so many tokens may replay; all for `NONE`."""
        captured = [(capture.batch_size, capture.mode) for capture in self._captures]
        fits = padded_sizes(tokens, captured) | {of for of in captured if of[0] is None}
        return tuple(i for i, of in enumerate(captured) if tokens == NONE or of in fits)

    def _of_likely_mode(self, step: list[int], candidates: tuple[int, ...]) -> tuple[int, ...]:
        """Of captures those that fit a step best; of equally good ones by shapes, then by mode."""
        sequences = [self._sequences[launch] for launch in step]
        fits = {i: sum(self._fit(each, i)[0][0] for each in sequences) for i in candidates}
        best = [i for i in candidates if fits[i] == max(fits.values())]
        tokens = int(self._launches.tokens[step[0]])
        sizes = {i: (self._captures[i].likely_size, "") for i in best}
        fitting = padded_sizes(tokens, sizes.values()) | {(None, "")}
        best = [i for i in best if sizes[i] in fitting] or best
        annotation = self._launches.annotation[step[0]].lower()

        def likely(capture: int) -> tuple[bool, bool]:
            mode = self._captures[capture].mode.lower()
            return bool(mode) and mode in annotation, (mode == "full") == (len(step) == 1)

        return tuple(i for i in best if likely(i) == max(map(likely, best)))

    def _of_launch(
        self, launch: int, place: int, count: int, among: Sequence[int]
    ) -> GraphMatch | None:
        """The match of a launch that is at some place among the `count` launches of its step."""
        sequence = self._sequences[launch]
        fits = {i: self._fit(sequence, i) for i in among}
        most = max((score for score, _ in fits.values()), default=(0, 0))
        graphs = {i: of_i for i, (score, of_i) in fits.items() if score == most}
        if not graphs or 2 * most[0] < max(len(sequence.node) // _ITEM, -most[1]):
            return None
        chosen = [self._piece(capture, pieces, place, count) for capture, pieces in graphs.items()]
        same = {self._captures[i].graphs[graph].operations for i, graph in chosen}
        if len(same) > 1 or (NONE, NONE) in chosen:
            return None
        self._previous = capture, graph = chosen[0]
        return GraphMatch(capture, graph, self._aligned(sequence, self._graphs[capture][graph]))

    def _piece(self, capture: int, graphs: list[int], place: int, count: int) -> tuple[int, int]:
        """Which of equally good graphs of a capture a launch replays, `NONE` if nothing tells.

        The one at its place, where a step launches all in order; else the one after the last.
        """
        pieces = len(self._graphs[capture])
        if count % pieces == 0 and place % pieces in graphs:
            return capture, place % pieces
        if len({self._captures[capture].graphs[graph].operations for graph in graphs}) > 1:
            return NONE, NONE
        later = [graph for graph in graphs if (capture, graph) > self._previous]
        return capture, (later or graphs)[0]

    def _find_fit(self, sequence: _Sequence, capture: int) -> tuple[tuple[int, int], list[int]]:
        """How well a capture fits a launch (events, less of the graph), and its graphs that do."""
        best = (0, 0)
        graphs = list[int]()
        of_content: defaultdict[_Content, list[int]] = defaultdict(list)
        for graph, content in enumerate(self._graphs[capture]):
            of_content[content].append(graph)
        same = _Content(sequence.node, sequence.node)
        events = len(sequence.node) // _ITEM
        alike = same in of_content  # then none can be better
        likely = [(events, same)] if alike else self._most_common(sequence.node, of_content)
        for bound, content in likely:
            if bound < best[0] or 2 * bound < events:
                break
            matched = int((self._aligned(sequence, content) != NONE).sum())
            score = matched, -len(content.node) // _ITEM
            if score > best:
                best = score
                graphs = []
            if matched and score == best:
                graphs += of_content[content]
        return best, sorted(graphs)

    def _most_common(self, node: bytes, contents: Iterable[_Content]) -> list[tuple[int, _Content]]:
        """Captured graphs by how many of their nodes can match at most, the most first."""
        a = np.bincount(_array(node), minlength=len(self._numbers))
        bounds = []
        for content in contents:
            if not self._budget.take(_PAIR + len(a)):
                break
            b = np.bincount(_array(content.node), minlength=len(self._numbers))
            bounds.append((int(np.minimum(a, b).sum() + b[self._numbers[NAMELESS]]), content))
        return sorted(bounds, key=lambda pair: -pair[0])

    def _align(self, sequence: _Sequence, content: _Content) -> Int64Array:
        """The node of a captured graph that each event replays, `NONE` for one that none is."""
        events = _array(sequence.node)
        stream = _array(sequence.stream)
        graph = _array(content.likely)
        streams, size = np.unique(stream, return_counts=True)
        node = np.full(len(events), NONE, dtype=np.int64)
        for which in streams[np.argsort(-size, kind="stable")]:  # the main stream is the longest
            mine = np.flatnonzero(stream == which)
            free = np.setdiff1d(np.arange(len(graph)), node)
            found = align(events[mine], graph[free], self._budget)
            mine = mine[found != NONE]
            found = found[found != NONE]
            if len(streams) > 1:  # the rest is of the streams that were forked from it
                found = first_places(events[mine], graph[free])
            node[mine] = free[found]
        if len(streams) == 1 and (graph == self._numbers[NAMELESS]).any():
            self._fill(node, events, graph)
        return node

    def _fill(self, node: Int64Array, events: Int32Array, graph: Int32Array) -> None:
        """Match nameless nodes between two that match with as many kernels of unknown names."""
        rest = np.flatnonzero(node == NONE)
        known = node[node != NONE]
        rest = rest[(events[rest] > self._numbers[MEMSET]) & ~np.isin(events[rest], graph)]
        free = np.setdiff1d(np.flatnonzero(graph == self._numbers[NAMELESS]), known)
        of_event = np.cumsum(node != NONE)[rest]
        of_node = np.searchsorted(known, free)
        gaps = len(known) + 1
        fits = np.bincount(of_event, minlength=gaps) == np.bincount(of_node, minlength=gaps)
        node[rest[fits[of_event]]] = free[fits[of_node]]


def _array(content: bytes) -> Int32Array:
    return np.frombuffer(content, dtype=np.int32)
