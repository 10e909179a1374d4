"""The charts of a workbook: bars of the sums in a table, drawn by Excel from cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xlsxwriter.chart_bar import ChartBar
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_cells as cells
from tracelens_ext.report import excel_text
from tracelens_ext.report.colors import ONE_COLOR, color_of, is_name
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.short_names import distinct_short_texts
from tracelens_ext.report.tables.units import Shown, unit_of

CHARTS = "charts"  # the name of the sheet of charts
_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
#: Number of columns that a chart covers. They have the default width of 64 pixels.
_CHART_COLUMNS = 12
_WIDTH_PIXELS = 756  # width of a chart
_ROW_PIXELS = 20  # default height of a row
_NUMBER_WIDTH = 14  # width of a column of numbers beside a chart, in characters
_PAGE_ROWS = 40  # number of rows on a landscape page, A4 or Letter
_PRINT_SCALE = 85  # percent
# Colors and fonts of charts.
_INK = "#404040"
_GRID = "#D9D9D9"
_SMALL = {"size": 9, "bold": False, "color": _INK}
_LINE = {"color": _GRID}
_AXIS = {
    "num_font": _SMALL,
    "line": _LINE,
    "major_tick_mark": "none",
    "minor_tick_mark": "none",
}


@dataclass(frozen=True)
class ChartData:
    """A chart, and the small table of sums that it shows."""

    chart: Chart
    table: pd.DataFrame


@dataclass(frozen=True)
class PlacedChart:
    """A chart on the sheet of charts."""

    data: ChartData
    top: int  #: the first row of the table of sums


def write_charts(
    book: cells.Book,
    sheet: Worksheet,
    charts: Sequence[ChartData],
    failures: PartFailures,
) -> list[PlacedChart]:
    """Draw charts one below the other, each with its table of sums on its right.

    Returns:
        The charts that were drawn.
    """
    row = 0
    page_start = 0
    page_breaks = []
    placed_charts = []
    for data in charts:
        height = chart_rows(data.table)
        if row + height > page_start + _PAGE_ROWS:
            page_breaks.append(row)
            page_start = row
        placed = PlacedChart(data, top=row)
        with failures.isolate(data.chart.part):
            drawing = drawing_of(book, placed, _WIDTH_PIXELS)
            _write_numbers(book, sheet, placed)
            cells.checked(sheet.insert_chart(row, 0, drawing))
            placed_charts.append(placed)
        row += max(height, len(data.table) + 2) + 2
    most_series = max(data.table.shape[1] for data in charts)
    last_column = _CHART_COLUMNS + most_series
    cells.checked(sheet.set_column(_CHART_COLUMNS, _CHART_COLUMNS, _LABEL_CHARACTERS))
    cells.checked(sheet.set_column(_CHART_COLUMNS + 1, last_column, _NUMBER_WIDTH))
    sheet.hide_gridlines(2)
    sheet.set_landscape()
    # Fitting the sheet to the page would ignore the page breaks.
    sheet.set_print_scale(_PRINT_SCALE)
    sheet.set_margins(top=0.5, bottom=0.5)
    sheet.set_h_pagebreaks(page_breaks)
    # Only the charts are printed, because their tables would make them small.
    cells.checked(sheet.print_area(0, 0, row, _CHART_COLUMNS - 1))
    return placed_charts


def chart_rows(table: pd.DataFrame) -> int:
    """Return the number of sheet rows that a chart covers, so that all labels are readable."""
    bars, series = table.shape
    # A bar needs slightly more than a row; the title, the axis and the legend need some rows.
    legend_rows = 0
    if series > 1:
        legend_rows = math.ceil(series / 5)
    return max(12, 7 + math.ceil(1.1 * bars) + legend_rows)


def _write_numbers(book: cells.Book, sheet: Worksheet, placed: PlacedChart) -> None:
    """Write the table of a chart: the title, the header, and a row for each bar."""
    chart = placed.data.chart
    table = placed.data.table
    header_style = book.format(bold=True, font_color=_INK)
    label_style = book.format()
    number_style = book.format(num_format=_cell_format(placed.data))
    cells.put(
        sheet=sheet,
        row=placed.top,
        column=_CHART_COLUMNS,
        value=_titled(chart),
        style=book.format(bold=True),
    )
    header_row = placed.top + 1
    for column, name in enumerate(
        [chart.label_column] + _short_labels(table.columns), _CHART_COLUMNS
    ):
        cells.put(
            sheet=sheet, row=header_row, column=column, value=name, style=header_style
        )
    labels = _short_labels(table.index)
    for row, (label, values) in enumerate(
        zip(labels, table.to_numpy().tolist(), strict=True), header_row + 1
    ):
        cells.put(
            sheet=sheet, row=row, column=_CHART_COLUMNS, value=label, style=label_style
        )
        for column, value in enumerate(values, _CHART_COLUMNS + 1):
            cells.put(
                sheet=sheet, row=row, column=column, value=value, style=number_style
            )


def drawing_of(book: cells.Book, placed: PlacedChart, width: int) -> ChartBar:
    """Return a chart of horizontal bars for a table that `_write_numbers` writes."""
    chart = placed.data.chart
    table = placed.data.table
    is_stacked = chart.kind == "stacked"
    subtype = "stacked" if is_stacked else "clustered"
    drawing = book.xlsx.add_chart({"type": "bar", "subtype": subtype})
    drawing.set_size({"width": width, "height": chart_rows(table) * _ROW_PIXELS})
    for position in range(table.shape[1]):
        drawing.add_series(_series_options(placed, position))
    title_font = {"size": 13, "bold": True, "color": _INK}
    drawing.set_title(
        {
            "name": [CHARTS, placed.top, _CHART_COLUMNS],
            "data": [_titled(chart)],
            "name_font": title_font,
        }
    )
    # For horizontal bars, XlsxWriter calls the axis of the labels the y axis. It is reversed, so
    # that the first row of the table is the bar at the top. The options keep the labels beside the
    # plot even if bars go to the left, and the numbers below it.
    drawing.set_y_axis(
        _AXIS | {"reverse": True, "label_position": "low", "crossing": "max"}
    )
    drawing.set_x_axis(_number_axis(placed.data))
    if table.shape[1] > 1:
        drawing.set_legend({"position": "bottom", "font": _SMALL})
    else:
        drawing.set_legend({"none": True})
    return drawing


def _series_options(placed: PlacedChart, position: int) -> dict[str, Any]:
    """Return XlsxWriter's options for a series: the cells of its data, and its look."""
    chart = placed.data.chart
    table = placed.data.table
    header_row = placed.top + 1
    first_row = header_row + 1
    last_row = header_row + len(table)
    column = _CHART_COLUMNS + 1 + position
    # Names and labels are references to cells, because Excel could take texts for formulas. The
    # space behind labels keeps XlsxWriter from storing labels such as `0` and `nan` as numbers.
    options: dict[str, Any] = {
        "name": [CHARTS, header_row, column],
        "name_data": [_short_labels(table.columns)[position]],
        "categories": [CHARTS, first_row, _CHART_COLUMNS, last_row, _CHART_COLUMNS],
        "categories_data": [f"{label} " for label in _short_labels(table.index)],
    }
    is_stacked = chart.kind == "stacked"
    if not is_stacked:
        number_format = _cell_format(placed.data)
        options["data_labels"] = {
            "value": True,
            "font": _SMALL,
            "num_format": number_format,
        }
        options["points"] = _bar_fills(chart, table)
    options["values"] = [CHARTS, first_row, column, last_row, column]
    options["values_data"] = table.to_numpy().T.tolist()[position]
    color = ONE_COLOR
    if is_stacked:
        color = color_of(str(table.columns[position]))
    return {**options, **_filled(color), "gap": 35}


def _bar_fills(chart: Chart, table: pd.DataFrame) -> list[dict[str, Any] | None]:
    """Return the fill of each bar: the color of its category; None for the default color."""
    are_categories = "category" in chart.label_column
    fills: list[dict[str, Any] | None] = []
    for label in map(str, table.index):
        if are_categories or not is_name(label):
            fills.append(_filled(color_of(label)))
        else:
            fills.append(None)
    return fills


def _number_axis(data: ChartData) -> dict[str, Any]:
    """Return XlsxWriter's options for the axis of numbers of a chart."""
    numbers = data.table.to_numpy()
    lengths = numbers
    if data.chart.kind == "stacked":
        lengths = numbers.sum(axis=1)
    largest = float(abs(lengths).max())
    symbol = unit_of(data.chart.value_column).symbol
    axis = dict(_AXIS)
    if float(numbers.min()) >= 0:
        # Bars have the right proportions only if they start at zero.
        axis["min"] = 0
    axis["num_format"] = _axis_format(symbol, largest)
    axis["major_gridlines"] = {"visible": True, "line": _LINE}
    return axis


def _filled(color: str) -> dict[str, Any]:
    return {"fill": {"color": color}, "border": {"color": color}}


def _short_labels(labels: Iterable[object]) -> list[str]:
    """Return labels on one line each, shortened so that they fit beside the bars."""
    texts = [excel_text.cleaned(" ".join(str(label).split())) for label in labels]
    return distinct_short_texts(texts, _LABEL_CHARACTERS)


def _titled(chart: Chart) -> str:
    """Return the title of a chart with the unit of its values."""
    symbol = unit_of(chart.value_column).symbol
    title = chart.title
    if symbol and f"({symbol})" not in title:
        title = f"{title} ({symbol})"
    return excel_text.cell_text(title).text


def _cell_format(data: ChartData) -> str:
    """Return the number format for the table and the bars of a chart."""
    largest = float(data.table.to_numpy().max())
    return Shown(unit_of(data.chart.value_column), largest=largest).excel_format


def _axis_format(symbol: str, largest: float) -> str:
    """Return a number format with three digits of the largest value; the title has the unit."""
    if largest <= 0:
        return "General"
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    number = "#,##0"
    if decimals:
        number += "." + "0" * decimals
    if symbol == "%":
        return f'{number}"%"'
    return number
