"""What a host thread was in: for most of a stretch of time, or moment by moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import inside, union
from tracelens_ext.nesting import MOST_STEPS, ROOT, nearest_marked, nest
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.group_search import last_before
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray, Trace
    from tracelens_ext.tree import CallTree


def innermost_during(
    tree: CallTree,
    kinds: Sequence[EventKind],
    thread: IntArray,
    start: Int64Array,
    end: Int64Array,
    ignored: str | tuple[str, ...] = (),
) -> Int64Array:
    """The innermost event of a host thread that covers at least half of each stretch of time.

    Args:
        tree: the call tree; it need not hold the trace's Python frames.
        kinds: the kinds of host events that are asked about.
        thread: an index into `trace.threads`, `NONE` where it is not known, shape (k,).
        start: ns since the trace's first event, shape (k,).
        end: more than `start`, shape (k,).
        ignored: names that begin so tell nothing, such as `ProfilerStep#`; one or several.

    Returns:
        Rows, `NONE` where no event does, shape (k,).
    """
    trace = tree.trace
    if EventKind.PYTHON_FUNCTION in kinds and not tree.add_python_func:
        rows, parent = _nested(trace, kinds, thread, start, end)
        threads, starts = trace.thread[rows], trace.ts[rows]
    else:
        rows, parent = tree.rows, tree.parent_position
        threads, starts = _places(tree)
    tells = np.isin(np.arange(len(EventKind)), kinds)
    result = np.full(len(thread), NONE, dtype=np.int64)
    middle = start + (end - start) // 2  # what covers more than half covers this
    at = last_before(threads, starts, thread, middle + 1)
    climbing = np.flatnonzero(at != NONE)
    steps = 0
    while len(climbing):
        steps += 1
        if steps == MOST_STEPS:  # from here on, past all that tells nothing
            told = ~trace.named(trace.name[rows], lambda name: name.startswith(ignored))
            parent = nearest_marked(parent, tells[trace.kind[rows]] & told)
        here = rows[at[climbing]]
        fits = tells[trace.kind[here]]
        fits &= ~trace.named(trace.name[here], lambda name: name.startswith(ignored))
        inside = np.minimum(trace.end_of(here), end[climbing])
        inside -= np.maximum(trace.ts[here], start[climbing])
        fits &= inside * 2 >= (end - start)[climbing]
        result[climbing[fits]] = here[fits]
        climbing = climbing[~fits]
        at[climbing] = parent[at[climbing]]
        climbing = climbing[at[climbing] != ROOT]
    return result


def innermost_at(
    trace: Trace,
    kinds: Sequence[EventKind],
    thread: IntArray,
    start: Int64Array,
    end: Int64Array,
    ignored: str | tuple[str, ...] = (),
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The innermost events of host threads in some stretches of time, moment by moment.

    Args:
        trace: the trace.
        kinds: the kinds of host events that are asked about.
        thread: an index into `trace.threads`, `NONE` where it is not known, shape (k,).
        start: ns since the trace's first event, shape (k,).
        end: more than `start`, shape (k,).
        ignored: names that begin so tell nothing.

    Returns:
        The stretch, the row, and how long the thread was in no event within that one, ns, (j,).
    """
    rows = _running(trace, kinds, thread, start, end, shortest=1)
    rows = rows[trace.named(trace.name[rows], lambda name: not name.startswith(ignored))]
    childless = np.zeros(len(rows), dtype=bool)
    begins, ends = trace.ts[rows], trace.end_of(rows)
    nesting = nest(trace.thread[rows], begins, ends, trace.external_id[rows], childless)
    order, position = nesting.order, np.arange(len(rows))
    # At each moment of a thread what ends has ended, the inner first, before anything begins.
    moment = np.concatenate((ends[order], begins[order]))
    lane = np.tile(trace.thread[rows[order]], 2)
    here = np.concatenate((nesting.parent, position))
    sequence = np.concatenate((-position, position + len(rows)))
    at = np.lexsort((sequence, moment, lane))
    moment, lane, here = moment[at], lane[at], here[at]
    real = (lane[1:] == lane[:-1]) & (moment[1:] > moment[:-1]) & (here[:-1] != ROOT)
    first, last, lane, here = moment[:-1][real], moment[1:][real], lane[:-1][real], here[:-1][real]
    found = []
    by_thread = np.argsort(thread, kind="stable")
    for number in np.unique(lane).tolist():
        both = (number, number + 1)
        asked = by_thread[slice(*np.searchsorted(thread, both, sorter=by_thread))]
        mine = slice(*np.searchsorted(lane, both))
        begin, until, stretch, segment = inside(start[asked], end[asked], first[mine], last[mine])
        found.append((asked[stretch], rows[order[here[mine][segment]]], until - begin))
    nothing = np.empty(0, dtype=np.int64)
    columns = zip((nothing,) * 3, *found, strict=True)
    stretch, row, ns = (np.concatenate(column) for column in columns)
    return stretch, row, ns


@once_for_each
def _places(tree: CallTree) -> tuple[Int32Array, Int64Array]:
    """Thread and start of the host events in tree order, both (m,)."""
    return tree.trace.thread[tree.rows], tree.trace.ts[tree.rows]


def _nested(
    trace: Trace, kinds: Sequence[EventKind], thread: IntArray, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int32Array]:
    """The events of some kinds that may cover half of a stretch, and how they nest.

    They are long enough, on one of the threads, and run in one of the stretches. What encloses one
    of them is among them, so that they nest as all events do; they are a few hundred where all are
    a million.

    Returns:
        Rows in tree order, and the place of each one's parent among them.
    """
    shortest = int((end - start)[thread != NONE].min(initial=np.iinfo(np.int64).max >> 1))
    rows = _running(trace, kinds, thread, start, end, shortest / 2)
    begun, childless = trace.ts[rows], np.zeros(len(rows), dtype=bool)
    nesting = nest(
        trace.thread[rows], begun, trace.end_of(rows), trace.external_id[rows], childless
    )
    return rows[nesting.order], nesting.parent


def _running(
    trace: Trace,
    kinds: Sequence[EventKind],
    thread: IntArray,
    start: Int64Array,
    end: Int64Array,
    shortest: float,
) -> Int64Array:
    """Rows of what is as long, on one of the threads, and runs in one of the stretches."""
    known = thread != NONE
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] >= shortest]
    asked = np.zeros(len(trace.threads), dtype=bool)
    asked[thread[known]] = True
    rows = rows[asked[trace.thread[rows]]]
    first, last = union(start[known], end[known])
    at = np.searchsorted(last, trace.ts[rows], side="right")  # the first stretch that ends later
    runs: BoolArray = at < len(first)
    runs[runs] = first[at[runs]] < trace.end_of(rows[runs])
    return rows[runs]
