"""The sheets about kernel categories: `kernel_categories` and `kernels_by_category`."""

from __future__ import annotations

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import CATEGORIES, GPU_EVENTS, Sheet

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
            top=20,
            series_column="kernel_category",
            on="page",
        ),
    ],
)

SHEETS = [KERNEL_CATEGORIES, KERNELS_BY_CATEGORY]
