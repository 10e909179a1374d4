"""The tables of kernels by category and by operation."""

from __future__ import annotations

from functools import partial

from tracelens_ext.analysis.kernels import kernels
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.short_names import with_short_names
from tracelens_ext.report.tables.table import CATEGORIES, GPU_EVENTS, Condition, Table
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import GpuEvents


def _as_described(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns in the order of their descriptions, short names among them."""
    frame = with_short_names(frame)
    described = [column.name for column in table.described_columns()]
    return frame[[name for name in described if name in frame]]


_of_time = partial(Chart, value_column="total_time_ms")
_stacked = partial(_of_time, kind="stacked", series_column="kernel_category")
_ALONE = ("gpu_time_by_category",)
_TOLD = "kernel_categories", "kernels_by_category"
_of_duration = partial(
    Chart, sheet="kernel_summary", value_column="Kernel duration (µs)_sum", on="page"
)
_FRAMES = Condition("Python frames are in the call tree", lambda its, _: its.tree.add_python_func)
_UNLINKED = Condition("some GPU events are unlinked", lambda its, _: not its.tree.linked.all())
KERNELS_WANTED = Condition(
    "categories are on, or `tracelens_sheets=False`",
    lambda its, options: its.work.categories is not None or not options.tracelens_sheets,
)
KERNELS: Table = Table(
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
    table=lambda work: _as_described(KERNELS, kernels.kernel_names(work)),
    when=[GPU_EVENTS, KERNELS_WANTED],
    method='table("kernels")',
    answer="Top kernels",
    answer_columns=(
        "kernel",
        "total_time_ms",
        "% of GPU time",
        "operations",
        "count",
        "kernel_category",
    ),
)
GPU_TIME_BY_CATEGORY = Table(
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
    table=kernels.gpu_time_by_category,
    when=[GPU_EVENTS, CATEGORIES],
    answer="GPU time by category",
    answer_columns=("kernel_category", "total_time_ms", "% of GPU time"),
    charts=[_of_time("GPU time by category", "gpu_time_by_category", "kernel_category")],
)

KERNEL_CATEGORIES = Table(
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
    table=kernels.kernel_category_summary,
    when=[GPU_EVENTS, CATEGORIES],
    method="get_df_kernel_category_summary()",
    charts=[_stacked("GPU time by operation", "kernel_categories", "cpu_op", top=15, on="page")],
)

KERNELS_BY_CATEGORY: Table = Table(
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
    table=lambda work: _as_described(KERNELS_BY_CATEGORY, kernels.kernel_detail(work)),
    when=[GPU_EVENTS, KERNELS_WANTED],
    method="get_df_kernel_summary(detail=True)",
    charts=[
        _stacked("Top operations", "kernels_by_category", "cpu_op", top=10, on="workbook"),
        _stacked("Top kernels", "kernels_by_category", "kernel", top=20, on="page"),
        _of_time("Top kernels", "kernels_by_category", "kernel", unless=_ALONE, top=20, on="page"),
    ],
)

BY_CATEGORY = [GPU_TIME_BY_CATEGORY, KERNELS, KERNELS_BY_CATEGORY, KERNEL_CATEGORIES]

KERNEL_SUMMARY = Table(
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
    table=kernels.reference_kernel_summary,
    asked_by="kernel_summary",
    method='table("kernel_summary")',
    charts=[
        _of_duration("GPU time by operation", label_column="Parent cpu_op", unless=_TOLD, top=15),
        _of_duration("Top kernels", label_column="Kernel name", unless=_TOLD[1:], top=20),
    ],
)

TABLES = [KERNEL_SUMMARY]


def _short_kernels_summary(
    work: GpuEvents,
    *,
    short_kernel_threshold_us: float = 10,
    topk_short_kernels: int | None = None,
    tracelens_sheets: bool = False,
) -> pd.DataFrame:
    table = kernels.short_kernels_summary(work, short_kernel_threshold_us, topk_short_kernels)
    if tracelens_sheets:
        return table
    return with_short_names(table.replace({"Parent cpu_op": {"": UNLINKED}}), "Kernel name")


SHORT = [
    Table(
        name="short_kernel_histogram",
        shows="Durations of short kernels",
        columns="""
            bin_start [µs]: bins of one width, from the shortest kernel on
            bin_end [µs]: at most `short_kernel_threshold_us`
            count [kernels]: how many
            """,
        table=kernels.short_kernel_histogram,
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


UNLINKED_KERNELS = [
    Table(
        name="unlinked_kernels",
        shows="GPU events whose launch is not in the trace",
        columns="""
            kernel: a short name, which tells it from the others of the sheet
            kernel_category: of the kernel, by its name; when categories are on
            kind: `kernel`, `memcpy` or `memset`
            reason: `launch not in the trace` (as when the profiler started between launch and
                kernel) or `no correlation id`
            count [GPU events]: how many
            total_time_ms: summed duration
            avg_time_us, min_time_us, max_time_us: of a GPU event
            % of unlinked time: of the summed durations of unlinked GPU events
            % of GPU time: of all summed durations
            first_start_ms: since the trace's first event
            last_end_ms: likewise; all early means that the profiler started late
            kernel_name: as the trace has it
            """,
        table=kernels.unlinked_kernels,
        short_names="kernel_name",
        when=[GPU_EVENTS, _UNLINKED],
    )
]


STATISTICS = [
    Table(
        name="kernel_statistics",
        shows="How often and how long kernels ran, by simplified name",
        columns="""
            rank: by what the table is sorted by; by count
            kernel_name: simplified
            count [GPU events]: how many
            avg_time_us, total_time_us, std_time_us, min_time_us, max_time_us: of a GPU event; `std`
                is that of a sample, 0 for a single event
            % of launches, % of duration: of all that were selected
            kind: `kernel`, `memcpy` or `memset`
            kernel_category: when categories are on; several are joined by a comma
            full_names [names]: that share the simplified one
            example_full_name: the most frequent of them
            """,
        table=kernels.kernel_statistics,
        asked_by="tables",
    ),
    Table(
        name="kernel_full_names",
        shows="The names behind the simplified ones of `kernel_statistics`",
        columns="""
            rank, kernel_name: of the row of `kernel_statistics`
            full_name: of each rank the most frequent first
            count [GPU events]: how many
            total_time_us: summed duration
            """,
        table=kernels.kernel_full_names,
        asked_by="tables",
    ),
    Table(
        name="kernel_sources",
        shows="Kernels by source line and layer",
        columns="""
            kernel_name: as the trace has it
            cpu_op: that launched it
            source: the innermost Python function around the launch that does not only pass the call
                on: file, the line where it begins, name; empty where none was recorded
            layer: the `nn.Module`s around, outermost first; of a backward operation those of its
                forward operation
            count [GPU events]: how many
            total_time_us: summed duration
            avg_time_us: of a GPU event
            % of duration: of all that were selected
            """,
        table=kernels.kernel_sources,
        when=[GPU_EVENTS, _FRAMES],
        asked_by="tables",
    ),
]
