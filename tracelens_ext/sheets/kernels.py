"""The sheets about kernels: `kernel_summary`, and those about short ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.kernels.kernels import reference_kernel_summary
from tracelens_ext.kernels.statistics import short_kernel_histogram, short_kernels_summary
from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.report.short_names import with_short_names
from tracelens_ext.sheets.sheet import Sheet
from tracelens_ext.timeline.timeline import total_time_ns
from tracelens_ext.tree import UNLINKED

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions

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
    table=lambda analyzer, _: reference_kernel_summary(analyzer.work, total_time_ns(analyzer.work)),
    asked_by="kernel_summary",
    charts=[
        Chart(
            "GPU time by operation",
            "kernel_summary",
            "Parent cpu_op",
            "Kernel duration (µs)_sum",
            top=15,
            on="page",
            unless=("kernel_categories", "kernels_by_category"),
        ),
        Chart(
            "Top kernels",
            "kernel_summary",
            "Kernel name",
            "Kernel duration (µs)_sum",
            top=20,
            on="page",
            unless=("kernels_by_category",),
        ),
    ],
)


SHORT_KERNEL_HISTOGRAM = Sheet(
    name="short_kernel_histogram",
    shows="Durations of short kernels",
    columns="""
        bin_start [µs]: bins of one width, from the shortest kernel on
        bin_end [µs]: at most `short_kernel_threshold_us`
        count [kernels]: how many
        """,
    table=lambda analyzer, options: short_kernel_histogram(
        analyzer.work, options.short_kernel_threshold_us, options.short_kernel_histogram_bins
    ),
    asked_by="short_kernel_study",
    options=["short_kernel_threshold_us", "short_kernel_histogram_bins"],
)


def _short_kernels(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    table = short_kernels_summary(
        analyzer.work,
        options.short_kernel_threshold_us,
        total_time_ns(analyzer.work),
        options.topk_short_kernels,
    )
    if options.tracelens_sheets:
        return table
    if "Parent cpu_op" in table:
        table["Parent cpu_op"] = table["Parent cpu_op"].replace("", UNLINKED)
    return with_short_names(table, "Kernel name")


SHORT_KERNELS_SUMMARY = Sheet(
    name="short_kernels_summary",
    shows="Short kernels by operation, arguments and name",
    columns="""
        Parent cpu_op: the innermost CPU op around the launch; else the launch's name; else empty.
            Missing when the trace has no CPU ops
        kernel: a short name, which tells it from the others of the sheet; not with
            `tracelens_sheets=True`
        Input dims, Input strides, Concrete Inputs: of that operation, tuples as text
        Kernel name: of kernels shorter than `short_kernel_threshold_us`
        Short Kernel duration (µs) sum: of all
        Short Kernel count [kernels]: how many
        Short Kernel duration (µs) mean: of one
        Short Kernel duration (µs) percent of total time: of `total_time` of `gpu_timeline`
        """,
    table=_short_kernels,
    asked_by="short_kernel_study",
    options=["short_kernel_threshold_us", "topk_short_kernels", "tracelens_sheets"],
)

SHEETS = [KERNEL_SUMMARY, SHORT_KERNEL_HISTOGRAM, SHORT_KERNELS_SUMMARY]
