"""Time of the calls of the GPU's runtime and driver, by name."""

from __future__ import annotations

from typing import Final

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import AnswerView
from tracelens_ext.trace import LAUNCH_KINDS
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

_COLUMNS: Final = (
    "call",
    "count",
    "total_time_ms",
    "% of call time",
    "avg_time_us",
    "max_time_us",
)


def api_calls(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row for each name of a call, longest total time first."""
    trace = gpu_events.trace
    rows = trace.rows_of(*LAUNCH_KINDS)
    groups = group_durations([trace.name[rows]], trace.dur[rows])
    total_ns = max(int(groups.total.sum()), 1)
    figures = groups.figures("count", "total_time_ms", "avg_time_us", "max_time_us")
    names = [trace.names[code] for code in groups.keys[0].tolist()]
    table = pd.DataFrame({"call": pd.array(names, dtype="str"), **figures})
    table["% of call time"] = 100.0 * groups.total / total_ns
    return table[list(_COLUMNS)]


def _has_calls(context: AnalysisContext, _options: ReportOptions) -> bool:
    return context.gpu_events.trace.count_of(*LAUNCH_KINDS) > 0


def _is_wanted(context: AnalysisContext, options: ReportOptions) -> bool:
    is_native = program_of(context.gpu_events.trace).kind == "native"
    return is_native or options.names_any_of("api_calls")


API_CALLS = Table(
    name="api_calls",
    description="Calls of the GPU runtime and driver, by time",
    columns=[
        Column("call", "name of the call"),
        Column("count", "number of calls", unit="calls"),
        Column(
            "total_time_ms",
            "total duration of the calls, including calls nested in them",
        ),
        Column("% of call time", "share of the total duration of all calls"),
        Column("avg_time_us", "mean duration of a call"),
        Column("max_time_us", "duration of the longest call"),
    ],
    build=of_gpu_events(api_calls),
    requires=[
        GPU_EVENTS,
        Condition("API calls were recorded", _has_calls),
        Condition("the program has no framework", _is_wanted),
    ],
    answer=AnswerView(
        title="API calls",
        columns=("call", "total_time_ms", "% of call time", "count", "max_time_us"),
    ),
)
