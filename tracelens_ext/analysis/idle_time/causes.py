"""Why the GPU was idle: each gap divided into pieces, by what the launching thread and others did.

A gap lasts from E, when the event before ended, to S, when the event after started, whose launch
began at L and returned at R; `docs/commands.md` says what the causes are. What a recording does not
hold, and what happens once (`recording`), is `not_recorded` and `start_up` instead. `edge` is what
of the wall time lies before the first and after the last event of a device, and in no gap.

An event without a launch in a trace that has launches was launched before the recording began, so
before E. In a trace without any launches nothing is known of the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.iterations.selection import Selection
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    Int64Array,
    IntArray,
    grouping,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import Gaps, GpuEvents, Scope, find_gaps, find_tracks
from tracelens_ext.trace.intervals import distinct, inside, outside, union

SYNCHRONISATION, HOST, DEPENDENCY, LAUNCH_OVERHEAD, UNKNOWN = range(5)
NOT_RECORDED, START_UP, EDGE = range(5, 8)
CAUSES = (
    "synchronisation",
    "host",
    "dependency",
    "launch overhead",
    "unknown",
    "not_recorded",
    "start_up",
    "edge",
)

#: How soon after work on another stream an event starts that waited for it.
DEPENDENCY_LATENCY_NS = 5_000

#: Calls that return only when the GPU has done what they wait for.
_SYNCHRONISING = re.compile(
    r"(?:cuda|hip|cu)(?:(?:Device|Stream|Event|Ctx|Thread)Synchronize|Memcpy(?!.*Async))"
)
_STREAM_WAIT = re.compile(r"(?:cuda|hip|cu)StreamWait(?:Event|Value)")

_LONG_AGO = np.iinfo(np.int64).min
_LATENCY_SAMPLES = 5  # fewer tell nothing
_LATENCY_UNKNOWN_NS = 20_000
_LATENCY_BOUNDS_NS = (10_000, 100_000)


class Pieces(NamedTuple):
    """Stretches of idle time, apart on each track, by track and time, p of them."""

    start: Int64Array  #: ns since the trace's first event
    end: Int64Array
    track: IntArray
    gap: IntArray  #: the gap that each is a part of, `NONE` for an edge
    cause: IntArray  #: an index into `CAUSES`

    def chosen(self, which: BoolArray | IntArray) -> Pieces:
        """Some of them."""
        return Pieces._make(column[which] for column in self)

    def joined(self, *others: Pieces) -> Pieces:
        """These and others."""
        pieces = Pieces._make(map(np.concatenate, zip(self, *others, strict=True)))
        return pieces.chosen(np.lexsort((pieces.start, pieces.track)))

    def cut(self, first: Int64Array, last: Int64Array) -> tuple[Pieces, Pieces]:
        """What lies inside some windows, which are ascending and apart, and what outside."""
        start, end, within, _ = inside(self.start, self.end, first, last)
        begin, until, without = outside(self.start, self.end, first, last)
        within_them = self.chosen(within)._replace(start=start, end=end)
        return within_them, self.chosen(without)._replace(start=begin, end=until)


@dataclass(frozen=True, eq=False)
class ClassifiedGaps:
    """Gaps with their causes, k of them."""

    gaps: Gaps  #: when each began and ended, and between which events
    pieces: Pieces  #: the gaps divided by cause; of whole devices, unless selected, with edges
    launch: Int64Array  #: row of the launch of the event after, `NONE` without, (k,)
    returned: Int64Array  #: until when each may be the host's: R, within the gap, (k,)
    synchronising: Int64Array  #: row of the synchronising call that ran, `NONE` without, (k,)
    selected: BoolArray  #: which GPU events are selected, (g,)

    def __len__(self) -> int:
        return len(self.gaps)

    @cached_property
    def events(self) -> Int64Array:
        """How many selected GPU events each track has, (p,)."""
        tracks = self.gaps.tracks
        return np.bincount(tracks.of_gpu[self.selected], minlength=len(tracks))

    @cached_property
    def within(self) -> Pieces:
        """The pieces that are parts of gaps."""
        return self.pieces.chosen(self.pieces.gap != NONE)

    @cached_property
    def cause(self) -> Int64Array:
        """The cause of most of each gap, an index into `CAUSES`, (k,)."""
        return self.main_cause(np.arange(len(self)), len(self))

    def main_cause(self, group: Int64Array, groups: int) -> Int64Array:
        """The cause of most of the idle time of each group of gaps, `group` being each gap's."""
        main: Int64Array = by_cause(self.within, group[self.within.gap], groups).argmax(axis=1)
        return main

    def idle_by_cause_ms(self) -> dict[int | str, dict[str, float]]:
        """The idle time of each device by cause; without a selection that is all of its wall."""
        tracks = self.gaps.tracks
        rows = (by_cause(self.pieces, self.pieces.track, len(tracks)) / NS_PER_MS).tolist()
        times = (dict(zip(CAUSES, row, strict=True)) for row in rows)
        return dict(zip(tracks.device_labels, times, strict=True))

    def of(self, selected: BoolArray) -> ClassifiedGaps:
        """Those that selected GPU events end, without edges."""
        which = selected[self.gaps.after]
        pieces = self.within.chosen(which[self.within.gap])
        pieces = pieces._replace(gap=(np.cumsum(which, dtype=np.int32) - 1)[pieces.gap])
        names = "launch", "returned", "synchronising"
        columns = {name: getattr(self, name)[which] for name in names}
        gaps = self.gaps.chosen(which)
        return replace(self, gaps=gaps, pieces=pieces, selected=selected, **columns)


def by_cause(pieces: Pieces, group: IntArray, groups: int) -> Int64Array:
    """The time of pieces by their groups and causes, ns, (groups, causes)."""
    shape = groups, len(CAUSES)
    cells = group * shape[1] + pieces.cause
    return grouping.sums(cells, pieces.end - pieces.start, groups * shape[1]).reshape(shape)


@cached_per_object
def classify_gaps(
    work: GpuEvents, scope: Scope = "stream", selection: Selection | None = None
) -> ClassifiedGaps:
    """Divide each gap of the streams, or of the devices, by its causes; see the module.

    A gap is selected when the event after it is. (The gaps of a device belong to no stream: its
    number does not restrict them.)
    """
    if scope not in (scopes := get_args(Scope)):
        raise UsageError(f"no such scope: {scope!r}; choose from {', '.join(scopes)}")
    if selection is not None:
        selected = selection.of(work)
        if scope == "device" and selection.stream is not None:
            selected = replace(selection, stream=None).of(work)
        whole = classify_gaps(work, scope)
        return whole if selected.all() else whole.of(selected)
    trace = work.trace
    gaps = find_gaps(work, scope)
    blocking = blocking_calls(work)
    launch = work.tree.launch_of_gpu[gaps.after]
    linked = launch != NONE
    safe = np.maximum(launch, 0)
    thread = np.where(linked, trace.thread[safe], NONE)
    begun = np.where(linked, trace.ts[safe], _LONG_AGO)
    returned = np.where(linked, trace.end_of(safe), gaps.start).clip(gaps.start, gaps.end)
    track = gaps.track.astype(np.int32)
    number = np.arange(len(gaps), dtype=np.int32)
    late = Pieces(gaps.start, returned, track, number, np.full_like(number, HOST, dtype=np.int8))
    launching = late._replace(start=np.clip(begun, gaps.start, returned))
    left = _left(work, gaps, thread, begun, returned)
    parts = [launching, Pieces(returned, gaps.end, track, number, left)]
    late = late._replace(end=launching.start)
    of_call = trace.thread[blocking]
    for asked in np.unique(of_call).tolist():
        mine = thread[late.gap] == asked
        those = blocking[of_call == asked]
        waits, rest = late.chosen(mine).cut(*union(trace.ts[those], trace.end_of(those)))
        parts.append(waits._replace(cause=np.full_like(waits.gap, SYNCHRONISATION, dtype=np.int8)))
        late = late.chosen(~mine).joined(rest)
    if scope == "device":
        parts.append(_edges(work))
    pieces = late.joined(*parts)
    pieces = _without_parts(work, scope, pieces.chosen(pieces.end > pieces.start))
    synchronising = _synchronising(work, gaps, thread, begun)
    every = np.ones(len(work), dtype=bool)
    return ClassifiedGaps(gaps, pieces, launch, returned, synchronising, every)


def _left(
    work: GpuEvents, gaps: Gaps, thread: IntArray, begun: Int64Array, returned: Int64Array
) -> IntArray:
    """Why each gap lasts on when the host has launched: by which thread, from when to when."""
    trace = work.trace
    (waits, launches, _) = _calls(work)
    short = gaps.end - returned <= usual_launch_latency(work)
    late = begun >= gaps.start
    known = work.tree.linked.any() or trace.count_of(*LAUNCH_KINDS) > 0
    cause = np.where((short | late) & known, LAUNCH_OVERHEAD, UNKNOWN).astype(np.int8)

    def latest(rows: Int64Array) -> Int64Array:
        at = grouping.last_before(trace.thread[rows], trace.ts[rows], thread, begun)
        return np.append(trace.ts[rows], _LONG_AGO)[at]

    # The last thing before the launch on its thread is a wait of a stream: of the one that is
    # launched on next, as its target is not in the trace.
    depends = (latest(waits) > latest(launches)) & ~(short & late)
    depends |= (
        gaps.end - _last_end_beside(work, replace(gaps, start=returned)) <= DEPENDENCY_LATENCY_NS
    )
    cause[depends] = DEPENDENCY
    return cause


def _edges(work: GpuEvents) -> Pieces:
    """The time from the beginning of the wall to a device's first event, and after its last."""
    tracks = find_tracks(work, "device")
    recording = recording_of(work)
    count = len(tracks)
    first = grouping.minima(tracks.of_gpu, work.start, count)
    last = grouping.maxima(tracks.of_gpu, work.end, count)
    return Pieces(
        np.append(np.full(count, recording.wall_start), last),
        np.append(first, np.full(count, recording.wall_end)),
        np.tile(np.arange(count, dtype=np.int32), 2),
        np.full(2 * count, NONE, dtype=np.int32),
        np.full(2 * count, EDGE, dtype=np.int8),
    )


def _without_parts(work: GpuEvents, scope: Scope, pieces: Pieces) -> Pieces:
    """The pieces with what lies in parts of the recording that cannot be judged told apart."""
    parts = recording_of(work).parts
    tracks = find_tracks(work, scope)
    device_of = np.zeros(len(tracks), dtype=np.int64)
    device_of[tracks.of_gpu] = find_tracks(work, "device").of_gpu
    causes = np.where(parts["kind"] == "start_up", START_UP, NOT_RECORDED)
    for (device, cause), those in parts.groupby(["device", causes]):
        mine = device_of[pieces.track] == device
        within, rest = pieces.chosen(mine).cut(*union(*those[["start", "end"]].to_numpy().T))
        within = within._replace(cause=np.full_like(within.gap, cause, dtype=np.int8))
        pieces = pieces.chosen(~mine).joined(within, rest)
    return pieces


@cached_per_object
def usual_launch_latency(work: GpuEvents) -> int:
    """How long a launch takes at most, as a rule, to start work on an idle stream, ns.

    Twice the lower quartile of the times from launch to start over all events that found their
    stream idle: what waits for other work only makes the upper half longer. Within 10 and 100 µs;
    20 µs where fewer than five events tell.
    """
    gaps = find_gaps(work, "stream")
    launch = work.tree.launch_of_gpu[gaps.after]
    launched_at = work.trace.ts[launch]
    delay = (gaps.end - launched_at)[(launch != NONE) & (launched_at >= gaps.start)]
    if len(delay) < _LATENCY_SAMPLES:
        return _LATENCY_UNKNOWN_NS
    return int(np.clip(2 * int(np.quantile(delay, 0.25)), *_LATENCY_BOUNDS_NS))


@cached_per_object
def _calls(work: GpuEvents) -> tuple[Int64Array, ...]:
    """Rows of the calls that make a stream wait, that launch, and that wait for the GPU.

    Each by thread and start. Those that wait are told by name, or copy and return after the copy.
    """
    trace = work.trace
    launch = work.tree.launch_of_gpu
    copies = np.flatnonzero(work.is_copy & work.tree.linked)
    copies = copies[trace.end_of(launch[copies]) >= work.end[copies]]
    waits, blocking = (trace.rows_named(p, *LAUNCH_KINDS) for p in (_STREAM_WAIT, _SYNCHRONISING))
    found = waits, distinct(launch[work.tree.linked]), np.union1d(blocking, launch[copies])
    order = grouping.by_group_and_time
    return tuple(rows[order(trace.thread[rows], trace.ts[rows])] for rows in found)


def blocking_calls(work: GpuEvents) -> Int64Array:
    """Rows of the calls that wait for the GPU, by thread and start."""
    return _calls(work)[2]


def _synchronising(work: GpuEvents, gaps: Gaps, thread: IntArray, begun: Int64Array) -> Int64Array:
    """The row of the synchronising call that kept each launch from coming sooner, or `NONE`."""
    trace = work.trace
    rows = blocking_calls(work)
    if not len(rows):
        return np.full(len(thread), NONE, dtype=np.int64)
    of_call = trace.thread[rows]
    begins = trace.ts[rows]
    ends = trace.end_of(rows)
    at = grouping.last_before(of_call, begins, thread, begun)
    call = grouping.running_maximum(of_call, ends)[1][at]
    inside = np.minimum(ends[call], gaps.end) - np.maximum(begins[call], gaps.start)
    runs = (begins[call] <= gaps.start) | (inside * 2 >= gaps.duration)
    return np.where((at != NONE) & (inside > 0) & runs, rows[call], NONE)


@cached_per_object
def _ends(work: GpuEvents, scope: Scope) -> tuple[Int64Array, Int64Array]:
    """The track and the end of each GPU event, by track and end, both (g,)."""
    track = find_tracks(work, scope).of_gpu
    order = grouping.by_group_and_time(track, work.end)
    return track[order], work.end[order]


def _last_end_beside(work: GpuEvents, gaps: Gaps) -> Int64Array:
    """When the last event that the device finished within each gap ended, far back without, (k,).

    What ends before a gap does ran on another stream. What ends with it may also be an event of no
    length that ended the gap itself, and for which nothing waited.
    """

    def ended(scope: Scope, until: Int64Array) -> Int64Array:
        """How many events have ended on the track of each gap, and on those before it."""
        track = find_tracks(work, scope).of_gpu[gaps.after]
        return grouping.items_before(*_ends(work, scope), track, until)

    before = ended("device", gaps.end)
    until = ended("device", gaps.end + 1)
    own = gaps.tracks.scope
    beside = until - before > ended(own, gaps.end + 1) - ended(own, gaps.end)
    last = np.where(beside, until, before) - 1
    device, end = _ends(work, "device")
    of_gap = find_tracks(work, "device").of_gpu[gaps.after]
    found = (last >= 0) & (device[last] == of_gap) & (end[last] > gaps.start)
    return np.where(found, end[last], _LONG_AGO // 2)
