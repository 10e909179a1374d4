"""What text can be written anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

#: What is shown where an event has no name.
NO_NAME = "(no name)"
#: The category of a kernel that no rule knows.
UNCATEGORIZED: Final = "Uncategorized"

#: Times below this are told in µs, and those below a thousandth of it in ns.
_LEAST_MS = 0.1
_LEAST_IN_S = 10_000  # ms
_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates become U+FFFD, one for one.

    They come from escapes in JSON and from file names that are no UTF-8; where pyarrow is
    installed, pandas refuses them too.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def unique(
    names: Iterable[str],
    numbered: Callable[[str, int], str],
    *,
    same: Callable[[str], str] = str.casefold,
    taken: Iterable[str] = (),
) -> list[str]:
    """Names of which no two are the `same`: of a second `a` what `numbered` makes of it and 2."""
    seen = set(taken)
    found = []
    for name in names:
        candidate = name
        number = 2
        while same(candidate) in seen:
            candidate = numbered(name, number)
            number = number + 1
        seen.add(same(candidate))
        found.append(candidate)
    return found


def ms_text(ms: float) -> str:
    """A time within a sentence, in the unit that shows it."""
    if abs(ms) >= _LEAST_IN_S:
        return f"{ms / 1e3:,.1f} s"
    if abs(ms) >= _LEAST_MS:
        return f"{ms:,.1f} ms"
    if abs(ms) >= _LEAST_MS / 1e3:
        return f"{ms * 1e3:,.1f} µs"
    return f"{ms * 1e6:,.0f} ns" if ms else "0 ms"


def json_value(text: str, otherwise: object = None, *, strict: bool = True) -> object:
    """What a text stands for as JSON; something else if it is none."""
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return otherwise


_MOST_QUOTED = 300


def one_line(text: str) -> str:
    """What a file or another program says, as a line that a message can quote."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]}…"
