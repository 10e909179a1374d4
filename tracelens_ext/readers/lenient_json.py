r"""Decodes JSON leniently, one value at a time, from text that may be incomplete.

Beside JSON, these are accepted:

* control characters within strings, `NaN` and `Infinity`, which Python's own decoder accepts, too;
* `nan` and `inf`, as C++ writes them;
* backslashes that are not escaped, as old profilers wrote them in names (`"C:\kernels\q.cu"`). A
  backslash that does not begin an escape of JSON stands for itself. One that happens to begin an
  escape (`\new`) cannot be distinguished from the escape, and one before the closing quote hides
  that quote.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

#: An error in the last characters of the text may be due to the end of the text.
_END_MARGIN: Final = 16
#: The last characters of a document that is cut off, from the position of the error on.
_UNFINISHED: Final = re.compile(
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|na|N|Na|-?[iI][nfity]*|-n?a?|\.|\.?[eE][+-]?|,)?\s*\Z"
    r"|u[0-9a-fA-F]{4}\Z"
)
_ESCAPE: Final = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NUMBER: Final = "0123456789.eE+-"
_NUMBER_TO_THE_END: Final = re.compile(r"[0-9.eE+-]*\Z")
_GAP: Final = re.compile(r"[\s,]*")

_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)'
#: Text that may be a number as C++ writes it, unless it is part of a string.
_MAYBE_CPP_NUMBER: Final = re.compile(r"[:\[,]\s*-?(?:nan|inf)")
_CPP_NUMBER_OR_STRING: Final = re.compile(
    rf"{_STRING}|(?P<infinity>-?infinity\b)|(?P<short>-?(?:nan|inf)\b)", re.DOTALL
)
#: Text that may be a number that JSON does not have, unless it is part of a string.
_MAYBE_NO_JSON: Final = re.compile(rb"[:\[,]\s*-?(?:nan|inf|NaN|Infinity)")
_NO_JSON_OR_STRING: Final = re.compile(
    rb"%b|(?P<number>-?\b(?:nan|inf(?:inity)?|NaN|Infinity)\b)" % _STRING.encode(),
    re.DOTALL,
)


class Number(str):
    """The text of a number in a leniently decoded value; it keeps all digits."""

    __slots__ = ()


class IncompleteError(Exception):
    """The text ends before the value does."""


class WrongError(Exception):
    """The text is not JSON, whatever follows.

    Attributes:
        problem: what is wrong; `{place}` in it stands for the position.
        position: the position in the text.
    """

    def __init__(self, problem: str, position: int = 0) -> None:
        self.problem = problem
        self.position = position
        super().__init__(problem)


class DecodedValue(NamedTuple):
    """A decoded value."""

    value: object
    end: int  #: the position in the text after the value


_EXACT: Final = json.JSONDecoder(strict=False, parse_float=Number, parse_int=Number)
_USUAL: Final = json.JSONDecoder(strict=False)


def after_gap(text: str, position: int) -> int:
    """Return the position of the next value, after white space and commas."""
    return _GAP.match(text, position).end()  # type: ignore[union-attr]  # it matches any text


def value_at(text: str, position: int, *, exact: bool, last: bool) -> DecodedValue:
    """Decode the next value of mended text.

    Args:
        text: the result of `mend_text`.
        position: the position of the value, or of white space or commas before it.
        exact: True to return numbers as `Number`s.
        last: True if no more text follows.

    Raises:
        IncompleteError: more text may complete the value.
        WrongError: the text is not JSON, whatever follows.
    """
    decoder = _EXACT if exact else _USUAL
    try:
        value, end = decoder.raw_decode(text, after_gap(text, position))
    except json.JSONDecodeError as error:
        if last:
            at_end = _UNFINISHED.match(text, error.pos) is not None
        else:
            at_end = error.pos >= len(text) - _END_MARGIN
        if at_end or error.msg.startswith("Unterminated string"):
            raise IncompleteError from None
        raise WrongError(
            problem=f"is not valid JSON{{place}} ({error.msg})", position=error.pos
        ) from None
    except RecursionError:
        raise WrongError("is nested too deeply to be a trace") from None
    except ValueError:  # Python refuses integers of thousands of digits
        raise WrongError("contains a number that is too long") from None
    is_number = text[end - 1] in _NUMBER
    reaches_end_of_text = is_number and _NUMBER_TO_THE_END.match(text, end)
    if reaches_end_of_text and (end < len(text) or not last):
        raise IncompleteError  # further digits may follow
    return DecodedValue(value, end)


def mend_bytes(text: bytes) -> bytes:
    """Return text in which every backslash is escaped, and numbers that JSON lacks are null.

    The same object is returned if nothing has to be mended.
    """
    mended = text
    if b"\\" in text:
        escaped = _with_escapes(text.decode("latin-1"))
        if len(escaped) != len(text):
            mended = escaped.encode("latin-1")
    if _MAYBE_NO_JSON.search(mended):
        mended = _NO_JSON_OR_STRING.sub(_as_null, mended)
    if mended == text:
        return text
    return mended


def mend_text(text: str) -> str:
    """Return text in which every backslash is escaped, and numbers of C++ are those of Python.

    Only the added backslashes change the length of the text, so that `length_before` can compute
    positions. Therefore `inf` becomes `NaN`: Python has no spelling of infinity with three letters.
    """
    mended = _with_escapes(text)
    if _MAYBE_CPP_NUMBER.search(mended):
        mended = _CPP_NUMBER_OR_STRING.sub(_as_python_number, mended)
    return mended


def _with_escapes(text: str) -> str:
    return _ESCAPE.sub(_as_escape, text)


def _as_escape(match: re.Match[str]) -> str:
    return match[0] if match[1] else r"\\"


def _as_null(match: re.Match[bytes]) -> bytes:
    return match[0] if match["number"] is None else b"null"


def _as_python_number(match: re.Match[str]) -> str:
    """Return `Infinity` or `NaN` for a number of C++, with the same length; strings unchanged."""
    if match["infinity"] is not None:
        return match[0].replace("i", "I", 1)
    if match["short"] is not None:
        return "NaN".rjust(len(match[0]))
    return match[0]


def length_before(text: str, mended_length: int) -> int:
    """Return the number of characters of a text that became the first characters of mended text.

    Args:
        text: the text before it was mended.
        mended_length: the number of characters of the mended text.
    """
    added = 0
    for match in _ESCAPE.finditer(text):
        if match.start() + added >= mended_length:
            break
        if match[1] is None:
            added += 1
    return mended_length - added


def bytes_before(text: str, mended_length: int) -> int:
    """Return the same as `length_before`, but as the number of bytes of the text in UTF-8."""
    before = text[: length_before(text, mended_length)]
    return len(before.encode("utf-8", "surrogateescape"))
