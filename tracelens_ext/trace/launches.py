"""The launches of GPU work, and the device and the operation that calls are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import by_group_and_time, items_before, last_before
from tracelens_ext.trace.linking import is_graph_launch
from tracelens_ext.trace.nesting import ROOT
from tracelens_ext.trace.runtime_calls import CAPTURES, COPIES, LAUNCHES_KERNEL

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray


@dataclass(frozen=True, eq=False)
class Launches:
    """The launches of kernels, graphs and copies in a trace, by time, l of them."""

    rows: Int64Array  #: (l,)
    lost: BoolArray  #: whether no GPU event is theirs, (l,)
    is_graph: BoolArray  #: (l,)
    is_kernel: BoolArray  #: (l,)
    device_index: Int64Array  #: the device, as in `find_tracks`, `NONE` where it is not known, (l,)


@cached_per_object
def find_launches(work: GpuEvents) -> Launches:
    """Find them, without those that a thread calls while it captures a stream: they start nothing.

    Nor those within another, and copies where the file holds no copy at all.
    """
    trace = work.trace
    tree = work.tree
    graph, kernel = (
        trace.names_matching(test) for test in (is_graph_launch, LAUNCHES_KERNEL.match)
    )
    kernel &= ~graph
    starts = graph | kernel
    if work.is_copy.any():
        starts |= trace.names_matching(COPIES.match)
    calls = trace.rows_of(*LAUNCH_KINDS)
    calls = calls[starts[trace.name[calls]] & (trace.correlation[calls] > 0)]
    begins, ends = captures(trace)
    thread = trace.thread[calls]
    ts = trace.ts[calls]
    at = last_before(trace.thread[begins], trace.ts[begins], thread, ts)
    captured = at != NONE
    captured[captured] = ts[captured] < trace.end_of(ends[at[captured]])
    calls = calls[~captured]
    above = tree.parent_position[tree.position[calls]]
    is_call = np.zeros(len(trace), dtype=bool)
    is_call[calls] = True
    inside = above != ROOT
    inside[inside] = is_call[tree.rows[above[inside]]]
    rows = calls[~inside]
    rows = rows[np.argsort(trace.ts[rows], kind="stable")]
    ran = np.isin(rows, tree.launch_of_gpu)
    if not trace.conventions.gpu_by_process:  # of two calls with one id, one has the work
        ran |= np.isin(trace.correlation[rows], trace.correlation[work.rows])
    name = trace.name[rows]
    return Launches(rows, ~ran, graph[name], kernel[name], device_index_of_calls(work, rows))


def begins_capture(call: str) -> bool:
    """Whether a runtime call of that name begins the capture of a stream."""
    return (found := CAPTURES.match(call)) is not None and found[1] == "Begin"


def captures(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """The calls that begin captures of streams, by thread and time, and those that end them."""
    calls = trace.rows_of(*LAUNCH_KINDS)
    edges = calls[trace.named(trace.name[calls], CAPTURES.match)]
    edges = edges[by_group_and_time(trace.thread[edges], trace.ts[edges])]
    begins = trace.named(trace.name[edges], begins_capture)
    pair = begins[:-1] & ~begins[1:] & (np.diff(trace.thread[edges]) == 0)
    return edges[:-1][pair], edges[1:][pair]


def device_index_of_calls(work: GpuEvents, rows: Int64Array) -> Int64Array:
    """The device that host events are about: that of the last launch with work on their thread.

    Else of the next one; else the same of their process; else `NONE`. As in `find_tracks`.
    """
    trace = work.trace
    linked = work.tree.linked
    launch = work.tree.launch_of_gpu[linked]
    device_index = find_tracks(work, "device").of_gpu[linked]
    result = np.full(len(rows), NONE, dtype=np.int64)
    places: list[IntArray] = [np.arange(len(trace.threads)), trace.process_of_thread]
    for place in places if len(launch) else ():
        order = by_group_and_time(place[trace.thread[launch]], trace.ts[launch])
        group = place[trace.thread[launch[order]]]
        time = trace.ts[launch[order]]
        left = np.flatnonzero(result == NONE)
        asked = place[trace.thread[rows[left]]]
        at = items_before(group, time, asked, trace.ts[rows[left]] + 1)
        for near in (np.minimum(at, len(order) - 1), np.maximum(at - 1, 0)):  # the last one wins
            same = group[near] == asked
            result[left[same]] = device_index[order[near[same]]]
    return result


def place_of(work: GpuEvents, row: int) -> str:
    """The innermost operation around a call, else the annotation or Python frame; else its name."""
    trace = work.trace
    if trace.kind[row] not in LAUNCH_KINDS:
        return trace.name_of(row)
    above = list(work.tree.ancestors(row))
    kinds = (EventKind.CPU_OP,), (EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
    found = (each for wanted in kinds for each in above if trace.kind[each] in wanted)
    return trace.name_of(next(found, row))
