"""Single cells and styles for the sheets that openpyxl writes cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_rows import CellStyles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openpyxl.cell.cell import Cell
    from openpyxl.styles import Font
    from openpyxl.worksheet.worksheet import Worksheet

    from tracelens_ext.report.excel_rows import Column


_HEADER_COLOUR, _HEADER_LINE_COLOUR, _LINE_COLOUR = "FFDCE6F1", "FF1F3B64", "FFDDDDDD"


class TableStyles:
    """The formats of the cells of tables, each made once for the workbook.

    openpyxl numbers the formats of a workbook as cells come to use them, so each is set on a cell
    of its own.

    Args:
        scratch: a sheet of the workbook whose cells are replaced later.
    """

    def __init__(self, scratch: Worksheet) -> None:
        from openpyxl.styles import Alignment, Border, PatternFill, Side

        edge, foot = Side("thin", color=_LINE_COLOUR), Side("thin", color=_HEADER_LINE_COLOUR)
        self._scratch = scratch
        self._lines = Border(left=edge, right=edge, top=edge, bottom=edge)
        self._of_format: dict[str, int] = {}
        text_header, number_header = scratch["A1"], scratch["B1"]
        for header, side in ((text_header, "left"), (number_header, "center")):
            header.font = cell_font(bold=True)
            header.fill = PatternFill("solid", start_color=_HEADER_COLOUR)
            header.border = Border(bottom=foot)
            header.alignment = Alignment(wrap_text=True, vertical="center", horizontal=side)
        self._text_header, self._number_header = text_header.style_id, number_header.style_id
        # A text wider than its column is clipped at the column's edge, whatever is beside it.
        # (A short one would be repeated to fill the width, so it has no such alignment.)
        long_text, many_lines = scratch["A2"], scratch["B2"]
        long_text.alignment, long_text.border = Alignment(horizontal="fill"), self._lines
        # Of several lines the first is seen: rows have a fixed height.
        many_lines.alignment = Alignment(wrap_text=True, vertical="top")
        many_lines.border = self._lines
        self._long_text, self._many_lines = long_text.style_id, many_lines.style_id

    def of(self, columns: Sequence[Column]) -> CellStyles:
        """Give the formats of a table's cells, as the workbook numbers them."""
        return CellStyles(
            headers=[
                self._text_header if column.is_text else self._number_header for column in columns
            ],
            columns=[self._of_numbers(column.number_format) for column in columns],
            long_text=self._long_text,
            many_lines=self._many_lines,
        )

    def _of_numbers(self, number_format: str) -> int:
        """Give the format of ordinary cells, which differ in how numbers are shown."""
        if number_format not in self._of_format:
            cell = self._scratch.cell(3, len(self._of_format) + 1)
            cell.number_format, cell.border = number_format, self._lines
            self._of_format[number_format] = cell.style_id
        return self._of_format[number_format]


def cell_font(
    *, size: int = 11, bold: bool = False, color: str | None = None, underline: bool = False
) -> Font:
    """Give the workbook's font."""
    from openpyxl.styles import Font

    return Font(
        name="Calibri", size=size, bold=bold, color=color, underline="single" if underline else None
    )


def print_one_page_wide(sheet: Worksheet) -> None:
    """Print a sheet across the paper, as many pages long as it takes."""
    from openpyxl.worksheet.properties import PageSetupProperties

    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, 0
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)


def put_text(sheet: Worksheet, row: int, column: int, text: str) -> Cell:
    """Write a text that stays a text, whatever it starts with.

    Args:
        sheet: the sheet.
        row: from 1.
        column: from 1.
        text: any text; cleaned, and cut when it is longer than a cell may be.
    """
    cell = cast("Cell", sheet.cell(row, column))  # no cells are merged here
    shown = excel_text.cell_text(text)[0].replace("\r\n", "\n").replace("\r", "\n")
    cell.value = excel_text.excel_escaped(shown)
    cell.data_type = "s"  # openpyxl takes `=…` for a formula and `#N/A` for an error
    return cell
