"""Write a report as an Excel workbook: a summary with an index, the tables, and the charts."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping

from xlsxwriter.exceptions import FileCreateError

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
from tracelens_ext.report.excel_charts import (
    CHARTS,
    ChartData,
    PlacedChart,
    write_charts,
)
from tracelens_ext.report.excel_first_sheet import FirstSheet, IndexLine
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import chart_table, charted
from tracelens_ext.report.tables.units import FIRST_FACTS, with_units
from tracelens_ext.text import counted

#: A table with more cells takes seconds to write, and to open in Excel.
MANY_CELLS = 200_000

# Names of sheets.
_SUMMARY = "summary"
#: The facts at the top of the summary.
_FIRST_FACTS = frozenset(("Trace", "Devices", "Rank", "Steps") + FIRST_FACTS)


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
        except FileCreateError as error:
            # XlsxWriter wraps the error of the operating system.
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
        self._index: list[IndexLine] = []
        self._placed_charts: list[PlacedChart] = []
        self.notes = list(report.notes)

    def write(self) -> None:
        """Write all sheets; the first one comes last because it notes what could not be written."""
        frames = self._fitting_frames()
        charts = self._charts_with_data()
        first = FirstSheet(
            book=self._book,
            sheet=self._book.xlsx.add_worksheet(_SUMMARY),
            title=self._report.title,
        )
        self._write_tables(frames)
        if charts:
            titles = "; ".join(data.chart.title for data in charts)
            self._index.append(IndexLine(sheet=CHARTS, rows="", description=titles))
            sheet = self._book.xlsx.add_worksheet(CHARTS)
            self._placed_charts = write_charts(
                book=self._book, sheet=sheet, charts=charts, failures=self._failures
            )
        first.write_facts(
            fact for fact in self._report.facts if fact[0] in _FIRST_FACTS
        )
        for answer in self._report.answers:
            with self._failures.isolate(f"The first rows of the sheet {answer.sheet}"):
                frame = self._report.answer_table(answer)
                first.write_answer(answer, frame, frames, self._chart_of(answer))
        first.write_index(self._index)
        first.write_heading("Facts")
        first.write_facts(
            fact for fact in self._report.facts if fact[0] not in _FIRST_FACTS
        )
        self._add_failures_to_notes()
        if self.notes:
            first.write_heading("Notes")
        for note in self.notes:
            first.write_wide(0, note)

    def _fitting_frames(self) -> dict[str, pd.DataFrame]:
        """Return the part of each table that fits on a sheet, by the name of the sheet.

        Adds the sheets to the index.
        """
        report = self._report
        sheet_names = excel_text.unique_sheet_names(
            map(earlier_table_name, report.sheets), taken=(_SUMMARY, CHARTS)
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
            line = IndexLine(
                sheet=sheet_name,
                rows=counted(len(fitting), "row"),
                description=report.descriptions.get(name, ""),
            )
            self._index.append(line)
        return frames

    def _charts_with_data(self) -> list[ChartData]:
        """Return the charts with their sums of the complete tables, but no empty charts."""
        charts = []
        for chart in self._report.charts:
            if chart.on == "page" or chart.sheet in self._report.page_sheets:
                continue
            frame = charted(self._report.sheets, chart)
            with self._failures.isolate(chart.part):
                table = chart_table(frame, chart)
                if len(table):
                    charts.append(ChartData(chart, table))
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

    def _chart_of(self, answer: Answer) -> PlacedChart | None:
        """Return the first chart of an answer's table; None if it has no chart."""
        for placed in self._placed_charts:
            if placed.data.chart.sheet == answer.sheet:
                return placed
        return None

    def _add_failures_to_notes(self) -> None:
        for message in self._failures.messages:
            if message not in self.notes:
                self.notes.append(message)
