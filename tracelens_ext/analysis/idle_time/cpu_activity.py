"""What the host was in while the GPU was idle: gap by gap, and the idle time by it.

It is asked of the thread that launched the event after a gap, for the time until it launched: the
innermost event that covers at least half of that time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.idle_time.causes import ClassifiedGaps, classify_gaps
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Int64Array, IntArray, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import by_group_and_time, items_before, last_before, renamed
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.nesting import ROOT, ends_within, nest

HostColumn = Literal["host_op", "host_call", "python_frame"]
#: Of host threads, `NONE` where not known, from when to when.
Stretches = tuple[IntArray, Int64Array, Int64Array]

#: As in `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_IGNORED = ("ProfilerStep#",)  # it tells nothing
#: What is told of the host, by column.
HOST_KINDS: dict[HostColumn, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


def labels_of(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[str]]:
    """Codes of events' names without addresses in memory, and the names; empty without an event."""
    names = [*trace.names, ""]  # the last is that of NONE
    codes = np.where(rows != NONE, trace.name[rows], NONE)
    return renamed(codes, lambda code: _ADDRESS.sub("", names[code]))


def host_rows(
    work: GpuEvents,
    classified: ClassifiedGaps,
    column: HostColumn,
    chosen: IntArray | slice = slice(None),
) -> Int64Array:
    """Rows of the events that the host was in during each (chosen) gap, `NONE` where there is none.

    As `host_call` a synchronisation has the call that synchronised.
    """
    trace = work.trace
    start = classified.gaps.start[chosen]
    end = classified.gaps.end[chosen]
    launch = classified.launch[chosen]
    cause = classified.synchronising[chosen]
    linked = launch != NONE
    begun = trace.ts[launch]
    thread = np.where(linked, trace.thread[launch], NONE)
    until = np.where(linked & (begun > start) & (begun < end), begun, end)
    rows = innermost_during(trace, HOST_KINDS[column], (thread, start, until), _IGNORED)
    return np.where(cause != NONE, cause, rows) if column == "host_call" else rows


def innermost_during(
    trace: Trace, kinds: Sequence[EventKind], stretches: Stretches, ignored: tuple[str, ...] = ()
) -> Int64Array:
    """The innermost event of a host thread that covers half of each stretch at least, or `NONE`.

    Names that begin as one of `ignored` tell nothing.
    """
    thread, start, end = stretches
    # What encloses one that may cover half of a stretch is as long, and runs in it.
    shortest = int((end - start)[thread != NONE].min(initial=np.iinfo(np.int64).max >> 1))
    known = thread != NONE
    times = start[known], end[known]
    rows, parent = _nested_around(trace, kinds, thread[known], times, ignored, shortest / 2)
    result = np.full(len(thread), NONE, dtype=np.int64)
    middle = start + (end - start) // 2  # what covers more than half covers this
    at = last_before(trace.thread[rows], trace.ts[rows], thread, middle + 1)
    climbing = np.flatnonzero(at != ROOT)
    while len(climbing):
        here = rows[at[climbing]]
        since = start[climbing]
        until = end[climbing]
        inside = np.minimum(trace.end_of(here), until) - np.maximum(trace.ts[here], since)
        fits = inside * 2 >= until - since
        result[climbing[fits]] = here[fits]
        climbing = climbing[~fits]
        at[climbing] = parent[at[climbing]]
        climbing = climbing[at[climbing] != ROOT]
    return result


class Overlap(NamedTuple):
    """What n stretches of time have of m moments."""

    first: Int64Array  #: the first moment that runs in each stretch, (n,)
    past: Int64Array  #: one past the last of them, (n,)
    of_stretch: Int64Array  #: how long moments run in each stretch, ns, (n,)
    of_moment: Int64Array  #: what of each moment lies in stretches, which may overlap; ns, (m,)


class Moments(NamedTuple):
    """Stretches of time of host threads in one event each, apart, by thread and time; m of them."""

    thread: IntArray
    start: Int64Array
    end: Int64Array
    row: Int64Array  #: the event

    def during(self, thread: IntArray, start: Int64Array, end: Int64Array) -> Overlap:
        """What stretches of time of threads have of them."""
        first = items_before(self.thread, self.end, thread, start + 1)
        past = items_before(self.thread, self.start, thread, end)
        length = self.end - self.start
        size = len(self.row) + 1
        passed = np.append(0, np.cumsum(length))
        of_stretch = passed[past] - passed[first]
        runs = np.bincount(first, minlength=size) - np.bincount(past, minlength=size)
        of_moment = np.cumsum(runs)[:-1] * length
        some = np.flatnonzero(past > first)
        one = first[some]
        last = past[some] - 1
        # Of the first and the last a part may be outside.
        for at, cut in ((one, start[some] - self.start[one]), (last, self.end[last] - end[some])):
            outside = np.maximum(cut, 0)
            of_stretch[some] -= outside
            np.subtract.at(of_moment, at, outside)
        return Overlap(first, past, of_stretch, of_moment)


def innermost_moments(
    trace: Trace, kinds: Sequence[EventKind], stretches: Stretches, ignored: tuple[str, ...] = ()
) -> Moments:
    """The innermost events of host threads, moment by moment, around some stretches of time."""
    thread, start, end = (column[stretches[0] != NONE] for column in stretches)
    return _moments(trace, *_nested_around(trace, kinds, thread, (start, end), ignored, shortest=1))


def idle_moments(
    work: GpuEvents, kinds: tuple[EventKind, ...], ignored: tuple[str, ...]
) -> Moments:
    """Likewise around all idle time of devices, of the threads that launch GPU work."""
    trace = work.trace
    launch = work.tree.launch_of_gpu
    thread = trace.thread[launch[launch != NONE]]
    pieces = classify_gaps(work, "device").pieces
    times = pieces.start, pieces.end
    return _moments(trace, *_nested_around(trace, kinds, thread, times, ignored, shortest=1))


def _moments(trace: Trace, rows: Int64Array, parent: IntArray) -> Moments:
    """The innermost of nested events, moment by moment."""
    # At each moment of a thread what ends has ended, the inner first, before anything begins.
    both = np.append(rows[::-1], rows)
    lane = trace.thread[both]
    end = ends_within(parent.astype(np.int32, copy=False), trace.end_of(rows))
    moment = np.append(end[::-1], trace.ts[rows])
    here = np.append(parent[::-1], np.arange(len(rows), dtype=np.int32))
    at = by_group_and_time(lane, moment)
    moment = moment[at]
    lane = lane[at]
    here = here[at]
    real = (lane[1:] == lane[:-1]) & (moment[1:] > moment[:-1]) & (here[:-1] != ROOT)
    real = np.flatnonzero(real)
    return Moments(lane[real], moment[real], moment[real + 1], rows[here[real]])


def nested(trace: Trace, rows: Int64Array) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """Some host events in tree order, and the position of the parent of each."""
    columns = trace.thread[rows], trace.ts[rows], trace.end_of(rows), trace.external_id[rows]
    nesting = nest(*columns, np.zeros(len(rows), dtype=bool))
    return rows[nesting.order], nesting.parent


def _nested_around(
    trace: Trace,
    kinds: Sequence[EventKind],
    thread: IntArray,
    times: tuple[Int64Array, Int64Array],
    ignored: tuple[str, ...],
    shortest: float,
) -> tuple[Int64Array, IntArray]:
    """What is as long, on one of the threads, and runs between some times, nested.

    Any of the threads at any of the times: there may be more of one than of the other.
    """
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] >= shortest]
    rows = rows[np.bincount(thread, minlength=len(trace.threads))[trace.thread[rows]] > 0]
    first, last = union(*times)
    at = np.searchsorted(last, trace.ts[rows], side="right")  # the first stretch that ends later
    runs = at < len(first)
    runs[runs] = first[at[runs]] < trace.end_of(rows[runs])
    rows = rows[runs]
    told = trace.named(trace.name[rows], lambda name: not name.startswith(ignored))
    return nested(trace, rows[told])
