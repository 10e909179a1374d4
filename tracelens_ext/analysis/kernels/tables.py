"""The tables of kernels by category and by operation."""

from __future__ import annotations

from functools import partial

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.kernels import kernels, short_kernels, statistics
from tracelens_ext.analysis.kernels.sources import kernel_sources
from tracelens_ext.analysis.kernels.unlinked import unlinked_kernels
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import CATEGORIES, GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.short_names import with_short_names
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import AnswerView
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import GpuEvents


def _as_described(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """Add the short kernel names, and put the columns in the order of their descriptions."""
    frame = with_short_names(frame)
    described = [column.name for column in table.columns]
    return frame[[name for name in described if name in frame]]


_total_time_chart = partial(Chart, value_column="total_time_ms")
_chart_by_category = partial(
    _total_time_chart, kind="stacked", series_column="kernel_category"
)
_kernel_summary_chart = partial(
    Chart, sheet="kernel_summary", value_column="Kernel duration (µs)_sum", on="page"
)


def _has_python_frames(context: AnalysisContext, _options: ReportOptions) -> bool:
    return context.tree.add_python_func


def _has_unlinked_events(context: AnalysisContext, _options: ReportOptions) -> bool:
    return not context.tree.linked.all()


def _wants_kernels(context: AnalysisContext, options: ReportOptions) -> bool:
    return context.gpu_events.categories is not None or not options.tracelens_sheets


_PYTHON_FRAMES = Condition("Python frames are in the call tree", _has_python_frames)
_UNLINKED_EVENTS = Condition("some GPU events are unlinked", _has_unlinked_events)
KERNELS_WANTED = Condition(
    "categories are on, or `tracelens_sheets=False`", _wants_kernels
)


def _kernels(context: AnalysisContext) -> pd.DataFrame:
    """GPU time by kernel."""
    return _as_described(KERNELS, kernels.kernel_names(context.gpu_events))


def _kernels_by_category(context: AnalysisContext) -> pd.DataFrame:
    """GPU time by operation, category and kernel."""
    return _as_described(KERNELS_BY_CATEGORY, kernels.kernel_detail(context.gpu_events))


KERNELS = Table(
    name="kernels",
    description="GPU time by kernel",
    columns=[
        Column("kernel", "a short name that is unique within the sheet"),
        Column("total_time_ms", "summed duration"),
        Column("% of GPU time", "of the sum of all durations"),
        Column(
            "kernel_category",
            "category of the kernel name; if there are several, the one with the most "
            "time",
        ),
        Column(
            "operations",
            "operations that launched it, as `cpu_op` of `kernels_by_category`; the "
            "three with the most time",
        ),
        Column("count", "how many", unit="GPU events"),
        Column("avg_time_us", "duration of a GPU event"),
        Column("min_time_us", "duration of a GPU event"),
        Column("max_time_us", "duration of a GPU event"),
        Column("kind", "`kernel`, `memcpy` or `memset`"),
        Column("kernel_name", "full name, as recorded"),
    ],
    build=_kernels,
    requires=[GPU_EVENTS, KERNELS_WANTED],
    analyzer_call='table("kernels")',
    answer=AnswerView(
        title="Top kernels",
        columns=(
            "kernel",
            "total_time_ms",
            "% of GPU time",
            "operations",
            "count",
            "kernel_category",
        ),
    ),
)
GPU_TIME_BY_CATEGORY = Table(
    name="gpu_time_by_category",
    description="GPU time by category",
    columns=[
        Column(
            "kernel_category",
            "of the kernel, by its name; `(not analyzed)` for benchmarks of autotuning and "
            "events that cannot be right",
        ),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_ms", "summed duration"),
        Column("avg_time_us", "duration of a GPU event"),
        Column("kernel_names", "distinct ones", unit="names"),
        Column("% of GPU time", "of the sum of all durations"),
    ],
    build=of_gpu_events(kernels.gpu_time_by_category),
    requires=[GPU_EVENTS, CATEGORIES],
    answer=AnswerView(
        title="GPU time by category",
        columns=("kernel_category", "total_time_ms", "% of GPU time"),
    ),
    charts=[
        _total_time_chart(
            title="GPU time by category",
            sheet="gpu_time_by_category",
            label_column="kernel_category",
        )
    ],
)

KERNEL_CATEGORIES = Table(
    name="kernel_categories",
    description="GPU time by operation and category",
    columns=[
        Column(
            "cpu_op",
            "`graph` if a graph launch started the event; else the innermost CPU op "
            "around the launch; else the name of the launch; else `(unlinked)`",
        ),
        Column("kernel_category", "category of the kernel name"),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_ms", "summed duration"),
        Column("% of cpu_op time", "of the sum of the operation's durations"),
        Column("% of GPU time", "of the sum of all durations"),
        Column("kind", "`kernel`, `memcpy` or `memset`"),
    ],
    build=of_gpu_events(kernels.kernel_category_summary),
    requires=[GPU_EVENTS, CATEGORIES],
    analyzer_call="get_df_kernel_category_summary()",
    charts=[
        _chart_by_category(
            title="GPU time by operation",
            sheet="kernel_categories",
            label_column="cpu_op",
            top=15,
            on="page",
        )
    ],
)

KERNELS_BY_CATEGORY = Table(
    name="kernels_by_category",
    description="GPU time by operation, category and kernel",
    columns=[
        Column("kernel", "a short name that is unique within the sheet"),
        Column("kernel_category", "category of the kernel name"),
        Column(
            "cpu_op",
            "`graph` if a graph launch started the event; else the innermost CPU op "
            "around the launch; else the name of the launch; else `(unlinked)`",
        ),
        Column(
            "op category",
            "category of the innermost CPU op; `graph` or `runtime` without one",
        ),
        Column(
            "is_recompute",
            "whether the backward pass ran it again (activation checkpointing); "
            "present only in that case",
        ),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_ms", "summed duration"),
        Column("% of GPU time", "of the sum of all durations"),
        Column("% of total time", "of `total_time` of `gpu_timeline`"),
        Column("avg_time_us", "duration of a GPU event"),
        Column("min_time_us", "duration of a GPU event"),
        Column("max_time_us", "duration of a GPU event"),
        Column("kind", "`kernel`, `memcpy` or `memset`"),
        Column("streams", "device that it ran on"),
        Column("kernel_name", "full name, as recorded"),
    ],
    build=_kernels_by_category,
    requires=[GPU_EVENTS, KERNELS_WANTED],
    analyzer_call="get_df_kernel_summary(detail=True)",
    charts=[
        _chart_by_category(
            title="Top operations",
            sheet="kernels_by_category",
            label_column="cpu_op",
            top=10,
            on="workbook",
        ),
        _chart_by_category(
            title="Top kernels",
            sheet="kernels_by_category",
            label_column="kernel",
            top=20,
            on="page",
        ),
        _total_time_chart(
            title="Top kernels",
            sheet="kernels_by_category",
            label_column="kernel",
            unless=("gpu_time_by_category",),
            top=20,
            on="page",
        ),
    ],
)

KERNEL_SUMMARY = Table(
    name="kernel_summary",
    description="Kernels by CPU operation and stream",
    columns=[
        Column(
            "Parent op category",
            "category of `Parent cpu_op`; `graph` or `runtime` without a CPU op",
        ),
        Column(
            "Parent cpu_op",
            "the innermost CPU op around the launch; else the name of the launch; "
            "else empty. Absent if the trace has no CPU ops",
        ),
        Column(
            "Kernel name", "full name, as recorded; only kernels, no copies or memsets"
        ),
        Column(
            "kernel_category", "category of the kernel name, when categories are on"
        ),
        Column("Kernel stream", "stream that it ran on"),
        Column("Kernel duration (µs)_sum", "of all"),
        Column("Kernel duration (µs)_count", "how many", unit="kernels"),
        Column("Kernel duration (µs)_mean", "of one"),
        Column("Kernel duration (µs)_min", "of one"),
        Column("Kernel duration (µs)_max", "of one"),
        Column("Percent of kernels time (%)", "of the sum of all kernel durations"),
        Column("Percent of total time (%)", "of `total_time` of `gpu_timeline`"),
    ],
    build=of_gpu_events(kernels.reference_kernel_summary),
    enabled_by="kernel_summary",
    analyzer_call='table("kernel_summary")',
    charts=[
        _kernel_summary_chart(
            title="GPU time by operation",
            label_column="Parent cpu_op",
            unless=("kernel_categories", "kernels_by_category"),
            top=15,
        ),
        _kernel_summary_chart(
            title="Top kernels",
            label_column="Kernel name",
            unless=("kernels_by_category",),
            top=20,
        ),
    ],
)


def _short_kernels_summary(
    gpu_events: GpuEvents,
    *,
    short_kernel_threshold_us: float = 10,
    topk_short_kernels: int | None = None,
    tracelens_sheets: bool = False,
) -> pd.DataFrame:
    table = short_kernels.short_kernels_summary(
        gpu_events=gpu_events,
        threshold_us=short_kernel_threshold_us,
        topk=topk_short_kernels,
    )
    if tracelens_sheets:
        return table
    return with_short_names(
        table.replace({"Parent cpu_op": {"": UNLINKED}}), "Kernel name"
    )


SHORT_KERNEL_HISTOGRAM = Table(
    name="short_kernel_histogram",
    description="Durations of short kernels",
    columns=[
        Column(
            "bin_start",
            "bins of equal width, starting at the shortest kernel",
            unit="µs",
        ),
        Column("bin_end", "at most `short_kernel_threshold_us`", unit="µs"),
        Column("count", "how many", unit="kernels"),
    ],
    build=of_gpu_events(short_kernels.short_kernel_histogram),
    options=["short_kernel_threshold_us", "short_kernel_histogram_bins"],
    enabled_by="short_kernel_study",
)
SHORT_KERNELS_SUMMARY = Table(
    name="short_kernels_summary",
    description="Short kernels by operation, arguments and name",
    columns=[
        Column(
            "Parent cpu_op",
            "the innermost CPU op around the launch; else the name of the launch; "
            "else empty. Absent if the trace has no CPU ops",
        ),
        Column(
            "kernel",
            "a short name that is unique within the sheet; not with "
            "`tracelens_sheets=True`",
        ),
        Column("Input dims", "of that operation, tuples as text"),
        Column("Input strides", "of that operation, tuples as text"),
        Column("Concrete Inputs", "of that operation, tuples as text"),
        Column("Kernel name", "kernels shorter than `short_kernel_threshold_us`"),
        Column("Short Kernel duration (µs) sum", "of all"),
        Column("Short Kernel count", "how many", unit="kernels"),
        Column("Short Kernel duration (µs) mean", "of one"),
        Column(
            "Short Kernel duration (µs) percent of total time",
            "of `total_time` of `gpu_timeline`",
        ),
    ],
    build=of_gpu_events(_short_kernels_summary),
    options=["short_kernel_threshold_us", "topk_short_kernels", "tracelens_sheets"],
    enabled_by="short_kernel_study",
)


UNLINKED_KERNELS = Table(
    name="unlinked_kernels",
    description="GPU events whose launch is not in the trace",
    columns=[
        Column("kernel", "a short name that is unique within the sheet"),
        Column(
            "kernel_category", "category of the kernel name, when categories are on"
        ),
        Column("kind", "`kernel`, `memcpy` or `memset`"),
        Column(
            "reason",
            "`launch not in the trace` (for example because the profiler started "
            "between launch and kernel) or `no correlation id`",
        ),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_ms", "summed duration"),
        Column("avg_time_us", "duration of a GPU event"),
        Column("min_time_us", "duration of a GPU event"),
        Column("max_time_us", "duration of a GPU event"),
        Column(
            "% of unlinked time",
            "of the sum of the durations of all unlinked GPU events",
        ),
        Column("% of GPU time", "of the sum of all durations"),
        Column("first_start_ms", "since the first event of the trace"),
        Column(
            "last_end_ms",
            "start of the last one; if all are early, the profiler started late",
        ),
        Column("kernel_name", "full name, as recorded"),
    ],
    build=of_gpu_events(unlinked_kernels),
    short_names="kernel_name",
    requires=[GPU_EVENTS, _UNLINKED_EVENTS],
)


KERNEL_STATISTICS = Table(
    name="kernel_statistics",
    description="How often and how long kernels ran, by simplified name",
    columns=[
        Column("rank", "position in the sort order of the table; by default, by count"),
        Column("kernel_name", "simplified"),
        Column("count", "how many", unit="GPU events"),
        Column(
            "avg_time_us",
            "duration of a GPU event; `std` is the sample standard deviation, 0 for a "
            "single event",
        ),
        Column(
            "total_time_us",
            "duration of a GPU event; `std` is the sample standard deviation, 0 for a "
            "single event",
        ),
        Column(
            "std_time_us",
            "duration of a GPU event; `std` is the sample standard deviation, 0 for a "
            "single event",
        ),
        Column(
            "min_time_us",
            "duration of a GPU event; `std` is the sample standard deviation, 0 for a "
            "single event",
        ),
        Column(
            "max_time_us",
            "duration of a GPU event; `std` is the sample standard deviation, 0 for a "
            "single event",
        ),
        Column("% of GPU events", "of all selected GPU events"),
        Column("% of duration", "of the sum of all selected durations"),
        Column("kind", "`kernel`, `memcpy` or `memset`"),
        Column(
            "kernel_category", "when categories are on; several are separated by commas"
        ),
        Column(
            "full_names",
            "number of full names that share the simplified one",
            unit="names",
        ),
        Column("example_full_name", "the most frequent full name"),
    ],
    build=of_gpu_events(statistics.kernel_statistics),
    enabled_by="tables",
)
KERNEL_FULL_NAMES = Table(
    name="kernel_full_names",
    description="Full kernel names behind the simplified names of `kernel_statistics`",
    columns=[
        Column("rank", "rank in `kernel_statistics`"),
        Column("kernel_name", "simplified name in `kernel_statistics`"),
        Column("full_name", "full name, most frequent first within each rank"),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_us", "summed duration"),
    ],
    build=of_gpu_events(statistics.kernel_full_names),
    enabled_by="tables",
)
KERNEL_SOURCES = Table(
    name="kernel_sources",
    description="Kernels by source line and layer",
    columns=[
        Column("kernel_name", "full name, as recorded"),
        Column("cpu_op", "operation that launched it"),
        Column(
            "source",
            "the innermost Python function around the launch that does more than pass "
            "the call on: file, first line, name; empty if none was recorded",
        ),
        Column(
            "layer",
            "the surrounding `nn.Module`s, outermost first; for a backward operation, "
            "those of its forward operation",
        ),
        Column("count", "how many", unit="GPU events"),
        Column("total_time_us", "summed duration"),
        Column("avg_time_us", "duration of a GPU event"),
        Column("% of duration", "of the sum of all selected durations"),
    ],
    build=of_gpu_events(kernel_sources),
    requires=[GPU_EVENTS, _PYTHON_FRAMES],
    enabled_by="tables",
)
