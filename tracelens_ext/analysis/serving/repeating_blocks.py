"""The block of kernels that repeats within a step.

Each kernel name is tried as the mark of a layer: it divides the step into blocks, each from one
kernel of this name to the next. The name whose blocks are most alike gives the layers. Two blocks
are alike if most of their kernels are the same, and if both or neither of them contain attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, Int64Array

#: Two blocks are alike if at least this share of their kernels is the same.
_MIN_COMMON_SHARE: Final = 0.5
#: A choice of layers is good enough if it has at least this share of the kernels of the best one.
_GOOD_ENOUGH_SHARE: Final = 0.75
#: Only the most frequent names are tried as marks of layers.
_MAX_NAMES: Final = 256


class Block(NamedTuple):
    """A range of places in a sequence of kernels."""

    begin: int  #: the first place
    end: int  #: one past the last place

    @property
    def length(self) -> int:
        """The number of kernels."""
        return self.end - self.begin


class _LayerChoice(NamedTuple):
    """The layers that one kernel name marks.

    Attributes:
        block_count: the number of blocks that are alike.
        score: the number of kernels in these blocks, minus the number of kernels in the blocks
            between them that are not alike.
        begin: the first place of each block, from the first to the last that is alike; blocks
            between them that are not alike are included.
    """

    block_count: int
    score: int
    begin: Int64Array


def repeating_block(
    names: Sequence[int] | Int64Array, attention: BoolArray
) -> list[Block]:
    """Return the repeating blocks of a sequence of names.

    Args:
        names: name codes, shape (n,).
        attention: marks the names of attention kernels, (n,).

    Returns:
        At least two blocks in order, each of which begins where the previous one ends; an empty
        list if nothing repeats.
    """
    codes = np.asarray(names, dtype=np.int64)
    choices = []
    for marks in _places_of_names(codes):
        begin = marks - _equal_names_before(codes, marks)
        is_alike, length = _compare_blocks(codes, attention, begin)
        if is_alike.sum() >= 2:
            first, last = np.flatnonzero(is_alike)[[0, -1]].tolist()
            signed_length = np.where(is_alike, length, -length)
            choices.append(
                _LayerChoice(
                    block_count=int(is_alike.sum()),
                    score=int(signed_length[first : last + 1].sum()),
                    begin=begin[first : last + 1],
                )
            )
    if not choices:
        return []
    # Two layers together are as alike as single layers, with nearly the same score. So of all good
    # choices, the one with the most blocks has single layers.
    min_score = _GOOD_ENOUGH_SHARE * max(choice.score for choice in choices)
    good_choices = [choice for choice in choices if choice.score >= min_score]

    def preference(choice: _LayerChoice) -> tuple[int, int, int]:
        return choice.block_count, choice.score, -int(choice.begin[0])

    begin = max(good_choices, key=preference).begin
    return _blocks_of_layers(codes, begin - _equal_names_before(codes, begin))


def _places_of_names(codes: Int64Array) -> list[Int64Array]:
    """Return the places of each of the most frequent names, the most frequent name first."""
    order = np.argsort(codes, kind="stable")
    is_last_of_name = np.diff(codes[order]) != 0
    first_of_name = np.flatnonzero(is_last_of_name) + 1
    places = np.split(order, first_of_name)
    places.sort(key=len, reverse=True)
    return places[:_MAX_NAMES]


def _equal_names_before(codes: Int64Array, marks: Int64Array) -> int:
    """Return the number of places directly before the marks that have equal names at all marks.

    For the names a b M c a b M and the marks at M, the two places with a b come before both marks.
    """
    if len(marks) < 2:
        return 0
    shortest_distance = int(np.diff(marks).min())
    most = min(shortest_distance - 1, int(marks[0]))
    for distance in range(1, most + 1):
        names_before = codes[marks - distance]
        if (names_before != names_before[0]).any():
            return distance - 1
    return max(most, 0)


def _compare_blocks(
    codes: Int64Array, attention: BoolArray, begin: Int64Array
) -> tuple[BoolArray, Int64Array]:
    """Compare the blocks that begin at given places with the main block.

    The main block is the one whose repetitions have the most kernels in total. The end of the last
    block is unknown, so that block is assumed to be as long as the main block.

    Returns:
        Whether each block is like the main block, and the length of each block.
    """
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    repetitions = Counter(_kernels_key(codes, block) for block in blocks)

    def kernels_of_repetitions(block: Block) -> int:
        return repetitions[_kernels_key(codes, block)] * block.length

    main = max(blocks, key=kernels_of_repetitions, default=Block(0, 0))
    if main.length < 2:  # a kernel that repeats directly is not a layer
        return np.zeros(len(begin), dtype=bool), begin
    last_begin = int(begin[-1])
    blocks.append(Block(last_begin, min(last_begin + main.length, len(codes))))
    main_kernels = Counter(codes[main.begin : main.end].tolist())
    main_has_attention = attention[main.begin : main.end].any()
    is_alike_by_key: dict[bytes, bool] = {}
    for block in blocks:
        key = _kernels_key(codes, block)
        if key in is_alike_by_key:
            continue
        kernels = Counter(codes[block.begin : block.end].tolist())
        common = (kernels & main_kernels).total()
        has_enough = common >= _MIN_COMMON_SHARE * max(block.length, main.length)
        has_attention = attention[block.begin : block.end].any()
        is_alike_by_key[key] = bool(has_enough and has_attention == main_has_attention)
    is_alike = np.array(
        [is_alike_by_key[_kernels_key(codes, block)] for block in blocks]
    )
    return is_alike, np.array([block.length for block in blocks])


def _kernels_key(codes: Int64Array, block: Block) -> bytes:
    """Return a key that is equal for blocks of the same kernels."""
    return codes[block.begin : block.end].tobytes()


def _blocks_of_layers(codes: Int64Array, begin: Int64Array) -> list[Block]:
    """Return the block of each layer.

    A layer ends where the next one begins. The last layer ends where it stops agreeing with the
    earlier layer that agrees with it longest.
    """
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    last_begin = int(begin[-1])
    codes_from_last = codes[last_begin:]
    last_length = 1
    for block in dict.fromkeys(blocks):
        size = min(block.length, len(codes_from_last))
        codes_of_block = codes[block.begin : block.begin + size]
        differences = np.flatnonzero(codes_of_block != codes_from_last[:size])
        equal_kernels = int(differences[0]) if len(differences) else size
        last_length = max(last_length, equal_kernels)
    blocks.append(Block(last_begin, last_begin + last_length))
    return blocks
