"""How GPUs spent their time: computing, communicating, copying, idle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.coverage.coverage import idle_within, recording_of
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
    work: GpuEvents, micro_idle_thresh_us: float | None = None
) -> pd.DataFrame:
    """How the GPU spent its time, as the sheet `gpu_timeline`; no rows without GPU events.

    `micro_idle_thresh_us` splits idle time into holes up to this many µs and longer ones.
    """
    if micro_idle_thresh_us is not None and not micro_idle_thresh_us >= 0:
        given = f"micro_idle_thresh_us is {micro_idle_thresh_us}"
        raise UsageError(f"{given}; expected a time of at least 0")
    devices = _counted_by_device(work)
    records = []
    for device, is_counted in devices.items():
        times = _times_of_device(work, is_counted, micro_idle_thresh_us)
        for kind, time in times.items():
            share = _percent(time, times["total_time"])
            records.append((device, kind, time / NS_PER_MS, share))
        for part in _analyzed_parts(work, device, is_counted):
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
    whole: float  #: what the percentage is of, ns


def _analyzed_parts(work: GpuEvents, device: int, is_counted: BoolArray) -> list[_Part]:
    """Return what of the wall time of a device is analyzed, if that is not all of it.

    The wall time begins with the first dropped event, if that is before all others.
    """
    recording = recording_of(work)
    index = int(np.flatnonzero(find_tracks(work, "device").device == device)[0])
    of_device = recording.parts[recording.parts["device"] == index]
    if not len(of_device):
        return []
    dropped = of_device[of_device["kind"] == DROPPED_EVENTS]
    first_start = min([int(work.start[is_counted].min()), *dropped["start"].tolist()])
    last_end = int(work.end[is_counted].max())
    wall = last_end - first_start
    set_aside = _set_aside_within(work, of_device, first_start, last_end)
    is_warm_up = (of_device["kind"] == WARM_UP).to_numpy()
    warm_up = int(set_aside[is_warm_up].sum())
    not_recorded = int(set_aside[~is_warm_up].sum())
    analyzed = max(wall - warm_up - not_recorded, 0)
    is_analyzed = is_counted & ~recording.set_aside(work)
    busy = _divided_busy_time(work, is_analyzed)
    idle = max(analyzed - sum(busy.values()), 0)
    result = [
        _Part("not_recorded_time", not_recorded, wall),
        _Part("warm_up_time", warm_up, wall),
        _Part("analyzed_time", analyzed, wall),
    ]
    for kind, time in busy.items():
        result.append(_Part(f"analyzed_{kind}", time, analyzed))
    result.append(_Part("analyzed_busy_time", sum(busy.values()), analyzed))
    result.append(_Part("analyzed_idle_time", idle, analyzed))
    return result


def _set_aside_within(
    work: GpuEvents, parts: pd.DataFrame, first_start: int, last_end: int
) -> Int64Array:
    """Return how much time parts of a device set aside in its own wall time, ns, (p,).

    Other devices may begin before it or end after it, and parts lie in the wall of all devices.
    """
    start = parts["start"].to_numpy().clip(first_start, last_end)
    end = parts["end"].to_numpy().clip(first_start, last_end)
    idle = idle_within(
        work=work, device_index=parts["device"].to_numpy(), start=start, end=end
    )
    set_aside: Int64Array = np.where(parts["has_work"], end - start, idle)
    return set_aside


def _divided_busy_time(work: GpuEvents, is_counted: BoolArray) -> dict[str, int]:
    """Return the busy time of some GPU events by the timeline's `type`, ns."""
    communication = work.is_communication & is_counted
    copy = work.is_copy & is_counted
    computation = is_counted & ~(communication | copy)
    busy = _busy_time(work, is_counted)
    computing = _busy_time(work, computation)
    computing_or_communicating = _busy_time(work, computation | communication)
    return {
        "computation_time": computing,
        "exposed_comm_time": computing_or_communicating - computing,
        "exposed_memcpy_time": busy - computing_or_communicating,
    }


def timeline_rows_shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are shown first: where not all is analyzed, those about the rest.

    Shares of time that was not recorded would contradict the findings.
    """
    analyzed = analyzed_rows(frame)
    if not len(analyzed):
        return frame
    return analyzed


def total_time_ns(work: GpuEvents) -> int:
    """Return the time from the first start to the last end of GPU work, summed over devices, ns."""
    total = 0
    for is_counted in _counted_by_device(work).values():
        total += int(work.end[is_counted].max() - work.start[is_counted].min())
    return total


def _counted_by_device(work: GpuEvents) -> dict[int, BoolArray]:
    """Return which GPU events of each device count in the timeline, by its number."""
    device = work.trace.device
    numbers = np.unique(device[work.counted]).tolist()
    return {number: work.counted & (device == number) for number in numbers}


def _times_of_device(
    work: GpuEvents, is_counted: BoolArray, micro_idle_thresh_us: float | None
) -> dict[str, int]:
    """Return the times of the timeline of one device, ns, by their `type`.

    Args:
        work: the GPU events.
        is_counted: which of them are of the device and count, (g,); at least one.
        micro_idle_thresh_us: up to which length idle time is micro idle time; None for no split.
    """
    start = work.start[is_counted]
    end = work.end[is_counted]
    event_before, event_after = holes(start, end)
    gap = start[event_after] - end[event_before]
    total = int(end.max() - start.min())
    busy = total - int(gap.sum())
    times = _divided_busy_time(work, is_counted)
    times["busy_time"] = busy
    times["idle_time"] = total - busy
    if micro_idle_thresh_us is not None:
        is_micro = gap <= micro_idle_thresh_us * NS_PER_US
        micro_idle = int(gap[is_micro].sum())
        times["micro_idle_time"] = micro_idle
        times["macro_idle_time"] = total - busy - micro_idle
    times["total_time"] = total
    times["total_comm_time"] = _busy_time(work, work.is_communication & is_counted)
    times["total_memcpy_time"] = _busy_time(work, work.is_copy & is_counted)
    return times


def _busy_time(work: GpuEvents, chosen: BoolArray) -> int:
    return union_length(work.start[chosen], work.end[chosen])


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the column `device`, which the one of a single device lacks."""
    if "device" in table:
        return table
    return table.assign(device="")


GPU_TIMELINE = Table(
    name="gpu_timeline",
    description="How the GPU spent its time; overlaps counted once",
    columns=[
        Column("device", "if there are several, a block for each"),
        Column(
            "type",
            "`computation_time`: kernels other than communication and copies, and memsets. "
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
        Column("time ms", "busy time over all streams"),
        Column(
            "percent",
            "of `total_time`; of what is not recorded, warm-up and analyzed, of the wall time; "
            "of the parts of the analyzed time, of that",
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
            # The rows that do not overlap and add up to the total.
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
