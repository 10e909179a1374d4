"""What a replay knows of a trace: GPU work by stream, what it waits for, and what blocks the host.

A node is a GPU event, a wait of a stream (of no length), or a hole. A block is a call that returns
when what it waits for is done. An edge holds only where the recorded times do not contradict it.
Work waits for earlier calls only, so the order of calls is an order of all edges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import BEFORE, HOLE, recording_of
from tracelens_ext.simulation.replay import find_clocks, run_starts
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    runtime_calls,
)
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import (
    by_group_and_time,
    items_before,
    last_before,
    running_maximum,
)
from tracelens_ext.trace.intervals import covered, union

_DEVICE, _STREAM, _EVENT, _COPY = range(4)
_BLOCKING: Final = [
    runtime_calls.WAITS_FOR_DEVICE,
    runtime_calls.WAITS_FOR_STREAM,
    runtime_calls.WAITS_FOR_EVENT,
]
_WAIT: Final = runtime_calls.STREAM_WAITS_FOR_EVENT
_RECORD: Final = runtime_calls.RECORDS_EVENT

#: How long before the end of what it waits for a call may return, by the clocks of some devices.
_EARLY_NS: Final = 20_000
#: How far the clock of a GPU may be ahead of that of the host. So many calls that wait tell it,
#: most of which return by the same time too early, and not when their work ends.
_FARTHEST_AHEAD_NS: Final = 1_000_000
_FEWEST_EARLY_CALLS: Final = 3
_ALIKE_SHARE: Final = 0.75
MOST_TRACKS: Final = 256  # those with most work
_LONGEST_LATENCY_NS: Final = 1_000_000
#: A call returns some microseconds after what it waits for. One that takes longer has waited for
#: something else, which is not in the file: it takes as long in every replay.
_LONGEST_TAIL_NS: Final = 200_000
#: So long a device does not stand still though it has work, unless that waits for something which
#: is not in the file: then it does so in every replay.
_SHORTEST_STANDSTILL_NS: Final = 200_000
#: What the device does meanwhile, at most, as a share of that time.
_BUSY_IN_STANDSTILL: Final = 0.1
_USUAL_NS: Final = (5_000, 1_000, 5_000)  # where nothing in the window tells


class DependencyGraph:
    """The n nodes of a window by stream, its b blocks by start, and the clocks of the host.

    Args:
        work: the GPU events.
        window: its start and end, ns since the trace's first event.
        device: the only device that is asked about.
        closes: whether the host's time goes on to the end of the window, after the last call.

    Attributes:
        event, launch: the GPU event of each node and the row of its call, `NONE` without, (n,).
        track: its stream, an index into `tracks`, (n,).
        call: when it was called; `NONE` if not in the window. All times are since its start, (n,).
        clock: the clock of that call, (n,).
        key: the latest call of it and of the nodes before it in its stream, (n,).
        start, duration, waiting: as recorded; the last for other ranks, (n,).
        earliest: when it starts at the earliest, whatever was called, (n,).
        waits, wait_known: nodes and what they wait for, (w, 2); whether the recording says so.
        block_start, block_end, block_clock: of each block, (b,).
        awaited, awaited_known: blocks and nodes that they wait for, (a, 2); likewise.
        unusual_tail: how long each block takes after what it waits for, where that is too long to
            be usual; 0 for others, (b,).
        standstill: how long each node starts later than all that it is known to wait for, while the
            device does nothing; 0 for what is usual, (n,).
        contradicted: waits that the recorded times contradict.
        frozen: starts and ends of host time that stays as recorded.
        constants: by device what starting and ending takes, ns: the `latency` from a call to the
            start of its work on an idle stream, the `gap` between two pieces of work of a stream,
            the `tail` from the end of what a call waits for to its return.
    """

    def __init__(
        self,
        work: GpuEvents,
        window: tuple[int, int],
        device: int | None,
        *,
        closes: bool,
    ) -> None:
        trace = work.trace
        self.work = work
        self.window = window
        self.contradicted = 0
        self.tracks = find_tracks(work, "stream")
        inside = (work.end >= window[0]) & (work.start <= window[1])
        inside &= device is None or trace.device == device
        event = np.flatnonzero(inside)
        self.event = event[np.lexsort((work.start[event], self.tracks.of_gpu[event]))]
        self.track = self.tracks.of_gpu[self.event]
        self.launch = work.tree.launch_of_gpu[self.event]
        self.clocks = find_clocks(work, window)
        self.call = self._called()
        self.start = np.maximum(work.start[self.event] - window[0], 0)
        self.end = np.minimum(work.end[self.event], window[1]) - window[0]
        self.key = running_maximum(self.track, self.call)[0]
        self.frozen = self._add_holes()
        calls = trace.rows_of(*LAUNCH_KINDS)
        calls = calls[(trace.ts[calls] >= window[0]) & (trace.ts[calls] < window[1])]
        self._calls = calls[by_group_and_time(trace.thread[calls], trace.ts[calls])]
        self._records = self._named(_RECORD)
        self._told = self._recorded()
        self._add_waits()
        self.reach = running_maximum(self.track, self.end)[0]
        self.duration = self.end - self.start
        self.waiting = self.start * 0
        of_launch = self.clocks.of_thread[trace.thread[self.launch]]
        self.clock = np.where(self.launch == NONE, 0, of_launch)
        if closes:
            self.clocks.end[:1] = window[1] - window[0]
        self._find_blocks()
        self.constants = self._measure()
        self.earliest = self._find_earliest()
        self.standstill = self._find_standstill()

    def _called(self) -> Int64Array:
        """When each node was called in the window by a thread with a clock; `NONE` otherwise."""
        trace = self.work.trace
        call = np.full(len(self.launch), NONE, dtype=np.int64)
        linked = np.flatnonzero(self.launch != NONE)
        launch = self.launch[linked]
        since_start = trace.ts[launch] - self.window[0]
        is_told = (since_start >= 0) & (
            self.clocks.of_thread[trace.thread[launch]] != NONE
        )
        call[linked[is_told]] = since_start[is_told]
        return call

    def constant(self, name: str) -> Int64Array:
        """A constant of the device of each node."""
        devices = self.tracks.device.tolist()
        of_track = np.array([self.constants[d][name] for d in devices], dtype=np.int64)
        return of_track[self.track]

    @cached_property
    def node_of_event(self) -> Int64Array:
        """The node of each GPU event, `NONE` outside the window, (g,)."""
        result = np.full(len(self.work), NONE)
        real = np.flatnonzero(self.event != NONE)
        result[self.event[real]] = real
        return result

    @property
    def edges(self) -> dict[str, int]:
        """How many edges of each kind there are."""
        waits = {"wait known": self.wait_known, "wait assumed": ~self.wait_known}
        which = {
            "launch": self.call != NONE,
            "stream": self.track[1:] == self.track[:-1],
            **waits,
        }
        counts = {kind: int(edges.sum()) for kind, edges in which.items()}
        return counts | {"contradicted": self.contradicted, "sync": len(self.awaited)}

    # Nodes that are no GPU events.

    def _insert(
        self, track: Int64Array, key: Int64Array, **more: Int64Array
    ) -> Int64Array:
        """Add nodes of no length, or with more columns, by their key; returns where they are."""
        order = np.lexsort((key, track))
        at = items_before(self.track, self.key, track[order], key[order] + 1)
        none = np.full_like(key, NONE)
        zero = np.zeros_like(key)
        values = {
            "start": zero,
            "end": zero,
            "call": none,
            "event": none,
            "launch": none,
            **more,
        }
        for name, column in {**values, "track": track, "key": key}.items():
            setattr(self, name, np.insert(getattr(self, name), at, column[order]))
        place = np.empty_like(order)
        place[order] = at + np.arange(len(order))
        return place

    def _last(self, track: Int64Array, before: Int64Array) -> Int64Array:
        """The last node of a stream that was called before a moment, `NONE` without."""
        return last_before(self.track, self.key, track, before)

    def _add_holes(self) -> tuple[Int64Array, Int64Array]:
        """Make holes nodes, before what starts at their end; returns what stays as recorded."""
        parts = recording_of(self.work).parts
        parts = parts[
            (parts["end"] > self.window[0]) & (parts["start"] < self.window[1])
        ]
        kind = parts["kind"].to_numpy()
        start, end = (
            parts[n].to_numpy().clip(*self.window) - self.window[0]
            for n in ("start", "end")
        )
        self._waited_until = end[kind == BEFORE]
        by_start = np.argsort(self.start, kind="stable")
        at = np.searchsorted(self.start[by_start], end[kind == HOLE])
        after = np.append(by_start, NONE)[at]
        begin, stop = (t[kind == HOLE][after != NONE] for t in (start, end))
        after = after[after != NONE]
        track = self.track[after]
        before = np.maximum(after - 1, 0)
        reach = running_maximum(self.track, self.end)[0]
        follows = (self.track[before] == track) & (reach[before] == begin)
        called = np.where(follows, NONE, begin)
        self._insert(track, self.key[after] - 1, start=begin, end=stop, call=called)
        return union(start[kind != BEFORE], end[kind != BEFORE])

    def _add_waits(self) -> None:
        """Make waits of streams for events nodes."""
        rows = self._named(_WAIT)
        told = self._what_told(rows)
        when = self._at(rows)
        known = (told[:, 0] != NONE) & (told[:, 1] != NONE)
        recorded = np.where(
            known & (told[:, 2] != NONE), told[:, 2], self._record_before(rows)
        )
        likely = self._likely_streams(rows, recorded)
        track, other = (np.where(known, told[:, i], likely[i]) for i in (0, 1))
        source = self._last(other, recorded)
        keep = (
            (track != NONE) & (track != other) & (recorded <= when) & (source != NONE)
        )
        after = items_before(self.track, self.key, track, when + 1)
        follows = np.append(self.track, NONE)[after] == track
        starts = np.where(follows, np.append(self.start, 0)[after], 2**62)
        against = keep & (np.append(self.end, 0)[source] > starts)
        keep &= ~against
        self.contradicted += int(against.sum())
        node = self._insert(track[keep], when[keep])
        source = self._last(
            other[keep], recorded[keep]
        )  # where it is now, or a wait there
        self.waits = np.column_stack((node, source))
        self.wait_known = known[keep]

    def _likely_streams(
        self, rows: Int64Array, recorded: Int64Array
    ) -> tuple[Int64Array, ...]:
        """The stream that is launched on next on the thread, and the last one before the record.

        Where that is the same stream, the one on which any thread launched last beside it.
        """
        trace = self.work.trace
        linked = np.flatnonzero((self.call != NONE) & (self.launch != NONE))
        linked = linked[np.argsort(self.call[linked], kind="stable")]
        order = by_group_and_time(trace.thread[self.launch[linked]], self.call[linked])
        begun = self.call[linked[order]]
        track = np.append(self.track[linked[order]], NONE)
        thread = np.append(trace.thread[self.launch[linked[order]]], NONE)
        of_call = trace.thread[rows]
        after = items_before(thread[:-1], begun, of_call, self._at(rows))
        waiting = np.where(thread[after] == of_call, track[after], NONE)
        source = track[last_before(thread[:-1], begun, of_call, recorded)]
        by_time = self.track[linked]
        changes = np.append(True, by_time[1:] != by_time[:-1])[: len(by_time)]
        run = np.maximum.accumulate(np.where(changes, np.arange(len(by_time)), 0))
        last = np.searchsorted(self.call[linked], recorded) - 1
        beside = (
            np.append(run, 0)[last] - 1
        )  # the launch before those in a row on one stream
        own = np.append(by_time, NONE)[last]
        other = np.where(
            own != waiting, own, np.append(by_time, NONE)[np.maximum(beside, -1)]
        )
        other = np.where((last < 0) | ((own == waiting) & (beside < 0)), NONE, other)
        return waiting, np.where((source == waiting) & (source != NONE), other, source)

    # Calls.

    def _named(self, pattern: re.Pattern[str]) -> Int64Array:
        trace = self.work.trace
        return self._calls[trace.named(trace.name[self._calls], pattern.match)]

    def _at(self, rows: Int64Array) -> Int64Array:
        return self.work.trace.ts[rows] - self.window[0]

    def _recorded(self) -> dict[int, tuple[int, int, int]]:
        """What `cuda_sync` events say: call → its stream, that waited for, when it was recorded."""
        trace = self.work.trace
        says_waits = np.isin(trace.categories, runtime_calls.SYNC_CATEGORIES)
        if not says_waits.any():
            return {}
        rows = trace.rows_of(EventKind.OTHER)
        rows = rows[says_waits[trace.category[rows]]]
        streams = zip(
            self.tracks.device.tolist(), self.tracks.stream.tolist(), strict=True
        )
        track = {stream: number for number, stream in enumerate(streams)}
        records = trace.correlation[self._records].tolist()
        when = dict(zip(records, self._at(self._records).tolist(), strict=True))
        names = (
            "device",
            "stream",
            "wait_on_stream",
            "wait_on_cuda_event_record_corr_id",
        )
        columns = [
            trace.correlation[rows],
            *(trace.arg(name).at(rows) for name in names),
        ]
        found = {}
        for call, device, *of, record in np.column_stack(columns).tolist():
            own, other = (track.get((device, stream), NONE) for stream in of)
            found[call] = own, other, when.get(record, NONE)
        return found

    def _what_told(self, rows: Int64Array) -> Int64Array:
        nothing = (NONE, NONE, NONE)
        told = [
            self._told.get(c, nothing)
            for c in self.work.trace.correlation[rows].tolist()
        ]
        return np.array(told, dtype=np.int64).reshape(-1, 3)

    def _record_before(self, rows: Int64Array) -> Int64Array:
        """When the last event before each was recorded on its thread; when it began without one."""
        trace = self.work.trace
        records = self._records
        of_records = trace.thread[records], trace.ts[records]
        at = last_before(*of_records, trace.thread[rows], trace.ts[rows])
        return np.where(at == NONE, self._at(rows), np.append(self._at(records), 0)[at])

    # Blocks.

    def _find_blocks(self) -> None:
        """Find the calls that block: by name, and copies by when they return."""
        trace = self.work.trace
        copy = np.flatnonzero((self.call != NONE) & (self.event != NONE))
        copy = copy[self.work.is_copy[self.event[copy]]]
        back = trace.end_of(self.launch[copy]) - self.window[0]
        named = [self._named(pattern) for pattern in _BLOCKING]
        ahead = self._find_clock_offsets(named)[self.track[copy]]
        started = self.start[copy] - ahead
        waits = (self.call[copy] <= self.start[copy]) & (started <= back)
        waits &= back >= self.end[copy] - ahead - _EARLY_NS
        waits &= self.key[copy] == self.call[copy]
        copy = copy[waits]
        rows = np.concatenate((*named, self.launch[copy]))
        kind = np.repeat(np.arange(4), [*map(len, named), len(copy)])
        own = np.concatenate((np.full(len(rows) - len(copy), NONE), copy))
        begin = self._at(rows)
        end = trace.end_of(rows) - self.window[0]
        clock = self.clocks.of_thread[trace.thread[rows]]
        order = np.lexsort((-end, begin, clock))
        reach = running_maximum(clock[order], end[order])[0]
        apart = (begin[order][1:] >= reach[:-1]) | (
            clock[order][1:] != clock[order][:-1]
        )
        order = order[np.append(True, apart)[: len(order)]]
        order = order[np.argsort(begin[order], kind="stable")]
        rows, begin, end, clock = (
            column[order] for column in (rows, begin, end, clock)
        )
        awaited, known = self._find_awaited(rows, kind[order], own[order], begin, end)
        starts, ends = self.frozen
        frozen = np.searchsorted(starts, end, "right") > np.searchsorted(
            ends, begin, "right"
        )
        keep = np.isin(np.arange(len(rows)), awaited[:, 0]) & ~frozen
        stays = keep[awaited[:, 0]]
        number = np.cumsum(keep) - 1
        self.awaited = np.column_stack((number[awaited[:, 0]], awaited[:, 1]))[stays]
        self.awaited_known = known[stays]
        self.block_start = begin[keep]
        self.block_end = end[keep]
        self.block_clock = clock[keep]

    def _find_clock_offsets(self, named: Sequence[Int64Array]) -> Int64Array:
        """How far the clock of each stream's device is ahead of the host's, ns; 0 for little.

        A call that returns before its work has ended shows it, if most such calls of the device do
        so by the same time: `cudaStreamSynchronize` from 10 to 115 µs, which waits for a kernel
        that ends at 312 µs, and the next one from 160 to 265 µs for one that ends at 462 µs.
        """
        rows = np.concatenate(named)
        kind = np.repeat(np.arange(len(named)), [*map(len, named)])
        end = self.work.trace.end_of(rows) - self.window[0]
        stream, when = self._what_is_waited_for(rows, kind)
        numbers, _ = np.unique(self.track, return_counts=True)
        early_by: dict[int, Int64Array] = {}
        for track in numbers.tolist() if len(rows) else ():
            is_sure = (kind == _DEVICE) | (stream == track) | (len(numbers) == 1)
            node = self._last(np.full(len(rows), track), when)
            is_known = is_sure & (node != NONE)
            early = np.full(len(rows), _NEVER_EARLY)
            early[is_known] = self.reach[node[is_known]] - end[is_known]
            device = int(self.tracks.device[track])
            early_by[device] = np.maximum(early_by.get(device, early), early)
        offsets = np.zeros(len(self.tracks), dtype=np.int64)
        for device, early in early_by.items():
            offsets[self.tracks.device == device] = _clock_offset(early)
        return offsets

    def _what_is_waited_for(
        self, rows: Int64Array, kind: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The stream that each blocking call waits for, `NONE` if unknown, and up to which call."""
        told = self._what_told(rows)
        event = kind == _EVENT
        stream = np.where(event, told[:, 1], told[:, 0])
        when = np.where(event, self._record_before(rows), self._at(rows))
        return stream, np.where(event & (told[:, 2] != NONE), told[:, 2], when)

    def _find_awaited(self, *of_blocks: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Pairs of a block and a node that it waits for, and whether that is known.

        Of each block the row of its call, its kind, the node of a copy, its start and its end.
        """
        rows, kind, own, begin, end = of_blocks
        stream, when = self._what_is_waited_for(rows, kind)
        ahead = self._find_clock_offsets(
            [rows[kind == number] for number in range(_COPY)]
        )
        found, count = np.unique(self.track, return_counts=True)
        tracks = np.sort(
            found[np.argsort(-count, kind="stable")[:MOST_TRACKS]]
        ).tolist()
        pairs = [np.column_stack((np.arange(len(rows)), own))[kind == _COPY]]
        latest = np.full(len(rows), -1)
        node_of_latest = np.full(len(rows), NONE)
        for track in tracks if len(rows) else ():
            sure = (kind == _DEVICE) | (stream == track) | (len(tracks) == 1)
            node = self._last(np.full(len(rows), track), when)
            asked = (kind != _COPY) & (node != NONE) & (sure | (stream == NONE))
            reach = np.append(self.reach, 0)[node]
            done = reach <= end + np.where(sure, _EARLY_NS + ahead[track], 0)
            self.contradicted += int((asked & sure & ~done).sum())
            pairs.append(
                np.column_stack((np.arange(len(rows)), node))[asked & sure & done]
            )
            later = asked & ~sure & done & (reach > latest)
            latest[later] = reach[later]
            node_of_latest[later] = node[later]
        guessed = np.flatnonzero(node_of_latest != NONE)
        # A call that returns just when something ends has waited for that.
        shown = (latest > begin)[guessed] & (end - latest <= _EARLY_NS)[guessed]
        known = np.append(np.ones(sum(map(len, pairs)), dtype=bool), shown)
        awaited = np.concatenate(
            (*pairs, np.column_stack((guessed, node_of_latest[guessed])))
        )
        order = np.argsort(awaited[:, 0], kind="stable")
        return awaited[order], known[order]

    # Constants.

    def _measure(self) -> dict[int, dict[str, int]]:
        """The constants of each device."""
        count = len(self.event)
        after = np.append(False, self.track[1:] == self.track[:-1])[:count]
        free = (self.event != NONE) & ~(after & (np.roll(self.event, 1) == NONE))
        ended = np.where(after, np.roll(self.reach, 1), -1)
        by_launch = np.lexsort((self.start, self.launch))
        first = np.zeros(count, dtype=bool)
        first[by_launch[run_starts(self.launch[by_launch])]] = True
        delay = self.start - self.call
        idle = free & first & (self.call != NONE) & (ended <= self.call)
        idle &= delay < _LONGEST_LATENCY_NS
        block, node = self.awaited.T
        runs = run_starts(block)
        until = np.maximum.reduceat(self.reach[node], runs) if len(runs) else node
        begin, returned = (t[block[runs]] for t in (self.block_start, self.block_end))
        own_tail = returned - np.maximum(begin, until)
        device = self.tracks.device[self.track]
        result = {}
        for number in np.unique(self.tracks.device).tolist():
            mine = device == number
            latency = _quantile(delay[idle & mine], 0.2, _USUAL_NS[0])
            queued = mine & free & after & (self.call < ended - 2 * latency)
            gap = _quantile((self.start - ended)[queued], 0.5, _USUAL_NS[1])
            here = device[node[runs]] == number
            here &= own_tail <= _LONGEST_TAIL_NS
            idle_tail = _quantile((returned - begin)[here], 0.5, _USUAL_NS[2])
            tail = _quantile((returned - until)[here & (until > begin)], 0.5, idle_tail)
            result[number] = {"latency": latency, "gap": gap, "tail": tail}
        self.unusual_tail = np.zeros(len(self.block_start), dtype=np.int64)
        is_unusual = own_tail > _LONGEST_TAIL_NS
        self.unusual_tail[block[runs][is_unusual]] = own_tail[is_unusual]
        return result

    def _find_earliest(self) -> Int64Array:
        """The recorded start of what waited for work that is not in the file; else 0, (n,).

        That is what was called before the window and did not follow at once, and the first of a
        stream that came late though the device had nothing else to do.
        """
        before = np.append(-1, self.reach[:-1])[: len(self.reach)]
        first = np.append(True, self.track[1:] != self.track[:-1])[: len(before)]
        late = 2 * self.constant("latency")
        alone = (self.call == NONE) & (first | (self.start - before > late))
        alone |= np.isin(self.start, self._waited_until)
        device = self.tracks.device[self.track]
        delay = self.start - self.call
        for at in np.flatnonzero(first & (self.call != NONE) & (delay > late)).tolist():
            beside = device == device[at]
            span = (self.call[at : at + 1], self.start[at : at + 1])
            alone[at] |= (
                2 * covered(self.start[beside], self.end[beside], *span)[0] < delay[at]
            )
        return np.where(alone & (self.event != NONE), self.start, 0)

    def _find_standstill(self) -> Int64Array:
        """How long each node starts later than it could, while its device stands still, ns, (n,).

        A kernel that is called at 10 µs, and follows one that ends at 20 µs, starts at 2,000 µs:
        with a gap of 1 µs, the device stands still for 1,979 µs if nothing else runs there.
        """
        count = len(self.event)
        follows = np.append(False, self.track[1:] == self.track[:-1])[:count]
        real = (self.event != NONE) & ~(follows & (np.roll(self.event, 1) == NONE))
        called = self.call != NONE
        after_call = np.where(called, self.call + self.constant("latency"), 0)
        after_work = np.where(follows, np.roll(self.reach, 1) + self.constant("gap"), 0)
        could_start = np.maximum(after_call, after_work)
        late = self.start - could_start
        candidates = np.flatnonzero(
            real & called & (self.earliest == 0) & (late > _SHORTEST_STANDSTILL_NS)
        )
        device = self.tracks.device[self.track]
        result = np.zeros(count, dtype=np.int64)
        for number in np.unique(device[candidates]).tolist():
            nodes = candidates[device[candidates] == number]
            on_device = device == number
            busy_ns = covered(
                self.start[on_device],
                self.end[on_device],
                could_start[nodes],
                self.start[nodes],
            )
            still = nodes[busy_ns <= _BUSY_IN_STANDSTILL * late[nodes]]
            result[still] = late[still]
        starts, ends = self.frozen
        frozen = np.searchsorted(starts, self.start, "right") > np.searchsorted(
            ends, could_start, "right"
        )
        result[frozen] = 0
        return result


#: A call that waits for nothing on a device.
_NEVER_EARLY: Final = -(2**62)


def _clock_offset(early: Int64Array) -> int:
    """How far a clock is ahead, by how much calls return before their work ends; 0 for little."""
    too_early = early[early > _EARLY_NS]
    as_its_work_ends = np.count_nonzero(np.abs(early) <= _EARLY_NS)
    if len(too_early) < _FEWEST_EARLY_CALLS or as_its_work_ends >= len(too_early):
        return 0
    offset = int(np.median(too_early))
    alike = np.abs(too_early - offset) <= _EARLY_NS
    if offset > _FARTHEST_AHEAD_NS or alike.mean() < _ALIKE_SHARE:
        return 0
    return offset


def _quantile(sample: Int64Array, share: float, otherwise: int) -> int:
    return int(np.quantile(sample, share, method="lower")) if len(sample) else otherwise
