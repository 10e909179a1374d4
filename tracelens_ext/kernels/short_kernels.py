"""Short kernels: where launch overhead may cost more than the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.operations.arguments import op_argument
from tracelens_ext.tables.short_names import with_short_names
from tracelens_ext.tables.table import Table
from tracelens_ext.timeline.timeline import total_time_ns
from tracelens_ext.tree import UNLINKED
from tracelens_ext.work.grouping import group_durations, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace import IntArray
    from tracelens_ext.work.gpu_work import GpuWork

#: Column of the table → argument of the CPU op.
_ARGUMENTS = {
    "Input dims": "Input Dims",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


def short_kernel_histogram(work: GpuWork, threshold_us: float, bins: int) -> pd.DataFrame:
    """How the durations of kernels shorter than the threshold are spread, in bins of one width.

    Returns:
        Columns `bin_start`, `bin_end` (µs), `count`. No rows without short kernels.
    """
    duration = work.duration[_short(work, threshold_us)] / 1e3
    if not len(duration):
        return pd.DataFrame({"bin_start": [], "bin_end": [], "count": []})
    count, edges = np.histogram(duration, bins=bins)
    return pd.DataFrame({"bin_start": edges[:-1], "bin_end": edges[1:], "count": count})


def short_kernels_summary(
    work: GpuWork, threshold_us: float, total_time_ns: int, topk: int | None = None
) -> pd.DataFrame:
    """Short kernels by the CPU op that launched them, its arguments, and their name.

    Returns:
        Columns as the sheet `short_kernels_summary`.
    """
    chosen = np.flatnonzero(_short(work, threshold_us))
    op, labels = work.parent_op
    arguments = {
        column: op_argument(work.trace, work.tree.cpu_op_of_gpu, name)
        for column, name in _ARGUMENTS.items()
    }
    keys: list[IntArray] = [
        op[chosen],
        *(code[chosen] for code, _ in arguments.values()),
        work.name[chosen],
    ]
    groups = group_durations(keys, work.duration[chosen])
    total_us = groups.total / 1e3
    frame = pd.DataFrame(
        {
            "Parent cpu_op": texts(groups.keys[0], labels),
            **{
                column: texts(groups.keys[i], shown)
                for i, (column, (_, shown)) in enumerate(arguments.items(), start=1)
            },
            "Kernel name": texts(groups.keys[4], work.trace.names),
            "Short Kernel duration (µs) sum": total_us,
            "Short Kernel count": groups.count,
            "Short Kernel duration (µs) mean": total_us / np.maximum(groups.count, 1),
            "Short Kernel duration (µs) percent of total time": percent(
                groups.total, total_time_ns
            ),
        }
    )
    return frame.head(topk) if topk is not None else frame


def _short(work: GpuWork, threshold_us: float) -> np.ndarray:
    return work.is_kernel & (work.duration < threshold_us * 1000)


def _short_kernel_histogram(
    analyzer: TreePerfAnalyzer,
    *,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
) -> pd.DataFrame:
    """Durations of short kernels."""
    return short_kernel_histogram(
        analyzer.work, short_kernel_threshold_us, short_kernel_histogram_bins
    )


def _short_kernels_summary(
    analyzer: TreePerfAnalyzer,
    *,
    short_kernel_threshold_us: float = 10,
    topk_short_kernels: int | None = None,
    tracelens_sheets: bool = False,
) -> pd.DataFrame:
    """Short kernels by operation, arguments and name."""
    table = short_kernels_summary(
        analyzer.work, short_kernel_threshold_us, total_time_ns(analyzer.work), topk_short_kernels
    )
    if tracelens_sheets:
        return table
    if "Parent cpu_op" in table:
        table["Parent cpu_op"] = table["Parent cpu_op"].replace("", UNLINKED)
    return with_short_names(table, "Kernel name")


TABLES = [
    Table(
        name="short_kernel_histogram",
        shows="Durations of short kernels",
        columns="""
            bin_start [µs]: bins of one width, from the shortest kernel on
            bin_end [µs]: at most `short_kernel_threshold_us`
            count [kernels]: how many
            """,
        table=_short_kernel_histogram,
        asked_by="short_kernel_study",
    ),
    Table(
        name="short_kernels_summary",
        shows="Short kernels by operation, arguments and name",
        columns="""
            Parent cpu_op: the innermost CPU op around the launch; else the launch's name; else
                empty. Missing when the trace has no CPU ops
            kernel: a short name, which tells it from the others of the sheet; not with
                `tracelens_sheets=True`
            Input dims, Input strides, Concrete Inputs: of that operation, tuples as text
            Kernel name: of kernels shorter than `short_kernel_threshold_us`
            Short Kernel duration (µs) sum: of all
            Short Kernel count [kernels]: how many
            Short Kernel duration (µs) mean: of one
            Short Kernel duration (µs) percent of total time: of `total_time` of `gpu_timeline`
            """,
        table=_short_kernels_summary,
        asked_by="short_kernel_study",
    ),
]
