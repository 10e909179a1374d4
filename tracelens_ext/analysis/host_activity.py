"""What a host thread was in for most of a stretch of time: the innermost event that covers half."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.group_search import last_before
from tracelens_ext.intervals import union
from tracelens_ext.nesting import ROOT, nest
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.trace import EventKind, Int64Array, Trace

    BoolArray = npt.NDArray[np.bool_]
    IntArray = npt.NDArray[np.integer]


def innermost_during(
    trace: Trace,
    kinds: Sequence[EventKind],
    thread: IntArray,
    start: Int64Array,
    end: Int64Array,
    ignored: str | None = None,
) -> Int64Array:
    """The innermost event of a host thread that covers at least half of each stretch of time.

    Args:
        trace: the events.
        kinds: those that are asked about.
        thread: an index into `trace.threads`, `NONE` where it is not known, shape (k,).
        start: ns since the trace's first event, shape (k,).
        end: more than `start`, shape (k,).
        ignored: names that begin so tell nothing, such as `ProfilerStep#`.

    Returns:
        Rows, `NONE` where no event does, shape (k,).
    """
    rows = _candidates(trace, kinds, thread, start, end)
    if ignored is not None:
        silent = trace.names_matching(lambda name: name.startswith(ignored))
        rows = rows[~silent[trace.name[rows]]]
    if not len(rows):
        return np.full(len(thread), NONE, dtype=np.int64)
    begun, childless = trace.ts[rows], np.zeros(len(rows), dtype=bool)
    ended = trace.end_of(rows)
    nesting = nest(trace.thread[rows], begun, ended, trace.external_id[rows], childless)
    rows, begun, ended = rows[nesting.order], begun[nesting.order], ended[nesting.order]
    middle = start + (end - start) // 2  # what covers more than half covers this
    at = last_before(trace.thread[rows], begun, thread, middle + 1)
    climbing = np.flatnonzero(at != NONE)
    while len(climbing):
        here = at[climbing]
        inside = np.minimum(ended[here], end[climbing]) - np.maximum(begun[here], start[climbing])
        climbing = climbing[inside * 2 < (end - start)[climbing]]
        at[climbing] = nesting.parent[at[climbing]]
        climbing = climbing[at[climbing] != ROOT]
    return np.where(at >= 0, rows[np.maximum(at, 0)], NONE)


def _candidates(
    trace: Trace, kinds: Sequence[EventKind], thread: IntArray, start: Int64Array, end: Int64Array
) -> Int64Array:
    """The events long enough, on one of the threads, that run in one of the stretches of time.

    What encloses one of them is among them, so that they nest as all events do; they are a few
    hundred where all are a million.
    """
    known = thread != NONE
    if not known.any():
        return np.empty(0, dtype=np.int64)
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] * 2 >= int((end - start)[known].min())]
    asked = np.zeros(len(trace.threads), dtype=bool)
    asked[thread[known]] = True
    rows = rows[asked[trace.thread[rows]]]
    first, last = union(start[known], end[known])
    begun = trace.ts[rows]
    at = np.searchsorted(last, begun, side="right")  # the first stretch that ends later
    runs: BoolArray = at < len(first)
    runs[runs] = first[at[runs]] < trace.end_of(rows[runs])
    return rows[runs]
