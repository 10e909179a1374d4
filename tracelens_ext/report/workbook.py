"""Write tables as one Excel workbook: a summary, a sheet a table, and charts.

openpyxl writes everything that is small and unlike the rest (summary, styles, charts, what holds
the sheets together); the sheets of the tables come from `excel_sheet`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.report import excel_cells, excel_package, excel_rows, excel_summary, excel_text
from tracelens_ext.report.atomic import written_beside
from tracelens_ext.report.charts import Chart, chart_table
from tracelens_ext.report.excel_sheet import TableSheet

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from openpyxl.worksheet.worksheet import Worksheet

__all__ = ["Chart", "write_workbook"]

MOST_ROWS = 1_048_576  # of a sheet, with the header
MOST_COLUMNS = 16_384

_SUMMARY, _CHARTS = "summary", "charts"


@dataclass(frozen=True)
class _Table:
    """A table of the workbook: its sheet's name, its columns, and the rows that fit."""

    name: str
    columns: list[excel_rows.Column]
    rows: int


def write_workbook(
    path: str | os.PathLike[str],
    sheets: Mapping[str, pd.DataFrame],
    *,
    facts: Sequence[tuple[str, object]] = (),
    charts: Sequence[Chart] = (),
    notes: Sequence[str] = (),
    descriptions: Mapping[str, str] | None = None,
    title: str = "GPU performance report",
) -> list[str]:
    """Write tables to an Excel file, replacing it only when all is written.

    The first sheet, `summary`, shows the facts, a linked index of the sheets, and the notes; then
    comes a sheet a table, in the order given; then `charts`, when there are any. The index of a
    DataFrame is not written. Numbers are shown with the unit that the column's name tells;
    percentages (0 to 100) get bars. Texts stay texts. An empty cell stands for None, NaN and NaT;
    infinities and whole numbers of more than 15 digits are written as texts, and so is a value
    of any other type, as `str` shows it.

    Args:
        path: the file; missing folders are created.
        sheets: the tables by name.
        facts: label and value of the lines of the first sheet; a label may carry a unit, as the
            names of columns do.
        charts: the charts; one whose numbers are all zero is left out.
        notes: remarks for the first sheet.
        descriptions: what a sheet shows, by its name, for the index.
        title: the heading of the first sheet.

    Returns:
        All notes of the first sheet: those given, then what had to be cut or renamed to fit
        Excel's limits.

    Raises:
        OutputError: the file cannot be written; whatever was there is untouched.
        ValueError: a chart names a sheet or a column that does not exist.
    """
    from openpyxl import Workbook

    all_notes = list(notes)
    tables = _tables(sheets, all_notes)
    drawn = _charts_with_tables(charts, sheets, all_notes)
    book = Workbook()
    book.properties.title, book.properties.creator = excel_text.cleaned(title), "tracelens-ext"
    book.remove(book.worksheets[0])
    summary = book.create_sheet(_SUMMARY)
    table_sheets = [book.create_sheet(table.name) for table in tables]
    index = [
        excel_summary.IndexLine(table.name, table.rows, (descriptions or {}).get(name, ""))
        for name, table in zip(sheets, tables, strict=True)
    ]
    pictures = []
    if drawn:
        from tracelens_ext.report import excel_charts

        pictures = excel_charts.draw_charts(book.create_sheet(_CHARTS), drawn)
        titles = "; ".join(chart.title for chart, _ in drawn)
        index.append(excel_summary.IndexLine(_CHARTS, None, titles))
    excel_summary.write_summary(summary, title, facts, index, all_notes)

    shown = _shown(table_sheets, tables)
    with written_beside(path) as beside:
        skeleton = excel_package.skeleton(book, table_sheets)
        parts = zip(map(excel_package.part_of, table_sheets), shown, strict=True)
        drawings = {excel_package.part_of(chart): xml for chart, xml in pictures}
        excel_package.fill_in(beside, skeleton, dict(parts), drawings)
    return all_notes


def _tables(sheets: Mapping[str, pd.DataFrame], notes: list[str]) -> list[_Table]:
    """Look at each table once; note what does not fit Excel's limits."""
    tables = []
    names = excel_text.unique_sheet_names(sheets, taken=(_SUMMARY, _CHARTS))
    for (wanted, frame), name in zip(sheets.items(), names, strict=True):
        if wanted != name:
            notes.append(
                f"The table “{wanted}” is on the sheet “{name}”: not every name can be a sheet's."
            )
        rows, width = frame.shape
        if rows > MOST_ROWS - 1:
            notes.append(
                f"{name}: the first {MOST_ROWS - 1:,} of {rows:,} rows are here, as many as a "
                "sheet holds; the CSV files have all."
            )
            rows = MOST_ROWS - 1
        if width > MOST_COLUMNS:
            notes.append(
                f"{name}: the first {MOST_COLUMNS:,} of {width:,} columns are here, as many as a "
                "sheet holds; the CSV files have all."
            )
            width = MOST_COLUMNS
        shown = frame if frame.shape == (rows, width) else frame.iloc[:rows, :width]
        columns = [excel_rows.column_of(series) for _, series in shown.items()]
        notes.extend(
            f"{name}: texts longer than a cell may be ({excel_text.CELL_CHARACTERS:,} characters) "
            f"are cut, which “[cut here” marks: {column.cut:,} in the column “{column.header}”; "
            "the CSV files have all."
            for column in columns
            if column.cut
        )
        tables.append(_Table(name, columns, rows))
    return tables


def _charts_with_tables(
    charts: Sequence[Chart], sheets: Mapping[str, pd.DataFrame], notes: list[str]
) -> list[tuple[Chart, pd.DataFrame]]:
    """Sum what each chart shows, from the whole tables; leave out those with nothing to show."""
    drawn = []
    for chart in charts:
        if chart.sheet not in sheets:
            message = f"the chart {chart.title!r} needs the sheet {chart.sheet!r}"
            raise ValueError(message)
        table = chart_table(sheets[chart.sheet], chart)
        if table.empty:
            notes.append(f"No chart “{chart.title}”: {chart.sheet} has nothing to draw.")
        else:
            drawn.append((chart, table))
    return drawn


def _shown(sheets: Sequence[Worksheet], tables: Sequence[_Table]) -> list[TableSheet]:
    """Give the tables with the formats of their cells; tell the workbook of filters and titles."""
    if not sheets:
        return []
    styles = excel_cells.TableStyles(scratch=sheets[0])
    shown = []
    for sheet, table in zip(sheets, tables, strict=True):
        of_table = TableSheet(table.columns, table.rows, styles.of(table.columns))
        if table.columns:
            sheet.auto_filter.ref = of_table.cells
        sheet.print_title_rows = "1:1"
        shown.append(of_table)
    return shown
