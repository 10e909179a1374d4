"""XlsxWriter's workbook, cells and tables; a text stays that text, and nothing fails silently."""

from __future__ import annotations

import math
import re
import textwrap
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

import numpy as np
from xlsxwriter import Workbook
from xlsxwriter.format import Format
from xlsxwriter.utility import xl_rowcol_to_cell_fast
from xlsxwriter.worksheet import Worksheet

from tracelens_ext.errors import OutputError
from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_text import CellValue, cell_text, cell_value
from tracelens_ext.report.manifest import GENERATOR, TABLES_VERSION, TABLES_VERSION_KEY
from tracelens_ext.report.tables.units import Quantity, Shown, header_text

#: The same report has the same bytes, so no workbook says when it was written.
_CREATED = datetime(1980, 1, 1, tzinfo=UTC)
INK = "#1F3B64"
HEADER = {
    "bold": True,
    "text_wrap": True,
    "valign": "vcenter",
    "bg_color": "#DCE6F1",
    "bottom": 1,
    "bottom_color": INK,
}
LINES = {"border": 1, "border_color": "#DDDDDD"}
# Where a text is parted into runs, because XlsxWriter would write it wrong in one: it takes a text
# from `<r>` to `</r>` for markup of its own, and of two parts that look like escapes and share an
# underscore, `_x0041_x0042_`, it sees the first alone.
_PARTS = re.compile("(?<=^<)(?=r>)|(?<=_)(?=x[0-9A-Fa-f]{4}_)")


class _Sheet(Worksheet):  # type: ignore[misc]  # XlsxWriter declares no types
    """A sheet that takes a row of a table at once, which is written four times faster."""

    def write_cells(self, row: int, cells: Sequence[tuple[CellValue, Format]]) -> None:
        """Write the next row, cells as `column_of` gives them."""
        self._write_single_row(row)  # the one before
        parts = []
        for place, (value, style) in enumerate(cells):
            if value in (None, "") or value != value:  # as NaN does
                content = "/>"
            elif isinstance(value, str):
                if "_x" in value or "\r" in value or value.startswith("<r>"):
                    for column, cell in enumerate(cells):
                        put(self, row, column, *cell)
                    return
                space = ' xml:space="preserve"' if value != value.strip() else ""
                text = (
                    value
                    if value.isprintable()
                    else self._escape_control_characters(value)
                )
                content = f' t="inlineStr"><is><t{space}>{self._escape_data(text)}</t></is></c>'
            elif isinstance(value, bool):
                content = f' t="b"><v>{value:d}</v></c>'
            else:
                content = f"><v>{value:.16G}</v></c>"
            number = style.xf_index or style._get_xf_index()
            parts.append(
                f'<c r="{xl_rowcol_to_cell_fast(row, place)}" s="{number}"{content}'
            )
        checked(self._check_dimensions(row, len(cells) - 1))
        self._write_row(row, None)
        self.fh.write("".join(parts))
        self._xml_end_tag("row")


class Book:
    """A workbook that makes each format once; `folder` has its rows while they are written."""

    def __init__(self, stream: BinaryIO, title: str, folder: str) -> None:
        as_text = ("strings_to_formulas", "strings_to_urls", "strings_to_numbers")
        kept = {"constant_memory": True, "tmpdir": folder}
        self.xlsx = Workbook(stream, kept | dict.fromkeys(as_text, False))
        self.xlsx.use_zip64()  # of parts over 4 GB alone
        self.xlsx.set_properties(
            {"title": title, "author": GENERATOR, "created": _CREATED}
        )
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
    """Refuse a workbook that lacks a part; XlsxWriter says so by a number other than 0 alone."""
    if code:
        raise OutputError(
            "the workbook cannot be written: XlsxWriter rejects a part of it (code "
            f"{code}); write the report with --format csv"
        )


def put(
    sheet: Worksheet, row: int, column: int, value: CellValue, style: Format
) -> None:
    """Write one cell; a text cleaned, cut as `cell_text` does, with Excel's line breaks."""
    # XlsxWriter's own names of these functions first ask whether a row is a place such as `A1`.
    if value in (None, "") or value != value:  # as NaN does
        code = sheet._write_blank(row, column, None, style)
    elif isinstance(value, str):
        text = cell_text(value)[0].replace("\r\n", "\n").replace("\r", "\n")
        parts = _PARTS.split(text)
        if len(parts) == 1:
            code = sheet._write_string(row, column, text, style)
        else:
            runs = [token for part in parts for token in (style, part)]
            code = sheet.write_rich_string(row, column, *runs, style)
    elif isinstance(value, bool):
        code = sheet.write_boolean(row, column, value, style)
    else:
        code = sheet._write_number(row, column, value, style)
    checked(code)


MOST_ROWS = 1_048_576  # of a sheet, with the header
MOST_COLUMNS = 16_384
#: More cells take minutes to write, and hardly anything opens them.
MOST_CELLS = 1_000_000
# Other than Excel's 15, which XlsxWriter would leave out; of a row without a height Excel makes
# one as high as its text has lines.
_ROW_HEIGHT = 15.75
# of a column, in characters
_NARROWEST = 8.0
_WIDEST = 52.0
_FILTER_BUTTON = 3.0  # characters that the button covers in a header
_BOLD = 1.1  # the width of a character of a header
_MARGIN = 1.5  # characters beside the content
_BAR_WIDTH = 13.0  # of a column with data bars: narrower ones hide the number
_SIZE_WIDTH = 11.0  # of a number of bytes, which its format shortens

# Bars and colors as XlsxWriter takes them. The bars are those of Excel 2007: openpyxl, which
# reads finished reports, warns of those of 2010.
_BARS = {
    "type": "data_bar",
    "bar_color": "#9CC2E5",
    "min_length": 0,
    "max_length": 100,
    "min_type": "num",
    "min_value": 0,
    "max_type": "max",
}
_COLORS = {
    "type": "3_color_scale",
    "min_type": "min",
    "mid_type": "num",
    "mid_value": 0,
    "max_type": "max",
    "min_color": "#63BE7B",
    "mid_color": "#FFFFFF",
    "max_color": "#F8696B",
}


@dataclass(frozen=True)
class ExcelColumn:
    """A column of a table, ready to be written."""

    header: str  #: its name, cleaned
    width: float  #: in characters
    header_lines: int  #: lines that the header takes at this width
    number_format: str  #: the Excel format of its numbers
    #: what shows percentages: bars, or colors where some are below zero; None for other columns
    bars: dict[str, Any] | None
    is_text: bool  #: holds texts only
    cut: int  #: cells whose text is longer than a cell may be
    values: list[CellValue]  #: a value a row


def column_of(series: pd.Series) -> ExcelColumn:
    """Look at a column once: its values as cells, and how they are shown."""
    header = cell_text(header_text(series.name)).text
    cell_values = _values(excel_text.own_digits(series))
    values = cell_values.values
    text_lengths = [len(value) for value in values if isinstance(value, str)]
    content_width = float(max(text_lengths, default=0))
    numbers = np.array(
        [n for n in values if isinstance(n, int | float)], dtype=np.float64
    )
    is_numeric = isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf"
    has_texts = content_width > 0 or not is_numeric
    notation = Shown.of(header, numbers)
    bars = None
    if len(numbers):
        content_width = _width_of_numbers(notation, content_width)
        if notation.unit.quantity is Quantity.PERCENT:
            bars = _COLORS if (numbers < 0).any() else _BARS
    least_width = _least_header_width(header)
    width = round(min(max(content_width + _MARGIN, least_width), _WIDEST), 1)
    header_characters = int((width - _FILTER_BUTTON) / _BOLD)
    header_lines = textwrap.wrap(header, header_characters, break_long_words=False)
    return ExcelColumn(
        header=header,
        width=width,
        header_lines=max(len(header_lines), 1),
        number_format=notation.excel_format,
        bars=bars,
        is_text=has_texts and not len(numbers),
        cut=cell_values.cut,
        values=values,
    )


def _width_of_numbers(notation: Shown, width: float) -> float:
    """Return how wide the content of a column is, whose texts are `width` wide, in characters."""
    unit = notation.unit
    longest_text = notation.text(-notation.largest).rstrip("%")
    longest = len(longest_text)
    if unit.symbol:
        longest += len(unit.symbol) + 1
    width = max(width, longest)
    if unit.quantity is Quantity.BYTES:
        return min(width, _SIZE_WIDTH)
    if unit.quantity is Quantity.PERCENT:
        return max(width, _BAR_WIDTH - _MARGIN)
    return width


def _least_header_width(header: str) -> float:
    """Return the least width of a column whose header is in two lines, if it has several words."""
    words = header.split()
    longest_word = max(map(len, words), default=0)
    half = 0
    if len(words) > 1:
        half = math.ceil(len(header) / 2)
    characters = max(longest_word, half)
    return max(_NARROWEST, characters * _BOLD + _FILTER_BUTTON)


@dataclass(frozen=True)
class _CellValues:
    """The values of a column as cells hold them, and how many texts were cut."""

    values: list[CellValue]
    cut: int


def _values(series: pd.Series) -> _CellValues:
    """Bring the values of a column to what cells can hold."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        value_of_code = [cell_value(category) for category in series.cat.categories]
        value_of_code.append(None)  # the last, which code -1 picks
        plain = [value_of_code[code] for code in series.cat.codes.tolist()]
    else:
        plain = [cell_value(value) for value in series.astype(object).tolist()]
    distinct_texts = {value for value in plain if isinstance(value, str)}
    cell_of_text = {text: cell_text(text) for text in distinct_texts}
    values: list[CellValue] = []
    cut = 0
    for value in plain:
        if isinstance(value, str):
            cell = cell_of_text[value]
            values.append(cell.text)
            cut += cell.was_cut
        else:
            values.append(value)
    return _CellValues(values, cut)


def most_rows(frames: Collection[pd.DataFrame]) -> int:
    """How many rows each table may have, so that a sheet and the workbook hold them."""
    return bisect_right(
        range(MOST_ROWS - 1),
        MOST_CELLS,
        key=lambda rows: sum(
            min(len(frame), rows + 1) * frame.shape[1] for frame in frames
        ),
    )


def fitting(
    wanted: str, name: str, frame: pd.DataFrame, most_rows: int, notes: list[str]
) -> pd.DataFrame:
    """Return the part of a table that fits a sheet; note what does not."""
    if wanted != name:
        notes.append(
            f"The table “{wanted}” is on the sheet “{name}”, because its name cannot "
            "be used for a sheet."
        )
    rows, columns = frame.shape
    if rows > most_rows:
        holder = "sheet" if most_rows == MOST_ROWS - 1 else "workbook"
        notes.append(
            _not_all(name=name, most=most_rows, total=rows, what="rows", holder=holder)
        )
    if columns > MOST_COLUMNS:
        notes.append(
            _not_all(
                name=name,
                most=MOST_COLUMNS,
                total=columns,
                what="columns",
                holder="sheet",
            )
        )
    return frame.iloc[:most_rows, :MOST_COLUMNS]


def _not_all(name: str, most: int, total: int, what: str, holder: str) -> str:
    return (
        f"{name}: only the first {most:,} of {total:,} {what} are here, which is all "
        f"that a {holder} can hold; the CSV files have all."
    )


def write_table(
    book: Book, sheet: Worksheet, frame: pd.DataFrame, *, whole: bool
) -> list[str]:
    """Write the sheet of a table, rows a line high or texts `whole`; say what is cut."""
    columns = [column_of(series) for _, series in frame.items()]
    sheet.freeze_panes(1, 0)
    sheet.repeat_rows(0)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)  # as many pages long as it takes
    if columns:
        if not whole:
            sheet.set_default_row(_ROW_HEIGHT)
        checked(
            sheet.set_row(0, 15 * max(column.header_lines for column in columns) + 3)
        )
        checked(sheet.autofilter(0, 0, len(frame), len(columns) - 1))
    for place, column in enumerate(columns):
        checked(sheet.set_column(place, place, column.width))
        side = "left" if column.is_text else "center"
        put(
            sheet=sheet,
            row=0,
            column=place,
            value=column.header,
            style=book.format(**HEADER, align=side),
        )
        if column.bars:
            checked(sheet.conditional_format(1, place, len(frame), place, column.bars))
    _write_rows(book, sheet, columns, whole=whole)
    return [
        f"{sheet.name}: texts longer than a cell allows "
        f"({excel_text.CELL_CHARACTERS:,} characters) are cut and marked “[cut here”: "
        f"{column.cut:,} in the column “{column.header}”; the CSV files have the full "
        "text."
        for column in columns
        if column.cut
    ]


def _write_rows(
    book: Book, sheet: Worksheet, columns: Sequence[ExcelColumn], *, whole: bool
) -> None:
    # A text wider than its column is clipped at the column's edge, whatever is beside it. (A
    # short one would be repeated to fill the width, so it has no such alignment.)
    long_text = book.format(**LINES, align="fill")
    # Of several lines the first is seen: rows have a fixed height.
    many_lines = book.format(**LINES, text_wrap=True, valign="top")
    plain = [
        (
            cells_of_column.width,
            book.format(**LINES, num_format=cells_of_column.number_format),
        )
        for cells_of_column in columns
    ]
    for row, values in enumerate(
        zip(*(column.values for column in columns), strict=True), 1
    ):
        cells = []
        for value, (width, style) in zip(values, plain, strict=True):
            if isinstance(value, str):
                if whole or "\n" in value:
                    style = many_lines
                elif len(value) > width:
                    style = long_text
            cells.append((value, style))
        sheet.write_cells(row, cells)
