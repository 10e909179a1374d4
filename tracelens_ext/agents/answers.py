"""Answers of tools: one text of JSON, never longer than a model reads at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.report.json_text import nested_json_text
from tracelens_ext.report.plain_tables import plain_column, plain_headers

if TYPE_CHECKING:
    from tracelens_ext.lazy import pd

LONGEST = 60_000  # characters of an answer
#: Characters of a text and entries of a list that stay, until the answer is short enough.
_CUTS = ((4000, 200), (1000, 100), (400, 50), (200, 25), (100, 12), (60, 6))


def rows_of(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a table as dictionaries of plain values."""
    headers = plain_headers(frame)
    columns = [plain_column(frame.iloc[:, at]) for at in range(len(headers))]
    return [dict(zip(headers, row, strict=True)) for row in zip(*columns, strict=True)]


def table_answer(
    frame: pd.DataFrame, total: int, units: Mapping[str, str], following: str
) -> dict[str, object]:
    """Rows of a table, how many there are in all, the units of the columns, what to ask next."""
    named = {name: units[name] for name in map(str, frame.columns) if units.get(name)}
    return {"rows": rows_of(frame), "total": total, "units": named, "next": following}


def answer_text(document: Mapping[str, object]) -> str:
    """An answer as JSON; of one that is too long the beginnings of texts and lists, saying so.

    Raises:
        UsageError: nothing useful of it is short enough.
    """
    text = nested_json_text(document, indent=None)
    for characters, entries in _CUTS:
        if len(text) <= LONGEST:
            return text
        kept = {name: _cut(value, characters, entries) for name, value in document.items()}
        said = f"to {characters:,} characters a text and {entries} entries a list"
        kept["cut"] = f"{said}; ask for less (columns, where, limit, depth) to see the rest"
        text = nested_json_text(kept, indent=None)
    if len(text) > LONGEST:
        raise UsageError("the answer is too long; ask for fewer columns or rows")
    return text


def _cut(value: object, characters: int, entries: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}…"
    if isinstance(value, Mapping):
        some = list(value.items())[:entries]
        return {name[:characters]: _cut(part, characters, entries) for name, part in some}
    if isinstance(value, list | tuple):
        return [_cut(part, characters, entries) for part in value[:entries]]
    return value
