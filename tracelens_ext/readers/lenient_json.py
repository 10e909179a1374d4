r"""Decode one JSON value at a time out of text that need not be complete, nor quite right.

Control characters within strings, `NaN` and `Infinity` are accepted, as by Python's own decoder.
So are backslashes that were not escaped, as old profilers wrote them in names:
``"C:\kernels\q.cu"``. Such a backslash begins none of the escapes of JSON, so it stands for itself.
One that happens to begin an escape (``\new``) cannot be told from it, and one before the closing
quote hides that quote.
"""

from __future__ import annotations

import json
import re

#: An error of the standard decoder this near the end of the text may be due to the end itself.
_END_MARGIN = 16
#: What a document that is cut off may end with, where the decoder stumbles over it.
_UNFINISHED = re.compile(
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|N|Na|-?I[nfity]*|-|\.|\.?[eE][+-]?|,)?\s*\Z"
    r"|u[0-9a-fA-F]{4}\Z"
)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NUMBER = "0123456789.eE+-"
_NUMBER_TO_THE_END = re.compile(r"[0-9.eE+-]*\Z")
_GAP = re.compile(r"[\s,]*")


class Number(str):
    """A number's text, kept exact, in a value that was decoded leniently."""

    __slots__ = ()


class IncompleteError(Exception):
    """The text ends before the value does."""


class WrongError(Exception):
    """The text is no JSON, whatever follows; `{place}` in the problem is where."""

    def __init__(self, problem: str, position: int = 0) -> None:
        self.problem = problem
        self.position = position
        super().__init__(problem)


_EXACT = json.JSONDecoder(strict=False, parse_float=Number, parse_int=Number)
_USUAL = json.JSONDecoder(strict=False)


def after_gap(text: str, at: int) -> int:
    """Where the next value begins."""
    return _GAP.match(text, at).end()  # type: ignore[union-attr]  # it matches any text


def value_at(text: str, at: int, *, exact: bool, last: bool) -> tuple[object, int]:
    """The next value of mended text, and where it ends; numbers are `Number`s if `exact`.

    Raises IncompleteError if more text may complete it, of which there is none if `last`, and
    WrongError.
    """
    try:
        value, end = (_EXACT if exact else _USUAL).raw_decode(text, after_gap(text, at))
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text) - _END_MARGIN
        if last:
            at_end = _UNFINISHED.match(text, error.pos) is not None
        if at_end or error.msg.startswith("Unterminated string"):
            raise IncompleteError from None
        raise WrongError(f"is not valid JSON{{place}} ({error.msg})", error.pos) from None
    except RecursionError:
        raise WrongError("is nested too deeply to be a trace") from None
    except ValueError:  # Python refuses integers of thousands of digits
        raise WrongError("holds a number that is too long") from None
    in_number = text[end - 1] in _NUMBER and _NUMBER_TO_THE_END.match(text, end)
    if in_number and (end < len(text) or not last):
        raise IncompleteError  # its other digits follow, or are cut off
    return value, end


def mend_bytes(text: bytes) -> bytes:
    """JSON in which every backslash is an escape; the same object if it was so already."""
    if b"\\" not in text:
        return text
    mended = mend_text(text.decode("latin-1"))
    return text if len(mended) == len(text) else mended.encode("latin-1")


def mend_text(text: str) -> str:
    """As `mend_bytes`, of decoded text."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text)


def length_before(text: str, mended_length: int) -> int:
    """How much of a text became the first `mended_length` characters of what `mend_text` made."""
    added = 0
    for found in _ESCAPE.finditer(text):
        if found.start() + added >= mended_length:
            break
        added += found[1] is None
    return mended_length - added


def bytes_before(text: str, mended_length: int) -> int:
    """Likewise, in bytes."""
    return len(text[: length_before(text, mended_length)].encode("utf-8", "surrogateescape"))
