"""The table of how GPUs spent their time: computing, communicating, copying or idle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.coverage.coverage import coverage_of, idle_within
from tracelens_ext.analysis.coverage.part_kinds import DROPPED_EVENTS, WARM_UP
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.timeline_rows import analyzed_rows
from tracelens_ext.report.tables.views import AnswerView
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks, holes
from tracelens_ext.trace.intervals import union_length


def gpu_timeline(
    gpu_events: GpuEvents, micro_idle_thresh_us: float | None = None
) -> pd.DataFrame:
    """Return how each GPU spent its time, as the sheet `gpu_timeline`.

    The table has no rows if the trace has no GPU events.

    Args:
        gpu_events: the GPU events.
        micro_idle_thresh_us: splits the idle time into gaps up to this length and longer gaps, µs;
            None for no split.

    Raises:
        UsageError: the threshold is negative.
    """
    if micro_idle_thresh_us is not None and not micro_idle_thresh_us >= 0:
        given = f"micro_idle_thresh_us is {micro_idle_thresh_us}"
        raise UsageError(f"{given}; expected a time of at least 0")
    devices = _counted_by_device(gpu_events)
    records = []
    for device, is_counted in devices.items():
        times = _times_of_device(gpu_events, is_counted, micro_idle_thresh_us)
        for kind, time in times.items():
            share = _percent(time, times["total_time"])
            records.append((device, kind, time / NS_PER_MS, share))
        for part in _analyzed_parts(gpu_events, device, is_counted):
            share = _percent(part.time, part.whole)
            records.append((device, part.kind, part.time / NS_PER_MS, share))
    frame = pd.DataFrame(records, columns=["device", "type", "time ms", "percent"])
    if len(devices) < 2:
        return frame.drop(columns="device")
    return frame


def _percent(time: float, whole: float) -> float:
    if not time or not whole:
        return 0.0
    return 100.0 * time / whole


class _Part(NamedTuple):
    """A part of the wall time of a device."""

    kind: str  #: the `type` in the table
    time: float  #: ns
    whole: float  #: the time that the percentage refers to, ns


def _analyzed_parts(
    gpu_events: GpuEvents, device: int, is_counted: BoolArray
) -> list[_Part]:
    """Return the analyzed parts of a device's wall time; an empty list if all of it is analyzed.

    The wall time begins with the first GPU event, or with dropped events before it.

    Args:
        gpu_events: the GPU events.
        device: the number of the device.
        is_counted: marks the GPU events of the device that count, (g,).
    """
    recording = coverage_of(gpu_events)
    devices = find_tracks(gpu_events, "device").device
    device_index = int(np.flatnonzero(devices == device)[0])
    parts_of_device = recording.parts[recording.parts["device"] == device_index]
    if not len(parts_of_device):
        return []
    dropped = parts_of_device[parts_of_device["kind"] == DROPPED_EVENTS]
    starts = [int(gpu_events.start[is_counted].min())] + dropped["start"].tolist()
    first_start = min(starts)
    last_end = int(gpu_events.end[is_counted].max())
    wall = last_end - first_start
    set_aside = _set_aside_within(gpu_events, parts_of_device, first_start, last_end)
    is_warm_up = (parts_of_device["kind"] == WARM_UP).to_numpy()
    warm_up = int(set_aside[is_warm_up].sum())
    not_recorded = int(set_aside[~is_warm_up].sum())
    analyzed = max(wall - warm_up - not_recorded, 0)
    is_analyzed = is_counted & ~recording.is_set_aside(gpu_events)
    busy = _divided_busy_time(gpu_events, is_analyzed)
    idle = max(analyzed - sum(busy.values()), 0)
    parts = [
        _Part("not_recorded_time", not_recorded, wall),
        _Part("warm_up_time", warm_up, wall),
        _Part("analyzed_time", analyzed, wall),
    ]
    for kind, time in busy.items():
        parts.append(_Part(f"analyzed_{kind}", time, analyzed))
    parts.append(_Part("analyzed_busy_time", sum(busy.values()), analyzed))
    parts.append(_Part("analyzed_idle_time", idle, analyzed))
    return parts


def _set_aside_within(
    gpu_events: GpuEvents, parts: pd.DataFrame, first_start: int, last_end: int
) -> Int64Array:
    """Return the time that each part of the recording sets aside in a device's wall time, ns, (p,).

    Parts are cut to the wall time of the device, as they may also cover the time of other devices
    that begin earlier or end later.
    """
    start = parts["start"].to_numpy().clip(first_start, last_end)
    end = parts["end"].to_numpy().clip(first_start, last_end)
    idle = idle_within(
        gpu_events=gpu_events,
        device_index=parts["device"].to_numpy(),
        start=start,
        end=end,
    )
    set_aside: Int64Array = np.where(parts["has_work"], end - start, idle)
    return set_aside


def _divided_busy_time(gpu_events: GpuEvents, is_counted: BoolArray) -> dict[str, int]:
    """Return the busy time of GPU events by the timeline's `type`, ns.

    Communication is exposed where there is no computation at the same time, and a copy where there
    is neither computation nor communication.
    """
    is_communication = gpu_events.is_communication & is_counted
    is_copy = gpu_events.is_copy & is_counted
    is_computation = is_counted & ~(is_communication | is_copy)
    busy = _busy_time(gpu_events, is_counted)
    computing = _busy_time(gpu_events, is_computation)
    computing_or_communicating = _busy_time(
        gpu_events, is_computation | is_communication
    )
    return {
        "computation_time": computing,
        "exposed_comm_time": computing_or_communicating - computing,
        "exposed_memcpy_time": busy - computing_or_communicating,
    }


def timeline_rows_shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a report shows first: those of the analyzed time, if there are any.

    Shares of a wall time that was not recorded completely would contradict the findings.
    """
    analyzed = analyzed_rows(frame)
    if not len(analyzed):
        return frame
    return analyzed


def total_time_ns(gpu_events: GpuEvents) -> int:
    """Return the time from first start to last end of GPU events, summed over devices, ns."""
    total = 0
    for is_counted in _counted_by_device(gpu_events).values():
        total += int(
            gpu_events.end[is_counted].max() - gpu_events.start[is_counted].min()
        )
    return total


def _counted_by_device(gpu_events: GpuEvents) -> dict[int, BoolArray]:
    """Return device number → mask of the device's GPU events that count in the timeline, (g,)."""
    device = gpu_events.trace.device
    numbers = np.unique(device[gpu_events.counted]).tolist()
    return {number: gpu_events.counted & (device == number) for number in numbers}


def _times_of_device(
    gpu_events: GpuEvents, is_counted: BoolArray, micro_idle_thresh_us: float | None
) -> dict[str, int]:
    """Return the times of one device by the timeline's `type`, ns.

    Args:
        gpu_events: the GPU events.
        is_counted: marks the GPU events of the device that count, at least one, (g,).
        micro_idle_thresh_us: the maximum length of a gap of micro idle time, µs; None for no split.
    """
    start = gpu_events.start[is_counted]
    end = gpu_events.end[is_counted]
    event_before, event_after = holes(start, end)
    gap = start[event_after] - end[event_before]
    total = int(end.max() - start.min())
    busy = total - int(gap.sum())
    times = _divided_busy_time(gpu_events, is_counted)
    times["busy_time"] = busy
    times["idle_time"] = total - busy
    if micro_idle_thresh_us is not None:
        is_micro = gap <= micro_idle_thresh_us * NS_PER_US
        micro_idle = int(gap[is_micro].sum())
        times["micro_idle_time"] = micro_idle
        times["macro_idle_time"] = total - busy - micro_idle
    times["total_time"] = total
    times["total_comm_time"] = _busy_time(
        gpu_events, gpu_events.is_communication & is_counted
    )
    times["total_memcpy_time"] = _busy_time(gpu_events, gpu_events.is_copy & is_counted)
    return times


def _busy_time(gpu_events: GpuEvents, chosen: BoolArray) -> int:
    return union_length(gpu_events.start[chosen], gpu_events.end[chosen])


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a column `device`, which the table of a single device lacks."""
    if "device" in table:
        return table
    return table.assign(device="")


GPU_TIMELINE = Table(
    name="gpu_timeline",
    description="How the GPU spent its time, with overlapping work counted once",
    columns=[
        Column(
            "device",
            "number of the device; present only if there are several, which "
            "have a block of rows each",
        ),
        Column(
            "type",
            "the part of the time that the row is about. `computation_time`: kernels other "
            "than communication, and memsets. "
            "`exposed_comm_time`: communication not hidden by computation. "
            "`exposed_memcpy_time`: copies hidden by neither computation nor communication. "
            "`busy_time`: all of these. `idle_time`: the rest; with `micro_idle_thresh_us`, "
            "also split into `micro_idle_time` (gaps up to that length) and "
            "`macro_idle_time`. "
            "`total_time`: first start to last end. `total_comm_time`, `total_memcpy_time`: "
            "hidden or not. If only part of the wall time is analyzed, also "
            "`not_recorded_time`, `warm_up_time`, `analyzed_time`, and the parts of the "
            "analyzed time (`analyzed_busy_time`, `analyzed_idle_time` …).",
        ),
        Column(
            "time ms",
            "time of the type; work that overlaps on several streams counts once",
        ),
        Column(
            "percent",
            "share of `total_time`; for what is not recorded, warm-up and "
            "analyzed, of the wall time; for the parts of the analyzed time, "
            "of the analyzed time",
        ),
    ],
    build=of_gpu_events(gpu_timeline),
    options=["micro_idle_thresh_us"],
    answer=AnswerView(
        title="GPU timeline",
        columns=("type", "time ms", "percent", "device"),
        choose_rows=timeline_rows_shown,
    ),
    charts=[
        Chart(
            title="GPU timeline",
            sheet="gpu_timeline",
            label_column="device",
            value_column="time ms",
            kind="stacked",
            # These times do not overlap, and add up to the total time.
            series_column="type",
            only=(
                "computation_time",
                "exposed_comm_time",
                "exposed_memcpy_time",
                "idle_time",
            ),
            prepare=_with_device,
            on="workbook",
        ),
        Chart(
            title="GPU timeline",
            sheet="gpu_timeline",
            label_column="type",
            value_column="percent",
            kind="timeline",
            on="page",
        ),
    ],
)
