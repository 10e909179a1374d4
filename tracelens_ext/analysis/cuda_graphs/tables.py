"""The tables of graph launches: their launch sites, their operations, and what they replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.cuda_graphs.launch_sites import (
    busy_time_by_category,
    launch_sites,
)
from tracelens_ext.analysis.cuda_graphs.replayed_captures import (
    captured_operations,
    replayed_captures,
)
from tracelens_ext.analysis.cuda_graphs.replays import GraphReplays
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import ScreenView

#: The least share of GPU time in unknown graphs for which the report asks for captures.
_MIN_SHARE_TO_ADVISE = 0.05


class GraphContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the captured graphs that its graph launches replay."""

    @property
    def graph_replays(self) -> GraphReplays | None:
        """The captured graphs that graph launches replay; None without captures."""


def _ask_for_captures(context: GraphContext) -> Iterator[str]:
    """Yield the advice to give captures, if graphs of unknown content take much GPU time."""
    is_unknown = context.tree.by_unknown_graph
    gpu_events = context.gpu_events
    total_ns = int(gpu_events.duration.sum())
    unknown_ns = gpu_events.duration[is_unknown].sum()
    if context.graph_replays is None and unknown_ns > _MIN_SHARE_TO_ADVISE * total_ns:
        yield (
            f"The operations of {gpu_events.count_text(is_unknown)} inside graph "
            "launches are unknown; --capture FILE_OR_FOLDER takes them from the "
            "profile in which the graphs were captured."
        )


def capture_notes(context: GraphContext) -> Iterator[str]:
    """Yield how many GPU events of graph launches have the operation of their capture."""
    if context.graph_replays is None:
        return
    by_graph = context.tree.by_graph
    is_opaque = context.tree.by_opaque_graph
    known_count = int((by_graph & ~is_opaque).sum())
    graph_count = int(by_graph.sum())
    note = (
        f"{known_count:,} of {graph_count:,} GPU events of graph launches are "
        "assigned to the operation of their capture."
    )
    if is_opaque.any():
        note += f" Not assigned: {context.gpu_events.count_text(is_opaque)}."
    yield note


def _build_graph_captures(context: GraphContext) -> pd.DataFrame:
    return replayed_captures(context.graph_replays)


def _has_graph_launches(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.tree.by_graph.any())


def _has_captures(context: GraphContext, _options: ReportOptions) -> bool:
    return context.graph_replays is not None


def _launch_notes(
    context: GraphContext, _options: ReportOptions, _tables: Tables
) -> Iterator[str]:
    return _ask_for_captures(context)


def _capture_notes(
    context: GraphContext, _options: ReportOptions, _tables: Tables
) -> Iterator[str]:
    return capture_notes(context)


GRAPH_LAUNCHES = Table(
    name="graph_launches",
    description="Graph launches, by where they are launched",
    columns=[
        Column("launch", "name of the runtime call that launched the graphs"),
        Column(
            "path",
            "CPU ops around the launches, outermost first, separated by ` > "
            "`; annotations such as `ProfilerStep#3` are not included",
        ),
        Column("launches", "number of launches", unit="launches"),
        Column(
            "kernels_per_launch",
            "number of GPU events of each launch; 0 if the trace does not contain them",
            unit="GPU events",
        ),
        Column("busy_time_ms", "total busy time of the launches"),
        Column("avg_busy_time_us", "mean busy time of a launch"),
        Column("min_busy_time_us", "shortest busy time of a launch"),
        Column("max_busy_time_us", "longest busy time of a launch"),
        Column(
            "avg_span_time_us",
            "mean time from the first start to the last end of the GPU events "
            "of a launch; what exceeds the busy time is gaps within the "
            "graph",
        ),
        Column(
            "% of GPU busy time",
            "`busy_time_ms` as a share of the busy time of all GPU events",
        ),
        Column(
            "CATEGORY_percent",
            "share of the kernel category in the total duration of the GPU "
            "events of the launches, when categories are on",
        ),
    ],
    build=of_gpu_events(launch_sites),
    requires=[
        GPU_EVENTS,
        Condition("a graph launch started GPU events", _has_graph_launches),
    ],
    notes=_launch_notes,
    charts=[
        Chart(
            title="GPU time by graph launch",
            sheet="graph_launches",
            label_column="site",
            value_column="busy_time_ms",
            kind="stacked",
            top=15,
            series_column="category",
            prepare=busy_time_by_category,
            on="page",
        )
    ],
)

CAPTURED = [
    GPU_EVENTS,
    Condition(
        "a graph launch started GPU events, and the trace or `--capture` contains "
        "captures of graphs",
        _has_captures,
    ),
]
GRAPH_OPERATIONS = Table(
    name="graph_operations",
    description="Work of the graph launches, by the operation that was captured",
    columns=[
        Column("operation", "innermost CPU op around the captured launches"),
        Column(
            "calls",
            "number of calls of the operation; each replay of a graph counts",
            unit="calls",
        ),
        Column(
            "kernels",
            "number of GPU events that replay these launches",
            unit="GPU events",
        ),
        Column("total_time_us", "total duration of these GPU events"),
    ],
    build=of_gpu_events(captured_operations),
    screen=ScreenView("Operations in graph launches"),
    requires=CAPTURED,
)
GRAPH_CAPTURES = Table(
    name="graph_captures",
    description="Captured graphs that the graph launches replay, and how well they match",
    columns=[
        Column("launch", "name of the runtime call that launched the graph"),
        Column(
            "capture",
            "file with the capture; empty if no capture matches, or if "
            "several different ones do",
        ),
        Column(
            "graph",
            "position among the graphs that were captured together, from 0",
            unit="graph",
        ),
        Column(
            "batch_size",
            "batch size that the graph was captured for; if not recorded, the "
            "first dimension of the first inputs of most of its operations",
            unit="batch",
        ),
        Column("mode", "mode of the capture, such as `FULL` or `PIECEWISE`"),
        Column("replays", "number of launches of the graph", unit="launches"),
        Column(
            "gpu_events", "number of GPU events of these launches", unit="GPU events"
        ),
        Column(
            "matched",
            "number of GPU events that match a captured launch",
            unit="GPU events",
        ),
        Column(
            "inserted",
            "number of GPU events that match no captured launch; they stay "
            "below the graph launch",
            unit="GPU events",
        ),
        Column(
            "missing",
            "number of captured launches that no GPU event matches",
            unit="captured launches",
        ),
        Column("gpu_time_ms", "total duration of the GPU events"),
        Column(
            "tokens_per_replay",
            "mean number of tokens per launch, from the annotations of the steps",
            unit="tokens",
        ),
        Column(
            "padding_percent", "share of the batch size that these tokens do not use"
        ),
    ],
    build=_build_graph_captures,
    requires=CAPTURED,
    notes=_capture_notes,
)
