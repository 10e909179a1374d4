"""Sorting by numbers of up to 32 bits, such as codes and threads, in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray

_RADIX = 1 << 16  # numpy sorts integers of 16 bits by radix


def stable_order(numbers: IntArray) -> Int64Array:
    """A stable argsort.

    Args:
        numbers: shape (m,). Those from 0 to 2^32 - 1 are sorted by radix, 16 bits at a time.

    Returns:
        Places, shape (m,).
    """
    least, greatest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if least < 0 or greatest >= _RADIX**2:
        return np.argsort(numbers, kind="stable")
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if greatest >= _RADIX:
        high = (numbers >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order
