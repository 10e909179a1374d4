"""A report as one JSON document, for scripts.

    {"generator": "tracelens-ext", "version": …, "tables_version": …, "title": …,
     "facts": {label: value}, "notes": [text], "tables": {name: [{column: value}, …]}}

The generator comes first: it tells whose file this is. A table is a list of rows, each on a line
of its own. What is not a number is null, as JSON (RFC 8259) has no NaN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION, TABLES_VERSION_KEY
from tracelens_ext.report.plain_tables import (
    encodable,
    plain_column,
    plain_headers,
    plain_value,
)
from tracelens_ext.report.terminal import UNSAFE

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from tracelens_ext.report.report import Report

_ROWS_AT_ONCE = 8192


def json_text(report: Report) -> Iterator[str]:
    """Write a report as JSON, in pieces; on a terminal too no name in it does anything."""
    return map(json_safe, _pieces(report))


def json_safe(text: str) -> str:
    """Escape, in JSON or TOML, what could act on a terminal or deceive its reader.

    What is below U+007F is escaped in any JSON, or is its own white space.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return UNSAFE.sub(_escape, text)


def nested_json_text(value: object, *, indent: int | None = 1) -> str:
    """Write dictionaries and lists of plain values as JSON; as safe as a report."""
    return json_safe(json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return plain_value(value)


def _escape(found: re.Match[str]) -> str:
    character = found.group(0)
    return (
        character if character < "\x7f" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
    )


def _pieces(report: Report) -> Iterator[str]:
    from tracelens_ext import __version__

    facts = {encodable(label): plain_value(value) for label, value in report.facts}
    head = {
        "generator": GENERATOR,
        "version": __version__,
        TABLES_VERSION_KEY: TABLES_VERSION,
        "title": encodable(report.title),
        "facts": facts,
        "notes": [encodable(note) for note in report.notes],
        **{name: _plain(value) for name, value in report.members.items()},
    }
    yield json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    yield ',\n "tables": {'
    separator = "\n"
    for name, frame in report.sheets.items():
        yield f"{separator}  {json.dumps(encodable(name), ensure_ascii=False)}: ["
        yield from _rows(frame)
        yield "]"
        separator = ",\n"
    yield "\n }\n}\n"


def _rows(frame: pd.DataFrame) -> Iterator[str]:
    """The rows of a table as objects, a line each."""
    import msgspec

    encode = msgspec.json.encode
    headers = plain_headers(frame)
    separator = "\n"
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[start : start + _ROWS_AT_ONCE]
        columns = [plain_column(part.iloc[:, place]) for place in range(len(headers))]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(part))
        lines = [encode(dict(zip(headers, row, strict=True))).decode() for row in rows]
        yield separator + ",\n".join(f"   {line}" for line in lines)
        separator = ",\n"
