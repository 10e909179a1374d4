"""Writes the page about all ranks: verdicts, waits and their root causes, and bandwidths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.aggregate import CallSpan
from tracelens_ext.distributed.calls import CallState
from tracelens_ext.distributed.pipeline.chart import stage_timeline
from tracelens_ext.distributed.pipeline.tables import STAGES_TABLE, PipelineJob
from tracelens_ext.distributed.table_rows import table_rows
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import ONE_COLOR
from tracelens_ext.report.html import write_html
from tracelens_ext.report.html_figures import Figure, plotly_trace, spec_of
from tracelens_ext.report.html_texts import (
    bytes_text,
    duration_text,
    elided,
    plotly_text,
)
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.charts import Chart

_TITLE = "Ranks of a job"
_ROOT_CAUSES_CHART = Chart(
    "Waits by the rank that caused them",
    "origins",
    "rank",
    "wait_ms",
    "stacked",
    64,
    "cause",
)
#: The most columns of the heat map. If there are more iterations, several share a column.
_MAX_COLUMNS = 300
#: Heat maps with more rows have no gaps between them.
_MAX_ROWS_WITH_GAPS = 128
#: Heat maps with more rows do not label each of them.
_MAX_ROWS_WITH_ALL_LABELS = 32
#: The most points of the chart of bandwidths, and the most collectives with a color of their own.
_MAX_POINTS = 2000
_MAX_LEGEND = 6
#: How many verdicts are listed at the top of the page.
_MAX_VERDICTS = 10
_MAX_NAME_CHARACTERS = 40
_MAX_RANKS_CHARACTERS = 50
#: How many ranks the summary of the heat map names.
_LONGEST_WAITS = 3
_US_PER_MS = 1e3
_PALETTE = (
    ONE_COLOR,
    "#e58a2b",
    "#2f9e73",
    "#d1495b",
    "#8d6bc7",
    "#17a2b8",
    "#8b93a1",
)
_WAIT_COLOR = "#d1495b"
_NO_WAIT_COLOR = "rgba(139,147,161,0.15)"
_LINE_COLOR = "#8b93a1"
_OTHERS = "others"
#: Label of the time outside of iterations.
_OUTSIDE = "outside"
_BEST_TITLES = {
    CallSpan.NODE: "Best within a node",
    CallSpan.ACROSS: "Best across nodes",
}


def write_page(
    path: Path,
    tables: Mapping[str, pd.DataFrame],
    links: Sequence[tuple[str, str]],
    failures: PartFailures | None = None,
    pipelines: PipelineJob | None = None,
) -> None:
    """Write the page with the tables and charts about all ranks.

    Args:
        path: the file to write.
        tables: the tables about all ranks, by name. `verdicts` is required; charts and sheets
            whose tables are missing are left out.
        links: label and address of each page that is linked.
        failures: messages about missing parts; receives further ones about charts that fail.
        pipelines: the pipelines of the job, for the chart of their stages.
    """
    failures = failures or PartFailures()
    sheets = _sheets(tables, failures)
    charts = []
    if "origins" in sheets and _ROOT_CAUSES_CHART.fits(sheets["origins"]):
        charts.append(_ROOT_CAUSES_CHART)
    figures = []
    if pipelines is not None and STAGES_TABLE in sheets:
        with failures.isolate("The chart of the stages of the pipeline"):
            figures.extend(stage_timeline(pipelines))
    if "waits" in sheets:
        with failures.isolate("The chart of waits by rank and iteration"):
            figures.extend(heat_map(sheets["waits"].dropna()))
    if "bandwidths" in sheets:
        with failures.isolate("The chart of bus bandwidths"):
            figures.extend(_bandwidth_figures(sheets["bandwidths"]))
    report = Report(
        _TITLE,
        sheets,
        facts=_first_verdicts(tables["verdicts"]),
        notes=list(failures.messages),
        charts=charts,
    )
    write_html(path, report, figures=figures, links=links)


def _sheets(
    tables: Mapping[str, pd.DataFrame], failures: PartFailures
) -> dict[str, pd.DataFrame]:
    """Return the tables that the page shows, by name."""
    sheets = {"verdicts": tables["verdicts"]}
    calls = tables.get("collective_calls")
    if calls is not None and "collective_waits" in tables:
        with failures.isolate("The table waits"):
            sheets["waits"] = _waits_by_iteration(tables["collective_waits"], calls)
    if "wait_root_causes" in tables:
        sheets["origins"] = tables["wait_root_causes"].astype({"rank": "Int64"})
    if calls is not None:
        with failures.isolate("The table bandwidths"):
            sheets["bandwidths"] = _bandwidths(calls)
        sheets["not_matched"] = calls[calls["state"] != CallState.COMPLETE]
    if STAGES_TABLE in tables and len(tables[STAGES_TABLE]):
        sheets[STAGES_TABLE] = tables[STAGES_TABLE]
    for name in ("collective_groups", "clocks", "overlap"):
        if name in tables:
            sheets[name] = tables[name]
    return sheets


def _first_verdicts(verdicts: pd.DataFrame) -> list[tuple[str, object]]:
    """Return the first verdicts as sentences for the top of the page."""
    texts = []
    for row in table_rows(verdicts.head(_MAX_VERDICTS)):
        verdict = row.verdict
        if not pd.isna(row.rank):
            verdict = f"{verdict}, rank {row.rank:.0f}"
        texts.append(f"{verdict}: {row.evidence}")
    if not texts:
        texts = ["none: no rank and no link stands out"]
    return [("Verdict", text) for text in texts]


def _waits_by_iteration(waits: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the time that each rank waited in each iteration, ms."""
    iteration_of_call = calls.set_index("call")["iteration"]
    waits = waits.assign(
        wait_ms=waits["wait_us"] / _US_PER_MS,
        iteration=waits["call"].map(iteration_of_call),
    )
    by_iteration = waits.groupby(["rank", "iteration"])["wait_ms"]
    return by_iteration.sum(min_count=1).reset_index()


def _bandwidths(calls: pd.DataFrame) -> pd.DataFrame:
    """Return median and best bus bandwidth of equal calls: same collective, ranks and bytes."""
    keys = ["collective", "process_group", "ranks", "span", "bytes"]
    has_bandwidth = calls["bus_bandwidth_gb_s"].notna()
    has_bytes = calls["bytes"] > 0
    calls_with_bandwidth = calls[has_bandwidth & has_bytes]
    equal_calls = calls_with_bandwidth.groupby(keys, dropna=False)
    bandwidths = equal_calls["bus_bandwidth_gb_s"].agg(
        calls="size",
        median_gb_s="median",
        best_gb_s="max",
    )
    return bandwidths.reset_index()


# Waits.


def heat_map(waits: pd.DataFrame) -> list[Figure]:
    """Return the heat map of waits, with a row for each rank and a column for each iteration.

    The list is empty if there are no waits.
    """
    if waits.empty:
        return []
    longest = waits.groupby("rank")["wait_ms"].sum().nlargest(_LONGEST_WAITS)
    texts = [
        f"rank {rank} {duration_text(wait_ms)}" for rank, wait_ms in longest.items()
    ]
    figure = Figure(
        key="chart-waits",
        title="Waits by rank and iteration",
        summary=f"Longest waits: {', '.join(texts)}",
        legend=[],
        sheet="waits",
        spec=_heat_map_spec(waits),
    )
    return [figure]


def _heat_map_spec(waits: pd.DataFrame) -> dict[str, object]:
    """Return the cells and the layout of the heat map of waits for Plotly."""
    # Shorter names first, so that iteration 9 comes before iteration 10.
    names = sorted(set(waits["iteration"]), key=lambda name: (len(name), name))
    column_count = min(len(names), _MAX_COLUMNS)
    columns = np.arange(len(names)) * column_count // len(names)
    column_of_name = dict(zip(names, columns.tolist(), strict=True))
    cells = _cells(waits, column_of_name)
    rows = _without_nan(cells)
    gap_between_rows = 1 if len(rows) <= _MAX_ROWS_WITH_GAPS else 0
    column_texts = _column_texts(names, columns.tolist())
    heat_map_trace = plotly_trace(
        "heatmap",
        x=[plotly_text(text) for text in column_texts],
        y=cells.index.tolist(),
        z=rows,
        zmin=0,
        colorscale=[[0, _NO_WAIT_COLOR], [1, _WAIT_COLOR]],
        colorbar={"thickness": 10, "ticksuffix": " ms", "outlinewidth": 0},
        hovertemplate="<b>rank %{y}</b>, iteration %{x}<br>%{z:,.3~f} ms<extra></extra>",
        xgap=1,
        ygap=gap_between_rows,
    )
    return spec_of([heat_map_trace], _heat_map_layout(len(rows)))


def _heat_map_layout(row_count: int) -> dict[str, object]:
    """Return the layout of the heat map for Plotly, with a row for each rank."""
    rank_axis: dict[str, object] = {
        "autorange": "reversed",
        "tickformat": "d",
        "title": {"text": "rank"},
        "showgrid": False,
    }
    if row_count <= _MAX_ROWS_WITH_ALL_LABELS:
        rank_axis["dtick"] = 1
    height = 22 * row_count + 70
    return {
        "height": int(np.clip(height, 180, 700)),
        "xaxis": {
            "type": "category",
            "title": {"text": "iteration"},
            "showgrid": False,
        },
        "yaxis": rank_axis,
    }


def _cells(waits: pd.DataFrame, column_of_name: Mapping[str, int]) -> pd.DataFrame:
    """Return the waits by rank (rows) and column of the heat map, ms.

    Ranks without waits between the first and the last rank have empty rows.
    """
    column = waits["iteration"].map(column_of_name)
    wait_of_cell = waits.groupby([waits["rank"], column])["wait_ms"].sum()
    table = wait_of_cell.unstack()
    first_rank = int(table.index.min())
    last_rank = int(table.index.max())
    return table.reindex(range(first_rank, last_rank + 1))


def _column_texts(names: Sequence[str], column_of_name: Sequence[int]) -> list[str]:
    """Return the label of each column of the heat map: its first and last iteration."""
    names_of_column: dict[int, list[str]] = {}
    for name, column in zip(names, column_of_name, strict=True):
        names_of_column.setdefault(column, []).append(name)
    return [
        _range_text(column_names[0], column_names[-1])
        for column_names in names_of_column.values()
    ]


def _range_text(first: str, last: str) -> str:
    """Return the label of consecutive iterations; time outside of iterations has no name."""
    first = first or _OUTSIDE
    if first == last:
        return first
    return f"{first} to {last}"


def _without_nan(cells: pd.DataFrame) -> list[list[float | None]]:
    """Return the rows of a heat map; cells without waits are None."""
    values = cells.astype(object).where(cells.notna(), None)
    rows: list[list[float | None]] = values.to_numpy().tolist()
    return rows


# Bandwidths.


def _bandwidth_figures(bandwidths: pd.DataFrame) -> list[Figure]:
    """Return the chart of bandwidths; the list is empty if there are none.

    There is a point at the median of each collective, group and size, and a line at the best
    bandwidth within a node and across nodes.
    """
    if bandwidths.empty:
        return []
    points = bandwidths.nlargest(_MAX_POINTS, "calls", keep="first")
    traces, legend = _points_by_collective(points)
    best_of_span = bandwidths.groupby(bandwidths["span"].fillna(""))["best_gb_s"].max()
    texts = []
    lines = []
    for span, bandwidth in zip(best_of_span.index, best_of_span.tolist(), strict=True):
        text = f"{_BEST_TITLES.get(span, 'Best')}: {bandwidth:,.1f} GB/s"
        texts.append(text)
        lines.append(_line(bandwidth, text))
    if len(points) < len(bandwidths):
        texts.append(
            f"the {len(points):,} of {len(bandwidths):,} points with the most calls"
        )
    highest = float(best_of_span.max())
    layout = {
        "shapes": lines,
        "height": 380,
        "xaxis": {
            "type": "log",
            "title": {"text": "bytes of the call"},
            "exponentformat": "SI",
        },
        "yaxis": {"title": {"text": "GB/s"}, "range": [0, 1.12 * highest]},
    }
    figure = Figure(
        key="chart-bandwidths",
        title="Bus bandwidth by size, median of each group",
        summary="; ".join(texts),
        legend=legend,
        sheet="bandwidths",
        spec=spec_of(traces, layout),
    )
    return [figure]


class _ColoredPoints(NamedTuple):
    """The points of a chart, in the colors of their collectives."""

    traces: list[dict[str, object]]  #: the points of each collective for Plotly
    legend: list[tuple[str, str]]  #: the name and the color of each collective


def _points_by_collective(points: pd.DataFrame) -> _ColoredPoints:
    """Return the points of the most frequent collectives, and of all others, in colors."""
    collectives = points["collective"].value_counts().index.tolist()
    if len(collectives) > _MAX_LEGEND + 1:
        collectives = collectives[:_MAX_LEGEND] + [_OTHERS]
    is_named = points["collective"].isin(collectives)
    label_of_point = points["collective"].where(is_named, _OTHERS)
    colored = _ColoredPoints(traces=[], legend=[])
    for index, (collective, color) in enumerate(
        zip(collectives, _PALETTE, strict=False)
    ):
        colored.legend.append((elided(collective, _MAX_NAME_CHARACTERS), color))
        points_of_collective = points[label_of_point == collective]
        colored.traces.append(_point_trace(points_of_collective, index, color))
    return colored


def _point_trace(points: pd.DataFrame, number: int, color: str) -> dict[str, object]:
    """Return the plotly trace with the points of one collective."""
    texts = []
    for row in table_rows(points):
        ranks = elided(row.ranks, _MAX_RANKS_CHARACTERS)
        call = plotly_text(f"{row.collective}, {bytes_text(row.bytes)}, ranks {ranks}")
        figures = f"{row.median_gb_s:,.1f} GB/s, best {row.best_gb_s:,.1f}"
        texts.append(f"{call}<br>{figures}; calls: {row.calls:,}")
    return plotly_trace(
        "scatter",
        number,
        mode="markers",
        marker={"size": 9, "opacity": 0.7, "color": color},
        customdata=texts,
        x=points["bytes"].tolist(),
        y=points["median_gb_s"].tolist(),
    )


def _line(bandwidth: float, text: str) -> dict[str, object]:
    """Return a horizontal line with a label at a bandwidth."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "line": {"color": _LINE_COLOR, "width": 1.5, "dash": "dot"},
        "y0": bandwidth,
        "y1": bandwidth,
        "label": {"text": text, "textposition": "start", "font": {"size": 11}},
    }
