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
    gpu_events: GpuEvents, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    return iteration_table(gpu_events, annotation).frame.copy()


def _statistics(
    gpu_events: GpuEvents, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    return iteration_table(gpu_events, annotation).statistics.copy()


def _report_notes(
    context: AnalysisContext,
    options: ReportOptions,
    _tables: Mapping[str, pd.DataFrame],
) -> Iterable[str]:
    if not _are_requested(options) or not len(context.gpu_events):
        return []
    table = iteration_table(context.gpu_events, options.annotation)
    if len(table):
        return table.notes
    wanted = "ProfilerStep#N"
    if options.annotation is not None:
        wanted = f"annotation that matches {options.annotation!r}"
    return [f"The trace has no {wanted}, so there are no tables of iterations."]


def _are_requested(options: ReportOptions) -> bool:
    """Return True if the user asked for tables of iterations."""
    return options.iterations or options.names_any_of(
        "iterations", "iteration_statistics"
    )


def _has_enough_iterations(context: AnalysisContext, options: ReportOptions) -> bool:
    """Return True if there are iterations to show.

    Unless tables of iterations were requested, there must be two whole ones to compare.
    """
    table = iteration_table(context.gpu_events, options.annotation)
    if _are_requested(options):
        return len(table) > 0
    whole = table.frame[table.frame["whole"]]
    return whole["iteration"].nunique() > 1


_HAS_ITERATIONS = Condition(
    "the trace has iterations (for a page, two complete ones)", _has_enough_iterations
)

_PROCESS = Column(
    "process",
    "process of the iteration; present only if several processes have iterations",
)
_DEVICE = Column("device", "number of the device; present only if there are several")

ITERATIONS = Table(
    name="iterations",
    description="Times of each iteration, and the outliers",
    columns=[
        Column("iteration", "name of the iteration, which is that of its annotation"),
        _PROCESS,
        _DEVICE,
        Column(
            "start_ms", "start of the iteration, since the first event of the trace"
        ),
        Column("wall_time_ms", "duration of the annotation on the CPU"),
        Column(
            "busy_time_ms",
            "part of the wall time during which the device was busy, "
            "whichever iteration launched the work",
        ),
        Column(
            "idle_time_ms", "part of the wall time during which the device was idle"
        ),
        Column(
            "launched_time_ms",
            "GPU busy time of the work that the iteration launched, whenever "
            "it ran, and of work without a launch in the trace that started "
            "in it: the sum of the next three columns",
        ),
        Column(
            "computation_time_ms",
            "part of the launched time during which kernels other than "
            "communication, or memsets, ran",
        ),
        Column(
            "exposed_comm_time_ms",
            "part of the launched time during which communication (by the "
            "built-in rules) was not hidden by computation",
        ),
        Column(
            "exposed_memcpy_time_ms",
            "part of the launched time during which copies were hidden by "
            "neither computation nor communication",
        ),
        Column(
            "kernels",
            "number of kernels of the iteration, without copies and memsets",
            unit="kernels",
        ),
        Column(
            "unmatched_launches",
            "number of launches of kernels, graphs and copies whose GPU work "
            "was lost, or was cut off by the end of the recording",
            unit="launches",
        ),
        Column(
            "whole",
            "True if the iteration ended before the recording did, and "
            "launched GPU work",
        ),
        Column(
            "odd", "columns in which the iteration is an outlier, separated by commas"
        ),
        Column(
            "CATEGORY_time_ms",
            "total duration of the GPU events of the kernel category, when "
            "categories are on",
        ),
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
    description="Mean and spread of each measured quantity over the complete iterations",
    columns=[
        Column("column", "measured quantity: a column of `iterations`"),
        _DEVICE,
        Column("iterations", "number of complete iterations", unit="iterations"),
        Column(
            "mean",
            "mean over the complete iterations",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "std",
            "sample standard deviation; 0 for a single iteration",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "median",
            "median over the complete iterations",
            unit="in the unit of the measured quantity",
        ),
        Column(
            "mad",
            "median absolute deviation from the median",
            unit="in the unit of the measured quantity",
        ),
        Column("min", "least value", unit="in the unit of the measured quantity"),
        Column("max", "greatest value", unit="in the unit of the measured quantity"),
        Column(
            "odd",
            (
                "number of outliers among five or more iterations: those that "
                "differ from the median by more than three times `mad`, by more "
                "than 5 % and, for times, by more than 1 % of the median wall "
                "time"
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
