"""Output with the names of version 0.1, if the environment contains `TRACELENS_EXT_NAMES=0.1`.

The program itself uses only the new names. Each writer of machine-readable output (JSON, CSV,
Parquet, the sheets of a workbook, SQL, MCP) calls `earlier_document`, `earlier_table` or
`earlier_tables` last; without the variable, these return their argument unchanged.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracelens_ext.compatibility.earlier_arguments import warn_of_old_name
from tracelens_ext.compatibility.renamed_names import (
    RENAMED_NAMES,
    Kind,
    RenamedName,
    new_names,
)
from tracelens_ext.lazy import pd

VARIABLE: Final = "TRACELENS_EXT_NAMES"
#: The only value of the variable that has an effect.
EARLIER_VERSION: Final = "0.1"
#: Stands for any text in the name of a column.
_ANY_TEXT: Final = "*"

_OLD_TABLES: Final = new_names(Kind.TABLE)
_FIELDS: Final = [renamed for renamed in RENAMED_NAMES if renamed.kind is Kind.FIELD]
_EARLIER_TABLES: Final = {new: old for old, new in _OLD_TABLES.items()}


def earlier_names_wanted() -> bool:
    """Return True if output should have the names of version 0.1."""
    return os.environ.get(VARIABLE) == EARLIER_VERSION


def earlier_table_name(name: str) -> str:
    """Return the name of a table in version 0.1, if such names are wanted."""
    if not earlier_names_wanted():
        return name
    return _EARLIER_TABLES.get(name, name)


def earlier_column_names(columns: Iterable[str], table: str) -> dict[str, str]:
    """Return the names in version 0.1 of those columns that were renamed since.

    Args:
        columns: the names of the columns.
        table: the name of the table; empty if it has none.
    """
    if not earlier_names_wanted():
        return {}
    names = {}
    for column in columns:
        earlier = _earlier_column(column, table)
        if earlier != column:
            names[column] = earlier
    return names


def earlier_table(frame: pd.DataFrame, table: str = "") -> pd.DataFrame:
    """Return a table with the columns and values of version 0.1, if those are wanted.

    Args:
        frame: the table.
        table: its name; empty if it has none.
    """
    if not earlier_names_wanted():
        return frame
    columns = [name for name in frame.columns if isinstance(name, str)]
    changed: dict[str, Any] = {}
    for column in columns:
        earlier_values = _earlier_values(column, table)
        if earlier_values:
            changed[column] = [
                _with_earlier_values(cell, earlier_values) for cell in frame[column]
            ]
    return frame.assign(**changed).rename(columns=earlier_column_names(columns, table))


def earlier_tables(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables by name, with the names of version 0.1 if those are wanted."""
    return {
        earlier_table_name(name): earlier_table(frame, name)
        for name, frame in tables.items()
    }


def earlier_document(value: object, path: Sequence[str] = ()) -> object:
    """Return a JSON document with the names of version 0.1, if those are wanted.

    Args:
        value: the document, or a part of one: mappings, lists, tables, and plain values.
        path: the keys that lead to the part.
    """
    if not earlier_names_wanted():
        return value
    if isinstance(value, Mapping):
        return {
            _earlier_key(key, item, path): earlier_document(item, [*path, str(key)])
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [earlier_document(item, path) for item in value]
    if isinstance(value, str):
        return _earlier_text(value, path)
    if isinstance(value, pd.DataFrame):
        return earlier_table(value, path[-1] if path else "")
    return value


def new_table_name(name: str) -> str:
    """Return the current name of a table, and warn if the name is an old one.

    There is no warning if the names of version 0.1 are wanted.
    """
    new = _OLD_TABLES.get(name)
    if new is None:
        return name
    if not earlier_names_wanted():
        warn_of_old_name(f"the table {name}", new)
    return new


def new_column_names(columns: Iterable[str], table: str) -> dict[str, str]:
    """Return the current names of those columns of a stored table that were renamed.

    Args:
        columns: the names of the columns in any version.
        table: the current name of the table.
    """
    names = list(columns)
    new_of_old: dict[str, str] = {}
    for column in names:
        for renamed in _columns_of(table):
            new = _replaced(name=column, pattern=renamed.old, replacement=renamed.new)
            if new is not None and new not in names:
                new_of_old.setdefault(column, new)
    return new_of_old


def new_values_of(column: str, table: str) -> dict[str, str]:
    """Return old value → current value for a column of a table."""
    values = _earlier_values(column, table)
    return {old: new for new, old in values.items()}


def old_table_name(name: str) -> str:
    """Return the name of a table in version 0.1."""
    return _EARLIER_TABLES.get(name, name)


def new_finding_id(identifier: str) -> str:
    """Return the current id of a finding."""
    values = [
        renamed
        for renamed in RENAMED_NAMES
        if renamed.kind is Kind.VALUE and "finding" in renamed.where
    ]
    new_of_old = {renamed.old: renamed.new for renamed in values}
    return new_of_old.get(identifier, identifier)


def _earlier_key(key: object, item: object, path: Sequence[str]) -> object:
    """Return the name of a member of a JSON object in version 0.1."""
    if not isinstance(key, str):
        return key
    is_table = isinstance(item, list | pd.DataFrame) or path[-1:] == ["tables"]
    if is_table and key in _EARLIER_TABLES:
        return _EARLIER_TABLES[key]
    for renamed in _FIELDS:
        if renamed.new == key and _is_at(renamed.where, path):
            return renamed.old
    return _earlier_column(key, path[-1] if path else "")


def _is_at(where: Sequence[str], path: Sequence[str]) -> bool:
    """Return True if a rule applies to a path; without `where`, it applies to all paths."""
    return not where or not set(where).isdisjoint(path)


def _earlier_text(text: str, path: Sequence[str]) -> str:
    """Return the value in version 0.1 for a text in a JSON document."""
    if not path:
        return text
    table = path[-2] if len(path) > 1 else ""
    earlier = _with_earlier_values(text, _earlier_values(path[-1], table))
    return str(earlier)


def _with_earlier_values(cell: object, earlier_values: Mapping[str, str]) -> object:
    """Replace the values in a cell by old ones; it may hold several, joined by commas."""
    if not isinstance(cell, str):
        return cell
    parts = cell.split(", ")
    return ", ".join(earlier_values.get(part, part) for part in parts)


@functools.lru_cache(maxsize=4096)
def _earlier_values(column: str, table: str) -> Mapping[str, str]:
    """Return current value → old value for a column or field of a table or another field."""
    places = {column, f"{table}.{column}"}
    return {
        renamed.new: renamed.old
        for renamed in RENAMED_NAMES
        if renamed.kind is Kind.VALUE and not places.isdisjoint(renamed.where)
    }


@functools.lru_cache(maxsize=4096)
def _earlier_column(column: str, table: str) -> str:
    """Return the name of a column of a table in version 0.1."""
    for renamed in _columns_of(table):
        old = _replaced(name=column, pattern=renamed.new, replacement=renamed.old)
        if old is not None:
            return old
    return column


@functools.cache
def _columns_of(table: str) -> list[RenamedName]:
    """Return the renamed columns of a table; patterns with `*` come last."""
    columns = [
        renamed
        for renamed in RENAMED_NAMES
        if renamed.kind is Kind.COLUMN and (not renamed.where or table in renamed.where)
    ]
    return sorted(columns, key=lambda renamed: _ANY_TEXT in renamed.new)


def _replaced(name: Any, pattern: str, replacement: str) -> str | None:  # noqa: ANN401
    """Rename by a pattern; None if the pattern does not match the name.

    `B_difference_percent` by `*difference_percent` and `*difference_percent` is `B_difference_%`.
    """
    if not isinstance(name, str):
        return None
    if _ANY_TEXT not in pattern:
        return replacement if name == pattern else None
    expression = re.escape(pattern).replace(re.escape(_ANY_TEXT), "(.*)")
    match = re.fullmatch(expression, name)
    if match is None:
        return None
    return replacement.replace(_ANY_TEXT, match[1])
