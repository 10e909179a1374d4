"""The charts of a page, drawn from its tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.html_figures import Figure, bar_figure, timeline_figure
from tracelens_ext.report.html_iterations import iteration_figures
from tracelens_ext.report.html_memory import memory_figures
from tracelens_ext.report.html_roofline import roofline_figures
from tracelens_ext.report.html_views import view_figures
from tracelens_ext.tables.charts import Chart, chart_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def page_figures(sheets: Mapping[str, pd.DataFrame], charts: Iterable[Chart]) -> list[Figure]:
    """Draw charts; one without a number other than zero is left out.

    Args:
        sheets: the tables by name.
        charts: the charts; those for workbooks alone are left out.

    Raises:
        ValueError: the table of a chart, or one of its columns, is absent.
    """
    figures: list[Figure] = []
    for chart in charts:
        if chart.on == "workbook" or any(sheet in sheets for sheet in chart.unless):
            continue
        if chart.sheet not in sheets:
            message = f"the chart {chart.title!r} needs the sheet {chart.sheet!r}"
            raise ValueError(message)
        if chart.kind in ("time_axis", "call_tree"):
            figures += view_figures(sheets, chart.sheet)
        else:
            figures += _drawn(sheets, chart)
    keys = [figure.key for figure in figures]  # two charts may have one title
    return [
        replace(figure, key=f"{figure.key}-{at}") if figure.key in keys[:at] else figure
        for at, figure in enumerate(figures)
    ]


def _drawn(sheets: Mapping[str, pd.DataFrame], chart: Chart) -> list[Figure]:
    frame = sheets[chart.sheet]
    if chart.kind == "timeline":
        return [timeline_figure(frame)]
    if chart.kind == "iterations":
        return iteration_figures(frame)
    if chart.kind == "roofline":
        return roofline_figures(frame, sheets.get("roofline_peaks"))
    if chart.kind == "memory":
        return memory_figures(sheets)
    table = chart_table(frame, chart)
    return [bar_figure(chart, table)] if len(table) else []
