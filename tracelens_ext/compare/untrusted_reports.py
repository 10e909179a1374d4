"""Checks for reports from an untrusted source: limits of workbooks, and errors about damage.

A workbook is checked before openpyxl reads it, because a small file may unpack to gigabytes, or
contain XML that openpyxl takes very long to read.
"""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn
from xml.parsers import expat

from tracelens_ext import errors
from tracelens_ext.settings import size_text
from tracelens_ext.text import one_line

#: The part that every workbook contains.
WORKBOOK_PART = "xl/workbook.xml"
#: The most parts of a workbook.
_MAX_PARTS = 10_000
#: XML elements of cells and their contents.
_CELL_ELEMENTS = frozenset({"row", "c", "v", "is", "si", "t"})
_MAX_CELL_ELEMENTS = 4_000_000
#: Other elements take openpyxl longer, some of them quadratic time.
_MAX_OTHER_ELEMENTS = 20_000
#: The deepest nesting of elements.
_MAX_DEPTH = 100
#: The most bytes of a single attribute or text.
_MAX_ELEMENT_BYTES = 1 << 20
#: The most characters of all attributes, without those of cells. openpyxl takes seconds for 10 MB
#: of cell ranges.
_MAX_ATTRIBUTE_CHARACTERS = 2_000_000
#: A part is checked in pieces of this many bytes.
_PIECE_BYTES = 1 << 18
_SUPPORTED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NAME_OTHER_FORM = "give the trace, or a folder of CSV or Parquet tables"
_ALLOW_MORE_BYTES = "give the trace, or raise the limit with --max-bytes"
_WRITE_AGAIN = "write the report again"


def check_workbook(path: Path, file: BinaryIO, most_bytes: int) -> None:
    """Check that a workbook does not take too much memory or time, and declares no entities.

    Raises:
        TraceError: the workbook exceeds a limit, declares entities, or is damaged.
    """
    usage = _WorkbookUsage(path, most_bytes)
    with reports_damage(path, "the workbook"), zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) > _MAX_PARTS:
            raise too_large(path, f"{_MAX_PARTS:,} parts")
        if WORKBOOK_PART not in archive.namelist():
            raise errors.TraceFormatError(
                path, "is a zip archive, but not a workbook", "name a workbook"
            )
        for info in archive.infolist():
            if info.compress_type not in _SUPPORTED_COMPRESSION:
                raise zipfile.BadZipFile(
                    f"{info.filename}: is packed in a way that no workbook uses"
                )
            with archive.open(info) as part:
                pieces = iter(partial(part.read, _PIECE_BYTES), b"")
                _PartCheck(usage).run(pieces)
    file.seek(0)


class _WorkbookUsage:
    """Counts the bytes and XML elements of a workbook, and raises if they exceed a limit."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._bytes = 0
        self._attribute_characters = 0
        self._cell_elements = 0
        self._other_elements = 0

    @property
    def elements(self) -> int:
        """The number of elements so far."""
        return self._cell_elements + self._other_elements

    def add_bytes(self, count: int) -> None:
        """Count unpacked bytes."""
        self._bytes += count
        if self._bytes > self._most_bytes:
            raise too_large(self.path, f"{size_text(self._most_bytes)}, unpacked")

    def add_element(self, name: str, attributes: Mapping[str, str]) -> None:
        """Count an element and its attributes."""
        if name.rpartition(":")[2] in _CELL_ELEMENTS:
            self._cell_elements += 1
        else:
            self._other_elements += 1
            self._attribute_characters += sum(
                len(value) for value in attributes.values()
            )
        if self._attribute_characters > _MAX_ATTRIBUTE_CHARACTERS:
            what = f"{size_text(_MAX_ATTRIBUTE_CHARACTERS)} of attributes"
            raise too_large(self.path, what, _NAME_OTHER_FORM)
        has_too_many_cells = self._cell_elements > _MAX_CELL_ELEMENTS
        if has_too_many_cells or self._other_elements > _MAX_OTHER_ELEMENTS:
            # Most cells consist of two elements, one of them for the value.
            cells = _MAX_CELL_ELEMENTS // 2
            what = f"{cells:,} cells, or {_MAX_OTHER_ELEMENTS:,} other elements"
            raise too_large(self.path, what, _NAME_OTHER_FORM)


class _PartCheck:
    """Counts the contents of one part of a workbook.

    Only the bytes of parts that are not XML are counted, because openpyxl does not read them.
    """

    def __init__(self, usage: _WorkbookUsage) -> None:
        self._usage = usage
        self._depth = 0
        self._is_xml = True
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_declaration
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end

    def run(self, pieces: Iterator[bytes]) -> None:
        """Count the contents of the part, which is given in pieces."""
        # The bytes since the last element began.
        bytes_in_element = 0
        for piece in pieces:
            self._usage.add_bytes(len(piece))
            elements_before = self._usage.elements
            self._parse(piece)
            if self._usage.elements == elements_before:
                bytes_in_element += len(piece)
            else:
                bytes_in_element = 0
            if self._is_xml and bytes_in_element > _MAX_ELEMENT_BYTES:
                what = f"{size_text(_MAX_ELEMENT_BYTES)} in one element"
                raise too_large(self._usage.path, what, _NAME_OTHER_FORM)

    def _parse(self, piece: bytes) -> None:
        """Parse a piece, unless an earlier piece of the part was not XML."""
        if not self._is_xml:
            return
        try:
            self._parser.Parse(piece, False)
        except (expat.ExpatError, ValueError):
            self._is_xml = False

    def _refuse_declaration(self, *_: object) -> NoReturn:
        problem = "declares XML entities, which no workbook does"
        raise errors.TraceFormatError(
            self._usage.path, problem, "do not trust the file"
        )

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            problem = (
                f"nests XML more than {_MAX_DEPTH} levels deep, which no workbook does"
            )
            raise errors.TraceFormatError(self._usage.path, problem, "name another")
        self._usage.add_element(name, attributes)

    def _end(self, _name: str) -> None:
        self._depth -= 1


@contextmanager
def reports_damage(path: Path, what: str) -> Iterator[None]:
    """Convert any error of a library that reads a report to one about a damaged file."""
    try:
        yield
    except errors.TracelensError:
        raise
    except Exception as error:  # openpyxl, zipfile, pandas and pyarrow raise many types
        # Some OSErrors are due to damage: zipfile seeks before the beginning of the file
        # (EINVAL), and those of pyarrow have no number. Others are real errors of the system.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        detail = one_line(str(error)) or type(error).__name__
        problem = f"{what} is damaged ({detail})"
        raise errors.TraceFormatError(path, problem, _WRITE_AGAIN) from None


def too_large(
    path: Path, what: str, remedy: str = _ALLOW_MORE_BYTES
) -> errors.TraceTooLargeError:
    """Return the error about a report that exceeds a limit."""
    return errors.TraceTooLargeError(path, f"has more than {what}", remedy)
