"""Convert values to what an Excel cell can have, and names to valid names of sheets.

Characters that XML forbids (most control characters, U+FFFE, U+FFFF) and lone surrogates become
U+FFFD. A text that is too long for a cell is cut, with a mark that tells its length. A number that
Excel cannot store with all of its digits becomes a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.units import Shown, fits_a_spreadsheet
from tracelens_ext.text import unique

CellValue = bool | int | float | str | None  # None is an empty cell

#: The most characters of a cell, and of the name of a sheet.
CELL_CHARACTERS = 32_767
SHEET_NAME_CHARACTERS = 31
EXCEL_LARGEST = 1e308  # larger numbers become texts; Excel's limit is slightly lower

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOT_IN_SHEET_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f\ufffd]")
_RESERVED_SHEET_NAMES = frozenset({"history"})


def cleaned(text: str) -> str:
    """Replace each character that a workbook cannot have with U+FFFD."""
    if text.isprintable():
        return text
    return _NOT_IN_XML.sub("\ufffd", text)


def excel_length(text: str) -> int:
    """Return the length of a text as Excel counts it: a character beyond U+FFFF counts twice."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


class CellText(NamedTuple):
    """The text of a cell."""

    text: str
    was_cut: bool


def cell_text(text: str) -> CellText:
    """Return a cleaned text, which is cut and marked if it is too long for a cell."""
    cleaned_text = cleaned(text)
    is_surely_short = len(cleaned_text) <= CELL_CHARACTERS // 2
    if is_surely_short or excel_length(cleaned_text) <= CELL_CHARACTERS:
        return CellText(cleaned_text, was_cut=False)
    mark = f" … [cut here, {len(cleaned_text):,} characters in total]"
    beginning = _cut(cleaned_text, CELL_CHARACTERS - len(mark))
    return CellText(beginning + mark, was_cut=True)


def own_digits(series: pd.Series) -> pd.Series:
    """Return a column of short floats as doubles with the same digits: 0.1 stays 0.1."""
    if series.dtype in (np.float16, np.float32):
        return series.astype(str).astype(np.float64)
    return series


def cell_value(value: object) -> CellValue:
    """Return the value of a cell for any value; None for an empty cell.

    A number that Excel cannot store exactly becomes a text.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        integer = int(value)
        if fits_a_spreadsheet(integer):
            return integer
        return str(integer)
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return None
        if abs(number) < EXCEL_LARGEST:
            return number
        return str(number)
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(cast("Any", value))):
        return None
    return str(value)


class FactText(NamedTuple):
    """The value of a fact as text."""

    text: str
    shown: Shown | None  #: the format of the value; None if it is not a number


def fact_text(label: str, value: object) -> FactText:
    """Return the value of a fact as text, a number in the format that its label tells."""
    plain = cell_value(value)
    if plain is None:
        return FactText("", None)
    if isinstance(plain, bool | str):
        return FactText(str(plain), None)
    notation = Shown.of(label, [plain])
    text = notation.text(plain)
    return FactText(text, notation)


def unique_sheet_names(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return different names that Excel accepts for sheets; upper and lower case do not count."""
    names = [_numbered_sheet_name(_allowed_sheet_name(name), 0) for name in wanted]
    reserved = {name.casefold() for name in taken} | _RESERVED_SHEET_NAMES
    return unique(names, _numbered_sheet_name, taken=reserved)


def _allowed_sheet_name(name: str) -> str:
    """Return a name without the characters that Excel forbids in names of sheets."""
    # References put names in apostrophes, so a name cannot begin or end with one.
    allowed = _NOT_IN_SHEET_NAME.sub("_", cleaned(name)).strip().strip("'")
    return allowed.strip() or "sheet"


def _numbered_sheet_name(name: str, number: int) -> str:
    """Return a name that is cut to the length that Excel allows, with a number unless it is 0."""
    suffix = ""
    if number:
        suffix = f" ({number})"
    room = SHEET_NAME_CHARACTERS - len(suffix)
    beginning = _cut(name, room).rstrip(" '")
    return beginning + suffix


def _cut(text: str, length: int) -> str:
    """Return the beginning of a text, with at most `length` characters as Excel counts them."""
    if excel_length(text) <= length:
        return text
    # A character beyond U+FFFF is two units of UTF-16. If the cut is between them, `ignore` drops
    # the first one.
    return text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
