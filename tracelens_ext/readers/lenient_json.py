r"""Decode one JSON value at a time out of text that need not be complete, nor quite right.

Control characters within strings, `NaN` and `Infinity` are accepted, as by Python's own decoder,
and so are `nan` and `inf`, as C++ writes them. So are backslashes that were not escaped, as old
profilers wrote them in names: ``"C:\kernels\q.cu"``. Such a backslash begins none of the escapes of
JSON, so it stands for itself. One that happens to begin an escape (``\new``) cannot be told from
it, and one before the closing quote hides that quote.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

#: An error of the standard decoder this near the end of the text may be due to the end itself.
_END_MARGIN: Final = 16
#: What a document that is cut off may end with, where the decoder stumbles over it.
_UNFINISHED: Final = re.compile(
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|na|N|Na|-?[iI][nfity]*|-n?a?|\.|\.?[eE][+-]?|,)?\s*\Z"
    r"|u[0-9a-fA-F]{4}\Z"
)
_ESCAPE: Final = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NUMBER: Final = "0123456789.eE+-"
_NUMBER_TO_THE_END: Final = re.compile(r"[0-9.eE+-]*\Z")
_GAP: Final = re.compile(r"[\s,]*")

_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)'
#: Where there may be a number that C++ writes; within strings it is none.
_MAYBE_CPP_NUMBER: Final = re.compile(r"[:\[,]\s*-?(?:nan|inf)")
_CPP_NUMBER_OR_STRING: Final = re.compile(
    rf"{_STRING}|(?P<infinity>-?infinity\b)|(?P<short>-?(?:nan|inf)\b)", re.DOTALL
)
#: Where there may be a number that JSON does not have.
_MAYBE_NO_JSON: Final = re.compile(rb"[:\[,]\s*-?(?:nan|inf|NaN|Infinity)")
_NO_JSON_OR_STRING: Final = re.compile(
    rb"%b|(?P<number>-?\b(?:nan|inf(?:inity)?|NaN|Infinity)\b)" % _STRING.encode(),
    re.DOTALL,
)


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


class DecodedValue(NamedTuple):
    """A value, and where in the text it ends."""

    value: object
    end: int


_EXACT: Final = json.JSONDecoder(strict=False, parse_float=Number, parse_int=Number)
_USUAL: Final = json.JSONDecoder(strict=False)


def after_gap(text: str, position: int) -> int:
    """Return where the next value begins."""
    return _GAP.match(text, position).end()  # type: ignore[union-attr]  # it matches any text


def value_at(text: str, position: int, *, exact: bool, last: bool) -> DecodedValue:
    """Decode the next value of mended text.

    Args:
        text: what `mend_text` answered.
        position: where the value begins, or white space or commas before it.
        exact: numbers become `Number`s.
        last: no more text follows.

    Raises:
        IncompleteError: more text may complete the value.
        WrongError: the text is no JSON, whatever follows.
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
    goes_to_the_end = is_number and _NUMBER_TO_THE_END.match(text, end)
    if goes_to_the_end and (end < len(text) or not last):
        raise IncompleteError  # its other digits follow, or are cut off
    return DecodedValue(value, end)


def mend_bytes(text: bytes) -> bytes:
    """Return JSON in which every backslash is an escape, and what is no number in JSON is null.

    The same object is returned if nothing had to be mended.
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
    """Return text in which every backslash is an escape, and numbers are as Python reads them.

    Only backslashes make it longer (`length_before`). As `inf` has no spelling of three letters, it
    becomes `NaN`.
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
    """Return `Infinity` and `NaN` for what C++ writes, as long as that is; strings unchanged."""
    if match["infinity"] is not None:
        return match[0].replace("i", "I", 1)
    if match["short"] is not None:
        return "NaN".rjust(len(match[0]))
    return match[0]


def length_before(text: str, mended_length: int) -> int:
    """Return how much of a text became the first `mended_length` characters of `mend_text`."""
    added = 0
    for match in _ESCAPE.finditer(text):
        if match.start() + added >= mended_length:
            break
        if match[1] is None:
            added += 1
    return mended_length - added


def bytes_before(text: str, mended_length: int) -> int:
    """Return how many bytes of a text became the first `mended_length` characters, mended."""
    before = text[: length_before(text, mended_length)]
    return len(before.encode("utf-8", "surrogateescape"))
