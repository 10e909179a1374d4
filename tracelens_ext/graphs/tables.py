"""The sheets of graph launches: where they are, what is in them, which captures tell that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.graphs.graph_launches import graph_captures, graph_launches, graph_operations
from tracelens_ext.lazy import pd
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.analyzer import TreePerfAnalyzer

#: Graph launches with a larger share of the GPU time than this deserve a word of advice.
_MUCH = 0.05
_CATEGORY_SHARE = re.compile(r"(?P<category>.+) \(% of kernel time\)")


def _sites(table: pd.DataFrame) -> pd.DataFrame:
    """The busy time of each launch site, divided as the durations of its kernels are."""
    columns = ["launch", "path", "launches", "kernels_per_launch"]
    site = [
        f"{launches:,} \u00d7 {kernels:,} kernels: {path or launch}"
        for launch, path, launches, kernels in table[columns].itertuples(index=False)
    ]
    if len(set(site)) < len(site):  # same path, as many kernels, but not the same ones
        site = [f"#{number} {text}" for number, text in enumerate(site, 1)]
    shares = {
        found["category"]: table[column] / 100.0
        for column in table.columns
        if (found := _CATEGORY_SHARE.fullmatch(str(column)))
    }
    shares = shares or {"": pd.Series(1.0, index=table.index)}
    parts = [
        pd.DataFrame(
            {"site": site, "category": name, "busy_time_ms": table["busy_time_ms"] * share}
        )
        for name, share in shares.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _ask_for_captures(analyzer: TreePerfAnalyzer) -> Iterator[str]:
    """What to do about graph launches that nothing is known of."""
    opaque, total = analyzer.tree.by_unknown_graph, int(analyzer.work.duration.sum())
    if analyzer.graph_replays is None and analyzer.work.duration[opaque].sum() > _MUCH * total:
        yield (
            f"Graph launches tell no operations of {analyzer.work.count_text(opaque)}; --capture"
            " FILE_OR_FOLDER takes them from the profile in which the graphs were captured."
        )


def capture_notes(analyzer: TreePerfAnalyzer) -> Iterator[str]:
    """How much of the graph launches the captures tell."""
    if analyzer.graph_replays is None:
        return
    by_graph, opaque = analyzer.tree.by_graph, analyzer.tree.by_opaque_graph
    known = f"{int((by_graph & ~opaque).sum()):,} of {int(by_graph.sum()):,}"
    rest = f"; {analyzer.work.count_text(opaque)} do not" if opaque.any() else ""
    yield f"{known} GPU events of graph launches have the operation of their capture{rest}."


def _captures(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """Which captured graphs the graph launches replay.

    Raises:
        UsageError: there is no graph launch, or no capture.
    """
    if analyzer.graph_replays is None:
        raise UsageError(
            "this needs a trace with graph launches, and"
            " TreePerfAnalyzer(trace, capture=FILE_OR_FOLDER)"
        )
    return graph_captures(analyzer.graph_replays)


GRAPH_LAUNCHES = Table(
    name="graph_launches",
    shows="Graph launches by the place that launches them",
    columns="""
        launch: the runtime call
        path: the CPU ops around it, outermost first, joined by ` > `; annotations such as
            `ProfilerStep#3` are no part of it
        launches [launches]: how many
        kernels_per_launch [GPU events]: 0 if the trace does not hold their work
        busy_time_ms: busy time of the launches, summed
        avg_busy_time_us, min_busy_time_us, max_busy_time_us: of a launch
        avg_span_time_us: first start to last end of a launch; what exceeds the busy time is gaps
            within the graph
        % of GPU busy time: of the busy time of all GPU events
        CATEGORY (% of kernel time): when categories are on: share in the summed durations of the
            site
        """,
    table=lambda analyzer: graph_launches(analyzer.work),
    when=[
        GPU_EVENTS,
        Condition(
            "a graph launch started GPU events",
            lambda analyzer, _: bool(analyzer.tree.by_graph.any()),
        ),
    ],
    notes=lambda analyzer, *_: _ask_for_captures(analyzer),
    charts=[
        Chart(
            "GPU time by graph launch",
            "graph_launches",
            "site",
            "busy_time_ms",
            kind="stacked",
            top=15,
            series_column="category",
            prepare=_sites,
            on="page",
        )
    ],
)

CAPTURED = [
    GPU_EVENTS,
    Condition(
        "a graph launch started GPU events, and the trace or `--capture` holds captures of graphs",
        lambda analyzer, _: analyzer.graph_replays is not None,
    ),
]
GRAPH_OPERATIONS = Table(
    name="graph_operations",
    shows="Graph launches by the operations that were captured",
    columns="""
        operation: the innermost CPU op around the captured launch
        calls [calls]: how many there are in a graph, summed over its replays
        kernels [GPU events]: how many replay what those launched
        total_time_us: summed duration of these
        """,
    table=lambda analyzer: graph_operations(analyzer.work),
    screen="Operations inside of graph launches",
    when=CAPTURED,
)
GRAPH_CAPTURES = Table(
    name="graph_captures",
    shows="Which captured graphs the graph launches replay, and how well they correspond",
    columns="""
        launch: the runtime call
        capture: the file with the capture; empty where none fits, or several that are not the same
        graph [graph]: its place among the graphs that were captured together, from 0
        batch_size [batch]: what it was captured for; where nothing names it, the first dimension
            of the first inputs of most operations
        mode: likewise, such as `FULL` or `PIECEWISE`
        replays [launches]: launches of that graph
        gpu_events [GPU events]: theirs
        matched [GPU events]: those that correspond to a captured launch
        inserted [GPU events]: those that correspond to none; they stay under the graph launch
        missing [captured launches]: those that no GPU event corresponds to
        gpu_time_ms: summed duration of the GPU events
        tokens_per_replay [tokens]: what the annotation of the step says, on average
        padding (%): how much of the batch size those do not need
        """,
    table=_captures,
    when=CAPTURED,
    notes=lambda analyzer, *_: capture_notes(analyzer),
)
TABLES = [GRAPH_LAUNCHES, GRAPH_OPERATIONS, GRAPH_CAPTURES]
