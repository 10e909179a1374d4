"""Time in which a device ran work that is not in the file, or that has a wrong end.

Three detectors look for it: `dropped_event_parts`, `pre_recording_parts` and `suspect_parts`. Each
returns a table of parts, as described in `coverage.Coverage`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.part_kinds import DROPPED_EVENTS, PRE_RECORDING
from tracelens_ext.analysis.coverage.suspects import find_suspects
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.launches import Launches
from tracelens_ext.trace.lookup import values_at

#: Any recording has single launches that lost their GPU event or started nothing. Only a run of at
#: least this many counts as dropped events.
_FEWEST_LOST_IN_A_ROW: Final = 10
#: The number of first events of a device that may have waited for work of before the recording.
_FIRST_EVENTS: Final = 10
#: Such a wait is at least this long, in ns and as a share of the wall time.
_LEAST_WAIT_NS = 200_000
_LEAST_WAIT_SHARE = 0.05
_NEVER: Final = np.iinfo(np.int64).max


class _LostRuns(NamedTuple):
    """Runs of consecutive launches of one device that have no GPU event, r of them."""

    first: Int64Array  #: rows of the first launch of each run, (r,)
    #: rows of the launch with GPU work that follows the run, (r,)
    next_recorded: Int64Array
    launch_count: Int64Array  #: number of launches in each run, (r,)


class _Spans(NamedTuple):
    """Spans of time, ns since the trace's first event."""

    start: Int64Array
    end: Int64Array


def dropped_event_parts(
    gpu_events: GpuEvents, launches: Launches, device_index: int
) -> pd.DataFrame:
    """Return the time in which a device ran work whose events were dropped."""
    runs = _runs_of_lost_launches(launches, device_index)
    spans = _time_of_lost_work(gpu_events, device_index, runs)
    parts = pd.DataFrame(
        {
            "kind": DROPPED_EVENTS,
            "device": device_index,
            "start": spans.start,
            "end": spans.end,
            "row": runs.first,
            "count": runs.launch_count,
        }
    )
    parts = parts[parts["end"] > parts["start"]]
    texts = [_lost_launches_text(count) for count in parts["count"].tolist()]
    return parts.assign(what=texts)


def _runs_of_lost_launches(launches: Launches, device_index: int) -> _LostRuns:
    """Return the runs of lost launches that are long enough to count as dropped events.

    A run counts if it has at least `_FEWEST_LOST_IN_A_ROW` launches or launches a graph, and if a
    launch with GPU work follows. Without one, the end of the recording cut the work off.
    """
    is_of_device = launches.device_index == device_index
    rows = launches.rows[is_of_device]
    runs = _runs_of(launches.lost[is_of_device])
    is_graph = launches.is_graph[is_of_device]
    # Graphs in a run: the running count of graphs at its end less the count at its start.
    graphs_before = np.append(0, np.cumsum(is_graph))
    has_graph = graphs_before[runs.end] > graphs_before[runs.start]
    launch_count = runs.end - runs.start
    is_long = launch_count >= _FEWEST_LOST_IN_A_ROW
    is_followed = runs.end < len(rows)
    is_dropped = (is_long | has_graph) & is_followed
    return _LostRuns(
        first=rows[runs.start[is_dropped]],
        next_recorded=rows[runs.end[is_dropped]],
        launch_count=launch_count[is_dropped],
    )


class _IndexRuns(NamedTuple):
    """Runs of consecutive indices."""

    start: Int64Array  #: the first index of each run
    end: Int64Array  #: the index after the last one of each run


def _runs_of(mask: BoolArray) -> _IndexRuns:
    """Return the runs in which a mask is True.

    For `[False, True, True, False, True]` these are 1 to 3 and 4 to 5.
    """
    changes = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return _IndexRuns(start=changes[::2], end=changes[1::2])


def _lost_launches_text(count: int) -> str:
    return f"{count:,} {'launch' if count == 1 else 'launches'} without GPU work"


def _time_of_lost_work(
    gpu_events: GpuEvents, device_index: int, runs: _LostRuns
) -> _Spans:
    """Return the time in which the lost work of each run must have run on its device.

    The time starts when the device has finished everything that was launched before the run, and
    when the first launch of the run has begun. It ends when work that was launched after the run
    starts. Other streams may start such work early, while the lost work still runs. So only the
    stream that gets most of the work of the launching thread decides about the end.
    """
    trace = gpu_events.trace
    is_of_device = find_tracks(gpu_events, "device").of_gpu == device_index
    events = np.flatnonzero(is_of_device & gpu_events.tree.linked)
    launch_time = trace.ts[gpu_events.tree.launch_of_gpu[events]]
    by_launch_time = np.argsort(launch_time, kind="stable")
    events = events[by_launch_time]
    launch_time = launch_time[by_launch_time]
    launch_thread = trace.thread[gpu_events.tree.launch_of_gpu[events]]
    stream = find_tracks(gpu_events, "stream").of_gpu[events]

    first_launch_time = trace.ts[runs.first]
    # Item i: when the i events that were launched first have all ended.
    latest_end = np.maximum.accumulate(np.append(0, gpu_events.end[events]))
    events_before = np.searchsorted(launch_time, first_launch_time)
    start = np.maximum(first_launch_time, latest_end[events_before])

    end = start.copy()  # a thread without later work leaves an empty span
    thread_of_run = trace.thread[runs.first]
    for thread in np.unique(thread_of_run).tolist():
        is_of_thread = launch_thread == thread
        streams_of_thread = stream[is_of_thread] if is_of_thread.any() else stream
        main_stream = np.bincount(streams_of_thread).argmax()
        is_on_main_stream = stream == main_stream
        event_start = gpu_events.start[events[is_on_main_stream]]
        # Item i: the earliest start of event i and of those that were launched after it.
        earliest_start = np.minimum.accumulate(event_start[::-1])[::-1]
        runs_of_thread = np.flatnonzero(thread_of_run == thread)
        next_launch_time = trace.ts[runs.next_recorded[runs_of_thread]]
        next_event = np.searchsorted(launch_time[is_on_main_stream], next_launch_time)
        end[runs_of_thread] = values_at(earliest_start, next_event, missing=0)
    return _Spans(start, end)


def pre_recording_parts(
    gpu_events: GpuEvents, device_index: int, wall_ns: int
) -> pd.DataFrame:
    """Return the time in which a device ran work that was launched before the recording began.

    Such work is not in the file, but the first events of the device had to wait for it: they start
    long after their launch has returned, while no recorded work runs.

    Args:
        gpu_events: the GPU events.
        device_index: index into the tracks of devices.
        wall_ns: length of the wall time, ns.
    """
    events = np.flatnonzero(find_tracks(gpu_events, "device").of_gpu == device_index)
    by_start = np.argsort(gpu_events.start[events], kind="stable")
    events = events[by_start][:_FIRST_EVENTS]
    launch = gpu_events.tree.launch_of_gpu[events]
    launch_returned = np.where(launch == NONE, _NEVER, gpu_events.trace.end_of(launch))
    # Item i: when all events before event i have ended.
    previous_end = np.append(gpu_events.start.min(), gpu_events.end[events])[:-1]
    latest_end = np.maximum.accumulate(previous_end)
    wait_start = np.maximum(latest_end, launch_returned)
    wait_end = gpu_events.start[events]
    least_wait_ns = max(_LEAST_WAIT_NS, int(_LEAST_WAIT_SHARE * wall_ns))
    # The difference is only safe for events that waited: `_NEVER` would overflow.
    waiting = np.flatnonzero(wait_start < wait_end)
    is_long = wait_end[waiting] - wait_start[waiting] > least_wait_ns
    waiting = waiting[is_long]
    return pd.DataFrame(
        {
            "kind": PRE_RECORDING,
            "device": device_index,
            "start": wait_start[waiting],
            "end": wait_end[waiting],
            "row": launch[waiting],
            "count": 1,
            "what": "work that was launched before the recording began",
        }
    )


def suspect_parts(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the time of the GPU events whose recorded end cannot be right."""
    suspects = find_suspects(gpu_events)
    if not len(suspects.event):
        return pd.DataFrame()
    launch = gpu_events.tree.launch_of_gpu[suspects.event]
    return pd.DataFrame(
        {
            "kind": DROPPED_EVENTS,
            "device": find_tracks(gpu_events, "device").of_gpu[suspects.event],
            "start": gpu_events.start[suspects.event],
            "end": gpu_events.end[suspects.event],
            "row": np.where(launch == NONE, gpu_events.rows[suspects.event], launch),
            "count": suspects.lost_launches,
            "what": "an event that ends too late, over launches without GPU work",
            "has_work": True,
        }
    )
