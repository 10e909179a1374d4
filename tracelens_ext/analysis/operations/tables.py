"""The `ops_*` tables: GPU time by category of operation, by operation, by its arguments; the tree.

Each of the three is a function of a launcher table, which may have been filtered by its user.
`cpu_ops` is what a trace without a GPU can tell: the time that the host spent in operations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.operations.launchers import ARGUMENTS, Launchers
from tracelens_ext.analysis.operations.tree_table import call_tree_table
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, NO_GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions, check_option
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Float64Array, IntArray
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations, percent, sums, texts
from tracelens_ext.trace.nesting import ROOT, nearest_marked

METRICS = ("mean", "median", "std", "min", "max")
PERCENTAGES = ("Percentage (%)", "Cumulative Percentage (%)")

_DIRECT = "total_direct_kernel_time"
_SUBTREE = "total_subtree_kernel_time"
_UNIQUE = ("name", "op category", "process_name", "process_label", "thread_name", *ARGUMENTS)
_SHORT_NAME = 64
#: What the statistics of `ops_unique_args` are.
_OVER_OPERATIONS = "over the operations; `std` is that of a sample, empty for one operation"


def summary_by_category(launchers: pd.DataFrame) -> pd.DataFrame:
    """GPU time by category of operation, as the sheet `ops_summary_by_category`; longest first."""
    groups = _Groups(launchers, ["op category"])
    time = groups.statistic(_DIRECT, "sum") / 1e3
    columns = {**groups.keys(), "Count": groups.count, f"{_DIRECT}_ms": time}
    return _longest_first(columns, f"{_DIRECT}_ms")


def summary(launchers: pd.DataFrame) -> pd.DataFrame:
    """GPU time by operation, as the sheet `ops_summary`; longest direct time first."""
    groups = _Groups(launchers, ["name"])
    sums = {column: groups.statistic(column, "sum") for column in (_DIRECT, _SUBTREE)}
    pairs = pd.DataFrame(_Groups(launchers, ["name", "op category"]).keys())
    categories = pairs.groupby("name", sort=False)["op category"].agg(lambda its: str(sorted(its)))
    columns = {
        **groups.keys(),
        **{f"{column}_sum": time for column, time in sums.items()},
        **{f"{column}_ms": time / 1e3 for column, time in sums.items()},
        "Count": groups.count,
        "Categories": categories.tolist(),
    }
    return _longest_first(columns, f"{_DIRECT}_sum")


def unique_args(
    launchers: pd.DataFrame,
    launched: tuple[GpuEvents, Launchers] | None = None,
    *,
    metrics: Sequence[str] = METRICS,
    group_by_num_kernels: bool = False,
) -> pd.DataFrame:
    """GPU time by operation, its arguments and thread, as the sheet `ops_unique_args`.

    The longest direct time is first. `launched`: the trace's, to describe its GPU events, or None.
    `metrics`: statistics over the operations of a row, some of `METRICS`; `sum` always is one. With
    `group_by_num_kernels` operations that launched different numbers of GPU events are rows of
    their own, with the number in a column `direct_kernel_count`.
    """
    if unknown := sorted(set(metrics) - {*METRICS, "sum"}):
        raise UsageError(f"unknown metric {unknown[0]!r}; there are {', '.join(METRICS)}")
    further = ["is_recompute"] if "is_recompute" in launchers else []
    further += ["direct_kernel_count"] if group_by_num_kernels else []
    groups = _Groups(launchers, [*_UNIQUE, *further])
    uids = launchers["UID"].to_numpy()
    columns: dict[str, object] = {**groups.keys(), "operation_count": groups.count}
    for metric in (*(m for m in METRICS if m in metrics), "sum"):
        for column in (_DIRECT, _SUBTREE):
            columns[f"{column}_{metric}"] = groups.statistic(column, metric)
    columns["ex_UID"] = uids[groups.first]
    if "ts" in launchers:
        first = groups.statistic("ts", "min")
        columns["first_occurrence_time"] = first - first.min(initial=np.inf)
    for name in ("parent_module", "call_stack"):
        if name in launchers:
            columns[name] = launchers[name].iloc[groups.first].tolist()
    if launched is not None:
        details, short = _described(*launched, uids, groups.of_row, len(groups.first))
        columns |= {"kernel_details_summary": details, "trunc_kernel_details": short}
    return _longest_first(columns, f"{_DIRECT}_sum")


class _Groups:
    """Rows of a launcher table that are equal in some columns, k groups by first occurrence.

    Attributes:
        of_row: the group of each row, shape (n,).
        first: the first row of each group, (k,).
        count: rows of each group, (k,).
    """

    def __init__(self, table: pd.DataFrame, by: Sequence[str]) -> None:
        self._table = table
        self._by = by
        grouped = table.groupby([*by], sort=False, observed=True, dropna=False)
        self.of_row = grouped.ngroup().to_numpy()
        _, self.first, self.count = np.unique(self.of_row, return_index=True, return_counts=True)
        self._grouped = table.groupby(self.of_row)

    def keys(self) -> dict[str, list[str]]:
        """What the groups have in common, column by column."""
        return {column: self._table[column].iloc[self.first].tolist() for column in self._by}

    def statistic(self, column: str, metric: str) -> Float64Array:
        """A statistic of each group's numbers, (k,); `std` is NaN for a group of one."""
        return self._grouped[column].agg(metric).to_numpy(dtype=np.float64)


def kernel_details(work: GpuEvents, launchers: Launchers) -> list[list[dict[str, object]]]:
    """The GPU events of each launcher: `name`, `dur` (µs) and `stream`, in file order."""
    found: list[list[dict[str, object]]] = [[] for _ in range(len(launchers))]
    columns = (launchers.of_gpu, work.name, work.duration / NS_PER_US, work.trace.stream)
    for at, name, duration, stream in zip(*(each.tolist() for each in columns), strict=True):
        if at != NONE:
            event = {"name": work.trace.names[name], "dur": duration, "stream": stream}
            found[at].append(event)
    return found


def _described(
    work: GpuEvents, launchers: Launchers, uids: IntArray, group: IntArray, groups: int
) -> tuple[list[str], list[str]]:
    """What each group of launchers launched, by name and stream, longest total first.

    For each group a list of dictionaries as a Python literal, with full names and statistics in µs;
    and the same with short names and the mean alone.
    """
    of_uid = pd.Series(group, uids).groupby(level=0).first()
    of_launcher = of_uid.reindex(launchers.rows, fill_value=NONE).to_numpy()
    number = np.append(of_launcher, NONE)[launchers.of_gpu]
    chosen = np.flatnonzero(number != NONE)
    chosen = chosen[np.argsort(launchers.rows[launchers.of_gpu[chosen]], kind="stable")]
    keys = [number[chosen], work.name[chosen], work.trace.stream[chosen]]
    found = group_durations(keys, work.duration[chosen])
    times = (found.total, found.mean, found.shortest, found.longest)
    columns = (*found.keys, found.count, *(time / NS_PER_US for time in times))
    full: list[list[dict[str, object]]] = [[] for _ in range(groups)]
    short: list[list[dict[str, object]]] = [[] for _ in range(groups)]
    for at, code, stream, count, total, mean, least, most in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name = work.trace.names[code]
        cut = name if len(name) <= _SHORT_NAME else name[: _SHORT_NAME - 1] + "…"
        about = {"stream": stream, "count": count}
        one = {"mean_duration_us": round(mean, 3)}
        extremes = {"min_duration_us": least, "max_duration_us": most}
        full[at].append({"name": name, **about, "total_duration_us": total, **one, **extremes})
        short[at].append({"name": cut, **about, **one})
    return [*map(str, full)], [*map(str, short)]


def _longest_first(columns: dict[str, Any], by: str) -> pd.DataFrame:
    """The table, longest time first, with percentages."""
    order = np.argsort(-columns[by], kind="stable")
    time = columns[by][order]
    (share, running) = PERCENTAGES
    frame = pd.DataFrame(columns).iloc[order].reset_index(drop=True)
    frame[share] = percent(time, time.sum())
    frame[running] = frame[share].cumsum()
    return frame


def cpu_ops(work: GpuEvents) -> pd.DataFrame:
    """Host time by CPU op, as the sheet `cpu_ops`; longest self time first."""
    tree = work.tree
    trace = work.trace
    is_op = tree.is_operation & (tree.rows < trace.recorded)  # what a graph replays takes no time
    above = nearest_marked(tree.parent_position, is_op)
    duration = trace.dur[tree.rows]
    inner = np.flatnonzero(is_op & (above != ROOT))
    start = trace.ts[tree.rows][inner]
    below = BusyTime(start, start + duration[inner]).by_owner(above[inner], len(tree.rows))
    names = trace.name[tree.rows][is_op]
    self_time = (duration - below)[is_op]
    duration = duration[is_op]
    total = group_durations([names], duration)
    own = sums(total.number, self_time, len(total))
    frame = pd.DataFrame(
        {
            "cpu_op": texts(total.keys[0], trace.names),
            "count": total.count,
            "total_time_ms": total.total / NS_PER_MS,
            "self_time_ms": own / NS_PER_MS,
            "avg_time_us": total.total / 1e3 / total.count,
            "% of CPU op time": percent(own, int(self_time.sum())),
        }
    )
    return frame.iloc[np.argsort(-own, kind="stable")].reset_index(drop=True)


class OperationsContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the tables of the operations that launched GPU work."""

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


def _notes(context: AnalysisContext, _options: ReportOptions, tables: Tables) -> Iterator[str]:
    if "ops_summary" not in tables:
        return
    work = context.gpu_events
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


def _first_rows(table: pd.DataFrame, topk_ops: int | None) -> pd.DataFrame:
    """The first rows of a table; all by default."""
    check_option("topk_ops", topk_ops)
    return table.iloc[:topk_ops]


def _summary_by_category(
    context: OperationsContext, *, topk_ops: int | None = None
) -> pd.DataFrame:
    return _first_rows(context.get_df_kernel_launchers_summary_by_category(), topk_ops)


def _summary(
    context: OperationsContext, *, topk_ops: int | None = None, tracelens_sheets: bool = False
) -> pd.DataFrame:
    table = _first_rows(context.get_df_kernel_launchers_summary(), topk_ops)
    if tracelens_sheets:
        return table
    names = [", ".join(ast.literal_eval(text)) for text in table["Categories"]]
    order = ["name", "Categories", "Count", f"{_DIRECT}_ms", *PERCENTAGES, f"{_SUBTREE}_ms"]
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
    # Sums are ms, as on the other sheets; what tells rows apart stands with the times.
    for time in (_DIRECT, _SUBTREE):
        table = table.assign(**{f"{time}_ms": table[f"{time}_sum"] / 1e3})
        table = table.drop(columns=f"{time}_sum")
    first = [
        "name",
        "op category",
        "Input Dims",
        "direct_kernel_count",
        "operation_count",
        f"{_DIRECT}_ms",
        *PERCENTAGES,
        f"{_SUBTREE}_ms",
        *(f"{_DIRECT}_{metric}" for metric in METRICS),
        "Input type",
        "Input Strides",
        "Concrete Inputs",
    ]
    return table[[n for n in dict.fromkeys([*first, *table]) if n in table]]


_of_time = partial(Chart, value_column=f"{_DIRECT}_ms", on="page")
TREE = Table(
    name="tree",
    shows="The call tree with GPU time, a row a node, parents before children",
    columns=[
        Column("depth", "0 for a root", unit="levels"),
        Column("name", "of the event; siblings of one name are one row"),
        Column(
            "kind",
            "`cpu_op`, `annotation`, `python`, `launch`, `kernel`, `memcpy`, `memset`; empty "
            "for a thread and for `(unlinked)`",
        ),
        Column("count", "in the row", unit="events"),
        Column("gpu_events", "at and below", unit="GPU events"),
        Column("busy_time_ms", "of those"),
        Column("% of GPU busy time", "of the trace"),
    ],
    table=of_gpu_events(call_tree_table),
    asked_by="tables",
    method="get_df_call_tree()",
)

OPS_SUMMARY_BY_CATEGORY = Table(
    name="ops_summary_by_category",
    shows="GPU time by category of operation, without communication",
    columns=[
        Column("op category", "what the operation is for, by its name"),
        Column("Count", "how many", unit="operations"),
        Column("total_direct_kernel_time_ms", "busy time of what it is the launcher of"),
        Column("Percentage (%)", "of the direct times of all operations"),
        Column("Cumulative Percentage (%)", "of the direct times of all operations"),
    ],
    table=_summary_by_category,
    when=[_CPU_OPS, GPU_EVENTS],
    options=["topk_ops"],
    method="get_df_kernel_launchers_summary_by_category()",
    charts=[
        _of_time(
            *("GPU time by operation category", "ops_summary_by_category", "op category"),
            unless=("gpu_time_by_category",),
        )
    ],
)
OPS_SUMMARY = Table(
    name="ops_summary",
    shows="GPU time by operation, without communication",
    columns=[
        Column(
            "name",
            "the *launcher*: the nearest CPU op above the launch that is not called "
            "`execute`; else the launch",
        ),
        Column(
            "total_direct_kernel_time_sum",
            "the same as `…_ms`; with `tracelens_sheets=True`",
        ),
        Column(
            "total_subtree_kernel_time_sum",
            "the same as `…_ms`; with `tracelens_sheets=True`",
        ),
        Column("Count", "how many", unit="operations"),
        Column("total_direct_kernel_time_ms", "busy time of what it is the launcher of"),
        Column("total_subtree_kernel_time_ms", "busy time of all below it"),
        Column("Categories", "the op categories; with `tracelens_sheets=True` a list as text"),
        Column("Percentage (%)", "of the direct times of all operations"),
        Column("Cumulative Percentage (%)", "of the direct times of all operations"),
    ],
    table=_summary,
    when=[_CPU_OPS, GPU_EVENTS],
    options=["topk_ops", "tracelens_sheets"],
    method="get_df_kernel_launchers_summary()",
    notes=_notes,
    charts=[
        _of_time(
            *("GPU time by operation", "ops_summary", "name"),
            top=15,
            unless=("kernel_categories", "kernels_by_category", "kernel_summary"),
        )
    ],
)
OPS_UNIQUE_ARGS = Table(
    name="ops_unique_args",
    shows="GPU time by operation and its arguments, without communication",
    columns=[
        Column(
            "name",
            "the *launcher*: the nearest CPU op above the launch that is not called "
            "`execute`; else the launch",
        ),
        Column("op category", "what the operation is for, by its name"),
        Column("process_name", "as the trace names them, else `Unknown`"),
        Column("process_label", "as the trace names them, else `Unknown`"),
        Column("thread_name", "as the trace names them, else `Unknown`"),
        Column(
            "Input Dims",
            "tuples as text; empty when the trace was recorded without shapes",
        ),
        Column(
            "Input type",
            "tuples as text; empty when the trace was recorded without shapes",
        ),
        Column(
            "Input Strides",
            "tuples as text; empty when the trace was recorded without shapes",
        ),
        Column(
            "Concrete Inputs",
            "tuples as text; empty when the trace was recorded without shapes",
        ),
        Column(
            "is_recompute",
            "whether the backward ran it again (activation checkpointing); only where it did",
        ),
        Column(
            "direct_kernel_count",
            "with `group_by_num_kernels=True`: operations that launched different numbers are "
            "rows of their own",
            unit="GPU events",
        ),
        Column("operation_count", "how many", unit="operations"),
        Column("total_direct_kernel_time_mean", _OVER_OPERATIONS),
        Column("total_direct_kernel_time_median", _OVER_OPERATIONS),
        Column("total_direct_kernel_time_std", _OVER_OPERATIONS),
        Column("total_direct_kernel_time_min", _OVER_OPERATIONS),
        Column("total_direct_kernel_time_max", _OVER_OPERATIONS),
        Column("total_direct_kernel_time_sum", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_mean", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_median", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_std", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_min", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_max", _OVER_OPERATIONS),
        Column("total_subtree_kernel_time_sum", _OVER_OPERATIONS),
        Column(
            "total_direct_kernel_time_ms",
            "the sums; with `tracelens_sheets=True` `…_sum` in their place",
        ),
        Column(
            "total_subtree_kernel_time_ms",
            "the sums; with `tracelens_sheets=True` `…_sum` in their place",
        ),
        Column(
            "first_occurrence_time",
            "start of the first such operation, after that of the first of all; with "
            "`include_first_occurrence_time=True`",
            unit="µs",
        ),
        Column(
            "parent_module",
            "the class of the innermost `nn.Module` around the first such operation (around "
            "its forward, of a backward one), and all of them, a list as text; with "
            "`include_call_stack=True`",
        ),
        Column(
            "call_stack",
            "the class of the innermost `nn.Module` around the first such operation (around "
            "its forward, of a backward one), and all of them, a list as text; with "
            "`include_call_stack=True`",
        ),
        Column(
            "ex_UID",
            "row in the trace of the first such operation, for `tree.print_subtree(…)`",
        ),
        Column(
            "kernel_details_summary",
            "the GPU events by name and stream, a list of dictionaries as a Python literal",
            unit="µs",
        ),
        Column("trunc_kernel_details", "the same with short names", unit="µs"),
        Column("Percentage (%)", "of the direct times of all operations"),
        Column("Cumulative Percentage (%)", "of the direct times of all operations"),
    ],
    table=_unique_args,
    when=[_CPU_OPS, GPU_EVENTS],
    options=[
        "topk_ops",
        "group_by_num_kernels",
        "tracelens_sheets",
        "include_call_stack",
        "include_first_occurrence_time",
    ],
    method="get_df_kernel_launchers_unique_args()",
)


def _wants_cpu_ops(context: AnalysisContext, options: ReportOptions) -> bool:
    if NO_GPU_EVENTS.holds(context, options):
        return True
    return "cpu_ops" in context.cited_tables(options.device_peaks)


CPU_OPS = Table(
    name="cpu_ops",
    shows="Host time by CPU operation",
    columns=[
        Column("cpu_op", "the operation"),
        Column("count", "how many", unit="operations"),
        Column("total_time_ms", "on the host; an operation within itself counts each time"),
        Column("self_time_ms", "without the CPU ops directly below"),
        Column("avg_time_us", "of one, with those"),
        Column("% of CPU op time", "of the sum of self times"),
    ],
    table=of_gpu_events(cpu_ops),
    when=[
        Condition(
            "the trace has no GPU events, or evidence names it",
            _wants_cpu_ops,
        )
    ],
    answer="Top CPU operations",
    answer_when=NO_GPU_EVENTS,
    answer_columns=(
        "cpu_op",
        "count",
        "total_time_ms",
        "self_time_ms",
        "avg_time_us",
        "% of CPU op time",
    ),
    charts=[Chart("CPU time by operation", "cpu_ops", "cpu_op", "self_time_ms", top=15, on="page")],
)
