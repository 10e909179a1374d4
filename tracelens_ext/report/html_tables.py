"""What the HTML report has besides charts: headline, findings, tables.

A table goes into the page twice: its first rows as HTML, for readers without scripts and for the
first glance, and all of them as JSON, from which the page's script sorts, searches and draws more
rows. Texts are kept once for the whole page, in a pool: text → its number, which cells hold.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import excel_text
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import colour_of, is_name
from tracelens_ext.report.excel_text import CELL_CHARACTERS, cell_text, cleaned
from tracelens_ext.report.report import Answer
from tracelens_ext.report.tables.charts import Chart, chart_table
from tracelens_ext.report.tables.units import Quantity, Shown, header_text, is_numeric

FIRST_ROWS = 10  # rows of a table that are seen at first
MOST_ROWS = 50_000  # rows of a table that are embedded
MOST_CHARACTERS = 8_000_000  # of the distinct texts of a table
LONG_TEXT = 40  # characters; a longer text is elided on the screen

_EXACT_IN_SCRIPT = 2**53  # whole numbers up to here are exact in JavaScript
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_]+")
#: How the page's script shows numbers; others are `plain`.
_STYLES = {Quantity.PERCENT: "percent", Quantity.IDENTIFIER: "identifier"}


@dataclass(frozen=True)
class HtmlColumn:
    """A column, ready to be embedded."""

    header: str  #: its name
    #: a value a row: of a column of texts their numbers in the pool, -1 for an empty cell; of one
    #: of numbers None for an empty cell, and texts for what JavaScript cannot hold (infinities,
    #: whole numbers beyond 2**53)
    values: list[int] | list[int | float | str | None]
    shown: Shown | None = None  #: how its numbers are shown; None of a column of texts
    long: bool = False  #: holds texts that are elided on the screen

    @property
    def kind(self) -> str:
        """`text` or `number`."""
        return "number" if self.shown else "text"

    def number(self, row: int) -> str:
        """A cell of a column of numbers."""
        value = self.values[row]
        if self.shown is None or isinstance(value, str | None):
            return str(value or "")
        return self.shown.text(value)

    def bar(self, row: int) -> float | None:
        """The length of the bar behind a percentage, 0 to 100; None for none."""
        value = self.values[row]
        unit = self.shown and self.shown.unit
        barred = unit and unit.quantity is Quantity.PERCENT and not unit.signed
        return min(max(value, 0.0), 100.0) if barred and isinstance(value, int | float) else None

    def for_script(self) -> dict[str, object]:
        """Give what the page's script needs of it."""
        told: dict[str, object] = {"header": self.header, "kind": self.kind, "values": self.values}
        if shown := self.shown:
            style = _STYLES.get(shown.unit.quantity, "plain")
            told |= {"style": style, "decimals": shown.decimals, "signed": shown.unit.signed}
        return told


@dataclass(frozen=True)
class HtmlTable:
    """A table of the page."""

    name: str  #: the name of the sheet
    key: str  #: its id in the page
    caption: str  #: what it shows, a clause
    columns: list[HtmlColumn]  #: the columns
    embedded: int  #: rows in the page
    total: int  #: rows in all

    @property
    def searchable(self) -> bool:
        """Whether there is a text to search in, and more than a glance takes in."""
        return self.total > FIRST_ROWS and any(column.kind == "text" for column in self.columns)

    def for_script(self) -> dict[str, object]:
        """Give what the page's script needs of it."""
        told = {"key": self.key, "rows": self.embedded, "total": self.total}
        return {**told, "columns": [column.for_script() for column in self.columns]}


@dataclass
class PageTables:
    """The tables of a page."""

    #: the tables by name, in order
    tables: dict[str, HtmlTable] = field(default_factory=dict)
    #: the texts of all tables, and their numbers
    pool: dict[str, int] = field(default_factory=dict)
    #: what was cut, a sentence each
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, frame: pd.DataFrame, description: str, most_rows: int) -> None:
        """Prepare a table, and note what of it is cut."""
        rows, texts = _texts_that_fit(frame, most_rows)
        total = len(frame)
        if rows < total:
            self.notes.append(
                f"{name}: the first {rows:,} of {total:,} rows are in this page, sorting and "
                "searching included; the CSV files have all."
            )
        columns = []
        for place, heading in enumerate(frame.columns):
            header, _ = cell_text(header_text(heading))
            if place not in texts:
                columns.append(_number_column(frame.iloc[:rows, place], header))
                continue
            column, cut = _text_column(texts[place][:rows], header, self.pool)
            columns.append(column)
            if cut:
                self.notes.append(
                    f"{name}: texts of more than {CELL_CHARACTERS:,} characters are cut, which "
                    f"“[cut here” marks: {cut:,} in the column “{header}”; the CSV files have all."
                )
        number = len(self.tables)
        self.tables[name] = HtmlTable(
            name=cleaned(name),
            key=f"table-{number}-{_NOT_IN_ID.sub('-', name)}",
            caption=cleaned(description or f"Table {name}"),
            columns=columns,
            embedded=rows if columns else 0,
            total=total,
        )


def page_tables(
    sheets: Mapping[str, pd.DataFrame],
    descriptions: Mapping[str, str],
    most_rows: int = MOST_ROWS,
    failures: PartFailures | None = None,
    pool: dict[str, int] | None = None,
) -> PageTables:
    """Prepare tables for a page.

    Args:
        sheets: the tables, by name.
        descriptions: what each shows.
        most_rows: rows of each that the page has.
        failures: takes the tables that cannot be shown.
        pool: the texts that the page has already, and their numbers; more are added.
    """
    if failures is None:
        failures = PartFailures()
    contents = PageTables()
    if pool is not None:
        contents.pool = pool
    for name, frame in sheets.items():
        with failures.isolate(f"The table {name} of the page"):
            contents.add(name, frame, descriptions.get(name, ""), most_rows)
    return contents


def _texts_that_fit(frame: pd.DataFrame, most_rows: int) -> tuple[int, dict[int, list[str]]]:
    """How many rows to embed, not too many or of too much text; the texts of columns by place."""
    rows = min(len(frame), most_rows)
    columns = (frame.iloc[:rows, place] for place in range(frame.shape[1]))
    texts = {n: _texts(series) for n, series in enumerate(columns) if not is_numeric(series)}
    while rows > FIRST_ROWS:
        distinct = (set(column[:rows]) for column in texts.values())
        if sum(len(text) for column in distinct for text in column) <= MOST_CHARACTERS:
            break
        rows = max(rows // 2, FIRST_ROWS)
    return rows, texts


def _text_column(texts: list[str], header: str, pool: dict[str, int]) -> tuple[HtmlColumn, int]:
    """A column of texts; also how many of them were cut."""
    counts = Counter(texts)
    coded = {}
    cut = 0
    for text, count in counts.items():
        shown, was_cut = cell_text(text)
        coded[text] = pool.setdefault(shown, len(pool)) if shown else -1
        cut += count * was_cut
    long = any(len(text) > LONG_TEXT for text in counts)
    return HtmlColumn(header, [coded[text] for text in texts], long=long), cut


def _texts(series: pd.Series) -> list[str]:
    """Give the values of a column that is not of numbers as texts, empty ones where none is."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.fillna("").tolist()
    plain = (excel_text.cell_value(value) for value in series.tolist())
    return ["" if value is None else str(value) for value in plain]


def _number_column(series: pd.Series, header: str) -> HtmlColumn:
    """A column of numbers as JSON and JavaScript can hold them."""
    series = excel_text.own_digits(series)
    plain = series.astype(object).where(series.notna(), None).tolist()
    values = [value if value is None else _as_json(value) for value in plain]
    shown = Shown.of(header, [value for value in values if isinstance(value, int | float)])
    return HtmlColumn(header, values, shown)


def _as_json(value: float) -> int | float | str:
    number = value if isinstance(value, int) else float(value) + 0.0  # no zero below zero
    exact = abs(number) <= _EXACT_IN_SCRIPT if isinstance(number, int) else math.isfinite(number)
    return number if exact else str(number)


# characters of a name in a card; no bar is summed with others
_NAME = 64
_ALL = 1_000_000_000

#: Where the time of an operation stands: table, column of names, column of times, what it is of.
_OPERATION_TIMES = (
    ("kernel_categories", "cpu_op", "total_time_ms", "GPU time"),
    ("kernels_by_category", "cpu_op", "total_time_ms", "GPU time"),
    ("kernel_summary", "Parent cpu_op", "Kernel duration (µs)_sum", "GPU time"),
    ("ops_summary", "name", "total_direct_kernel_time_ms", "GPU time in operations"),
    ("cpu_ops", "cpu_op", "self_time_ms", "CPU time in operations"),
)
_IN_OPERATIONS = ("op category", "total_direct_kernel_time_ms", "GPU time in operations")
_CATEGORY_TIMES = (
    ("gpu_time_by_category", "kernel_category", "total_time_ms", "GPU time"),
    ("ops_summary_by_category", *_IN_OPERATIONS),
)


class Card(NamedTuple):
    """A number of the headline."""

    label: str  #: what it is
    value: str  #: the number or the name
    detail: str  #: what stands below it
    colour: str  #: of its edge, the one that the charts use for it
    full: str = ""  #: the whole name when `value` is elided


def headline(sheets: Mapping[str, pd.DataFrame]) -> list[Card]:
    """Give the numbers that the tables allow, the most telling first."""
    cards = _timeline_cards(sheets.get("gpu_timeline"))
    for label, places in (("Top category", _CATEGORY_TIMES), ("Top operation", _OPERATION_TIMES)):
        for name, detail in _largest(sheets, places):
            colour = colour_of(name) if places is _CATEGORY_TIMES else "#5b6472"
            cards.append(Card(label, plot.elided(name, _NAME), detail, colour, name))
    return cards


def _timeline_cards(frame: pd.DataFrame | None) -> list[Card]:
    """Sum the timeline of all devices; a percentage is of the sum of their total times."""
    if frame is None or not {"type", "time ms"} <= set(frame.columns):
        return []
    times = frame.groupby("type")["time ms"].sum().to_dict()
    total = times.get("total_time", 0.0)
    if not total or "busy_time" not in times:
        return []
    devices = frame["device"].nunique() if "device" in frame else 1
    together = f" of {devices} GPUs together" if devices > 1 else ""
    busy, exposed, idle = (times.get(f"{k}_time", 0.0) for k in ("busy", "exposed_comm", "idle"))
    text = plot.duration_text
    communication = times.get("total_comm_time")
    of_exposed = "no communication in the trace"
    if communication:
        of_exposed = f"{text(exposed)} of {text(communication)} communication"
    of_total = f"{text(busy)} of {text(total)}{together}"
    without = f"{text(idle)} without GPU work{together}"
    return [
        Card(label, plot.percent_text(100.0 * time / total), detail, colour_of(colour))
        for label, time, detail, colour in (
            ("GPU busy", busy, of_total, "computation_time"),
            ("Exposed communication", exposed, of_exposed, "exposed_comm_time"),
            ("GPU idle", idle, without, "idle_time"),
        )
    ]


def _largest(
    sheets: Mapping[str, pd.DataFrame], places: Iterable[tuple[str, str, str, str]]
) -> list[tuple[str, str]]:
    """The name with the largest sum in the first table that has one; `(unlinked)` is none."""
    for sheet, label, value, whole in places:
        chart = Chart("", sheet, label, value, top=_ALL)
        if sheet in sheets and chart.fits(sheets[sheet]):
            table = chart_table(sheets[sheet], chart)
            in_ms = table.sum(axis=1) * (plot.ms_per_unit(value) or 1.0)
            for name, ms in in_ms.items():
                if is_name(str(name)):
                    share = plot.percent_text(100.0 * ms / float(in_ms.sum()))
                    return [(str(name), f"{share} of {whole}, {plot.duration_text(ms)}")]
            if table.empty:
                break
    return []


_MOST = 6
_IN_CARD = ("title", "confidence", "advice", "snippet")
_PLACE = 90  # characters of a name
_FRAME = re.compile(r"(.+)\(([0-9]+)\): ")


def finding_cards(
    sheets: Mapping[str, pd.DataFrame], answers: Sequence[Answer], source_url: str = ""
) -> dict[str, object]:
    """What the page's template shows of the findings: a heading, cards, how many more there are.

    Nothing without the answer of the sheet. Details are texts by kind of place, or `evidence`, each
    with the address of its source: `source_url`, with `{path}` and `{line}`; empty if nowhere.
    """
    for answer in answers:
        if answer.sheet == "findings":
            rows = sheets[answer.sheet].to_dict("records")
            details = sheets.get("finding_details", pd.DataFrame({"finding": []}))
            cards = [
                {
                    **{name: cleaned(row[name]) for name in _IN_CARD},
                    "id": cleaned(row["finding"]),
                    "place": plot.elided(row["largest_place"], _PLACE),
                    "sheet": answer.linked(row["see"], sheets),
                    "details": _details(details[details["finding"] == row["finding"]], source_url),
                }
                for row in rows[:_MOST]
            ]
            return {"heading": answer.title, "cards": cards, "more": len(rows) - len(cards)}
    return {}


def _details(table: pd.DataFrame, source_url: str) -> dict[str, list[tuple[str, str]]]:
    details: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    columns = ["kind", "name", "amount", "unit", "count", "see"]
    for kind, name, amount, unit, count, see in table.reindex(columns=columns).to_numpy().tolist():
        times = f" (×{count:,.0f})" if count == count else ""
        text = f"{plot.elided(name, _PLACE)}: {plot.amount_text(amount, unit, 0.0)}{times}"
        url = _source(name, source_url) if kind == "python_frames" else ""
        details[kind.replace("_", " ")].append((f"{text} ({see})" if see else text, url))
    return details


def _source(frame: str, source_url: str) -> str:
    """The address of a frame such as `train.py(12): step`; empty if it has no line."""
    from urllib.parse import quote

    if (found := _FRAME.match(frame)) is None:
        return ""
    path = quote(found[1].lstrip("/"), safe="/", errors="replace")
    return source_url.replace("{line}", found[2]).replace("{path}", path)


def check_source_url(url: str) -> None:
    """Refuse what is no place of sources."""
    from urllib.parse import urlsplit

    with suppress(ValueError):
        scheme, place, *_ = urlsplit(url)
        if scheme in ("http", "https") and place and "{" not in place and "{path}" in url:
            return
    raise UsageError(
        f"--source-url {url!r}: write an address such as"
        " 'https://github.com/NAME/REPOSITORY/blob/main/{path}#L{line}'"
    )
