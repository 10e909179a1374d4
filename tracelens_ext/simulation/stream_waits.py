"""Waits of a stream for an event of another stream, as recorded or as likely."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.nodes import Nodes, with_waits
from tracelens_ext.simulation.sync_calls import SyncCalls
from tracelens_ext.trace import NONE, BoolArray, Int64Array, runtime_calls
from tracelens_ext.trace.integer_sorting import begins_run
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import (
    by_group_and_time,
    items_before,
    last_before,
)

#: A start that never comes, for a wait that no node of its stream follows.
_NEVER: Final = 2**62


class StreamWaits(NamedTuple):
    """Nodes among which a node for each of w waits was inserted."""

    nodes: Nodes
    waits: Int64Array  #: the node of each wait, and the node that it waits for, (w, 2)
    is_known: BoolArray  #: True if the recording tells what the wait waits for, (w,)
    #: number of waits that recorded times contradict; they are left out
    contradicted: int


class _WaitCalls(NamedTuple):
    """The m calls that make a stream wait. Times are ns since the window's start."""

    called_at: Int64Array  #: (m,)
    waiting_track: Int64Array  #: the stream that waits, `NONE` if unknown, (m,)
    awaited_track: Int64Array  #: the stream that is waited for, `NONE` if unknown, (m,)
    recorded_at: Int64Array  #: when the awaited event was recorded, (m,)
    is_known: BoolArray  #: True if the recording tells both streams, (m,)

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
        """Return the last node before the event on the awaited stream, `NONE` without, (m,)."""
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
    # The insertion moved the awaited nodes, and an inserted wait may be the last node now.
    awaited_node = kept.awaited_node(inserted.nodes)
    return StreamWaits(
        nodes=inserted.nodes,
        waits=np.column_stack((inserted.place, awaited_node)),
        is_known=kept.is_known,
        contradicted=int(is_contradicted.sum()),
    )


def _next_start(nodes: Nodes, wait_calls: _WaitCalls) -> Int64Array:
    """Return the start of the first node on the stream that is called after each wait, (m,)."""
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
    """Return the calls that make a stream wait, with their recorded or likely streams."""
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
    """The likely streams of m calls."""

    waiting: Int64Array  #: the stream that waits, `NONE` if nothing shows it, (m,)
    awaited: Int64Array  #: the stream that it waits for, `NONE` likewise, (m,)


def _likely_streams(
    nodes: Nodes, calls: SyncCalls, rows: Int64Array, recorded_at: Int64Array
) -> _LikelyStreams:
    """Return which stream is likely to wait at each call, and for which other stream.

    The stream of the thread's next launch waits for the stream of the thread's last launch before
    the event was recorded. If these are the same, it waits for the last other stream that any
    thread launched on before the event was recorded.
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
    """Return the stream, other than a given one, of the last launch of any thread before a time.

    Launches on streams 0, 1, 1, 1 in order of time give stream 1 for the given stream 0, and stream
    0 for the given stream 1: the stream of the launch before the last run of launches on stream 1.

    Args:
        nodes: the nodes.
        launched: the nodes that were launched, in the order of their calls.
        before: the time of each of m questions, (m,).
        track: the given stream of each question, (m,).

    Returns:
        A stream for each question, `NONE` without one, (m,).
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
