"""Write cells and tables with XlsxWriter, so that texts stay texts and no error is silent."""

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

#: The creation time of all workbooks, so that the same report always has the same bytes.
_CREATED = datetime(1980, 1, 1, tzinfo=UTC)
#: The color of headings.
INK = "#1F3B64"
#: The format of headers of tables.
HEADER = {
    "bold": True,
    "text_wrap": True,
    "valign": "vcenter",
    "bg_color": "#DCE6F1",
    "bottom": 1,
    "bottom_color": INK,
}
#: The format of all cells of tables: thin lines around them.
LINES = {"border": 1, "border_color": "#DDDDDD"}
# Where a text is divided into runs, because XlsxWriter would write the whole text wrongly. It takes
# a text from `<r>` to `</r>` for its own markup. Of two parts that look like escapes and share an
# underscore, as in `_x0041_x0042_`, it only protects the first one.
_RUN_BOUNDARY = re.compile("(?<=^<)(?=r>)|(?<=_)(?=x[0-9A-Fa-f]{4}_)")


class _Sheet(Worksheet):  # type: ignore[misc]  # XlsxWriter declares no types
    """A sheet that can write a whole row of a table at once, which is four times faster."""

    def write_cells(self, row: int, cells: Sequence[tuple[CellValue, Format]]) -> None:
        """Write the next row.

        Args:
            row: the index of the row.
            cells: values as in `ExcelColumn.values`, with their formats.
        """
        self._write_single_row(row)  # writes the row before this one
        parts = []
        for column, (value, style) in enumerate(cells):
            if value in (None, "") or value != value:  # NaN differs from itself
                content = "/>"
            elif isinstance(value, str):
                if "_x" in value or "\r" in value or value.startswith("<r>"):
                    # `put` knows how to write such a text.
                    for cell_column, cell in enumerate(cells):
                        put(self, row, cell_column, *cell)
                    return
                space = ' xml:space="preserve"' if value != value.strip() else ""
                text = value
                if not value.isprintable():
                    text = self._escape_control_characters(value)
                content = f' t="inlineStr"><is><t{space}>{self._escape_data(text)}</t></is></c>'
            elif isinstance(value, bool):
                content = f' t="b"><v>{value:d}</v></c>'
            else:
                content = f"><v>{value:.16G}</v></c>"
            style_index = style.xf_index or style._get_xf_index()
            reference = xl_rowcol_to_cell_fast(row, column)
            parts.append(f'<c r="{reference}" s="{style_index}"{content}')
        checked(self._check_dimensions(row, len(cells) - 1))
        self._write_row(row, None)
        self.fh.write("".join(parts))
        self._xml_end_tag("row")


class Book:
    """A workbook that creates each format only once.

    Args:
        stream: the stream to which the workbook is written.
        title: the title among the properties of the workbook.
        folder: the folder for temporary files with rows that are written already.
    """

    def __init__(self, stream: BinaryIO, title: str, folder: str) -> None:
        options = {
            "constant_memory": True,
            "tmpdir": folder,
            "strings_to_formulas": False,
            "strings_to_urls": False,
            "strings_to_numbers": False,
        }
        self.xlsx = Workbook(stream, options)
        self.xlsx.use_zip64()  # affects only parts of more than 4 GB
        self.xlsx.set_properties(
            {"title": title, "author": GENERATOR, "created": _CREATED}
        )
        self.xlsx.set_custom_property(TABLES_VERSION_KEY, TABLES_VERSION)
        self.xlsx.worksheet_class = _Sheet
        self._formats: dict[tuple[tuple[str, object], ...], Format] = {}

    def format(self, **properties: object) -> Format:
        """Return the format with some of XlsxWriter's properties."""
        key = tuple(properties.items())
        if key not in self._formats:
            self._formats[key] = self.xlsx.add_format(properties)
        return self._formats[key]


def checked(code: int) -> None:
    """Raise an error for a return code of XlsxWriter, other than 0, that it rejected something."""
    if code:
        raise OutputError(
            "the workbook cannot be written: XlsxWriter rejects a part of it (code "
            f"{code}); write the report with --format csv"
        )


def put(
    sheet: Worksheet, row: int, column: int, value: CellValue, style: Format
) -> None:
    """Write one cell; a text is cleaned and cut as in `cell_text`, with Excel's line breaks."""
    # XlsxWriter's public functions would first check whether the row is a reference such as `A1`.
    if value in (None, "") or value != value:  # NaN differs from itself
        code = sheet._write_blank(row, column, None, style)
    elif isinstance(value, str):
        text = cell_text(value).text.replace("\r\n", "\n").replace("\r", "\n")
        parts = _RUN_BOUNDARY.split(text)
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


MOST_ROWS = 1_048_576  # of a sheet, including the header
MOST_COLUMNS = 16_384  # of a sheet
#: A workbook with more cells takes minutes to write, and hardly any program can open it.
MOST_CELLS = 1_000_000
# A row without a height is as high as its text has lines. XlsxWriter omits Excel's default height
# of 15, so this one is slightly different.
_ROW_HEIGHT = 15.75
# Widths of columns, in characters.
_NARROWEST = 8.0
_WIDEST = 52.0
_FILTER_BUTTON = 3.0  # the button covers this much of a header
_BOLD = 1.1  # width of a bold character
_MARGIN = 1.5  # space beside the content
_BAR_WIDTH = 13.0  # bars in a narrower column would hide the number
_SIZE_WIDTH = 11.0  # for numbers of bytes, which are shown in MB or GB if large

# XlsxWriter's options for bars and colors. The bars are those of Excel 2007: openpyxl, which reads
# finished reports, warns about those of Excel 2010.
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

    header: str  #: the cleaned name of the column
    width: float  #: width of the column in characters
    header_lines: int  #: number of lines of the header at this width
    number_format: str  #: Excel's format for the numbers
    #: options for the bars of percentages, or for colors if some are negative; None for none
    bars: dict[str, Any] | None
    is_text: bool  #: True if the column has only texts
    cut: int  #: number of texts that were too long for a cell
    values: list[CellValue]  #: the value of each row


def column_of(series: pd.Series) -> ExcelColumn:
    """Return a column with the values, the width and the formats of its cells."""
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
    """Return the width of a column of numbers, whose texts have the given width, in characters."""
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
    """Return the least width of a column; a header of several words may have two lines."""
    words = header.split()
    longest_word = max(map(len, words), default=0)
    half = 0
    if len(words) > 1:
        half = math.ceil(len(header) / 2)
    characters = max(longest_word, half)
    return max(_NARROWEST, characters * _BOLD + _FILTER_BUTTON)


@dataclass(frozen=True)
class _CellValues:
    """The values of the cells of a column."""

    values: list[CellValue]
    cut: int  #: number of texts that were cut


def _values(series: pd.Series) -> _CellValues:
    """Convert the values of a column to values that cells can have."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        value_of_code = [cell_value(category) for category in series.cat.categories]
        # A missing value has the code -1, which is the index of the last item.
        value_of_code.append(None)
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
    """Return the most rows per table with which all tables fit in a workbook."""

    def cells_with(rows: int) -> int:
        return sum(min(len(frame), rows) * frame.shape[1] for frame in frames)

    # The cells increase with the rows: find the first number of rows that is too large.
    too_many = bisect_right(range(MOST_ROWS), MOST_CELLS, key=cells_with)
    return too_many - 1


def fitting(
    wanted: str, name: str, frame: pd.DataFrame, most_rows: int, notes: list[str]
) -> pd.DataFrame:
    """Return the part of a table that fits on a sheet; add a note about what does not.

    Args:
        wanted: the name of the table.
        name: the name of its sheet.
        frame: the table.
        most_rows: the most rows of the sheet.
        notes: the notes of the report.
    """
    if wanted != name:
        notes.append(
            f"The table “{wanted}” is on the sheet “{name}”, because its name cannot "
            "be used for a sheet."
        )
    rows, columns = frame.shape
    if rows > most_rows:
        container = "sheet" if most_rows == MOST_ROWS - 1 else "workbook"
        notes.append(
            _note_of_cut(
                name=name, most=most_rows, total=rows, noun="rows", container=container
            )
        )
    if columns > MOST_COLUMNS:
        notes.append(
            _note_of_cut(
                name=name,
                most=MOST_COLUMNS,
                total=columns,
                noun="columns",
                container="sheet",
            )
        )
    return frame.iloc[:most_rows, :MOST_COLUMNS]


def _note_of_cut(name: str, most: int, total: int, noun: str, container: str) -> str:
    return (
        f"{name}: only the first {most:,} of {total:,} {noun} are here, which is all "
        f"that a {container} can hold; the CSV files have all."
    )


def write_table(
    book: Book, sheet: Worksheet, frame: pd.DataFrame, *, wrap_texts: bool
) -> list[str]:
    """Write the sheet of a table.

    Args:
        book: the workbook.
        sheet: the sheet.
        frame: the table.
        wrap_texts: True for rows that are as high as their texts need; False for rows of one line.

    Returns:
        A note for each column in which texts were cut.
    """
    columns = [column_of(series) for _, series in frame.items()]
    sheet.freeze_panes(1, 0)
    sheet.repeat_rows(0)
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)  # one page wide, any number of pages long
    if columns:
        if not wrap_texts:
            sheet.set_default_row(_ROW_HEIGHT)
        checked(
            sheet.set_row(0, 15 * max(column.header_lines for column in columns) + 3)
        )
        checked(sheet.autofilter(0, 0, len(frame), len(columns) - 1))
    for position, column in enumerate(columns):
        checked(sheet.set_column(position, position, column.width))
        alignment = "left" if column.is_text else "center"
        put(
            sheet=sheet,
            row=0,
            column=position,
            value=column.header,
            style=book.format(**HEADER, align=alignment),
        )
        if column.bars:
            last_row = len(frame)
            checked(
                sheet.conditional_format(1, position, last_row, position, column.bars)
            )
    _write_rows(book, sheet, columns, wrap_texts=wrap_texts)
    return [
        f"{sheet.name}: texts longer than a cell allows "
        f"({excel_text.CELL_CHARACTERS:,} characters) are cut and marked “[cut here”: "
        f"{column.cut:,} in the column “{column.header}”; the CSV files have the full "
        "text."
        for column in columns
        if column.cut
    ]


def _write_rows(
    book: Book,
    sheet: Worksheet,
    columns: Sequence[ExcelColumn],
    *,
    wrap_texts: bool,
) -> None:
    # The alignment `fill` clips a long text at the edge of its column, even if the next cell is
    # empty. It would repeat a short text, which therefore does not get it.
    long_text = book.format(**LINES, align="fill")
    # A text of several lines shows its first line, because rows have a fixed height.
    several_lines = book.format(**LINES, text_wrap=True, valign="top")
    usual_styles = [
        book.format(**LINES, num_format=column.number_format) for column in columns
    ]
    widths = [column.width for column in columns]
    for row, values in enumerate(
        zip(*(column.values for column in columns), strict=True), 1
    ):
        cells = []
        for value, width, usual_style in zip(values, widths, usual_styles, strict=True):
            style = usual_style
            if isinstance(value, str):
                if wrap_texts or "\n" in value:
                    style = several_lines
                elif len(value) > width:
                    style = long_text
            cells.append((value, style))
        sheet.write_cells(row, cells)
