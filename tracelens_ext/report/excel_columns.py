"""How a column of a table looks on an Excel sheet: its values, width, number format and bars."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import EXCEL_LARGEST, cell_text, cell_value
from tracelens_ext.tables.units import Quantity, fits_a_spreadsheet, header_text, unit_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.report.excel_text import CellValue

_NARROWEST, _WIDEST = 8.0, 52.0  # of a column, in characters
_FILTER_BUTTON = 3.0  # characters that the button covers in a header
_BOLD = 1.1  # the width of a character of a header
_BAR_WIDTH = 13.0  # of a column with data bars: narrower ones hide the number
_SIZE_WIDTH = 11.0  # of a number of bytes, which its format shortens

# Bars and colours as XlsxWriter takes them. The bars are those of Excel 2007: openpyxl, which
# reads finished reports, warns of those of 2010.
_BARS = {
    "type": "data_bar", "bar_color": "#9CC2E5", "min_length": 0, "max_length": 100,
    "min_type": "num", "min_value": 0, "max_type": "max",
}  # fmt: skip
_COLOURS = {
    "type": "3_color_scale", "min_type": "min", "mid_type": "num", "mid_value": 0,
    "max_type": "max", "min_color": "#63BE7B", "mid_color": "#FFFFFF", "max_color": "#F8696B",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table, ready to be written.

    Attributes:
        header: its name, cleaned.
        width: in characters.
        header_lines: lines that the header takes at this width.
        number_format: the Excel format of its numbers.
        bars: what shows percentages: bars, or colours where some are below zero; None for other
            columns.
        is_text: holds texts only.
        cut: cells whose text is longer than a cell may be.
        values: a value a row: an array of numbers (NaN for an empty cell), or what cells hold.
    """

    header: str
    width: float
    header_lines: int
    number_format: str
    bars: dict[str, Any] | None
    is_text: bool
    cut: int
    values: npt.NDArray[np.generic] | list[CellValue]

    def cells(self, start: int, stop: int) -> list[CellValue]:
        """What some rows hold."""
        part = self.values[start:stop]
        return part if isinstance(part, list) else list(part.tolist())


def column_of(series: pd.Series) -> Column:
    """Look at a column once."""
    header = cell_text(header_text(series.name))[0]
    values: npt.NDArray[np.generic] | list[CellValue] | None = _plain_numbers(series)
    content, cut = 0.0, 0
    if isinstance(values, np.ndarray):
        numbers = values.astype(np.float64)
        numbers = numbers[~np.isnan(numbers)]
    else:
        values, cut = _values(series)
        content = float(max((len(text) for text in values if isinstance(text, str)), default=0))
        found = [number for number in values if isinstance(number, int | float)]
        numbers = np.asarray(found, dtype=np.float64)
    unit = unit_of(header)
    fractions = bool((numbers != np.floor(numbers)).any())
    lowest = float(numbers.min()) if len(numbers) else 0.0
    largest = max(-lowest, float(numbers.max())) if len(numbers) else 0.0
    if len(numbers):
        shown = unit.text(-largest, fractions=fractions).rstrip("%")
        content = max(content, len(shown) + (len(unit.symbol) + 1 if unit.symbol else 0))
        if unit.quantity is Quantity.BYTES:
            content = min(content, _SIZE_WIDTH)
    percent = unit.quantity is Quantity.PERCENT and len(numbers) > 0
    width, header_lines = _width(header, max(content + 1.5, _BAR_WIDTH if percent else 0.0))
    return Column(
        header=header,
        width=width,
        header_lines=header_lines,
        number_format=unit.excel_format(fractions=fractions, largest=largest),
        bars=(_COLOURS if lowest < 0 else _BARS) if percent else None,
        is_text=isinstance(values, list) and not len(numbers),
        cut=cut,
        values=values,
    )


def _plain_numbers(series: pd.Series) -> npt.NDArray[np.generic] | None:
    """Give the values of a column of numbers that need no look at each of them."""
    dtype = series.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return None
    values = series.to_numpy()
    if dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        return values if fits_a_spreadsheet(low) and fits_a_spreadsheet(high) else None
    if dtype.kind == "f":
        if dtype.itemsize < np.dtype(np.float64).itemsize:
            # With the digits of its own, not those that it gains as a double.
            values = values.astype(np.str_)
        values = values.astype(np.float64)
        return None if (np.abs(values) >= EXCEL_LARGEST).any() else values
    return values


def _values(series: pd.Series) -> tuple[list[CellValue], int]:
    """Bring the values of a column to what cells can hold; also say how many texts are cut."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        of_code = [*map(cell_value, series.cat.categories), None]  # the last is that of code -1
        plain = [of_code[code] for code in series.cat.codes.tolist()]
    else:
        plain = [cell_value(value) for value in series.astype(object).tolist()]
    texts = [value for value in plain if isinstance(value, str)]
    shown = {text: cell_text(text) for text in dict.fromkeys(texts)}
    cells = [shown[value][0] if isinstance(value, str) else value for value in plain]
    return cells, sum(shown[text][1] for text in texts)


def _width(header: str, content: float) -> tuple[float, int]:
    """Choose a column's width, and the lines of its header at that width.

    A header breaks at its blanks; one word of it is never broken.
    """
    words = header.split() or [""]
    longest = max(len(word) for word in words)
    # Two lines are read at a glance, three no longer.
    in_two_lines = max(longest, math.ceil(len(header) / 2) if len(words) > 1 else longest)
    width = max(content, _NARROWEST, in_two_lines * _BOLD + _FILTER_BUTTON)
    width = round(min(width, _WIDEST), 1)
    room = int((width - _FILTER_BUTTON) / _BOLD)
    return width, max(len(textwrap.wrap(header, room, break_long_words=False)), 1)
