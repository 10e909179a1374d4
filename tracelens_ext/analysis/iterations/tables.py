"""The tables of iterations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.iterations.measurement import iteration_table
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace.gpu_events import GpuEvents


def _iterations(
    work: GpuEvents, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    return iteration_table(work, annotation).frame.copy()


def _statistics(
    work: GpuEvents, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    return iteration_table(work, annotation).statistics.copy()


def _report_notes(
    context: AnalysisContext,
    options: ReportOptions,
    _tables: Mapping[str, pd.DataFrame],
) -> Iterable[str]:
    if not options.iterations or not len(context.gpu_events):
        return []
    table = iteration_table(context.gpu_events, options.annotation)
    if len(table):
        return table.notes
    wanted = "ProfilerStep#N"
    if options.annotation is not None:
        wanted = f"annotation like {options.annotation!r}"
    return [f"The trace has no {wanted}, so there are no tables of iterations."]


def _has_enough_iterations(context: AnalysisContext, options: ReportOptions) -> bool:
    """Return whether there are iterations; by default, two whole ones that can be compared."""
    table = iteration_table(context.gpu_events, options.annotation)
    if options.iterations or options.names("iterations", "iteration_statistics"):
        return len(table) > 0
    whole = table.frame[table.frame["whole"]]
    return whole["iteration"].nunique() > 1


_HAS_ITERATIONS = Condition(
    "the trace has iterations (for a page, two whole ones)", _has_enough_iterations
)

ITERATIONS = Table(
    name="iterations",
    shows="Time of each iteration, and which are odd",
    columns=[
        Column("iteration", "the annotation's name"),
        Column("process", "where there are several"),
        Column("device", "where there are several"),
        Column("start_ms", "since the trace's first event"),
        Column("wall_time_ms", "of the annotation, on the host"),
        Column(
            "busy_time_ms",
            "of the wall time, while the device ran anything",
        ),
        Column("idle_time_ms", "of the wall time, while the device ran nothing at all"),
        Column(
            "launched_time_ms",
            "of what was launched in it, and what started in it without a launch in the "
            "trace, whenever that ran: the sum of the three that follow",
        ),
        Column(
            "computation_time_ms",
            "kernels that neither communicate nor copy, and memsets",
        ),
        Column(
            "exposed_comm_time_ms",
            "communication (by the built-in rules) that none of those hid",
        ),
        Column("exposed_memcpy_time_ms", "copies that neither hid"),
        Column("kernels", "of its GPU work", unit="kernels"),
        Column(
            "unmatched_launches",
            "of kernels, graphs and copies; they were lost, or cut off by the end of the recording",
            unit="launches",
        ),
        Column("whole", "it ended before the recording did, and launched GPU work"),
        Column("odd", "the columns in which it is odd"),
        Column("CATEGORY_time_ms", "when categories are on: summed durations"),
    ],
    table=of_gpu_events(_iterations),
    options=["annotation"],
    when=[GPU_EVENTS, _HAS_ITERATIONS],
    asked_by="iterations",
    charts=[
        Chart(
            title="Iterations",
            sheet="iterations",
            label_column="iteration",
            value_column="wall_time_ms",
            kind="iterations",
            on="page",
        )
    ],
    notes=_report_notes,
    on_every_page=True,
)
ITERATION_STATISTICS = Table(
    name="iteration_statistics",
    shows="Mean and spread over whole iterations",
    columns=[
        Column("column", "what was measured, with its unit"),
        Column("device", "where there are several"),
        Column("iterations", "that are whole", unit="iterations"),
        Column("mean", "over them", unit="unit of what is told"),
        Column(
            "std",
            "standard deviation of a sample, 0 for a single iteration",
            unit="unit of what is told",
        ),
        Column("median", "over them", unit="unit of what is told"),
        Column("mad", "median absolute deviation", unit="unit of what is told"),
        Column("min", "the least", unit="unit of what is told"),
        Column("max", "the largest", unit="unit of what is told"),
        Column(
            "odd", "beyond three of `mad`, and 5 %, from the median", unit="iterations"
        ),
    ],
    table=of_gpu_events(_statistics),
    options=["annotation"],
    when=[GPU_EVENTS, _HAS_ITERATIONS],
    asked_by="iterations",
    on_every_page=True,
)
