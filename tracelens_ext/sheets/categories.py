"""The sheets by kernel category: of all, by operation, and kernel by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.kernels.kernels import kernel_names
from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.report.short_names import with_short_names
from tracelens_ext.sheets.sheet import CATEGORIES, GPU_EVENTS, Condition, Sheet

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions


KERNELS_WANTED = Condition(
    "categories are on, or `tracelens_sheets=False`",
    lambda analyzer, options: analyzer.work.categories is not None or not options.tracelens_sheets,
)


def _kernels(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    table = with_short_names(analyzer.get_df_kernel_summary(detail=True))
    described = [column.name for column in KERNELS_BY_CATEGORY.described_columns()]
    return table[[name for name in described if name in table]]


def _kernel_names(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    table = with_short_names(kernel_names(analyzer.work))
    described = [column.name for column in KERNELS.described_columns()]
    return table[[name for name in described if name in table]]


KERNELS = Sheet(
    name="kernels",
    shows="GPU time by kernel",
    columns="""
        kernel: a short name, which tells it from the others of the sheet
        total_time_ms: summed duration
        % of GPU time: of all summed durations
        kernel_category: of the kernel, by its name; of several the one with the most time
        operations: that launched it, as `cpu_op` of `kernels_by_category`; the three with the most
            time
        count [GPU events]: how many
        avg_time_us, min_time_us, max_time_us: of a GPU event
        kind: `kernel`, `memcpy` or `memset`
        kernel_name: as the trace has it
        """,
    table=_kernel_names,
    when=[GPU_EVENTS, KERNELS_WANTED],
    answer="Top kernels",
    answer_columns=(
        *("kernel", "total_time_ms", "% of GPU time", "operations", "count", "kernel_category"),
    ),
)

GPU_TIME_BY_CATEGORY = Sheet(
    name="gpu_time_by_category",
    shows="GPU time by category",
    columns="""
        kernel_category: of the kernel, by its name
        count [GPU events]: how many
        total_time_ms: summed duration
        avg_time_us: of a GPU event
        kernel_names [names]: distinct ones
        % of GPU time: of all summed durations
        """,
    table=lambda analyzer, _: analyzer.get_df_gpu_time_by_category(),
    when=[GPU_EVENTS, CATEGORIES],
    method="get_df_gpu_time_by_category()",
    answer="GPU time by category",
    answer_columns=("kernel_category", "total_time_ms", "% of GPU time"),
    charts=[
        Chart("GPU time by category", "gpu_time_by_category", "kernel_category", "total_time_ms")
    ],
)

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
            "GPU time by operation",
            "kernel_categories",
            "cpu_op",
            "total_time_ms",
            kind="stacked",
            top=15,
            series_column="kernel_category",
            on="page",
        ),
    ],
)

KERNELS_BY_CATEGORY = Sheet(
    name="kernels_by_category",
    shows="GPU time by operation, category and kernel",
    columns="""
        kernel: a short name, which tells it from the others of the sheet
        kernel_category: of the kernel, by its name
        cpu_op: `graph` when a graph launch started the event; else the innermost CPU op around the
            launch; else the launch's name; else `(unlinked)`
        op category: of the innermost CPU op; without one `graph` or `runtime`
        is_recompute: whether the backward ran it again (activation checkpointing); only where it
            did
        count [GPU events]: how many
        total_time_ms: summed duration
        % of GPU time: of all summed durations
        % of total time: of `total_time` of `gpu_timeline`
        avg_time_us, min_time_us, max_time_us: of a GPU event
        kind: `kernel`, `memcpy` or `memset`
        streams: that it ran on
        kernel_name: as the trace has it
        """,
    table=_kernels,
    when=[GPU_EVENTS, KERNELS_WANTED],
    method="get_df_kernel_summary(detail=True)",
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
            "kernel",
            "total_time_ms",
            kind="stacked",
            top=20,
            series_column="kernel_category",
            on="page",
        ),
        Chart(
            "Top kernels",
            "kernels_by_category",
            "kernel",
            "total_time_ms",
            top=20,
            on="page",
            unless=("gpu_time_by_category",),
        ),
    ],
)

SHEETS = [GPU_TIME_BY_CATEGORY, KERNELS, KERNELS_BY_CATEGORY, KERNEL_CATEGORIES]
