"""What a replay knows of a trace: GPU work by stream, what it waits for, and what blocks the host.

Nodes are GPU events by stream, in order; a wait of a stream is a node of no length. Blocks are
calls that return when what they wait for is done. An edge holds only where the recording does not
contradict it. The order of calls is an order of all edges, as work waits for earlier calls only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.intervals import covered, union
from tracelens_ext.recording.recording import BEFORE, HOLE, recording_of
from tracelens_ext.replay.host import Clocks, HostTime, find_clocks
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind
from tracelens_ext.work.lanes import find_lanes
from tracelens_ext.work.group_search import by_group_and_time, items_before, running_maximum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int64Array, Trace
    from tracelens_ext.work.gpu_work import GpuWork

_DEVICE_SYNC = re.compile(r"(?:cuda|hip|cu)(?:Device|Ctx|Thread)Synchronize")
_STREAM_SYNC = re.compile(r"(?:cuda|hip|cu)StreamSynchronize")
_EVENT_SYNC = re.compile(r"(?:cuda|hip|cu)EventSynchronize")
_WAIT = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")
_RECORD = re.compile(r"(?:cuda|hip|cu)EventRecord")

#: How long before the end of what it waits for a call may return, by the clocks of some devices.
_EARLY_NS: Final = 20_000
_LONGEST_LATENCY_NS: Final = 1_000_000
_LATENCY_QUANTILE: Final = 0.2
#: Where nothing in the window tells.
_USUAL_NS: Final = (5_000, 1_000, 5_000)
#: Launches among which the stream is looked for that an unnamed event was recorded on.
_LOOKED_BACK: Final = 10_000
_NOTHING: Final = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Constants:
    """What starting and ending takes on a device, ns."""

    latency: int  #: from a call to the start of its work on an idle stream
    gap: int  #: between two pieces of work of a stream
    tail: int  #: from the end of what a call waits for to its return


@dataclass(frozen=True, eq=False)
class Program:
    """The nodes of a window, n of them, its b blocks and the clocks of the host.

    Attributes:
        window: its start and end, ns since the trace's first event; other times are since its start.
        event: the GPU event of each node, `NONE` for a wait, (n,).
        lane: its stream, ascending, (n,).
        key: the latest call of it and of the nodes before it in its stream, (n,).
        start: when it started, 0 of a wait, (n,).
        duration: ns, (n,).
        call: when it was called on its clock; `NONE` if before the window, (n,).
        clock: that clock, (n,).
        waiting: how much of it waits for other ranks, which no change shortens, (n,).
        earliest: before when it does not start, whatever was called, (n,).
        waits: the node and what it waits for, (w, 2).
        block_start, block_end, block_clock: of each block, by start, (b,).
        awaited: the block and the node that it waits for, (a, 2).
        wait_known: whether the recording says what each wait is for, (w,).
        awaited_known: likewise, (a,).
        clocks: of the host.
        lane_device, lane_stream: the device and the number of each stream.
        constants: of each device.
        contradicted: waits that the recorded times contradict.
        frozen: times of the host that stay as recorded, ascending and apart.
    """

    window: tuple[int, int]
    event: Int64Array
    lane: Int64Array
    key: Int64Array
    start: Int64Array
    duration: Int64Array
    call: Int64Array
    clock: Int64Array
    waiting: Int64Array
    earliest: Int64Array
    waits: Int64Array
    wait_known: BoolArray
    block_start: Int64Array
    block_end: Int64Array
    block_clock: Int64Array
    awaited: Int64Array
    awaited_known: BoolArray
    clocks: Clocks
    lane_device: Int64Array
    lane_stream: Int64Array
    constants: dict[int, Constants]
    contradicted: int
    frozen: tuple[Int64Array, Int64Array]

    def constant(self, name: str, lane: Int64Array) -> Int64Array:
        """A constant of the device of each stream."""
        of_device = {device: getattr(each, name) for device, each in self.constants.items()}
        of_lane = np.array([of_device[d] for d in self.lane_device.tolist()], dtype=np.int64)
        return of_lane[lane]

    @property
    def edges(self) -> dict[str, int]:
        """How many edges of each kind there are."""
        following = int((self.lane[1:] == self.lane[:-1]).sum())
        return {
            "launch": int((self.call != NONE).sum()),
            "stream": following,
            "wait known": int(self.wait_known.sum()),
            "wait assumed": int((~self.wait_known).sum()),
            "contradicted": self.contradicted,
            "sync": len(self.awaited),
        }


class Nodes:
    """The GPU work of a window by stream, before its waits are known.

    Args:
        work: all GPU events.
        window: its start and end.
        device: the only device that is asked about.
    """

    def __init__(self, work: GpuWork, window: tuple[int, int], device: int | None) -> None:
        trace, tree = work.trace, work.tree
        self.lanes = find_lanes(work, "stream")
        inside = (work.end >= window[0]) & (work.start <= window[1])
        if device is not None:
            inside &= trace.device == device
        event = np.flatnonzero(inside)
        event = event[np.lexsort((work.start[event], self.lanes.of_gpu[event]))]
        launch = tree.launch_of_gpu[event]
        call = np.where(launch == NONE, -1, trace.ts[launch] - window[0])
        self.event, self.launch = event, launch
        self.call = np.where(call < 0, NONE, call)
        self.lane = self.lanes.of_gpu[event]
        self.start = np.maximum(work.start[event] - window[0], 0)
        self.end = np.minimum(work.end[event], window[1]) - window[0]
        self.key, _ = running_maximum(self.lane, self.call)

    def insert(self, lane: Int64Array, key: Int64Array, **more: Int64Array) -> Int64Array:
        """Add nodes that are no GPU events; they come by their key. Returns where they are.

        Args:
            lane: the stream of each.
            key: when it was called.
            more: `start`, `end` and `call`, unless it has no length and was not called.
        """
        order = np.lexsort((key, lane))
        at = items_before(self.lane, self.key, lane[order], key[order] + 1)
        values = {"start": key * 0, "end": key * 0, "call": key * 0 + NONE} | more
        values |= {"lane": lane, "key": key, "event": key * 0 + NONE, "launch": key * 0 + NONE}
        for name, column in values.items():
            setattr(self, name, np.insert(getattr(self, name), at, column[order]))
        place = np.empty_like(order)
        place[order] = at + np.arange(len(order))
        self.reach = running_maximum(self.lane, self.end)[0]
        return place

    def last(self, lane: Int64Array, before: Int64Array) -> Int64Array:
        """The last node of a stream that was called before a moment, `NONE` without."""
        at = items_before(self.lane, self.key, lane, before) - 1
        return np.where((at >= 0) & (self.lane[np.maximum(at, 0)] == lane), at, NONE)


class Calls:
    """Calls of the runtime in a window, and what the recording says of those that synchronise."""

    def __init__(self, trace: Trace, window: tuple[int, int], nodes: Nodes) -> None:
        rows = trace.rows_of(*LAUNCH_KINDS)
        rows = rows[(trace.ts[rows] >= window[0]) & (trace.ts[rows] < window[1])]
        self.trace, self.origin, self.nodes = trace, window[0], nodes
        self.rows = rows[by_group_and_time(trace.thread[rows], trace.ts[rows])]
        lanes = nodes.lanes
        keys = zip(lanes.device.tolist(), lanes.stream.tolist(), strict=True)
        self._lane = {key: lane for lane, key in enumerate(keys)}
        self._told = self._recorded()

    def named(self, pattern: re.Pattern[str]) -> Int64Array:
        """Those whose name a pattern matches, by thread and start."""
        return self.rows[self.trace.names_matching(pattern.match)[self.trace.name[self.rows]]]

    def at(self, rows: Int64Array) -> Int64Array:
        """When they began, since the window's start."""
        return self.trace.ts[rows] - self.origin

    def _recorded(self) -> dict[int, tuple[int, int, int]]:
        """What `cuda_sync` events say: call → its stream, the stream waited for, and the record."""
        trace = self.trace
        if "cuda_sync" not in trace.categories:
            return {}
        rows = trace.rows_of(EventKind.OTHER)
        rows = rows[trace.category[rows] == trace.categories.index("cuda_sync")]
        columns = [trace.correlation[rows]]
        columns += [trace.arg(n).at(rows) for n in ("device", "stream", "wait_on_stream")]
        columns += [trace.arg("wait_on_cuda_event_record_corr_id").at(rows)]
        return {
            int(call): (
                self._lane.get((device, stream), NONE),
                self._lane.get((device, other), NONE),
                record,
            )
            for call, device, stream, other, record in zip(
                *(column.tolist() for column in columns), strict=True
            )
        }

    def told(self, rows: Int64Array) -> Int64Array:
        """Of each: its stream, the stream waited for, when that was recorded; `NONE` unknown."""
        records = self.named(_RECORD)
        when = dict(zip(self.trace.correlation[records].tolist(), self.at(records).tolist()))
        result = np.full((len(rows), 3), NONE, dtype=np.int64)
        for i, call in enumerate(self.trace.correlation[rows].tolist()):
            if found := self._told.get(call):
                result[i] = (found[0], found[1], when.get(found[2], NONE))
        return result

    def record_before(self, rows: Int64Array) -> Int64Array:
        """When the last event before each was recorded on its thread; when it began without one."""
        trace, records = self.trace, self.named(_RECORD)
        thread = trace.thread[rows]
        at = items_before(trace.thread[records], trace.ts[records], thread, trace.ts[rows]) - 1
        found = at >= 0
        found[found] = trace.thread[records[at[found]]] == thread[found]
        result = self.at(rows)
        result[found] = self.at(records[at[found]])
        return result


def read_program(
    work: GpuWork,
    window: tuple[int, int],
    device: int | None = None,
    closes: bool = False,
) -> Program:
    """Find the nodes, the edges and the constants of a window.

    Args:
        work: the GPU events.
        window: its start and end, ns since the trace's first event.
        device: the only device that is asked about.
        closes: whether the host's time goes on to the end of the window, after the last call.
    """
    nodes = Nodes(work, window, device)
    frozen = _add_holes(work, window, nodes)
    calls = Calls(work.trace, window, nodes)
    clocks = find_clocks(work.trace, window)
    if closes:
        clocks.end[:1] = window[1]
    waits, wait_known, against = _find_waits(calls, nodes)
    blocks, awaited, known, beside = _find_blocks(work, calls, nodes, clocks, frozen)
    lane_device = nodes.lanes.device
    constants = _measure(nodes, waits, blocks, awaited, lane_device)
    thread = work.trace.thread[np.maximum(nodes.launch, 0)]
    program = Program(
        window=window,
        event=nodes.event,
        lane=nodes.lane,
        key=nodes.key,
        start=nodes.start,
        duration=nodes.end - nodes.start,
        call=nodes.call,
        clock=np.where(nodes.launch == NONE, 0, clocks.of_thread[thread]),
        waiting=np.zeros(len(nodes.event), dtype=np.int64),
        earliest=np.zeros(len(nodes.event), dtype=np.int64),
        waits=waits,
        wait_known=wait_known,
        block_start=blocks[0],
        block_end=blocks[1],
        block_clock=blocks[2],
        awaited=awaited,
        awaited_known=known,
        clocks=clocks,
        lane_device=lane_device,
        lane_stream=nodes.lanes.stream,
        constants=constants,
        contradicted=against + beside,
        frozen=frozen,
    )
    program.earliest[:] = _earliest(program, nodes)
    return program


def _add_holes(
    work: GpuWork, window: tuple[int, int], nodes: Nodes
) -> tuple[Int64Array, Int64Array]:
    """Make holes work that no change shortens; returns when the host's time stays as recorded.

    A hole comes before what starts at its end, after what ended at its beginning, or else was
    called then.
    """
    parts = recording_of(work).parts
    parts = parts[(parts["end"] > window[0]) & (parts["start"] < window[1])]
    start, end = (parts[n].to_numpy().clip(*window) - window[0] for n in ("start", "end"))
    hole = (parts["kind"] == HOLE).to_numpy()
    nodes.earliest_starts = end[(parts["kind"] == BEFORE).to_numpy()]
    by_start = np.argsort(nodes.start, kind="stable")
    after = np.append(by_start, NONE)[np.searchsorted(nodes.start[by_start], end[hole])]
    start, end, after = start[hole][after != NONE], end[hole][after != NONE], after[after != NONE]
    lane, reach = nodes.lane[after], running_maximum(nodes.lane, nodes.end)[0]
    before = np.maximum(after - 1, 0)
    follows = (nodes.lane[before] == lane) & (reach[before] == start)
    called = np.where(follows, NONE, start)
    nodes.insert(lane, nodes.key[after] - 1, start=start, end=end, call=called)
    kept = parts["kind"] != BEFORE
    return union(
        *(parts.loc[kept, n].to_numpy().clip(*window) - window[0] for n in ("start", "end"))
    )


def _find_waits(calls: Calls, nodes: Nodes) -> tuple[Int64Array, BoolArray, int]:
    """Waits of streams for events: nodes and what they wait for, whether known; contradictions."""
    rows, trace = calls.named(_WAIT), calls.trace
    told, when = calls.told(rows), calls.at(rows)
    known = (told[:, 0] != NONE) & (told[:, 1] != NONE)
    recorded = np.where(known & (told[:, 2] != NONE), told[:, 2], calls.record_before(rows))
    lane, other = _likely_streams(trace, rows, recorded + calls.origin, nodes)
    lane, other = np.where(known, told[:, 0], lane), np.where(known, told[:, 1], other)
    asked = (lane != NONE) & (other != NONE) & (lane != other) & (recorded <= when)
    lane, other, known = lane[asked], other[asked], known[asked]
    recorded, when = recorded[asked], when[asked]
    source = nodes.last(other, recorded)
    after = items_before(nodes.lane, nodes.key, lane, when + 1)
    follows = (after < len(nodes.lane)) & (
        nodes.lane[np.minimum(after, len(nodes.lane) - 1)] == lane
    )
    next_start = np.where(follows, nodes.start[np.minimum(after, len(nodes.lane) - 1)], 2**62)
    against = (source != NONE) & (nodes.end[np.maximum(source, 0)] > next_start)
    keep = ~against & (source != NONE)
    lane, other, recorded, when, known = (x[keep] for x in (lane, other, recorded, when, known))
    node = nodes.insert(lane, when)
    source = nodes.last(other, recorded)  # where it is now, or a wait of that stream
    return np.column_stack((node, source)), known, int(against.sum())


def _likely_streams(
    trace: Trace, rows: Int64Array, recorded: Int64Array, nodes: Nodes
) -> tuple[Int64Array, Int64Array]:
    """The stream that waits launches next on the thread; the other one launched before the record.

    Where that is the same stream, what was launched last on any other is waited for.
    """
    linked = np.flatnonzero(nodes.call != NONE)
    launch = nodes.launch[linked]
    order = by_group_and_time(trace.thread[launch], trace.ts[launch])
    thread, begun = trace.thread[launch[order]], trace.ts[launch[order]]
    lane = np.append(nodes.lane[linked[order]], NONE)
    of_call = trace.thread[rows]
    after = items_before(thread, begun, of_call, trace.ts[rows])
    before = items_before(thread, begun, of_call, recorded) - 1
    threads = np.append(thread, NONE)
    waiting = np.where(threads[after] == of_call, lane[after], NONE)
    source = np.where(threads[before] == of_call, lane[before], NONE)
    by_time = np.argsort(begun, kind="stable")
    for i in np.flatnonzero((source == waiting) & (source != NONE)).tolist():
        last = int(np.searchsorted(begun[by_time], recorded[i]))
        beside = by_time[max(0, last - _LOOKED_BACK) : last]
        beside = beside[lane[beside] != waiting[i]]
        source[i] = lane[beside[-1]] if len(beside) else NONE
    return waiting, source


def _find_blocks(
    work: GpuWork,
    calls: Calls,
    nodes: Nodes,
    clocks: Clocks,
    frozen: tuple[Int64Array, Int64Array],
) -> tuple[tuple[Int64Array, Int64Array, Int64Array], Int64Array, BoolArray, int]:
    """Calls that block: start, end, clock; pairs of block and node; whether known; contradictions."""
    trace = work.trace
    copy = np.flatnonzero((nodes.call != NONE) & (nodes.event != NONE))
    copy = copy[work.is_copy[nodes.event[copy]]]
    called, back = nodes.call[copy], trace.end_of(nodes.launch[copy]) - calls.origin
    blocking = (called <= nodes.start[copy]) & (nodes.start[copy] <= back)
    blocking &= (back >= nodes.end[copy] - _EARLY_NS) & (nodes.key[copy] == called)
    copy = copy[blocking]
    named = [calls.named(pattern) for pattern in (_DEVICE_SYNC, _STREAM_SYNC, _EVENT_SYNC)]
    rows = np.concatenate((*named, nodes.launch[copy]))
    kind = np.repeat(np.arange(4), [*map(len, named), len(copy)])
    own = np.concatenate((np.full(len(rows) - len(copy), NONE), copy))
    begin, end = calls.at(rows), trace.end_of(rows) - calls.origin
    clock = clocks.of_thread[trace.thread[rows]]
    order = np.lexsort((-end, begin, clock))
    reach = running_maximum(clock[order], end[order])[0]
    apart = np.ones(len(order), dtype=bool)
    apart[1:] = (begin[order][1:] >= reach[:-1]) | (clock[order][1:] != clock[order][:-1])
    order = order[apart]
    order = order[np.argsort(begin[order], kind="stable")]
    rows, kind, own, begin, end, clock = (x[order] for x in (rows, kind, own, begin, end, clock))
    awaited, known, against = _awaited(calls, nodes, rows, kind, own, begin, end)
    in_frozen = np.searchsorted(frozen[0], end, "right") > np.searchsorted(
        frozen[1], begin, "right"
    )
    keep = np.isin(np.arange(len(rows)), awaited[:, 0]) & ~in_frozen
    number = np.cumsum(keep) - 1
    stays = keep[awaited[:, 0]]
    awaited = np.column_stack((number[awaited[:, 0]], awaited[:, 1]))[stays]
    return (begin[keep], end[keep], clock[keep]), awaited, known[stays], against


def _awaited(
    calls: Calls, nodes: Nodes, rows: Int64Array, kind: Int64Array, own: Int64Array,
    begin: Int64Array, end: Int64Array,
) -> tuple[Int64Array, BoolArray, int]:  # fmt: skip
    """Pairs of a block and a node that it waits for, whether each is known, and contradictions."""
    told = calls.told(rows)
    event = kind == 2
    told_lane = np.where(event, told[:, 1], told[:, 0])
    known_record = event & (told[:, 2] != NONE)
    when = np.where(event, calls.record_before(rows), begin)
    when[known_record] = told[known_record, 2]
    pairs, against = [], 0
    latest = np.full((len(rows), 2), NONE, dtype=np.int64)  # of what is not known: end and node
    for lane in np.unique(nodes.lane).tolist():
        asked = np.flatnonzero((kind != 3) & ((told_lane == lane) | (told_lane == NONE)))
        node = nodes.last(np.full(len(asked), lane), when[asked])
        asked, node = asked[node != NONE], node[node != NONE]
        sure = (kind[asked] == 0) | (told_lane[asked] == lane)
        done = nodes.reach[node] <= end[asked] + np.where(sure, _EARLY_NS, 0)
        against += int((sure & ~done).sum())
        pairs.append(np.column_stack((asked, node))[sure & done])
        guess, at = node[~sure & done], asked[~sure & done]
        later = nodes.reach[guess] > latest[at, 0]
        latest[at[later]] = np.column_stack((nodes.reach[guess], guess))[later]
    guessed = np.flatnonzero(latest[:, 1] != NONE)
    pairs.append(np.column_stack((np.flatnonzero(kind == 3), own[kind == 3])))
    sure = sum(map(len, pairs))
    pairs.append(np.column_stack((guessed, latest[guessed, 1])))
    awaited = np.concatenate(pairs)
    order = np.argsort(awaited[:, 0], kind="stable")
    return awaited[order], (np.arange(len(awaited)) < sure)[order], against


def _measure(
    nodes: Nodes,
    waits: Int64Array,
    blocks: tuple[Int64Array, Int64Array, Int64Array],
    awaited: Int64Array,
    lane_device: Int64Array,
) -> dict[int, Constants]:
    """The constants of each device."""
    node = np.arange(len(nodes.event))
    after = np.append(False, nodes.lane[1:] == nodes.lane[:-1])[: len(node)]
    before = np.where(after, node - 1, 0)
    free = (nodes.event != NONE) & ~(after & (nodes.event[before] == NONE))
    ended = np.where(after, nodes.reach[before], -1) if len(node) else node
    first = np.zeros(len(node), dtype=bool)
    by_launch = np.lexsort((nodes.start, nodes.launch))
    first[by_launch] = np.append(True, np.diff(nodes.launch[by_launch]) > 0)[: len(node)]
    delay = nodes.start - nodes.call
    idle = free & first & (nodes.call != NONE) & (ended <= nodes.call)
    idle &= delay < _LONGEST_LATENCY_NS
    device = lane_device[nodes.lane]
    block = awaited[:, 0]
    until = np.maximum.reduceat(nodes.reach[awaited[:, 1]], _firsts(block)) if len(block) else block
    block, of_block = block[_firsts(block)], device[awaited[_firsts(block), 1]]
    waited = until > blocks[0][block]
    tail = blocks[1][block] - np.maximum(until, blocks[0][block])
    result = {}
    for number in np.unique(lane_device).tolist():
        mine = device == number
        latency = _quantile(delay[idle & mine], _LATENCY_QUANTILE, _USUAL_NS[0])
        queued = mine & free & after & (nodes.call < ended - 2 * latency)
        gap = _quantile((nodes.start - ended)[queued], 0.5, _USUAL_NS[1])
        result[number] = Constants(
            latency, gap, _quantile(tail[waited & (of_block == number)], 0.5, _USUAL_NS[2])
        )
    return result


def _firsts(number: Int64Array) -> Int64Array:
    """Where runs of equal numbers begin."""
    return np.flatnonzero(np.append(True, np.diff(number) != 0)[: len(number)])


def _quantile(sample: Int64Array, share: float, otherwise: int) -> int:
    return int(np.quantile(sample, share, method="lower")) if len(sample) else otherwise


def _earliest(program: Program, nodes: Nodes) -> Int64Array:
    """The recorded start of what waited for work that is not in the file; else 0, (n,).

    That is what was called before the window and did not follow at once, and the first of a stream
    that came late though the device had nothing else to do.
    """
    before = np.append(-1, nodes.reach[:-1])[: len(nodes.reach)]
    first = np.append(True, np.diff(program.lane) != 0)[: len(before)]
    late = 2 * program.constant("latency", program.lane)
    alone = (program.call == NONE) & (first | (program.start - before > late))
    alone |= np.isin(program.start, nodes.earliest_starts)
    for at in np.flatnonzero(first & (program.call != NONE)).tolist():
        begin, end = program.call[at : at + 1], program.start[at : at + 1]
        beside = program.lane_device[program.lane] == program.lane_device[program.lane[at]]
        busy = int(covered(nodes.start[beside], nodes.end[beside], begin, end)[0])
        delay = int(end[0] - begin[0])
        alone[at] = delay > late[at] and 2 * busy < delay
    return np.where(alone & (program.event != NONE), program.start, 0)
