"""In which order a pass of the replay runs nodes and blocks, so that numpy can run many at once.

Blocks, and every so many calls, cut a program into chunks. In a chunk each stream runs by itself,
but for its marks: nodes that wait for another stream, and the nodes of the same chunk that they
wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.grouping import inverse_permutation
from tracelens_ext.trace.intervals import begins_run, distinct
from tracelens_ext.trace.sorted_groups import running_maximum

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

_ROWS_AT_ONCE = 4096


class Chunk(NamedTuple):
    """What runs between two cuts."""

    runs: list[slice]  #: the nodes of each stream
    marks: slice  #: those among these nodes
    blocks: list[int]  #: those that come after the nodes


@dataclass(frozen=True, eq=False)
class Marks:
    """The nodes at which streams meet, m of them in the order of their calls."""

    node: Int64Array  #: (m,)
    #: the mark before each one on its stream, from the first mark of the chunk on; `NONE` if that
    #: is in an earlier chunk, or without one, (m,)
    before: Int64Array
    awaited_node: (
        Int64Array  #: what each waits for, `NONE` for one that does not wait, (m,)
    )
    #: the mark of that, from the first mark of the chunk on; `NONE` if it is in an earlier chunk,
    #: or without one, (m,)
    awaited_mark: Int64Array
    by_node: Int64Array  #: the marks by their node, (m,)

    @cached_property
    def _sorted_nodes(self) -> Int64Array:
        return self.node[self.by_node]

    def of_nodes(self, nodes: slice) -> Int64Array:
        """Return the marks among some nodes, in the order of the nodes."""
        first, stop = np.searchsorted(self._sorted_nodes, (nodes.start, nodes.stop))
        return self.by_node[first:stop]


class Order:
    """The chunks of a program, and the marks in them."""

    def __init__(self, program: DependencyGraph, gap: Int64Array) -> None:
        keys_of_cuts = np.sort(program.key)[::_ROWS_AT_ONCE]
        cuts = np.sort(np.append(program.block_start, keys_of_cuts))
        chunk_of_node = np.searchsorted(cuts, program.key)
        chunk_of_block = np.searchsorted(cuts, program.block_start)
        waits = _needed_waits(program, gap)
        self.marks = _find_marks(program, chunk_of_node, waits)

        chunk_of_mark = chunk_of_node[self.marks.node]
        bounds = _bounds(chunk_of_mark, len(cuts) + 1).tolist()
        self.chunks: list[Chunk] = []
        for first_mark, stop_mark in pairwise(bounds):
            self.chunks.append(
                Chunk(runs=[], marks=slice(first_mark, stop_mark), blocks=[])
            )
        begins = begins_run(program.track) | begins_run(chunk_of_node)
        first_nodes = np.flatnonzero(begins)
        stop_nodes = np.append(first_nodes, len(program.track))[1:]
        for chunk, first, stop in zip(
            chunk_of_node[first_nodes].tolist(),
            first_nodes.tolist(),
            stop_nodes.tolist(),
            strict=True,
        ):
            self.chunks[chunk].runs.append(slice(first, stop))
        for block, chunk in enumerate(chunk_of_block.tolist()):
            self.chunks[chunk].blocks.append(block)


def _bounds(chunk: Int64Array, chunks: int) -> Int64Array:
    """Return where the members of each chunk begin, and where the last ones end, ascending."""
    return np.searchsorted(chunk, np.arange(chunks + 1))


class _Waits(NamedTuple):
    node: Int64Array  #: that waits
    awaited: Int64Array  #: the node that it waits for


def _needed_waits(program: DependencyGraph, gap: Int64Array) -> _Waits:
    """Return the waits that no earlier wait implies.

    A stream that has waited for a node of another stream has waited for all nodes before it, unless
    the work of a stream overlaps.
    """
    waiting_node = program.waits[:, 0]
    by_call = np.lexsort((waiting_node, program.key[waiting_node]))
    node, awaited = program.waits[by_call].T
    streams = int(program.track.max(initial=0)) + 1
    pair = program.track[node] * streams + program.track[awaited]
    by_pair = np.argsort(pair, kind="stable")
    node = node[by_pair]
    awaited = awaited[by_pair]
    pair = pair[by_pair]

    work_overlaps = bool((gap < 0).any())
    if work_overlaps:
        return _Waits(node, awaited)
    latest_awaited = running_maximum(pair, awaited).value
    is_needed = begins_run(pair)
    is_needed[1:] |= latest_awaited[:-1] < awaited[1:]
    return _Waits(node=node[is_needed], awaited=awaited[is_needed])


def _find_marks(
    program: DependencyGraph, chunk_of_node: Int64Array, waits: _Waits
) -> Marks:
    """Return the nodes that wait, and those of the same chunk that are waited for."""
    is_of_chunk = chunk_of_node[waits.awaited] == chunk_of_node[waits.node]
    nodes = distinct(np.append(waits.node, waits.awaited[is_of_chunk]))
    by_call = np.lexsort((nodes, program.key[nodes]))
    mark_of = inverse_permutation(by_call)  # of each of `nodes`

    awaited_node = np.full(len(nodes), NONE)
    awaited_node[mark_of[np.searchsorted(nodes, waits.node)]] = waits.awaited
    chunk = chunk_of_node[nodes[by_call]]
    first_of_chunk = np.searchsorted(chunk, chunk)

    mark_before = np.full(len(nodes), NONE)
    mark_before[1:] = mark_of[:-1]
    is_first = begins_run(program.track[nodes]) | begins_run(chunk_of_node[nodes])
    mark_before[is_first] = NONE
    mark_before = mark_before[by_call]
    before = np.where(mark_before == NONE, NONE, mark_before - first_of_chunk)

    waits_within = (awaited_node != NONE) & (chunk_of_node[awaited_node] == chunk)
    awaited_mark = np.full(len(nodes), NONE)
    place = np.searchsorted(nodes, awaited_node[waits_within])
    awaited_mark[waits_within] = mark_of[place] - first_of_chunk[waits_within]
    return Marks(
        node=nodes[by_call],
        before=before,
        awaited_node=awaited_node,
        awaited_mark=awaited_mark,
        by_node=mark_of,
    )
