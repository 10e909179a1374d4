"""The sheets about kernels: by category, by operation, and the short ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import CATEGORIES, GPU_EVENTS, Sheet

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions

#: Bars of a chart of operations, and of one of kernels.
_OPERATIONS, _KERNELS = 15, 20

KERNEL_CATEGORIES = Sheet(
    name="kernel_categories",
    shows="GPU time by operation and category",
    columns="""
        cpu_op: `graph` when a graph launch started the event; else the innermost CPU op around the
            launch; else the launch's name; else `(unlinked)`
        kernel_category: of the kernel, by its name
        count [GPU events]: how many
        total_time_ms: summed duration
        % of cpu_op time: of the summed durations of the operation
        % of GPU time: of all summed durations
        kind: `kernel`, `memcpy` or `memset`
        """,
    table=lambda analyzer, _: analyzer.get_df_kernel_category_summary(),
    when=[GPU_EVENTS, CATEGORIES],
    method="get_df_kernel_category_summary()",
    charts=[
        Chart(
            "GPU time by category",
            "kernel_categories",
            "kernel_category",
            "total_time_ms",
        ),
        Chart(
            "GPU time by operation",
            "kernel_categories",
            "cpu_op",
            "total_time_ms",
            kind="stacked",
            top=_OPERATIONS,
            series_column="kernel_category",
            on="page",
        ),
    ],
)

KERNELS_BY_CATEGORY = Sheet(
    name="kernels_by_category",
    shows="GPU time by operation, category and kernel",
    columns="""
        cpu_op: `graph` when a graph launch started the event; else the innermost CPU op around the
            launch; else the launch's name; else `(unlinked)`
        kernel_category: of the kernel, by its name
        kernel_name: as the trace has it
        count [GPU events]: how many
        total_time_ms: summed duration
        avg_time_us, min_time_us, max_time_us: of a GPU event
        % of GPU time: of all summed durations
        kind: `kernel`, `memcpy` or `memset`
        """,
    table=lambda analyzer, _: analyzer.get_df_kernel_summary(),
    when=[GPU_EVENTS, CATEGORIES],
    method="get_df_kernel_summary()",
    charts=[
        Chart(
            "Top operations",
            "kernels_by_category",
            "cpu_op",
            "total_time_ms",
            kind="stacked",
            top=10,
            series_column="kernel_category",
            on="workbook",
        ),
        Chart(
            "Top kernels",
            "kernels_by_category",
            "kernel_name",
            "total_time_ms",
            kind="stacked",
            top=_KERNELS,
            series_column="kernel_category",
            on="page",
        ),
    ],
)


def _kernel_summary(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.analysis.kernels import reference_kernel_summary
    from tracelens_ext.analysis.timeline import total_time_ns

    return reference_kernel_summary(analyzer.work, total_time_ns(analyzer.work))


KERNEL_SUMMARY = Sheet(
    name="kernel_summary",
    shows="Kernels by CPU operation and stream",
    columns="""
        Parent op category: of `Parent cpu_op`; without a CPU op `graph` or `runtime`
        Parent cpu_op: the innermost CPU op around the launch; else the launch's name; else empty.
            Missing when the trace has no CPU ops
        Kernel name: as the trace has it; kernels alone, no copies, no fills
        kernel_category: of the kernel, by its name; when categories are on
        Kernel stream: the stream it ran on
        Kernel duration (µs)_sum: of all
        Kernel duration (µs)_count [kernels]: how many
        Kernel duration (µs)_mean, Kernel duration (µs)_min, Kernel duration (µs)_max: of one
        Percent of kernels time (%): of the summed durations of all kernels
        Percent of total time (%): of `total_time` of `gpu_timeline`
        """,
    table=_kernel_summary,
    asked_by="kernel_summary",
    charts=[
        Chart(
            "GPU time by operation",
            "kernel_summary",
            "Parent cpu_op",
            "Kernel duration (µs)_sum",
            top=_OPERATIONS,
            on="page",
            unless=("kernel_categories",),
        ),
        Chart(
            "Top kernels",
            "kernel_summary",
            "Kernel name",
            "Kernel duration (µs)_sum",
            top=_KERNELS,
            on="page",
            unless=("kernels_by_category",),
        ),
    ],
)


def _short_kernel_histogram(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.analysis.short_kernels import short_kernel_histogram

    return short_kernel_histogram(
        analyzer.work, options.short_kernel_threshold_us, options.short_kernel_histogram_bins
    )


SHORT_KERNEL_HISTOGRAM = Sheet(
    name="short_kernel_histogram",
    shows="Durations of short kernels",
    columns="""
        bin_start [µs]: bins of one width, from the shortest kernel on
        bin_end [µs]: at most `short_kernel_threshold_us`
        count [kernels]: how many
        """,
    table=_short_kernel_histogram,
    asked_by="short_kernel_study",
    options=["short_kernel_threshold_us", "short_kernel_histogram_bins"],
)


def _short_kernels_summary(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.analysis.short_kernels import short_kernels_summary
    from tracelens_ext.analysis.timeline import total_time_ns

    return short_kernels_summary(
        analyzer.work,
        options.short_kernel_threshold_us,
        total_time_ns(analyzer.work),
        options.topk_short_kernels,
    )


SHORT_KERNELS_SUMMARY = Sheet(
    name="short_kernels_summary",
    shows="Short kernels by operation, arguments and name",
    columns="""
        Parent cpu_op: the innermost CPU op around the launch; else the launch's name; else empty.
            Missing when the trace has no CPU ops
        Input dims, Input strides, Concrete Inputs: of that operation, tuples as text
        Kernel name: of kernels shorter than `short_kernel_threshold_us`
        Short Kernel duration (µs) sum: of all
        Short Kernel count [kernels]: how many
        Short Kernel duration (µs) mean: of one
        Short Kernel duration (µs) percent of total time: of `total_time` of `gpu_timeline`
        """,
    table=_short_kernels_summary,
    asked_by="short_kernel_study",
    options=["short_kernel_threshold_us", "topk_short_kernels"],
)
