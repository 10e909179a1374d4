"""Charts of an HTML page as plotly draws them: data, and a layout for each of three widths.

The script of the page chooses the layout that fits the screen, and hides the pieces of a chart that
the reader turns off in the legend.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import GREY, ONE_COLOR, color_of, is_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_texts import (
    amount_text,
    duration_text,
    elided,
    elided_kernel_name,
    ms_per_unit,
    number_text,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.short_names import distinct_short_texts
from tracelens_ext.report.tables.timeline_rows import analyzed_rows
from tracelens_ext.report.tables.units import unit_of, with_unit

Plotly = dict[str, Any]  # a trace or a layout, as plotly has it
_Texts = Iterable[str]
_IN_SUMMARY = 3  # number of bars in the summary
# The most characters of the name of a bar, on a wide and on a narrow screen.
_WIDE = 62
_NARROW = 40
_IN_WORDS = 60  # the most characters of a name in the summary

_NOT_IN_ID = re.compile(r"[^a-z0-9]+")
_OTHERS = re.compile(r"\([\d,]+ others\)")
#: The parts of the total time: `type` in `gpu_timeline` → name on the page.
TIMELINE_PIECES = {
    "computation_time": "Computation",
    "exposed_comm_time": "Exposed communication",
    "exposed_memcpy_time": "Exposed memory copies",
    "idle_time": "Idle",
}
#: The parts of the wall time if not all of it is analyzed.
_ANALYZED_PIECES = {
    "analyzed_computation_time": "Computation",
    "analyzed_exposed_comm_time": "Exposed communication",
    "analyzed_exposed_memcpy_time": "Exposed memory copies",
    "analyzed_idle_time": "Idle",
    "warm_up_time": "Warm-up",
    "not_recorded_time": "Not recorded",
}
#: The parts of the idle time if the table divides it.
_SPLIT_IDLE = {
    "micro_idle_time": "Idle, short gaps",
    "macro_idle_time": "Idle, long gaps",
}

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
_WIDE_BEGINS = 980
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
    for least in (0, _NARROW_ENDS, _WIDE_BEGINS):
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


def bar_figure(chart: Chart, table: pd.DataFrame) -> Figure:
    """Draw the table of a chart, with a bar for each row and a piece for each column.

    Args:
        chart: the chart.
        table: the sums that `chart_table` returned.
    """
    # A stacked chart without names of pieces has a single piece.
    is_stacked = chart.kind == "stacked" and list(table.columns) != [""]
    unnamed = "(all)" if is_stacked else "(none)"
    labels = [label if label.strip() else unnamed for label in table.index]
    is_of_kernels = all(
        word in chart.label_column.lower() for word in ("kernel", "name")
    )
    shortened = elided_kernel_name if is_of_kernels else elided
    names = [shortened(label, sys.maxsize) for label in labels]

    factor = ms_per_unit(chart.value_column)
    unit = unit_of(chart.value_column)
    symbol = "ms" if factor else unit.symbol
    table = table * (factor or 1.0)
    sums = table.sum(axis=1).tolist()
    # Amounts have shares only of a sum without negative parts.
    has_whole = chart.has_shares and min(table.min(), default=0.0) >= 0
    whole = sum(sums) if has_whole else 0.0
    longest = max(map(abs, sums), default=0.0)
    axis, scale = axis_of(symbol, longest)

    pieces = []
    for place, (name, column) in enumerate(table.items()):
        hover = []
        for label, amount in zip(labels, column.tolist(), strict=True):
            text = plotly_text(amount_text(amount, symbol, whole, signed=unit.signed))
            if is_stacked:
                text = f"{plotly_text(str(name))}: {text}"
            hover.append(f"<b>{plotly_lines(label)}</b><br>{text}")
        piece = bar_piece(
            place=place,
            values=(column * scale).tolist(),
            color=color_of(str(name)) if is_stacked else _bar_colors(chart, labels),
            hover=hover,
        )
        pieces.append(piece)
    ends = []  # the texts at the ends of bars, in the unit of the axis
    for amount in sums:
        end = _end_of_bar(
            amount=amount, scale=scale, axis=axis, whole=whole, signed=unit.signed
        )
        ends.append(end)
    legend = []
    if is_stacked:
        legend = [(cleaned(name), color_of(name)) for name in table.columns]
    return Figure(
        key=f"chart-{_NOT_IN_ID.sub('-', chart.title.lower())}",
        title=cleaned(chart.title),
        summary=_in_words(
            names=[shortened(label, _IN_WORDS) for label in labels],
            sums=sums,
            whole=whole,
        ),
        legend=legend,
        sheet=chart.sheet,
        spec=bars_spec(
            pieces=pieces,
            wide=distinct_short_texts(names, _WIDE),
            narrow=distinct_short_texts(names, _NARROW),
            ends=ends,
            axis=axis,
        ),
        numbers=_numbers(chart=chart, table=table, axis=axis, scale=scale),
    )


def _bar_colors(chart: Chart, labels: Sequence[str]) -> list[str]:
    """Return the color of each bar: of its category, or the same color for all other names."""
    is_of_categories = "category" in chart.label_column
    colors = []
    for label in labels:
        has_color = is_of_categories or not is_name(label)
        colors.append(color_of(label) if has_color else ONE_COLOR)
    return colors


def _end_of_bar(
    amount: float, scale: float, axis: str, whole: float, *, signed: bool
) -> str:
    """Return the text at the end of a bar: its amount in the unit of the axis, and its share."""
    sign = "+" if signed and amount > 0 else ""
    text = f"{sign}{number_text(amount * scale)}\u00a0{axis}".rstrip()
    if not whole:
        return text
    return f"{text} ({percent_text(100.0 * amount / whole)})"


def bar_piece(
    place: int,
    values: Sequence[float],
    color: str | Sequence[str],
    hover: Sequence[str],
    inside: Iterable[str] = (),
) -> Plotly:
    """Return the drawing of one piece of all bars.

    Args:
        place: the index of the piece in the legend.
        values: the length of the piece in each bar.
        color: the color of the piece, or of each bar.
        hover: the text beside the pointer for each bar, escaped already.
        inside: the text in each bar, which is escaped here.
    """
    inside_texts = [plotly_text(text) for text in inside]
    marker = {
        "color": color,
        "line": {"width": 0.5, "color": "rgba(255,255,255,0.45)"},
    }
    text_place: Plotly = {"textposition": "none"}
    if inside_texts:
        text_place = {"insidetextanchor": "middle", "textangle": 0}
    return plotly_trace(
        "bar",
        place,
        orientation="h",
        # None instead of 0, because a bar of length 0 would have an outline.
        x=[value or None for value in values],
        y=list(range(len(values))),
        customdata=hover,
        marker=marker,
        text=inside_texts,
        **text_place,
    )


def bars_spec(
    pieces: Sequence[Plotly], wide: _Texts, narrow: _Texts, ends: _Texts, axis: str
) -> Plotly:
    """Return the data of a chart of bars.

    Args:
        pieces: the pieces of the bars, from `bar_piece`.
        wide: the names of the bars on a wide screen.
        narrow: the shorter names on a narrow screen.
        ends: the texts at the ends of the bars.
        axis: the unit of the axis.
    """
    lengths_of_bars = zip(*(piece["x"] for piece in pieces), strict=True)
    sums = [sum(filter(None, lengths), 0.0) for lengths in lengths_of_bars]
    rows = list(range(len(sums)))
    texts_at_ends = [plotly_text(end) for end in ends]
    # The texts are right only while all pieces are visible.
    at_ends = plotly_trace(
        "scatter",
        WHOLE,
        mode="text",
        x=[max(length, 0.0) for length in sums],
        y=rows,
        hoverinfo="skip",
        text=[f"  {text}" for text in texts_at_ends],
        textposition="middle right",
    )
    lowest = min(sums, default=0.0)
    highest = max(sums, default=0.0)
    if not highest and not lowest:
        highest = 1.0
    right_margin = text_width(texts_at_ends) + 18

    def layout_of_width(width: int) -> Plotly:
        names = wide if width >= _WIDE_BEGINS else narrow
        return _bars_layout(
            names=[plotly_text(name) for name in names],
            rows=rows,
            right_margin=right_margin,
            above=is_narrow(width),
        )

    layout = {
        "uniformtext": {"mode": "hide", "minsize": 12},
        "xaxis": {
            "autorangeoptions": {
                "clipmin": min(lowest, 0.0),
                "clipmax": max(highest, 0.0),
            },
            "rangemode": "tozero",
            "ticksuffix": f" {plotly_text(axis)}",
        },
    }
    return spec_of(list(pieces) + [at_ends], layout, layout_of_width)


def _bars_layout(
    names: Sequence[str], rows: Sequence[int], right_margin: float, *, above: bool
) -> Plotly:
    """Return the layout of bars with their names beside or above them."""
    names_above = []
    if above:
        for row, name in enumerate(names):
            names_above.append({"text": name, "x": 0, "y": row - 0.25, "xshift": -3})
    row_pixels = 44 if above else 27
    first_row_ends = -0.75 if above else -0.5
    return {
        "height": len(names) * row_pixels + 34,
        "bargap": 0.52 if above else 0.26,
        "margin": {"l": 16, "r": right_margin, "t": 4, "b": 26},
        "yaxis": {
            "range": [len(names) - 0.5, first_row_ends],
            "automargin": True,
            "showgrid": False,
            "showticklabels": not above,
            "tickmode": "array",
            "tickvals": rows,
            "ticktext": names,
        },
        "annotations": names_above,
    }


def _numbers(
    chart: Chart, table: pd.DataFrame, axis: str, scale: float
) -> list[list[str]]:
    """Return the bars and their pieces as rows of texts with a header, in the unit of the axis."""
    column_names = [str(name) for name in table.columns]
    pieces = [name for name in column_names if is_name(name) or name.startswith("(")]
    if len(pieces) < 2:
        pieces = []
    total = with_unit("total" if pieces else chart.title, axis)
    rows = [[chart.label_column, total] + pieces]
    for label, values in zip(table.index, table.to_numpy().tolist(), strict=True):
        numbers = [sum(values)]
        if pieces:
            numbers += values
        rows.append([str(label)] + [f"{scale * number:,.3f}" for number in numbers])
    return [[cleaned(text) for text in row] for row in rows]


def timeline_figure(frame: pd.DataFrame) -> Figure:
    """Draw the parts of each device's time in percent, from the table `gpu_timeline`."""
    of_devices = frame
    if "device" not in frame:
        of_devices = frame.assign(device=-1)
    devices = of_devices["device"].unique().tolist()
    names = ["GPU"] * len(devices)
    if "device" in frame:
        names = [f"GPU {device}" for device in devices]
    parts = dict(TIMELINE_PIECES)
    analyzed = analyzed_rows(of_devices)
    if len(analyzed):
        of_devices = _of_wall_time(analyzed)
        parts = dict(_ANALYZED_PIECES)
    elif _SPLIT_IDLE.keys() <= set(frame["type"]):
        del parts["idle_time"]
        parts |= _SPLIT_IDLE

    last = of_devices.groupby(["type", "device"], sort=False)[["time ms", "percent"]]
    rows = last.last()
    kinds = ["total_time"] + list(parts)
    all_ms = _by_device(rows["time ms"], kinds, devices)
    percent = _by_device(rows["percent"], kinds, devices)
    totals = all_ms["total_time"].tolist()
    pieces: list[Plotly] = []
    legend = []
    clauses = []
    for kind, name in parts.items():
        shares = percent[kind].tolist()
        if not any(shares):
            continue
        hover = []
        for bar, ms, total in zip(names, all_ms[kind].tolist(), totals, strict=True):
            amount = plotly_text(amount_text(ms, "ms", total))
            hover.append(f"<b>{name}</b>, {plotly_text(bar)}<br>{amount}")
        color = color_of(kind)
        piece = bar_piece(
            place=len(pieces),
            values=shares,
            color=color,
            hover=hover,
            inside=[percent_text(share) for share in shares],
        )
        pieces.append(piece)
        legend.append((name, color))
        # For several devices, the text has the smallest and the largest share.
        least = percent_text(min(shares))
        most = percent_text(max(shares))
        range_text = least if least == most else f"{least} to {most}"
        clauses.append(f"{name.lower()} {range_text}")
    spec = bars_spec(
        pieces=pieces,
        wide=names,
        narrow=names,
        ends=[duration_text(total) for total in totals],
        axis="%",
    )
    return Figure(
        key="chart-gpu-timeline",
        title="GPU timeline",
        summary=", ".join(clauses).capitalize(),
        legend=legend,
        sheet="gpu_timeline",
        spec=spec,
    )


def _by_device(values: pd.Series, kinds: list[str], devices: list[int]) -> pd.DataFrame:
    """Return values as a table with a row for each device and a column for each `type`."""
    by_kind = values.unstack().reindex(index=kinds, columns=devices)
    return by_kind.fillna(0.0).T


def _of_wall_time(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the wall time as percentages of the wall time.

    The row `total_time` is the wall time.
    """
    pieces = frame[frame["type"].isin(list(_ANALYZED_PIECES))]
    wall_ms = pieces.groupby("device")["time ms"].sum()
    whole_ms = pieces["device"].map(wall_ms).clip(lower=1e-9)
    shares = pieces.assign(percent=100.0 * pieces["time ms"] / whole_ms)
    totals = wall_ms.reset_index().assign(type="total_time", percent=100.0)
    return pd.concat([shares, totals], ignore_index=True)


def axis_of(unit: str, longest: float) -> tuple[str, float]:
    """Return the unit of an axis, and the factor to convert numbers to it."""
    if unit != "ms":
        return unit, 1.0
    if 0 < longest < 1:
        return "µs", 1e3
    if longest >= 10_000:  # numbers at the axis have at most four digits
        return "s", 1e-3
    return unit, 1.0


def _in_words(names: Iterable[str], sums: Iterable[float], whole: float) -> str:
    """Return the largest bars with their shares as text; empty without a whole."""
    if not whole:
        return ""
    named = [
        (name, amount)
        for name, amount in zip(names, sums, strict=True)
        if not _OTHERS.fullmatch(name)
    ]
    largest = sorted(named, key=lambda bar: -bar[1])[:_IN_SUMMARY]
    texts = []
    for name, amount in largest:
        share = percent_text(100.0 * amount / whole)
        texts.append(f"{name} {share}")
    return ", ".join(texts)


#: The most characters of a label in a tree.
LABEL = 120


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
