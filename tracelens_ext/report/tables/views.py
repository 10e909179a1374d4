"""Which rows and columns of a table a report shows first, and which a command prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions


@dataclass(frozen=True)
class ScreenView:
    """How a command shows a table on the terminal.

    Attributes:
        title: the heading.
        columns: the columns that are shown, in this order; empty for all columns.
    """

    title: str
    columns: Sequence[str] = ()


def _no_title(_context: Any, _options: ReportOptions) -> str:  # noqa: ANN401
    return ""


def _all_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@dataclass(frozen=True)
class AnswerView:
    """How the first sheet of a workbook, a page, and the terminal show the first rows of a table.

    A view is a part of the declaration of a table, before any trace is read: the trace may lack its
    columns or its rows. An `Answer` is what a view became in the report of a particular trace.

    Attributes:
        title: the heading.
        columns: the columns that are shown; columns that the table lacks are left out.
        condition: what the trace must have for the rows to be shown, if anything.
        title_if_empty: returns the heading for a table without rows; an empty heading hides it.
        choose_rows: returns the rows to show from; all rows by default.
        link_column: the column whose cells name the tables or commands to look at next; empty for
            none.
    """

    title: str
    columns: Sequence[str] = ()
    condition: Condition | None = None
    title_if_empty: Callable[[Any, ReportOptions], str] = _no_title
    choose_rows: Callable[[pd.DataFrame], pd.DataFrame] = _all_rows
    link_column: str = ""
