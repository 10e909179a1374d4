"""The three `ops_` tables: GPU time by the operations that launched it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.operations.op_tables import METRICS, cpu_ops
from tracelens_ext.operations.tree_table import call_tree_table
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.options import ReportOptions
from tracelens_ext.tables.table import GPU_EVENTS, NO_GPU_EVENTS, Condition, Table, cited_sheets

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer

_CPU_OPS = Condition(
    "the trace has CPU ops",
    lambda analyzer, _: analyzer.trace.count_of(*analyzer.trace.operation_kinds) > 0,
)


def _notes(
    analyzer: TreePerfAnalyzer, _: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    if "ops_summary" not in tables:
        return
    work = analyzer.work
    if communicating := int(work.is_communication.sum()):
        time = int(work.duration[work.is_communication].sum())
        share = 100.0 * time / max(int(work.duration.sum()), 1)
        where = "; coll_analysis has it" if "coll_analysis" in tables else ""
        yield (
            f"Communication ({communicating:,} kernels, {share:.1f} % of GPU time) is left out of"
            f" the ops_ sheets{where}."
        )
    if work.categories is not None:
        yield (
            "An op category says what an operation is for, by its name; a kernel category says what"
            " a kernel does: an operation of the category GEMM may launch copies and fills as well."
        )


_DIRECT, _SUBTREE = "total_direct_kernel_time", "total_subtree_kernel_time"


def _summary(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    table = analyzer.get_df_kernel_launchers_summary().iloc[: options.topk_ops]
    if options.tracelens_sheets:
        return table
    names = [", ".join(ast.literal_eval(text)) for text in table["Categories"]]
    order = [
        *("name", "Categories", "Count", f"{_DIRECT}_ms", "Percentage (%)"),
        *("Cumulative Percentage (%)", f"{_SUBTREE}_ms"),
    ]
    return table.assign(Categories=names)[order]


_ON_DEMAND = ("include_call_stack", "include_first_occurrence_time")


def _unique_args(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    more = {name: getattr(options, name) for name in _ON_DEMAND}
    table = analyzer.get_df_kernel_launchers_unique_args(
        analyzer.get_df_kernel_launchers(**more) if any(more.values()) else None,
        group_by_num_kernels=options.group_by_num_kernels,
    ).iloc[: options.topk_ops]
    if options.tracelens_sheets:
        return table
    # Sums are ms, as on the other sheets; what tells rows apart stands with the times.
    for time in (_DIRECT, _SUBTREE):
        table = table.assign(**{f"{time}_ms": table[f"{time}_sum"] / 1e3})
        table = table.drop(columns=f"{time}_sum")
    first = [
        *("name", "op category", "Input Dims", "direct_kernel_count", "operation_count"),
        *(f"{_DIRECT}_ms", "Percentage (%)", "Cumulative Percentage (%)", f"{_SUBTREE}_ms"),
        *(f"{_DIRECT}_{metric}" for metric in METRICS),
        *("Input type", "Input Strides", "Concrete Inputs"),
    ]
    first = [name for name in first if name in table]
    last = [name for name in table if name not in first]
    return table[[*first, *last]]


TREE = [
    Table(
        name="tree",
        shows="The call tree with GPU time, a row a node, parents before children",
        columns="""
            depth [levels]: 0 for a root
            name: of the event; siblings of one name are one row
            kind: `cpu_op`, `annotation`, `python`, `launch`, `kernel`, `memcpy`, `memset`; empty
                for a thread and for `(unlinked)`
            count [events]: in the row
            gpu_events [GPU events]: at and below
            busy_time_ms: of those
            % of GPU busy time: of the trace
            """,
        table=call_tree_table,
        asked_by="tables",
        method="get_df_call_tree()",
    )
]
TABLES = [
    Table(
        name="ops_summary_by_category",
        shows="GPU time by category of operation, without communication",
        columns="""
            op category: what the operation is for, by its name
            Count [operations]: how many
            total_direct_kernel_time_ms: busy time of what it is the launcher of
            Percentage (%), Cumulative Percentage (%): of the direct times of all operations
            """,
        table=lambda analyzer, options: analyzer.get_df_kernel_launchers_summary_by_category().iloc[
            : options.topk_ops
        ],
        when=[_CPU_OPS, GPU_EVENTS],
        options=["topk_ops"],
        method="get_df_kernel_launchers_summary_by_category()",
        charts=[
            Chart(
                "GPU time by operation category",
                "ops_summary_by_category",
                "op category",
                "total_direct_kernel_time_ms",
                on="page",
                unless=("gpu_time_by_category",),
            )
        ],
    ),
    Table(
        name="ops_summary",
        shows="GPU time by operation, without communication",
        columns="""
            name: the *launcher*: the nearest CPU op above the launch that is not called `execute`;
                else the launch
            total_direct_kernel_time_sum, total_subtree_kernel_time_sum: the same as `…_ms`; with
                `tracelens_sheets=True`
            Count [operations]: how many
            total_direct_kernel_time_ms: busy time of what it is the launcher of
            total_subtree_kernel_time_ms: busy time of all below it
            Categories: the op categories; with `tracelens_sheets=True` a list as text
            Percentage (%), Cumulative Percentage (%): of the direct times of all operations
            """,
        table=_summary,
        when=[_CPU_OPS, GPU_EVENTS],
        options=["topk_ops", "tracelens_sheets"],
        method="get_df_kernel_launchers_summary()",
        notes=_notes,
        charts=[
            Chart(
                "GPU time by operation",
                "ops_summary",
                "name",
                "total_direct_kernel_time_ms",
                top=15,
                on="page",
                unless=("kernel_categories", "kernels_by_category", "kernel_summary"),
            )
        ],
    ),
    Table(
        name="ops_unique_args",
        shows="GPU time by operation and its arguments, without communication",
        columns="""
            name: the *launcher*: the nearest CPU op above the launch that is not called `execute`;
                else the launch
            op category: what the operation is for, by its name
            process_name, process_label, thread_name: as the trace names them, else `Unknown`
            Input Dims, Input type, Input Strides, Concrete Inputs: tuples as text; empty when the
                trace was recorded without shapes
            is_recompute: whether the backward ran it again (activation checkpointing); only where
                it did
            direct_kernel_count [GPU events]: with `group_by_num_kernels=True`: operations that
                launched different numbers are rows of their own
            operation_count [operations]: how many
            total_direct_kernel_time_mean, total_direct_kernel_time_median,
                total_direct_kernel_time_std, total_direct_kernel_time_min,
                total_direct_kernel_time_max, total_direct_kernel_time_sum: over the operations;
                `std` is that of a sample, empty for one operation
            total_subtree_kernel_time_mean, total_subtree_kernel_time_median,
                total_subtree_kernel_time_std, total_subtree_kernel_time_min,
                total_subtree_kernel_time_max, total_subtree_kernel_time_sum: over the operations;
                `std` is that of a sample, empty for one operation
            total_direct_kernel_time_ms, total_subtree_kernel_time_ms: the sums; with
                `tracelens_sheets=True` `…_sum` in their place
            first_occurrence_time [µs]: start of the first such operation, after that of the first
                of all; with `include_first_occurrence_time=True`
            parent_module, call_stack: the class of the innermost `nn.Module` around the first such
                operation (around its forward, of a backward one), and all of them, a list as text;
                with `include_call_stack=True`
            ex_UID: row in the trace of the first such operation, for `tree.print_subtree(…)`
            kernel_details_summary [µs]: the GPU events by name and stream, a list of dictionaries
                as a Python literal
            trunc_kernel_details [µs]: the same with short names
            Percentage (%), Cumulative Percentage (%): of the direct times of all operations
            """,
        table=_unique_args,
        when=[_CPU_OPS, GPU_EVENTS],
        options=["topk_ops", "group_by_num_kernels", "tracelens_sheets", *_ON_DEMAND],
        method="get_df_kernel_launchers_unique_args()",
    ),
]


CPU_OPS = [
    Table(
        name="cpu_ops",
        shows="Host time by CPU operation",
        columns="""
            cpu_op: the operation
            count [operations]: how many
            total_time_ms: on the host; an operation within itself counts each time
            self_time_ms: without the CPU ops directly below
            avg_time_us: of one, with those
            % of CPU op time: of the sum of self times
            """,
        table=cpu_ops,
        when=[
            Condition(
                "the trace has no GPU events, or evidence names it",
                lambda analyzer, options: (
                    NO_GPU_EVENTS.holds(analyzer, options)
                    or "cpu_ops" in cited_sheets(analyzer, options)
                ),
            )
        ],
        answer="Top CPU operations",
        answer_when=NO_GPU_EVENTS,
        answer_columns=(
            *("cpu_op", "count", "total_time_ms", "self_time_ms", "avg_time_us"),
            "% of CPU op time",
        ),
        charts=[
            Chart("CPU time by operation", "cpu_ops", "cpu_op", "self_time_ms", top=15, on="page")
        ],
    )
]
