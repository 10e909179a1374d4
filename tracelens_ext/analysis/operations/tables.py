"""The declarations of the tables of operations: `ops_*`, `tree` and `cpu_ops`."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.operations.cpu_ops import cpu_ops
from tracelens_ext.analysis.operations.summaries import (
    DIRECT_TIME,
    METRICS,
    PERCENTAGES,
    SUBTREE_TIME,
)
from tracelens_ext.analysis.operations.tree_table import call_tree_table
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, NO_GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions, check_option
from tracelens_ext.report.tables.row_command import ROW, RowCommand
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import AnswerView

#: Description of the columns of `ops_unique_args` with statistics.
_NAME = Column(
    "name",
    "name of the *launcher*: the nearest CPU op above the launch that is not named "
    "`execute`; else of the launch",
)
_OP_CATEGORY = Column(
    "op category",
    "category of the operation: by its name, else by the work that it launched",
)
_COUNT = Column("Count", "number of operations", unit="operations")
_DIRECT_TIME_MS = Column(
    "total_direct_kernel_time_ms",
    "direct time: busy time of the GPU events that an operation launched itself, "
    "summed over the operations",
)
_SUBTREE_TIME_MS = Column(
    "total_subtree_kernel_time_ms",
    "subtree time: busy time of all GPU events below an operation, summed over the "
    "operations",
)
_PERCENTAGE = Column("Percentage (%)", "share of the direct times of all operations")
_CUMULATIVE_PERCENTAGE = Column(
    "Cumulative Percentage (%)",
    "share of the direct times of all operations, of this row and all rows above",
)


class OperationsContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, with the tables of operations that launched GPU work."""

    def get_df_kernel_launchers(
        self,
        *,
        include_call_stack: bool = False,
        include_first_occurrence_time: bool = False,
    ) -> pd.DataFrame:
        """Return a row for each operation that launched GPU work."""

    def get_df_kernel_launchers_summary(self) -> pd.DataFrame:
        """Return GPU time by operation."""

    def get_df_kernel_launchers_summary_by_category(self) -> pd.DataFrame:
        """Return GPU time by category of operation."""

    def get_df_kernel_launchers_unique_args(
        self,
        df_kernel_launchers: pd.DataFrame | None = None,
        *,
        group_by_num_kernels: bool = False,
    ) -> pd.DataFrame:
        """Return GPU time by operation and its arguments."""


def _has_cpu_ops(context: AnalysisContext, _options: ReportOptions) -> bool:
    return context.trace.count_of(*context.trace.operation_kinds) > 0


_CPU_OPS = Condition("the trace has CPU ops", _has_cpu_ops)


def _notes(
    context: AnalysisContext, _options: ReportOptions, tables: Tables
) -> Iterator[str]:
    if "ops_summary" not in tables:
        return
    gpu_events = context.gpu_events
    communication_count = int(gpu_events.is_communication.sum())
    if communication_count:
        time = int(gpu_events.duration[gpu_events.is_communication].sum())
        share = 100.0 * time / max(int(gpu_events.duration.sum()), 1)
        where = "; see coll_analysis" if "coll_analysis" in tables else ""
        yield (
            f"Communication ({communication_count:,} kernels, {share:.1f} % of GPU "
            f"time) is not included in the ops_ sheets{where}."
        )
    if gpu_events.categories is not None:
        yield (
            "An op category describes what an operation is for, by its name; a kernel "
            "category describes what a kernel does. An operation of the category GEMM "
            "may launch copies and fills as well."
        )


def _first_rows(table: pd.DataFrame, topk_ops: int | None) -> pd.DataFrame:
    """Return the first rows of a table, or all rows if `topk_ops` is None."""
    check_option("topk_ops", topk_ops)
    return table.iloc[:topk_ops]


def _summary_by_category(
    context: OperationsContext, *, topk_ops: int | None = None
) -> pd.DataFrame:
    return _first_rows(context.get_df_kernel_launchers_summary_by_category(), topk_ops)


def _summary(
    context: OperationsContext,
    *,
    topk_ops: int | None = None,
    tracelens_sheets: bool = False,
) -> pd.DataFrame:
    table = _first_rows(context.get_df_kernel_launchers_summary(), topk_ops)
    if tracelens_sheets:
        return table
    names = [", ".join(ast.literal_eval(text)) for text in table["Categories"]]
    order = [
        "name",
        "Categories",
        "Count",
        f"{DIRECT_TIME}_ms",
        *PERCENTAGES,
        f"{SUBTREE_TIME}_ms",
    ]
    return table.assign(Categories=names)[order]


def _unique_args(
    context: OperationsContext,
    *,
    topk_ops: int | None = None,
    group_by_num_kernels: bool = False,
    tracelens_sheets: bool = False,
    include_call_stack: bool = False,
    include_first_occurrence_time: bool = False,
) -> pd.DataFrame:
    launchers = None
    if include_call_stack or include_first_occurrence_time:
        launchers = context.get_df_kernel_launchers(
            include_call_stack=include_call_stack,
            include_first_occurrence_time=include_first_occurrence_time,
        )
    table = context.get_df_kernel_launchers_unique_args(
        launchers, group_by_num_kernels=group_by_num_kernels
    )
    table = _first_rows(table, topk_ops)
    if tracelens_sheets:
        return table
    # Sums are in ms, as on the other sheets. Columns that distinguish rows stand beside the times.
    for time in (DIRECT_TIME, SUBTREE_TIME):
        table = table.assign(**{f"{time}_ms": table[f"{time}_sum"] / 1e3})
        table = table.drop(columns=f"{time}_sum")
    first = [
        "name",
        "op category",
        "Input Dims",
        "direct_kernel_count",
        "operation_count",
        f"{DIRECT_TIME}_ms",
        *PERCENTAGES,
        f"{SUBTREE_TIME}_ms",
        *(f"{DIRECT_TIME}_{metric}" for metric in METRICS),
        "Input type",
        "Input Strides",
        "Concrete Inputs",
    ]
    ordered = dict.fromkeys((*first, *table))
    return table[[name for name in ordered if name in table]]


_direct_time_chart = partial(Chart, value_column=f"{DIRECT_TIME}_ms", on="page")
TREE = Table(
    name="tree",
    description="The call tree with GPU time: one row per node, parents before "
    "their children",
    columns=[
        Column("depth", "number of nodes above the node; 0 for a root", unit="levels"),
        Column("name", "name of the event; siblings with the same name share a row"),
        Column(
            "kind",
            "`cpu_op`, `annotation`, `python`, `launch`, `kernel`, `memcpy` "
            "or `memset`; empty for a thread and for `(unlinked)`",
        ),
        Column("count", "number of events that share the row", unit="events"),
        Column(
            "gpu_events",
            "number of GPU events at the node and below",
            unit="GPU events",
        ),
        Column("busy_time_ms", "busy time of the GPU events at the node and below"),
        Column(
            "% of GPU busy time",
            "`busy_time_ms` as a share of the busy time of the whole trace",
        ),
    ],
    build=of_gpu_events(call_tree_table),
    enabled_by="tables",
    analyzer_call="get_df_call_tree()",
)

OPS_SUMMARY_BY_CATEGORY = Table(
    name="ops_summary_by_category",
    description="GPU time by operation category, without communication",
    columns=[
        _OP_CATEGORY,
        _COUNT,
        _DIRECT_TIME_MS,
        _PERCENTAGE,
        _CUMULATIVE_PERCENTAGE,
    ],
    build=_summary_by_category,
    requires=[_CPU_OPS, GPU_EVENTS],
    options=["topk_ops"],
    analyzer_call="get_df_kernel_launchers_summary_by_category()",
    charts=[
        _direct_time_chart(
            title="GPU time by operation category",
            sheet="ops_summary_by_category",
            label_column="op category",
            unless=("gpu_time_by_category",),
        )
    ],
)
OPS_SUMMARY = Table(
    name="ops_summary",
    description="GPU time by operation, without communication",
    columns=[
        _NAME,
        Column(
            "total_direct_kernel_time_sum",
            "the same time as `total_direct_kernel_time_ms`, in µs; only with "
            "`tracelens_sheets=True`",
        ),
        Column(
            "total_subtree_kernel_time_sum",
            "the same time as `total_subtree_kernel_time_ms`, in µs; only "
            "with `tracelens_sheets=True`",
        ),
        _COUNT,
        _DIRECT_TIME_MS,
        _SUBTREE_TIME_MS,
        Column(
            "Categories",
            "categories of the operations with this name, separated by "
            "commas; with `tracelens_sheets=True`, a list as text",
        ),
        _PERCENTAGE,
        _CUMULATIVE_PERCENTAGE,
    ],
    build=_summary,
    requires=[_CPU_OPS, GPU_EVENTS],
    options=["topk_ops", "tracelens_sheets"],
    analyzer_call="get_df_kernel_launchers_summary()",
    notes=_notes,
    charts=[
        _direct_time_chart(
            title="GPU time by operation",
            sheet="ops_summary",
            label_column="name",
            top=15,
            unless=("kernel_categories", "kernels_by_category", "kernel_summary"),
        )
    ],
)


def _reproduce_command(
    context: AnalysisContext, options: ReportOptions
) -> RowCommand | None:
    """Return the command that writes a script for the operation in a row.

    There is no command if the trace is not a file. There is none either if rows are grouped by the
    number of kernels, because `--row` counts the rows of the table without that grouping.
    """
    path = context.trace.provenance.path
    if options.group_by_num_kernels or not Path(path).is_file():
        return None
    return RowCommand(
        text=f"tracelens-ext reproduce {shlex.quote(path)} --row {ROW} -o bench.py",
        label="reproduce",
        needed_column="Input Dims",
    )


OPS_UNIQUE_ARGS = Table(
    name="ops_unique_args",
    description="GPU time by operation and arguments, without communication",
    columns=[
        _NAME,
        _OP_CATEGORY,
        Column("process_name", "name of the process; `Unknown` if not recorded"),
        Column("process_label", "label of the process; `Unknown` if not recorded"),
        Column("thread_name", "name of the thread; `Unknown` if not recorded"),
        Column(
            "Input Dims",
            "dimensions of the inputs, as tuples; empty if the trace was "
            "recorded without shapes",
        ),
        Column(
            "Input type",
            "data types of the inputs, as a tuple; empty if the trace was "
            "recorded without shapes",
        ),
        Column(
            "Input Strides",
            "strides of the inputs in elements, as tuples; empty if not recorded",
        ),
        Column(
            "Concrete Inputs",
            "values of the scalar inputs, as a tuple; empty if the trace was "
            "recorded without shapes",
        ),
        Column(
            "is_recompute",
            "True if the backward pass ran the operation again (activation "
            "checkpointing); present only if the trace has such operations",
        ),
        Column(
            "direct_kernel_count",
            "number of GPU events that each operation launched itself; only "
            "with `group_by_num_kernels=True`, which gives operations that "
            "differ in it separate rows",
            unit="GPU events",
        ),
        Column("operation_count", "number of operations", unit="operations"),
        Column(
            "total_direct_kernel_time_mean",
            "mean direct time of an operation: busy time of the GPU events "
            "that it launched itself",
        ),
        Column(
            "total_direct_kernel_time_median",
            "median direct time of an operation",
        ),
        Column(
            "total_direct_kernel_time_std",
            "sample standard deviation of the direct times; empty for a "
            "single operation",
        ),
        Column(
            "total_direct_kernel_time_min",
            "shortest direct time of an operation",
        ),
        Column(
            "total_direct_kernel_time_max",
            "longest direct time of an operation",
        ),
        Column(
            "total_direct_kernel_time_sum",
            "sum of the direct times of the operations; only with "
            "`tracelens_sheets=True`",
        ),
        Column(
            "total_subtree_kernel_time_mean",
            "mean subtree time of an operation: busy time of all GPU events below it",
        ),
        Column(
            "total_subtree_kernel_time_median",
            "median subtree time of an operation",
        ),
        Column(
            "total_subtree_kernel_time_std",
            "sample standard deviation of the subtree times; empty for a "
            "single operation",
        ),
        Column(
            "total_subtree_kernel_time_min",
            "shortest subtree time of an operation",
        ),
        Column(
            "total_subtree_kernel_time_max",
            "longest subtree time of an operation",
        ),
        Column(
            "total_subtree_kernel_time_sum",
            "sum of the subtree times of the operations; only with "
            "`tracelens_sheets=True`",
        ),
        _DIRECT_TIME_MS,
        _SUBTREE_TIME_MS,
        Column(
            "first_occurrence_time",
            "start of the first operation of the row, relative to the "
            "earliest operation of all rows; only with "
            "`include_first_occurrence_time=True`",
            unit="µs",
        ),
        Column(
            "parent_module",
            "class of the innermost `nn.Module` around the first operation of "
            "the row, or around its forward operation for a backward one; "
            "`NA` outside of all modules; only with `include_call_stack=True`",
        ),
        Column(
            "call_stack",
            "the first operation of the row and the `nn.Module`s around it, a "
            "list as text; only with `include_call_stack=True`",
        ),
        Column(
            "ex_UID",
            "row of the first operation in the trace, for `tree.print_subtree(…)`",
        ),
        Column(
            "kernel_details_summary",
            "the GPU events that the operations launched themselves, by name "
            "and stream, with their number and durations in µs: a list of "
            "dictionaries as text",
            unit="µs",
        ),
        Column(
            "trunc_kernel_details",
            "`kernel_details_summary` with shortened names, and only the "
            "number and the mean duration",
            unit="µs",
        ),
        _PERCENTAGE,
        _CUMULATIVE_PERCENTAGE,
    ],
    build=_unique_args,
    requires=[_CPU_OPS, GPU_EVENTS],
    options=[
        "topk_ops",
        "group_by_num_kernels",
        "tracelens_sheets",
        "include_call_stack",
        "include_first_occurrence_time",
    ],
    row_command=_reproduce_command,
    analyzer_call="get_df_kernel_launchers_unique_args()",
)


def _wants_cpu_ops(context: AnalysisContext, options: ReportOptions) -> bool:
    if NO_GPU_EVENTS.holds(context, options):
        return True
    return "cpu_ops" in context.cited_tables(options.device_peaks)


CPU_OPS = Table(
    name="cpu_ops",
    description="CPU time by CPU operation",
    columns=[
        Column("cpu_op", "name of the operation"),
        Column("count", "number of operations", unit="operations"),
        Column(
            "total_time_ms",
            "total CPU time of the operations; one inside another of the same "
            "name counts twice",
        ),
        Column("self_time_ms", "CPU time without the CPU ops directly below"),
        Column(
            "avg_time_us",
            "mean CPU time of an operation, including the CPU ops below it",
        ),
        Column(
            "% of CPU op time",
            "`self_time_ms` as a share of the self times of all CPU ops",
        ),
    ],
    build=of_gpu_events(cpu_ops),
    requires=[
        Condition(
            "the trace has no GPU events, or evidence names it",
            _wants_cpu_ops,
        )
    ],
    answer=AnswerView(
        title="Top CPU operations",
        condition=NO_GPU_EVENTS,
        columns=(
            "cpu_op",
            "count",
            "total_time_ms",
            "self_time_ms",
            "avg_time_us",
            "% of CPU op time",
        ),
    ),
    charts=[
        Chart(
            title="CPU time by operation",
            sheet="cpu_ops",
            label_column="cpu_op",
            value_column="self_time_ms",
            top=15,
            on="page",
        )
    ],
)
