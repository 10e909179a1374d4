"""Sums over groups of GPU events, without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.codes import dense_codes
from tracelens_ext.ordering import stable_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array

    IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Groups:
    """Statistics of durations by group, longest total first, k groups.

    Attributes:
        keys: one array a key column, each shape (k,).
        count: events in each group.
        total, shortest, longest: ns.
        first: index of the group's first event among those given.
    """

    keys: tuple[IntArray, ...]
    count: Int64Array
    total: Int64Array
    shortest: Int64Array
    longest: Int64Array
    first: Int64Array

    def __len__(self) -> int:
        return len(self.count)


def group_durations(keys: Sequence[IntArray], duration: Int64Array) -> Groups:
    """Group events by several columns of codes.

    Args:
        keys: columns of small non-negative codes, or of any integers, each shape (m,).
        duration: ns, shape (m,).

    Returns:
        The groups, by total duration, then by first event.
    """
    first, group = dense_codes(keys)
    size = len(first)
    count = np.bincount(group, minlength=size)
    order = stable_order(group)
    starts = np.concatenate(([0], np.cumsum(count)[:-1])).astype(np.int64)
    ordered = duration[order]
    reduce = [np.add, np.minimum, np.maximum]
    total, shortest, longest = (
        f.reduceat(ordered, starts) if size else np.empty(0, np.int64) for f in reduce
    )
    by_time = np.lexsort((first, -total))
    return Groups(
        keys=tuple(key[first][by_time] for key in keys),
        count=count[by_time],
        total=total[by_time],
        shortest=shortest[by_time],
        longest=longest[by_time],
        first=first[by_time],
    )


def texts(codes: IntArray, labels: Sequence[str]) -> list[str]:
    """The labels that codes stand for."""
    return [labels[code] for code in codes.tolist()]


def percent(part: Int64Array, whole: IntArray | int) -> npt.NDArray[np.float64]:
    """`part` in percent of `whole`, 0 where that is 0; shape of `part`."""
    divisor = np.broadcast_to(np.asarray(whole, dtype=np.float64), part.shape)
    result = np.zeros(part.shape)
    np.divide(100.0 * part, divisor, out=result, where=divisor != 0)
    return result
