"""What a table is: its name, its columns and charts, when it is there, and what makes it.

Tables are made of a *context*: an object that knows the trace and what can be computed from it,
such as a `TreePerfAnalyzer`. Nothing here depends on what a context offers; the packages that
declare tables say what they need of it (`tracelens_ext.analysis.context.AnalysisContext`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column, units_of_columns
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.short_names import with_short_names

#: In `Table.asked_by`: a report has the table only when its option `tables` names it.
ONLY_BY_NAME = "tables"

Context = Any
Tables = Mapping[str, "pd.DataFrame"]


@dataclass(frozen=True)
class ScreenView:
    """How a command shows a table on the terminal.

    Attributes:
        title: the heading.
        columns: the columns that are shown, in this order; all if there are none.
    """

    title: str
    columns: Sequence[str] = ()


def _no_notes(
    _context: Context, _options: ReportOptions, _tables: Tables
) -> Iterable[str]:
    return ()


def _no_heading(_context: Context, _options: ReportOptions) -> str:
    return ""


def _all_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _no_command(_context: Context, _options: ReportOptions) -> RowCommand | None:
    return None


@dataclass(frozen=True, eq=False)
class Table:
    """A table, declared once: for reports, commands, `TreePerfAnalyzer` and the reference.

    Attributes:
        name: its name, at most 31 characters.
        shows: what it shows, a clause for the index.
        columns: the columns that it can have.
        table: makes it of a context; None if there is nothing to show. Its further parameters have
            defaults and are those of the method.
        when: what the trace must have.
        asked_by: the field of `ReportOptions` that switches it on or off; empty if it is always
            wanted, `tables` if a report has it only when that option names it.
        options: the fields of `ReportOptions` that `table` takes as keyword arguments.
        charts: what to draw of the table. A chart whose columns the table lacks is left out.
        notes: returns what the reader should know, a sentence each, given the context, the options
            and the tables of the report.
        on_every_page: whether a page for browsers has the table even if it is not asked for.
        method: the call on `TreePerfAnalyzer` that gives it; `get_df_NAME()` if that is empty.
        answer: the heading under which the first sheet of a workbook, and the terminal, show its
            first rows; empty if they do not.
        answer_when: what the trace must have for that, if anything.
        answer_if_empty: returns the heading if the table has no rows; empty for none.
        answer_columns: the columns that are shown there, where the table has them.
        answer_rows: chooses the rows that are shown there; all by default.
        answer_links: the one of them that names the sheets to look at next.
        screen: how a command shows it.
        short_names: the column of kernel names that a report puts short ones beside.
        row_command: returns the command that a page offers to copy for each row, or None.
    """

    name: str
    shows: str
    columns: Sequence[Column]
    table: Callable[..., pd.DataFrame | None]
    when: Sequence[Condition] = (GPU_EVENTS,)
    asked_by: str = ""
    options: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    notes: Callable[[Context, ReportOptions, Tables], Iterable[str]] = _no_notes
    on_every_page: bool = False
    method: str = ""
    answer: str = ""
    answer_when: Condition | None = None
    answer_if_empty: Callable[[Context, ReportOptions], str] = _no_heading
    answer_columns: Sequence[str] = ()
    answer_rows: Callable[[pd.DataFrame], pd.DataFrame] = _all_rows
    answer_links: str = ""
    screen: ScreenView = ScreenView(title="")
    short_names: str = ""
    row_command: Callable[[Context, ReportOptions], RowCommand | None] = _no_command

    @property
    def call(self) -> str:
        """The call on `TreePerfAnalyzer` that gives it."""
        return self.method or f"get_df_{self.name}()"

    def make(self, context: Context, options: ReportOptions) -> pd.DataFrame | None:
        """Return the table of a context, as the options want it; None if there is none."""
        values = {name: getattr(options, name) for name in self.options}
        frame = self.table(context, **values)
        if frame is not None and self.short_names:
            return with_short_names(frame, self.short_names)
        return frame

    def units(self, frame: pd.DataFrame) -> dict[str, str]:
        """Return the unit of each column of the table, by name; empty for none."""
        return units_of_columns(self.columns, map(str, frame.columns))

    def is_asked_for(self, options: ReportOptions) -> bool:
        """Return whether the options ask for it."""
        if not self.asked_by or options.names(self.name):
            return True
        return self.asked_by != ONLY_BY_NAME and bool(getattr(options, self.asked_by))

    def why_absent(self, context: Context, options: ReportOptions) -> str:
        """Return the first thing that the trace lacks for it, in words; empty for nothing."""
        for condition in self.when:
            if not condition.holds(context, options):
                return condition.words
        return ""
