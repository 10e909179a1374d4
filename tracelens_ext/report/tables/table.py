"""The declaration of a table: its columns and charts, when a report has it, and what builds it.

A table is built from a *context*: an object that knows the trace and what can be computed from it,
such as a `TreePerfAnalyzer`. Nothing here depends on what a context offers; the packages that
declare tables say what they need of it (`tracelens_ext.analysis.context.AnalysisContext`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens_ext.compatibility.earlier_arguments import keeps_old_names
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column, units_of_columns
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.earlier_answers import takes_earlier_answer
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.short_names import with_short_names
from tracelens_ext.report.tables.views import AnswerView, ScreenView

#: Value of `Table.enabled_by` for a table that a report has only if the option `tables` names it.
ONLY_BY_NAME = "tables"

#: How a command shows a table without a view of its own: all columns, no heading.
_UNTITLED = ScreenView(title="")

Context = Any
Tables = Mapping[str, "pd.DataFrame"]


def _no_notes(
    _context: Context, _options: ReportOptions, _tables: Tables
) -> Iterable[str]:
    return ()


def _no_command(_context: Context, _options: ReportOptions) -> RowCommand | None:
    return None


@keeps_old_names
@takes_earlier_answer
@dataclass(frozen=True, eq=False)
class Table:
    """A table, declared once: for reports, commands, `TreePerfAnalyzer` and the reference.

    Attributes:
        name: the name of the table, at most 31 characters, as a sheet of a workbook may have.
        description: what the table shows, a phrase for the index of tables.
        columns: the columns that the table can have.
        build: builds the table from a context; returns None if there is nothing to show. Its
            further parameters have defaults and become those of the method of `TreePerfAnalyzer`.
        requires: conditions that the trace must meet; otherwise a report leaves the table out.
        enabled_by: the field of `ReportOptions` that switches the table on or off. Empty if reports
            have it by default; `ONLY_BY_NAME` if a report has it only when the option `tables`
            names it.
        options: the fields of `ReportOptions` that `build` takes as keyword arguments.
        charts: what to draw of the table. A chart whose columns the table lacks is left out.
        notes: returns sentences for the reader of a report, from the context, the options and the
            tables of the report.
        on_every_page: True if an HTML page has the table even if the report does not.
        analyzer_call: the call on `TreePerfAnalyzer` that returns the table, for the reference.
            Empty for `get_df_NAME()`.
        answer: how a report shows the first rows of the table before all tables; None if it does
            not.
        screen: how a command shows the table.
        short_names: the column of kernel names beside which a report puts their short names; empty
            for none.
        row_command: returns the command that a page offers to copy for each row, or None.
    """

    name: str
    description: str
    columns: Sequence[Column]
    build: Callable[..., pd.DataFrame | None]
    requires: Sequence[Condition] = (GPU_EVENTS,)
    enabled_by: str = ""
    options: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    notes: Callable[[Context, ReportOptions, Tables], Iterable[str]] = _no_notes
    on_every_page: bool = False
    analyzer_call: str = ""
    answer: AnswerView | None = None
    screen: ScreenView = _UNTITLED
    short_names: str = ""
    row_command: Callable[[Context, ReportOptions], RowCommand | None] = _no_command

    @property
    def call(self) -> str:
        """The call on `TreePerfAnalyzer` that returns the table."""
        return self.analyzer_call or f"get_df_{self.name}()"

    def build_with(
        self, context: Context, options: ReportOptions
    ) -> pd.DataFrame | None:
        """Build the table with the options of a report; None if there is nothing to show."""
        values = {name: getattr(options, name) for name in self.options}
        frame = self.build(context, **values)
        if frame is not None and self.short_names:
            return with_short_names(frame, self.short_names)
        return frame

    def units(self, frame: pd.DataFrame) -> dict[str, str]:
        """Return the unit of each column of the built table by name; empty for no unit."""
        return units_of_columns(self.columns, map(str, frame.columns))

    def is_enabled(self, options: ReportOptions) -> bool:
        """Return True if a report with these options has the table when the trace allows it."""
        if not self.enabled_by or options.names_any_of(self.name):
            return True
        if self.enabled_by == ONLY_BY_NAME:
            return False
        return bool(getattr(options, self.enabled_by))

    def why_absent(self, context: Context, options: ReportOptions) -> str:
        """Return the first condition that the trace does not meet, in words; empty for none."""
        for condition in self.requires:
            if not condition.holds(context, options):
                return condition.words
        return ""
