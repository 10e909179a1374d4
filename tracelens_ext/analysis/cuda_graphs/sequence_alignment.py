"""Aligns two sequences of numbers by their longest common subsequence.

See Wagner and Fischer, "The string-to-string correction problem", 1974.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import NONE, Int64Array, IntArray

#: Each row of the alignment table takes as long as this many cells in addition to its own.
_ROW_OVERHEAD: Final = 4_000


class AlignmentBudget:
    """The number of table cells (pairs of elements) that alignments may still compute.

    A billion cells take seconds. The fixed time of each row counts as `_ROW_OVERHEAD` cells.

    Args:
        cells: for all alignments together.
        at_once: for a single alignment.
    """

    def __init__(self, cells: int = 2_000_000_000, at_once: int = 500_000_000) -> None:
        self._cells = cells
        self._at_once = at_once

    def take(self, cells: int) -> bool:
        """Take cells from the budget; return False and take none if it does not have enough."""
        if cells > min(self._cells, self._at_once):
            return False
        self._cells -= cells
        return True


def align(first: IntArray, second: IntArray, budget: AlignmentBudget) -> Int64Array:
    """Return the place in the second sequence of the counterpart of each element of the first.

    The counterparts are a longest common subsequence. If the budget is too small for it, only the
    equal elements at both ends have counterparts: for 1 2 3 4 and 1 5 4 the result is
    0, `NONE`, `NONE`, 2.

    Args:
        first: a sequence of numbers, (m,).
        second: a sequence of numbers, (n,).
        budget: the number of cells that may be computed.

    Returns:
        Ascending places in `second`, (m,); `NONE` for an element without a counterpart.
    """
    # Elements that the other sequence lacks have no counterpart. Without them, the sequences are
    # often equal.
    shared_in_first = np.flatnonzero(np.isin(first, second))
    shared_in_second = np.flatnonzero(np.isin(second, first))
    pairs = _corresponding(first[shared_in_first], second[shared_in_second], budget)
    counterpart = np.full(len(first), NONE, dtype=np.int64)
    counterpart[shared_in_first[pairs.in_first]] = shared_in_second[pairs.in_second]
    return counterpart


class _Pairs(NamedTuple):
    """The places of p corresponding elements in two sequences, in any order."""

    in_first: Int64Array  #: (p,)
    in_second: Int64Array  #: (p,)


def _corresponding(
    first: IntArray, second: IntArray, budget: AlignmentBudget
) -> _Pairs:
    """Pair the equal elements at both ends, and align what lies between them."""
    ends = _equal_ends(first, second)
    first_end = len(first) - ends.at_end
    second_end = len(second) - ends.at_end
    middle = _aligned_middle(
        first[ends.at_begin : first_end], second[ends.at_begin : second_end], budget
    )
    begin = np.arange(ends.at_begin)
    end = np.arange(ends.at_end)
    return _Pairs(
        in_first=np.concatenate(
            [begin, middle.in_first + ends.at_begin, end + first_end]
        ),
        in_second=np.concatenate(
            [begin, middle.in_second + ends.at_begin, end + second_end]
        ),
    )


def _aligned_middle(
    first: IntArray, second: IntArray, budget: AlignmentBudget
) -> _Pairs:
    """Pair the elements of a longest common subsequence; none if the budget is too small."""
    rows = min(len(first), len(second))
    columns = max(len(first), len(second))
    if not rows or not budget.take(rows * (columns + _ROW_OVERHEAD)):
        nothing = np.zeros(0, dtype=np.int64)
        return _Pairs(in_first=nothing, in_second=nothing)
    if len(first) <= len(second):
        common = _longest_common(first, second)
        return _Pairs(
            np.array(common.rows, dtype=np.int64),
            np.array(common.columns, dtype=np.int64),
        )
    common = _longest_common(second, first)
    return _Pairs(
        np.array(common.columns, dtype=np.int64), np.array(common.rows, dtype=np.int64)
    )


def earliest_places_of(subsequence: IntArray, sequence: IntArray) -> Int64Array:
    """Return the earliest places in a sequence at which a subsequence occurs in order, (m,).

    For 2 2 in 1 2 3 2 2 the places are 1 and 3.

    Raises:
        IndexError: the sequence does not contain all elements in this order.
    """
    places_of_element: dict[int, list[int]] = {}
    for element in np.unique(subsequence).tolist():
        places_of_element[element] = np.flatnonzero(sequence == element).tolist()
    places = []
    next_place = 0
    for element in subsequence.tolist():
        candidates = places_of_element[element]
        place = candidates[bisect_left(candidates, next_place)]
        places.append(place)
        next_place = place + 1
    return np.array(places, dtype=np.int64)


class _EqualEnds(NamedTuple):
    """The numbers of equal elements of two sequences at their ends; no element counts twice."""

    at_begin: int
    at_end: int


def _equal_ends(first: IntArray, second: IntArray) -> _EqualEnds:
    """Return how many elements are equal at the beginning and at the end, which need no table."""
    shorter_length = min(len(first), len(second))
    at_begin = _equal_elements(first[:shorter_length], second[:shorter_length])
    most_at_end = shorter_length - at_begin
    reversed_first = first[at_begin:][::-1]
    reversed_second = second[at_begin:][::-1]
    at_end = _equal_elements(
        reversed_first[:most_at_end], reversed_second[:most_at_end]
    )
    return _EqualEnds(at_begin=at_begin, at_end=at_end)


def _equal_elements(first: IntArray, second: IntArray) -> int:
    """Return the number of equal elements at the beginning of two sequences of the same length."""
    different_places = np.flatnonzero(first != second)
    if not len(different_places):
        return len(first)
    return int(different_places[0])


class _CommonSubsequence(NamedTuple):
    """The places of the elements of a common subsequence, the last element first."""

    rows: list[int]  #: places in the shorter sequence
    columns: list[int]  #: places in the longer one


def _longest_common(shorter: IntArray, longer: IntArray) -> _CommonSubsequence:
    """Return a longest common subsequence.

    The table has a row for each element of the shorter sequence and a column for each element of
    the longer one. A cell is the length of the longest common subsequence of the two beginnings
    that end there. The way back through the table only asks whether a cell equals the cell above
    it, so each row is stored as one bit per cell.
    """
    row_above = np.zeros(len(longer) + 1, dtype=np.int32)
    current_row = np.zeros(len(longer) + 1, dtype=np.int32)
    equals_above_bits = []
    for element in shorter:
        with_element = row_above[:-1] + (longer == element)
        np.maximum(row_above[1:], with_element, out=current_row[1:])
        np.maximum.accumulate(current_row, out=current_row)
        equals_above_bits.append(np.packbits(current_row[1:] == row_above[1:]))
        row_above, current_row = current_row, row_above
    row = len(shorter) - 1
    column = len(longer) - 1
    common = _CommonSubsequence(rows=[], columns=[])
    while row >= 0 and column >= 0:
        if shorter[row] == longer[column]:
            common.rows.append(row)
            common.columns.append(column)
            row -= 1
            column -= 1
        elif _has_bit(equals_above_bits[row], column):
            row -= 1
        else:
            column -= 1
    return common


def _has_bit(packed_bits: npt.NDArray[np.uint8], place: int) -> bool:
    """Return whether the bit at a place is set; `packbits` puts the first bit of a byte highest."""
    byte = packed_bits[place >> 3]
    shift = 7 - (place & 7)
    return bool(byte >> shift & 1)
