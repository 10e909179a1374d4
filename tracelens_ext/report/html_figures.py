"""What all charts of an HTML page share: data, and a layout for each of three widths.

The script of the page chooses the layout that fits the screen, and hides the pieces of a chart that
the reader turns off in the legend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any, NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import GREY
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    percent_text,
)

Plotly = dict[str, Any]  # a trace or a layout, as plotly has it
_IN_SUMMARY = 3  # number of parts of the GPU work in its summary
#: The most characters of a label in a tree.
LABEL = 120
_IN_WORDS = 60  # the most characters of a name in the summary

#: The `meta` of a trace, or the `name` of an annotation, that disappears if any piece is hidden.
WHOLE = "whole"
_HOVER = "%{customdata}<extra></extra>"
_AXIS = {
    "fixedrange": True,
    "zeroline": False,
    "title": {"standoff": 6, "font": {"size": 11}},
    # Invisible ticks keep the labels off the chart.
    "ticks": "outside",
    "ticklen": 5,
    "tickcolor": "rgba(0,0,0,0)",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_BOX = {
    "bgcolor": "#22262e",
    "bordercolor": "#22262e",
    "font": {"color": "#ffffff", "size": 12},
}
_BESIDE = {"showarrow": False, "xanchor": "left", "yanchor": "bottom"}
#: The look of all charts, as a template of plotly.
LOOK = {
    "data": {
        "bar": [{"hovertemplate": _HOVER, "marker": {"line": {"width": 0}}}],
        "scatter": [{"hovertemplate": _HOVER, "cliponaxis": False}],
    },
    "layout": {
        "barmode": "stack",
        "margin": {"l": 56, "r": 12, "t": 12, "b": 44},
        "showlegend": False,  # the legend is above the chart, in HTML
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12},
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1, **_BOX},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "annotationdefaults": {"align": "left", "font": {"size": 11}, **_BESIDE},
    },
}
#: The title of a time axis.
MS_SINCE_FIRST_EVENT = {"text": "ms since the first event"}
_EDGE = {"width": 1, "color": "#ffffff"}
#: The marker of points that stand out.
MARK = {"symbol": "diamond", "size": 8, "color": "#d1495b", "line": _EDGE}
#: From these widths in pixels on, names fit beside bars, and longer names fit.
_NARROW_ENDS = 640
WIDE_BEGINS = 980
_NARROWEST = 360  # width of the narrowest page, pixels
_CHARACTER_WIDTH = 7.2  # pixels
_TICK = 80  # width of a number at an axis, pixels


def spec_of(
    data: Sequence[Plotly],
    layout: Plotly,
    layout_of_width: Callable[[int], Plotly] | None = None,
) -> Plotly:
    """Return the data of a chart for the script of the page.

    Args:
        data: the traces of plotly.
        layout: the layout for all widths.
        layout_of_width: returns the part of the layout that depends on the width of the page, given
            that width in pixels.
    """
    layouts_by_width = []
    axis_of_all = layout.get("xaxis", {})
    for least in (0, _NARROW_ENDS, WIDE_BEGINS):
        width = max(least, _NARROWEST)
        own_layout = layout_of_width(width) if layout_of_width else {}
        own_axis = own_layout.get("xaxis", {})
        axis = {"nticks": width // _TICK, **axis_of_all, **own_axis}
        layouts_by_width.append({"from": least, **own_layout, "xaxis": axis})
    return {"data": data, "layout": layout, "rooms": layouts_by_width}


def plotly_trace(
    kind: str,
    hidden_by: int | str | None = None,
    /,
    **parts: Any,  # noqa: ANN401
) -> Plotly:
    """Return a trace of plotly, which is a set of lines, bars or points (not a GPU trace).

    Args:
        kind: the type of trace.
        hidden_by: the index of the piece in the legend that hides the trace, `WHOLE` if any piece
            does, or None.
        parts: further properties of the trace.
    """
    return {"type": kind, "meta": hidden_by, **parts}


class Drawing(NamedTuple):
    """Traces of plotly, and the pieces of the legend that belong to them."""

    traces: list[Plotly]
    legend: list[tuple[str, str]]  #: name and color (CSS) of each piece


def is_narrow(width: int) -> bool:
    """Return True if a page of a width in pixels has no space for names beside bars."""
    return width < _NARROW_ENDS


def text_width(texts: Iterable[str]) -> float:
    """Return the approximate width of the widest text, pixels; 0 without texts."""
    widths = [len(unescape(text)) for text in texts]
    return _CHARACTER_WIDTH * max(widths, default=0)


@dataclass(frozen=True)
class Figure:
    """A chart of the page."""

    key: str  #: the id of the chart in the page
    title: str  #: what the chart shows
    summary: str  #: the largest parts in words, for readers who cannot see the chart
    #: name and color (CSS) of each piece in order; empty if bars are not divided
    legend: list[tuple[str, str]]
    sheet: str  #: the table with the numbers of the chart
    spec: Plotly  #: the result of `spec_of`
    #: the numbers of the chart as rows of texts with a header, if no table has them
    numbers: Sequence[Sequence[str]] = ()


def axis_of(unit: str, longest: float) -> tuple[str, float]:
    """Return the unit of an axis, and the factor to convert numbers to it."""
    if unit != "ms":
        return unit, 1.0
    if 0 < longest < 1:
        return "µs", 1e3
    if longest >= 10_000:  # numbers at the axis have at most four digits
        return "s", 1e-3
    return unit, 1.0


def gpu_work_in_words(sums: pd.Series) -> str:
    """Return the sum and the largest parts of GPU work as text, from ns by name."""
    total = int(sums.sum())
    parts = []
    for name, ns in sums.head(_IN_SUMMARY).items():
        share = percent_text(100 * ns / total)
        parts.append(f"{elided(str(name), _IN_WORDS)} {share}")
    return f"{duration_text(total / 1e6)} of GPU work: {', '.join(parts)}"


def start_line(ms: float, yref: str) -> Plotly:
    """Return a vertical line where an iteration starts."""
    return {
        "type": "line",
        "x0": ms,
        "x1": ms,
        "y0": 0,
        "y1": 1,
        "yref": yref,
        "line": {"width": 1, "dash": "dot", "color": GREY},
    }
