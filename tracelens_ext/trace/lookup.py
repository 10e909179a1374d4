"""Look-ups by index for columns in which some indices are missing.

An index column holds `NONE` (-1) for an event without a launch, a parent or an iteration. A search
among n items returns n for a position behind the last item. As an index, -1 would read the last
value, and n would raise an error.
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
    """Return the value at each index, and `missing` for each index outside the array.

    >>> values_at(np.array([10, 20, 30]), np.array([2, NONE, 0, 3]))
    array([30, -1, 10, -1])

    Args:
        values: the values to look up, shape (n,); may be empty.
        index: indices, of any shape. An index below 0, or of n or more, is missing.
        missing: the result for a missing index; it must fit the dtype of `values`.

    Returns:
        An array of the shape of `index` and the dtype of `values`.
    """
    is_missing = ~is_within(values, index)
    if not len(values):
        return np.full(index.shape, missing, dtype=values.dtype)
    result: npt.NDArray[Scalar] = values.take(index, mode="clip")
    result[is_missing] = missing
    return result


def is_within(values: npt.NDArray[Scalar], index: IntArray) -> BoolArray:
    """Return True for each index that is inside the array; shape of `index`."""
    within: BoolArray = (index >= 0) & (index < len(values))
    return within
