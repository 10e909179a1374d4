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
_GAP_CHARACTERS = ", \t\r\n"
_GAP = re.compile(r"[\s,]*")


class Number(str):
    """A number's text, kept exact, in a value that was decoded leniently."""

    __slots__ = ()


class IncompleteError(Exception):
    """The text ends before the value does."""


class WrongError(Exception):
    """The text is no JSON, whatever follows; `{place}` in the problem is where."""

    def __init__(self, problem: str, position: int | None = None) -> None:
        self.problem, self.position = problem, position
        super().__init__(problem)


class LenientText:
    """A text of which values are decoded, numbers as `Number`s if `exact`; `last`: it ends here.

    `position` is how much of the mended text is decoded so far, in characters.
    """

    def __init__(self, text: str, *, exact: bool, last: bool) -> None:
        self._given, self._text, self._last = text, mend_text(text), last
        kind = Number if exact else None
        self._json = json.JSONDecoder(strict=False, parse_float=kind, parse_int=kind)
        self.position = 0

    @property
    def used(self) -> int:
        """How much of the text was decoded so far, in characters."""
        return length_before(self._given, self.position)

    def between(self, start: int, end: int) -> str:
        """The mended text of the values between two `position`s."""
        return self._text[start:end].lstrip(_GAP_CHARACTERS)

    def ends_array(self) -> bool:
        """Whether the next character closes an array; it is consumed then."""
        start = self._after_gap()
        if not self._text.startswith("]", start):
            return False
        self.position = start + 1
        return True

    def value(self) -> object:
        """Decode the next value after a gap; IncompleteError if more text may complete it."""
        try:
            value, end = self._json.raw_decode(self._text, self._after_gap())
        except json.JSONDecodeError as error:
            if self._may_go_on(error):
                raise IncompleteError from None
            position = length_before(self._given, error.pos)
            raise WrongError(f"is not valid JSON{{place}} ({error.msg})", position) from None
        except RecursionError:
            raise WrongError("is nested too deeply to be a trace") from None
        except ValueError:  # Python refuses integers of thousands of digits
            raise WrongError("holds a number that is too long") from None
        in_number = self._text[end - 1] in _NUMBER and _NUMBER_TO_THE_END.match(self._text, end)
        if in_number and (end < len(self._text) or not self._last):
            raise IncompleteError  # its other digits follow, or are cut off
        self.position = end
        return value

    def _after_gap(self) -> int:
        gap = _GAP.match(self._text, self.position)
        return gap.end() if gap else self.position

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether more text might mend an error: it is at the end, or as good as there."""
        if error.msg.startswith("Unterminated string"):
            return True
        if self._last:
            return bool(_UNFINISHED.match(self._text, error.pos))
        return error.pos >= len(self._text) - _END_MARGIN


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
