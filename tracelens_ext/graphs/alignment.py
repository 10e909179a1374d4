"""Two sequences of numbers aligned: their longest common subsequence.

The table of lengths of all pairs of prefixes (Wagner and Fischer, "The string-to-string correction
problem", 1974) is filled row by row, each in a few numpy passes; a bit a cell is kept of it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray


#: What a row of the table takes beside its elements, in elements.
_ROW: Final = 4_000


class AlignmentBudget:
    """How much may still be aligned: pairs of elements to compare. A billion take seconds."""

    def __init__(self, cells: int = 2_000_000_000, at_once: int = 500_000_000) -> None:
        self._cells, self._at_once = cells, at_once

    def take(self, cells: int) -> bool:
        """Whether so many pairs may be compared; they are taken from the budget then."""
        if cells > min(self._cells, self._at_once):
            return False
        self._cells -= cells
        return True


def align(a: IntArray, b: IntArray, budget: AlignmentBudget) -> Int64Array:
    """The element of `b` that each element of `a` corresponds to.

    Args:
        a: numbers, shape (m,).
        b: numbers, shape (n,).
        budget: what may be compared. Beyond it only the beginnings and ends that are alike
            correspond.

    Returns:
        Indices into `b`, ascending, `NONE` for an element that has none; as many elements as
        possible have one, shape (m,).
    """
    result = np.full(len(a), NONE, dtype=np.int64)
    # What the other does not have corresponds to nothing; what is left is often the same.
    in_a, in_b = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    a, b = a[in_a], b[in_b]
    least = min(len(a), len(b))
    head = _equal(a[:least], b[:least])
    tail = _equal(a[head:][::-1][: least - head], b[head:][::-1][: least - head])
    result[in_a[:head]] = in_b[:head]
    result[in_a[len(a) - tail :]] = in_b[len(b) - tail :]
    a, in_a = a[head : len(a) - tail], in_a[head : len(in_a) - tail]
    b, in_b = b[head : len(b) - tail], in_b[head : len(in_b) - tail]
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
    found, at = [], 0
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
    i, j = len(a) - 1, len(b) - 1
    of_a, of_b = [], []
    while i >= 0 and j >= 0:
        if a[i] == b[j]:
            of_a.append(i)
            of_b.append(j)
            i, j = i - 1, j - 1
        elif same_as_above[i][j >> 3] >> (7 - (j & 7)) & 1:
            i -= 1
        else:
            j -= 1
    return of_a, of_b
