"""The calls that block the host until GPU work has ended, and which work that is."""

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
from tracelens_ext.trace.intervals import Union, begins_run, overlaps_any
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import running_maximum

#: How long before the end of what it waits for a call may return, by the clocks of some devices.
_EARLY_NS: Final = 20_000
#: How far the clock of a GPU may be ahead of that of the host. Several calls must show it: most of
#: them return too early by the same time, and fewer of them when their work ends.
_FARTHEST_AHEAD_NS: Final = 1_000_000
_FEWEST_EARLY_CALLS: Final = 3
_ALIKE_SHARE: Final = 0.75
#: How early a call returns that waits for nothing on a device.
_NEVER_EARLY: Final = -(2**62)
#: Waits are looked for on the streams with most work, up to this many.
MOST_TRACKS: Final = 256


class _Awaits(IntEnum):
    """What a blocking call waits for."""

    DEVICE = 0  #: all work of the device
    STREAM = 1  #: all work of a stream
    EVENT = 2  #: all work of a stream before an event was recorded
    COPY = 3  #: the copy that it makes


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
    clock: Int64Array  #: the clock of the thread that is blocked, (b,)
    #: pairs of a block and a node that it waits for, by block, (a, 2)
    awaited: Int64Array
    awaited_known: BoolArray  #: True where the recording says so, (a,)
    contradicted: int  #: how many waits the recorded times contradict


class _Calls(NamedTuple):
    """Calls that may block, m of them. Times are ns since the window's start."""

    row: Int64Array  #: of the call in the trace, (m,)
    awaits: Int64Array  #: an `_Awaits`, (m,)
    copy_node: Int64Array  #: the node of a copy, `NONE` for other calls, (m,)
    start: Int64Array
    end: Int64Array
    clock: Int64Array

    def chosen(self, selection: BoolArray | Int64Array) -> _Calls:
        """Return some of the calls, or all in another order."""
        return _Calls(
            row=self.row[selection],
            awaits=self.awaits[selection],
            copy_node=self.copy_node[selection],
            start=self.start[selection],
            end=self.end[selection],
            clock=self.clock[selection],
        )


class _Targets(NamedTuple):
    """What blocking calls wait for, as far as it is known, m of them."""

    track: Int64Array  #: the stream, `NONE` if unknown, (m,)
    called_before: Int64Array  #: the time up to which its work was called, (m,)


def find_blocks(
    work: GpuEvents,
    nodes: Nodes,
    calls: SyncCalls,
    tracks: GpuTracks,
    clocks: Clocks,
    frozen: Union,
) -> Blocks:
    """Find the calls that block: by name, and copies by when they return.

    Args:
        work: the GPU events.
        nodes: with holes and waits of streams.
        calls: the runtime calls of the window.
        tracks: the streams.
        clocks: the clock of each thread.
        frozen: times that stay as recorded: a call that overlaps them is not replayed.
    """
    candidates = _find_candidates(
        work=work, nodes=nodes, calls=calls, tracks=tracks, clocks=clocks
    )
    search = _AwaitedSearch(
        nodes=nodes, calls=calls, tracks=tracks, blocking=candidates
    )
    awaited = search.run()

    blocks = np.arange(len(candidates.row))
    is_frozen = overlaps_any(start=candidates.start, end=candidates.end, others=frozen)
    is_kept = np.isin(blocks, awaited.block) & ~is_frozen
    new_number = np.cumsum(is_kept) - 1
    stays = is_kept[awaited.block]
    block = new_number[awaited.block[stays]]
    return Blocks(
        start=candidates.start[is_kept],
        end=candidates.end[is_kept],
        clock=candidates.clock[is_kept],
        awaited=np.column_stack((block, awaited.node[stays])),
        awaited_known=awaited.is_known[stays],
        contradicted=search.contradicted,
    )


def _find_candidates(
    work: GpuEvents,
    nodes: Nodes,
    calls: SyncCalls,
    tracks: GpuTracks,
    clocks: Clocks,
) -> _Calls:
    """Return the calls that may block, by start, without those within another one."""
    rows = [calls.named(pattern) for pattern in _PATTERNS.values()]
    row = np.concatenate(rows)
    awaits = np.repeat(list(_PATTERNS), [len(of_kind) for of_kind in rows])
    copy_node = np.full(len(row), NONE)
    named = _make_calls(
        calls=calls, clocks=clocks, row=row, awaits=awaits, copy_node=copy_node
    )

    ahead_ns = _find_clock_offsets(
        nodes=nodes, calls=calls, tracks=tracks, blocking=named
    )
    copy = _blocking_copies(work=work, nodes=nodes, calls=calls, ahead_ns=ahead_ns)
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
    work: GpuEvents, nodes: Nodes, calls: SyncCalls, ahead_ns: Int64Array
) -> Int64Array:
    """Return the nodes of copies whose call returned when the copy had ended.

    `ahead_ns` is how far the clock of each stream's device is ahead of the host's.
    """
    copy = np.flatnonzero(nodes.is_called & nodes.is_event)
    copy = copy[work.is_copy[nodes.event[copy]]]
    ahead_of_copy = ahead_ns[nodes.track[copy]]
    started = nodes.start[copy] - ahead_of_copy
    ended = nodes.end[copy] - ahead_of_copy
    called = nodes.call[copy]
    returned = calls.end_of(nodes.launch[copy])
    is_blocking = (called <= nodes.start[copy]) & (started <= returned)
    is_blocking &= returned >= ended - _EARLY_NS
    is_blocking &= nodes.key[copy] == called
    return copy[is_blocking]


def _outermost_by_start(calls: _Calls) -> _Calls:
    """Return the calls that start when those before them on their clock have returned."""
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
    """Return the stream that each call waits for, and up to which of its work."""
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
    """How far the clock of each stream's device is ahead of the host's, ns; 0 for little.

    A call that returns before its work has ended shows it, if most such calls of the device do
    so by the same time: `cudaStreamSynchronize` from 10 to 115 µs, which waits for a kernel
    that ends at 312 µs, and the next one from 160 to 265 µs for one that ends at 462 µs.
    """
    blocking = blocking.chosen(blocking.awaits != _Awaits.COPY)
    offsets = np.zeros(len(tracks), dtype=np.int64)
    if not len(blocking.row):
        return offsets
    target = _find_targets(calls, blocking)
    awaits_device = blocking.awaits == _Awaits.DEVICE
    used_tracks = np.unique(nodes.track).tolist()
    early_by_device: dict[int, Int64Array] = {}
    for track in used_tracks:
        is_sure = awaits_device | (target.track == track) | (len(used_tracks) == 1)
        track_of_call = np.full(len(blocking.row), track)
        node = nodes.last_called(track_of_call, target.called_before)
        is_awaited = is_sure & (node != NONE)
        early_ns = np.full(len(blocking.row), _NEVER_EARLY)
        early_ns[is_awaited] = nodes.reach[node[is_awaited]] - blocking.end[is_awaited]
        device = int(tracks.device[track])
        early_before = early_by_device.get(device, early_ns)
        early_by_device[device] = np.maximum(early_before, early_ns)
    for device, early_ns in early_by_device.items():
        offsets[tracks.device == device] = _clock_offset(early_ns)
    return offsets


def _clock_offset(early_ns: Int64Array) -> int:
    """How far a clock is ahead, ns, by how early calls return before their work ends."""
    too_early = early_ns[early_ns > _EARLY_NS]
    as_its_work_ends = np.count_nonzero(np.abs(early_ns) <= _EARLY_NS)
    if len(too_early) < _FEWEST_EARLY_CALLS or as_its_work_ends >= len(too_early):
        return 0
    offset = int(np.median(too_early))
    is_alike = np.abs(too_early - offset) <= _EARLY_NS
    if offset > _FARTHEST_AHEAD_NS or is_alike.mean() < _ALIKE_SHARE:
        return 0
    return offset


class _Awaited(NamedTuple):
    """Pairs of a call and a node that it waits for, a of them."""

    block: Int64Array  #: the number of the call, (a,)
    node: Int64Array
    is_known: BoolArray  #: True where the recording says so, (a,)


class _AwaitedSearch:
    """Looks for the nodes that calls wait for, on one stream after the other.

    Of a call that may wait for any stream, a guess is kept: the node among all streams that ends
    last before the call returns.
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
        self._sure_blocks: list[Int64Array] = []
        self._sure_nodes: list[Int64Array] = []
        self._guessed_end = np.full(len(blocking.row), -1)
        self._guessed_node = np.full(len(blocking.row), NONE)

    def run(self) -> _Awaited:
        """Return all pairs, by call."""
        self._add_sure(self._is_copy, self._blocking.copy_node)
        if len(self._blocking.row):
            tracks = _busiest_tracks(self._nodes)
            for track in tracks:
                self._look_at(track, is_only_track=len(tracks) == 1)
        sure_block = np.concatenate(self._sure_blocks)
        sure_node = np.concatenate(self._sure_nodes)
        is_known = np.ones(len(sure_block), dtype=bool)

        guessed = np.flatnonzero(self._guessed_node != NONE)
        guessed_end = self._guessed_end[guessed]
        # A call that returns just when something ends has waited for that.
        waited = guessed_end > self._blocking.start[guessed]
        returned_at_end = self._blocking.end[guessed] - guessed_end <= _EARLY_NS
        block = np.append(sure_block, guessed)
        node = np.append(sure_node, self._guessed_node[guessed])
        is_known = np.append(is_known, waited & returned_at_end)
        order = np.argsort(block, kind="stable")
        return _Awaited(block=block[order], node=node[order], is_known=is_known[order])

    def _look_at(self, track: int, *, is_only_track: bool) -> None:
        """Find which calls wait for a stream, or may do so."""
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
        self._sure_blocks.append(np.flatnonzero(is_sure))
        self._sure_nodes.append(node[is_sure])


def _busiest_tracks(nodes: Nodes) -> list[int]:
    """Return the streams with the most nodes, ascending."""
    tracks, count = np.unique(nodes.track, return_counts=True)
    by_count = np.argsort(-count, kind="stable")
    busiest: list[int] = np.sort(tracks[by_count[:MOST_TRACKS]]).tolist()
    return busiest
