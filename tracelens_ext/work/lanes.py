"""Lanes: the streams of a trace, or its devices; when they are idle; the launches of their work."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.intervals import covered, holes
from tracelens_ext.linking import is_graph_launch
from tracelens_ext.nesting import ROOT
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind
from tracelens_ext.work.group_search import by_group_and_time, items_before, last_before
from tracelens_ext.work.grouping import number_groups
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray, Trace
    from tracelens_ext.work.gpu_work import GpuWork


Scope = Literal["stream", "device"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """What is idle or busy as a whole: the streams of a trace, or its devices, p of them."""

    scope: Scope  #: which of the two
    process: list[int | str]  #: the process of each as the trace spells it, p of them
    device: Int64Array  #: its number, `NONE` where the trace does not say, (p,)
    stream: Int64Array  #: likewise; `NONE` for a whole device, (p,)
    of_gpu: Int64Array  #: the lane of each GPU event, (g,)

    def __len__(self) -> int:
        return len(self.process)

    @property
    def device_labels(self) -> list[int | str]:
        """What the devices are called: by their number, with the process where two have one."""
        numbers: list[int] = self.device.tolist()
        return [
            number if numbers.count(number) == 1 else f"{number} of process {process}"
            for number, process in zip(numbers, self.process, strict=True)
        ]


@once_for_each
def find_lanes(work: GpuWork, scope: Scope) -> Lanes:
    """The streams, or the devices (all streams of one taken together), on which GPU events ran."""
    trace = work.trace
    process = trace.process_of_thread[trace.thread[work.rows]]
    keys: list[IntArray] = [process, trace.device]
    if scope == "stream":
        keys.append(trace.stream)
    elif trace.conventions.gpu_by_process:
        keys = [trace.device]  # two processes may share one
    first, number = number_groups(keys)
    return Lanes(
        scope=scope,
        process=[trace.threads[i][0] for i in trace.thread[work.rows[first]].tolist()],
        device=trace.device[first],
        stream=trace.stream[first] if scope == "stream" else np.full(len(first), NONE),
        of_gpu=number,
    )


def busy_within(work: GpuWork, device: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """How long a device (an index into the lanes) is busy in each stretch of time, ns, (k,)."""
    of_gpu = find_lanes(work, "device").of_gpu
    busy = np.zeros(len(device), dtype=np.int64)
    for number in np.unique(device).tolist():
        mine, here = of_gpu == number, device == number
        busy[here] = covered(work.start[mine], work.end[mine], start[here], end[here])
    return busy


#: Sums of gaps, ns, fit in 64 bits below this, 146 years; streams count one by one.
_MOST_IN_ALL = 2**62


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps of all lanes, k of them, by lane, then by time."""

    lanes: Lanes  #: the streams or devices
    lane: Int64Array  #: of each gap, an index into those, (k,)
    start: Int64Array  #: when the event before ended, ns since the trace's first event, (k,)
    end: Int64Array  #: when the event after started, (k,)
    before: Int64Array  #: the event that ended last, a place in `trace.gpu_rows`, (k,)
    after: Int64Array  #: the event that ended the gap, likewise, (k,)
    overlapped: Int64Array  #: how much of the gap other streams of the device were busy, ns, (k,)

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def duration(self) -> Int64Array:
        """Length of each gap, ns, always more than 0, (k,)."""
        return self.end - self.start

    def chosen(self, which: BoolArray | IntArray) -> Gaps:
        """Some of the gaps."""
        columns = [field.name for field in fields(self) if field.name != "lanes"]
        return replace(self, **{name: getattr(self, name)[which] for name in columns})


@once_for_each
def find_gaps(work: GpuWork, scope: Scope) -> Gaps:
    """The gaps between successive GPU events of each stream, or of each device.

    All events count, unlinked ones too; the gaps of a device are what its timeline calls idle.
    Events that overlap count as one stretch of work: the one that ended last is the one before.
    """
    lanes = find_lanes(work, scope)
    order = _in_order(lanes.of_gpu, work.start, work.end)
    of_lane = np.split(order, np.flatnonzero(np.diff(lanes.of_gpu[order])) + 1)
    found = [holes(work.start, work.end, mine) for mine in of_lane]
    before, after = map(np.concatenate, zip(*found, strict=True))
    begins, ends = work.end[before], work.start[after]
    if (ends - begins).sum(dtype=np.float64) >= _MOST_IN_ALL:
        path = work.trace.provenance.path
        raise TraceFormatError(
            path, "its GPU is idle for more than a century", "check the times of its GPU events"
        )
    overlapped = busy_within(work, find_lanes(work, "device").of_gpu[after], begins, ends)
    return Gaps(lanes, lanes.of_gpu[after], begins, ends, before, after, overlapped)


def _in_order(lane: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """By lane, start and end; there are few lanes."""
    order = by_group_and_time(lane, start)
    by_lane, begun = lane[order], start[order]
    together = (by_lane[1:] == by_lane[:-1]) & (begun[1:] == begun[:-1])
    if (together & (end[order[1:]] < end[order[:-1]])).any():
        return np.lexsort((end, start, lane))
    return order


#: Calls that start a kernel; `…LaunchHostFunc` starts none.
_KERNEL: Final = re.compile(r"(?:cuda|hip|cu)\w*?Launch(?:\w*Kernel|ByPtr|Grid|$)")
_COPY: Final = re.compile(r"(?:cuda|hip|cu)Memcpy")
_BEGIN: Final = re.compile(r"(?:cuda|hip|cu)StreamBeginCapture")
_END: Final = re.compile(r"(?:cuda|hip|cu)StreamEndCapture")


@dataclass(frozen=True, eq=False)
class Launches:
    """The launches of kernels, graphs and copies in a trace, by time, l of them."""

    rows: Int64Array  #: (l,)
    lost: BoolArray  #: whether no GPU event is theirs, (l,)
    is_graph: BoolArray  #: (l,)
    is_kernel: BoolArray  #: (l,)
    lane: Int64Array  #: the device, as in `find_lanes`, `NONE` where it is not known, (l,)


@once_for_each
def find_launches(work: GpuWork) -> Launches:
    """Find them, without those that a thread calls while it captures a stream: they start nothing.

    Nor those within another, and copies where the file holds no copy at all.
    """
    trace, tree = work.trace, work.tree
    graph, kernel = (trace.names_matching(test) for test in (is_graph_launch, _KERNEL.match))
    kernel &= ~graph
    starts = graph | kernel
    if work.is_copy.any():
        starts |= trace.names_matching(_COPY.match)
    calls = trace.rows_of(*LAUNCH_KINDS)
    calls = calls[starts[trace.name[calls]] & (trace.correlation[calls] > 0)]
    begins, ended = captures(trace)
    thread, ts = trace.thread[calls], trace.ts[calls]
    at = last_before(trace.thread[begins], trace.ts[begins], thread, ts)
    captured = at != NONE
    captured[captured] = ts[captured] < ended[at[captured]]
    calls = calls[~captured]
    above = tree.parent_position[tree.position[calls]]
    inside = above != ROOT
    inside[inside] = np.isin(tree.rows[above[inside]], calls)
    rows = calls[~inside]
    rows = rows[np.argsort(trace.ts[rows], kind="stable")]
    ran = np.isin(rows, tree.launch_of_gpu)
    if not trace.conventions.gpu_by_process:  # of two calls with one id, one has the work
        ran |= np.isin(trace.correlation[rows], trace.correlation[work.rows])
    name = trace.name[rows]
    return Launches(rows, ~ran, graph[name], kernel[name], lane_of_calls(work, rows))


def captures(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """The calls that begin a capture of a stream, by thread and time, and when each has ended."""
    calls = trace.rows_of(*LAUNCH_KINDS)
    is_begin, is_end = (trace.named(trace.name[calls], p.match) for p in (_BEGIN, _END))
    edges = calls[is_begin | is_end]
    edges = edges[by_group_and_time(trace.thread[edges], trace.ts[edges])]
    begins = trace.named(trace.name[edges], _BEGIN.match)
    pair = begins[:-1] & ~begins[1:] & (np.diff(trace.thread[edges]) == 0)
    return edges[:-1][pair], trace.end_of(edges[1:][pair])


def lane_of_calls(work: GpuWork, rows: Int64Array) -> Int64Array:
    """The device that host events are about: that of the last launch with work on their thread.

    Else of the next one; else the same of their process; as in `find_lanes`, `NONE` where nothing
    tells.
    """
    trace, linked = work.trace, work.tree.linked
    launch, lane = work.tree.launch_of_gpu[linked], find_lanes(work, "device").of_gpu[linked]
    result = np.full(len(rows), NONE, dtype=np.int64)
    places: list[IntArray] = [np.arange(len(trace.threads)), trace.process_of_thread]
    for place in places:
        order = by_group_and_time(place[trace.thread[launch]], trace.ts[launch])
        group, time = place[trace.thread[launch[order]]], trace.ts[launch[order]]
        left = np.flatnonzero(result == NONE)
        if not len(order) or not len(left):
            break
        asked = place[trace.thread[rows[left]]]
        at = items_before(group, time, asked, trace.ts[rows[left]] + 1)
        for near in (np.minimum(at, len(order) - 1), np.maximum(at - 1, 0)):  # the last one wins
            same = group[near] == asked
            result[left[same]] = lane[order[near[same]]]
    return result


def place_of(work: GpuWork, row: int) -> str:
    """The innermost operation around a call, else the annotation or Python frame; else its name."""
    trace = work.trace
    if trace.kind[row] not in LAUNCH_KINDS:
        return trace.name_of(row)
    above = list(work.tree.ancestors(row))
    for kinds in ((EventKind.CPU_OP,), (EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)):
        for each in above:
            if trace.kind[each] in kinds:
                return trace.name_of(each)
    return trace.name_of(row)
