"""The runtime calls of a window, and the streams and events that they wait for.

With some options, PyTorch records an event of the category `cuda_sync` for each call that
synchronizes. It tells which stream waits, which stream it waits for, and which call recorded the
CUDA event that it waits for.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    EventKind,
    Int32Array,
    Int64Array,
    runtime_calls,
)
from tracelens_ext.trace.gpu_events import GpuEvents, GpuTracks
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import by_group_and_time, last_before


class SyncTargets(NamedTuple):
    """The targets of m calls as columns (m,); `NONE` if the trace does not tell one."""

    #: the stream that waits, or that the host waits for
    waiting_track: Int64Array
    #: the stream that `waiting_track` waits for
    awaited_track: Int64Array
    #: when the awaited event was recorded, ns since the window's start
    recorded_at: Int64Array


class _SyncTarget(NamedTuple):
    """The target of one call: a row of `SyncTargets`."""

    waiting_track: int
    awaited_track: int
    recorded_at: int


_NO_TARGET: Final = _SyncTarget(NONE, NONE, NONE)


class SyncCalls:
    """The runtime calls that start in a window, by thread and time."""

    def __init__(
        self, gpu_events: GpuEvents, window: Window, tracks: GpuTracks
    ) -> None:
        trace = gpu_events.trace
        self._trace = trace
        self._window = window
        calls = trace.rows_of(*LAUNCH_KINDS)
        is_inside = (trace.ts[calls] >= window.start) & (trace.ts[calls] < window.end)
        calls = calls[is_inside]
        self._calls = calls[by_group_and_time(trace.thread[calls], trace.ts[calls])]
        self._records = self.named(runtime_calls.RECORDS_EVENT)
        self._target_of_call = self._read_sync_events(tracks)

    def named(self, pattern: re.Pattern[str]) -> Int64Array:
        """Return the rows of the calls whose names match a pattern."""
        name = self._trace.name[self._calls]
        return self._calls[self._trace.named(name, pattern.match)]

    def start_of(self, rows: Int64Array) -> Int64Array:
        """Return when calls start, ns since the window's start."""
        return self._trace.ts[rows] - self._window.start

    def end_of(self, rows: Int64Array) -> Int64Array:
        """Return when calls return, ns since the window's start."""
        return self._trace.end_of(rows) - self._window.start

    def thread_of(self, rows: Int64Array) -> Int32Array:
        """Return the threads that make calls."""
        return self._trace.thread[rows]

    def targets_of(self, rows: Int64Array) -> SyncTargets:
        """Return the targets of m calls as the trace tells them."""
        calls = self._trace.correlation[rows].tolist()
        targets = [self._target_of_call.get(call, _NO_TARGET) for call in calls]
        columns = np.array(targets, dtype=np.int64).reshape(-1, len(_NO_TARGET))
        return SyncTargets(
            waiting_track=columns[:, 0],
            awaited_track=columns[:, 1],
            recorded_at=columns[:, 2],
        )

    def record_before(self, rows: Int64Array) -> Int64Array:
        """Return when the thread of each call last recorded a CUDA event before the call.

        This is the start of the call itself if the thread recorded none.
        """
        trace = self._trace
        last_record = last_before(
            group=trace.thread[self._records],
            time=trace.ts[self._records],
            query_group=trace.thread[rows],
            query_time=trace.ts[rows],
        )
        recorded_at = values_at(self.start_of(self._records), last_record)
        return np.where(last_record == NONE, self.start_of(rows), recorded_at)

    def _read_sync_events(self, tracks: GpuTracks) -> dict[int, _SyncTarget]:
        """Return the targets in `cuda_sync` events by the correlation id of the call."""
        trace = self._trace
        is_sync = np.isin(trace.categories, runtime_calls.SYNC_CATEGORIES)
        if not is_sync.any():
            return {}
        rows = trace.rows_of(EventKind.OTHER)
        rows = rows[is_sync[trace.category[rows]]]

        streams = zip(tracks.device.tolist(), tracks.stream.tolist(), strict=True)
        track_of_stream = {stream: track for track, stream in enumerate(streams)}
        correlations_of_records = trace.correlation[self._records].tolist()
        times_of_records = self.start_of(self._records).tolist()
        recorded_at = dict(zip(correlations_of_records, times_of_records, strict=True))

        target_of_call: dict[int, _SyncTarget] = {}
        for call, device, stream, awaited_stream, record in zip(
            trace.correlation[rows].tolist(),
            trace.arg("device").at(rows).tolist(),
            trace.arg("stream").at(rows).tolist(),
            trace.arg("wait_on_stream").at(rows).tolist(),
            trace.arg("wait_on_cuda_event_record_corr_id").at(rows).tolist(),
            strict=True,
        ):
            target_of_call[call] = _SyncTarget(
                waiting_track=track_of_stream.get((device, stream), NONE),
                awaited_track=track_of_stream.get((device, awaited_stream), NONE),
                recorded_at=recorded_at.get(record, NONE),
            )
        return target_of_call
