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
from tracelens_ext.report.colors import color_of, is_name
from tracelens_ext.report.excel_text import CELL_CHARACTERS, cell_text, cleaned
from tracelens_ext.report.report import Answer
from tracelens_ext.report.simple_markdown import html_of
from tracelens_ext.report.tables.charts import Chart, chart_table
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.timeline_rows import analyzed_rows
from tracelens_ext.report.tables.units import Quantity, Shown, header_text, is_numeric
from tracelens_ext.text import with_units_attached

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
        if self.shown is None:
            return "text"
        return "number"

    def number(self, row: int) -> str:
        """Return a cell of a column of numbers."""
        value = self.values[row]
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if self.shown is None:
            return str(value or "")
        return self.shown.text(value)

    def bar(self, row: int) -> float | None:
        """Return the length of the bar behind a percentage, 0 to 100; None for none."""
        value = self.values[row]
        if self.shown is None or not isinstance(value, int | float):
            return None
        unit = self.shown.unit
        if unit.quantity is not Quantity.PERCENT or unit.signed:
            return None
        return min(max(value, 0.0), 100.0)

    def for_script(self) -> dict[str, object]:
        """Return what the page's script needs of it."""
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

    name: str  #: the name of the sheet
    key: str  #: its id in the page
    caption: str  #: what it shows, a clause
    columns: list[HtmlColumn]  #: the columns
    embedded: int  #: rows in the page
    total: int  #: rows in all
    command: RowCommand | None = None  #: what a row offers to copy

    @property
    def searchable(self) -> bool:
        """Return whether there is a text to search in, and more than a glance takes in."""
        if self.total <= FIRST_ROWS:
            return False
        return any(column.kind == "text" for column in self.columns)

    def for_script(self) -> dict[str, object]:
        """Return what the page's script needs of it."""
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
    #: the texts of all tables, and their numbers
    pool: dict[str, int] = field(default_factory=dict)
    #: what was cut, a sentence each
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        frame: pd.DataFrame,
        description: str,
        most_rows: int,
        command: RowCommand | None = None,
    ) -> None:
        """Prepare a table, and note what of it is cut."""
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
    """Prepare tables for a page.

    Args:
        sheets: the tables, by name.
        descriptions: what each shows.
        most_rows: rows of each that the page has.
        failures: takes the tables that cannot be shown.
        pool: the texts that the page has already, and their numbers; more are added.
        commands: the command that each row of a table offers to copy, by the table's name.
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
    """How many rows of a table a page has, and the texts of its columns, by their positions."""

    rows: int
    texts: dict[int, list[str]]


def _texts_that_fit(frame: pd.DataFrame, most_rows: int) -> _FittingTexts:
    """Choose how many rows to embed: not too many, and not with too much text."""
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
    """Return how long the distinct texts of each column are in all, in the first rows."""
    characters = 0
    for column in texts.values():
        characters += sum(map(len, set(column[:rows])))
    return characters


class _HtmlTextColumn(NamedTuple):
    """A column of texts, and how many of them were cut."""

    column: HtmlColumn
    cut: int


def _text_column(
    texts: list[str], header: str, pool: dict[str, int]
) -> _HtmlTextColumn:
    """Return a column of texts, each as its number in the pool, which gets those it lacks."""
    number_of_text = {}
    cut = 0
    is_long = False
    for text, count in Counter(texts).items():
        cell, was_cut = cell_text(text)
        number = -1
        if cell:
            number = pool.setdefault(cell, len(pool))
        number_of_text[text] = number
        if was_cut:
            cut += count
        if len(text) > LONG_TEXT:
            is_long = True
    numbers = [number_of_text[text] for text in texts]
    return _HtmlTextColumn(HtmlColumn(header, numbers, long=is_long), cut)


def _texts(series: pd.Series) -> list[str]:
    """Return the values of a column that is not of numbers as texts, empty where none is."""
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
    """Return a column of numbers as JSON and JavaScript can hold them."""
    series = excel_text.own_digits(series)
    plain = series.astype(object).where(series.notna(), None)
    values = [_as_json(value) for value in plain.tolist()]
    numbers = [value for value in values if isinstance(value, int | float)]
    return HtmlColumn(header=header, values=values, shown=Shown.of(header, numbers))


def _as_json(value: float | None) -> int | float | str | None:
    """Return a number if JavaScript holds it exactly, else a text; None stays."""
    if value is None:
        return None
    if isinstance(value, int):
        if abs(value) <= _EXACT_IN_SCRIPT:
            return value
        return str(value)
    number = float(value) + 0.0  # no zero below zero
    if math.isfinite(number):
        return number
    return str(number)


# characters of a name in a card; no bar is summed with others
_NAME = 64
_ALL = 1_000_000_000

_OPERATION_COLOR = "#5b6472"


class _TimeSource(NamedTuple):
    """Where the time of an operation or a category stands."""

    sheet: str  #: the table
    names: str  #: the column of names
    times: str  #: the column of times
    whole: str  #: what all times are


_OPERATION_TIMES = (
    _TimeSource(
        sheet="kernel_categories",
        names="cpu_op",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="kernels_by_category",
        names="cpu_op",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="kernel_summary",
        names="Parent cpu_op",
        times="Kernel duration (µs)_sum",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="ops_summary",
        names="name",
        times="total_direct_kernel_time_ms",
        whole="GPU time in operations",
    ),
    _TimeSource(
        sheet="cpu_ops",
        names="cpu_op",
        times="self_time_ms",
        whole="CPU time in operations",
    ),
)
_KERNEL_TIMES = (
    _TimeSource("kernels_by_category", "kernel", "total_time_ms", "GPU time"),
    _TimeSource(
        "kernel_summary", "Kernel name", "Kernel duration (µs)_sum", "GPU time"
    ),
)
#: What launches kernels where no operation is around it.
_API_CALL = re.compile(r"(cuda|cu|hip)[A-Z]\w*$")
_CATEGORY_TIMES = (
    _TimeSource(
        sheet="gpu_time_by_category",
        names="kernel_category",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="ops_summary_by_category",
        names="op category",
        times="total_direct_kernel_time_ms",
        whole="GPU time in operations",
    ),
)


class Card(NamedTuple):
    """A number of the headline."""

    label: str  #: what it is
    value: str  #: the number or the name
    detail: str  #: what stands below it
    color: str  #: of its edge, the one that the charts use for it
    full: str = ""  #: the whole name when `value` is elided


def headline(sheets: Mapping[str, pd.DataFrame]) -> list[Card]:
    """Return the numbers that the tables allow, the most telling first."""
    cards = _timeline_cards(sheets.get("gpu_timeline"))
    category = _largest(sheets, _CATEGORY_TIMES)
    if category is not None:
        color = color_of(category.name)
        card = _card_of_name("Top category", category, color)
        cards.append(card)
    operation = _largest(sheets, _OPERATION_TIMES)
    kernel = _largest(sheets, _KERNEL_TIMES)
    if operation is not None and not _API_CALL.match(operation.name):
        cards.append(_card_of_name("Top operation", operation, _OPERATION_COLOR))
    elif kernel is not None:
        cards.append(_card_of_name("Top kernel", kernel, _OPERATION_COLOR))
    return cards


class _Largest(NamedTuple):
    """The name that has the largest sum, and what that is."""

    name: str
    detail: str


def _card_of_name(label: str, largest: _Largest, color: str) -> Card:
    return Card(
        label=label,
        value=plot.elided(largest.name, _NAME),
        detail=largest.detail,
        color=color,
        full=largest.name,
    )


def _timeline_cards(frame: pd.DataFrame | None) -> list[Card]:
    """Sum the timeline of all devices; a percentage is of the sum of their total times."""
    if frame is None or not {"type", "time ms"} <= set(frame.columns):
        return []
    analyzed = analyzed_rows(frame)
    sums = frame.groupby("type")["time ms"].sum()
    if len(analyzed):
        of_analyzed = analyzed.groupby("type")["time ms"].sum()
        sums = pd.concat([sums.drop(of_analyzed.index), of_analyzed])
    times = {str(kind): float(time) for kind, time in sums.items()}
    total = times.get("total_time", 0.0)
    if not total or "busy_time" not in times:
        return []
    together = ""
    if "device" in frame and frame["device"].nunique() > 1:
        together = f" of {frame['device'].nunique()} GPUs together"
    prefix = ""
    if times.get("analyzed_time"):
        # Shares of what was not recorded would say nothing of the GPU.
        prefix = "analyzed_"
        total = times["analyzed_time"]
    busy = times[f"{prefix}busy_time"]
    exposed = times.get(f"{prefix}exposed_comm_time", 0.0)
    idle = times.get(f"{prefix}idle_time", 0.0)
    text = plot.duration_text
    communication = times.get("total_comm_time")
    of_communication = "no communication in the trace"
    if communication:
        of_communication = f"{text(exposed)} of {text(communication)} communication"
    return [
        Card(
            label="GPU busy",
            value=plot.percent_text(100.0 * busy / total),
            detail=f"{text(busy)} of {text(total)}{together}{_of_what(prefix)}",
            color=color_of("computation_time"),
        ),
        Card(
            label="Exposed communication",
            value=plot.percent_text(100.0 * exposed / total),
            detail=of_communication,
            color=color_of("exposed_comm_time"),
        ),
        Card(
            label="GPU idle",
            value=plot.percent_text(100.0 * idle / total),
            detail=f"{text(idle)} without GPU work{together}",
            color=color_of("idle_time"),
        ),
        *_set_aside_cards(times),
    ]


def _of_what(prefix: str) -> str:
    if not prefix:
        return ""
    return " of analyzed time"


def _set_aside_cards(times: Mapping[str, float]) -> list[Card]:
    """Return a card about what is not analyzed, if there is any."""
    set_aside = {
        "not recorded": times.get("not_recorded_time", 0.0),
        "warm-up": times.get("warm_up_time", 0.0),
    }
    whole = sum(set_aside.values())
    if not whole:
        return []
    wall = whole + times["analyzed_time"]
    words = [
        f"{plot.duration_text(time)} {name}" for name, time in set_aside.items() if time
    ]
    return [
        Card(
            "Not analyzed",
            plot.percent_text(100.0 * whole / wall),
            f"{', '.join(words)} of {plot.duration_text(wall)}",
            color_of("not_recorded_time"),
        )
    ]


def _largest(
    sheets: Mapping[str, pd.DataFrame], sources: Iterable[_TimeSource]
) -> _Largest | None:
    """Return the name with the largest sum in the first table that has one.

    `(unlinked)` and its like are no names.
    """
    for source in sources:
        chart = Chart(
            title="",
            sheet=source.sheet,
            label_column=source.names,
            value_column=source.times,
            top=_ALL,
        )
        if source.sheet not in sheets or not chart.fits(sheets[source.sheet]):
            continue
        table = chart_table(sheets[source.sheet], chart)
        in_ms = table.sum(axis=1) * (plot.ms_per_unit(source.times) or 1.0)
        for name, ms in in_ms.items():
            if is_name(str(name)):
                share = plot.percent_text(100.0 * ms / float(in_ms.sum()))
                detail = f"{share} of {source.whole}, {plot.duration_text(ms)}"
                return _Largest(str(name), detail)
        if table.empty:
            return None
    return None


_MOST = 6
_IN_CARD = ("confidence", "advice", "snippet")
_PLACE = 90  # characters of a name
_FRAME = re.compile(r"(.+)\(([0-9]+)\): ")


def finding_cards(
    sheets: Mapping[str, pd.DataFrame],
    answers: Sequence[Answer],
    source_url: str = "",
    explanations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return what the page's template shows of the findings: a heading, cards, how many more.

    Nothing without the answer of the sheet. Details are texts by kind of place, or `evidence`, each
    with the address of its source: `source_url`, with `{path}` and `{line}`; empty if nowhere.
    """
    for answer in answers:
        if answer.sheet != "findings":
            continue
        rows = sheets[answer.sheet].to_dict("records")
        details = sheets.get("finding_details", pd.DataFrame({"finding": []}))
        cards = []
        for row in rows[:_MOST]:
            card: dict[str, object] = {name: cleaned(row[name]) for name in _IN_CARD}
            card["id"] = cleaned(row["finding"])
            card["title"] = with_units_attached(cleaned(row["title"]))
            card["saving"] = with_units_attached(cleaned(row.get("saving", "")))
            card["place"] = plot.elided(row["largest_place"], _PLACE)
            card["sheet"] = answer.linked(row["see"], sheets)
            explanation = (explanations or {}).get(str(row["finding"]), "")
            card["explanation"] = html_of(explanation)
            own_details = details[details["finding"] == row["finding"]]
            card["details"] = _details(own_details, source_url)
            cards.append(card)
        return {"heading": answer.title, "cards": cards, "more": len(rows) - len(cards)}
    return {}


class _FindingDetail(NamedTuple):
    """A place of a finding, or a piece of its evidence, and the address of its source."""

    text: str
    address: str


_DETAIL_COLUMNS = ["kind", "name", "amount", "unit", "count", "see"]


def _details(table: pd.DataFrame, source_url: str) -> dict[str, list[_FindingDetail]]:
    """Return the details of a finding by their kind."""
    details: defaultdict[str, list[_FindingDetail]] = defaultdict(list)
    rows = table.reindex(columns=_DETAIL_COLUMNS).to_numpy().tolist()
    for kind, name, amount, unit, count, see in rows:
        text = f"{plot.elided(name, _PLACE)}: {plot.amount_text(amount, unit, 0.0)}"
        if not math.isnan(count):
            text += f" (×{count:,.0f})"
        if see:
            text += f" ({see})"
        address = ""
        if kind == "python_frames":
            address = _source(name, source_url)
        details[kind.replace("_", " ")].append(_FindingDetail(text, address))
    return details


def _source(frame: str, source_url: str) -> str:
    """Return the address of a frame such as `train.py(12): step`; empty if it has no line."""
    from urllib.parse import quote

    parts = _FRAME.match(frame)
    if parts is None:
        return ""
    relative_path = parts[1].lstrip("/")
    line = parts[2]
    path = quote(relative_path, safe="/", errors="replace")
    return source_url.replace("{line}", line).replace("{path}", path)


def check_source_url(url: str) -> None:
    """Refuse what is no place of sources."""
    from urllib.parse import urlsplit

    with suppress(ValueError):
        scheme, place, *_ = urlsplit(url)
        if (
            scheme in ("http", "https")
            and place
            and "{" not in place
            and "{path}" in url
        ):
            return
    raise UsageError(
        f"--source-url {url!r}: give an address such as "
        f"'https://github.com/NAME/REPOSITORY/blob/main/{{path}}#L{{line}}'"
    )
