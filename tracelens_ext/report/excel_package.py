"""Put the sheets of tables into a workbook that openpyxl has written without them.

An .xlsx file is a zip archive of XML parts. Every part is copied as openpyxl wrote it, except
that the sheets of tables come from `excel_sheet` and the charts from `excel_charts`, and that one
part more holds the texts of the tables. The format is ECMA-376, part 1, SpreadsheetML.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING, BinaryIO

from openpyxl.writer.excel import ExcelWriter

from tracelens_ext.report import excel_rows
from tracelens_ext.report.excel_sheet import MAIN_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from openpyxl import Workbook
    from openpyxl.chart._chart import ChartBase
    from openpyxl.worksheet.worksheet import Worksheet

    from tracelens_ext.report.excel_sheet import TableSheet

_COMPRESSION = 3  # of zlib: half the time of the usual 6, files a fifth larger

#: When a workbook was written is left out: of the same trace comes the same file.
_PROPERTIES_PART = "docProps/core.xml"
_MOMENT = re.compile(rb"<dcterms:(created|modified)\b.*?</dcterms:\1>")
_STRINGS_PART = "xl/sharedStrings.xml"
_TYPES_PART, _RELATIONS_PART = "[Content_Types].xml", "xl/_rels/workbook.xml.rels"
_STRINGS_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
_STRINGS_RELATION = (
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings"
)
_ADDITIONS = {
    _TYPES_PART: (
        "</Types>",
        f'<Override PartName="/{_STRINGS_PART}" ContentType="{_STRINGS_TYPE}"/>',
    ),
    _RELATIONS_PART: (
        "</Relationships>",
        f'<Relationship Type="{_STRINGS_RELATION}" Target="/{_STRINGS_PART}" Id="rIdStrings"/>',
    ),
}


def skeleton(book: Workbook, tables: Collection[Worksheet]) -> BinaryIO:
    """Write a workbook in memory, with nothing in the sheets of tables."""
    stored = io.BytesIO()
    _SkeletonWriter(book, zipfile.ZipFile(stored, "w"), tables).save()
    return stored


class _SkeletonWriter(ExcelWriter):
    """openpyxl's writer, which leaves the sheets of tables empty: they are written later."""

    def __init__(
        self, book: Workbook, archive: zipfile.ZipFile, tables: Collection[Worksheet]
    ) -> None:
        super().__init__(book, archive)
        self._empty = set(tables)
        self._parts = archive

    def write_worksheet(self, ws: Worksheet) -> None:
        if ws not in self._empty:
            super().write_worksheet(ws)
            return
        self._parts.writestr(part_of(ws), b"")
        self.manifest.append(ws)


def part_of(written: Worksheet | ChartBase) -> str:
    """Give the name of a sheet's or chart's part, which it has once its workbook is written."""
    return written.path.lstrip("/")


def fill_in(
    target: Path,
    stored: BinaryIO,
    tables: Mapping[str, TableSheet],
    replaced: Mapping[str, str],
) -> None:
    """Write a workbook with its tables.

    Args:
        target: the file to write.
        stored: what `skeleton` gave.
        tables: what goes into a sheet, by the name of its part in the archive.
        replaced: the XML of parts that are not as `skeleton` wrote them, by their names.
    """
    strings = excel_rows.SharedStrings()
    with (
        zipfile.ZipFile(stored) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive,
    ):
        if _STRINGS_PART in source.namelist():  # openpyxl 3.1 writes texts into their cells
            raise NotImplementedError("this version of openpyxl writes shared strings itself")
        for name in source.namelist():
            if name in tables:
                _write_table(archive, name, tables[name], strings)
                continue
            part = replaced[name].encode() if name in replaced else source.read(name)
            if name == _PROPERTIES_PART:
                part = _MOMENT.sub(b"", part)
            if name in _ADDITIONS:
                end, addition = _ADDITIONS[name]
                part = part.decode().replace(end, addition + end).encode()
            with archive.open(name, "w") as stream:  # `writestr` would note the time of day
                stream.write(part)
        large = _needs_zip64(strings.bytes_at_most())
        with archive.open(_STRINGS_PART, "w", force_zip64=large) as stream:
            stream.write(f'<sst xmlns="{MAIN_NAMESPACE}" uniqueCount="{len(strings)}">'.encode())
            for piece in strings.xml():
                stream.write(piece.encode())
            stream.write(b"</sst>")


def _needs_zip64(size: int) -> bool:
    """Say whether a part may exceed what plain zip files can hold.

    Only then: some programs that read workbooks know plain zip files alone.
    """
    return size > zipfile.ZIP64_LIMIT


def _write_table(
    archive: zipfile.ZipFile, name: str, table: TableSheet, strings: excel_rows.SharedStrings
) -> None:
    """Write the part of one sheet, piece by piece."""
    with archive.open(name, "w", force_zip64=_needs_zip64(table.bytes_at_most)) as stream:
        for piece in table.xml(strings):
            stream.write(piece.encode())
