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
    return _as_described(KERNELS, kernels.time_by_kernel(context.gpu_events))


def _kernels_by_category(context: AnalysisContext) -> pd.DataFrame:
    """GPU time by operation, category and kernel."""
    return _as_described(
        KERNELS_BY_CATEGORY,
        kernels.detailed_time_by_operation_and_kernel(context.gpu_events),
    )


# Columns that several tables have. `count` to `max_time_us` describe the GPU events of a row.
_KERNEL = Column("kernel", "short name of the kernel, unique within the table")
_KERNEL_NAME = Column("kernel_name", "full name of the kernel, as recorded")
_KERNEL_CATEGORY = Column("kernel_category", "category of the kernel")
_KERNEL_CATEGORY_IF_ON = Column(
    "kernel_category", "category of the kernel, when categories are on"
)
_KIND = Column("kind", "`kernel`, `memcpy` or `memset`")
_CPU_OP = Column(
    "cpu_op",
    "the operation that launched the GPU events: `graph` for a graph launch whose "
    "captured operations are unknown; else the innermost CPU op around the launch; "
    "else the name of the launch; `(unlinked)` without a launch",
)
_PARENT_CPU_OP = Column(
    "Parent cpu_op",
    "the innermost CPU op around the launch; else the name of the launch; else empty. "
    "Absent if the trace has no CPU ops",
)
_COUNT = Column("count", "number of GPU events", unit="GPU events")
_TOTAL_TIME_MS = Column("total_time_ms", "total duration of the GPU events")
_TOTAL_TIME_US = Column("total_time_us", "total duration of the GPU events")
_AVG_TIME_US = Column("avg_time_us", "mean duration of a GPU event")
_MIN_TIME_US = Column("min_time_us", "duration of the shortest GPU event")
_MAX_TIME_US = Column("max_time_us", "duration of the longest GPU event")
_PERCENT_OF_GPU_TIME = Column(
    "% of GPU time", "share of the total duration of all GPU events"
)
_PERCENT_OF_DURATION = Column(
    "% of duration", "share of the total duration of all selected GPU events"
)

KERNELS = Table(
    name="kernels",
    description="GPU time by kernel",
    columns=[
        _KERNEL,
        _TOTAL_TIME_MS,
        _PERCENT_OF_GPU_TIME,
        Column(
            "kernel_category",
            "category of the kernel; if it depends on the operation, that of "
            "the operation with the most time",
        ),
        Column(
            "operations",
            "the operations that launched the kernel, as in `cpu_op` of "
            "`kernels_by_category`: up to three with the most time, and the "
            "number of others",
        ),
        _COUNT,
        _AVG_TIME_US,
        _MIN_TIME_US,
        _MAX_TIME_US,
        _KIND,
        _KERNEL_NAME,
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
            "category of the GPU events; `(not analyzed)` for what is set "
            "aside: benchmarks of autotuning, and events whose recorded end "
            "cannot be right",
        ),
        _COUNT,
        _TOTAL_TIME_MS,
        _AVG_TIME_US,
        Column("kernel_names", "number of distinct kernel names", unit="names"),
        _PERCENT_OF_GPU_TIME,
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
        _CPU_OP,
        _KERNEL_CATEGORY,
        _COUNT,
        _TOTAL_TIME_MS,
        Column(
            "% of cpu_op time",
            "share of the total duration of all GPU events of the operation",
        ),
        _PERCENT_OF_GPU_TIME,
        _KIND,
    ],
    build=of_gpu_events(kernels.time_by_operation_and_category),
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
        _KERNEL,
        _KERNEL_CATEGORY,
        _CPU_OP,
        Column(
            "op category",
            "category of the innermost CPU op around the launch; `graph` or "
            "`runtime` for a launch outside of all CPU ops; empty for an "
            "unlinked event",
        ),
        Column(
            "is_recompute",
            "True if the backward pass ran the operation again (activation "
            "checkpointing); present only if the trace has such operations",
        ),
        _COUNT,
        _TOTAL_TIME_MS,
        _PERCENT_OF_GPU_TIME,
        Column(
            "% of total time",
            "total duration as a share of the `total_time` of `gpu_timeline`, "
            "summed over the devices",
        ),
        _AVG_TIME_US,
        _MIN_TIME_US,
        _MAX_TIME_US,
        _KIND,
        Column(
            "streams", "the streams on which the GPU events ran, separated by commas"
        ),
        _KERNEL_NAME,
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
            "category of the innermost CPU op around the launch; `graph` or "
            "`runtime` for a launch outside of all CPU ops; empty for an "
            "unlinked kernel",
        ),
        _PARENT_CPU_OP,
        Column(
            "Kernel name",
            "full name of the kernel, as recorded; copies and memsets are not included",
        ),
        _KERNEL_CATEGORY_IF_ON,
        Column("Kernel stream", "the stream on which the kernels ran"),
        Column("Kernel duration (µs)_sum", "total duration of the kernels"),
        Column("Kernel duration (µs)_count", "number of kernels", unit="kernels"),
        Column("Kernel duration (µs)_mean", "mean duration of a kernel"),
        Column("Kernel duration (µs)_min", "duration of the shortest kernel"),
        Column("Kernel duration (µs)_max", "duration of the longest kernel"),
        Column(
            "Percent of kernels time (%)", "share of the total duration of all kernels"
        ),
        Column(
            "Percent of total time (%)",
            "total duration as a share of the `total_time` of `gpu_timeline`, "
            "summed over the devices",
        ),
    ],
    build=of_gpu_events(kernels.tracelens_kernel_summary),
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
    description="Histogram of the durations of short kernels",
    columns=[
        Column(
            "bin_start",
            "lower bound of the bin; the bins have equal width and begin at "
            "the shortest kernel",
            unit="µs",
        ),
        Column(
            "bin_end",
            "upper bound of the bin; that of the last bin is the longest "
            "duration below `short_kernel_threshold_us`",
            unit="µs",
        ),
        Column("count", "number of kernels in the bin", unit="kernels"),
    ],
    build=of_gpu_events(short_kernels.short_kernel_histogram),
    options=["short_kernel_threshold_us", "short_kernel_histogram_bins"],
    enabled_by="short_kernel_study",
)
SHORT_KERNELS_SUMMARY = Table(
    name="short_kernels_summary",
    description="Short kernels by operation, arguments and name",
    columns=[
        _PARENT_CPU_OP,
        Column(
            "kernel",
            "short name of the kernel, unique within the table; absent with "
            "`tracelens_sheets=True`",
        ),
        Column("Input dims", "dimensions of the inputs of the CPU op, as tuples"),
        Column("Input strides", "strides of the inputs of the CPU op, as tuples"),
        Column(
            "Concrete Inputs", "values of the scalar inputs of the CPU op, as a tuple"
        ),
        Column(
            "Kernel name",
            "full name of the kernel, as recorded; only kernels shorter than "
            "`short_kernel_threshold_us` are included",
        ),
        Column("Short Kernel duration (µs) sum", "total duration of the kernels"),
        Column("Short Kernel count", "number of kernels", unit="kernels"),
        Column("Short Kernel duration (µs) mean", "mean duration of a kernel"),
        Column(
            "Short Kernel duration (µs) percent of total time",
            "total duration as a share of the `total_time` of `gpu_timeline`, "
            "summed over the devices",
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
        _KERNEL,
        _KERNEL_CATEGORY_IF_ON,
        _KIND,
        Column(
            "reason",
            "why the events are unlinked: `launch not in the trace` (for "
            "example, the profiler started between launch and kernel) or `no "
            "correlation id`",
        ),
        _COUNT,
        _TOTAL_TIME_MS,
        _AVG_TIME_US,
        _MIN_TIME_US,
        _MAX_TIME_US,
        Column(
            "% of unlinked time",
            "share of the total duration of all unlinked GPU events",
        ),
        _PERCENT_OF_GPU_TIME,
        Column(
            "first_start_ms",
            "start of the first event, since the first event of the trace",
        ),
        Column(
            "last_end_ms",
            "latest end of the events, since the first event of the trace; if "
            "it is early in the trace, the profiler may have started late",
        ),
        _KERNEL_NAME,
    ],
    build=of_gpu_events(unlinked_kernels),
    short_names="kernel_name",
    requires=[GPU_EVENTS, _UNLINKED_EVENTS],
)


KERNEL_STATISTICS = Table(
    name="kernel_statistics",
    description="How often and how long kernels ran, by simplified name",
    columns=[
        Column(
            "rank",
            "position in the sort order of the table, which is by count "
            "unless chosen otherwise",
        ),
        Column("kernel_name", "simplified name of the kernel"),
        _COUNT,
        _AVG_TIME_US,
        _TOTAL_TIME_US,
        Column(
            "std_time_us",
            "sample standard deviation of the durations; 0 for a single event",
        ),
        _MIN_TIME_US,
        _MAX_TIME_US,
        Column("% of GPU events", "share of the number of all selected GPU events"),
        _PERCENT_OF_DURATION,
        _KIND,
        Column(
            "kernel_category",
            "category of the kernel, when categories are on; several are "
            "separated by commas",
        ),
        Column(
            "full_names",
            "number of full names with this simplified name",
            unit="names",
        ),
        Column("example_full_name", "the most frequent of these full names"),
    ],
    build=of_gpu_events(statistics.kernel_statistics),
    enabled_by="tables",
)
KERNEL_FULL_NAMES = Table(
    name="kernel_full_names",
    description="Full kernel names behind the simplified names of `kernel_statistics`",
    columns=[
        Column("rank", "rank of the simplified name in `kernel_statistics`"),
        Column("kernel_name", "simplified name, as in `kernel_statistics`"),
        Column(
            "full_name",
            "full name, as recorded; the most frequent name of each rank comes first",
        ),
        _COUNT,
        _TOTAL_TIME_US,
    ],
    build=of_gpu_events(statistics.kernel_full_names),
    enabled_by="tables",
)
KERNEL_SOURCES = Table(
    name="kernel_sources",
    description="Kernels by source line and layer",
    columns=[
        _KERNEL_NAME,
        _CPU_OP,
        Column(
            "source",
            "file, first line and name of the innermost Python function "
            "around the launch that does more than pass the call on; empty if "
            "none was recorded",
        ),
        Column(
            "layer",
            "the `nn.Module`s around the launch, outermost first; for a "
            "backward operation, those around its forward operation; empty "
            "outside of all modules",
        ),
        _COUNT,
        _TOTAL_TIME_US,
        _AVG_TIME_US,
        _PERCENT_OF_DURATION,
    ],
    build=of_gpu_events(kernel_sources),
    requires=[GPU_EVENTS, _PYTHON_FRAMES],
    enabled_by="tables",
)
