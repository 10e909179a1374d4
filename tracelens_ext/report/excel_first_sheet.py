"""The first sheet of a workbook: facts, answers with their charts, an index, and notes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_cells as cells
from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_charts import PlacedChart, chart_rows, drawing_of
from tracelens_ext.report.excel_text import CellValue
from tracelens_ext.report.report import Answer

# Properties of formats.
_LINK: dict[str, object] = {"underline": 1, "font_color": "#0563C1"}
_TEXT: dict[str, object] = {"align": "left", "indent": 1}
#: The widths of the columns of the first sheet, in characters: 1,200 pixels together.
_COLUMN_WIDTHS = (40, 13, 13, 46, 13, 24, 18)
_LAST_COLUMN = len(_COLUMN_WIDTHS) - 1
_MOST_COLUMNS_BESIDE_CHART = 3  # a table with more columns has its chart below it
_CHART_PIXELS = 700  # width of a chart on the first sheet
_HEADER_PART = 0.9  # the part of a column's width that its bold header can use
_LINE_HEIGHT = 15.0
_MOST_LINES = 27  # Excel allows no higher rows


@dataclass(frozen=True)
class IndexLine:
    """A line of the index of sheets."""

    sheet: str  #: the name of the sheet
    rows: str  #: the number of rows, in words; empty for the sheet of charts
    description: str  #: what the sheet shows


@dataclass(frozen=True)
class _Line:
    """Cells of a row, each with its format."""

    values: Sequence[CellValue]
    styles: Sequence[Format]


class FirstSheet:
    """Writes the first sheet, one block below the other."""

    def __init__(self, book: cells.Book, sheet: Worksheet, title: str) -> None:
        self._book = book
        self._format = book.format
        self._sheet = sheet
        for column, width in enumerate(_COLUMN_WIDTHS):
            cells.checked(sheet.set_column(column, column, width))
        sheet.hide_gridlines(2)
        sheet.set_landscape()
        sheet.set_margins(left=0.4, right=0.4, top=0.5, bottom=0.5)
        sheet.fit_to_pages(1, 0)
        cells.put(
            sheet=sheet,
            row=0,
            column=0,
            value=title,
            style=self._format(font_size=16, bold=True, font_color=cells.INK),
        )
        self._row = 2

    def write_facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Write a line for each fact; a number has the unit that its label tells."""
        for label, value in facts:
            cells.put(
                sheet=self._sheet,
                row=self._row,
                column=0,
                value=label,
                style=self._format(bold=True, valign="top"),
            )
            text, notation = excel_text.fact_text(label, value)
            if notation:
                style = self._format(num_format=notation.excel_format, align="left")
                cells.put(
                    sheet=self._sheet,
                    row=self._row,
                    column=1,
                    value=excel_text.cell_value(value),
                    style=style,
                )
                self._row += 1
            else:
                self.write_wide(1, text)
        self._row += 1

    def write_answer(
        self,
        answer: Answer,
        frame: pd.DataFrame,
        sheets: Collection[str],
        placed: PlacedChart | None,
    ) -> None:
        """Write the first rows of a table, and a chart beside or below them.

        Args:
            answer: the answer.
            frame: the rows to write.
            sheets: the names of all sheets, to which cells may be links.
            placed: the chart; None for none.
        """
        top = self._row
        self.write_heading(answer.title)
        columns = [cells.column_of(series) for _, series in frame.items()]
        if len(frame):
            header_style = self._format(**cells.HEADER)
            headers = [column.header for column in columns]
            self._write_line(
                _Line(headers, [header_style] * len(columns)), _HEADER_PART
            )
        styles = self._column_styles(answer, columns)
        for values in zip(*(column.values for column in columns), strict=True):
            shown_values = [
                answer.linked(value, sheets) if style.underline else value
                for value, style in zip(values, styles, strict=True)
            ]
            self._write_line(_Line(shown_values, styles))
        if placed is not None and len(frame):
            chart_row = self._row
            chart_column = 0
            if len(columns) <= _MOST_COLUMNS_BESIDE_CHART:
                chart_row = top
                chart_column = _MOST_COLUMNS_BESIDE_CHART
            drawing = drawing_of(self._book, placed, _CHART_PIXELS)
            options = {"x_offset": 10}
            cells.checked(
                self._sheet.insert_chart(chart_row, chart_column, drawing, options)
            )
            self._row = max(self._row, chart_row + chart_rows(placed.data.table))
        self._row += 1

    def _column_styles(
        self, answer: Answer, columns: Sequence[cells.ExcelColumn]
    ) -> list[Format]:
        """Return the format of each column of an answer; the column of links is underlined."""
        styles = []
        for name, column in zip(answer.columns, columns, strict=True):
            if name == answer.links:
                look = _LINK
            elif column.is_text:
                look = _TEXT
            else:
                look = {"num_format": column.number_format}
            styles.append(
                self._format(**cells.LINES, text_wrap=True, valign="top", **look)
            )
        return styles

    def write_index(self, index: Sequence[IndexLine]) -> None:
        """Write a line for each other sheet: its name, its number of rows, and what it shows."""
        self.write_heading("Sheets")
        for line in index:
            self._write_link(column=0, name=line.sheet, style=self._format(**_LINK))
            cells.put(
                sheet=self._sheet,
                row=self._row,
                column=1,
                value=line.rows,
                style=self._format(font_color="#666666"),
            )
            self.write_wide(2, line.description)
        self._row += 1

    def write_heading(self, heading: str) -> None:
        """Write a heading."""
        style = self._format(font_size=13, bold=True, font_color=cells.INK)
        cells.put(
            sheet=self._sheet, row=self._row, column=0, value=heading, style=style
        )
        self._row += 1

    def _write_line(self, line: _Line, part: float = 1.0) -> None:
        """Write a row with a cell for each column; underlined cells become links.

        Texts are wrapped to `part` of the width of their columns.
        """
        most_lines = 1
        for column, (value, style) in enumerate(
            zip(line.values, line.styles, strict=True)
        ):
            if style.underline:
                self._write_link(column, str(value), style)
                continue
            cells.put(
                sheet=self._sheet,
                row=self._row,
                column=column,
                value=value,
                style=style,
            )
            if isinstance(value, str) and column <= _LAST_COLUMN:
                most_lines = max(
                    most_lines, _lines_of(value, part * _COLUMN_WIDTHS[column])
                )
        self._end_line(most_lines)

    def write_wide(self, first: int, text: str) -> None:
        """Write a text across all columns from `first` on, wrapped to as many lines as it needs."""
        style = self._format(text_wrap=True, valign="top")
        cells.checked(
            self._sheet.merge_range(
                self._row, first, self._row, _LAST_COLUMN, "", style
            )
        )
        cells.put(
            sheet=self._sheet, row=self._row, column=first, value=text, style=style
        )
        width = sum(_COLUMN_WIDTHS[first:])
        self._end_line(_lines_of(text, width))

    def _end_line(self, lines: int) -> None:
        """Make the current row high enough for some lines of text, and go to the next row."""
        if lines > 1:
            cells.checked(
                self._sheet.set_row(self._row, _LINE_HEIGHT * min(lines, _MOST_LINES))
            )
        self._row += 1

    def _write_link(self, column: int, name: str, style: Format) -> None:
        target = "internal:'{}'!A1".format(name.replace("'", "''"))
        cells.checked(
            self._sheet.write_url(self._row, column, target, style, string=name)
        )


def _lines_of(text: str, width: float) -> int:
    """Return the least number of lines for a text that is wrapped to a width in characters."""
    return sum(math.ceil(len(line) / width) or 1 for line in text.split("\n"))
