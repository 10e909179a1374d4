"""Helpers for text: what can be encoded, unique names, and numbers within sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

#: Shown in place of an empty name of an event.
NO_NAME = "(no name)"
#: The place of time during which the CPU ran no recorded operation.
NO_OPERATION: Final = "(no operation)"
#: The category of a kernel that no rule matches.
UNCATEGORIZED: Final = "Uncategorized"

#: Shorter times are written in µs, and those below a thousandth of this in ns.
_LEAST_MS: Final = 0.1
_LEAST_IN_S: Final = 10_000  # ms
NO_BREAK_SPACE: Final = "\u00a0"
_BLANK_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|(?:[mµμn]?s|[kMG]?B)\b)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Replace each lone surrogate by U+FFFD, as UTF-8 cannot encode surrogates.

    They come from escapes in JSON, and from file names that are not UTF-8. If pyarrow is installed,
    pandas refuses them, too.
    """
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def with_units_attached(text: str) -> str:
    """Join numbers and their units by no-break spaces, so that no line ends between them."""
    return _BLANK_BEFORE_UNIT.sub(NO_BREAK_SPACE, text)


def unique(
    names: Iterable[str],
    numbered: Callable[[str, int], str],
    *,
    same: Callable[[str], str] = str.casefold,
    taken: Iterable[str] = (),
) -> list[str]:
    """Change names so that all of them differ.

    Args:
        names: the names.
        numbered: returns a different name, given a name that is taken and a number from 2 on.
        same: returns a key; names with equal keys count as the same name.
        taken: the keys of further names that are taken.
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
    """Return a time for a sentence, in a suitable unit."""
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
    """Return the value of a JSON text, or a default if the text is not JSON."""
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return otherwise


_MOST_QUOTED: Final = 300


def one_line(text: str) -> str:
    """Return a text of a file or another program as one line that a message can quote."""
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
        count: the number.
        singular: the noun for one.
        plural: the noun for several; by default the singular with an s.
    """
    if count == 1:
        return f"1 {singular}"
    return f"{count:,} {plural or singular + 's'}"
