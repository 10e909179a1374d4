"""Look-ups for indices of which some stand for nothing.

An index column holds `NONE` where an event has no launch, no parent, no iteration, and a search
among n items answers n for "after the last one". Used as they are, the first would read the last
value and the second would raise an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace.trace import BoolArray, IntArray

Scalar = TypeVar("Scalar", bound=np.generic)


def values_at(
    values: npt.NDArray[Scalar], index: IntArray, missing: float = NONE
) -> npt.NDArray[Scalar]:
    """Return the values at some indices, and `missing` for each index outside of the array.

    >>> values_at(np.array([10, 20, 30]), np.array([2, NONE, 0, 3]))
    array([30, -1, 10, -1])

    Args:
        values: what is looked up, shape (n,); it may be empty.
        index: of any shape; below 0 (`NONE`) and from n on, an index stands for nothing.
        missing: what stands for nothing is answered with; it must fit the type of `values`.

    Returns:
        An array of the shape of `index` and the type of `values`.
    """
    is_missing = ~is_within(values, index)
    if not len(values):
        return np.full(index.shape, missing, dtype=values.dtype)
    result: npt.NDArray[Scalar] = values.take(index, mode="clip")
    result[is_missing] = missing
    return result


def is_within(values: npt.NDArray[Scalar], index: IntArray) -> BoolArray:
    """Tell which indices have a value in an array; shape of `index`."""
    within: BoolArray = (index >= 0) & (index < len(values))
    return within
