"""The sheet of charts: each chart with the table that it shows beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report.colours import ONE_COLOUR, colour_of, is_name
from tracelens_ext.report.excel_cells import checked, put, put_text
from tracelens_ext.tables.short_names import told_apart
from tracelens_ext.tables.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xlsxwriter.chart_bar import ChartBar
    from xlsxwriter.worksheet import Worksheet

    from tracelens_ext.report.excel_cells import Book
    from tracelens_ext.tables.charts import Chart
    from tracelens_ext.tables.units import Unit

CHARTS = "charts"  # the name of the sheet

_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
_CHART_COLUMNS = 12  # sheet columns under a chart, of the default width of 64 pixels
_WIDTH_PIXELS, ROW_PIXELS = 756, 20
_PAGE_ROWS, _PRINT_SCALE = 40, 85  # of a landscape page, A4 or Letter; in percent
_INK, _GRID = "#404040", "#D9D9D9"
_SMALL = {"size": 9, "bold": False, "color": _INK}
_LINE = {"color": _GRID}
_AXIS = {
    "num_font": _SMALL,
    "line": _LINE,
    "major_tick_mark": "none",
    "minor_tick_mark": "none",
}


def write_charts(
    book: Book, sheet: Worksheet, charts: list[tuple[Chart, pd.DataFrame]]
) -> list[int]:
    """Draw charts below one another, each with its table at its right; the row of each table."""
    row = page_start = 0
    breaks, tops = [], []
    for chart, table in charts:
        height = chart_rows(table)
        if row + height > page_start + _PAGE_ROWS:
            breaks.append(row)
            page_start = row
        tops.append(row)
        _write_table(book, sheet, row, chart, table)
        drawn = drawing(book, row, chart, table)
        drawn.set_size({"width": _WIDTH_PIXELS, "height": height * ROW_PIXELS})
        checked(sheet.insert_chart(row, 0, drawn))
        row += max(height, len(table) + 2) + 2
    widest = max(table.shape[1] for _, table in charts)
    checked(sheet.set_column(_CHART_COLUMNS, _CHART_COLUMNS, _LABEL_CHARACTERS))
    checked(sheet.set_column(_CHART_COLUMNS + 1, _CHART_COLUMNS + widest, 14))
    sheet.hide_gridlines(2)
    sheet.set_landscape()
    sheet.set_print_scale(_PRINT_SCALE)  # not fitted to the page: that ignores page breaks
    sheet.set_margins(top=0.5, bottom=0.5)
    sheet.set_h_pagebreaks(breaks)
    # Printed are the charts alone: their tables would make them small.
    checked(sheet.print_area(0, 0, row, _CHART_COLUMNS - 1))
    return tops


def chart_rows(table: pd.DataFrame) -> int:
    """How many rows a chart takes, so that each label can be read."""
    bars, series = table.shape
    # Room for the title, the axis and the legend; a bar needs a little more than a line.
    legend_rows = math.ceil(series / 5) if series > 1 else 0
    return max(12, 7 + math.ceil(1.1 * bars) + legend_rows)


def _write_table(book: Book, sheet: Worksheet, top: int, chart: Chart, table: pd.DataFrame) -> None:
    """Write the numbers behind a chart: title, header, then a row a bar."""
    first, header = _CHART_COLUMNS, book.format(bold=True, font_color=_INK)
    put(sheet, top, first, _titled(chart), book.format(bold=True))
    put_text(sheet, top + 1, first, chart.label_column, header)
    for column, name in enumerate(_short(table.columns), first + 1):
        put(sheet, top + 1, column, name, header)
    numbers = table.to_numpy()
    style = book.format(num_format=_cell_format(chart, table))
    rows = zip(_short(table.index), numbers.tolist(), strict=True)
    for row, (label, values) in enumerate(rows, top + 2):
        put(sheet, row, first, label, book.format())
        for column, value in enumerate(values, first + 1):
            put(sheet, row, column, value, style)


def drawing(book: Book, top: int, chart: Chart, table: pd.DataFrame) -> ChartBar:
    """Draw horizontal bars over a table written by `_write_table`."""
    stacked = chart.kind == "stacked"
    drawn = book.xlsx.add_chart({"type": "bar", "subtype": "stacked" if stacked else "clustered"})
    numbers = table.to_numpy()
    first, last = top + 2, top + 1 + len(table)
    # With a blank: labels that all look like numbers (`0`, `nan`) would be stored as numbers.
    labels = [f"{label} " for label in _short(table.index)]
    for place, (name, short) in enumerate(zip(table.columns, _short(table.columns), strict=True)):
        column = _CHART_COLUMNS + 1 + place
        colour = colour_of(str(name)) if stacked else ONE_COLOUR
        # Names and labels are references to cells: as texts they could be taken for formulas.
        series: dict[str, Any] = {
            "name": [CHARTS, top + 1, column],
            "name_data": [short],
            "categories": [CHARTS, first, _CHART_COLUMNS, last, _CHART_COLUMNS],
            "categories_data": labels,
            "values": [CHARTS, first, column, last, column],
            "values_data": numbers[:, place].tolist(),
            "fill": {"color": colour},
            "border": {"color": colour},
            "gap": 35,
        }
        if not stacked:
            series["data_labels"] = {"value": True, "font": _SMALL}
            series["data_labels"]["num_format"] = _cell_format(chart, table)
            of_categories = "category" in chart.label_column
            colours = [
                colour_of(label) if of_categories or not is_name(label) else ONE_COLOUR
                for label in map(str, table.index)
            ]
            series["points"] = [
                None if each == ONE_COLOUR else {"fill": {"color": each}, "border": {"color": each}}
                for each in colours
            ]
        drawn.add_series(series)
    font = {"size": 13, "bold": True, "color": _INK}
    title = {"name": [CHARTS, top, _CHART_COLUMNS], "data": [_titled(chart)], "name_font": font}
    drawn.set_title(title)
    # Of bars that lie, XlsxWriter's y axis is that of the labels. The first row of the table is
    # the top bar, its label beside the plot also where bars go to the left; numbers stay below.
    drawn.set_y_axis(_AXIS | {"reverse": True, "label_position": "low", "crossing": "max"})
    # A bar that starts elsewhere than at zero shows a wrong proportion.
    from_zero = {"min": 0} if float(numbers.min()) >= 0 else {}
    grid = {"visible": True, "line": _LINE}
    largest = float(abs(numbers.sum(axis=1) if stacked else numbers).max())
    shown = {"num_format": _axis_format(unit_of(chart.value_column), largest)}
    drawn.set_x_axis(_AXIS | from_zero | shown | {"major_gridlines": grid})
    several = table.shape[1] > 1
    drawn.set_legend({"position": "bottom", "font": _SMALL} if several else {"none": True})
    return drawn


def _short(labels: Iterable[object]) -> list[str]:
    """Cut labels, so that different ones stay different."""
    texts = [excel_text.cleaned(" ".join(str(label).split())) for label in labels]
    return told_apart(texts, _LABEL_CHARACTERS)


def _titled(chart: Chart) -> str:
    """Give the title, cleaned, with the unit of the values."""
    symbol = unit_of(chart.value_column).symbol
    named = not symbol or f"({symbol})" in chart.title
    return excel_text.cell_text(chart.title if named else f"{chart.title} ({symbol})")[0]


def _cell_format(chart: Chart, table: pd.DataFrame) -> str:
    """Show the numbers of a chart's table and at its bars as a column of a table does."""
    return unit_of(chart.value_column).excel_format(largest=float(table.to_numpy().max()))


def _axis_format(unit: Unit, largest: float) -> str:
    """Show three digits of the largest value; the title has the unit."""
    if largest <= 0:
        return "General"
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    number = "#,##0" + ("." + "0" * decimals if decimals else "")
    return f'{number}"%"' if unit.symbol == "%" else number
