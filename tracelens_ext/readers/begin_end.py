"""Finds the pairs of a begin and an end that together are an event.

In the "Trace Event Format", a begin (`"ph": "B"`) and its end (`"ph": "E"`) are on the same thread,
and pairs are nested: an end belongs to the latest begin that is still open. A reader adds both to
the `TraceBuilder`, the begin with the kind of the whole event plus `BEGIN`, the end with the kind
`END`. The builder then makes one event of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, Int64Array, IntArray

#: Added to the kind of an event for its begin.
BEGIN: Final = 64
#: Kind of all ends.
END: Final = 253

#: Reasons for dropping a begin or an end, as the user reads them.
NO_END: Final = "begin events (ph: B) without an end"
NO_BEGIN: Final = "end events (ph: E) without a begin"


class Pairs(NamedTuple):
    """The rows of begins and of the ends that belong to them."""

    begin: Int64Array  #: rows of begins that have an end, (p,)
    end: Int64Array  #: rows of their ends, (p,)
    is_open: BoolArray  #: whether an event is a begin without an end, (n,)
    is_stray: BoolArray  #: whether an event is an end without a begin, (n,)


def is_begin(kind: IntArray) -> BoolArray:
    """Return whether each event is a begin, given its kind."""
    begins: BoolArray = (kind >= BEGIN) & (kind < 2 * BEGIN)
    return begins


def find_pairs(kind: IntArray, thread: IntArray, ts: Int64Array) -> Pairs:
    """Find the end of each begin among n events.

    On each thread, a begin opens a level of nesting, and its end closes that level. An end without
    an open begin (a stray end) has no level:

        event   B   B   E   E   E      B
        level   1   2   2   1   stray  1

    Among all begins and ends of a level, in order of time, a begin and its end are neighbors.

    Args:
        kind: kind of each event, (n,).
        thread: thread of each event, (n,).
        ts: time of each event, ns, (n,).
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
    """Return the level that each event of a thread opens or closes; `_NO_LEVEL` for a stray end.

    The balance (number of begins minus number of ends so far) reaches a new minimum below zero at
    each stray end, and only there. The level is the balance above that minimum.

    Args:
        opens: True for begins, False for ends, in order of time.
    """
    balance = np.cumsum(np.where(opens, 1, -1))
    lowest = np.minimum.accumulate(np.minimum(balance, 0))
    is_stray = ~opens & (np.diff(lowest, prepend=0) < 0)
    level = balance - lowest
    level[~opens] += 1
    level[is_stray] = _NO_LEVEL
    return level
