"""What text can be written anywhere, and how numbers are written within sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

#: What is shown where an event has no name.
NO_NAME = "(no name)"
#: What a place is called in which the CPU is in no recorded operation.
NO_OPERATION: Final = "(no operation)"
#: The category of a kernel that no rule knows.
UNCATEGORIZED: Final = "Uncategorized"

#: Times below this are told in µs, and those below a thousandth of it in ns.
_LEAST_MS: Final = 0.1
_LEAST_IN_S: Final = 10_000  # ms
NO_BREAK_SPACE: Final = "\u00a0"
_BLANK_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|(?:[mµμn]?s|[kMG]?B)\b)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: lone surrogates become U+FFFD, one for one.

    They come from escapes in JSON and from file names that are no UTF-8; where pyarrow is
    installed, pandas refuses them too.
    """
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def with_units_attached(text: str) -> str:
    """Return a text in which no line can end between a number and its unit."""
    return _BLANK_BEFORE_UNIT.sub(NO_BREAK_SPACE, text)


def unique(
    names: Iterable[str],
    numbered: Callable[[str, int], str],
    *,
    same: Callable[[str], str] = str.casefold,
    taken: Iterable[str] = (),
) -> list[str]:
    """Return names of which no two are the same.

    Args:
        names: the names that are wanted.
        numbered: makes another name of one that is taken, and a number from 2 on.
        same: two names are the same if this makes equal texts of them.
        taken: what `same` makes of names that are taken already.
    """
    seen = set(taken)
    unique_names = []
    for name in names:
        candidate = name
        number = 2
        while same(candidate) in seen:
            candidate = numbered(name, number)
            number = number + 1
        seen.add(same(candidate))
        unique_names.append(candidate)
    return unique_names


def ms_text(ms: float) -> str:
    """Return a time within a sentence, in the unit that shows it."""
    size = abs(ms)
    if size >= _LEAST_IN_S:
        return f"{ms / 1e3:,.1f} s"
    if size >= _LEAST_MS:
        return f"{ms:,.1f} ms"
    if size >= _LEAST_MS / 1e3:
        return f"{ms * 1e3:,.1f} µs"
    if not ms:
        return "0 ms"
    return f"{ms * 1e6:,.0f} ns"


def json_value(text: str, otherwise: object = None, *, strict: bool = True) -> object:
    """Return what a text stands for as JSON; something else if it is none."""
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return otherwise


_MOST_QUOTED: Final = 300


def one_line(text: str) -> str:
    """Return what a file or another program says, as a line that a message can quote."""
    printable = "".join(_printable(character) for character in text)
    line = " ".join(printable.split())
    if len(line) <= _MOST_QUOTED:
        return line
    return f"{line[:_MOST_QUOTED]}…"


def _printable(character: str) -> str:
    return character if character.isprintable() else " "


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 gap`, `2,972 gaps`.

    Args:
        count: how many there are.
        singular: what one is called.
        plural: what several are called; the singular with an s by default.
    """
    if count == 1:
        return f"1 {singular}"
    return f"{count:,} {plural or singular + 's'}"
