"""Sorts integers, and finds the distinct ones, in less time than numpy's general functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray

#: numpy sorts integers of 16 bits, those below this limit, by radix sort.
_RADIX_LIMIT = 1 << 16


def stable_order(numbers: IntArray) -> Int64Array:
    """Return the order that sorts the numbers; equal numbers keep their order.

    Small numbers are sorted in linear time: numpy's stable sort is a radix sort for integers of 16
    bits, and a merge sort for larger ones. Threads, streams and groups are mostly small numbers.
    """
    least = numbers.min(initial=0)
    largest = numbers.max(initial=0)
    if least >= 0 and largest < _RADIX_LIMIT:
        numbers = numbers.astype(np.uint16)
    return np.argsort(numbers, kind="stable")


def distinct(numbers: IntArray) -> Int64Array:
    """Return each number once, ascending.

    `np.unique` takes ten times as long since NumPy 2.3, which hashes the numbers.
    """
    ordered: Int64Array = np.sort(numbers)
    return ordered[begins_run(ordered)]


def begins_run(numbers: IntArray) -> BoolArray:
    """Return True for each number that differs from the one before it: [4, 4, 7] → [T, F, T]."""
    begins = np.ones(len(numbers), dtype=bool)
    begins[1:] = numbers[1:] != numbers[:-1]
    return begins
