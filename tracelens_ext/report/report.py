"""A report, whatever it is of: named tables with their texts, charts and notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.report.tables.units import FIRST_FACTS, with_units

if TYPE_CHECKING:
    from tracelens_ext.report.tables.charts import Chart  # which imports numpy
    from tracelens_ext.report.tables.row_command import RowCommand


@dataclass(frozen=True)
class Answer:
    """A table that answers where the time went, and so stands first."""

    title: str  #: the heading
    sheet: str  #: the table's name; `rows` of it are shown
    columns: Sequence[str]  #: those that are shown
    #: that of them which names sheets, and becomes a link to the first that is there, or else to
    #: the table itself. The texts of such a table are sentences, to be read whole
    links: str = ""
    #: chooses the rows that are shown; all by default
    choose_rows: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    def shown_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the table that are shown, as many as there is place for."""
        if self.choose_rows is not None:
            frame = self.choose_rows(frame)
        return frame[list(self.columns)].head(self.rows)

    @property
    def rows(self) -> int:
        """How many rows are shown at most: few where they are sentences."""
        return 8 if self.links else 24

    def linked(self, cell: object, sheets: Collection[str]) -> str:
        """The sheet that a cell of the column `links` leads to."""
        return next(
            (name for name in str(cell).split(", ") if name in sheets), self.sheet
        )


@dataclass(frozen=True)
class Report:
    """Tables and what goes with them."""

    title: str  #: the heading
    sheets: Mapping[str, pd.DataFrame]  #: the tables by name, in order
    facts: Sequence[tuple[str, object]] = ()  #: label and value of what was analyzed
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
    #: what a finding means, Markdown, by its id; a page shows it
    explanations: Mapping[str, str] = field(default_factory=dict)
    #: where a page links lines of Python, with `{path}` and `{line}`
    source_url: str = ""
    #: the command that a page offers to copy for each row of a table, by its name
    row_commands: Mapping[str, RowCommand] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{name} ({len(frame):,})" for name, frame in self.sheets.items()
        )
        return short_repr("Report", f"{self.title}, tables (rows): {rows}")

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, or some tables where its packages are missing."""
        # The page is drawn by a module that knows reports, so this one cannot import it.
        page = import_module("tracelens_ext.report.html")
        try:
            return str(page.cell_of(self))
        except UsageError as error:
            lines = [
                f"{label}: {value}"
                for label, value in self.facts
                if label in FIRST_FACTS
            ]
            lines = [f"Without charts: {error}"] + lines + list(self.notes)
        return cell_html(
            title=self.title,
            lines=lines,
            tables={a.title: self.answer_table(a) for a in self.answers},
        )

    def answer_table(self, answer: Answer) -> pd.DataFrame:
        """What is shown of an answer, its columns named with their units."""
        frame = answer.shown_rows(self.sheets[answer.sheet])
        return with_units(frame, self.units.get(answer.sheet, {}))
