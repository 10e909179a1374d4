"""JSON number texts to exact 64-bit integers, a column at a time.

Time stamps are decimal texts such as ``1712195495519689.047`` (µs since 1970 with ns), more
digits than a double holds. So numbers stay text until here, are joined with commas, and are
parsed as integers by one C loop; no value ever passes through a float.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Raw

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens_ext.trace import Int64Array

    Int64Array = Int64Array

#: What stands for "this event has no such number". Never a time stamp that a trace may hold:
#: 285 years before zero, and times 1,000 it still fits in 64 bits.
MISSING = -9_000_000_000_000_000
MISSING_TOKEN = Raw(str(MISSING).encode())
#: ``MISSING`` as `parse_nanoseconds` answers it.
MISSING_NS = MISSING * 1000

_COMMA, _DOT = ord(","), ord(".")
_INT64_MAX = int(np.iinfo(np.int64).max)
_HALF, _MOST_DIGITS = Decimal("0.5"), 20
#: Most digits after the dot that are kept: 3 of them are ns, finer ones are rounded.
_MAX_FRACTION = 9


class UnusualNumberError(ValueError):
    """A column holds a token that is no plain decimal number, or one beyond 64 bits."""


def parse_integers(tokens: list[Raw]) -> Int64Array:
    """Parse integer tokens.

    Returns:
        Their values, shape (n,).
    """
    text = b",".join(tokens)
    if b"." in text:
        msg = "a fraction where an integer was expected"
        raise UnusualNumberError(msg)
    return _integers(text, len(tokens))


def parse_nanoseconds(tokens: list[Raw]) -> Int64Array:
    """Parse microsecond tokens, exactly, to nanoseconds.

    Args:
        tokens: decimal texts in µs, n of them, such as ``12``, ``12.5``, ``-0.001``.

    Returns:
        The same times in ns, shape (n,). Digits finer than a nanosecond are rounded.

    Raises:
        UnusualNumberError: a token is no plain decimal number, or does not fit in 64 bits of ns.
    """
    text = b",".join(tokens)
    if b"." not in text:
        return _scaled(_integers(text, len(tokens)), np.int64(1000))
    characters = np.frombuffer(text + b",", dtype=np.uint8)
    ends = np.flatnonzero(characters == _COMMA)
    digits = _integers(text.replace(b".", b""), len(tokens))
    dots = np.flatnonzero(characters == _DOT)
    if len(dots) == len(ends) and bool((ends - dots == 4).all()):
        return digits  # every number has just the three decimals that Kineto writes
    token_of_dot = np.searchsorted(ends, dots)
    fraction = np.zeros(len(tokens), dtype=np.int64)
    fraction[token_of_dot] = ends[token_of_dot] - dots - 1
    if len(dots) and int(fraction.max()) > _MAX_FRACTION:
        msg = "more decimals than fit in 64 bits"
        raise UnusualNumberError(msg)
    result = _scaled(digits, 10 ** np.maximum(3 - fraction, 0))
    fine = np.flatnonzero(fraction > 3)
    if len(fine):
        divisor = 10 ** (fraction[fine] - 3)
        result[fine] = (result[fine] + divisor // 2) // divisor
    return result


def _integers(text: bytes, count: int) -> Int64Array:
    if not count:
        return np.empty(0, dtype=np.int64)
    if not _is_plain(text):
        text = text.replace(b"null", bytes(MISSING_TOKEN))
        if not _is_plain(text):
            msg = "not a plain number"
            raise UnusualNumberError(msg)
    values = np.fromstring(text, dtype=np.int64, sep=",")
    # The C parser stops at INT64_MAX or INT64_MIN, so a value there may have been a longer one.
    if len(values) != count or int(values.max()) == _INT64_MAX or int(values.min()) <= -_INT64_MAX:
        msg = "a number beyond 64 bits"
        raise UnusualNumberError(msg)
    return values


def _is_plain(text: bytes) -> bool:
    """Whether only ``,-.0123456789`` are in a text of JSON values (a slash cannot be)."""
    characters = np.frombuffer(text, dtype=np.uint8)
    return int(characters.min()) >= _COMMA and int(characters.max()) <= ord("9")


def _scaled(values: Int64Array, factor: np.int64 | Int64Array) -> Int64Array:
    if len(values) and bool((np.abs(values) > _INT64_MAX // factor).any()):
        msg = "a time beyond 64 bits of nanoseconds"
        raise UnusualNumberError(msg)
    return values * factor


def mend(tokens: Iterable[Raw], *, integer: bool) -> list[Raw]:
    """Rewrite the tokens of a refused column one by one.

    ``1e3`` and ``"12"`` become plain numbers; what is no finite number, or does not fit, becomes
    `MISSING_TOKEN`, which the caller counts as missing.
    """
    return [_mend_one(bytes(token), integer=integer) for token in tokens]


def _mend_one(token: bytes, *, integer: bool) -> Raw:
    try:
        value = Decimal(token.decode("ascii").strip('"'))
        if not value.is_finite() or value.adjusted() > _MOST_DIGITS:
            return MISSING_TOKEN
        scaled = value if integer else value * 1000
        whole = (scaled + _HALF).to_integral_value(ROUND_FLOOR)
    except (ArithmeticError, UnicodeDecodeError):
        return MISSING_TOKEN
    if abs(whole) >= _INT64_MAX or (integer and whole != value):
        return MISSING_TOKEN
    return Raw(format(whole if integer else whole.scaleb(-3), "f").encode())
