"""Cells of `nsys stats` tables to exact whole numbers; nothing passes through a float.

A cell is a text (`1234`, `1,234.5`, `1.5e3`) or, from a DataFrame, a number. Commas must stand
between groups of three digits.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_EVEN, Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a table may hold.
Cell = object

_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_PLAIN_DIGITS = 18  # more may not fit in 64 bits
#: Beyond, a number of ns does not fit in 64 bits.
_MOST = 2**63 - 1
#: How units are written → how many ns, or bytes, they are.
_TIMES = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "\u03bcs", "usec", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "seconds"), 10**9),
}
_SIZES = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


class UnknownUnitError(ValueError):
    """A title tells a unit that the column's numbers cannot have."""


def nanoseconds(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Times in ns, digits finer than that rounded; None for an empty cell.

    Args:
        cells: the numbers.
        unit: the unit that the title of the column tells; ns without.

    Raises:
        UnknownUnitError: the unit is unknown.
        ValueError: a cell is no number, or does not fit in 64 bits.
    """
    factor = _TIMES.get((unit or "ns").casefold())
    if factor is None:
        raise UnknownUnitError(unit)
    if factor == 1 and (plain := _plain(cells)) is not None:
        return plain
    return [_rounded(_exact(cell), factor) for cell in cells]


def sizes(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Sizes in bytes, as far as their digits tell; as `nanoseconds`.

    Args:
        cells: the numbers.
        unit: the unit that the title of the column tells; bytes without.
    """
    factor = _SIZES.get((unit or "bytes").casefold())
    if factor is None:
        raise UnknownUnitError(unit)
    return [_rounded(_exact(cell), factor) for cell in cells]


def whole(cells: Sequence[Cell]) -> list[int | None]:
    """Whole numbers; None for an empty cell.

    Raises:
        ValueError: a cell is no whole number, or does not fit in 64 bits.
    """
    if (plain := _plain(cells)) is not None:
        return plain
    numbers = [_exact(cell) for cell in cells]
    if any(number is not None and number != number.to_integral_value() for number in numbers):
        raise ValueError("a fraction")
    return [_rounded(number, 1) for number in numbers]


def _plain(cells: Sequence[Cell]) -> list[int | None] | None:
    """The numbers, if all are texts of few digits and nothing else: nearly always, and fast."""
    texts = cast("Sequence[str]", cells)
    try:
        joined = "".join(texts)
    except TypeError:  # they are not
        return None
    if not (joined.isascii() and joined.isdigit()):
        return None
    lengths = set(map(len, texts))
    if not 0 < min(lengths) <= max(lengths) <= _PLAIN_DIGITS:
        return None
    return [int(text) for text in texts]


def _exact(cell: Cell) -> Decimal | None:
    if isinstance(cell, str):
        text = cell.strip()
        if not text or text == "-":
            return None
        if not _NUMBER.fullmatch(text):
            raise ValueError("no number")
        return Decimal(text.replace(",", ""))
    if cell is None or (isinstance(cell, Real) and math.isnan(cell)):
        return None
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return Decimal(int(cell))
    if isinstance(cell, Decimal):
        return cell if cell.is_finite() else None
    if isinstance(cell, Real) and math.isfinite(cell) and not isinstance(cell, bool):
        return Decimal(repr(float(cell)))
    raise ValueError("no number")


def _rounded(number: Decimal | None, factor: int) -> int | None:
    if number is None:
        return None
    if number.adjusted() > 20:
        raise ValueError("too large")
    value = int((number * factor).to_integral_value(ROUND_HALF_EVEN))
    if abs(value) > _MOST:
        raise ValueError("too large")
    return value
