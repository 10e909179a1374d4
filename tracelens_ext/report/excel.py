"""Write tables as one Excel workbook: a first sheet with an index, a sheet a table, and charts."""

from __future__ import annotations

import io
import tempfile
from bisect import bisect_left
from contextlib import nullcontext
from typing import TYPE_CHECKING

from xlsxwriter.exceptions import FileCreateError

from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report.atomic import written_beside
from tracelens_ext.report.excel_cells import (
    HEADER,
    LINES,
    Book,
    checked,
    column_of,
    print_one_page_wide,
    put,
)
from tracelens_ext.report.excel_sheets import CHARTS, FirstSheet, chart_rows, drawing, write_charts
from tracelens_ext.tables.charts import chart_table
from tracelens_ext.tables.units import FIRST_FACTS, with_units

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from xlsxwriter.worksheet import Worksheet

    from tracelens_ext.report.excel_cells import Column
    from tracelens_ext.report.report import Report
    from tracelens_ext.tables.charts import Chart

MOST_ROWS = 1_048_576  # of a sheet, with the header
MOST_COLUMNS = 16_384
#: More cells take minutes to write, and hardly anything opens them.
MOST_CELLS = 1_000_000
#: A table of more cells takes seconds to write here and to open in Excel.
MANY_CELLS = 200_000

_SUMMARY = "summary"
#: Facts that stand before the tables.
_FIRST = frozenset(("Trace", "Devices", "Rank", "Steps", *FIRST_FACTS))
_ROWS_AT_ONCE = 8192  # bounds the memory: a million rows are never all Python objects
# Other than Excel's 15, which XlsxWriter would leave out; of a row without a height Excel makes
# one as high as its text has lines.
_ROW_HEIGHT = 15.75


def write_workbook(path: str | os.PathLike[str], report: Report) -> list[str]:
    """Write a report to an Excel file, replacing it only when all is written.

    The first sheet, `summary`, shows what was analysed, the answers with the charts of their
    tables, a linked index of the sheets, further facts and the notes; then comes a sheet a table,
    in the order given; then `charts`, when there are any. The index of a DataFrame is not written.
    Numbers are shown with the unit that the column's name tells; percentages (0 to 100) get bars.
    Texts stay texts. An empty cell stands for None, NaN and NaT; infinities and whole numbers of
    more than 15 digits are written as texts, and so is a value of any other type, as `str` shows
    it.

    Charts whose numbers are all zero are left out. Gives all notes of the first sheet: those given,
    then what had to be cut or renamed to fit Excel's limits.
    """
    sheets, units, facts, answers = report.sheets, report.units, report.facts, report.answers
    all_notes = list(report.notes)
    names = excel_text.unique_sheet_names(sheets, taken=(_SUMMARY, CHARTS))
    most = _most_rows(sheets.values())
    shown = {
        name: _fitting(wanted, name, with_units(frame, units.get(wanted, {})), most, all_notes)
        for name, (wanted, frame) in zip(names, sheets.items(), strict=True)
    }
    drawn = _charts_with_tables(report, all_notes)
    index = [
        (
            name,
            f"{len(frame):,} row{'' if len(frame) == 1 else 's'}",
            report.descriptions.get(wanted, ""),
        )
        for wanted, (name, frame) in zip(sheets, shown.items(), strict=True)
    ]
    if drawn:
        index.append((CHARTS, "", "; ".join(chart.title for chart, _ in drawn)))
    many = sum(frame.size for frame in shown.values()) > MANY_CELLS
    stored = io.BytesIO()  # compressed; so a full disk meets no half-written archive
    with (
        written_beside(path) as target,
        tempfile.TemporaryDirectory(prefix="tracelens-ext-")
        if many
        else nullcontext() as temporary_folder,
    ):
        book = Book(stored, excel_text.cleaned(report.title), temporary_folder)
        summary = book.xlsx.add_worksheet(_SUMMARY)
        prose = {answer.sheet for answer in answers if answer.links}
        for name, frame in shown.items():
            sheet = book.xlsx.add_worksheet(name)
            _write_table(book, sheet, frame, all_notes, whole=name in prose)
        tops = write_charts(book, book.xlsx.add_worksheet(CHARTS), drawn) if drawn else []
        first = FirstSheet(book, summary, report.title)
        first.write_facts([each for each in facts if each[0] in _FIRST], "")
        for answer in answers:
            beside = [
                (drawing(book, top, *each), chart_rows(each[1]))
                for top, each in zip(tops, drawn, strict=True)
                if each[0].sheet == answer.sheet
            ]
            first.write_answer(answer, report.answer_table(answer), shown, beside[:1])
        first.write_index(index)
        first.write_facts([each for each in facts if each[0] not in _FIRST], "Facts")
        first.write_notes(all_notes)
        try:
            book.xlsx.close()
        except FileCreateError as error:  # around the error of the system
            raise error.args[0] from error
        with target.open("wb") as stream:
            stream.write(stored.getbuffer())
    return all_notes


def slow_tables(sheets: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say which tables take seconds to write as a workbook and to open in Excel."""
    return [
        f"{name} has {frame.size:,} cells, which Excel opens slowly; --format csv or parquet "
        "writes such tables faster"
        for name, frame in sheets.items()
        if frame.size > MANY_CELLS
    ]


def _most_rows(frames: Collection[pd.DataFrame]) -> int:
    """How many rows each table may have, so that a sheet and the workbook hold them."""

    def is_too_much(rows: int) -> bool:
        return sum(min(len(each), rows + 1) * each.shape[1] for each in frames) > MOST_CELLS

    return bisect_left(range(MOST_ROWS - 1), True, key=is_too_much)


def _fitting(
    wanted: str, name: str, frame: pd.DataFrame, most_rows: int, notes: list[str]
) -> pd.DataFrame:
    """Give the part of a table that fits a sheet; note what does not."""
    if wanted != name:
        notes.append(
            f"The table “{wanted}” is on the sheet “{name}”: not every name can be a sheet's."
        )
    rows, width = frame.shape
    for most, there, what in ((most_rows, rows, "rows"), (MOST_COLUMNS, width, "columns")):
        if there > most:
            holder = "sheet" if most in (MOST_ROWS - 1, MOST_COLUMNS) else "workbook"
            notes.append(
                f"{name}: the first {most:,} of {there:,} {what} are here, as many as a {holder} "
                "holds; the CSV files have all."
            )
    return frame.iloc[:most_rows, :MOST_COLUMNS]


def _charts_with_tables(report: Report, notes: list[str]) -> list[tuple[Chart, pd.DataFrame]]:
    """Sum what each chart shows, from the whole tables; leave out those with nothing to show."""
    drawn = []
    for chart in report.charts:
        if chart.on != "page" and chart.sheet in report.sheets:
            table = chart_table(report.sheets[chart.sheet], chart)
            if table.empty:
                notes.append(f"No chart “{chart.title}”: {chart.sheet} has nothing to draw.")
            else:
                drawn.append((chart, table))
    return drawn


def _write_table(
    book: Book, sheet: Worksheet, frame: pd.DataFrame, notes: list[str], *, whole: bool
) -> None:
    """Write the sheet of a table: frozen header, rows, widths, filter, bars; note what is cut.

    Its rows are a line high; or, to show texts `whole`, as many as they need.
    """
    columns = [column_of(series) for _, series in frame.items()]
    notes.extend(
        f"{sheet.name}: texts longer than a cell may be ({excel_text.CELL_CHARACTERS:,} "
        f"characters) are cut, which “[cut here” marks: {column.cut:,} in the column "
        f"“{column.header}”; the CSV files have all."
        for column in columns
        if column.cut
    )
    sheet.freeze_panes(1, 0)
    sheet.repeat_rows(0)
    print_one_page_wide(sheet)
    if not columns:
        return
    if not whole:
        sheet.set_default_row(_ROW_HEIGHT)
    checked(sheet.set_row(0, 15 * max(column.header_lines for column in columns) + 3))
    for place, column in enumerate(columns):
        checked(sheet.set_column(place, place, column.width))
        side = "left" if column.is_text else "center"
        put(sheet, 0, place, column.header, book.format(**HEADER, align=side))
    _write_rows(book, sheet, columns, len(frame), whole=whole)
    checked(sheet.autofilter(0, 0, len(frame), len(columns) - 1))
    for place, column in enumerate(columns):
        if column.bars:
            checked(sheet.conditional_format(1, place, len(frame), place, column.bars))


def _write_rows(
    book: Book, sheet: Worksheet, columns: Sequence[Column], rows: int, *, whole: bool
) -> None:
    # A text wider than its column is clipped at the column's edge, whatever is beside it. (A
    # short one would be repeated to fill the width, so it has no such alignment.)
    long_text = book.format(**LINES, align="fill")
    # Of several lines the first is seen: rows have a fixed height.
    many_lines = book.format(**LINES, text_wrap=True, valign="top")
    plain = [
        (column.width, book.format(**LINES, num_format=column.number_format)) for column in columns
    ]
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = [column.cells(start, start + _ROWS_AT_ONCE) for column in columns]
        for row, values in enumerate(zip(*part, strict=True), start + 1):
            cells = []
            for value, (width, style) in zip(values, plain, strict=True):
                chosen = style
                if isinstance(value, str):
                    chosen = style if len(value) <= width else long_text
                    chosen = many_lines if whole or "\n" in value else chosen
                cells.append((value, chosen))
            if not (sheet.constant_memory and sheet.write_plain(row, cells)):
                for place, cell in enumerate(cells):
                    put(sheet, row, place, *cell)
