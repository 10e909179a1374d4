"""How objects show themselves in a cell of a notebook: HTML in which no name does anything."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST_REPR = 500
_ROWS = 20  # of a table
_LONGEST_CELL = 300


def cell_html(title: str, lines: Iterable[str], tables: Mapping[str, pd.DataFrame]) -> str:
    """A heading, paragraphs, and the first rows of tables under their names."""
    parts = [f"<h3>{escape(encodable(title))}</h3>"]
    parts += [f"<p>{escape(encodable(line))}</p>" for line in lines]
    for name, frame in tables.items():
        shown = frame.head(_ROWS).map(_cell)
        more = f" <small>(first {_ROWS} of {len(frame):,} rows)</small>"
        parts.append(f"<h4>{escape(name)}{more if len(frame) > _ROWS else ''}</h4>")
        with pd.option_context("display.max_colwidth", None):
            parts.append(shown.to_html(index=False, border=0, na_rep="", justify="left"))
    return "".join(parts)


def short_repr(kind: str, said: str) -> str:
    """What an object is, in at most 500 characters and one line."""
    text = encodable(f"<{kind}: {' '.join(said.split())}>")
    return text if len(text) <= LONGEST_REPR else f"{text[: LONGEST_REPR - 2]}…>"


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "" if value != value else f"{value:,.3f}"
    text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else None
    if text is None:
        return value
    text = encodable(text)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"
