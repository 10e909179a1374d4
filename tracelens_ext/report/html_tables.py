"""The tables of the HTML report: what is embedded in the page, and the rows that stand in it.

A table goes into the page twice: its first rows as HTML, for readers without scripts and for the
first glance, and all of them as JSON, from which the page's script sorts, searches and draws more
rows. Texts are kept once for the whole page; a cell holds the number of its text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import CELL_CHARACTERS, cell_text, cell_value, cleaned
from tracelens_ext.tables.units import Quantity, Shown, header_text, is_numeric

if TYPE_CHECKING:
    from collections.abc import Mapping


FIRST_ROWS = 10  # rows of a table that are seen at first
MOST_ROWS = 50_000  # rows of a table that are embedded
MOST_CHARACTERS = 8_000_000  # of the distinct texts of a table
LONG_TEXT = 40  # characters; a longer text is elided on the screen

_EXACT_IN_SCRIPT = 2**53  # whole numbers up to here are exact in JavaScript
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_]+")


@dataclass
class TextPool:
    """The texts of a page, each kept once."""

    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of a text, perhaps a new one."""
        return self._numbers.setdefault(text, len(self._numbers))

    def texts(self) -> list[str]:
        """Give the texts in the order of their numbers."""
        return list(self._numbers)


class Cell(NamedTuple):
    """A cell as HTML shows it."""

    text: str  #: what it says
    bar: float | None = None  #: the length of the bar behind a percentage, 0 to 100; or None


@dataclass(frozen=True)
class Column:
    """A column, ready to be embedded."""

    header: str  #: its name
    #: `text`: the values are numbers of texts in the pool, -1 for an empty cell; `number`: they are
    #: numbers, None for an empty cell, and texts for what JavaScript cannot hold (infinities, whole
    #: numbers beyond 2**53)
    kind: Literal["text", "number"]
    values: list[int] | list[int | float | str | None]  #: a value a row
    shown: list[Cell]  #: what the first rows show
    #: how the script shows a number: `plain`, `percent` or `identifier`
    style: Literal["plain", "percent", "identifier"] = "plain"
    decimals: int = 0  #: digits after the point of a plain number
    signed: bool = False  #: numbers are shown with their sign
    long: bool = False  #: holds texts that are elided on the screen

    def for_script(self) -> dict[str, object]:
        """Give what the page's script needs of it."""
        names = ("header", "kind", "values", "style", "decimals", "signed")
        return {name: getattr(self, name) for name in names}


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
    def first_rows(self) -> list[tuple[Cell, ...]]:
        """The rows that stand in the page as HTML."""
        return list(zip(*(column.shown for column in self.columns), strict=True))

    @property
    def searchable(self) -> bool:
        """Whether there is a text to search in, and more than a glance takes in."""
        return self.total > FIRST_ROWS and any(column.kind == "text" for column in self.columns)

    @property
    def long_texts(self) -> bool:
        """Whether texts are elided on the screen."""
        return any(column.long for column in self.columns)

    def for_script(self) -> dict[str, object]:
        """Give what the page's script needs of it."""
        return {
            "key": self.key,
            "rows": self.embedded,
            "total": self.total,
            "columns": [column.for_script() for column in self.columns],
        }


def page_tables(
    sheets: Mapping[str, pd.DataFrame],
    descriptions: Mapping[str, str],
    pool: TextPool,
    most_rows: int = MOST_ROWS,
) -> tuple[list[Table], list[str]]:
    """Prepare tables for a page; also say what of them is cut."""
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
            column, cut = _column(frame.iloc[:rows, place], pool)
            columns.append(column)
            if cut:
                notes.append(
                    f"{name}: texts of more than {CELL_CHARACTERS:,} characters are cut, which "
                    f"“[cut here” marks: {cut:,} in the column “{column.header}”; the CSV files "
                    "have all."
                )
        shown_name = cleaned(name)
        key = f"table-{number}-{_NOT_IN_ID.sub('-', name)}"
        caption = cleaned(descriptions.get(name, "")) or f"Table {shown_name}"
        tables.append(Table(shown_name, key, caption, columns, rows, total))
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


def _column(series: pd.Series, pool: TextPool) -> tuple[Column, int]:
    """Look at a column once; also say how many of its texts were cut."""
    header = cell_text(header_text(series.name))[0]
    if is_numeric(series):
        return _number_column(series, header), 0
    texts = _texts(series)
    coded: dict[str, int] = {}
    cut: set[str] = set()
    for text in dict.fromkeys(texts):
        shown, was_cut = cell_text(text)
        coded[text] = pool.number(shown) if shown else -1
        if was_cut:
            cut.add(text)
    values = [coded[text] for text in texts]
    first = [Cell(cell_text(text)[0]) for text in texts[:FIRST_ROWS]]
    long = any(len(text) > LONG_TEXT for text in coded)
    return Column(header, "text", values, first, long=long), sum(text in cut for text in texts)


def _texts(series: pd.Series) -> list[str]:
    """Give the values of a column that is not of numbers as texts, empty ones where none is."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.fillna("").tolist()
    plain = (cell_value(value) for value in series.tolist())
    return ["" if value is None else str(value) for value in plain]


def _number_column(series: pd.Series, header: str) -> Column:
    values = _numbers(series)
    shown = Shown.of(header, [value for value in values if isinstance(value, int | float)])
    unit = shown.unit
    percent, identifier = (
        unit.quantity is each for each in (Quantity.PERCENT, Quantity.IDENTIFIER)
    )
    first = []
    for value in values[:FIRST_ROWS]:  # as the page's script shows them
        if value is None or isinstance(value, str):
            first.append(Cell(value or ""))
            continue
        bar = min(max(float(value), 0.0), 100.0) if percent and not unit.signed else None
        first.append(Cell(shown.text(value), bar))
    return Column(
        header,
        "number",
        values,
        first,
        style="percent" if percent else "identifier" if identifier else "plain",
        decimals=shown.decimals,
        signed=unit.signed,
    )


def _numbers(series: pd.Series) -> list[int | float | str | None]:
    """Give numbers as JSON and JavaScript can hold them."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize < 8:
        # A single-precision number keeps its own digits, not those it gains as a double.
        series = series.astype(str).astype(np.float64)
    values = series.astype(object).where(series.notna(), None).tolist()
    return [_as_json(value) for value in values]


def _as_json(value: int | float | None) -> int | float | str | None:
    if value is None:
        return None
    if isinstance(value, int):
        return value if -_EXACT_IN_SCRIPT <= value <= _EXACT_IN_SCRIPT else str(value)
    number = float(value) + 0.0  # no zero below zero
    return number if math.isfinite(number) else str(number)
