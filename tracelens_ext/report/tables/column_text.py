"""The earlier notation of columns, one text for a table, which plugins may still use."""

from __future__ import annotations

import inspect
import re
import warnings

from tracelens_ext.hooks import PluginAnswerError
from tracelens_ext.report.tables.columns import Column

#: `NAME: meaning`, or `NAME [unit]: meaning`; `param: ` may begin the names.
_DESCRIPTION = re.compile(r"(?P<names>(?:.*param: )?.+?)(?: \[(?P<unit>.+?)\])?: (?P<meaning>.+)")
_CONTINUATION = re.compile(r"\n +")


def columns_of_text(text: str, table: str) -> list[Column]:
    """Return the columns that a text describes.

    A line describes a column, or several of one meaning, whose names are joined by a comma and a
    blank. A line that is indented further goes on with the one before.

    Args:
        text: the description.
        table: the name of the table, for messages.

    Raises:
        PluginAnswerError: a line describes no column.
    """
    warnings.warn(
        f"table {table!r}: columns as text are deprecated; use a list of Column objects",
        DeprecationWarning,
        stacklevel=2,
    )
    columns: list[Column] = []
    for line in _CONTINUATION.sub(" ", inspect.cleandoc(text)).splitlines():
        description = _DESCRIPTION.fullmatch(line)
        if description is None:
            raise PluginAnswerError(f"sheet {table!r}: {line!r} describes no column")
        columns += [
            Column(name, description["meaning"], description["unit"])
            for name in description["names"].split(", ")
        ]
    return columns
