"""Short kernels: their durations, and what launched them."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.kernels.kernels import ARGUMENT_COLUMNS
from tracelens_ext.analysis.operations.arguments import op_argument
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, BoolArray, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_by_labels, percent


def short_kernel_histogram(
    work: GpuEvents,
    *,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
) -> pd.DataFrame:
    """How the durations of kernels shorter than the threshold are spread, in bins of one width."""
    is_short = _is_short(work, short_kernel_threshold_us)
    duration = work.duration[is_short] / NS_PER_US
    if not len(duration):
        return pd.DataFrame({"bin_start": [], "bin_end": [], "count": []})
    count, edges = np.histogram(duration, bins=short_kernel_histogram_bins)
    return pd.DataFrame({"bin_start": edges[:-1], "bin_end": edges[1:], "count": count})


def short_kernels_summary(
    work: GpuEvents, threshold_us: float, topk: int | None = None
) -> pd.DataFrame:
    """Short kernels by the CPU op that launched them, its arguments, and their name.

    Args:
        work: the GPU events.
        threshold_us: kernels that take less time are short.
        topk: rows, those with the longest total; all by default.
    """
    op = work.tree.cpu_op_of_gpu
    keys: dict[str, tuple[IntArray, list[str]]] = {"Parent cpu_op": work.parent_op}
    for column, argument in ARGUMENT_COLUMNS.items():
        if column != "Input types":
            keys[column] = op_argument(work.trace, op, argument)
    keys["Kernel name"] = (work.name, work.trace.names)
    columns, groups = group_by_labels(
        keys=keys, duration=work.duration, chosen=_is_short(work, threshold_us)
    )
    duration = "Short Kernel duration (µs)"
    columns |= {
        f"{duration} sum": groups.total / NS_PER_US,
        "Short Kernel count": groups.count,
        f"{duration} mean": groups.total / NS_PER_US / groups.count,
        f"{duration} percent of total time": percent(groups.total, total_time_ns(work)),
    }
    frame = pd.DataFrame(columns)
    return frame if topk is None else frame.head(topk)


def _is_short(work: GpuEvents, threshold_us: float) -> BoolArray:
    return work.is_kernel & (work.duration < threshold_us * NS_PER_US)
