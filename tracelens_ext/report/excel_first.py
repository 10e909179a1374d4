"""The first sheet of a workbook: what was analysed, what was found, and what the sheets have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_cells import HEADER, INK, LINES, checked, put, put_text
from tracelens_ext.report.excel_charts import ROW_PIXELS
from tracelens_ext.report.excel_columns import column_of
from tracelens_ext.tables.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xlsxwriter.chart_bar import ChartBar
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet

    from tracelens_ext.lazy import pd
    from tracelens_ext.report.excel_cells import Book
    from tracelens_ext.report.report import Answer

_LINK, _GREY = "#0563C1", "#666666"
_WIDTHS = (40, 13, 13, 46, 13, 24, 18)  # 1,200 pixels in all
_LAST = len(_WIDTHS) - 1
_BESIDE = 3  # columns of a table that leaves room for its chart
_CHART_PIXELS = 700
_LINE, _LINES_SHOWN = 15.0, 27  # the height of a line; a row is no higher than Excel lets it be


class FirstSheet:
    """Writes block below block.

    Args:
        book: the workbook.
        sheet: its first sheet.
        title: the heading.
    """

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
            plain = excel_text.cell_value(value)
            if isinstance(plain, int | float) and not isinstance(plain, bool):
                unit = unit_of(label)
                fractions = plain != math.trunc(plain)
                shown = unit.excel_format(fractions=fractions, largest=abs(plain))
                style = self._book.format(num_format=shown, align="left")
                put(self._sheet, self._row, 1, plain, style)
                self._row += 1
            else:
                self._write_wide(1, "" if plain is None else str(plain))
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
        shown = table.iloc[: answer.rows]
        columns = [column_of(series) for _, series in shown.items()]
        if len(shown):
            for place, column in enumerate(columns):
                put(self._sheet, self._row, place, column.header, self._book.format(**HEADER))
            self._set_height(
                max(_lines_of(c.header, 0.9 * w) for c, w in zip(columns, _WIDTHS, strict=False))
            )
            self._row += 1
        names = list(answer.columns)
        reading = {"text_wrap": True, "valign": "top"}
        link = self._book.format(**LINES, **reading, underline=1, font_color=_LINK)
        for values in zip(*(column.cells(0, len(shown)) for column in columns), strict=True):
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
        for chart, rows in charts if len(shown) else ():
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
            checked(self._sheet.set_row(self._row, _LINE * min(lines, _LINES_SHOWN)))

    def _write_link(self, column: int, name: str, style: Format) -> None:
        """The name of a sheet, which leads to it."""
        target = "internal:'{}'!A1".format(name.replace("'", "''"))
        checked(self._sheet.write_url(self._row, column, target, style, string=name))


def _lines_of(text: str, width: float) -> int:
    """How many lines a text takes in so many characters, at least."""
    return sum(math.ceil(len(part) / width) or 1 for part in text.split("\n"))
