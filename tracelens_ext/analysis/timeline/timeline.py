"""How GPUs spent their time: computing, communicating, copying, idle."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, BoolArray
from tracelens_ext.trace.gpu_events import GpuEvents, holes
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
        total = times["total_time"]
        for kind, time in times.items():
            share = 100.0 * time / total if time else 0.0
            records.append((device, kind, time / NS_PER_MS, share))
    frame = pd.DataFrame(records, columns=["device", "type", "time ms", "percent"])
    if len(devices) < 2:
        return frame.drop(columns="device")
    return frame


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
    communication = work.is_communication & is_counted
    copy = work.is_copy & is_counted
    computation = is_counted & ~(communication | copy)
    start = work.start[is_counted]
    end = work.end[is_counted]
    event_before, event_after = holes(start, end)
    gap = start[event_after] - end[event_before]
    total = int(end.max() - start.min())
    busy = total - int(gap.sum())
    computing = _busy_time(work, computation)
    computing_or_communicating = _busy_time(work, computation | communication)
    times = {
        "computation_time": computing,
        "exposed_comm_time": computing_or_communicating - computing,
        "exposed_memcpy_time": busy - computing_or_communicating,
        "busy_time": busy,
        "idle_time": total - busy,
    }
    if micro_idle_thresh_us is not None:
        is_micro = gap <= micro_idle_thresh_us * NS_PER_US
        micro_idle = int(gap[is_micro].sum())
        times["micro_idle_time"] = micro_idle
        times["macro_idle_time"] = total - busy - micro_idle
    times["total_time"] = total
    times["total_comm_time"] = _busy_time(work, communication)
    times["total_memcpy_time"] = _busy_time(work, copy)
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
    shows="How the GPU spent its time; overlaps counted once",
    columns=[
        Column("device", "if there are several, a block for each"),
        Column(
            "type",
            "`computation_time`: kernels other than communication and copies, and "
            "memsets. `exposed_comm_time`: communication not hidden by computation. "
            "`exposed_memcpy_time`: copies hidden by neither computation nor "
            "communication. `busy_time`: all of these. `idle_time`: the rest; with "
            "`micro_idle_thresh_us`, also split into `micro_idle_time` (gaps up to "
            "that length) and `macro_idle_time`. `total_time`: first start to last "
            "end. `total_comm_time`, `total_memcpy_time`: hidden or not.",
        ),
        Column("time ms", "busy time over all streams"),
        Column("percent", "of `total_time`"),
    ],
    table=of_gpu_events(gpu_timeline),
    options=["micro_idle_thresh_us"],
    answer="GPU timeline",
    answer_columns=("type", "time ms", "percent", "device"),
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
