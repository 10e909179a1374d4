"""The calls that block the host until GPU work has ended, and the work that they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.host_clocks import Clocks
from tracelens_ext.simulation.nodes import Nodes
from tracelens_ext.simulation.sync_calls import SyncCalls
from tracelens_ext.trace import NONE, BoolArray, Int64Array, runtime_calls
from tracelens_ext.trace.gpu_events import GpuEvents, GpuTracks
from tracelens_ext.trace.integer_sorting import begins_run
from tracelens_ext.trace.intervals import DisjointIntervals, overlaps_any
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import running_maximum

#: Clocks of GPUs are a little off. A call may seem to return this long before its work ends.
_EARLY_NS: Final = 20_000
#: The clock of a GPU can be ahead of the host's by at most this time.
_FARTHEST_AHEAD_NS: Final = 1_000_000
#: A clock counts as ahead only if this many calls seem to return too early …
_FEWEST_EARLY_CALLS: Final = 3
#: … and this share of them do so by about the same time.
_ALIKE_SHARE: Final = 0.75
#: Stands for how early a call returns that waits for nothing on a device.
_NEVER_EARLY: Final = -(2**62)
#: Waits are searched on at most this many streams: the ones with the most work.
MOST_TRACKS: Final = 256


class _Awaits(IntEnum):
    """The work that a blocking call waits for."""

    DEVICE = 0  #: all work of the device
    STREAM = 1  #: all work of a stream
    EVENT = 2  #: all work of a stream before an event was recorded
    COPY = 3  #: the copy that the call starts


_PATTERNS: Final = {
    _Awaits.DEVICE: runtime_calls.WAITS_FOR_DEVICE,
    _Awaits.STREAM: runtime_calls.WAITS_FOR_STREAM,
    _Awaits.EVENT: runtime_calls.WAITS_FOR_EVENT,
}


@dataclass(frozen=True, eq=False)
class Blocks:
    """The b calls that block, by start. Times are ns since the window's start."""

    start: Int64Array  #: (b,)
    end: Int64Array  #: (b,)
    clock: Int64Array  #: the clock of the blocked thread, (b,)
    #: pairs of a block and a node that it waits for, by block, (a, 2)
    awaited: Int64Array
    awaited_known: BoolArray  #: True if the recording tells the pair, (a,)
    #: number of waits that recorded times contradict; they are left out
    contradicted: int


class _Calls(NamedTuple):
    """The m calls that may block. Times are ns since the window's start."""

    row: Int64Array  #: the row of the call in the trace, (m,)
    awaits: Int64Array  #: what it waits for, an `_Awaits`, (m,)
    copy_node: Int64Array  #: the node of a copy, `NONE` for other calls, (m,)
    start: Int64Array  #: (m,)
    end: Int64Array  #: (m,)
    clock: Int64Array  #: the clock of the thread, (m,)

    def chosen(self, selection: BoolArray | Int64Array) -> _Calls:
        """Return some of the calls (a mask), or calls in another order (indices)."""
        return _Calls(
            row=self.row[selection],
            awaits=self.awaits[selection],
            copy_node=self.copy_node[selection],
            start=self.start[selection],
            end=self.end[selection],
            clock=self.clock[selection],
        )


class _Targets(NamedTuple):
    """The work that m blocking calls wait for."""

    track: Int64Array  #: the stream of the work, `NONE` if unknown, (m,)
    called_before: Int64Array  #: the work was called before this time, (m,)


def find_blocks(
    gpu_events: GpuEvents,
    nodes: Nodes,
    calls: SyncCalls,
    tracks: GpuTracks,
    clocks: Clocks,
    frozen: DisjointIntervals,
) -> Blocks:
    """Find the calls that block.

    Synchronizing calls are told by their names. A copy blocks if its call returned only after the
    copy had ended.

    Args:
        gpu_events: the GPU events.
        nodes: the nodes, including holes and waits of streams.
        calls: the runtime calls of the window.
        tracks: the streams.
        clocks: the clock of each thread.
        frozen: times that every replay leaves as recorded. A call that overlaps them is left out.
    """
    candidates = _find_candidates(
        gpu_events=gpu_events, nodes=nodes, calls=calls, tracks=tracks, clocks=clocks
    )
    search = _AwaitedSearch(
        nodes=nodes, calls=calls, tracks=tracks, blocking=candidates
    )
    awaited = search.run()

    # Only candidates that wait for something become blocks. The candidates are renumbered: if 1 and
    # 3 of 0 to 3 are blocks, `new_number` is -1, 0, 0, 1.
    candidate_numbers = np.arange(len(candidates.row))
    is_frozen = overlaps_any(start=candidates.start, end=candidates.end, others=frozen)
    is_block = np.isin(candidate_numbers, awaited.block) & ~is_frozen
    new_number = np.cumsum(is_block) - 1
    pair_has_block = is_block[awaited.block]
    block = new_number[awaited.block[pair_has_block]]
    return Blocks(
        start=candidates.start[is_block],
        end=candidates.end[is_block],
        clock=candidates.clock[is_block],
        awaited=np.column_stack((block, awaited.node[pair_has_block])),
        awaited_known=awaited.is_known[pair_has_block],
        contradicted=search.contradicted,
    )


def _find_candidates(
    gpu_events: GpuEvents,
    nodes: Nodes,
    calls: SyncCalls,
    tracks: GpuTracks,
    clocks: Clocks,
) -> _Calls:
    """Return the calls that may block, by start, without calls inside of another one."""
    rows_of_kinds = [calls.named(pattern) for pattern in _PATTERNS.values()]
    row = np.concatenate(rows_of_kinds)
    call_counts = [len(rows_of_kind) for rows_of_kind in rows_of_kinds]
    awaits = np.repeat(list(_PATTERNS), call_counts)
    copy_node = np.full(len(row), NONE)
    named = _make_calls(
        calls=calls, clocks=clocks, row=row, awaits=awaits, copy_node=copy_node
    )

    ahead_ns = _find_clock_offsets(
        nodes=nodes, calls=calls, tracks=tracks, blocking=named
    )
    copy = _blocking_copies(
        gpu_events=gpu_events, nodes=nodes, calls=calls, ahead_ns=ahead_ns
    )
    row = np.append(row, nodes.launch[copy])
    awaits = np.append(awaits, np.full(len(copy), _Awaits.COPY))
    copy_node = np.append(copy_node, copy)
    return _outermost_by_start(
        _make_calls(
            calls=calls, clocks=clocks, row=row, awaits=awaits, copy_node=copy_node
        )
    )


def _make_calls(
    calls: SyncCalls,
    clocks: Clocks,
    row: Int64Array,
    awaits: Int64Array,
    copy_node: Int64Array,
) -> _Calls:
    return _Calls(
        row=row,
        awaits=awaits,
        copy_node=copy_node,
        start=calls.start_of(row),
        end=calls.end_of(row),
        clock=clocks.of_thread[calls.thread_of(row)],
    )


def _blocking_copies(
    gpu_events: GpuEvents, nodes: Nodes, calls: SyncCalls, ahead_ns: Int64Array
) -> Int64Array:
    """Return the nodes of copies whose call returned only after the copy had ended.

    Args:
        gpu_events: the GPU events.
        nodes: the nodes.
        calls: the runtime calls of the window.
        ahead_ns: how far the clock of each stream's device is ahead of the host's clock.
    """
    copy = np.flatnonzero(nodes.is_called & nodes.is_event)
    copy = copy[gpu_events.is_copy[nodes.event[copy]]]
    ahead_of_copy = ahead_ns[nodes.track[copy]]
    started = nodes.start[copy] - ahead_of_copy
    ended = nodes.end[copy] - ahead_of_copy
    called = nodes.call[copy]
    returned = calls.end_of(nodes.launch[copy])
    is_blocking = (called <= nodes.start[copy]) & (started <= returned)
    is_blocking &= returned >= ended - _EARLY_NS
    # No work of the stream that was called later ran before the copy.
    is_blocking &= nodes.key[copy] == called
    return copy[is_blocking]


def _outermost_by_start(calls: _Calls) -> _Calls:
    """Return the calls that are not inside of another call on their clock, by start."""
    longest_first = -calls.end
    by_clock = np.lexsort((longest_first, calls.start, calls.clock))
    calls = calls.chosen(by_clock)
    returned = running_maximum(calls.clock, calls.end).value
    is_outermost = begins_run(calls.clock)
    is_outermost[1:] |= calls.start[1:] >= returned[:-1]
    calls = calls.chosen(is_outermost)
    by_start = np.argsort(calls.start, kind="stable")
    return calls.chosen(by_start)


def _find_targets(calls: SyncCalls, blocking: _Calls) -> _Targets:
    """Return the stream that each call waits for, and the time before which its work was called.

    A call that waits for an event waits for the work that was called before the event was recorded.
    Any other call waits for the work that was called before itself.
    """
    targets = calls.targets_of(blocking.row)
    awaits_event = blocking.awaits == _Awaits.EVENT
    track = np.where(awaits_event, targets.awaited_track, targets.waiting_track)
    record_before = calls.record_before(blocking.row)
    called_before = np.where(awaits_event, record_before, blocking.start)
    has_record = awaits_event & (targets.recorded_at != NONE)
    called_before = np.where(has_record, targets.recorded_at, called_before)
    return _Targets(track, called_before)


def _find_clock_offsets(
    nodes: Nodes, calls: SyncCalls, tracks: GpuTracks, blocking: _Calls
) -> Int64Array:
    """Return how far the clock of each stream's device is ahead of the host's, ns; 0 for little.

    If the clock of a device is ahead, calls seem to return before their work has ended, all by
    about the same time. With an offset of 197 µs, one `cudaStreamSynchronize` returns at 115 µs
    though its kernel ends at 312 µs, and the next one returns at 265 µs for an end at 462 µs.
    """
    blocking = blocking.chosen(blocking.awaits != _Awaits.COPY)
    offsets = np.zeros(len(tracks), dtype=np.int64)
    if not len(blocking.row):
        return offsets
    target = _find_targets(calls, blocking)
    awaits_device = blocking.awaits == _Awaits.DEVICE
    used_tracks = np.unique(nodes.track).tolist()
    # For each device how long each call returns before the last work that it surely waits for.
    early_by_device: dict[int, Int64Array] = {}
    for track in used_tracks:
        is_sure = awaits_device | (target.track == track) | (len(used_tracks) == 1)
        track_of_call = np.full(len(blocking.row), track)
        node = nodes.last_called(track_of_call, target.called_before)
        is_awaited = is_sure & (node != NONE)
        early_ns = np.full(len(blocking.row), _NEVER_EARLY)
        early_ns[is_awaited] = nodes.reach[node[is_awaited]] - blocking.end[is_awaited]
        device = int(tracks.device[track])
        early_on_other_tracks = early_by_device.get(device, early_ns)
        early_by_device[device] = np.maximum(early_on_other_tracks, early_ns)
    for device, early_ns in early_by_device.items():
        offsets[tracks.device == device] = _clock_offset(early_ns)
    return offsets


def _clock_offset(early_ns: Int64Array) -> int:
    """Return how far the clock of a device is ahead, ns; 0 if the calls do not agree on it.

    Args:
        early_ns: how long each call returns before its work ends, negative for a later return.
    """
    too_early = early_ns[early_ns > _EARLY_NS]
    on_time_count = np.count_nonzero(np.abs(early_ns) <= _EARLY_NS)
    if len(too_early) < _FEWEST_EARLY_CALLS or on_time_count >= len(too_early):
        return 0
    offset = int(np.median(too_early))
    is_alike = np.abs(too_early - offset) <= _EARLY_NS
    if offset > _FARTHEST_AHEAD_NS or is_alike.mean() < _ALIKE_SHARE:
        return 0
    return offset


class _Awaited(NamedTuple):
    """The a pairs of a call and a node that it waits for."""

    block: Int64Array  #: the number of the call, (a,)
    node: Int64Array  #: (a,)
    is_known: BoolArray  #: True if the recording tells the pair, (a,)


class _AwaitedSearch:
    """Finds the nodes that calls wait for, one stream after the other.

    If the stream of a call is not known, the node that ends last before the call returns, on any
    stream, is the guess.

    Attributes:
        contradicted: number of waits left out because the call returned before the work ended.
    """

    def __init__(
        self, nodes: Nodes, calls: SyncCalls, tracks: GpuTracks, blocking: _Calls
    ) -> None:
        self.contradicted = 0
        self._nodes = nodes
        self._blocking = blocking
        self._target = _find_targets(calls, blocking)
        self._ahead_ns = _find_clock_offsets(
            nodes=nodes, calls=calls, tracks=tracks, blocking=blocking
        )
        self._is_copy = blocking.awaits == _Awaits.COPY
        # Pairs of a call and a node that it surely waits for, in parts.
        self._sure_blocks: list[Int64Array] = []
        self._sure_nodes: list[Int64Array] = []
        # The best guess so far for each call, and its end.
        self._guessed_end = np.full(len(blocking.row), -1)
        self._guessed_node = np.full(len(blocking.row), NONE)

    def run(self) -> _Awaited:
        """Return all pairs, by call."""
        self._add_sure(self._is_copy, self._blocking.copy_node)
        if len(self._blocking.row):
            tracks = _busiest_tracks(self._nodes)
            for track in tracks:
                self._search_track(track, is_only_track=len(tracks) == 1)
        sure_block = np.concatenate(self._sure_blocks)
        sure_node = np.concatenate(self._sure_nodes)
        is_known = np.ones(len(sure_block), dtype=bool)

        guessed = np.flatnonzero(self._guessed_node != NONE)
        guessed_end = self._guessed_end[guessed]
        # A guess counts as known if the call returned just when the node ended.
        waited = guessed_end > self._blocking.start[guessed]
        returned_at_end = self._blocking.end[guessed] - guessed_end <= _EARLY_NS
        block = np.append(sure_block, guessed)
        node = np.append(sure_node, self._guessed_node[guessed])
        is_known = np.append(is_known, waited & returned_at_end)
        order = np.argsort(block, kind="stable")
        return _Awaited(block=block[order], node=node[order], is_known=is_known[order])

    def _search_track(self, track: int, *, is_only_track: bool) -> None:
        """Add the calls that surely wait for a stream, and update the guesses of the others."""
        blocking = self._blocking
        awaits_device = blocking.awaits == _Awaits.DEVICE
        is_sure = awaits_device | (self._target.track == track) | is_only_track
        track_of_call = np.full(len(blocking.row), track)
        node = self._nodes.last_called(track_of_call, self._target.called_before)
        is_candidate = ~self._is_copy & (node != NONE)
        is_guess = is_candidate & ~is_sure & (self._target.track == NONE)
        is_sure &= is_candidate

        node_end = values_at(self._nodes.reach, node, missing=0)
        early_ns = node_end - blocking.end
        is_in_time = early_ns <= _EARLY_NS + self._ahead_ns[track]
        self.contradicted += int((is_sure & ~is_in_time).sum())
        self._add_sure(is_sure & is_in_time, node)

        ends_later = node_end > self._guessed_end
        is_better = is_guess & (early_ns <= 0) & ends_later
        self._guessed_end[is_better] = node_end[is_better]
        self._guessed_node[is_better] = node[is_better]

    def _add_sure(self, is_sure: BoolArray, node: Int64Array) -> None:
        """Add the pairs of some calls and their nodes."""
        self._sure_blocks.append(np.flatnonzero(is_sure))
        self._sure_nodes.append(node[is_sure])


def _busiest_tracks(nodes: Nodes) -> list[int]:
    """Return the `MOST_TRACKS` streams with the most nodes, ascending."""
    tracks, count = np.unique(nodes.track, return_counts=True)
    by_count = np.argsort(-count, kind="stable")
    busiest: list[int] = np.sort(tracks[by_count[:MOST_TRACKS]]).tolist()
    return busiest
