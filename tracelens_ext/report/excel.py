"""Write a report as an Excel workbook: a summary with an index, the tables, and the charts."""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlsxwriter.chart_bar import ChartBar
from xlsxwriter.exceptions import FileCreateError
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.compatibility.earlier_names import (
    earlier_column_names,
    earlier_table,
    earlier_table_name,
)
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_cells as cells
from tracelens_ext.report import excel_text
from tracelens_ext.report.atomic_files import written_beside
from tracelens_ext.report.colors import ONE_COLOR, color_of, is_name
from tracelens_ext.report.excel_text import CellValue
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import Chart, chart_table, charted
from tracelens_ext.report.tables.short_names import distinct_short_texts
from tracelens_ext.report.tables.units import FIRST_FACTS, Shown, unit_of, with_units
from tracelens_ext.text import counted

#: A table with more cells takes seconds to write, and to open in Excel.
MANY_CELLS = 200_000

# Names of sheets.
_SUMMARY = "summary"
_CHARTS = "charts"
#: The facts at the top of the summary.
_FIRST = frozenset(("Trace", "Devices", "Rank", "Steps") + FIRST_FACTS)


@dataclass(frozen=True)
class _ChartData:
    """A chart, and the small table of sums that it shows."""

    chart: Chart
    table: pd.DataFrame


@dataclass(frozen=True)
class _PlacedChart:
    """A chart on the sheet of charts."""

    data: _ChartData
    top: int  #: the first row of the table of sums


@dataclass(frozen=True)
class _IndexLine:
    """A line of the index of sheets."""

    sheet: str  #: the name of the sheet
    rows: str  #: the number of rows, in words; empty for the sheet of charts
    description: str  #: what the sheet shows


@dataclass(frozen=True)
class _Line:
    """Cells of a row, each with its format."""

    values: Sequence[CellValue]
    styles: Sequence[Format]


def write_workbook(path: str | os.PathLike[str], report: Report) -> list[str]:
    """Write a report to an Excel file, which replaces an existing file only when it is complete.

    The first sheet, `summary`, has facts about the trace, the answers with the charts of their
    tables, an index with links to the sheets, further facts, and notes. Then comes a sheet for each
    table, and at last `charts`, without charts that have only zeros. Numbers have the unit that the
    name of their column tells; percentages (0 to 100) have bars. None, NaN and NaT are empty cells.
    Infinities, integers of more than 15 digits, and values of other types are texts.

    Returns:
        All notes of the first sheet: the notes of the report, then notes on what was cut or renamed
        for Excel's limits, and on what could not be written.

    Raises:
        ValueError: a chart needs a table that the report lacks.
    """
    compressed = io.BytesIO()  # in memory, so that a full disk cannot cut the archive
    with (
        written_beside(path) as target,
        tempfile.TemporaryDirectory(prefix="tracelens-ext-") as folder,
    ):
        book = cells.Book(
            stream=compressed, title=excel_text.cleaned(report.title), folder=folder
        )
        writer = _WorkbookWriter(book, report)
        writer.write()
        try:
            book.xlsx.close()
        except (
            FileCreateError
        ) as error:  # XlsxWriter wraps the error of the operating system
            raise error.args[0] from error
        with target.open("wb") as stream:
            stream.write(compressed.getbuffer())
    return writer.notes


def slow_tables(sheets: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return a note for each table that is so large that Excel is slow to open it."""
    return [
        f"{name} has {frame.size:,} cells, which makes Excel slow to open it; "
        "--format csv or parquet suits such tables better"
        for name, frame in sheets.items()
        if frame.size > MANY_CELLS
    ]


class _WorkbookWriter:
    """Writes the parts of a report into a workbook; a part that fails is left out."""

    def __init__(self, book: cells.Book, report: Report) -> None:
        self._book = book
        self._report = report
        self._failures = PartFailures()
        self._index: list[_IndexLine] = []
        self._placed_charts: list[_PlacedChart] = []
        self.notes = list(report.notes)

    def write(self) -> None:
        """Write all sheets; the first one comes last because it notes what could not be written."""
        frames = self._fitting_frames()
        charts = self._charts_with_data()
        first = _FirstSheet(
            book=self._book,
            sheet=self._book.xlsx.add_worksheet(_SUMMARY),
            title=self._report.title,
        )
        self._write_tables(frames)
        if charts:
            titles = "; ".join(data.chart.title for data in charts)
            self._index.append(_IndexLine(sheet=_CHARTS, rows="", description=titles))
            sheet = self._book.xlsx.add_worksheet(_CHARTS)
            self._placed_charts = _write_charts(
                book=self._book, sheet=sheet, charts=charts, failures=self._failures
            )
        first.write_facts(fact for fact in self._report.facts if fact[0] in _FIRST)
        for answer in self._report.answers:
            with self._failures.isolate(f"The first rows of the sheet {answer.sheet}"):
                frame = self._report.answer_table(answer)
                first.write_answer(answer, frame, frames, self._chart_of(answer))
        first.write_index(self._index)
        first.write_head("Facts")
        first.write_facts(fact for fact in self._report.facts if fact[0] not in _FIRST)
        self._add_failures_to_notes()
        if self.notes:
            first.write_head("Notes")
        for note in self.notes:
            first.write_wide(0, note)

    def _fitting_frames(self) -> dict[str, pd.DataFrame]:
        """Return the part of each table that fits on a sheet, by the name of the sheet.

        Adds the sheets to the index.
        """
        report = self._report
        sheet_names = excel_text.unique_sheet_names(
            map(earlier_table_name, report.sheets), taken=(_SUMMARY, _CHARTS)
        )
        most_rows = cells.most_rows(report.sheets.values())
        frames: dict[str, pd.DataFrame] = {}
        for sheet_name, (name, frame) in zip(
            sheet_names, report.sheets.items(), strict=True
        ):
            units = report.units.get(name, {})
            earlier_names = earlier_column_names(units, name)
            units = {
                earlier_names.get(column, column): unit
                for column, unit in units.items()
            }
            headed = with_units(earlier_table(frame, name), units)
            fitting = cells.fitting(
                wanted=name,
                name=sheet_name,
                frame=headed,
                most_rows=most_rows,
                notes=self.notes,
            )
            frames[sheet_name] = fitting
            line = _IndexLine(
                sheet=sheet_name,
                rows=counted(len(fitting), "row"),
                description=report.descriptions.get(name, ""),
            )
            self._index.append(line)
        return frames

    def _charts_with_data(self) -> list[_ChartData]:
        """Return the charts with their sums of the complete tables, but no empty charts."""
        charts = []
        for chart in self._report.charts:
            if chart.on == "page" or chart.sheet in self._report.page_sheets:
                continue
            frame = charted(self._report.sheets, chart)
            with self._failures.isolate(chart.part):
                table = chart_table(frame, chart)
                if len(table):
                    charts.append(_ChartData(chart, table))
                if table.empty:
                    self.notes.append(
                        f"No chart “{chart.title}”: the sheet {chart.sheet} has "
                        "nothing to draw."
                    )
        return charts

    def _write_tables(self, frames: Mapping[str, pd.DataFrame]) -> None:
        sheets_of_sentences = {
            answer.sheet for answer in self._report.answers if answer.links
        }
        for name, frame in frames.items():
            sheet = self._book.xlsx.add_worksheet(name)
            with self._failures.isolate(f"The sheet {name}"):
                wrap_texts = name in sheets_of_sentences
                self.notes += cells.write_table(
                    self._book, sheet, frame, wrap_texts=wrap_texts
                )

    def _chart_of(self, answer: Answer) -> _PlacedChart | None:
        """Return the first chart of an answer's table; None if it has no chart."""
        for placed in self._placed_charts:
            if placed.data.chart.sheet == answer.sheet:
                return placed
        return None

    def _add_failures_to_notes(self) -> None:
        for message in self._failures.messages:
            if message not in self.notes:
                self.notes.append(message)


_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
_CHART_COLUMNS = (
    12  # number of columns that a chart covers, of the default width of 64 pixels
)
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


def _write_charts(
    book: cells.Book,
    sheet: Worksheet,
    charts: Sequence[_ChartData],
    failures: PartFailures,
) -> list[_PlacedChart]:
    """Draw charts one below the other, each with its table of sums on its right.

    Returns:
        The charts that were drawn.
    """
    row = 0
    page_start = 0
    page_breaks = []
    placed_charts = []
    for data in charts:
        height = _chart_rows(data.table)
        if row + height > page_start + _PAGE_ROWS:
            page_breaks.append(row)
            page_start = row
        placed = _PlacedChart(data, top=row)
        with failures.isolate(data.chart.part):
            drawing = _drawing(book, placed, _WIDTH_PIXELS)
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


def _chart_rows(table: pd.DataFrame) -> int:
    """Return the number of sheet rows that a chart covers, so that all labels are readable."""
    bars, series = table.shape
    # A bar needs slightly more than a row; the title, the axis and the legend need some rows.
    legend_rows = 0
    if series > 1:
        legend_rows = math.ceil(series / 5)
    return max(12, 7 + math.ceil(1.1 * bars) + legend_rows)


def _write_numbers(book: cells.Book, sheet: Worksheet, placed: _PlacedChart) -> None:
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


def _drawing(book: cells.Book, placed: _PlacedChart, width: int) -> ChartBar:
    """Return a chart of horizontal bars for a table that `_write_numbers` writes."""
    chart = placed.data.chart
    table = placed.data.table
    is_stacked = chart.kind == "stacked"
    subtype = "stacked" if is_stacked else "clustered"
    drawing = book.xlsx.add_chart({"type": "bar", "subtype": subtype})
    drawing.set_size({"width": width, "height": _chart_rows(table) * _ROW_PIXELS})
    for position in range(table.shape[1]):
        drawing.add_series(_series_options(placed, position))
    title_font = {"size": 13, "bold": True, "color": _INK}
    drawing.set_title(
        {
            "name": [_CHARTS, placed.top, _CHART_COLUMNS],
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


def _series_options(placed: _PlacedChart, position: int) -> dict[str, Any]:
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
        "name": [_CHARTS, header_row, column],
        "name_data": [_short_labels(table.columns)[position]],
        "categories": [_CHARTS, first_row, _CHART_COLUMNS, last_row, _CHART_COLUMNS],
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
    options["values"] = [_CHARTS, first_row, column, last_row, column]
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


def _number_axis(data: _ChartData) -> dict[str, Any]:
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


def _cell_format(data: _ChartData) -> str:
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


# Properties of formats.
_LINK: dict[str, object] = {"underline": 1, "font_color": "#0563C1"}
_TEXT: dict[str, object] = {"align": "left", "indent": 1}
#: The widths of the columns of the first sheet, in characters: 1,200 pixels together.
_WIDTHS = (40, 13, 13, 46, 13, 24, 18)
_LAST = len(_WIDTHS) - 1
_MOST_COLUMNS_BESIDE_CHART = 3  # a table with more columns has its chart below it
_CHART_PIXELS = 700  # width of a chart on the first sheet
_HEADER_PART = 0.9  # the part of a column's width that its bold header can use
_LINE_HEIGHT = 15.0
_MOST_LINES = 27  # Excel allows no higher rows


class _FirstSheet:
    """Writes the first sheet, one block below the other."""

    def __init__(self, book: cells.Book, sheet: Worksheet, title: str) -> None:
        self._book = book
        self._format = book.format
        self._sheet = sheet
        for column, width in enumerate(_WIDTHS):
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
        placed: _PlacedChart | None,
    ) -> None:
        """Write the first rows of a table, and a chart beside or below them.

        Args:
            answer: the answer.
            frame: the rows to write.
            sheets: the names of all sheets, to which cells may be links.
            placed: the chart; None for none.
        """
        top = self._row
        self.write_head(answer.title)
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
            drawing = _drawing(self._book, placed, _CHART_PIXELS)
            options = {"x_offset": 10}
            cells.checked(
                self._sheet.insert_chart(chart_row, chart_column, drawing, options)
            )
            self._row = max(self._row, chart_row + _chart_rows(placed.data.table))
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

    def write_index(self, index: Sequence[_IndexLine]) -> None:
        """Write a line for each other sheet: its name, its number of rows, and what it shows."""
        self.write_head("Sheets")
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

    def write_head(self, heading: str) -> None:
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
            if isinstance(value, str) and column <= _LAST:
                most_lines = max(most_lines, _lines_of(value, part * _WIDTHS[column]))
        self._end_line(most_lines)

    def write_wide(self, first: int, text: str) -> None:
        """Write a text across all columns from `first` on, wrapped to as many lines as it needs."""
        style = self._format(text_wrap=True, valign="top")
        cells.checked(
            self._sheet.merge_range(self._row, first, self._row, _LAST, "", style)
        )
        cells.put(
            sheet=self._sheet, row=self._row, column=first, value=text, style=style
        )
        width = sum(_WIDTHS[first:])
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
