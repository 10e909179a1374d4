"""Events that a file writes as two, a begin and an end, become one with a duration.

In the "Trace Event Format" a begin (`"ph": "B"`) and its end (`"ph": "E"`) are on the same thread,
and pairs nest: an end belongs to the last begin that is still open. A reader adds both to the
`TraceBuilder` as events: a begin of the kind of the event plus `BEGIN`, an end of the kind `END`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, Int64Array, IntArray

#: Added to the `EventKind` of an event that only begins.
BEGIN: Final = 64
#: The kind of what ends the last event of its thread that began.
END: Final = 253

#: Why such events are dropped.
NO_END: Final = "begin events (ph: B) without an end"
NO_BEGIN: Final = "end events (ph: E) without a begin"


class Pairs(NamedTuple):
    """The rows of begins and of the ends that belong to them."""

    begin: Int64Array  #: rows of begins that have an end, (p,)
    end: Int64Array  #: rows of their ends, (p,)
    is_open: BoolArray  #: True for begins without an end, (n,)
    is_stray: BoolArray  #: True for ends without a begin, (n,)


def is_begin(kind: IntArray) -> BoolArray:
    """Return which events only begin."""
    begins: BoolArray = (kind >= BEGIN) & (kind < 2 * BEGIN)
    return begins


def find_pairs(kind: IntArray, thread: IntArray, ts: Int64Array) -> Pairs:
    """Find the end of each begin; all arguments of shape (n,).

    An end without an open begin changes nothing. Of what is left, the begin that opens a level of a
    thread and the end that closes it are neighbors among all that open or close that level:

        event   B   B   E   E   E      B
        level   1   2   2   1   stray  1
    """
    is_edge = is_begin(kind) | (kind == END)
    rows = np.flatnonzero(is_edge)
    by_thread_and_time = np.lexsort((rows, ts[rows], thread[rows]))
    rows = rows[by_thread_and_time]
    opens = is_begin(kind[rows])
    level = np.zeros(len(rows), dtype=np.int64)
    first_of_thread = np.flatnonzero(np.diff(thread[rows])) + 1
    for events in np.split(np.arange(len(rows)), first_of_thread):
        level[events] = _levels(opens[events])

    has_level = level != _NO_LEVEL
    stray_rows = rows[~has_level]
    is_stray = np.zeros(len(kind), dtype=bool)
    is_stray[stray_rows] = True
    by_time = np.arange(len(rows))
    order = np.lexsort((by_time, level, thread[rows]))
    order = order[has_level[order]]
    ordered_rows = rows[order]
    ordered_opens = opens[order]
    is_pair = ordered_opens[:-1] & ~ordered_opens[1:]
    begin = ordered_rows[:-1][is_pair]
    end = ordered_rows[1:][is_pair]
    begins = ordered_rows[ordered_opens]
    is_open = np.zeros(len(kind), dtype=bool)
    is_open[begins] = True
    is_open[begin] = False
    return Pairs(begin=begin, end=end, is_open=is_open, is_stray=is_stray)


_NO_LEVEL: Final = 0


def _levels(opens: BoolArray) -> Int64Array:
    """Return the level that each event of a thread opens or closes, `_NO_LEVEL` of a stray end.

    How many more begins than ends there were falls to a new low, below zero, at each stray end, and
    nowhere else.
    """
    balance = np.cumsum(np.where(opens, 1, -1))
    lowest = np.minimum.accumulate(np.minimum(balance, 0))
    is_stray = ~opens & (np.diff(lowest, prepend=0) < 0)
    level = balance - lowest
    level[~opens] += 1
    level[is_stray] = _NO_LEVEL
    return level
