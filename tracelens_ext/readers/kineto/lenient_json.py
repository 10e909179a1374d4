"""One JSON value at a time out of text that need not be complete, nor quite right.

Control characters within strings, `NaN` and `Infinity` pass, as in Python's own decoder; and
backslashes that begin no escape (`json_escapes`).
"""

from __future__ import annotations

import json
import re

from tracelens_ext.readers.kineto.json_escapes import length_before, mend_text

#: An error of the standard decoder this near the end of the text may be due to the end itself.
_END_MARGIN = 16
#: What a document that is cut off may end with, where the decoder stumbles over it.
_UNFINISHED = re.compile(
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|N|Na|-?I[nfity]*|-|\.|\.?[eE][+-]?|,)?\s*\Z"
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4})?\Z")
_WRONG_ESCAPE = "Invalid \\"
_WINDOW = 1 << 13  # how much text is mended at first: few values are longer
_NUMBER = "0123456789.eE+-"
_GAP = re.compile(r"[\s,]*")
_TOO_DEEP, _TOO_LONG = "is nested too deeply to be a trace", "holds a number that is too long"


class Number(str):
    """A number's text, kept exact, in a value that was decoded leniently."""

    __slots__ = ()


class IncompleteError(Exception):
    """The text ends before the value does."""


class WrongError(Exception):
    """The text is no JSON, however it goes on.

    Args:
        problem: what is wrong, a clause; with `{place}` for the place, where that is known.
        position: where in the text.
    """

    def __init__(self, problem: str, position: int | None = None) -> None:
        self.problem, self.position = problem, position
        super().__init__(problem)


class LenientDecoder:
    """Decodes values.

    Args:
        exact: whether numbers are kept as `Number`s.
    """

    def __init__(self, *, exact: bool) -> None:
        kind = Number if exact else None
        self._json = json.JSONDecoder(strict=False, parse_float=kind, parse_int=kind)

    def decode(self, text: str, start: int, *, last: bool) -> tuple[object, int]:
        """Decode one value.

        Args:
            text: what is there.
            start: where in `text` the value begins, after white space and commas.
            last: whether nothing comes after `text`.

        Returns:
            The value, and where in `text` it ends.

        Raises:
            IncompleteError: further text may complete it.
            WrongError: no text will.
        """
        try:
            value, end = self._json.raw_decode(text, end_of_gap(text, start))
        except json.JSONDecodeError as error:
            if _may_go_on(text, error, last=last):
                raise IncompleteError from None
            if error.msg.startswith(_WRONG_ESCAPE):
                return self._decode_mended(text, end_of_gap(text, start), last=last)
            raise _wrong(error, error.pos) from None
        except RecursionError:
            raise WrongError(_TOO_DEEP) from None
        except ValueError:  # Python refuses integers of thousands of digits
            raise WrongError(_TOO_LONG) from None
        in_number = text[end - 1] in _NUMBER and not text[end:].strip(_NUMBER)
        if in_number and (end < len(text) or not last):
            raise IncompleteError  # its other digits follow, or are cut off
        return value, end

    def _decode_mended(self, text: str, start: int, *, last: bool) -> tuple[object, int]:
        """As `decode`, of a value in which a backslash is no escape and stands for itself."""
        window = _WINDOW
        while True:
            part = text[start : start + window]
            mended = mend_text(part)
            try:
                value, end = self._json.raw_decode(mended)
            except json.JSONDecodeError as error:
                if start + window < len(text):
                    window *= 2
                    continue
                if _may_go_on(mended, error, last=last):
                    raise IncompleteError from None
                raise _wrong(error, start + length_before(part, error.pos)) from None
            except RecursionError:
                raise WrongError(_TOO_DEEP) from None
            except ValueError:
                raise WrongError(_TOO_LONG) from None
            return value, start + length_before(part, end)


def _wrong(error: json.JSONDecodeError, position: int) -> WrongError:
    return WrongError(f"is not valid JSON{{place}} ({error.msg})", position)


def _may_go_on(text: str, error: json.JSONDecodeError, *, last: bool) -> bool:
    """Whether more text might mend an error: it is at the end, or as good as there."""
    if error.msg.startswith("Unterminated string"):
        return True
    if last:
        return bool(_UNFINISHED.match(text, error.pos) or _ESCAPE.search(text))
    return error.pos >= len(text) - _END_MARGIN


def end_of_gap(text: str, position: int) -> int:
    """Past the white space and commas at `position`."""
    gap = _GAP.match(text, position)
    return gap.end() if gap else position
