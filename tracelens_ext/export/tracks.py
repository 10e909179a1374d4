"""The tracks of an export: which process and thread each event is drawn in.

Perfetto drops events that overlap on a thread without nesting. So a track has further lanes, which
are threads of their own, and such events go there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import GPU_KINDS, NONE, Int64Array, IntArray, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.lookup import values_at

#: Between the parts of a track's name.
_SEPARATOR = " · "
#: Lanes of a track in which events may nest; in further ones they follow one another.
_MAX_NESTING_LANES = 64


class RecordedThread(NamedTuple):
    """A thread of the export, and the thread of the trace whose events it has."""

    export_process: int
    export_thread: int
    process: int | str  #: as the trace spells it
    thread: int | str  #: as the trace spells it


@dataclass
class Tracks:
    """Numbers for processes and threads, all different, and the events that name them."""

    #: the metadata events so far, as JSON texts
    events: list[str] = field(default_factory=list)
    #: those with recorded events
    recorded: list[RecordedThread] = field(default_factory=list)
    _count: int = 0

    def process(self, *name_parts: str) -> int:
        """Return the number of a new process; empty parts of its name are left out."""
        self._count += 1
        name = _SEPARATOR.join(part for part in name_parts if part)
        self._add_name(kind="process", process=self._count, thread=0, name=name)
        return self._count

    def lanes(self, process: int, name: str, count: int) -> list[int]:
        """Return the numbers of new threads of a process: of a track and its further lanes."""
        first = self._count + 1
        self._count += count
        for lane in range(count):
            lane_name = f"{name} +{lane}" if lane else name
            self._add_name(
                kind="thread", process=process, thread=first + lane, name=lane_name
            )
        return list(range(first, first + count))

    def _add_name(self, kind: str, process: int, thread: int, name: str) -> None:
        """Add the events that name a process (whose thread is 0) or a thread, and place it."""
        values: dict[str, dict[str, object]] = {
            "name": {"name": name},
            "sort_index": {"sort_index": thread or process},
        }
        for key, value in values.items():
            event = {
                "ph": "M",
                "pid": process,
                "tid": thread,
                "ts": 0,
                "name": f"{kind}_{key}",
                "args": value,
            }
            self.events.append(json.dumps(event))


@dataclass(frozen=True, eq=False)
class Placement:
    """Where m events are drawn."""

    process: Int64Array  #: of the export, (m,)
    thread: Int64Array  #: of the export, (m,)
    lane: Int64Array  #: of its track, from 0, (m,)
    process_of_device: dict[int, int]  #: the process with the work of each GPU


class _Track(NamedTuple):
    """A track of the trace: a stream of a GPU, or a CPU thread."""

    is_gpu: bool
    thread: int  #: an index into `Trace.threads`
    device: int  #: `NONE` for a CPU thread
    stream: int


def place(
    tracks: Tracks, gpu_events: GpuEvents, rows: Int64Array, label: str, clock_note: str
) -> Placement:
    """Give events of a trace their processes and threads, after those of `tracks`.

    Args:
        tracks: those so far.
        gpu_events: of the trace.
        rows: the events, (m,).
        label: the rank of the trace in words; empty if there is only one.
        clock_note: how well its times are known beside those of others; empty to say nothing.
    """
    trace = gpu_events.trace
    distinct, track = _tracks_of(gpu_events, rows)
    lane = fit_lanes(track=track, start=trace.ts[rows], end=trace.end_of(rows))
    lane_count = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(lane_count, track, lane + 1)
    process_of_key: dict[object, int] = {}
    process_of_device: dict[int, int] = {}
    process_of_track = np.zeros_like(lane_count)
    first_thread_of_track = np.zeros_like(lane_count)
    for index, (distinct_track, count) in enumerate(
        zip(distinct, lane_count.tolist(), strict=True)
    ):
        recorded_process, recorded_thread = trace.threads[distinct_track.thread]
        key: object = (
            distinct_track.is_gpu,
            distinct_track.device if distinct_track.is_gpu else recorded_process,
        )
        if key not in process_of_key:
            name = _process_name(trace, distinct_track)
            process_of_key[key] = tracks.process(label, name, clock_note)
        process = process_of_key[key]
        threads = tracks.lanes(process, _track_name(trace, distinct_track), count)
        process_of_track[index] = process
        first_thread_of_track[index] = threads[0]
        tracks.recorded.extend(
            RecordedThread(
                export_process=process,
                export_thread=thread,
                process=recorded_process,
                thread=recorded_thread,
            )
            for thread in threads
        )
        if distinct_track.is_gpu:
            process_of_device[distinct_track.device] = process
    thread = first_thread_of_track[track] + lane
    return Placement(
        process=process_of_track[track],
        thread=thread,
        lane=lane,
        process_of_device=process_of_device,
    )


class _EventTracks(NamedTuple):
    """The tracks of some events."""

    distinct: list[_Track]
    track: Int64Array  #: of each event, an index, (m,)


def _tracks_of(gpu_events: GpuEvents, rows: Int64Array) -> _EventTracks:
    """Return the tracks of events, CPU threads first."""
    trace = gpu_events.trace
    device = np.full(len(trace), NONE, dtype=np.int64)
    stream = np.full(len(trace), NONE, dtype=np.int64)
    device[gpu_events.rows] = trace.device
    stream[gpu_events.rows] = trace.stream
    is_gpu = np.isin(trace.kind[rows], GPU_KINDS)
    keys = np.stack((is_gpu, trace.thread[rows], device[rows], stream[rows]))
    distinct, track = np.unique(keys, axis=1, return_inverse=True)
    tracks = [
        _Track(
            is_gpu=bool(on_gpu),
            thread=thread,
            device=device_number,
            stream=stream_number,
        )
        for on_gpu, thread, device_number, stream_number in distinct.T.tolist()
    ]
    return _EventTracks(tracks, track.reshape(-1))


def _process_name(trace: Trace, track: _Track) -> str:
    """Return what the process of a track is called."""
    if not track.is_gpu:
        process = trace.threads[track.thread][0]
        name = trace.process_names.get(process, "")
        if name in ("", str(process)):
            return f"process {process}"
        return f"{name} ({process})"
    if track.device == NONE:
        return "GPU"
    for device in trace.devices:
        if device.ordinal == track.device and device.name:
            return f"GPU {track.device} ({device.name})"
    return f"GPU {track.device}"


def _track_name(trace: Trace, track: _Track) -> str:
    """Return what the thread of a track is called."""
    process, thread = trace.threads[track.thread]
    if track.is_gpu:
        if track.stream != NONE:
            return f"stream {track.stream}"
        return str(thread)
    return trace.thread_names.get((process, thread)) or f"thread {thread}"


def fit_lanes(track: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the lane of each event on its track: the first that takes it.

    A lane takes an event that lies within the one that is open there, or begins after its end.
    Events are taken by start, the longest first.
    """
    lane = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((-end, start, track))
    track_begins = np.flatnonzero(np.diff(track[order])) + 1
    for events in np.split(order, track_begins):
        latest_end = np.maximum.accumulate(end[events])
        overlaps = (start[events[1:]] < latest_end[:-1]).any()
        if overlaps:  # else all of them fit in the first lane
            lane[events] = _lanes_of_track(start[events].tolist(), end[events].tolist())
    return lane


class _FurtherLanes:
    """Lanes beyond those in which events may nest: each has one event at a time."""

    def __init__(self) -> None:
        self._end_and_lane: list[tuple[int, int]] = []  # a heap

    def take(self, start: int, end: int) -> int:
        """Return the lane of an event: the one that is free the longest, or a new one."""
        heap = self._end_and_lane
        if heap and heap[0][0] <= start:
            lane = heappop(heap)[1]
        else:
            lane = _MAX_NESTING_LANES + len(heap)
        heappush(heap, (end, lane))
        return lane


def _lanes_of_track(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the lanes of the events of one track, which are in the order of `fit_lanes`."""
    # of what is open in each, the outermost first
    open_ends_of_lane: list[list[int]] = []
    further_lanes = _FurtherLanes()
    lanes = []
    for start, end in zip(starts, ends, strict=True):
        lane = _first_fitting_lane(open_ends_of_lane, start, end)
        if lane == _MAX_NESTING_LANES:
            lanes.append(further_lanes.take(start, end))
            continue
        if lane == len(open_ends_of_lane):
            open_ends_of_lane.append([])
        open_ends_of_lane[lane].append(end)
        lanes.append(lane)
    return lanes


def _first_fitting_lane(
    open_ends_of_lane: list[list[int]], start: int, end: int
) -> int:
    """Return the first lane that takes an event, and close what has ended by then."""
    for lane, open_ends in enumerate(open_ends_of_lane):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends:
            return lane
        if end <= open_ends[-1]:
            return lane
    return len(open_ends_of_lane)


def events_at_rows(gpu_events: GpuEvents, rows: Int64Array) -> Int64Array:
    """Return the index of the GPU event at each row; `NONE` for other events."""
    event_of_row = np.full(len(gpu_events.trace), NONE, dtype=np.int64)
    event_of_row[gpu_events.rows] = np.arange(len(gpu_events))
    return values_at(event_of_row, rows)
