"""The launches of GPU work, and the device and the operation that a host call belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.linking import is_graph_launch
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.runtime_calls import CAPTURES, COPIES, LAUNCHES_KERNEL
from tracelens_ext.trace.sorted_groups import (
    by_group_and_time,
    items_before,
    last_before,
)

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray


@dataclass(frozen=True, eq=False)
class Launches:
    """The l launches of kernels, graphs and copies in a trace, by time."""

    rows: Int64Array  #: row of each launch in the trace, (l,)
    lost: BoolArray  #: True for a launch whose GPU events are not in the trace, (l,)
    is_graph: BoolArray  #: True for a launch of a graph, (l,)
    is_kernel: BoolArray  #: True for a launch of a kernel, (l,)
    #: index of the device of each launch in `find_tracks`, `NONE` if not known, (l,)
    device_index: Int64Array


@cached_per_object
def find_launches(gpu_events: GpuEvents) -> Launches:
    """Find the launches of a trace.

    The result leaves out launches during the capture of a stream, which start nothing; launches
    within another launch; and calls that copy, if the file has no copy on a GPU at all.
    """
    trace = gpu_events.trace
    is_graph_name = trace.names_matching(is_graph_launch)
    is_kernel_name = trace.names_matching(LAUNCHES_KERNEL.match) & ~is_graph_name
    is_launch_name = is_graph_name | is_kernel_name
    if gpu_events.is_copy.any():
        is_launch_name |= trace.names_matching(COPIES.match)

    calls = trace.rows_of(*LAUNCH_KINDS)
    has_id = trace.correlation[calls] > 0
    calls = calls[is_launch_name[trace.name[calls]] & has_id]
    calls = calls[~_are_captured(trace, calls)]
    calls = calls[~_are_within_another(gpu_events, calls)]
    rows = calls[np.argsort(trace.ts[calls], kind="stable")]

    has_work = np.isin(rows, gpu_events.tree.launch_of_gpu)
    # If two calls have the same id, only one is the launch of the event. The other has work, too.
    if not trace.conventions.gpu_by_process:
        has_work |= np.isin(trace.correlation[rows], trace.correlation[gpu_events.rows])
    name = trace.name[rows]
    return Launches(
        rows=rows,
        lost=~has_work,
        is_graph=is_graph_name[name],
        is_kernel=is_kernel_name[name],
        device_index=device_index_of_calls(gpu_events, rows),
    )


def _are_captured(trace: Trace, calls: Int64Array) -> BoolArray:
    """Return True for each call that is made while its thread captures a stream."""
    capture = captures(trace)
    start = trace.ts[calls]
    latest_capture = last_before(
        group=trace.thread[capture.begin],
        time=trace.ts[capture.begin],
        query_group=trace.thread[calls],
        query_time=start,
    )
    end_of_capture = values_at(
        trace.end_of(capture.end), latest_capture, missing=np.iinfo(np.int64).min
    )
    captured: BoolArray = start < end_of_capture
    return captured


def _are_within_another(gpu_events: GpuEvents, calls: Int64Array) -> BoolArray:
    """Return True for each call whose parent in the call tree is one of the calls, too."""
    tree = gpu_events.tree
    position = tree.position[calls]
    is_call = np.zeros(len(tree.rows), dtype=bool)
    is_call[position] = True
    position_above = tree.parent_position[position]
    return values_at(is_call, position_above, missing=False)


def begins_capture(call: str) -> bool:
    """Return True for the name of a runtime call that begins the capture of a stream."""
    match = CAPTURES.match(call)
    return match is not None and match[1] == "Begin"


class Captures(NamedTuple):
    """The c captures of streams, by thread and time."""

    begin: Int64Array  #: row of the call that begins each capture, (c,)
    end: Int64Array  #: row of the call that ends each capture, (c,)


def captures(trace: Trace) -> Captures:
    """Find the captures of streams: a call that begins one, and next on its thread its end."""
    calls = trace.rows_of(*LAUNCH_KINDS)
    edges = calls[trace.named(trace.name[calls], CAPTURES.match)]
    edges = edges[by_group_and_time(trace.thread[edges], trace.ts[edges])]
    begins = trace.named(trace.name[edges], begins_capture)
    is_pair = begins[:-1] & ~begins[1:]
    is_pair &= np.diff(trace.thread[edges]) == 0
    return Captures(begin=edges[:-1][is_pair], end=edges[1:][is_pair])


def device_index_of_calls(gpu_events: GpuEvents, rows: Int64Array) -> Int64Array:
    """Return the device that each host event most likely uses, an index into the device tracks.

    This is the device of the last linked launch on the thread of the event, or else of the next
    one. A thread without linked launches takes the nearest launch of its process; if the process
    has none either, the result is `NONE`.
    """
    trace = gpu_events.trace
    is_linked = gpu_events.tree.linked
    launch = gpu_events.tree.launch_of_gpu[is_linked]
    device_of_launch = find_tracks(gpu_events, "device").of_gpu[is_linked]
    device_index = np.full(len(rows), NONE, dtype=np.int64)
    if not len(launch):
        return device_index
    groups_of_threads: list[IntArray] = [
        np.arange(len(trace.threads)),
        trace.process_of_thread,
    ]
    for group_of_thread in groups_of_threads:
        unknown = np.flatnonzero(device_index == NONE)
        order = by_group_and_time(
            group_of_thread[trace.thread[launch]], trace.ts[launch]
        )
        ordered_launch = launch[order]
        nearest = _nearest_launch(
            trace=trace,
            group_of_thread=group_of_thread,
            launches=ordered_launch,
            rows=rows[unknown],
        )
        device_index[unknown] = values_at(device_of_launch[order], nearest)
    return device_index


def _nearest_launch(
    trace: Trace, group_of_thread: IntArray, launches: Int64Array, rows: Int64Array
) -> Int64Array:
    """Return the last launch up to each event in its group of threads, or else the next launch.

    Args:
        trace: the trace.
        group_of_thread: the group of each of the trace's threads.
        launches: rows of the launches, sorted by group and time, (l,).
        rows: rows of the events, (k,).

    Returns:
        Indices into `launches`, `NONE` for an event whose group has no launch, (k,).
    """
    group_of_launch = group_of_thread[trace.thread[launches]]
    launch_time = trace.ts[launches]
    group = group_of_thread[trace.thread[rows]]
    time = trace.ts[rows]
    following = items_before(
        group=group_of_launch, time=launch_time, query_group=group, query_time=time + 1
    )
    last = following - 1
    group_of_next = values_at(group_of_launch, following, missing=NONE)
    group_of_last = values_at(group_of_launch, last, missing=NONE)
    nearest = np.where(group_of_next == group, following, NONE)
    return np.where(group_of_last == group, last, nearest)


def place_of(gpu_events: GpuEvents, row: int) -> str:
    """Return the name of the innermost operation around a runtime or driver call.

    Without an operation it is the innermost annotation or Python frame, and without these, or for
    an event that is not such a call, it is the event itself.
    """
    trace = gpu_events.trace
    if trace.kind[row] not in LAUNCH_KINDS:
        return trace.name_of(row)
    rows_above = list(gpu_events.tree.ancestors(row))
    operation_kinds = (EventKind.CPU_OP,)
    scope_kinds = (EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
    for kinds in (operation_kinds, scope_kinds):
        for row_above in rows_above:
            if trace.kind[row_above] in kinds:
                return trace.name_of(row_above)
    return trace.name_of(row)
