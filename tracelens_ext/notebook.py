"""How objects show themselves in a cell of a notebook: HTML in which no name does anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

_LONGEST_REPR = 500
_LONGEST_CELL = 300
_ROWS = 20


def cell_html(title: str, lines: Iterable[str], tables: Mapping[str, pd.DataFrame]) -> str:
    """A heading, paragraphs, and the first rows of tables under their names."""
    parts = [f"<h3>{escape(encodable(title))}</h3>"]
    parts += [f"<p>{escape(encodable(line))}</p>" for line in lines]
    for name, frame in tables.items():
        parts.append(f"<h4>{escape(name)} ({min(len(frame), _ROWS)} of {len(frame):,} rows)</h4>")
        with pd.option_context("display.max_colwidth", None):
            shown = frame.head(_ROWS).map(_cell)
            parts.append(shown.to_html(index=False, border=0, na_rep="", justify="left"))
    return "".join(parts)


def short_repr(kind: str, said: str) -> str:
    """What an object is, in at most 500 characters and one line."""
    text = encodable(f"<{kind}: {' '.join(said.split())}>")
    return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 2]}…>"


def _cell(value: object) -> object:
    if isinstance(value, str):
        return encodable(value if len(value) <= _LONGEST_CELL else f"{value[:_LONGEST_CELL]}…")
    return f"{value:,.3f}" if isinstance(value, float) and value == value else value
