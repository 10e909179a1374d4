"""XlsxWriter's workbook and cells, where a text stays the text it is and nothing fails silently."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

from xlsxwriter import Workbook
from xlsxwriter.utility import _preserve_whitespace, xl_rowcol_to_cell_fast
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.errors import OutputError
from tracelens_ext.report import excel_text
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION, TABLES_VERSION_KEY

if TYPE_CHECKING:
    from xlsxwriter.format import Format

    from tracelens_ext.report.excel_text import CellValue

#: The same report has the same bytes, so no workbook says when it was written.
_CREATED = datetime(1980, 1, 1, tzinfo=UTC)
INK = "#1F3B64"
HEADER = {
    "bold": True, "text_wrap": True, "valign": "vcenter", "bg_color": "#DCE6F1",
    "bottom": 1, "bottom_color": INK,
}  # fmt: skip
LINES = {"border": 1, "border_color": "#DDDDDD"}
# Where a text is parted into runs, because XlsxWriter would write it wrong in one: it takes a text
# from `<r>` to `</r>` for markup of its own, and of two parts that look like escapes and share an
# underscore, `_x0041_x0042_`, it sees the first alone.
_PARTS = re.compile("(?<=^<)(?=r>)|(?<=_)(?=x[0-9A-Fa-f]{4}_)")


class _Sheet(Worksheet):  # type: ignore[misc]  # XlsxWriter declares no types
    """A sheet that is written faster; the file is the same, but for an optional hint."""

    def _write_cell(self, row: int, col: int, cell: Any) -> None:  # noqa: ANN401  # of several types
        """Write what tables are full of in one go: empty cells, numbers and texts in a format."""
        kind = type(cell).__name__
        if kind == "Number":
            content = f"><v>{cell.number:.16G}</v></c>"
        elif kind == "Blank":
            content = "/>"
        elif kind == "String" and not self.constant_memory:
            content = f' t="s"><v>{cell.string}</v></c>'
        elif kind == "String" and not cell.string.startswith("<r>"):
            text = self._escape_control_characters(cell.string)
            space = ' xml:space="preserve"' if _preserve_whitespace(text) else ""
            text = self._escape_data(text)
            content = f' t="inlineStr"><is><t{space}>{text}</t></is></c>'
        else:
            kind = ""
        if not kind or cell.format is None:
            super()._write_cell(row, col, cell)
        else:
            style = cell.format._get_xf_index()
            self.fh.write(f'<c r="{xl_rowcol_to_cell_fast(row, col)}" s="{style}"{content}')

    def _calculate_spans(self) -> None:
        """Leave out which columns each row uses."""


class Book:
    """A workbook that makes each format once.

    Args:
        stream: receives the file.
        title: of the document's properties.
        temporary_folder: where rows are kept while they are written. None keeps them in
            memory, which is faster.
    """

    def __init__(self, stream: BinaryIO, title: str, temporary_folder: str | None = None) -> None:
        where = (
            {"constant_memory": True, "tmpdir": temporary_folder}
            if temporary_folder
            else {"in_memory": True}
        )
        as_text = ("strings_to_formulas", "strings_to_urls", "strings_to_numbers")
        self.xlsx = Workbook(stream, where | dict.fromkeys(as_text, False))
        self.xlsx.use_zip64()  # of parts over 4 GB alone
        self.xlsx.set_properties({"title": title, "author": GENERATOR, "created": _CREATED})
        self.xlsx.set_custom_property(TABLES_VERSION_KEY, TABLES_VERSION)
        self.xlsx.worksheet_class = _Sheet
        self._formats: dict[tuple[tuple[str, object], ...], Format] = {}

    def format(self, **properties: object) -> Format:
        """The format with these of XlsxWriter's properties."""
        key = tuple(properties.items())
        if key not in self._formats:
            self._formats[key] = self.xlsx.add_format(properties)
        return self._formats[key]


def checked(code: int) -> None:
    """Refuse a workbook that lacks a part; XlsxWriter says so by a number other than 0 alone.

    Raises:
        OutputError: the number is not 0.
    """
    if code:
        raise OutputError(
            f"the workbook cannot be written: XlsxWriter refuses a part of it (code {code}); "
            "write the report with --format csv"
        )


def put(sheet: Worksheet, row: int, column: int, value: CellValue, style: Format) -> None:
    """Write one cell; a carriage return becomes a line feed, Excel's line break.

    Args:
        sheet: the sheet.
        row: from 0.
        column: from 0.
        value: as `excel_text.cell_value` gives it, a text as `excel_text.cell_text` does; None,
            NaN and an empty text are an empty cell.
        style: its format.
    """
    # XlsxWriter's own names of these functions first ask whether a row is a place such as `A1`.
    if value in (None, "") or value != value:  # as NaN does
        code = sheet._write_blank(row, column, None, style)
    elif isinstance(value, str):
        text = value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value
        parts = _PARTS.split(text) if "_x" in text or text.startswith("<r>") else [text]
        if len(parts) == 1:
            code = sheet._write_string(row, column, text, style)
        else:
            runs = [token for part in parts for token in (style, part)]
            code = sheet.write_rich_string(row, column, *runs, style)
    elif isinstance(value, bool):
        code = sheet.write_boolean(row, column, value, style)
    else:
        code = sheet._write_number(row, column, value, style)
    if code:
        checked(code)


def put_text(sheet: Worksheet, row: int, column: int, text: str, style: Format) -> None:
    """Write any text, cleaned, and cut when it is longer than a cell may be."""
    put(sheet, row, column, excel_text.cell_text(text)[0], style)


def print_one_page_wide(sheet: Worksheet) -> None:
    """Print a sheet across the paper, as many pages long as it takes."""
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
