"""Short kernels: the histogram of their durations, and the operations that launched them."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.kernels.kernel_events import ARGUMENT_COLUMNS
from tracelens_ext.analysis.operations.arguments import op_argument
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, BoolArray, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_by_labels, percent


def short_kernel_histogram(
    gpu_events: GpuEvents,
    *,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
) -> pd.DataFrame:
    """Return a histogram of the durations of kernels shorter than the threshold.

    The bins have equal width and reach from the shortest to the longest of these kernels.
    """
    is_short = _is_short(gpu_events, short_kernel_threshold_us)
    duration = gpu_events.duration[is_short] / NS_PER_US
    if not len(duration):
        return pd.DataFrame({"bin_start": [], "bin_end": [], "count": []})
    count, edges = np.histogram(duration, bins=short_kernel_histogram_bins)
    return pd.DataFrame({"bin_start": edges[:-1], "bin_end": edges[1:], "count": count})


def short_kernels_summary(
    gpu_events: GpuEvents, threshold_us: float, topk: int | None = None
) -> pd.DataFrame:
    """Return short kernels by CPU op, arguments of the op, and kernel name, longest total first.

    Args:
        gpu_events: the GPU events.
        threshold_us: kernels that take less time than this are short, µs.
        topk: the number of rows to return; None for all.
    """
    op = gpu_events.tree.cpu_op_of_gpu
    keys: dict[str, tuple[IntArray, list[str]]] = {
        "Parent cpu_op": gpu_events.parent_op
    }
    for column, argument in ARGUMENT_COLUMNS.items():
        if column != "Input types":
            keys[column] = op_argument(gpu_events.trace, op, argument)
    keys["Kernel name"] = (gpu_events.name, gpu_events.trace.names)
    columns, groups = group_by_labels(
        keys=keys,
        duration=gpu_events.duration,
        chosen=_is_short(gpu_events, threshold_us),
    )
    total_us = groups.total / NS_PER_US
    percent_of_total = percent(groups.total, total_time_ns(gpu_events))
    columns |= {
        "Short Kernel duration (µs) sum": total_us,
        "Short Kernel count": groups.count,
        "Short Kernel duration (µs) mean": total_us / groups.count,
        "Short Kernel duration (µs) percent of total time": percent_of_total,
    }
    frame = pd.DataFrame(columns)
    if topk is None:
        return frame
    return frame.head(topk)


def _is_short(gpu_events: GpuEvents, threshold_us: float) -> BoolArray:
    return gpu_events.is_kernel & (gpu_events.duration < threshold_us * NS_PER_US)
