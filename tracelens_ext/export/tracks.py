"""The tracks of an export: the process and thread in which each event is drawn.

Perfetto drops events that overlap on a thread without nesting. Such events go to further lanes of
the track, which are threads of their own.
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

#: Separates the parts of the name of a process.
_SEPARATOR = " · "
#: The number of lanes of a track in which events may nest. In further lanes, events only follow
#: one another, which is quicker to compute.
_MAX_NESTING_LANES = 64


class RecordedThread(NamedTuple):
    """A thread of the export, and the thread of the trace whose events it shows."""

    export_process: int
    export_thread: int
    process: int | str  #: the process as the trace spells it
    thread: int | str  #: the thread as the trace spells it


@dataclass
class Tracks:
    """The processes and threads of an export, all with different numbers."""

    #: JSON texts of the metadata events that name the processes and threads
    events: list[str] = field(default_factory=list)
    #: the threads that show recorded events
    recorded: list[RecordedThread] = field(default_factory=list)
    _count: int = 0

    def add_process(self, *name_parts: str) -> int:
        """Add a process and return its number; empty parts of its name are left out."""
        self._count += 1
        name = _SEPARATOR.join(part for part in name_parts if part)
        self._add_metadata(kind="process", process=self._count, thread=0, name=name)
        return self._count

    def add_lanes(self, process: int, name: str, count: int) -> list[int]:
        """Add threads to a process, for a track and its further lanes; return their numbers."""
        first = self._count + 1
        self._count += count
        for lane in range(count):
            lane_name = f"{name} +{lane}" if lane else name
            self._add_metadata(
                kind="thread", process=process, thread=first + lane, name=lane_name
            )
        return list(range(first, first + count))

    def _add_metadata(self, kind: str, process: int, thread: int, name: str) -> None:
        """Add the events that name a process (with thread 0) or a thread, and sort it."""
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

    process: Int64Array  #: the process of the export, (m,)
    thread: Int64Array  #: the thread of the export, (m,)
    lane: Int64Array  #: the lane within the track, from 0, (m,)
    process_of_device: dict[int, int]  #: device → process of the export with its work


class _Track(NamedTuple):
    """A track of the trace: a stream of a GPU, or a CPU thread."""

    is_gpu: bool
    thread: int  #: index into `Trace.threads`
    device: int  #: number of the device, `NONE` for a CPU thread
    stream: int  #: number of the stream, `NONE` for a CPU thread


def place(
    tracks: Tracks, gpu_events: GpuEvents, rows: Int64Array, label: str, clock_note: str
) -> Placement:
    """Add processes and threads for the events of a trace to the tracks of an export.

    Args:
        tracks: the tracks of the export so far.
        gpu_events: the GPU events of the trace.
        rows: rows of the events to draw, (m,).
        label: the rank of the trace, such as `rank 3`; empty if there is only one trace.
        clock_note: how exactly the times fit those of other traces, in words; empty for no note.

    Returns:
        The process, thread and lane of each event.
    """
    trace = gpu_events.trace
    distinct, track = _tracks_of(gpu_events, rows)
    lane = fit_lanes(track=track, start=trace.ts[rows], end=trace.end_of(rows))
    lane_count = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(lane_count, track, lane + 1)

    added = _AddedTracks(tracks, trace, label, clock_note)
    for distinct_track, count in zip(distinct, lane_count.tolist(), strict=True):
        added.add(distinct_track, count)
    process_of_track = np.array(added.processes, dtype=np.int64)
    first_thread_of_track = np.array(added.first_threads, dtype=np.int64)
    return Placement(
        process=process_of_track[track],
        thread=first_thread_of_track[track] + lane,
        lane=lane,
        process_of_device=added.process_of_device,
    )


class _AddedTracks:
    """Adds the tracks of a trace to the tracks of an export.

    Attributes:
        processes: the process of the export for each added track.
        first_threads: the thread of the export for the first lane of each added track.
        process_of_device: device → process of the export with its work.
    """

    def __init__(
        self, tracks: Tracks, trace: Trace, label: str, clock_note: str
    ) -> None:
        self._tracks = tracks
        self._trace = trace
        self._label = label
        self._clock_note = clock_note
        self._process_of_origin: dict[object, int] = {}
        self.processes: list[int] = []
        self.first_threads: list[int] = []
        self.process_of_device: dict[int, int] = {}

    def add(self, track: _Track, lane_count: int) -> None:
        """Add a track with its lanes, and the process that has it unless that exists."""
        recorded_process, recorded_thread = self._trace.threads[track.thread]
        process = self._process_of(track)
        name = _track_name(self._trace, track)
        threads = self._tracks.add_lanes(process, name, lane_count)
        for thread in threads:
            recorded = RecordedThread(
                export_process=process,
                export_thread=thread,
                process=recorded_process,
                thread=recorded_thread,
            )
            self._tracks.recorded.append(recorded)
        self.processes.append(process)
        self.first_threads.append(threads[0])
        if track.is_gpu:
            self.process_of_device[track.device] = process

    def _process_of(self, track: _Track) -> int:
        """Return the process for a track: one for each GPU, and one for each CPU process."""
        origin: object = ("CPU", self._trace.threads[track.thread][0])
        if track.is_gpu:
            origin = ("GPU", track.device)
        if origin not in self._process_of_origin:
            name = _process_name(self._trace, track)
            self._process_of_origin[origin] = self._tracks.add_process(
                self._label, name, self._clock_note
            )
        return self._process_of_origin[origin]


class _EventTracks(NamedTuple):
    """The tracks of m events."""

    distinct: list[_Track]
    track: Int64Array  #: index in `distinct` of the track of each event, (m,)


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
    """Return the name of the process for a track."""
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
    """Return the name of the thread for a track."""
    process, thread = trace.threads[track.thread]
    if track.is_gpu:
        if track.stream != NONE:
            return f"stream {track.stream}"
        return str(thread)
    return trace.thread_names.get((process, thread)) or f"thread {thread}"


def fit_lanes(track: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the lane of each event: the first lane of its track that the event fits in.

    An event fits in a lane if it lies within the innermost event that is running there, or if none
    is running. Events are placed by start, of equal starts the longest first.
    """
    lane = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((-end, start, track))
    track_begins = np.flatnonzero(np.diff(track[order])) + 1
    for events in np.split(order, track_begins):
        latest_end = np.maximum.accumulate(end[events])
        overlaps = (start[events[1:]] < latest_end[:-1]).any()
        if overlaps:  # otherwise all events fit in the first lane
            lane[events] = _lanes_of_track(start[events].tolist(), end[events].tolist())
    return lane


class _FurtherLanes:
    """Lanes for events that fit in none of the nesting lanes, with one event at a time each."""

    def __init__(self) -> None:
        #: the end of the last event of each lane, and the lane, as a heap: the earliest end first
        self._end_and_lane: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> int:
        """Return the lane for an event: the one that has been free the longest, or a new one."""
        heap = self._end_and_lane
        if heap and heap[0][0] <= start:
            lane = heappop(heap)[1]
        else:
            lane = _MAX_NESTING_LANES + len(heap)
        heappush(heap, (end, lane))
        return lane


def _lanes_of_track(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the lane of each event of one track; events are in the order of `fit_lanes`."""
    # For each lane, the ends of the events that are running in it, the outermost first.
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
    """Return the first lane that an event fits in; remove events that have ended by its start."""
    for lane, open_ends in enumerate(open_ends_of_lane):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends:
            return lane
        if end <= open_ends[-1]:
            return lane
    return len(open_ends_of_lane)


def events_at_rows(gpu_events: GpuEvents, rows: Int64Array) -> Int64Array:
    """Return the index of the GPU event at each row; `NONE` for a row with another event."""
    event_of_row = np.full(len(gpu_events.trace), NONE, dtype=np.int64)
    event_of_row[gpu_events.rows] = np.arange(len(gpu_events))
    return values_at(event_of_row, rows)
