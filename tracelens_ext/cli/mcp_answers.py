"""The answers of the MCP server: JSON objects, short enough for the context of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import nested_json_text, plain_column, plain_headers
from tracelens_ext.report.tables.units import unit_of

Answer = dict[str, object]

#: The most characters of an answer.
LONGEST_ANSWER = 60_000


class _Limits(NamedTuple):
    """How much of an answer is kept."""

    characters: int  #: of each string
    entries: int  #: of each list and each object


#: The limits that are tried one after the other until an answer is short enough.
_LIMITS = (
    _Limits(4000, 200),
    _Limits(1000, 100),
    _Limits(400, 50),
    _Limits(200, 25),
    _Limits(100, 12),
    _Limits(60, 6),
)


def table_answer(
    frame: pd.DataFrame, row_count: int, units: Mapping[str, str], next_call: str
) -> Answer:
    """Return rows of a table as an answer.

    Args:
        frame: the rows.
        row_count: how many rows there are in all.
        units: the unit of each column; empty for none.
        next_call: which tool to call next, and for what.
    """
    names = map(str, frame.columns)
    known_units = {name: units[name] for name in names if units.get(name)}
    return {
        "rows": rows_of(frame),
        "total": row_count,
        "units": known_units,
        "next": next_call,
    }


def rows_of(frame: pd.DataFrame) -> list[Answer]:
    """Return an object for each row of a table."""
    headers = plain_headers(frame)
    columns = (plain_column(column) for _, column in frame.items())
    return [dict(zip(headers, row, strict=True)) for row in zip(*columns, strict=True)]


def units_of(frame: pd.DataFrame) -> dict[str, str]:
    """Return the unit of each column, as its name says; empty for none."""
    return {name: unit_of(name).symbol for name in map(str, frame.columns)}


def answer_text(answer: Answer) -> str:
    """Return an answer as JSON.

    Of an answer that is too long, only the beginnings of strings, lists and objects are kept, and
    the entry `cut` says so.

    Raises:
        UsageError: it is too long even so.
    """
    text = nested_json_text(answer, indent=None)
    for limits in _LIMITS:
        if len(text) <= LONGEST_ANSWER:
            return text
        shortened = {name: _cut(value, limits) for name, value in answer.items()}
        shortened["cut"] = (
            f"to {limits.characters:,} characters per string and {limits.entries} "
            "entries per list; request less (columns, where, limit, depth) to see the "
            "rest"
        )
        text = nested_json_text(shortened, indent=None)
    if len(text) > LONGEST_ANSWER:
        raise UsageError("the answer is too long; request fewer columns or rows")
    return text


def _cut(value: object, limits: _Limits) -> object:
    """Return a value with the beginnings of its strings, lists and objects."""
    if isinstance(value, str):
        if len(value) <= limits.characters:
            return value
        return f"{value[: limits.characters]}…"
    if isinstance(value, Mapping):
        first_items = list(value.items())[: limits.entries]
        return {
            name[: limits.characters]: _cut(item, limits) for name, item in first_items
        }
    if isinstance(value, list | tuple):
        return [_cut(item, limits) for item in value[: limits.entries]]
    return value
