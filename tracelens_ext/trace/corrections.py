"""Correct what profilers record wrongly: events that are written twice, and impossible ends.

The trace of every reader passes through `corrected`, so all formats and analyses agree.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.integer_sorting import stable_order
from tracelens_ext.trace.merged_ranks import reuses_ids
from tracelens_ext.trace.trace import HOST_KINDS, NONE, Trace

if TYPE_CHECKING:
    from tracelens_ext.trace.trace import BoolArray, Int64Array, IntArray

#: The reason for which duplicates of events are dropped, as the provenance names it.
WRITTEN_TWICE: Final = "written twice (equal in every field)"


def corrected(trace: Trace, *, streams_run_in_order: bool = True) -> Trace:
    """Return a trace without events that were written twice, and without impossible ends.

    A trace without such events is returned as it is. The given trace never changes.

    Args:
        trace: the trace.
        streams_run_in_order: False if an event may contain others of its stream, as on the hardware
            queues of AMD. Then ends are not corrected.
    """
    if not len(trace.gpu_rows):
        return trace
    streams = _by_stream(trace)
    is_copy = _written_twice(trace, streams)
    if is_copy.any():
        is_copy |= _host_events_written_twice(trace)
        trace = _without(trace, is_copy)
        streams = _by_stream(trace)
    # In a file of several ranks, a stream may mix the events of different GPUs.
    if not streams_run_in_order or reuses_ids(trace):
        return trace
    return _with_possible_ends(trace, streams)


@dataclass(frozen=True, eq=False)
class _Streams:
    """The g GPU events of a trace, sorted by stream, start and end."""

    rows: Int64Array  #: row of each event in the trace, (g,)
    stream: Int64Array  #: a number for the stream of each event, ascending, (g,)
    start: Int64Array  #: ns, (g,)
    end: Int64Array  #: ns, (g,)


def _by_stream(trace: Trace) -> _Streams:
    rows = trace.gpu_rows
    stream = _number_streams(trace)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    # Traces are nearly sorted by start, so two stable sorts are quick. Only a trace in which events
    # of a stream start together needs the other keys.
    order = np.argsort(start, kind="stable")
    order = order[stable_order(stream[order])]
    starts_with_next = np.diff(start[order]) == 0
    starts_with_next &= np.diff(stream[order]) == 0
    if starts_with_next.any():
        order = np.lexsort((rows, trace.name[rows], end, start, stream))
    return _Streams(
        rows=rows[order], stream=stream[order], start=start[order], end=end[order]
    )


def _number_streams(trace: Trace) -> Int64Array:
    """Return a number for the stream (process, device and stream) of each GPU event, (g,).

    In most traces all GPU events of a thread are on one stream. Then numbering the few threads is
    enough; otherwise all events are grouped.
    """
    thread = trace.thread[trace.gpu_rows]
    last_of_thread = np.zeros(len(trace.threads), dtype=np.int64)
    last_of_thread[thread] = np.arange(len(thread))
    is_on_stream_of_last = trace.device == trace.device[last_of_thread[thread]]
    is_on_stream_of_last &= trace.stream == trace.stream[last_of_thread[thread]]
    process = trace.process_of_thread
    if not is_on_stream_of_last.all():
        _, stream_number = number_groups([process[thread], trace.device, trace.stream])
        return stream_number
    number_of_stream: dict[tuple[int, int, int], int] = {}
    devices = trace.device[last_of_thread].tolist()
    streams = trace.stream[last_of_thread].tolist()
    number_of_thread = [
        number_of_stream.setdefault(stream, len(number_of_stream))
        for stream in zip(process.tolist(), devices, streams, strict=True)
    ]
    return np.array(number_of_thread, dtype=np.int64)[thread]


def _written_twice(trace: Trace, streams: _Streams) -> BoolArray:
    """Return True for each GPU event that equals an earlier one in every field, (n,).

    Events without a correlation id are never counted as duplicates, since two different ones may
    have the same times.
    """
    is_copy = np.zeros(len(trace), dtype=bool)
    # Few events have the times of their neighbor; only these are compared in every field.
    is_alike = np.diff(streams.start) == 0
    is_alike &= np.diff(streams.end) == 0
    is_alike &= np.diff(streams.stream) == 0
    is_alike &= trace.correlation[streams.rows[1:]] > 0
    if not is_alike.any():
        return is_copy
    is_candidate = np.zeros(len(streams.rows), dtype=bool)
    is_candidate[1:] |= is_alike
    is_candidate[:-1] |= is_alike
    rows = streams.rows[is_candidate]
    columns: list[IntArray] = [
        streams.start[is_candidate],
        streams.end[is_candidate],
        streams.stream[is_candidate],
        trace.name[rows],
        trace.kind[rows],
        trace.correlation[rows],
        trace.external_id[rows],
    ]
    columns += [column.at(rows) for column in trace.args.values()]
    is_equal = _equal_to_one_before(columns, rows)
    is_copy[rows[is_equal]] = True
    return is_copy


def _host_events_written_twice(trace: Trace) -> BoolArray:
    """Return True for each host event with an id that equals an earlier one in every field, (n,).

    Only traces whose GPU events were written twice are checked. Events without an id are never
    counted as duplicates: two Python frames may take the same time to the microsecond.
    """
    is_copy = np.zeros(len(trace), dtype=bool)
    rows = trace.rows_of(*HOST_KINDS)
    has_id = (trace.correlation[rows] != NONE) | (trace.external_id[rows] != NONE)
    rows = rows[has_id]
    columns: list[IntArray] = [
        trace.thread[rows],
        trace.ts[rows],
        trace.dur[rows],
        trace.name[rows],
        trace.kind[rows],
        trace.correlation[rows],
        trace.external_id[rows],
    ]
    is_copy[rows[_equal_to_one_before(columns, rows)]] = True
    return is_copy


def _equal_to_one_before(columns: list[IntArray], rows: Int64Array) -> BoolArray:
    """Return True for each entry that equals an entry with a smaller row in all columns."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    order = np.argsort(rows)
    ordered_columns = [column[order] for column in columns]
    _, group_index = number_groups(ordered_columns)
    by_group = np.argsort(group_index, kind="stable")
    equals_one_before = np.diff(group_index[by_group]) == 0
    is_repeated = np.zeros(len(rows), dtype=bool)
    is_repeated[order[by_group[1:]]] = equals_one_before
    return is_repeated


def _without(trace: Trace, is_copy: BoolArray) -> Trace:
    """Return a trace without the copies of events, which its provenance counts as dropped."""
    kept = ~is_copy
    new_row = np.cumsum(kept) - 1
    args = {name: column.selected(kept, new_row) for name, column in trace.args.items()}
    columns: dict[str, Any] = {}
    for field in fields(trace):
        values = getattr(trace, field.name)
        if isinstance(values, np.ndarray):
            columns[field.name] = values[kept]
    dropped = dict(trace.provenance.dropped)
    dropped[WRITTEN_TWICE] = int(is_copy.sum())
    provenance = replace(trace.provenance, dropped=dropped)
    instructions = trace.instructions.selected(kept, new_row)
    return replace(
        trace, **columns, args=args, instructions=instructions, provenance=provenance
    )


def _with_possible_ends(trace: Trace, streams: _Streams) -> Trace:
    """Return a trace in which no GPU event contains the whole next event of its stream.

    Work on a stream runs in order, so the end of such an event is wrong: some ROCm profilers write
    stale durations of up to seconds. The event gets the start of the next one as its end. Events
    that overlap the next one without containing it stay as they are.
    """
    end = possible_ends(
        stream=streams.stream,
        start=streams.start,
        end=streams.end,
        launch=trace.correlation[streams.rows],
    )
    is_wrong = end != streams.end
    count = int(is_wrong.sum())
    if not count:
        return trace
    duration = trace.dur.copy()
    duration[streams.rows[is_wrong]] = (end - streams.start)[is_wrong]
    what = "1 event with an impossible end"
    if count > 1:
        what = f"{count:,} events with impossible ends"
    note = (
        f"{what} corrected: a GPU event that contains the whole next event of its "
        "stream ends where that event starts."
    )
    provenance = replace(trace.provenance, notes=trace.provenance.notes + (note,))
    return replace(trace, dur=duration, provenance=provenance)


def possible_ends(
    stream: IntArray, start: Int64Array, end: Int64Array, launch: IntArray
) -> Int64Array:
    """Return the end of each event, cut for events that contain the next event of their stream.

    An event is compared with the next event of another launch, since events of one graph launch may
    run side by side. An example of one stream with events of three launches:

        launch  start  end
        1       0      90    contains the next one: ends at 10
        2       10     30    contains none: 30 stays
        3       25     35    overlaps the one before, which is possible

    Args:
        stream: a number for the stream of each event, ascending, (g,).
        start: ns, ascending within a stream, (g,).
        end: ns, ascending among events that start together, (g,).
        launch: the correlation id of each event; 0 or less if not known, (g,).

    Returns:
        The end of each event, ns, (g,).
    """
    possible = end.copy()
    # A run is a series of neighbors of one launch. The next event of another launch is the first
    # one of the next run.
    is_first_of_run = np.ones(len(start), dtype=bool)
    is_first_of_run[1:] = (np.diff(launch) != 0) | (np.diff(stream) != 0)
    first_of_run = np.flatnonzero(is_first_of_run)
    run = np.cumsum(is_first_of_run) - 1
    end_of_run = np.append(first_of_run[1:], len(start))

    next_event = end_of_run[run]
    unsettled = np.flatnonzero(next_event < len(start))
    unsettled = unsettled[stream[unsettled] == stream[next_event[unsettled]]]
    while len(unsettled):
        following = next_event[unsettled]
        is_wrong = (launch[unsettled] > 0) & (launch[following] > 0)
        is_wrong &= start[unsettled] < start[following]
        is_wrong &= start[following] < possible[unsettled]
        is_wrong &= possible[following] <= possible[unsettled]
        wrong = unsettled[is_wrong]
        possible[wrong] = start[next_event[wrong]]
        # An event that is shorter now may lie within an event of the run before it, which has to be
        # checked again if the shortened event is the first of its run.
        runs_before = run[wrong[is_first_of_run[wrong]]] - 1
        runs_before = runs_before[runs_before >= 0]
        unsettled = _members(first_of_run[runs_before], end_of_run[runs_before])
        unsettled = unsettled[stream[unsettled] == stream[next_event[unsettled]]]
    return possible


def _members(first: Int64Array, end: Int64Array) -> Int64Array:
    """Return all indices in ranges: 3, 4 and 8 for a range from 3 to 5 and one from 8 to 9."""
    count = end - first
    total = int(count.sum())
    members_before = np.cumsum(count) - count
    offset = np.arange(total) - np.repeat(members_before, count)  # within each range
    members: Int64Array = np.repeat(first, count) + offset
    return members
