"""Streams that wait for an event of another stream, as recorded or as is likely."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.nodes import Nodes, with_waits
from tracelens_ext.simulation.sync_calls import SyncCalls
from tracelens_ext.trace import NONE, BoolArray, Int64Array, runtime_calls
from tracelens_ext.trace.intervals import begins_run
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import (
    by_group_and_time,
    items_before,
    last_before,
)

#: When the node after the last one of a stream starts.
_NEVER: Final = 2**62


class StreamWaits(NamedTuple):
    """Nodes with the waits of streams among them."""

    nodes: Nodes
    waits: Int64Array  #: the node of each wait and the node that it waits for, (w, 2)
    is_known: BoolArray  #: True where the recording says so, (w,)
    contradicted: int  #: how many waits the recorded times contradict


class _WaitCalls(NamedTuple):
    """Calls that let a stream wait for another one, m of them. Times since the window's start."""

    called_at: Int64Array
    waiting_track: Int64Array  #: the stream that waits, `NONE` if unknown, (m,)
    awaited_track: Int64Array  #: the one that it waits for, `NONE` if unknown, (m,)
    recorded_at: Int64Array  #: when the event was recorded that is waited for, (m,)
    is_known: BoolArray  #: True where the recording says which streams those are, (m,)

    def chosen(self, selection: BoolArray) -> _WaitCalls:
        """Return some of the calls."""
        return _WaitCalls(
            called_at=self.called_at[selection],
            waiting_track=self.waiting_track[selection],
            awaited_track=self.awaited_track[selection],
            recorded_at=self.recorded_at[selection],
            is_known=self.is_known[selection],
        )

    def awaited_node(self, nodes: Nodes) -> Int64Array:
        """The last node before the event on the awaited stream, `NONE` without, (m,)."""
        return nodes.last_called(self.awaited_track, self.recorded_at)


def add_waits(nodes: Nodes, calls: SyncCalls) -> StreamWaits:
    """Insert a node for each wait of a stream that the recorded times do not contradict."""
    wait_calls = _find_wait_calls(nodes, calls)
    awaited_node = wait_calls.awaited_node(nodes)
    is_possible = (
        (wait_calls.waiting_track != NONE)
        & (wait_calls.waiting_track != wait_calls.awaited_track)
        & (wait_calls.recorded_at <= wait_calls.called_at)
        & (awaited_node != NONE)
    )
    awaited_end = values_at(nodes.end, awaited_node, missing=0)
    is_too_late = awaited_end > _next_start(nodes, wait_calls)
    is_contradicted = is_possible & is_too_late
    kept = wait_calls.chosen(is_possible & ~is_too_late)

    inserted = with_waits(nodes=nodes, track=kept.waiting_track, call=kept.called_at)
    # What is waited for may be one of the inserted waits, or is further back than before.
    awaited_node = kept.awaited_node(inserted.nodes)
    return StreamWaits(
        nodes=inserted.nodes,
        waits=np.column_stack((inserted.place, awaited_node)),
        is_known=kept.is_known,
        contradicted=int(is_contradicted.sum()),
    )


def _next_start(nodes: Nodes, wait_calls: _WaitCalls) -> Int64Array:
    """When the first node starts that is called after each wait on the same stream, (m,)."""
    track = wait_calls.waiting_track
    node_after = items_before(
        group=nodes.track,
        time=nodes.key,
        query_group=track,
        query_time=wait_calls.called_at + 1,
    )
    is_of_stream = values_at(nodes.track, node_after) == track
    start = values_at(nodes.start, node_after, missing=0)
    return np.where(is_of_stream, start, _NEVER)


def _find_wait_calls(nodes: Nodes, calls: SyncCalls) -> _WaitCalls:
    rows = calls.named(runtime_calls.STREAM_WAITS_FOR_EVENT)
    targets = calls.targets_of(rows)
    is_known = (targets.waiting_track != NONE) & (targets.awaited_track != NONE)
    has_record = is_known & (targets.recorded_at != NONE)
    record_before = calls.record_before(rows)
    recorded_at = np.where(has_record, targets.recorded_at, record_before)
    likely = _likely_streams(
        nodes=nodes, calls=calls, rows=rows, recorded_at=recorded_at
    )
    return _WaitCalls(
        called_at=calls.start_of(rows),
        waiting_track=np.where(is_known, targets.waiting_track, likely.waiting),
        awaited_track=np.where(is_known, targets.awaited_track, likely.awaited),
        recorded_at=recorded_at,
        is_known=is_known,
    )


class _LikelyStreams(NamedTuple):
    waiting: Int64Array  #: the stream that waits, `NONE` if there is none, (m,)
    awaited: Int64Array  #: the stream that it waits for, `NONE` if there is none, (m,)


def _likely_streams(
    nodes: Nodes, calls: SyncCalls, rows: Int64Array, recorded_at: Int64Array
) -> _LikelyStreams:
    """Return which streams a call is likely to be about.

    The stream on which the thread launches next waits for the one on which the thread launched last
    before the event was recorded. If these are the same stream, it waits for the other stream on
    which any thread launched last before the record.
    """
    launched = np.flatnonzero(nodes.is_called & (nodes.launch != NONE))
    launched = launched[np.argsort(nodes.call[launched], kind="stable")]
    thread = calls.thread_of(nodes.launch[launched])
    order = by_group_and_time(thread, nodes.call[launched])
    thread = thread[order]
    track = nodes.track[launched[order]]
    time = nodes.call[launched[order]]

    thread_of_call = calls.thread_of(rows)
    next_launch = items_before(
        group=thread,
        time=time,
        query_group=thread_of_call,
        query_time=calls.start_of(rows),
    )
    is_of_thread = values_at(thread, next_launch) == thread_of_call
    waiting = np.where(is_of_thread, values_at(track, next_launch), NONE)
    last_launch = last_before(
        group=thread, time=time, query_group=thread_of_call, query_time=recorded_at
    )
    awaited = values_at(track, last_launch)

    is_same = (awaited == waiting) & (awaited != NONE)
    other = _last_other_stream(
        nodes=nodes, launched=launched, before=recorded_at, track=waiting
    )
    return _LikelyStreams(waiting, np.where(is_same, other, awaited))


def _last_other_stream(
    nodes: Nodes, launched: Int64Array, before: Int64Array, track: Int64Array
) -> Int64Array:
    """Return on which stream but `track` any thread launched last before a time.

    Launches on streams 0, 1, 1, 1, in order of time: stream 0 for `track` 1, by the launch before
    the run of launches on stream 1; stream 1 for `track` 0.

    Args:
        nodes: with the stream of each node.
        launched: the nodes that were launched, by the time of their call.
        before: of each question, (m,).
        track: of each question, (m,).

    Returns:
        A stream for each question, `NONE` where there is none, (m,).
    """
    track_by_time = nodes.track[launched]
    launches = np.arange(len(launched))
    run_starts = np.where(begins_run(track_by_time), launches, 0)
    start_of_run = np.maximum.accumulate(run_starts)
    last = np.searchsorted(nodes.call[launched], before) - 1
    before_run = values_at(start_of_run, last, missing=0) - 1
    last_track = values_at(track_by_time, last)
    track_before_run = values_at(track_by_time, before_run)
    return np.where(last_track != track, last_track, track_before_run)
