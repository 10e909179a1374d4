"""The rows of a CSV file that a profiler wrote, as texts; a line that was cut off is told."""

from __future__ import annotations

import codecs
import csv
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.readers.source import ByteSource

_PIECE_BYTES = 1 << 18
#: Characters of one cell; names of kernels full of templates exceed the 131,072 of the library.
_LONGEST_CELL = 1 << 24
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))


class UnfinishedRow(list[str]):
    """A row whose line does not end, as the last of a file that was cut off."""


def rows_of(opened: ByteSource, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file, each with the line that it ends on.

    Args:
        opened: the file.
        remedy: what to do when it is no CSV.

    Raises:
        TraceFormatError: it is no CSV, or cut off within a row.
    """
    encoding = encoding_of(opened.peek(_PIECE_BYTES))
    if encoding is None:
        raise TraceFormatError(opened.path, "is no CSV", remedy)
    line, quotes, width = "", 0, 0

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
                raise TraceFormatError(
                    opened.path, f"line {reader.line_num} is cut off", "make it again"
                )
            quotes, width = 0, len(row)
            yield reader.line_num, row if line.endswith("\n") else UnfinishedRow(row)
    except csv.Error as error:
        raise TraceFormatError(
            opened.path, f"is no CSV ({error}, line {reader.line_num})", "make it again"
        ) from None


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
