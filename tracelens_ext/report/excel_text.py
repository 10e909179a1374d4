"""What an Excel cell can hold, and the names of sheets: what has to be replaced or cut.

A character that XML forbids (most controls, U+FFFE, U+FFFF) and a lone surrogate become U+FFFD; of
a text longer than a cell may be the beginning stays, and a mark that says how long it was; a number
that Excel does not hold digit by digit becomes a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, cast

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
    return text if text.isprintable() else _NOT_IN_XML.sub("\ufffd", text)


def excel_length(text: str) -> int:
    """Count characters as Excel does: one beyond U+FFFF counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def cell_text(text: str) -> tuple[str, bool]:
    """A text cleaned, cut with a mark when it is longer than a cell may be; whether it was cut."""
    shown = cleaned(text)
    if len(shown) <= CELL_CHARACTERS // 2 or excel_length(shown) <= CELL_CHARACTERS:
        return shown, False
    mark = f" … [cut here, {len(shown):,} characters in all]"
    return _cut(shown, CELL_CHARACTERS - len(mark)) + mark, True


def own_digits(series: pd.Series) -> pd.Series:
    """A column whose numbers of less precision keep their digits, not gain those of a double."""
    if series.dtype in (np.float16, np.float32):
        return series.astype(str).astype(np.float64)
    return series


def cell_value(value: object) -> CellValue:
    """What a cell holds of a value, None for nothing; what Excel cannot hold exactly is a text."""
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
        return number if abs(number) < EXCEL_LARGEST else str(number)
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(cast("Any", value))):
        return None
    return str(value)


def fact_text(label: str, value: object) -> tuple[str, Shown | None]:
    """What a fact says, its number as its label tells; and how that is shown."""
    plain = cell_value(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        shown = Shown.of(label, [plain])
        return shown.text(plain), shown
    return "" if plain is None else str(plain), None


def unique_sheet_names(wanted: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names that Excel accepts for sheets, no two equal when the case of letters is ignored."""
    # An apostrophe at either end would end the quotes around the name in a reference.
    allowed = (_NOT_IN_SHEET_NAME.sub("_", cleaned(name)).strip().strip("'") for name in wanted)
    whole = (name.strip() or "sheet" for name in allowed)

    def numbered(name: str, number: int) -> str:
        suffix = f" ({number})" if number else ""
        return _cut(name, SHEET_NAME_CHARACTERS - len(suffix)).rstrip(" '") + suffix

    reserved = {name.casefold() for name in taken} | _RESERVED_SHEET_NAMES
    return unique([numbered(name, 0) for name in whole], numbered, taken=reserved)


def _cut(text: str, length: int) -> str:
    """Keep the beginning of a text, `length` characters as Excel counts them."""
    if excel_length(text) <= length:
        return text
    # Half a character beyond U+FFFF is dropped with its other half.
    return text.encode("utf-16-le")[: 2 * length].decode("utf-16-le", "ignore")
