"""Sorting by small numbers, such as codes, threads and streams, in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    IntArray = npt.NDArray[np.integer]

_RADIX_SORTED = np.uint16


def stable_order(numbers: IntArray) -> npt.NDArray[np.int64]:
    """A stable argsort.

    Args:
        numbers: shape (m,). When all are from 0 to 65,535 numpy sorts them by radix.

    Returns:
        Places, shape (m,).
    """
    least, greatest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if least >= 0 and greatest <= np.iinfo(_RADIX_SORTED).max:
        numbers = numbers.astype(_RADIX_SORTED)
    return np.argsort(numbers, kind="stable")
