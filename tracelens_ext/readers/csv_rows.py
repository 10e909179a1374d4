"""The rows of a CSV file that a profiler wrote, as texts; a line that was cut off is told.

Cells become exact whole numbers; nothing passes through a float. A cell is a text (`1234`,
`1,234.5`, `1.5e3`) or, from a DataFrame, a number. Commas stand between groups of three digits.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import cast

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.source import ByteSource

_PIECE_BYTES = 1 << 18
#: Characters of one cell; names of kernels full of templates exceed the 131,072 of the library.
_LONGEST_CELL = 1 << 24
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))


class UnfinishedRow(list[str]):
    """A row whose line does not end, as the last of a file that was cut off."""


def rows_of(opened: ByteSource, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file, each with the line that it ends on.

    Raises TraceFormatError where it is no CSV, with `remedy`, or cut off within a row.
    """
    encoding = encoding_of(opened.peek(_PIECE_BYTES))
    if encoding is None:
        raise TraceFormatError(opened.path, "is no CSV", remedy)
    line = ""
    quotes = 0
    width = 0

    def lines() -> Iterator[str]:
        nonlocal line, quotes
        for line in _lines(opened, encoding):
            quotes += line.count('"')
            yield line

    reader = csv.reader(lines())
    try:
        for row in reader:
            # Of a file that was cut off the last line does not end.
            if not line.endswith("\n") and (quotes % 2 or len(row) == 1 < width):
                problem = f"line {reader.line_num} is cut off"
                raise TraceFormatError(opened.path, problem, "make it again")
            quotes = 0
            width = len(row)
            yield reader.line_num, row if line.endswith("\n") else UnfinishedRow(row)
    except csv.Error as error:
        problem = f"is no CSV ({error}, line {reader.line_num})"
        raise TraceFormatError(opened.path, problem, "make it again") from None


def encoding_of(head: bytes) -> str | None:
    """How a text is encoded; None for what is no text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what `>` makes in a Windows shell
    return None if b"\0" in head else "utf-8-sig"


def _lines(opened: ByteSource, encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest = ""
    while piece := opened.read(_PIECE_BYTES):
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        for line in lines:
            yield line + "\n"
    if rest:
        yield rest


#: What a table may hold.
Cell = object

_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_PLAIN_DIGITS = 18  # more may not fit in 64 bits
_MOST = 2**63 - 1
#: How units are written → how many ns, or bytes, they are.
_TIMES = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "\u03bcs", "usec", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "seconds"), 10**9),
}
_SIZES = dict.fromkeys(("b", "byte", "bytes"), 1)
for _power, _letter in enumerate("kmg", 1):
    _SIZES |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


class UnknownUnitError(ValueError):
    """The title of a column names a unit that its numbers cannot have."""


def nanoseconds(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Times in ns, finer digits rounded; None for an empty cell; ns without a unit in the title."""
    return [_number(cell, _factor(_TIMES, unit)) for cell in cells]


def sizes(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Sizes in bytes, as exact as their digits; bytes without a unit; else as `nanoseconds`."""
    return [_number(cell, _factor(_SIZES, unit)) for cell in cells]


def whole(cells: Sequence[Cell]) -> list[int | None]:
    """Whole numbers; None for an empty cell."""
    return [_number(cell) for cell in cells]


def _factor(factors: dict[str, int], unit: str | None) -> int:
    if unit is None:
        return 1
    if (factor := factors.get(unit.casefold())) is None:
        raise UnknownUnitError(unit)
    return factor


def _number(cell: Cell, factor: int | None = None) -> int | None:
    """A number times a factor, rounded, or without a factor a whole one; None of an empty cell."""
    is_text = isinstance(cell, str)
    text = cell.strip() if isinstance(cell, str) else str(cell)
    if text.isdigit() and text.isascii() and len(text) <= _PLAIN_DIGITS and factor in (1, None):
        return int(text)
    if text in ("", "-") if is_text else pd.isna(cast("float | None", cell)):
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    number = Decimal(text.replace(",", "")) * (factor or 1)
    value = number.to_integral_value(ROUND_HALF_EVEN)
    if factor is None and value != number:
        raise ValueError("a fraction")
    if number.adjusted() > _PLAIN_DIGITS + 2 or abs(value) > _MOST:
        raise ValueError("too large")
    return int(value)
