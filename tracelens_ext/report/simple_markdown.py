"""Convert the Markdown of explanations to lines for a terminal, and to HTML.

Explanations use paragraphs, fenced code blocks, `*emphasis*` and `` `code` ``, and nothing else.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

_FENCED: Final = re.compile(r"^```[a-z]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"`([^`]+)`")
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*([^*\n]+(?:\n[^*\n]+)*)\*(?![\w*])")
_INDENT: Final = "    "


class Block(NamedTuple):
    """A paragraph, or a block of code."""

    text: str
    is_code: bool


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a text in order."""
    # Splitting at a pattern with one group alternates: text, code, text, code, …, text.
    parts = _FENCED.split(text)
    for position, part in enumerate(parts):
        is_code = position % 2 == 1
        if is_code:
            yield Block(part.rstrip("\n"), is_code)
            continue
        for paragraph in part.split("\n\n"):
            joined = " ".join(paragraph.split())
            if joined:
                yield Block(joined, is_code)


def lines_of(text: str, width: int) -> list[str]:
    """Return a text as lines for a terminal, with an empty line between blocks.

    Args:
        text: the Markdown.
        width: the width of the lines; lines of code are not wrapped.
    """
    lines: list[str] = []
    for block in blocks_of(text):
        if lines:
            lines.append("")
        if block.is_code:
            lines.extend(_INDENT + line for line in block.text.splitlines())
            continue
        plain = _CODE.sub(r"\1", _EMPHASIS.sub(r"\1", block.text))
        lines.extend(
            textwrap.wrap(plain, width, break_long_words=False, break_on_hyphens=False)
        )
    return lines


def html_of(text: str) -> str:
    """Return a text as HTML."""
    parts = []
    for block in blocks_of(text):
        escaped = html.escape(block.text, quote=False)
        if block.is_code:
            parts.append(f"<pre><code>{escaped}</code></pre>")
            continue
        pieces = _CODE.split(escaped)  # alternates, too: text, code, text, …
        for position, piece in enumerate(pieces):
            if position % 2 == 1:
                pieces[position] = f"<code>{piece}</code>"
            else:
                pieces[position] = _EMPHASIS.sub(r"<em>\1</em>", piece)
        parts.append(f"<p>{''.join(pieces)}</p>")
    return "\n".join(parts)
