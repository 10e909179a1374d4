"""What the host was in while the GPU was idle: gap by gap, and the idle time by it.

It is asked of the thread that launched the event after a gap, for the time until it launched: the
innermost event that covers at least half of that time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_ext.intervals import inside, union
from tracelens_ext.nesting import MOST_STEPS, ROOT, nearest_marked, nest
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Trace
from tracelens_ext.work.group_search import last_before
from tracelens_ext.work.grouping import number_groups
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.gaps.classified import ClassifiedGaps
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray
    from tracelens_ext.tree import CallTree

HostColumn = Literal["host_op", "host_call", "python_frame"]

#: As in `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: What is told of the host, by column.
HOST_KINDS: dict[HostColumn, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


def labels_of(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[str]]:
    """Codes of events' names without addresses in memory, and the names; empty without an event."""
    name = np.full(len(rows), NONE, dtype=np.int64)
    name[rows != NONE] = trace.name[rows[rows != NONE]]
    first, number = number_groups([name])
    labels: dict[str, int] = {}
    of_present = [
        labels.setdefault(_ADDRESS.sub("", trace.names[i]) if i != NONE else "", len(labels))
        for i in name[first].tolist()
    ]
    return np.array(of_present, dtype=np.int64)[number], list(labels)


def host_rows(
    classified: ClassifiedGaps,
    column: HostColumn,
    chosen: IntArray | slice = slice(None),
    ignored: tuple[str, ...] = ("ProfilerStep#",),
) -> Int64Array:
    """Rows of the events that the host was in during each (chosen) gap, `NONE` where there is none.

    As `host_call` a synchronisation has the call that synchronised; `ignored` names tell nothing.
    """
    trace = classified.work.trace
    start, end = classified.gaps.start[chosen], classified.gaps.end[chosen]
    launch = classified.launch[chosen]
    linked = launch != NONE
    safe = np.where(linked, launch, 0)
    begun, thread = trace.ts[safe], np.where(linked, trace.thread[safe], NONE)
    until = np.where(linked & (begun > start) & (begun < end), begun, end)
    tree, kinds = classified.work.tree, HOST_KINDS[column]
    rows = innermost_during(tree, kinds, thread, start, until, ignored)
    if column == "host_call":
        is_cause = classified.synchronising[chosen] != NONE
        rows = np.where(is_cause, classified.synchronising[chosen], rows)
    return rows


def innermost_during(
    tree: CallTree,
    kinds: Sequence[EventKind],
    thread: IntArray,
    start: Int64Array,
    end: Int64Array,
    ignored: str | tuple[str, ...] = (),
) -> Int64Array:
    """The innermost event of a host thread that covers half of each stretch at least, or `NONE`.

    `thread` is `NONE` where not known; names that begin as one of `ignored` tell nothing.
    """
    trace = tree.trace
    if EventKind.PYTHON_FUNCTION in kinds and not tree.add_python_func:
        # What encloses one that may cover half of a stretch is as long, and runs in it: they nest
        # as all events do, and are a few hundred where all are a million.
        shortest = int((end - start)[thread != NONE].min(initial=np.iinfo(np.int64).max >> 1))
        rows, parent = _nested(trace, _running(trace, kinds, thread, start, end, shortest / 2))
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

    The stretch, the row, and how long the thread was in no event within that one, ns, (j,).
    """
    rows = _running(trace, kinds, thread, start, end, shortest=1)
    rows = rows[trace.named(trace.name[rows], lambda name: not name.startswith(ignored))]
    rows, parent = _nested(trace, rows)
    position = np.arange(len(rows))
    # At each moment of a thread what ends has ended, the inner first, before anything begins.
    moment = np.concatenate((trace.end_of(rows), trace.ts[rows]))
    lane = np.tile(trace.thread[rows], 2)
    here = np.concatenate((parent, position))
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
        found.append((asked[stretch], rows[here[mine][segment]], until - begin))
    nothing = np.empty(0, dtype=np.int64)
    columns = zip((nothing,) * 3, *found, strict=True)
    stretch, row, ns = (np.concatenate(column) for column in columns)
    return stretch, row, ns


@once_for_each
def _places(tree: CallTree) -> tuple[Int32Array, Int64Array]:
    """Thread and start of the host events in tree order, both (m,)."""
    return tree.trace.thread[tree.rows], tree.trace.ts[tree.rows]


def _nested(trace: Trace, rows: Int64Array) -> tuple[Int64Array, Int32Array]:
    """Some host events in tree order, and the position of the parent of each."""
    begins, ends, childless = trace.ts[rows], trace.end_of(rows), np.zeros(len(rows), dtype=bool)
    nesting = nest(trace.thread[rows], begins, ends, trace.external_id[rows], childless)
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
