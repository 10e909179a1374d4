"""The sheets of a workbook beside its tables: the first, and that of charts.

The first has what was analysed, what was found, and what the sheets have; the other each chart with
the table that it shows beside it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report.colours import ONE_COLOUR, colour_of, is_name
from tracelens_ext.report.excel_cells import HEADER, INK, LINES, checked, column_of, put, put_text
from tracelens_ext.tables.short_names import told_apart
from tracelens_ext.tables.units import Shown, unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from xlsxwriter.chart_bar import ChartBar
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet

    from tracelens_ext.report.excel_cells import Book
    from tracelens_ext.report.report import Answer
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
_AXIS = {"num_font": _SMALL, "line": _LINE, "major_tick_mark": "none", "minor_tick_mark": "none"}


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
    texts = [excel_text.cleaned(" ".join(str(label).split())) for label in labels]
    return told_apart(texts, _LABEL_CHARACTERS)


def _titled(chart: Chart) -> str:
    symbol = unit_of(chart.value_column).symbol
    named = not symbol or f"({symbol})" in chart.title
    return excel_text.cell_text(chart.title if named else f"{chart.title} ({symbol})")[0]


def _cell_format(chart: Chart, table: pd.DataFrame) -> str:
    """Show the numbers of a chart's table and at its bars as a column of a table does."""
    return Shown(unit_of(chart.value_column), largest=float(table.to_numpy().max())).excel_format


def _axis_format(unit: Unit, largest: float) -> str:
    """Show three digits of the largest value; the title has the unit."""
    if largest <= 0:
        return "General"
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    number = "#,##0" + ("." + "0" * decimals if decimals else "")
    return f'{number}"%"' if unit.symbol == "%" else number


_LINK, _GREY = "#0563C1", "#666666"
_WIDTHS = (40, 13, 13, 46, 13, 24, 18)  # 1,200 pixels in all
_LAST = len(_WIDTHS) - 1
_BESIDE = 3  # columns of a table that leaves room for its chart
_CHART_PIXELS = 700
_LINE_HEIGHT, _LINES_SHOWN = (
    15.0,
    27,
)  # the height of a line; a row is no higher than Excel lets it be


class FirstSheet:
    """Writes block below block."""

    def __init__(self, book: Book, sheet: Worksheet, title: str) -> None:
        self._book, self._sheet = book, sheet
        for column, width in enumerate(_WIDTHS):
            checked(sheet.set_column(column, column, width))
        sheet.hide_gridlines(2)
        sheet.set_landscape()
        sheet.set_margins(left=0.4, right=0.4, top=0.5, bottom=0.5)
        sheet.fit_to_pages(1, 0)
        put_text(sheet, 0, 0, title, book.format(font_size=16, bold=True, font_color=INK))
        self._row = 2

    def write_facts(self, facts: Sequence[tuple[str, object]], heading: str) -> None:
        """Label and value a line; a number is shown with the unit that its label tells."""
        if heading:
            self._head(heading)
        for label, value in facts:
            put_text(self._sheet, self._row, 0, label, self._book.format(bold=True, valign="top"))
            text, shown = excel_text.fact_text(label, value)
            if shown:
                style = self._book.format(num_format=shown.excel_format, align="left")
                put(self._sheet, self._row, 1, excel_text.cell_value(value), style)
                self._row += 1
            else:
                self._write_wide(1, text)
        self._row += 1

    def write_answer(
        self,
        answer: Answer,
        table: pd.DataFrame,
        sheets: Collection[str],
        charts: Sequence[tuple[ChartBar, int]],
    ) -> None:
        """The first rows of a table, a chart beside it; of a chart also the rows that it takes."""
        top = self._row
        self._head(answer.title)
        columns = [column_of(series) for _, series in table.items()]
        if len(table):
            for place, column in enumerate(columns):
                put(self._sheet, self._row, place, column.header, self._book.format(**HEADER))
            self._set_height(
                max(_lines_of(c.header, 0.9 * w) for c, w in zip(columns, _WIDTHS, strict=False))
            )
            self._row += 1
        names = list(answer.columns)
        reading = {"text_wrap": True, "valign": "top"}
        link = self._book.format(**LINES, **reading, underline=1, font_color=_LINK)
        for values in zip(*(column.cells(0, len(table)) for column in columns), strict=True):
            lines = 1
            for place, (name, value, column) in enumerate(zip(names, values, columns, strict=True)):
                if name == answer.links:
                    self._write_link(place, answer.linked(value, sheets), link)
                    continue
                if column.is_text:
                    style = self._book.format(**LINES, **reading, align="left", indent=1)
                else:
                    shape = column.number_format
                    style = self._book.format(**LINES, **reading, num_format=shape)
                put(self._sheet, self._row, place, value, style)
                if isinstance(value, str) and place <= _LAST:
                    lines = max(lines, _lines_of(value, _WIDTHS[place]))
            self._set_height(lines)
            self._row += 1
        for chart, rows in charts if len(table) else ():
            beside = len(columns) <= _BESIDE
            row, place = (top, _BESIDE) if beside else (self._row, 0)
            chart.set_size({"width": _CHART_PIXELS, "height": rows * ROW_PIXELS})
            checked(self._sheet.insert_chart(row, place, chart, {"x_offset": 10}))
            self._row = max(self._row, row + rows)
        self._row += 1

    def write_index(self, index: Sequence[tuple[str, str, str]]) -> None:
        """A line for each other sheet: its name, how many rows it has, what it shows."""
        self._head("Sheets")
        link = self._book.format(underline=1, font_color=_LINK)
        for name, rows, what in index:
            self._write_link(0, name, link)
            put(self._sheet, self._row, 1, rows, self._book.format(font_color=_GREY))
            self._write_wide(2, what)
        self._row += 1

    def write_notes(self, notes: Sequence[str]) -> None:
        """Remarks, a paragraph each."""
        if notes:
            self._head("Notes")
        for note in notes:
            self._write_wide(0, note)

    def _head(self, heading: str) -> None:
        style = self._book.format(font_size=13, bold=True, font_color=INK)
        put_text(self._sheet, self._row, 0, heading, style)
        self._row += 1

    def _write_wide(self, first: int, text: str) -> None:
        """A text across the columns from `first` on, in as many lines as it needs."""
        style = self._book.format(text_wrap=True, valign="top")
        checked(self._sheet.merge_range(self._row, first, self._row, _LAST, "", style))
        put_text(self._sheet, self._row, first, text, style)
        self._set_height(_lines_of(text, sum(_WIDTHS[first:])))
        self._row += 1

    def _set_height(self, lines: int) -> None:
        if lines > 1:
            checked(self._sheet.set_row(self._row, _LINE_HEIGHT * min(lines, _LINES_SHOWN)))

    def _write_link(self, column: int, name: str, style: Format) -> None:
        target = "internal:'{}'!A1".format(name.replace("'", "''"))
        checked(self._sheet.write_url(self._row, column, target, style, string=name))


def _lines_of(text: str, width: float) -> int:
    """How many lines a text takes in so many characters, at least."""
    return sum(math.ceil(len(part) / width) or 1 for part in text.split("\n"))
