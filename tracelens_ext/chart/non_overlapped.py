"""Time that overlaps, counted once: each instant belongs to the event that covers it first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array


def non_overlapped_time(start: Int64Array, end: Int64Array) -> Int64Array:
    """The part of each event during which no earlier event runs; they add up to the union.

    Of two events the one that starts first is the earlier; of two that start together, the one
    that comes first here.

    Args:
        start: ns, shape (k,), in any order.
        end: no less than `start`, shape (k,).

    Returns:
        ns, shape (k,), in the order of the events.
    """
    share = np.zeros(len(start), dtype=np.int64)
    if not len(start):
        return share
    order = np.argsort(start, kind="stable")
    sorted_start, sorted_end = start[order], end[order]
    reach = np.maximum.accumulate(sorted_end)
    # What is covered when an event starts; before the first event nothing is.
    covered = np.concatenate((sorted_start[:1], reach[:-1]))
    share[order] = np.maximum(sorted_end - np.maximum(sorted_start, covered), 0)
    return share
