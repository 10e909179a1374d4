"""The order in which a pass of the replay runs nodes and blocks, so that numpy runs many at once.

A program is cut into chunks at each block, and after some thousand calls. Within a chunk, streams
run one after another. They only meet at marks: nodes that wait for another stream, and the nodes of
the same chunk that they wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.grouping import inverse_permutation
from tracelens_ext.trace.integer_sorting import begins_run, distinct
from tracelens_ext.trace.sorted_groups import running_maximum

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

_ROWS_AT_ONCE = 4096


class Chunk(NamedTuple):
    """The nodes between two cuts, and the blocks at the second cut."""

    runs: list[slice]  #: the nodes of each stream
    marks: slice  #: the marks among these nodes, indices into `Marks`
    blocks: list[int]  #: the blocks that come after the nodes


@dataclass(frozen=True, eq=False)
class Marks:
    """The m nodes at which streams meet, in the order of their calls.

    `before` and `awaited_mark` count marks from the first mark of the chunk.
    """

    node: Int64Array  #: the node of each mark, (m,)
    #: the mark before each mark on its stream; `NONE` without one in the same chunk, (m,)
    before: Int64Array
    #: the node that each mark waits for; `NONE` for a mark that does not wait, (m,)
    awaited_node: Int64Array
    #: the mark of that node; `NONE` without one in the same chunk, (m,)
    awaited_mark: Int64Array
    by_node: Int64Array  #: the marks, sorted by their nodes, (m,)

    @cached_property
    def _sorted_nodes(self) -> Int64Array:
        return self.node[self.by_node]

    def of_nodes(self, nodes: slice) -> Int64Array:
        """Return the marks in a range of nodes, in the order of the nodes."""
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
    """Return the index of the first member of each chunk, and at last the number of members.

    Members of chunks 0, 0, 2 of 3 chunks give 0, 2, 2, 3.
    """
    return np.searchsorted(chunk, np.arange(chunks + 1))


class _Waits(NamedTuple):
    """Pairs of nodes."""

    node: Int64Array  #: the node that waits
    awaited: Int64Array  #: the node that it waits for


def _needed_waits(program: DependencyGraph, gap: Int64Array) -> _Waits:
    """Return the waits that no earlier wait implies.

    A stream that has waited for a node of another stream has also waited for all nodes before that
    node. This does not hold if work overlaps on a stream; then all waits are needed.
    """
    waiting_node = program.waits[:, 0]
    by_call = np.lexsort((waiting_node, program.key[waiting_node]))
    node, awaited = program.waits[by_call].T
    streams = int(program.track.max(initial=0)) + 1
    pair = program.track[node] * streams + program.track[awaited]
    # Waits between the same two streams are now neighbors, in the order of their calls.
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
    """Return the marks: the nodes that wait, and the nodes that they wait for in the same chunk."""
    is_of_same_chunk = chunk_of_node[waits.awaited] == chunk_of_node[waits.node]
    # The nodes of the marks in ascending order, then the marks in the order of calls.
    nodes = distinct(np.append(waits.node, waits.awaited[is_of_same_chunk]))
    by_call = np.lexsort((nodes, program.key[nodes]))
    mark_of = inverse_permutation(by_call)  # the mark of each of `nodes`

    awaited_node = np.full(len(nodes), NONE)
    awaited_node[mark_of[np.searchsorted(nodes, waits.node)]] = waits.awaited
    chunk = chunk_of_node[nodes[by_call]]
    first_of_chunk = np.searchsorted(chunk, chunk)  # the first mark of the chunk

    mark_before = np.full(len(nodes), NONE)
    mark_before[1:] = mark_of[:-1]
    is_first = begins_run(program.track[nodes]) | begins_run(chunk_of_node[nodes])
    mark_before[is_first] = NONE
    mark_before = mark_before[by_call]
    before = np.where(mark_before == NONE, NONE, mark_before - first_of_chunk)

    waits_in_chunk = (awaited_node != NONE) & (chunk_of_node[awaited_node] == chunk)
    awaited_mark = np.full(len(nodes), NONE)
    awaited_index = np.searchsorted(nodes, awaited_node[waits_in_chunk])
    awaited_mark[waits_in_chunk] = (
        mark_of[awaited_index] - first_of_chunk[waits_in_chunk]
    )
    return Marks(
        node=nodes[by_call],
        before=before,
        awaited_node=awaited_node,
        awaited_mark=awaited_mark,
        by_node=mark_of,
    )
