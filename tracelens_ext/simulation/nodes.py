"""The nodes of a dependency graph: GPU events, waits of streams, and holes.

A hole is a time in which the recording lost GPU events.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.part_kinds import DROPPED_EVENTS, PRE_RECORDING
from tracelens_ext.simulation.host_clocks import Clocks
from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import NONE, BoolArray, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents, GpuTracks
from tracelens_ext.trace.integer_sorting import begins_run
from tracelens_ext.trace.intervals import DisjointIntervals, union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import items_before, last_before, running_maximum

#: The latest end before the first node of a stream.
_NOTHING_ENDED: Final = -1


@dataclass(frozen=True, eq=False)
class Nodes:
    """The n nodes of a window by stream and `key`. Times are ns since the window's start."""

    #: the GPU event; `NONE` for a hole and for the wait of a stream, (n,)
    event: Int64Array
    #: the row of the call that launched the node, `NONE` without, (n,)
    launch: Int64Array
    track: Int64Array  #: the stream, an index into `find_tracks(work, "stream")`, (n,)
    #: When the node was called, (n,). `NONE` if it was called before the window or by a thread
    #: without a clock.
    call: Int64Array
    start: Int64Array  #: as recorded, (n,)
    end: Int64Array  #: as recorded, (n,)
    #: The turn of the node: the latest call of it and of the nodes before it on its stream, (n,).
    key: Int64Array

    def __len__(self) -> int:
        return len(self.event)

    @cached_property
    def is_event(self) -> BoolArray:
        """True for a GPU event, (n,)."""
        is_event: BoolArray = self.event != NONE
        return is_event

    @cached_property
    def is_called(self) -> BoolArray:
        """True for a node that was called in the window, (n,)."""
        is_called: BoolArray = self.call != NONE
        return is_called

    @cached_property
    def follows(self) -> BoolArray:
        """True for all but the first node of each stream, (n,)."""
        return ~begins_run(self.track)

    @cached_property
    def reach(self) -> Int64Array:
        """The latest end of each node and of the nodes before it on its stream, (n,)."""
        return running_maximum(self.track, self.end).value

    @cached_property
    def reach_before(self) -> Int64Array:
        """The latest end of the nodes before each node on its stream; -1 without any, (n,)."""
        before = np.full(len(self), _NOTHING_ENDED, dtype=np.int64)
        before[1:] = self.reach[:-1]
        before[~self.follows] = _NOTHING_ENDED
        return before

    @cached_property
    def follows_event(self) -> BoolArray:
        """True for a GPU event that follows another one, or is the first node, (n,).

        False for a GPU event right after a hole or a wait, and for nodes that are not GPU events.
        """
        is_after_other = np.zeros(len(self), dtype=bool)
        is_after_other[1:] = ~self.is_event[:-1]
        is_after_other &= self.follows
        return self.is_event & ~is_after_other

    def last_called(self, track: IntArray, before: Int64Array) -> Int64Array:
        """Return the last node of each stream whose turn was before a time, `NONE` without."""
        return last_before(
            group=self.track, time=self.key, query_group=track, query_time=before
        )


class _NewNodes(NamedTuple):
    """The columns of `Nodes` for k nodes that are not GPU events, in any order."""

    track: Int64Array
    key: Int64Array
    call: Int64Array
    start: Int64Array
    end: Int64Array


class Insertion(NamedTuple):
    """Nodes among which k new nodes were inserted."""

    nodes: Nodes
    place: Int64Array  #: the index of each new node in `nodes`, (k,)


def nodes_of_events(
    gpu_events: GpuEvents,
    window: Window,
    device: int | None,
    tracks: GpuTracks,
    clocks: Clocks,
) -> Nodes:
    """Return the GPU events that overlap a window, of one device or of all, as nodes."""
    is_inside = (gpu_events.end >= window.start) & (gpu_events.start <= window.end)
    if device is not None:
        is_inside &= gpu_events.trace.device == device
    event = np.flatnonzero(is_inside)
    event = event[np.lexsort((gpu_events.start[event], tracks.of_gpu[event]))]
    track = tracks.of_gpu[event]
    launch = gpu_events.tree.launch_of_gpu[event]
    call = _call_times(
        gpu_events=gpu_events, window=window, clocks=clocks, launch=launch
    )
    return Nodes(
        event=event,
        launch=launch,
        track=track,
        call=call,
        start=np.maximum(gpu_events.start[event] - window.start, 0),
        end=np.minimum(gpu_events.end[event], window.end) - window.start,
        key=running_maximum(track, call).value,
    )


def _call_times(
    gpu_events: GpuEvents, window: Window, clocks: Clocks, launch: Int64Array
) -> Int64Array:
    """Return when each node was called; `NONE` before the window or by a thread without clock."""
    trace = gpu_events.trace
    since_start = trace.ts[launch] - window.start
    has_clock = clocks.of_thread[trace.thread[launch]] != NONE
    # The row `NONE` reads the last event. `is_called` is False there.
    is_called = (launch != NONE) & (since_start >= 0) & has_clock
    return np.where(is_called, since_start, NONE)


def with_waits(nodes: Nodes, track: Int64Array, call: Int64Array) -> Insertion:
    """Insert nodes for waits of streams at the time of their calls.

    A wait takes no time. It has no `call`, because a stream may reach the wait at any time.
    """
    zero = np.zeros_like(call)
    no_call = np.full_like(call, NONE)
    new = _NewNodes(
        track=track,
        key=call,
        call=no_call,
        start=zero,
        end=zero,
    )
    return _inserted(nodes, new)


def _inserted(nodes: Nodes, new: _NewNodes) -> Insertion:
    """Insert nodes that are not GPU events, each behind the nodes of its stream with its key."""
    order = np.lexsort((new.key, new.track))
    # Where `np.insert` puts the new nodes: indices into the old nodes.
    old_place = items_before(
        group=nodes.track,
        time=nodes.key,
        query_group=new.track[order],
        query_time=new.key[order] + 1,
    )

    def insert(column: Int64Array, values: Int64Array) -> Int64Array:
        return np.insert(column, old_place, values[order])

    none = np.full_like(new.key, NONE)
    # Each new node is pushed back by the new nodes before it.
    place = np.empty_like(order)
    place[order] = old_place + np.arange(len(order))
    result = Nodes(
        event=insert(nodes.event, none),
        launch=insert(nodes.launch, none),
        track=insert(nodes.track, new.track),
        call=insert(nodes.call, new.call),
        start=insert(nodes.start, new.start),
        end=insert(nodes.end, new.end),
        key=insert(nodes.key, new.key),
    )
    return Insertion(result, place)


class Unrecorded(NamedTuple):
    """The parts of a window without recorded work. Times are ns since the window's start."""

    #: times in which GPU events were lost, by device and start
    holes: DisjointIntervals
    #: the ends of waits for work from before the recording
    waited_until: Int64Array
    frozen: DisjointIntervals  #: times that every replay leaves as recorded: holes and warm-up


def unrecorded_in(gpu_events: GpuEvents, window: Window) -> Unrecorded:
    """Return the times in a window that were not recorded or that happen only once."""
    parts = coverage_of(gpu_events).parts
    parts = parts[~parts["has_work"]]
    is_inside = (parts["end"] > window.start) & (parts["start"] < window.end)
    parts = parts[is_inside]
    kind = parts["kind"].to_numpy()
    start = parts["start"].to_numpy().clip(*window) - window.start
    end = parts["end"].to_numpy().clip(*window) - window.start
    is_hole = kind == DROPPED_EVENTS
    is_before = kind == PRE_RECORDING
    return Unrecorded(
        holes=DisjointIntervals(start=start[is_hole], end=end[is_hole]),
        waited_until=end[is_before],
        frozen=union(start[~is_before], end[~is_before]),
    )


def with_holes(nodes: Nodes, holes: DisjointIntervals) -> Nodes:
    """Insert each hole before the first node that starts after it, on the stream of this node.

    A hole that begins at the end of the work before it on this stream follows that work and has no
    call. Any other hole is called when it begins.
    """
    by_start = np.argsort(nodes.start, kind="stable")
    following = np.searchsorted(nodes.start[by_start], holes.end)
    node_after = values_at(by_start, following)
    has_node_after = node_after != NONE
    node_after = node_after[has_node_after]
    start = holes.start[has_node_after]
    end = holes.end[has_node_after]

    track = nodes.track[node_after]
    is_of_stream = values_at(nodes.track, node_after - 1) == track
    ends_at_start = values_at(nodes.reach, node_after - 1) == start
    call = np.where(is_of_stream & ends_at_start, NONE, start)
    key = nodes.key[node_after] - 1
    new = _NewNodes(track=track, key=key, call=call, start=start, end=end)
    return _inserted(nodes, new).nodes
