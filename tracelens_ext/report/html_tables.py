"""The tables of the HTML report: what is embedded in the page, and the rows that stand in it.

A table goes into the page twice: its first rows as HTML, for readers without scripts and for the
first glance, and all of them as JSON, from which the page's script sorts, searches and draws more
rows. Texts are kept once for the whole page, in a pool: text → its number, which cells hold.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import CELL_CHARACTERS, cell_text, cell_value, cleaned
from tracelens_ext.tables.units import Quantity, Shown, header_text, is_numeric

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST_ROWS = 10  # rows of a table that are seen at first
MOST_ROWS = 50_000  # rows of a table that are embedded
MOST_CHARACTERS = 8_000_000  # of the distinct texts of a table
LONG_TEXT = 40  # characters; a longer text is elided on the screen

_EXACT_IN_SCRIPT = 2**53  # whole numbers up to here are exact in JavaScript
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class Column:
    """A column, ready to be embedded."""

    header: str  #: its name
    #: `text`: the values are numbers of texts in the pool, -1 for an empty cell; `number`: they are
    #: numbers, None for an empty cell, and texts for what JavaScript cannot hold (infinities, whole
    #: numbers beyond 2**53)
    kind: Literal["text", "number"]
    values: list[int] | list[int | float | str | None]  #: a value a row
    show: Callable[[float], str] = str  #: what a number says, as the page's script shows it
    #: how the script shows a number: `plain`, `percent` or `identifier`
    style: Literal["plain", "percent", "identifier"] = "plain"
    decimals: int = 0  #: digits after the point of a plain number
    signed: bool = False  #: numbers are shown with their sign
    long: bool = False  #: holds texts that are elided on the screen

    def number(self, row: int) -> str:
        """A cell of a column of numbers."""
        value = self.values[row]
        return (value or "") if isinstance(value, str | None) else self.show(value)

    def bar(self, row: int) -> float | None:
        """The length of the bar behind a percentage, 0 to 100; None for none."""
        value = self.values[row]
        barred = self.style == "percent" and not self.signed and not isinstance(value, str | None)
        return min(max(float(value), 0.0), 100.0) if barred else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    name: str  #: the name of the sheet
    key: str  #: its id in the page
    caption: str  #: what it shows, a clause
    columns: list[Column]  #: the columns
    embedded: int  #: rows in the page
    total: int  #: rows in all

    @property
    def searchable(self) -> bool:
        """Whether there is a text to search in, and more than a glance takes in."""
        return self.total > FIRST_ROWS and any(column.kind == "text" for column in self.columns)

    def for_script(self) -> dict[str, object]:
        """Give what the page's script needs of it."""
        names = ("header", "kind", "values", "style", "decimals", "signed")
        columns = [{name: getattr(column, name) for name in names} for column in self.columns]
        return {"key": self.key, "rows": self.embedded, "total": self.total, "columns": columns}


def page_tables(
    sheets: Mapping[str, pd.DataFrame],
    descriptions: Mapping[str, str],
    pool: dict[str, int],
    most_rows: int = MOST_ROWS,
) -> tuple[list[Table], list[str]]:
    """Prepare tables for a page, filling its pool of texts; also say what of them is cut."""
    tables: list[Table] = []
    notes: list[str] = []
    for number, (name, frame) in enumerate(sheets.items()):
        rows, total = _rows_that_fit(frame, most_rows), len(frame)
        if rows < total:
            notes.append(
                f"{name}: the first {rows:,} of {total:,} rows are in this page, sorting and "
                "searching included; the CSV files have all."
            )
        columns = []
        for place in range(frame.shape[1]):
            series = frame.iloc[:rows, place]
            header = cell_text(header_text(series.name))[0]
            if is_numeric(series):
                columns.append(_number_column(series, header))
                continue
            column, cut = _text_column(series, header, pool)
            columns.append(column)
            if cut:
                notes.append(
                    f"{name}: texts of more than {CELL_CHARACTERS:,} characters are cut, which "
                    f"“[cut here” marks: {cut:,} in the column “{header}”; the CSV files have all."
                )
        shown_name = cleaned(name)
        key = f"table-{number}-{_NOT_IN_ID.sub('-', name)}"
        caption = cleaned(descriptions.get(name, "")) or f"Table {shown_name}"
        embedded = rows if columns else 0
        tables.append(Table(shown_name, key, caption, columns, embedded, total))
    return tables, notes


def _rows_that_fit(frame: pd.DataFrame, most_rows: int) -> int:
    """Choose how many rows to embed: not too many, and not too much text in them."""
    rows = min(len(frame), most_rows)
    places = [n for n in range(frame.shape[1]) if not is_numeric(frame.iloc[:, n])]
    while rows > FIRST_ROWS:
        distinct = [set(_texts(frame.iloc[:rows, place])) for place in places]
        if sum(len(text) for texts in distinct for text in texts) <= MOST_CHARACTERS:
            break
        rows = max(rows // 2, FIRST_ROWS)
    return rows


def _text_column(series: pd.Series, header: str, pool: dict[str, int]) -> tuple[Column, int]:
    """A column of texts; also how many of them were cut."""
    texts = _texts(series)
    counts, coded, cut = Counter(texts), {}, 0
    for text, count in counts.items():
        shown, was_cut = cell_text(text)
        coded[text] = pool.setdefault(shown, len(pool)) if shown else -1
        cut += count * was_cut
    long = any(len(text) > LONG_TEXT for text in counts)
    return Column(header, "text", [coded[text] for text in texts], long=long), cut


def _texts(series: pd.Series) -> list[str]:
    """Give the values of a column that is not of numbers as texts, empty ones where none is."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.fillna("").tolist()
    plain = (cell_value(value) for value in series.tolist())
    return ["" if value is None else str(value) for value in plain]


def _number_column(series: pd.Series, header: str) -> Column:
    """A column of numbers as JSON and JavaScript can hold them."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize < 8:
        # A single-precision number keeps its own digits, not those it gains as a double.
        series = series.astype(str).astype(np.float64)
    plain = series.astype(object).where(series.notna(), None).tolist()
    values = [None if value is None else _as_json(value) for value in plain]
    shown = Shown.of(header, [value for value in values if isinstance(value, int | float)])
    styles = {Quantity.PERCENT: "percent", Quantity.IDENTIFIER: "identifier"}
    style: Any = styles.get(shown.unit.quantity, "plain")
    signed, decimals = shown.unit.signed, shown.decimals
    return Column(header, "number", values, shown.text, style, decimals, signed)


def _as_json(value: float) -> int | float | str:
    if isinstance(value, int):
        return value if -_EXACT_IN_SCRIPT <= value <= _EXACT_IN_SCRIPT else str(value)
    number = float(value) + 0.0  # no zero below zero
    return number if math.isfinite(number) else str(number)
