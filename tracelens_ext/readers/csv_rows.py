"""Reads the rows of a CSV file, and converts cells to whole numbers.

The rows are lists of texts; a row that the end of the file cuts off is marked. Numbers are
converted exactly, without passing through a float. A cell is a text (`1234`, `1,234.5`, `1.5e3`)
or, from a DataFrame, a number. Commas separate groups of three digits.
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

_BYTES_AT_ONCE: Final = 1 << 18
#: Most characters in a cell. The names of templated kernels exceed the 131,072 of the library.
_LONGEST_CELL: Final = 1 << 24
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))


class UnfinishedRow(list[str]):
    """The last row of a file whose last line does not end; it may be cut off."""


class NumberedRow(NamedTuple):
    """A row of a file."""

    line: int  #: the number of the line that the row ends on
    cells: list[str]


def rows_of(opened: ByteSource, remedy: str) -> Iterator[NumberedRow]:
    """Yield the rows of a file.

    Args:
        opened: the file.
        remedy: advice in the message about a file that is not CSV.

    Raises:
        TraceFormatError: the file is not CSV, or is certainly cut off within its last row.
    """
    beginning = opened.peek(_BYTES_AT_ONCE)
    encoding = encoding_of(beginning)
    if encoding is None:
        raise TraceFormatError(opened.path, "is not CSV", remedy)
    lines = _WatchedLines(opened, encoding)
    reader = csv.reader(lines)
    previous_width = 0
    try:
        for row in reader:
            is_quote_open = lines.quotes % 2 == 1
            is_single_cell = len(row) == 1 and previous_width > 1
            is_cut_off = is_quote_open or is_single_cell
            if not lines.last_line_ends and is_cut_off:
                problem = f"line {reader.line_num} is incomplete"
                raise TraceFormatError(opened.path, problem, "create it again")
            lines.quotes = 0
            previous_width = len(row)
            cells = row if lines.last_line_ends else UnfinishedRow(row)
            yield NumberedRow(reader.line_num, cells)
    except csv.Error as error:
        problem = f"is not valid CSV ({error}, line {reader.line_num})"
        raise TraceFormatError(opened.path, problem, "create it again") from None


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of a text, given its first bytes; None if it is not a text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return (
            "utf-16"  # the encoding of output that a Windows shell redirects to a file
        )
    if b"\0" in head:
        return None
    return "utf-8-sig"


class _WatchedLines:
    """The lines of a file, with facts about the lines that were read so far.

    Attributes:
        quotes: the number of quotes since the reader of the lines last set it to 0.
        last_line_ends: whether the last line that was read has a line end. Only the last line of a
            file may have none.
    """

    def __init__(self, opened: ByteSource, encoding: str) -> None:
        self._lines = _lines(opened, encoding)
        self.quotes = 0
        self.last_line_ends = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.quotes += line.count('"')
            self.last_line_ends = line.endswith("\n")
            yield line


def _lines(opened: ByteSource, encoding: str) -> Iterator[str]:
    """Yield the lines of a file with their line ends."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    unfinished_line = ""
    data = opened.read(_BYTES_AT_ONCE)
    while data:
        *lines, unfinished_line = (unfinished_line + decoder.decode(data)).split("\n")
        for line in lines:
            yield line + "\n"
        data = opened.read(_BYTES_AT_ONCE)
    if unfinished_line:
        yield unfinished_line


#: A cell: a text, or any object in a DataFrame or a list of rows.
Cell = object

_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII
)
#: Numbers of up to this many digits fit in 64 bits.
_SAFE_DIGITS: Final = 18
_MOST_INT64: Final = 2**63 - 1
#: Spelling of a unit of time → its length in ns.
_NS_OF_UNIT: Final = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "\u03bcs", "usec", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "seconds"), 10**9),
}
#: Spelling of a unit of size → its number of bytes.
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
    """The title of a column names an unknown unit, or a unit of something else."""


def nanoseconds(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Return times in ns, rounded to whole numbers; None for an empty cell.

    Args:
        cells: the cells of a column.
        unit: the unit of the column; None if it is ns.

    Raises:
        UnknownUnitError: the unit is not a unit of time.
        ValueError: a cell is not a number, or the number does not fit in 64 bits.
    """
    factor = _factor(_NS_OF_UNIT, unit)
    return [_rounded(cell, factor) for cell in cells]


def sizes(cells: Sequence[Cell], unit: str | None) -> list[int | None]:
    """Return sizes in bytes, rounded to whole numbers; None for an empty cell.

    Args:
        cells: the cells of a column.
        unit: the unit of the column; None if it is bytes.

    Raises:
        UnknownUnitError: the unit is not a unit of size.
        ValueError: a cell is not a number, or the number does not fit in 64 bits.
    """
    factor = _factor(_BYTES_OF_UNIT, unit)
    return [_rounded(cell, factor) for cell in cells]


def whole(cells: Sequence[Cell]) -> list[int | None]:
    """Return whole numbers; None for an empty cell.

    Raises:
        ValueError: a cell is not a whole number, or the number does not fit in 64 bits.
    """
    return [_whole(cell) for cell in cells]


def _factor(factors: dict[str, int], unit: str | None) -> int:
    """Return what numbers in a unit have to be multiplied by."""
    if unit is None:
        return 1
    factor = factors.get(unit.casefold())
    if factor is None:
        raise UnknownUnitError(unit)
    return factor


def _rounded(cell: Cell, factor: int) -> int | None:
    """Return the number in a cell times a factor, rounded; None for an empty cell."""
    text = _text_of(cell)
    if factor == 1 and _is_plain(text):
        return int(text)
    if _is_empty(cell, text):
        return None
    number = _decimal(text) * factor
    return _in_64_bits(number)


def _whole(cell: Cell) -> int | None:
    """Return the whole number in a cell; None for an empty cell."""
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
    """Return True for digits that `int` can convert at once, as most cells are."""
    return text.isdigit() and text.isascii() and len(text) <= _SAFE_DIGITS


def _is_empty(cell: Cell, text: str) -> bool:
    if isinstance(cell, str):
        return text in ("", "-")
    return bool(pd.isna(cast("float | None", cell)))


def _decimal(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    return Decimal(text.replace(",", ""))


def _in_64_bits(number: Decimal) -> int:
    """Return a number rounded to a whole one.

    Raises:
        ValueError: it does not fit in 64 bits.
    """
    value = number.to_integral_value(ROUND_HALF_EVEN)
    if number.adjusted() > _SAFE_DIGITS + 2 or abs(value) > _MOST_INT64:
        raise ValueError("too large")
    return int(value)
