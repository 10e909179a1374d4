"""Write tables as one Excel workbook: a first sheet with an index, a sheet a table, and charts."""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xlsxwriter.chart_bar import ChartBar
from xlsxwriter.exceptions import FileCreateError
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_cells as cells
from tracelens_ext.report import excel_text
from tracelens_ext.report.colors import ONE_COLOUR, colour_of, is_name
from tracelens_ext.report.excel_text import CellValue
from tracelens_ext.report.manifest import written_beside
from tracelens_ext.report.tables.charts import Chart, chart_table, charted
from tracelens_ext.report.tables.short_names import told_apart
from tracelens_ext.report.tables.units import FIRST_FACTS, Shown, unit_of, with_units

if TYPE_CHECKING:
    from tracelens_ext.report.report import Answer, Report

#: A table of more cells takes seconds to write here and to open in Excel.
MANY_CELLS = 200_000

# names of sheets
_SUMMARY = "summary"
_CHARTS = "charts"
#: Facts that stand before the tables.
_FIRST = frozenset(("Trace", "Devices", "Rank", "Steps", *FIRST_FACTS))


def write_workbook(path: str | os.PathLike[str], report: Report) -> list[str]:
    """Write a report to an Excel file, replacing it only when all is written.

    The first sheet, `summary`, shows what was analysed, the answers with the charts of their
    tables, a linked index of the sheets, further facts and the notes; then comes a sheet a table;
    then `charts`, but those of zeros. Numbers are shown with the unit that the column's name tells;
    percentages (0 to 100) get bars. An empty cell stands for None, NaN and NaT; infinities, whole
    numbers of more than 15 digits, and values of other types are written as texts.

    Gives all notes of the first sheet: those given, then what had to be cut or renamed to fit
    Excel's limits.

    Raises:
        ValueError: a chart is of a table that the report has not.
    """
    notes = list(report.notes)
    names = excel_text.unique_sheet_names(report.sheets, taken=(_SUMMARY, _CHARTS))
    most = cells.most_rows(report.sheets.values())
    shown: dict[str, pd.DataFrame] = {}
    index = []
    for name, (wanted, whole) in zip(names, report.sheets.items(), strict=True):
        headed = with_units(whole, report.units.get(wanted, {}))
        frame = shown[name] = cells.fitting(wanted, name, headed, most, notes)
        rows = f"{len(frame):,} row{'' if len(frame) == 1 else 's'}"
        index.append((name, rows, report.descriptions.get(wanted, "")))
    if drawn := _charts_with_tables(report, notes):
        index.append((_CHARTS, "", "; ".join(chart.title for chart, _ in drawn)))
    stored = io.BytesIO()  # compressed; so a full disk meets no half-written archive
    with (
        written_beside(path) as target,
        tempfile.TemporaryDirectory(prefix="tracelens-ext-") as folder,
    ):
        book = cells.Book(stored, excel_text.cleaned(report.title), folder)
        first = _FirstSheet(book, book.xlsx.add_worksheet(_SUMMARY), report.title)
        prose = {answer.sheet for answer in report.answers if answer.links}
        for name, frame in shown.items():
            sheet = book.xlsx.add_worksheet(name)
            notes += cells.write_table(book, sheet, frame, whole=name in prose)
        tops = _write_charts(book, book.xlsx.add_worksheet(_CHARTS), drawn) if drawn else []
        first.write_facts(each for each in report.facts if each[0] in _FIRST)
        for answer in report.answers:
            beside = zip(tops, drawn, strict=True)
            chart = next((each for each in beside if each[1][0].sheet == answer.sheet), None)
            first.write_answer(answer, report.answer_table(answer), shown, chart)
        first.write_index(index)
        first.write_head("Facts")
        first.write_facts(each for each in report.facts if each[0] not in _FIRST)
        if notes:
            first.write_head("Notes")
        for note in notes:
            first.write_wide(0, note)
        try:
            book.xlsx.close()
        except FileCreateError as error:  # around the error of the system
            raise error.args[0] from error
        with target.open("wb") as stream:
            stream.write(stored.getbuffer())
    return notes


def slow_tables(sheets: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say which tables take seconds to write as a workbook and to open in Excel."""
    return [
        f"{name} has {frame.size:,} cells, which Excel opens slowly; --format csv or parquet "
        "writes such tables faster"
        for name, frame in sheets.items()
        if frame.size > MANY_CELLS
    ]


def _charts_with_tables(report: Report, notes: list[str]) -> list[_Charted]:
    """Sum what each chart shows, from the whole tables; leave out those with nothing to show."""
    wanted = (c for c in report.charts if c.on != "page" and c.sheet not in report.page_sheets)
    drawn = [(chart, chart_table(charted(report.sheets, chart), chart)) for chart in wanted]
    notes += [
        f"No chart “{chart.title}”: {chart.sheet} has nothing to draw."
        for chart, table in drawn
        if table.empty
    ]
    return [each for each in drawn if len(each[1])]


_Charted = tuple[Chart, "pd.DataFrame"]  # and what is drawn
_Placed = tuple[int, _Charted]  # from that row of the sheet of charts on
_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
_CHART_COLUMNS = 12  # sheet columns under a chart, of the default width of 64 pixels
_WIDTH_PIXELS = 756
_ROW_PIXELS = 20
# of a landscape page, A4 or Letter; in percent
_PAGE_ROWS = 40
_PRINT_SCALE = 85
_INK = "#404040"
_GRID = "#D9D9D9"
_SMALL = {"size": 9, "bold": False, "color": _INK}
_LINE = {"color": _GRID}
_AXIS = {"num_font": _SMALL, "line": _LINE, "major_tick_mark": "none", "minor_tick_mark": "none"}


def _write_charts(book: cells.Book, sheet: Worksheet, charts: Sequence[_Charted]) -> list[int]:
    """Draw charts below one another, each with its table at its right; the row of each table."""
    row = page_start = 0
    breaks = []
    tops = []
    for chart, table in charts:
        height = _chart_rows(table)
        if row + height > page_start + _PAGE_ROWS:
            breaks.append(row)
            page_start = row
        tops.append(row)
        _write_numbers(book, sheet, row, chart, table)
        cells.checked(sheet.insert_chart(row, 0, _drawing(book, row, chart, table, _WIDTH_PIXELS)))
        row += max(height, len(table) + 2) + 2
    widest = max(table.shape[1] for _, table in charts)
    cells.checked(sheet.set_column(_CHART_COLUMNS, _CHART_COLUMNS, _LABEL_CHARACTERS))
    cells.checked(sheet.set_column(_CHART_COLUMNS + 1, _CHART_COLUMNS + widest, 14))
    sheet.hide_gridlines(2)
    sheet.set_landscape()
    sheet.set_print_scale(_PRINT_SCALE)  # not fitted to the page: that ignores page breaks
    sheet.set_margins(top=0.5, bottom=0.5)
    sheet.set_h_pagebreaks(breaks)
    # Printed are the charts alone: their tables would make them small.
    cells.checked(sheet.print_area(0, 0, row, _CHART_COLUMNS - 1))
    return tops


def _chart_rows(table: pd.DataFrame) -> int:
    """How many rows a chart takes, so that each label can be read."""
    bars, series = table.shape
    # Room for the title, the axis and the legend; a bar needs a little more than a line.
    legend_rows = math.ceil(series / 5) if series > 1 else 0
    return max(12, 7 + math.ceil(1.1 * bars) + legend_rows)


def _write_numbers(
    book: cells.Book, sheet: Worksheet, top: int, chart: Chart, table: pd.DataFrame
) -> None:
    """Write the numbers behind a chart: title, header, then a row a bar."""
    header = book.format(bold=True, font_color=_INK)
    plain = book.format()
    number = book.format(num_format=_cell_format(chart, table))
    cells.put(sheet, top, _CHART_COLUMNS, _titled(chart), book.format(bold=True))
    names = [chart.label_column, *_short(table.columns)]
    rows = zip(_short(table.index), table.to_numpy().tolist(), strict=True)
    for row, values in enumerate([names, *([label, *each] for label, each in rows)], top + 1):
        for place, value in enumerate(values):
            style = header if row == top + 1 else number if place else plain
            cells.put(sheet, row, _CHART_COLUMNS + place, value, style)


def _drawing(book: cells.Book, top: int, chart: Chart, table: pd.DataFrame, width: int) -> ChartBar:
    """Draw horizontal bars over a table written by `_write_numbers`."""
    stacked = chart.kind == "stacked"
    numbers = table.to_numpy()
    drawn = book.xlsx.add_chart({"type": "bar", "subtype": "stacked" if stacked else "clustered"})
    drawn.set_size({"width": width, "height": _chart_rows(table) * _ROW_PIXELS})
    first = top + 2
    last = top + 1 + len(table)
    # Names and labels are references to cells: as texts they could be taken for formulas. With a
    # blank: labels that all look like numbers (`0`, `nan`) would be stored as numbers.
    of_bars: dict[str, Any] = {
        "categories": [_CHARTS, first, _CHART_COLUMNS, last, _CHART_COLUMNS],
        "categories_data": [f"{label} " for label in _short(table.index)],
    }
    if not stacked:
        shape = {"num_format": _cell_format(chart, table)}
        of_categories = "category" in chart.label_column
        of_bars["data_labels"] = {"value": True, "font": _SMALL, **shape}
        of_bars["points"] = [
            _filled(colour_of(label)) if of_categories or not is_name(label) else None
            for label in map(str, table.index)
        ]
    each_series = zip(table.columns, _short(table.columns), numbers.T.tolist(), strict=True)
    for column, (name, short, values) in enumerate(each_series, _CHART_COLUMNS + 1):
        named = {"name": [_CHARTS, top + 1, column], "name_data": [short]}
        numbered = {"values": [_CHARTS, first, column, last, column], "values_data": values}
        look = _filled(colour_of(str(name)) if stacked else ONE_COLOUR)
        drawn.add_series({**named, **of_bars, **numbered, **look, "gap": 35})
    font = {"size": 13, "bold": True, "color": _INK}
    title = {"name": [_CHARTS, top, _CHART_COLUMNS], "data": [_titled(chart)], "name_font": font}
    drawn.set_title(title)
    # Of bars that lie, XlsxWriter's y axis is that of the labels. The first row of the table is
    # the top bar, its label beside the plot also where bars go to the left; numbers stay below.
    drawn.set_y_axis(_AXIS | {"reverse": True, "label_position": "low", "crossing": "max"})
    # A bar that starts elsewhere than at zero shows a wrong proportion.
    from_zero = {"min": 0} if float(numbers.min()) >= 0 else {}
    largest = float(abs(numbers.sum(axis=1) if stacked else numbers).max())
    shown = {"num_format": _axis_format(unit_of(chart.value_column).symbol, largest)}
    grid = {"major_gridlines": {"visible": True, "line": _LINE}}
    drawn.set_x_axis(_AXIS | from_zero | shown | grid)
    several = table.shape[1] > 1
    drawn.set_legend({"position": "bottom", "font": _SMALL} if several else {"none": True})
    return drawn


def _filled(colour: str) -> dict[str, Any]:
    return {"fill": {"color": colour}, "border": {"color": colour}}


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


def _axis_format(symbol: str, largest: float) -> str:
    """Show three digits of the largest value; the title has the unit."""
    if largest <= 0:
        return "General"
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    number = "#,##0" + ("." + "0" * decimals if decimals else "")
    return f'{number}"%"' if symbol == "%" else number


_LINK: dict[str, object] = {"underline": 1, "font_color": "#0563C1"}
_TEXT: dict[str, object] = {"align": "left", "indent": 1}
_WIDTHS = (40, 13, 13, 46, 13, 24, 18)  # 1,200 pixels in all
_LAST = len(_WIDTHS) - 1
_BESIDE = 3  # columns of a table that leaves room for its chart
_CHART_PIXELS = 700
# a row is no higher than Excel lets it be
_LINE_HEIGHT = 15.0
_LINES_SHOWN = 27


class _FirstSheet:
    """Writes block below block."""

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
        cells.put(sheet, 0, 0, title, self._format(font_size=16, bold=True, font_color=cells.INK))
        self._row = 2

    def write_facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Label and value a line; a number is shown with the unit that its label tells."""
        for label, value in facts:
            cells.put(self._sheet, self._row, 0, label, self._format(bold=True, valign="top"))
            text, shown = excel_text.fact_text(label, value)
            if shown:
                style = self._format(num_format=shown.excel_format, align="left")
                cells.put(self._sheet, self._row, 1, excel_text.cell_value(value), style)
                self._row += 1
            else:
                self.write_wide(1, text)
        self._row += 1

    def write_answer(
        self, answer: Answer, table: pd.DataFrame, sheets: Collection[str], drawn: _Placed | None
    ) -> None:
        """The first rows of a table, a chart beside it or below: its row on its sheet, and it."""
        top = self._row
        self.write_head(answer.title)
        columns = [cells.column_of(series) for _, series in table.items()]
        if len(table):
            self._write_line([(each.header, self._format(**cells.HEADER)) for each in columns], 0.9)
        looks = [_TEXT if each.is_text else {"num_format": each.number_format} for each in columns]
        if answer.links in answer.columns:
            looks[list(answer.columns).index(answer.links)] = _LINK
        styles = [self._format(**cells.LINES, text_wrap=True, valign="top", **own) for own in looks]
        for values in zip(*(column.values for column in columns), strict=True):
            line = [
                (answer.linked(value, sheets) if style.underline else value, style)
                for value, style in zip(values, styles, strict=True)
            ]
            self._write_line(line)
        if drawn and len(table):
            chart = _drawing(self._book, drawn[0], *drawn[1], _CHART_PIXELS)
            row, place = (top, _BESIDE) if len(columns) <= _BESIDE else (self._row, 0)
            cells.checked(self._sheet.insert_chart(row, place, chart, {"x_offset": 10}))
            self._row = max(self._row, row + _chart_rows(drawn[1][1]))
        self._row += 1

    def write_index(self, index: Sequence[tuple[str, str, str]]) -> None:
        """A line for each other sheet: its name, how many rows it has, what it shows."""
        self.write_head("Sheets")
        for name, rows, what in index:
            self._write_link(0, name, self._format(**_LINK))
            cells.put(self._sheet, self._row, 1, rows, self._format(font_color="#666666"))
            self.write_wide(2, what)
        self._row += 1

    def write_head(self, heading: str) -> None:
        """A line above others."""
        style = self._format(font_size=13, bold=True, font_color=cells.INK)
        cells.put(self._sheet, self._row, 0, heading, style)
        self._row += 1

    def _write_line(self, line: Sequence[tuple[CellValue, Format]], part: float = 1.0) -> None:
        """A cell a column, texts in as many lines as `part` of it takes; underlined is a link."""
        lines = [1]
        for place, (value, style) in enumerate(line):
            if style.underline:
                self._write_link(place, str(value), style)
                continue
            cells.put(self._sheet, self._row, place, value, style)
            if isinstance(value, str) and place <= _LAST:
                lines.append(_lines_of(value, part * _WIDTHS[place]))
        self._end_line(max(lines))

    def write_wide(self, first: int, text: str) -> None:
        """A text across the columns from `first` on, in as many lines as it needs."""
        style = self._format(text_wrap=True, valign="top")
        cells.checked(self._sheet.merge_range(self._row, first, self._row, _LAST, "", style))
        cells.put(self._sheet, self._row, first, text, style)
        self._end_line(_lines_of(text, sum(_WIDTHS[first:])))

    def _end_line(self, lines: int) -> None:
        if lines > 1:
            cells.checked(self._sheet.set_row(self._row, _LINE_HEIGHT * min(lines, _LINES_SHOWN)))
        self._row += 1

    def _write_link(self, column: int, name: str, style: Format) -> None:
        target = "internal:'{}'!A1".format(name.replace("'", "''"))
        cells.checked(self._sheet.write_url(self._row, column, target, style, string=name))


def _lines_of(text: str, width: float) -> int:
    """How many lines a text takes in so many characters, at least."""
    return sum(math.ceil(len(part) / width) or 1 for part in text.split("\n"))
