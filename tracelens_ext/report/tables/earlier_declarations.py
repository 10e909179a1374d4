"""Read tables that plugins declare in the earlier form, with a deprecation warning.

In the earlier form, the columns were one text, `screen` was one text, and the function of a table
could take the GPU events (a first parameter called `work`) or all options of the report (a second
parameter without a default).
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter
from typing import Any

from tracelens_ext.hooks import PluginAnswerError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import ScreenView

TableFunction = Callable[..., "pd.DataFrame | None"]

#: A line such as `NAME: meaning` or `NAME [unit]: meaning`; names may begin with `param: `.
_DESCRIPTION = re.compile(
    r"(?P<names>(?:.*param: )?.+?)(?: \[(?P<unit>.+?)\])?: (?P<meaning>.+)"
)
_CONTINUATION = re.compile(r"\n +")
#: The name of the first parameter of a function that takes the GPU events.
_GPU_EVENTS = "work"


def in_current_form(table: Table) -> Table:
    """Return a table with its columns, screen and function in the current form.

    Raises:
        PluginAnswerError: a line of the columns does not describe a column.
    """
    if isinstance(table.columns, str):
        _warn(table, "columns as text", "a list of Column objects")
        table = replace(table, columns=columns_of_text(table.columns, table.name))
    if isinstance(table.screen, str):
        _warn(table, "a screen as text", "a ScreenView")
        table = replace(table, screen=screen_of_text(table.screen))
    parameters = list(inspect.signature(table.build).parameters.values())
    if parameters and parameters[0].name == _GPU_EVENTS:
        _warn(
            table=table,
            earlier="a function of GPU events",
            current="one of a context, and its `gpu_events`",
        )
        table = replace(table, build=_of_context(table.build))
    if len(parameters) > 1 and _is_required(parameters[1]):
        _warn(
            table=table,
            earlier="a function of all options",
            current="keyword arguments and `Table.options`",
        )
        names = [field.name for field in fields(ReportOptions)]
        table = replace(table, build=_of_named_options(table.build), options=names)
    return table


def columns_of_text(text: str, table: str) -> list[Column]:
    """Return the columns that a text describes.

    Each line describes a column, or several columns with the same meaning, whose names are
    separated by a comma and a space. A line that is indented further continues the line before it.

    Args:
        text: the description.
        table: the name of the table, for messages.

    Raises:
        PluginAnswerError: a line does not describe a column.
    """
    columns: list[Column] = []
    unwrapped = _CONTINUATION.sub(" ", inspect.cleandoc(text))
    for line in unwrapped.splitlines():
        description = _DESCRIPTION.fullmatch(line)
        if description is None:
            raise PluginAnswerError(f"sheet {table!r}: {line!r} describes no column")
        meaning = description["meaning"]
        unit = description["unit"]
        names = description["names"].split(", ")
        columns += [Column(name=name, meaning=meaning, unit=unit) for name in names]
    return columns


def screen_of_text(text: str) -> ScreenView:
    """Return the view for a text such as `TITLE: COLUMN, COLUMN`, or for a title alone."""
    title, _, columns = text.partition(": ")
    if not columns:
        return ScreenView(title)
    names = columns.split(", ")
    return ScreenView(title, names)


def _of_context(function: TableFunction) -> TableFunction:
    """Turn a function of GPU events into a function of a context."""

    @wraps(function)
    def table(context: Any, *args: Any, **options: Any) -> pd.DataFrame | None:  # noqa: ANN401
        return function(context.gpu_events, *args, **options)

    return table


def _of_named_options(function: TableFunction) -> TableFunction:
    """Turn a function of a `ReportOptions` into a function of keyword arguments."""

    def table(context: Any, **options: Any) -> pd.DataFrame | None:  # noqa: ANN401
        return function(context, ReportOptions(**options))

    return table


def _is_required(parameter: Parameter) -> bool:
    """Return True if a caller has to give an argument for the parameter."""
    takes_one_argument = parameter.kind in (
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    )
    return takes_one_argument and parameter.default is Parameter.empty


def _warn(table: Table, earlier: str, current: str) -> None:
    warnings.warn(
        f"table {table.name!r}: {earlier} is deprecated; declare {current}",
        DeprecationWarning,
        stacklevel=2,
    )
