"""The HTML of objects in a cell of a notebook. Names in it are escaped, so no markup is active."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

_LONGEST_REPR: Final = 500
_LONGEST_CELL: Final = 300
_ROWS: Final = 20


def cell_html(
    title: str, lines: Iterable[str], tables: Mapping[str, pd.DataFrame]
) -> str:
    """Return a heading, paragraphs, and the first rows of tables under their names."""
    parts = [f"<h3>{escape(encodable(title))}</h3>"]
    parts += [f"<p>{escape(encodable(line))}</p>" for line in lines]
    for name, frame in tables.items():
        shown_rows = min(len(frame), _ROWS)
        parts.append(f"<h4>{escape(name)} ({shown_rows} of {len(frame):,} rows)</h4>")
        parts.append(_table_html(frame.head(_ROWS)))
    return "".join(parts)


def _table_html(frame: pd.DataFrame) -> str:
    with pd.option_context("display.max_colwidth", None):
        html: str = frame.map(_cell).to_html(
            index=False, border=0, na_rep="", justify="left"
        )
    return html


def short_repr(kind: str, description: str) -> str:
    """Return a description of an object in one line of at most 500 characters."""
    line = " ".join(description.split())
    text = encodable(f"<{kind}: {line}>")
    if len(text) <= _LONGEST_REPR:
        return text
    return f"{text[: _LONGEST_REPR - 2]}…>"


def _cell(value: object) -> object:
    """Return the HTML for a value in a table."""
    if isinstance(value, str):
        if len(value) > _LONGEST_CELL:
            value = f"{value[:_LONGEST_CELL]}…"
        return encodable(value)
    is_number = isinstance(value, float) and value == value
    return f"{value:,.3f}" if is_number else value
