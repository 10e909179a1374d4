"""What text can be written anywhere."""

from __future__ import annotations

import json
import re

#: What is shown where an event has no name.
NO_NAME = "(no name)"

#: Times below this are told in µs, and those below a thousandth of it in ns.
_LEAST_MS = 0.1
_LEAST_IN_S = 10_000  # ms
_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates become U+FFFD, one for one.

    They come from escapes in JSON and from file names that are no UTF-8; where pyarrow is
    installed, pandas refuses them too.
    """
    return _SURROGATE.sub("\ufffd", text)


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
