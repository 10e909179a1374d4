"""The declarations of the tables of iterations."""

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
        wanted = f"annotation that matches {options.annotation!r}"
    return [f"The trace has no {wanted}, so there are no tables of iterations."]


def _has_enough_iterations(context: AnalysisContext, options: ReportOptions) -> bool:
    """Return True if there are iterations to show.

    Unless tables of iterations were requested, there must be two whole ones to compare.
    """
    table = iteration_table(context.gpu_events, options.annotation)
    if options.iterations or options.names_any_of("iterations", "iteration_statistics"):
        return len(table) > 0
    whole = table.frame[table.frame["whole"]]
    return whole["iteration"].nunique() > 1


_HAS_ITERATIONS = Condition(
    "the trace has iterations (for a page, two complete ones)", _has_enough_iterations
)

ITERATIONS = Table(
    name="iterations",
    description="Time of each iteration, and the outliers",
    columns=[
        Column("iteration", "name of the annotation"),
        Column("process", "if there are several"),
        Column("device", "if there are several"),
        Column("start_ms", "since the first event of the trace"),
        Column("wall_time_ms", "duration of the annotation on the CPU"),
        Column(
            "busy_time_ms",
            "part of the wall time during which the device ran anything",
        ),
        Column(
            "idle_time_ms", "part of the wall time during which the device was idle"
        ),
        Column(
            "launched_time_ms",
            "GPU busy time of the work launched in the iteration, whenever it ran, and of "
            "work started in it whose launch is not in the trace: the sum of the next three "
            "columns",
        ),
        Column(
            "computation_time_ms",
            "kernels other than communication and copies, and memsets",
        ),
        Column(
            "exposed_comm_time_ms",
            "communication (by the built-in rules) that is not hidden by computation",
        ),
        Column(
            "exposed_memcpy_time_ms",
            "copies hidden by neither computation nor communication",
        ),
        Column("kernels", "GPU events of the iteration", unit="kernels"),
        Column(
            "unmatched_launches",
            "launches of kernels, graphs and copies whose GPU work was lost, or cut "
            "off by the end of the recording",
            unit="launches",
        ),
        Column(
            "whole",
            "the iteration ended before the recording did, and launched GPU work",
        ),
        Column("odd", "columns in which the iteration is an outlier"),
        Column("CATEGORY_time_ms", "sum of durations, when categories are on"),
    ],
    build=of_gpu_events(_iterations),
    options=["annotation"],
    requires=[GPU_EVENTS, _HAS_ITERATIONS],
    enabled_by="iterations",
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
    description="Mean and spread over complete iterations",
    columns=[
        Column("column", "measured quantity, with its unit"),
        Column("device", "if there are several"),
        Column("iterations", "number of complete iterations", unit="iterations"),
        Column(
            "mean",
            "mean over complete iterations",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "std",
            "sample standard deviation, 0 for a single iteration",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "median",
            "median over complete iterations",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "mad",
            "median absolute deviation",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "min", "the smallest value", unit="in the unit of the measured quantity"
        ),
        Column("max", "the largest value", unit="in the unit of the measured quantity"),
        Column(
            "odd",
            (
                "iterations that differ from the median by more than three times "
                "`mad` and by more than 5 %"
            ),
            unit="iterations",
        ),
    ],
    build=of_gpu_events(_statistics),
    options=["annotation"],
    requires=[GPU_EVENTS, _HAS_ITERATIONS],
    enabled_by="iterations",
    on_every_page=True,
)
