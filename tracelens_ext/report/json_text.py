"""A report as one JSON document, for scripts.

    {"generator": "tracelens-ext", "version": …, "tables_version": …, "title": …,
     "facts": {label: value}, "notes": [text], "tables": {name: [{column: value}, …]}}

The generator comes first: it tells whose file this is. What is not a number is null (RFC 8259).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.manifest import ABOUT_US
from tracelens_ext.report.terminal import UNSAFE
from tracelens_ext.tables.units import header_text
from tracelens_ext.text import encodable as encodable
from tracelens_ext.text import unique

if TYPE_CHECKING:
    from tracelens_ext.report.report import Report

Plain = bool | int | float | str | None

_LEAST, _MOST = -(2**63), 2**64 - 1  # whole numbers beyond are texts


def plain_headers(frame: pd.DataFrame) -> list[str]:
    """The names of the columns as texts, no two alike: a second `a` is called `a_2`."""
    names = (encodable(header_text(name)) for name in frame.columns)
    return unique(names, "{}_{}".format, same=str)


def plain_column(series: pd.Series) -> list[Plain]:
    """The values of a column; what is missing, not a number or infinite is None, the odd a text."""
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if kind in "biu" and not series.hasnans:
        return list(series.tolist())
    if kind == "f":
        values = series.to_numpy(dtype="float64", na_value=math.nan).tolist()
        return [value if math.isfinite(value) else None for value in values]
    missing = series.isna().tolist()
    return [
        None if empty else encodable(value) if type(value) is str else _plain_cell(value)
        for value, empty in zip(series.tolist(), missing, strict=True)
    ]


def _plain_cell(value: object) -> Plain:
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int) and _LEAST <= value <= _MOST:
        return value
    return encodable(str(value))


_ROWS_AT_ONCE = 8192


def json_text(report: Report) -> Iterator[str]:
    """Write a report as JSON, in pieces; on a terminal too no name in it does anything."""
    return map(json_safe, _pieces(report))


def json_safe(text: str) -> str:
    """Escape, in JSON or TOML, what beyond U+007E could act on a terminal or deceive its reader."""
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
    return plain_column(pd.Series([value], dtype=object))[0]


def _escape(found: re.Match[str]) -> str:
    own = found[0]
    return own if own < "\x7f" else json.dumps(own)[1:-1].replace("\x7f", "\\u007f")


def _pieces(report: Report) -> Iterator[str]:
    told = {"title": report.title, "facts": dict(report.facts), "notes": report.notes}
    yield nested_json_text({**ABOUT_US, **told, **report.members}).removesuffix("\n}")
    yield ',\n "tables": {'
    separator = "\n"
    for name, frame in report.sheets.items():
        yield f"{separator}  {json.dumps(encodable(name), ensure_ascii=False)}: ["
        yield from _rows(frame)
        yield "]"
        separator = ",\n"
    yield "\n }\n}\n"


def _rows(frame: pd.DataFrame) -> Iterator[str]:
    import msgspec

    encoder = msgspec.json.Encoder()
    headers = plain_headers(frame)
    separator = "\n"
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[start : start + _ROWS_AT_ONCE]
        columns = [plain_column(part.iloc[:, place]) for place in range(len(headers))]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(part))
        lines = encoder.encode_lines([dict(zip(headers, row, strict=True)) for row in rows])
        yield f"{separator}   " + lines.decode().removesuffix("\n").replace("\n", ",\n   ")
        separator = ",\n"
