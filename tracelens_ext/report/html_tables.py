"""The tables of an HTML page.

A table is in the page twice: its first rows as HTML, for readers without scripts and for the first
glance, and all of its rows as JSON, from which the script of the page sorts, searches and shows
more rows. Each text is in the page only once, in a pool of texts; cells have the number of their
text in the pool.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report.excel_text import CELL_CHARACTERS, cell_text, cleaned
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.units import Quantity, Shown, header_text, is_numeric

FIRST_ROWS = 10  # number of rows of a table that are visible at first
MOST_ROWS = 50_000  # most rows of a table that are on the page
MOST_CHARACTERS = 8_000_000  # most characters of the distinct texts of a table
LONG_TEXT = 40  # a text with more characters is shortened on the screen

_EXACT_IN_SCRIPT = 2**53  # JavaScript has integers up to this one exactly
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_]+")
#: The style of numbers in the script of the page, by quantity; others are `plain`.
_STYLES = {Quantity.PERCENT: "percent", Quantity.IDENTIFIER: "identifier"}


@dataclass(frozen=True)
class HtmlColumn:
    """A column in the form in which the page has it."""

    header: str  #: the name of the column
    #: the value of each row. A column of texts has the index of each text in the pool, and -1 for
    #: an empty cell. A column of numbers has None for an empty cell, and texts for numbers that
    #: JavaScript cannot have (infinities, and integers beyond 2**53)
    values: list[int] | list[int | float | str | None]
    shown: Shown | None = None  #: the format of numbers; None for a column of texts
    long: bool = False  #: True if the column has texts that are shortened on the screen

    @property
    def kind(self) -> str:
        """The kind of column for the script: `text` or `number`."""
        if self.shown is None:
            return "text"
        return "number"

    def number(self, row: int) -> str:
        """Return the text of a cell in a column of numbers."""
        value = self.values[row]
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if self.shown is None:
            return str(value or "")
        return self.shown.text(value)

    def bar(self, row: int) -> float | None:
        """Return the length of the bar behind a percentage, 0 to 100; None for other numbers."""
        value = self.values[row]
        if self.shown is None or not isinstance(value, int | float):
            return None
        unit = self.shown.unit
        if unit.quantity is not Quantity.PERCENT or unit.signed:
            return None
        return min(max(value, 0.0), 100.0)

    def for_script(self) -> dict[str, object]:
        """Return the members that the script of the page needs."""
        column: dict[str, object] = {
            "header": self.header,
            "kind": self.kind,
            "values": self.values,
        }
        if self.shown is not None:
            column["style"] = _STYLES.get(self.shown.unit.quantity, "plain")
            column["decimals"] = self.shown.decimals
            column["signed"] = self.shown.unit.signed
        return column


@dataclass(frozen=True)
class HtmlTable:
    """A table of the page."""

    name: str  #: the name of the table
    key: str  #: the id of the table in the page
    caption: str  #: what the table shows, as a phrase
    columns: list[HtmlColumn]  #: the columns
    embedded: int  #: number of rows on the page
    total: int  #: number of rows of the whole table
    command: RowCommand | None = None  #: the command that each row offers to copy

    @property
    def searchable(self) -> bool:
        """True if the table has texts to search, and more rows than are visible at first."""
        if self.total <= FIRST_ROWS:
            return False
        return any(column.kind == "text" for column in self.columns)

    def for_script(self) -> dict[str, object]:
        """Return the members that the script of the page needs."""
        table: dict[str, object] = {
            "key": self.key,
            "rows": self.embedded,
            "total": self.total,
            "columns": [column.for_script() for column in self.columns],
        }
        headers = [column.header for column in self.columns]
        if self.command is not None and self.command.needed_column in headers:
            table["command"] = {
                "text": self.command.text,
                "label": self.command.label,
                "column": headers.index(self.command.needed_column),
            }
        return table


@dataclass
class PageTables:
    """The tables of a page."""

    #: the tables by name, in order
    tables: dict[str, HtmlTable] = field(default_factory=dict)
    #: text → its index in the pool of the texts of all tables
    pool: dict[str, int] = field(default_factory=dict)
    #: sentences about what was cut
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        frame: pd.DataFrame,
        description: str,
        most_rows: int,
        command: RowCommand | None = None,
    ) -> None:
        """Add a table, and notes about what is cut."""
        rows, texts = _texts_that_fit(frame, most_rows)
        total = len(frame)
        if rows < total:
            self.notes.append(
                f"{name}: this page contains only the first {rows:,} of {total:,} "
                "rows, for sorting and searching too; the CSV files have all."
            )
        columns = []
        for place, heading in enumerate(frame.columns):
            header, _ = cell_text(header_text(heading))
            if place not in texts:
                columns.append(_number_column(frame.iloc[:rows, place], header))
                continue
            column, cut = _text_column(
                texts=texts[place][:rows], header=header, pool=self.pool
            )
            columns.append(column)
            if cut:
                self.notes.append(
                    f"{name}: texts of more than {CELL_CHARACTERS:,} characters are "
                    f"cut and marked “[cut here”: {cut:,} in the column “{header}”; "
                    "the CSV files have the full text."
                )
        number = len(self.tables)
        self.tables[name] = HtmlTable(
            name=cleaned(name),
            key=f"table-{number}-{_NOT_IN_ID.sub('-', name)}",
            caption=cleaned(description or f"Table {name}"),
            columns=columns,
            embedded=rows if columns else 0,
            total=total,
            command=command,
        )


def page_tables(
    sheets: Mapping[str, pd.DataFrame],
    descriptions: Mapping[str, str],
    most_rows: int = MOST_ROWS,
    failures: PartFailures | None = None,
    pool: dict[str, int] | None = None,
    commands: Mapping[str, RowCommand] | None = None,
) -> PageTables:
    """Return tables in the form in which a page has them.

    Args:
        sheets: the tables by name.
        descriptions: name of a table → what it shows.
        most_rows: the most rows of each table on the page.
        failures: records the tables that cannot be shown.
        pool: the texts that the page has already, with their indices; new texts are added.
        commands: name of a table → the command that each row offers to copy.
    """
    if failures is None:
        failures = PartFailures()
    contents = PageTables()
    if pool is not None:
        contents.pool = pool
    for name, frame in sheets.items():
        with failures.isolate(f"The table {name} of the page"):
            description = descriptions.get(name, "")
            command = (commands or {}).get(name)
            contents.add(name, frame, description, most_rows, command)
    return contents


class _FittingTexts(NamedTuple):
    """The part of a table that is on the page."""

    rows: int  #: number of rows
    texts: dict[int, list[str]]  #: position of a column of texts → its texts


def _texts_that_fit(frame: pd.DataFrame, most_rows: int) -> _FittingTexts:
    """Return the part of a table that is on the page: limited in rows and in characters."""
    rows = min(len(frame), most_rows)
    texts = {}
    for position in range(frame.shape[1]):
        series = frame.iloc[:rows, position]
        if not is_numeric(series):
            texts[position] = _texts(series)
    while rows > FIRST_ROWS and _distinct_characters(texts, rows) > MOST_CHARACTERS:
        rows = max(rows // 2, FIRST_ROWS)
    return _FittingTexts(rows, texts)


def _distinct_characters(texts: Mapping[int, list[str]], rows: int) -> int:
    """Return the total length of the distinct texts of each column in the first rows."""
    characters = 0
    for column in texts.values():
        characters += sum(map(len, set(column[:rows])))
    return characters


class _HtmlTextColumn(NamedTuple):
    """A column of texts."""

    column: HtmlColumn
    cut: int  #: number of texts that were cut


def _text_column(
    texts: list[str], header: str, pool: dict[str, int]
) -> _HtmlTextColumn:
    """Return a column of texts as their indices in the pool; new texts are added to the pool."""
    index_of_text = {}
    cut = 0
    is_long = False
    for text, count in Counter(texts).items():
        cell, was_cut = cell_text(text)
        index = -1
        if cell:
            index = pool.setdefault(cell, len(pool))
        index_of_text[text] = index
        if was_cut:
            cut += count
        if len(text) > LONG_TEXT:
            is_long = True
    indices = [index_of_text[text] for text in texts]
    return _HtmlTextColumn(HtmlColumn(header, indices, long=is_long), cut)


def _texts(series: pd.Series) -> list[str]:
    """Return the values of a column as texts; missing values are empty."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.fillna("").tolist()
    texts = []
    for value in series.tolist():
        text = ""
        plain = excel_text.cell_value(value)
        if plain is not None:
            text = str(plain)
        texts.append(text)
    return texts


def _number_column(series: pd.Series, header: str) -> HtmlColumn:
    """Return a column of numbers in the form that JSON and JavaScript can have."""
    series = excel_text.own_digits(series)
    plain = series.astype(object).where(series.notna(), None)
    values = [_as_json(value) for value in plain.tolist()]
    numbers = [value for value in values if isinstance(value, int | float)]
    return HtmlColumn(header=header, values=values, shown=Shown.of(header, numbers))


def _as_json(value: float | None) -> int | float | str | None:
    """Return a number, or its text if JavaScript cannot have it exactly; None stays None."""
    if value is None:
        return None
    if isinstance(value, int):
        if abs(value) <= _EXACT_IN_SCRIPT:
            return value
        return str(value)
    number = float(value) + 0.0  # turns -0.0 into 0.0
    if math.isfinite(number):
        return number
    return str(number)
