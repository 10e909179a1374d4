"""Put the rows of tables into a workbook that openpyxl has saved without them.

An .xlsx file is a zip archive of XML parts. Every part is copied as openpyxl wrote it, except
that a sheet with rows gets them in its element `sheetData`, and that one part more holds the
texts of those rows. The format is ECMA-376, part 1, SpreadsheetML.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from tracelens_ext.report import excel_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CELL_BYTES = 90  # of a cell's XML at most
_COMPRESSION = 3  # of zlib: half the time of the usual 6, files a fifth larger

_STRINGS_PART = "xl/sharedStrings.xml"
_TYPES_PART, _RELATIONS_PART = "[Content_Types].xml", "xl/_rels/workbook.xml.rels"
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
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

_SHEET_DATA = re.compile(r"<sheetData>.*?</sheetData>|<sheetData */>", re.DOTALL)
_DIMENSION = re.compile(r'(<dimension ref=")[^"]*(")')


@dataclass(frozen=True)
class Rows:
    """What goes into one sheet.

    Attributes:
        columns: the columns of the table.
        count: rows to write, without the header.
        styles: the formats of the cells, as the saved workbook counts them.
    """

    columns: Sequence[excel_rows.Column]
    count: int
    styles: excel_rows.CellStyles


def fill_in(target: Path, skeleton: BinaryIO, rows: Mapping[str, Rows]) -> None:
    """Write a workbook with its rows.

    Args:
        target: the file to write.
        skeleton: the workbook as openpyxl saved it.
        rows: what goes into a sheet, by the name of its part in the archive.
    """
    strings = excel_rows.SharedStrings()
    with (
        zipfile.ZipFile(skeleton) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive,
    ):
        if _STRINGS_PART in source.namelist():  # openpyxl 3.1 writes texts into their cells
            raise NotImplementedError("this version of openpyxl writes shared strings itself")
        for name in source.namelist():
            part = source.read(name)
            if name in rows:
                _write_sheet(archive, name, part.decode(), rows[name], strings)
                continue
            if name in _ADDITIONS:
                end, addition = _ADDITIONS[name]
                part = part.decode().replace(end, addition + end).encode()
            archive.writestr(name, part)
        large = _needs_zip64(strings.bytes_at_most())
        with archive.open(_STRINGS_PART, "w", force_zip64=large) as stream:
            stream.write(f'<sst xmlns="{_MAIN}" uniqueCount="{len(strings)}">'.encode())
            for piece in strings.xml():
                stream.write(piece.encode())
            stream.write(b"</sst>")


def _needs_zip64(size: int) -> bool:
    """Say whether a part may exceed what plain zip files can hold.

    Only then: some programs that read workbooks know plain zip files alone.
    """
    return size > zipfile.ZIP64_LIMIT


def _write_sheet(
    archive: zipfile.ZipFile,
    name: str,
    part: str,
    rows: Rows,
    strings: excel_rows.SharedStrings,
) -> None:
    """Write the part of one sheet, its rows piece by piece."""
    found = _SHEET_DATA.search(part)
    if found is None:
        message = f"openpyxl wrote no sheetData into {name}"
        raise NotImplementedError(message)
    before, after = part[: found.start()], part[found.end() :]
    last_column = excel_rows.column_letters(max(len(rows.columns) - 1, 0))
    before = _DIMENSION.sub(rf"\g<1>A1:{last_column}{rows.count + 1}\g<2>", before, count=1)
    cells = (rows.count + 1) * len(rows.columns)
    with archive.open(name, "w", force_zip64=_needs_zip64(cells * _CELL_BYTES)) as stream:
        stream.write(before.encode())
        for piece in excel_rows.sheet_data(rows.columns, rows.count, rows.styles, strings):
            stream.write(piece.encode())
        stream.write(after.encode())
