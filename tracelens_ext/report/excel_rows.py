"""The cells of a table as the XML of an Excel sheet.

openpyxl makes a Python object a cell, which is what limits it: about 70,000 styled cells a second.
Here a column is turned into text at once, and a text that repeats (a kernel name does) is escaped
once; openpyxl still writes everything of the workbook that is not a row of a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tracelens_ext.report import excel_text
from tracelens_ext.report.units import Quantity, fits_a_spreadsheet, header_text, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import pandas as pd

_ROWS_AT_ONCE = 8192  # bounds the memory: a million rows are never one text
# Fixed, or a text with line breaks would make its row as high as it has lines.
_ROW_HEIGHT = ' ht="15" customHeight="1"'
_TEXT_START, _TEXT_END, _BETWEEN = '<si><t xml:space="preserve">', "</t></si>", "\x01"
_BYTES_A_TEXT, _BYTES_A_CHARACTER = 50, 7  # `_` may become `_x005F_`
_NARROWEST, _WIDEST = 8.0, 52.0  # of a column, in characters
_FILTER_BUTTON = 3.0  # characters that the button covers in a header
_BAR_WIDTH = 13.0  # of a column with data bars: narrower ones hide the number
_SIZE_WIDTH = 11.0  # of a number of bytes, which its format shortens


@dataclass
class SharedStrings:
    """The texts of a workbook, each kept once; a cell holds its number."""

    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Give the number of a cleaned text, a new one when it is new."""
        return self._numbers.setdefault(text, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def bytes_at_most(self) -> int:
        """Estimate the size of the XML, not too low."""
        return sum(_BYTES_A_TEXT + _BYTES_A_CHARACTER * len(text) for text in self._numbers)

    def xml(self) -> Iterator[str]:
        """Write the texts in the order of their numbers, some thousands at once."""
        texts = list(self._numbers)
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            # Escaped together: the character between them is in no cleaned text.
            joined = excel_text.xml_text(_BETWEEN.join(texts[start : start + _ROWS_AT_ONCE]))
            yield _TEXT_START + joined.replace(_BETWEEN, _TEXT_END + _TEXT_START) + _TEXT_END


@dataclass(frozen=True)
class CellStyles:
    """Numbers of cell formats, as the workbook counts them.

    Attributes:
        headers: of the cells in the first row, one a column.
        columns: of the cells below, one a column.
        long_text: of texts that are wider than their column.
        many_lines: of texts with line breaks.
    """

    headers: Sequence[int]
    columns: Sequence[int]
    long_text: int
    many_lines: int


@dataclass(frozen=True)
class Column:
    """A column of a table, ready to be written.

    Attributes:
        header: its name, cleaned.
        width: in characters.
        number_format: the Excel format of its numbers.
        header_lines: lines that the header takes at this width.
        percent: holds percentages.
        is_text: holds texts only.
        lowest: the smallest finite number; 0 without numbers.
        cut: cells whose text is longer than a cell may be.
        numbers: the values of a column of numbers (bool, integer or float); or None.
        codes: for other columns, a row's place in `distinct`, -1 for an empty cell.
        distinct: what the cells hold: bool, int, float or text, cut and cleaned.
    """

    header: str
    width: float
    header_lines: int
    number_format: str
    percent: bool
    is_text: bool
    lowest: float
    cut: int
    numbers: npt.NDArray[np.generic] | None
    codes: npt.NDArray[np.intp]
    distinct: list[bool | int | float | str]


def column_of(series: pd.Series) -> Column:
    """Look at a column once: what its cells hold, how wide it is, how its numbers are shown.

    Args:
        series: a column of any type; its name is the header.
    """
    header = excel_text.cell_text(header_text(series.name))[0]
    numbers = _plain_numbers(series)
    codes, distinct, cut = np.empty(0, np.intp), list[bool | int | float | str](), 0
    if numbers is None:
        codes, distinct, cut = _coded(series)
        found = [value for value in distinct if isinstance(value, int | float)]
        shown = np.asarray(found, dtype=np.float64)
    else:
        shown = numbers.astype(np.float64)
    shown = shown[np.isfinite(shown)]
    unit = unit_of(header)
    fractions = bool((shown != np.floor(shown)).any())
    lowest = float(shown.min()) if len(shown) else 0.0
    largest = max(-lowest, float(shown.max())) if len(shown) else 0.0
    number_format = unit.excel_format(fractions=fractions, largest=largest)
    widest = max((len(value) for value in distinct if isinstance(value, str)), default=0.0)
    if len(shown):
        widest = max(widest, _number_width(unit.text(-largest, fractions=fractions), unit.symbol))
        if unit.quantity is Quantity.BYTES:
            widest = min(widest, _SIZE_WIDTH)
    percent = unit.quantity is Quantity.PERCENT and len(shown) > 0
    width, header_lines = _width(header, max(widest + 1.5, _BAR_WIDTH if percent else 0.0))
    return Column(
        header=header,
        width=width,
        header_lines=header_lines,
        number_format=number_format,
        percent=percent,
        is_text=numbers is None and all(isinstance(value, str) for value in distinct),
        lowest=lowest,
        cut=cut,
        numbers=numbers,
        codes=codes,
        distinct=distinct,
    )


def sheet_data(
    columns: Sequence[Column], rows: int, styles: CellStyles, strings: SharedStrings
) -> Iterator[str]:
    """Write the header and the rows of a table as the element `sheetData`.

    Args:
        columns: the columns.
        rows: how many rows to write.
        styles: the formats of the cells.
        strings: receives the texts.

    Yields:
        Pieces of the XML, some thousand rows each.
    """
    letters = [column_letters(place) for place in range(len(columns))]
    yield "<sheetData>"
    if columns:
        height = 15 * max(column.header_lines for column in columns) + 3
        cells = "".join(
            f'<c r="{letter}1" s="{style}" t="s"><v>{strings.number(column.header)}</v></c>'
            for letter, style, column in zip(letters, styles.headers, columns, strict=True)
        )
        yield f'<row r="1" ht="{height}" customHeight="1">{cells}</row>'
    fragments = [
        _fragments(column, style, styles, strings)
        for column, style in zip(columns, styles.columns, strict=True)
    ]
    for start in range(0, rows if columns else 0, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, rows)
        numbers = range(start + 2, stop + 2)
        cells_by_column = [
            _cells(column, letter, style, of_distinct, slice(start, stop))
            for column, letter, style, of_distinct in zip(
                columns, letters, styles.columns, fragments, strict=True
            )
        ]
        yield "".join(
            [
                f'<row r="{number}"{_ROW_HEIGHT}>{"".join(cells)}</row>'
                for number, cells in zip(numbers, zip(*cells_by_column, strict=True), strict=True)
            ]
        )
    yield "</sheetData>"


def column_letters(place: int) -> str:
    """Name a column as Excel does: 0 is A, 25 is Z, 26 is AA."""
    letters = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _plain_numbers(series: pd.Series) -> npt.NDArray[np.generic] | None:
    """Give the values of a column of numbers that need no look at each of them."""
    dtype = series.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return None
    values = series.to_numpy()
    if dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if not (fits_a_spreadsheet(low) and fits_a_spreadsheet(high)):
            return None
    if dtype.kind == "f":
        if np.isinf(values).any():
            return None
        if dtype.itemsize > np.dtype(np.float64).itemsize:
            return values.astype(np.float64)
    return values


def _coded(
    series: pd.Series,
) -> tuple[npt.NDArray[np.intp], list[bool | int | float | str], int]:
    """Number the distinct values of a column: a code a row, the values, and cells cut short."""
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy().astype(np.intp)
        values = list(series.cat.categories)
    elif isinstance(dtype, pd.StringDtype) or (
        dtype.kind == "O" and pd.api.types.infer_dtype(series, skipna=True) == "string"
    ):
        codes, values = _numbered(series.to_numpy(dtype=object).tolist())
    else:
        codes = np.arange(len(series), dtype=np.intp)
        values = list(series.astype(object))
    return _as_cells(codes, values)


def _numbered(texts: list[object]) -> tuple[npt.NDArray[np.intp], list[object]]:
    """Number texts by first occurrence: a code a text, and the distinct ones."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(numbers.__getitem__, texts), np.intp, len(texts))
    return codes, list(numbers)


def _as_cells(
    codes: npt.NDArray[np.intp], values: list[object]
) -> tuple[npt.NDArray[np.intp], list[bool | int | float | str], int]:
    """Bring values to what a cell can hold, and number them anew where two become one."""
    places: dict[tuple[type, object], int] = {}
    place_of_value = np.empty(len(values) + 1, dtype=np.intp)
    place_of_value[-1] = -1  # a code of -1 stays one
    cut_places = set()
    for number, value in enumerate(values):
        plain = plain_value(value)
        if isinstance(plain, str):
            plain, was_cut = excel_text.cell_text(plain)
        else:
            was_cut = False
        if plain is None or plain == "":
            place_of_value[number] = -1
            continue
        # With the type: True, 1 and 1.0 are one key of a dictionary but three different cells.
        place = places.setdefault((type(plain), plain), len(places))
        place_of_value[number] = place
        if was_cut:
            cut_places.add(place)
    new_codes = place_of_value[codes]
    cut = int(np.isin(new_codes, list(cut_places)).sum()) if cut_places else 0
    distinct = [value for _, value in places]
    return new_codes, distinct, cut  # type: ignore[return-value]  # plain_value gives no other types


def plain_value(value: object) -> bool | int | float | str | None:
    """Bring a value of any type to what a cell can hold; None is an empty cell.

    A whole number of more than 15 digits, an infinity, and a value of any type that a cell does
    not know become a text.
    """
    import pandas as pd

    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value) if fits_a_spreadsheet(int(value)) else str(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return None
        return number if math.isfinite(number) else str(number)
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(cast("Any", value))):
        return None
    return str(value)


def _fragments(column: Column, style: int, styles: CellStyles, strings: SharedStrings) -> list[str]:
    """Write each distinct value of a column as the part of a cell that follows its place."""
    fragments = []
    for value in column.distinct:
        if isinstance(value, str):
            shown = style if len(value) <= column.width else styles.long_text
            shown = styles.many_lines if "\n" in value else shown
            fragments.append(f' s="{shown}" t="s"><v>{strings.number(value)}</v></c>')
        elif isinstance(value, bool):
            fragments.append(f' s="{style}" t="b"><v>{value:d}</v></c>')
        else:
            fragments.append(f' s="{style}"><v>{value!r}</v></c>')
    return fragments


def _cells(column: Column, letter: str, style: int, fragments: list[str], rows: slice) -> list[str]:
    """Write some cells of a column; an empty one has its format only."""
    first = rows.start + 2
    if column.numbers is None:
        of_code = [*fragments, f' s="{style}"/>']  # the last is that of code -1
        codes = column.codes[rows].tolist()
        return [f'<c r="{letter}{row}"{of_code[code]}' for row, code in enumerate(codes, first)]
    part = column.numbers[rows]
    if part.dtype.kind == "b":
        return [
            f'<c r="{letter}{row}" s="{style}" t="b"><v>{value:d}</v></c>'
            for row, value in enumerate(part.tolist(), first)
        ]
    # A single-precision number is written with its own digits, not those it gains as a double.
    short = part.dtype.kind == "f" and part.dtype.itemsize < np.dtype(np.float64).itemsize
    values = part.astype(np.str_).tolist() if short else part.tolist()
    if part.dtype.kind == "f" and np.isnan(part).any():
        missing = np.isnan(part).tolist()
        return [
            f'<c r="{letter}{row}" s="{style}"/>'
            if empty
            else f'<c r="{letter}{row}" s="{style}"><v>{value}</v></c>'
            for row, (value, empty) in enumerate(zip(values, missing, strict=True), first)
        ]
    return [
        f'<c r="{letter}{row}" s="{style}"><v>{value}</v></c>'
        for row, value in enumerate(values, first)
    ]


def _number_width(shown: str, symbol: str) -> float:
    """Give the characters that the widest number of a column takes with its unit."""
    return float(len(shown.rstrip("%")) + (len(symbol) + 1 if symbol else 0))


def _width(header: str, content: float) -> tuple[float, int]:
    """Choose a column's width, and the lines of its header at that width.

    A header breaks at its blanks; one word of it is never broken.
    """
    words = header.split() or [""]
    longest = max(len(word) for word in words)
    width = max(content, _NARROWEST)
    # Two lines are read at a glance, three no longer.
    in_two_lines = max(longest, math.ceil(len(header) / 2) if len(words) > 1 else longest)
    width = min(max(width, in_two_lines * 1.1 + _FILTER_BUTTON), _WIDEST)
    lines, used = 1, 0
    room = (width - _FILTER_BUTTON) / 1.1
    for word in words:
        if used and used + 1 + len(word) > room:
            lines, used = lines + 1, len(word)
        else:
            used += len(word) + (1 if used else 0)
    return round(width, 1), lines
