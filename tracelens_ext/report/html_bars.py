"""Charts with horizontal bars: a bar for each row of a table, divided into pieces."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import ONE_COLOR, color_of, is_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_figures import (
    WHOLE,
    WIDE_BEGINS,
    Figure,
    Plotly,
    axis_of,
    is_narrow,
    plotly_trace,
    spec_of,
    text_width,
)
from tracelens_ext.report.html_texts import (
    amount_text,
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
from tracelens_ext.report.tables.units import unit_of, with_unit

_Texts = Iterable[str]
_IN_SUMMARY = 3  # number of bars in the summary
_IN_WORDS = 60  # the most characters of a name in the summary
# The most characters of the name of a bar, on a wide and on a narrow screen.
_WIDE = 62
_NARROW = 40

_NOT_IN_ID = re.compile(r"[^a-z0-9]+")
_OTHERS = re.compile(r"\([\d,]+ others\)")


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
    label_column = chart.label_column.lower()
    is_of_kernels = "kernel" in label_column and "name" in label_column
    shortened = elided_kernel_name if is_of_kernels else elided
    names = [shortened(label, sys.maxsize) for label in labels]

    amounts = _amounts(chart, table)
    legend = []
    if is_stacked:
        legend = [(cleaned(name), color_of(name)) for name in table.columns]
    return Figure(
        key=f"chart-{_NOT_IN_ID.sub('-', chart.title.lower())}",
        title=cleaned(chart.title),
        summary=_in_words(
            names=[shortened(label, _IN_WORDS) for label in labels],
            sums=amounts.sums,
            whole=amounts.whole,
        ),
        legend=legend,
        sheet=chart.sheet,
        spec=bars_spec(
            pieces=_pieces(chart, amounts, labels, is_stacked=is_stacked),
            wide=distinct_short_texts(names, _WIDE),
            narrow=distinct_short_texts(names, _NARROW),
            ends=_ends_of_bars(amounts),
            axis=amounts.axis,
        ),
        numbers=_numbers(
            chart=chart,
            table=amounts.table,
            axis=amounts.axis,
            scale=amounts.scale,
        ),
    )


class _Amounts(NamedTuple):
    """What the bars of a chart show."""

    table: pd.DataFrame  #: a row for each bar, a column for each piece; times in ms
    sums: list[float]  #: the sum of each bar
    whole: float  #: the sum of all bars; 0 if the bars have no shares of it
    symbol: str  #: the unit of the table
    signed: bool  #: True if positive amounts have a sign
    axis: str  #: the unit of the axis
    scale: float  #: converts amounts of the table to the unit of the axis


def _amounts(chart: Chart, table: pd.DataFrame) -> _Amounts:
    """Convert the table of a chart to ms if it has times, and choose the unit of the axis."""
    factor = ms_per_unit(chart.value_column)
    unit = unit_of(chart.value_column)
    symbol = "ms" if factor else unit.symbol
    converted = table * (factor or 1.0)
    sums = converted.sum(axis=1).tolist()
    # Amounts have shares only of a sum without negative parts.
    has_whole = chart.has_shares and min(converted.min(), default=0.0) >= 0
    longest = max(map(abs, sums), default=0.0)
    axis, scale = axis_of(symbol, longest)
    return _Amounts(
        table=converted,
        sums=sums,
        whole=sum(sums) if has_whole else 0.0,
        symbol=symbol,
        signed=unit.signed,
        axis=axis,
        scale=scale,
    )


def _pieces(
    chart: Chart, amounts: _Amounts, labels: Sequence[str], *, is_stacked: bool
) -> list[Plotly]:
    """Return the drawing of each piece of the bars."""
    pieces = []
    for place, (name, column) in enumerate(amounts.table.items()):
        hover = []
        for label, amount in zip(labels, column.tolist(), strict=True):
            text = plotly_text(
                amount_text(
                    amount, amounts.symbol, amounts.whole, signed=amounts.signed
                )
            )
            if is_stacked:
                text = f"{plotly_text(str(name))}: {text}"
            hover.append(f"<b>{plotly_lines(label)}</b><br>{text}")
        piece = bar_piece(
            place=place,
            values=(column * amounts.scale).tolist(),
            color=color_of(str(name)) if is_stacked else _bar_colors(chart, labels),
            hover=hover,
        )
        pieces.append(piece)
    return pieces


def _bar_colors(chart: Chart, labels: Sequence[str]) -> list[str]:
    """Return the color of each bar: of its category, or the same color for all other names."""
    is_of_categories = "category" in chart.label_column
    colors = []
    for label in labels:
        has_color = is_of_categories or not is_name(label)
        colors.append(color_of(label) if has_color else ONE_COLOR)
    return colors


def _ends_of_bars(amounts: _Amounts) -> list[str]:
    """Return the texts at the ends of bars: the sum in the unit of the axis, and its share."""
    ends = []
    for amount in amounts.sums:
        sign = "+" if amounts.signed and amount > 0 else ""
        number = number_text(amount * amounts.scale)
        text = f"{sign}{number}\u00a0{amounts.axis}".rstrip()
        if amounts.whole:
            text = f"{text} ({percent_text(100.0 * amount / amounts.whole)})"
        ends.append(text)
    return ends


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
        names = wide if width >= WIDE_BEGINS else narrow
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
