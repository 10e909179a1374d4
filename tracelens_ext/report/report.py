"""A report on any subject: named tables with texts, charts and notes."""

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
    """The first rows of a table in a finished report, which are shown before all tables.

    The heading and the columns fit the report: the rows exist, and the table has the columns. In
    contrast, an `AnswerView` belongs to the declaration of a table. It says what to show for any
    trace, and `tracelens_ext.perf_report` makes an `Answer` of it if it applies to the trace.
    """

    title: str  #: the heading
    sheet: str  #: the name of the table
    columns: Sequence[str]  #: the columns that are shown
    #: the column whose cells name tables. A cell becomes a link to the first of them that the
    #: report has, or else to the table itself. The other texts of such a table are sentences,
    #: which are never cut. Empty for a table without such a column
    links: str = ""
    #: returns the rows to show from; None for all rows
    choose_rows: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    def shown_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows and columns of the table that are shown."""
        if self.choose_rows is not None:
            frame = self.choose_rows(frame)
        return frame[list(self.columns)].head(self.rows)

    @property
    def rows(self) -> int:
        """The largest number of rows that are shown: fewer if they have sentences."""
        return 8 if self.links else 24

    def linked(self, cell: object, sheets: Collection[str]) -> str:
        """Return the table to which a cell of the column `links` is a link."""
        return next(
            (name for name in str(cell).split(", ") if name in sheets), self.sheet
        )


@dataclass(frozen=True)
class Report:
    """Tables, and the texts, charts and notes about them."""

    title: str  #: the heading
    sheets: Mapping[str, pd.DataFrame]  #: the tables by name, in order
    #: facts about the trace: labels and values
    facts: Sequence[tuple[str, object]] = ()
    notes: Sequence[str] = ()  #: sentences that the reader should see first
    #: name of a table → what it shows
    descriptions: Mapping[str, str] = field(default_factory=dict)
    charts: Sequence[Chart] = ()  #: the charts of workbooks and HTML pages
    #: further tables for HTML pages only, by name
    page_sheets: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    #: name of a table → name of a column → unit
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: the rows that workbooks, HTML pages and the terminal show first
    answers: Sequence[Answer] = ()
    #: further members of JSON output, by name
    members: Mapping[str, object] = field(default_factory=dict)
    #: id of a finding → what it means, in Markdown, for HTML pages
    explanations: Mapping[str, str] = field(default_factory=dict)
    #: the address of a line of Python code, with `{path}` and `{line}`, for links on HTML pages
    source_url: str = ""
    #: name of a table → the command that an HTML page offers to copy for each row
    row_commands: Mapping[str, RowCommand] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{name} ({len(frame):,})" for name, frame in self.sheets.items()
        )
        return short_repr("Report", f"{self.title}, tables (rows): {rows}")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the HTML page, or tables if its packages are missing."""
        # The module of the page imports this one, so it can only be imported here.
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
        """Return the rows of an answer with units in the names of the columns."""
        frame = answer.shown_rows(self.sheets[answer.sheet])
        return with_units(frame, self.units.get(answer.sheet, {}))
