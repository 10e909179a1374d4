"""The GPU timeline: computing, communicating, copying, idle; overlaps counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.intervals import gaps, union_length
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray
    from tracelens_ext.work.gpu_work import GpuWork


def gpu_timeline(work: GpuWork, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
    """How the GPU spent its time.

    Args:
        work: the GPU events.
        micro_idle_thresh_us: when given, idle time is also split into holes no longer than this
            (`micro_idle_time`) and longer ones (`macro_idle_time`).

    Returns:
        Columns as the sheet `gpu_timeline`. No rows without GPU events.

    Raises:
        UsageError: the threshold is negative, or no number.
    """
    if micro_idle_thresh_us is not None and not micro_idle_thresh_us >= 0:
        raise UsageError(
            f"micro_idle_thresh_us is {micro_idle_thresh_us}; expected a time of at least 0"
        )
    device = work.trace.device
    present = np.unique(device[work.counted])
    blocks = [
        (int(number), _timeline_of(work, work.counted & (device == number), micro_idle_thresh_us))
        for number in present
    ]
    records = [
        {"device": number, "type": kind, "time ms": time / NS_PER_MS, "percent": percent}
        for number, times in blocks
        for kind, time, percent in times
    ]
    frame = pd.DataFrame(records, columns=["device", "type", "time ms", "percent"])
    return frame if len(present) > 1 else frame.drop(columns="device")


def _timeline_of(
    work: GpuWork, chosen: BoolArray, micro_idle_thresh_us: float | None
) -> list[tuple[str, int, float]]:
    def length(part: BoolArray) -> int:
        part = part & chosen
        return union_length(work.start[part], work.end[part])

    communication, copy = work.is_communication, work.is_copy
    computation = ~(communication | copy)
    start, end = work.start[chosen], work.end[chosen]
    total = int(end.max() - start.min())
    computing, busy = length(computation), length(chosen)
    computing_or_communicating = length(computation | communication)
    times = {
        "computation_time": computing,
        "exposed_comm_time": computing_or_communicating - computing,
        "exposed_memcpy_time": busy - computing_or_communicating,
        "busy_time": busy,
        "idle_time": total - busy,
    }
    if micro_idle_thresh_us is not None:
        idle = gaps(start, end)
        micro = int(idle[idle <= micro_idle_thresh_us * 1000].sum())
        times |= {"micro_idle_time": micro, "macro_idle_time": total - busy - micro}
    times |= {
        "total_time": total,
        "total_comm_time": length(communication),
        "total_memcpy_time": length(copy),
    }
    return [(kind, time, 100.0 * time / total if total else 0.0) for kind, time in times.items()]


def total_time_ns(work: GpuWork) -> int:
    """First start to last end of GPU work, summed over the devices, ns."""
    device = work.trace.device
    chosen = [work.counted & (device == number) for number in np.unique(device[work.counted])]
    return sum(int(work.end[part].max() - work.start[part].min()) for part in chosen)
