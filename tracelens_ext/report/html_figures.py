"""One chart of the HTML report: what plotly is to draw, as plain data.

Bars, pieces, colours and texts, the texts escaped for plotly already, so that the page's script
never touches a text of the trace. Fonts, widths and the colours of the page are the script's
affair: they depend on the screen.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import GREY, ONE_COLOUR, colour_of, is_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_text import (
    amount_text,
    duration_text,
    elided,
    elided_kernel_name,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.tables.short_names import told_apart
from tracelens_ext.tables.units import unit_of, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens_ext.tables.charts import Chart

_MS_PER = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_IN_SUMMARY = 3  # bars
_WIDE, _NARROW = 62, 40  # characters of a bar's name, where there is room and where not
_IN_WORDS = 60  # characters of a name in a sentence

_NOT_IN_ID = re.compile(r"[^a-z0-9]+")
_OTHERS = re.compile(r"\([\d,]+ others\)")
#: What makes up the total time: row of `gpu_timeline`, its name on the page, its colour.
TIMELINE_PIECES = tuple(
    (kind, name, colour_of(kind))
    for kind, name in (
        ("computation_time", "Computation"),
        ("exposed_comm_time", "Exposed communication"),
        ("exposed_memcpy_time", "Exposed memory copies"),
        ("idle_time", "Idle"),
    )
)
_SPLIT_IDLE = (
    ("micro_idle_time", "Idle, short holes", colour_of("micro_idle_time")),
    ("macro_idle_time", "Idle, long holes", colour_of("macro_idle_time")),
)


@dataclass(frozen=True)
class Figure:
    """A chart of the page.

    Attributes:
        key: its id in the page.
        title: what it shows.
        summary: its largest parts in words, for those who do not see it.
        legend: name and colour (CSS) of the pieces, in their order; none when bars are whole.
        sheet: the table that holds its numbers.
        spec: what the script draws: the unit of its `axis`; the names of its `bars`; what stands
            at their `ends`; and its `pieces`, each with a value a bar, what to say of it beside
            the pointer, perhaps `inside` it, and a colour or a colour a bar. Upright bars
            (`html_iterations`) have a spec of their own.
        numbers: what it shows as rows of texts, with a header, where no table has it so.
    """

    key: str
    title: str
    summary: str
    legend: list[tuple[str, str]]
    sheet: str
    spec: dict[str, object]
    numbers: Sequence[Sequence[str]] = ()


def ms_per_unit(column: str) -> float | None:
    """How many milliseconds the unit of a column is; None for a column that is no time."""
    return _MS_PER.get(unit_of(column).symbol)


def bar_figure(chart: Chart, table: pd.DataFrame) -> Figure:
    """Draw the sums of a chart: of what `chart_table` made of it, a bar a row, a piece a column."""
    stacked = chart.kind == "stacked" and list(table.columns) != [""]  # pieces have names
    labels = [label if label.strip() else "(all)" if stacked else "(none)" for label in table.index]
    of_kernels = "kernel" in chart.label_column.lower() and "name" in chart.label_column.lower()
    short = elided_kernel_name if of_kernels else elided
    names = [short(label, sys.maxsize) for label in labels]
    factor = ms_per_unit(chart.value_column)
    unit_of_values = unit_of(chart.value_column)
    unit, signed = "ms" if factor else unit_of_values.symbol, unit_of_values.signed
    table = table * (factor or 1.0)
    sums = table.sum(axis=1).tolist()
    # Shares are of a whole, which differences do not add up to.
    whole = sum(sums) if min(table.min(), default=0.0) >= 0 else 0.0
    axis, scale = axis_of(unit, max(map(abs, sums), default=0.0))
    pieces = []
    for place, name in enumerate(table.columns):
        amounts = table.iloc[:, place].tolist()
        of = f"{plotly_text(name)}: " if stacked else ""
        pieces.append(
            {
                "colour": colour_of(name) if stacked else _bar_colours(labels, chart.label_column),
                "values": [amount * scale for amount in amounts],
                "hover": [
                    f"<b>{plotly_lines(label)}</b><br>{of}"
                    f"{plotly_text(amount_text(amount, unit, whole, signed=signed))}"
                    for label, amount in zip(labels, amounts, strict=True)
                ],
            }
        )
    return Figure(
        key=f"chart-{_NOT_IN_ID.sub('-', chart.title.lower())}",
        title=cleaned(chart.title),
        summary=_in_words([short(label, _IN_WORDS) for label in labels], sums, whole),
        legend=[(cleaned(name), colour_of(name)) for name in table.columns] if stacked else [],
        sheet=chart.sheet,
        spec={
            "axis": plotly_text(axis),
            "bars": [
                {"wide": plotly_text(wide), "narrow": plotly_text(narrow)}
                for wide, narrow in zip(
                    *(told_apart(names, width) for width in (_WIDE, _NARROW)), strict=True
                )
            ],
            "ends": [  # in the unit of the axis
                plotly_text(
                    f"{amount * scale:{'+' if signed else ''},.4g}\u00a0{axis}".rstrip()
                    + (f" ({percent_text(100.0 * amount / whole)})" if whole else "")
                )
                for amount in sums
            ],
            "pieces": pieces,
        },
        numbers=_numbers(chart, table, axis, scale),
    )


def _numbers(chart: Chart, table: pd.DataFrame, axis: str, scale: float) -> list[list[str]]:
    """What bars and their pieces are, in the unit of the axis."""
    named = [name for name in map(str, table.columns) if is_name(name) or name.startswith("(")]
    pieces = named if len(named) > 1 else []
    header = [chart.label_column, with_unit("total" if pieces else chart.title, axis), *pieces]
    rows = [
        [label, f"{scale * sum(values):,.3f}", *(f"{scale * v:,.3f}" for v in values if pieces)]
        for label, values in zip(map(str, table.index), table.to_numpy().tolist(), strict=True)
    ]
    return [[cleaned(text) for text in row] for row in (header, *rows)]


def timeline_figure(frame: pd.DataFrame) -> Figure:
    """Draw how the time of each device divides, in percent of it.

    Args:
        frame: the table `gpu_timeline`: columns `type`, `time ms`, `percent`, perhaps `device`.
    """
    devices = frame["device"].tolist() if "device" in frame else [None] * len(frame)
    rows = zip(devices, frame["type"], frame["time ms"], frame["percent"], strict=True)
    found = {(device, kind): (float(ms), float(percent)) for device, kind, ms, percent in rows}
    bars = list(dict.fromkeys(devices))
    names = ["GPU" if device is None else plotly_text(f"GPU {device}") for device in bars]
    totals = [found.get((device, "total_time"), (0.0, 0.0))[0] for device in bars]
    pieces, legend, said = [], [], []
    for kind, name, colour in timeline_pieces(frame):
        amounts = [found.get((device, kind), (0.0, 0.0)) for device in bars]
        if not any(share for _, share in amounts):
            continue
        shares = [share for _, share in amounts]
        pieces.append(
            {
                "colour": colour,
                "values": shares,
                "inside": [plotly_text(percent_text(share)) for share in shares],
                "hover": [
                    f"<b>{name}</b>, {bar}<br>{plotly_text(amount_text(ms, 'ms', total))}"
                    for bar, (ms, _), total in zip(names, amounts, totals, strict=True)
                ],
            }
        )
        legend.append((name, colour))
        said.append(f"{name.lower()} {_span(shares)}")
    return Figure(
        key="chart-gpu-timeline",
        title="GPU timeline",
        summary=", ".join(said).capitalize(),
        legend=legend,
        sheet="gpu_timeline",
        spec={
            "axis": "%",
            "bars": [{"wide": name, "narrow": name} for name in names],
            "ends": [plotly_text(duration_text(total)) for total in totals],
            "pieces": pieces,
        },
    )


def timeline_pieces(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Give the pieces that make up the total time: row of `gpu_timeline`, name, colour."""
    pieces = list(TIMELINE_PIECES)
    if {kind for kind, _, _ in _SPLIT_IDLE} <= set(frame["type"]):
        pieces[-1:] = _SPLIT_IDLE
    return pieces


def axis_of(unit: str, longest: float) -> tuple[str, float]:
    """Choose the unit of an axis: its name, and the factor to it."""
    if unit != "ms" or not longest:
        return unit, 1.0
    if longest < 1:
        return "µs", 1e3
    return ("ms", 1.0) if longest < 10_000 else ("s", 1e-3)  # ms: up to four digits


def _bar_colours(labels: Sequence[str], column: str) -> list[str]:
    """Colour bars that are whole: categories with their own colours, other names alike."""
    if "category" in column:
        return [colour_of(label) for label in labels]
    return [ONE_COLOUR if is_name(label) else GREY for label in labels]


def _span(shares: Sequence[float]) -> str:
    """Say a percentage, or from which to which those of several devices reach."""
    lowest, highest = percent_text(min(shares)), percent_text(max(shares))
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _in_words(names: Iterable[str], sums: Iterable[float], whole: float) -> str:
    """Name the largest bars."""
    if not whole:
        return ""
    named = [bar for bar in zip(sums, names, strict=True) if _OTHERS.fullmatch(bar[1]) is None]
    largest = sorted(named, key=lambda bar: -bar[0])[:_IN_SUMMARY]
    return ", ".join(f"{name} {percent_text(100.0 * amount / whole)}" for amount, name in largest)
