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
from typing import Final, NamedTuple, cast

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.source import ByteSource

_PIECE_BYTES: Final = 1 << 18
#: Characters of one cell; names of kernels full of templates exceed the 131,072 of the library.
_LONGEST_CELL: Final = 1 << 24
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))


class UnfinishedRow(list[str]):
    """A row whose line does not end, as the last of a file that was cut off."""


class NumberedRow(NamedTuple):
    """A row of a file."""

    line: int  #: the line that it ends on
    cells: list[str]


def rows_of(opened: ByteSource, remedy: str) -> Iterator[NumberedRow]:
    """Yield the rows of a file.

    Raises TraceFormatError where it is no CSV, with `remedy`, or cut off within a row.
    """
    beginning = opened.peek(_PIECE_BYTES)
    encoding = encoding_of(beginning)
    if encoding is None:
        raise TraceFormatError(opened.path, "is not CSV", remedy)
    lines = _WatchedLines(opened, encoding)
    reader = csv.reader(lines)
    width = 0
    try:
        for row in reader:
            is_quote_open = lines.quotes % 2 == 1
            has_one_cell_only = len(row) == 1 < width
            is_cut_off = is_quote_open or has_one_cell_only
            if not lines.last_ends and is_cut_off:
                problem = f"line {reader.line_num} is incomplete"
                raise TraceFormatError(opened.path, problem, "create it again")
            lines.quotes = 0
            width = len(row)
            cells = row if lines.last_ends else UnfinishedRow(row)
            yield NumberedRow(reader.line_num, cells)
    except csv.Error as error:
        problem = f"is not valid CSV ({error}, line {reader.line_num})"
        raise TraceFormatError(opened.path, problem, "create it again") from None


def encoding_of(head: bytes) -> str | None:
    """Return how a text is encoded; None for what is no text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what `>` makes in a Windows shell
    if b"\0" in head:
        return None
    return "utf-8-sig"


class _WatchedLines:
    """The lines of a file, with what is known of those that were read."""

    def __init__(self, opened: ByteSource, encoding: str) -> None:
        self._lines = _lines(opened, encoding)
        self.quotes = 0  #: quotes since this was set to 0
        #: False if the last line does not end, as in a file that is cut off
        self.last_ends = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.quotes += line.count('"')
            self.last_ends = line.endswith("\n")
            yield line


def _lines(opened: ByteSource, encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    unfinished_line = ""
    piece = opened.read(_PIECE_BYTES)
    while piece:
        *lines, unfinished_line = (unfinished_line + decoder.decode(piece)).split("\n")
        for line in lines:
            yield line + "\n"
        piece = opened.read(_PIECE_BYTES)
    if unfinished_line:
        yield unfinished_line


#: What a table may hold.
Cell = object

_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII
)
_PLAIN_DIGITS: Final = 18  # more may not fit in 64 bits
_MOST: Final = 2**63 - 1
#: How units are written → how many ns they are.
_NS_OF_UNIT: Final = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "\u03bcs", "usec", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "seconds"), 10**9),
}
#: How units are written → how many bytes they are.
_BYTES_OF_UNIT: Final = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}


class UnknownUnitError(ValueError):
    """The title of a column names a unit that its numbers cannot have."""


def nanoseconds(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Return times in ns, finer digits rounded; None for an empty cell.

    Without a unit in the title they are ns. Raises UnknownUnitError, and ValueError for a cell that
    is no number, or too large.
    """
    factor = _factor(_NS_OF_UNIT, unit)
    return [_rounded(cell, factor) for cell in cells]


def sizes(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Return sizes in bytes, as exact as their digits; without a unit bytes; as `nanoseconds`."""
    factor = _factor(_BYTES_OF_UNIT, unit)
    return [_rounded(cell, factor) for cell in cells]


def whole(cells: Sequence[Cell]) -> list[int | None]:
    """Return whole numbers; None for an empty cell. Raises ValueError for any other."""
    return [_whole(cell) for cell in cells]


def _factor(factors: dict[str, int], unit: str | None) -> int:
    if unit is None:
        return 1
    factor = factors.get(unit.casefold())
    if factor is None:
        raise UnknownUnitError(unit)
    return factor


def _rounded(cell: Cell, factor: int) -> int | None:
    """Return a number times a factor, rounded; None of an empty cell."""
    text = _text_of(cell)
    if factor == 1 and _is_plain(text):
        return int(text)
    if _is_empty(cell, text):
        return None
    number = _decimal(text) * factor
    return _in_64_bits(number)


def _whole(cell: Cell) -> int | None:
    """Return a whole number; None of an empty cell."""
    text = _text_of(cell)
    if _is_plain(text):
        return int(text)
    if _is_empty(cell, text):
        return None
    number = _decimal(text)
    if number != number.to_integral_value(ROUND_HALF_EVEN):
        raise ValueError("a fraction")
    return _in_64_bits(number)


def _text_of(cell: Cell) -> str:
    return cell.strip() if isinstance(cell, str) else str(cell)


def _is_plain(text: str) -> bool:
    return text.isdigit() and text.isascii() and len(text) <= _PLAIN_DIGITS


def _is_empty(cell: Cell, text: str) -> bool:
    if isinstance(cell, str):
        return text in ("", "-")
    return bool(pd.isna(cast("float | None", cell)))


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    return Decimal(text.replace(",", ""))


def _in_64_bits(number: Decimal) -> int:
    """Return a number rounded to a whole one. Raises ValueError where it is too large."""
    value = number.to_integral_value(ROUND_HALF_EVEN)
    if number.adjusted() > _PLAIN_DIGITS + 2 or abs(value) > _MOST:
        raise ValueError("too large")
    return int(value)
