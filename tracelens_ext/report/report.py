"""A report, whatever it is of, and how it is written: in any formats, to any places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.report.atomic import written_beside
from tracelens_ext.report.fast_pandas import fast_pandas
from tracelens_ext.report.formats import Format, require_format
from tracelens_ext.tables.units import FIRST_FACTS, with_units

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens_ext.report.formats import Places
    from tracelens_ext.tables.charts import Chart


@dataclass(frozen=True)
class Answer:
    """A table that answers where the time went, and so stands first.

    Attributes:
        title: the heading.
        sheet: the table's name; `rows` of it are shown.
        columns: those that are shown.
        links: that of them which names sheets, and becomes a link to the first that is there, or
            else to the table itself. The texts of such a table are sentences, to be read whole.
    """

    title: str
    sheet: str
    columns: Sequence[str]
    links: str = ""

    @property
    def rows(self) -> int:
        """How many rows are shown at most: few where they are sentences."""
        return 8 if self.links else 24

    def linked(self, cell: object, sheets: Collection[str]) -> str:
        """The sheet that a cell of the column `links` leads to."""
        return next((name for name in str(cell).split(", ") if name in sheets), self.sheet)


@dataclass(frozen=True)
class Report:
    """Tables and what goes with them."""

    title: str  #: the heading
    sheets: Mapping[str, pd.DataFrame]  #: the tables by name, in order
    facts: Sequence[tuple[str, object]] = ()  #: label and value of what was analysed
    notes: Sequence[str] = ()  #: what the reader should know first, a sentence each
    #: what a table shows, by its name
    descriptions: Mapping[str, str] = field(default_factory=dict)
    charts: Sequence[Chart] = ()  #: what to draw in a workbook and on a page
    #: tables that only a page has, after the others, by name
    page_sheets: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    #: the units of a table's columns, by their names, by its name
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    answers: Sequence[Answer] = ()  #: what a workbook and the terminal show first
    #: what JSON has beside all that, by its name
    members: Mapping[str, object] = field(default_factory=dict)
    source_url: str = ""  #: where a page links lines of Python, with `{path}` and `{line}`

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} ({len(frame):,})" for name, frame in self.sheets.items())
        return short_repr("Report", f"{self.title}, tables (rows): {rows}")

    def _repr_html_(self) -> str:
        """What a notebook shows: what was analysed, and the tables that answer, with units."""
        lines = [f"{label}: {value}" for label, value in self.facts if label in FIRST_FACTS]
        tables = {}
        for answer in self.answers:
            frame = self.sheets[answer.sheet][list(answer.columns)]
            tables[answer.title] = with_units(frame, self.units.get(answer.sheet, {}))
        return cell_html(self.title, [*lines, *self.notes], tables)


def check_places(places: Places, inputs: Sequence[str | Path], *, force: bool) -> list[str]:
    """Refuse to write over an input or what this program did not make, before anything is read.

    Args:
        places: files and folders to write, and their formats. What is in a folder is checked when
            it is written.
        inputs: files that are never written over.
        force: whether a file of someone else may be replaced.

    Returns:
        A line for each folder that a run left unfinished.

    Raises:
        OutputError: a file stands in the way.
    """
    from tracelens_ext.report.manifest import check_output, refuse_input, unfinished_note

    notes: list[str] = []
    for path, chosen in places.items():
        if isinstance(chosen, Format) and chosen.is_folder:
            refuse_input(path, inputs)
            notes += unfinished_note(path)
        else:
            check_output(path, inputs, force=force)
    return notes


@fast_pandas()
def write_report(
    report: Report,
    places: Places,
    inputs: Sequence[str | Path] = (),
    *,
    force: bool = False,
) -> list[Path]:
    """Write a report.

    Each file is written beside its target and renamed; the files of a folder take their places
    as one.

    Returns:
        The places.

    Raises:
        UsageError: a package that a format needs is missing.
        OutputError: a file cannot be written, or would replace someone else's; whatever was there
            is untouched.
    """
    for path, chosen in places.items():
        require_format(chosen)
        if not isinstance(chosen, Format):
            _write_page(report, path)
        elif chosen.is_folder:
            _write_folder(report, chosen, path, inputs, force=force)
        elif chosen is Format.xlsx:
            _write_workbook(report, path)
        else:
            _write_text(path, report_text(report, chosen))
    return list(places)


def report_text(report: Report, chosen: Format) -> Iterator[str]:
    """A report as JSON or Markdown, in pieces.

    Raises:
        ValueError: the format is no text.
    """
    if chosen is Format.json:
        from tracelens_ext.report.json_text import json_text

        return json_text(report)
    if chosen is Format.markdown:
        from tracelens_ext.report.markdown_text import markdown_text

        return markdown_text(report)
    raise ValueError(f"{chosen} is no text")


def _write_folder(
    report: Report, chosen: Format, folder: Path, inputs: Sequence[str | Path], *, force: bool
) -> None:
    from tracelens_ext.report.csv_files import write_csvs
    from tracelens_ext.report.manifest import check_folder
    from tracelens_ext.report.parquet_files import write_parquets
    from tracelens_ext.report.table_files import unique_file_names

    names = [f"{name}{chosen.suffix}" for name in unique_file_names(report.sheets)]
    check_folder(folder, names, inputs, force=force)
    (write_csvs if chosen is Format.csv else write_parquets)(folder, report.sheets)


def _write_workbook(report: Report, path: Path) -> None:
    from tracelens_ext.report.excel import write_workbook

    write_workbook(
        path,
        report.sheets,
        facts=report.facts,
        units=report.units,
        answers=report.answers,
        charts=[c for c in report.charts if c.on != "page" and c.sheet in report.sheets],
        notes=report.notes,
        descriptions=report.descriptions,
        title=report.title,
    )


def _write_page(report: Report, path: Path) -> None:
    from tracelens_ext.report.html import write_html

    write_html(
        path,
        {**report.sheets, **report.page_sheets},
        facts=report.facts,
        units=report.units,
        charts=report.charts,
        answers=report.answers,
        notes=report.notes,
        descriptions=report.descriptions,
        title=report.title,
        source_url=report.source_url,
    )


def _write_text(path: Path, pieces: Iterable[str]) -> None:
    with (
        written_beside(path) as beside,
        beside.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        stream.writelines(pieces)
