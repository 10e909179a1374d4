"""What an Excel cell can hold, and the names of sheets: what has to be replaced or cut.

A character that XML forbids (most controls, U+FFFE, U+FFFF) and a lone surrogate become U+FFFD; of
a text longer than a cell may be the beginning stays, and a mark that says how long it was; a number
that Excel does not hold digit by digit becomes a text.
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

CELL_CHARACTERS = 32_767
SHEET_NAME_CHARACTERS = 31
EXCEL_LARGEST = 1e308  # of a number; Excel's own limit is a little below

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOT_IN_SHEET_NAME = re.compile(r"[\[\]:*?/\\\x00-\x1f\ufffd]")
_RESERVED_SHEET_NAMES = frozenset({"history"})


def cleaned(text: str) -> str:
    """Replace every character that a workbook cannot hold with U+FFFD, one for one."""
    if text.isprintable():
        return text
    return _NOT_IN_XML.sub("\ufffd", text)


def excel_length(text: str) -> int:
    """Count characters as Excel does: one beyond U+FFFF counts twice."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


class CellText(NamedTuple):
    """A text as a cell has it."""

    text: str
    was_cut: bool


def cell_text(text: str) -> CellText:
    """Return a text cleaned, and cut with a mark when it is longer than a cell may be."""
    cleaned_text = cleaned(text)
    is_surely_short = len(cleaned_text) <= CELL_CHARACTERS // 2
    if is_surely_short or excel_length(cleaned_text) <= CELL_CHARACTERS:
        return CellText(cleaned_text, was_cut=False)
    mark = f" … [cut here, {len(cleaned_text):,} characters in total]"
    beginning = _cut(cleaned_text, CELL_CHARACTERS - len(mark))
    return CellText(beginning + mark, was_cut=True)


def own_digits(series: pd.Series) -> pd.Series:
    """A column whose numbers of less precision keep their digits, not gain those of a double."""
    if series.dtype in (np.float16, np.float32):
        return series.astype(str).astype(np.float64)
    return series


def cell_value(value: object) -> CellValue:
    """Return what a cell holds of a value, None for nothing.

    What Excel cannot hold exactly is a text.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        whole = int(value)
        if fits_a_spreadsheet(whole):
            return whole
        return str(whole)
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
    """The value of a fact as a text, and how it is shown if it is a number."""

    text: str
    shown: Shown | None


def fact_text(label: str, value: object) -> FactText:
    """Return what a fact says, a number as its label tells."""
    plain = cell_value(value)
    if plain is None:
        return FactText("", None)
    if isinstance(plain, bool | str):
        return FactText(str(plain), None)
    notation = Shown.of(label, [plain])
    text = notation.text(plain)
    return FactText(text, notation)


def unique_sheet_names(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return names that Excel accepts for sheets, no two equal but for the case of letters."""
    names = [_numbered_sheet_name(_allowed_sheet_name(name), 0) for name in wanted]
    reserved = {name.casefold() for name in taken} | _RESERVED_SHEET_NAMES
    return unique(names, _numbered_sheet_name, taken=reserved)


def _allowed_sheet_name(name: str) -> str:
    """Return a name without what Excel forbids in the names of sheets."""
    # An apostrophe at either end would end the quotes around the name in a reference.
    allowed = _NOT_IN_SHEET_NAME.sub("_", cleaned(name)).strip().strip("'")
    return allowed.strip() or "sheet"


def _numbered_sheet_name(name: str, number: int) -> str:
    """Return a name cut to the length that Excel allows, with a number unless that is 0."""
    suffix = ""
    if number:
        suffix = f" ({number})"
    room = SHEET_NAME_CHARACTERS - len(suffix)
    beginning = _cut(name, room).rstrip(" '")
    return beginning + suffix


def _cut(text: str, length: int) -> str:
    """Keep the beginning of a text, `length` characters as Excel counts them."""
    if excel_length(text) <= length:
        return text
    # Half a character beyond U+FFFF is dropped with its other half.
    return text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
