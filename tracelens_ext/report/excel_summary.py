"""The first sheet of a workbook: what was analysed, which sheets follow, what to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_cells import cell_font, print_one_page_wide, put_text
from tracelens_ext.report.excel_rows import plain_value
from tracelens_ext.report.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openpyxl.worksheet.worksheet import Worksheet

_INK, _LINK, _GREY = "FF1F3B64", "FF0563C1", "FF666666"
_WIDTHS = {"A": 34.0, "B": 14.0, "C": 90.0}


@dataclass(frozen=True)
class IndexLine:
    """A line of the index of sheets.

    Attributes:
        sheet: the name of the sheet.
        rows: rows of its table; None for a sheet without one.
        description: what it shows.
    """

    sheet: str
    rows: int | None
    description: str


def write_summary(
    sheet: Worksheet,
    title: str,
    facts: Sequence[tuple[str, object]],
    index: Sequence[IndexLine],
    notes: Sequence[str],
) -> None:
    """Write the first sheet.

    Args:
        sheet: an empty sheet.
        title: the heading.
        facts: label and value a line; a number is shown with the unit that its label tells.
        index: the other sheets.
        notes: remarks, a line each.
    """
    put_text(sheet, 1, 1, title).font = cell_font(size=16, bold=True, color=_INK)
    row = 3
    for label, value in facts:
        put_text(sheet, row, 1, label).font = cell_font(bold=True)
        _put_value(sheet, row, label, value)
        row += 1
    row = _write_index(sheet, row + 1, index)
    if notes:
        row = _heading(sheet, row + 1, "Notes")
        for note in notes:
            put_text(sheet, row, 1, note)
            row += 1
    for letter, width in _WIDTHS.items():
        sheet.column_dimensions[letter].width = width
    sheet.sheet_view.showGridLines = False
    print_one_page_wide(sheet)


def _put_value(sheet: Worksheet, row: int, label: str, value: object) -> None:
    """Write the value of a fact: numbers as numbers, everything else as text."""
    from openpyxl.styles import Alignment

    plain = plain_value(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        fractions = plain != math.trunc(plain)
        cell = sheet.cell(row, 2, plain)
        cell.number_format = unit_of(label).excel_format(fractions=fractions, largest=abs(plain))
        cell.alignment = Alignment(horizontal="left")
    elif plain is not None:
        put_text(sheet, row, 2, str(plain))


def _heading(sheet: Worksheet, row: int, text: str) -> int:
    """Write the heading of a part of the sheet; give the row below."""
    put_text(sheet, row, 1, text).font = cell_font(size=13, bold=True, color=_INK)
    return row + 1


def _write_index(sheet: Worksheet, row: int, index: Sequence[IndexLine]) -> int:
    """Write the names of the other sheets, each a link to it; give the row below."""
    from openpyxl.worksheet.hyperlink import Hyperlink

    row = _heading(sheet, row, "Sheets")
    for line in index:
        cell = put_text(sheet, row, 1, line.sheet)
        quoted = excel_text.excel_escaped(line.sheet).replace("'", "''")
        cell.hyperlink = Hyperlink(ref=cell.coordinate, location=f"'{quoted}'!A1")
        cell.font = cell_font(underline=True, color=_LINK)
        if line.rows is not None:
            rows = put_text(sheet, row, 2, f"{line.rows:,} row{'' if line.rows == 1 else 's'}")
            rows.font = cell_font(color=_GREY)
        put_text(sheet, row, 3, line.description)
        row += 1
    return row
