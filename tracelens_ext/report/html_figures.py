"""One chart of the HTML report, as plotly draws it: data, and a layout for each of three widths.

Texts of a trace are escaped here, so that the page's script never touches one: it takes the layout
that fits the screen, and hides the pieces that the legend's buttons turn off. jinja2 escapes those
in the HTML itself. The HTML parser ends a script at `</script>`, whatever JSON it is in, and plotly
takes `<b>`, `<a href>` and entities in a label for markup.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import ONE_COLOUR, colour_of, is_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.short_names import cut_middle, told_apart
from tracelens_ext.report.tables.units import unit_of, with_unit
from tracelens_ext.report.terminal import safe_text

# characters of a line in the box beside the pointer
_HOVER_LINE = 60
_HOVER_LINES = 12
_MS_PER_S = 1000.0
#: Of a number that is shown.
_DIGITS = 4

_SIGNATURE = re.compile("::|<|^void ")

#: Also what ends lines to older readers of JavaScript.
_IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


def json_for_script(value: object) -> str:
    """Write a value as JSON that is safe within `<script>`."""
    import msgspec

    # In JSON these characters stand in texts only, where an escape means the same.
    return msgspec.json.encode(value).decode().translate(_IN_SCRIPT)


def plotly_text(text: str) -> str:
    """Write a text so that plotly shows it as it is: in one line, nothing in it is markup."""
    return (
        in_one_line(text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


def plotly_lines(text: str) -> str:
    """Write a long text for plotly in several lines, some hundred characters at most."""
    line = in_one_line(text)
    starts = range(0, len(line), _HOVER_LINE)
    lines = [plotly_text(line[start : start + _HOVER_LINE]) for start in starts]
    if len(lines) > _HOVER_LINES:
        lines = [*lines[:_HOVER_LINES], f"… ({len(line):,} characters)"]
    return "<br>".join(lines)


def elided_kernel_name(name: str, width: int) -> str:
    """Shorten a kernel's name: of a C++ signature the beginning, without namespaces."""
    name = in_one_line(name)
    if not _SIGNATURE.search(name):
        return elided(name, width)
    short = short_name(name)
    return short if len(short) <= width else f"{short[: width - 1]}…"


def elided(text: str, width: int) -> str:
    """Cut a text in its middle; the end of a kernel's name tells as much as its beginning."""
    return cut_middle(in_one_line(text), width)


def duration_text(ms: float) -> str:
    """Show a duration in the unit that suits it, three digits or more, never torn from its unit."""
    if abs(ms) >= _MS_PER_S:
        return f"{ms / _MS_PER_S:,.2f}\u00a0s"
    if abs(ms) >= 1 or not ms:
        return f"{ms:,.{1 if abs(ms) >= 100 else 2}f}\u00a0ms"
    return f"{ms * 1000:,.1f}\u00a0µs"


def bytes_text(size: float) -> str:
    """Show a size in the unit that suits it, three digits or more, never torn from its unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= factor:
            return f"{size / factor:,.{1 if abs(size) >= 100 * factor else 2}f}\u00a0{unit}"
    return f"{size:,.0f}\u00a0B"


def percent_text(share: float) -> str:
    """Show a percentage; a small one is not shown as nothing."""
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def amount_text(amount: float, unit: str, whole: float, *, signed: bool = False) -> str:
    """Show an amount, and its share of a whole when there is one."""
    sign = "+" if signed and amount > 0 else ""
    if unit in _MS_PER:
        text = duration_text(amount * _MS_PER[unit])
    else:
        text = f"{number_text(amount)} {unit}".strip()
    return (
        f"{sign}{text} ({percent_text(100.0 * amount / whole)})"
        if whole
        else sign + text
    )


def number_text(value: float) -> str:
    """Show a number with four digits, or all those before its point; never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits_before_point = math.floor(math.log10(abs(value))) + 1
    decimals = max(_DIGITS - digits_before_point, 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def in_one_line(text: str) -> str:
    """Write a text for a label: what breaks lines, is invisible, or deceives, is an escape."""
    return cleaned(safe_text(" ".join(text.split())))


Plotly = dict[str, Any]  # a trace or a layout, as plotly has it
_Texts = Iterable[str]

_MS_PER = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_IN_SUMMARY = 3  # bars
# characters of a bar's name, where there is room and where not
_WIDE = 62
_NARROW = 40
_IN_WORDS = 60  # characters of a name in a sentence

_NOT_IN_ID = re.compile(r"[^a-z0-9]+")
_OTHERS = re.compile(r"\([\d,]+ others\)")
#: What makes up the total time: row of `gpu_timeline`, its name on the page.
TIMELINE_PIECES = {
    "computation_time": "Computation",
    "exposed_comm_time": "Exposed communication",
    "exposed_memcpy_time": "Exposed memory copies",
    "idle_time": "Idle",
}
_SPLIT_IDLE = {
    "micro_idle_time": "Idle, short gaps",
    "macro_idle_time": "Idle, long gaps",
}

#: The `meta` of a trace, or the `name` of an annotation, that goes when any piece is hidden.
WHOLE = "whole"
_HOVER = "%{customdata}<extra></extra>"
_AXIS = {
    "fixedrange": True,
    "zeroline": False,
    "title": {"standoff": 6, "font": {"size": 11}},
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_BOX = {
    "bgcolor": "#22262e",
    "bordercolor": "#22262e",
    "font": {"color": "#ffffff", "size": 12},
}
_BESIDE = {"showarrow": False, "xanchor": "left", "yanchor": "bottom"}
#: What all figures have in common: a template of plotly.
LOOK = {
    "data": {
        "bar": [{"hovertemplate": _HOVER, "marker": {"line": {"width": 0}}}],
        "scatter": [{"hovertemplate": _HOVER, "cliponaxis": False}],
    },
    "layout": {
        "barmode": "stack",
        "margin": {"l": 56, "r": 12, "t": 12, "b": 44},
        "showlegend": False,  # it stands above the chart, in HTML
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12},
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1, **_BOX},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "annotationdefaults": {"align": "left", "font": {"size": 11}, **_BESIDE},
    },
}
_EDGE = {"width": 1, "color": "#ffffff"}
#: The marker of what stands out.
MARK = {"symbol": "diamond", "size": 8, "color": "#d1495b", "line": _EDGE}
#: Pixels from which on there is room for names beside bars, and for longer names.
_NARROW_ENDS = 640
_WIDE_BEGINS = 980
# pixels: of a page, of a character, of a number's tick
_NARROWEST = 360
_DIGIT = 7.2
_TICK = 80


def spec_of(
    data: Sequence[Plotly], layout: Plotly, rooms: Callable[[int], Plotly] | None = None
) -> Plotly:
    """What the script hands to plotly; `rooms` makes the layout that hangs on the width, in px."""
    fitting = []
    for least in (0, _NARROW_ENDS, _WIDE_BEGINS):
        room = max(least, _NARROWEST)
        part = rooms(room) if rooms else {}
        own = layout.get("xaxis", {}) | part.get("xaxis", {})
        fitting.append(
            {"from": least, **part, "xaxis": {"nticks": room // _TICK, **own}}
        )
    return {"data": data, "layout": layout, "rooms": fitting}


def trace(kind: str, hidden_by: int | str | None = None, /, **parts: Any) -> Plotly:  # noqa: ANN401
    """A trace of plotly; `hidden_by` is a place in the legend, `WHOLE`, or none."""
    return {"type": kind, "meta": hidden_by, **parts}


def is_narrow(room: int) -> bool:
    """Whether names have no room beside what they name."""
    return room < _NARROW_ENDS


def text_width(texts: Iterable[str]) -> float:
    """About the pixels that the widest of some texts takes, none for none."""
    return _DIGIT * max((len(unescape(text)) for text in texts), default=0)


@dataclass(frozen=True)
class Figure:
    """A chart of the page."""

    key: str  #: its id in the page
    title: str  #: what it shows
    summary: str  #: its largest parts in words, for those who do not see it
    #: name and color (CSS) of the pieces, in their order; none when bars are whole
    legend: list[tuple[str, str]]
    sheet: str  #: the table that holds its numbers
    spec: Plotly  #: what `spec_of` gives
    #: what it shows as rows of texts, with a header, where no table has it so
    numbers: Sequence[Sequence[str]] = ()


def ms_per_unit(column: str) -> float | None:
    """How many milliseconds the unit of a column is; None for a column that is no time."""
    return _MS_PER.get(unit_of(column).symbol)


def bar_figure(chart: Chart, table: pd.DataFrame) -> Figure:
    """Draw the sums of a chart: of what `chart_table` made of it, a bar a row, a piece a column."""
    # pieces have names
    stacked = chart.kind == "stacked" and list(table.columns) != [""]
    labels = [
        label if label.strip() else "(all)" if stacked else "(none)"
        for label in table.index
    ]
    of_kernels = all(word in chart.label_column.lower() for word in ("kernel", "name"))
    short = elided_kernel_name if of_kernels else elided
    names = [short(label, sys.maxsize) for label in labels]
    factor = ms_per_unit(chart.value_column)
    unit = unit_of(chart.value_column)
    symbol = "ms" if factor else unit.symbol
    table = table * (factor or 1.0)
    sums = table.sum(axis=1).tolist()
    # Shares are of a whole, which differences do not add up to.
    has_whole = chart.has_shares and min(table.min(), default=0.0) >= 0
    whole = sum(sums) if has_whole else 0.0
    axis, scale = axis_of(symbol, max(map(abs, sums), default=0.0))
    of_categories = "category" in chart.label_column
    of_bars = [
        ONE_COLOUR if is_name(label) and not of_categories else colour_of(label)
        for label in labels
    ]
    pieces = []
    for place, (name, column) in enumerate(table.items()):
        of = f"{plotly_text(str(name))}: " if stacked else ""
        hover = [
            f"<b>{plotly_lines(label)}</b><br>{of}"
            f"{plotly_text(amount_text(amount, symbol, whole, signed=unit.signed))}"
            for label, amount in zip(labels, column.tolist(), strict=True)
        ]
        colour = colour_of(str(name)) if stacked else of_bars
        pieces.append(bar_piece(place, (column * scale).tolist(), colour, hover))
    ends = [  # in the unit of the axis
        _end_of_bar(amount, scale, axis, whole, signed=unit.signed) for amount in sums
    ]
    key = f"chart-{_NOT_IN_ID.sub('-', chart.title.lower())}"
    words = _in_words([short(label, _IN_WORDS) for label in labels], sums, whole)
    legend = (
        [(cleaned(name), colour_of(name)) for name in table.columns] if stacked else []
    )
    spec = bars_spec(
        pieces, told_apart(names, _WIDE), told_apart(names, _NARROW), ends, axis
    )
    numbers = _numbers(chart, table, axis, scale)
    return Figure(key, cleaned(chart.title), words, legend, chart.sheet, spec, numbers)


def _end_of_bar(
    amount: float, scale: float, axis: str, whole: float, *, signed: bool
) -> str:
    """Return what stands at the end of a bar: its amount in the unit of the axis, its share."""
    sign = "+" if signed and amount > 0 else ""
    text = f"{sign}{number_text(amount * scale)}\u00a0{axis}".rstrip()
    if not whole:
        return text
    return f"{text} ({percent_text(100.0 * amount / whole)})"


def bar_piece(
    place: int,
    values: Sequence[float],
    colour: str | Sequence[str],
    hover: Sequence[str],
    inside: Iterable[str] = (),
) -> Plotly:
    """A piece of each of some bars; `hover` is escaped, `inside` not yet."""
    texts = [*map(plotly_text, inside)]
    # a bar of no length would have an outline
    some = [value or None for value in values]
    line = {"width": 0.5, "color": "rgba(255,255,255,0.45)"}
    about = {
        "customdata": hover,
        "marker": {"color": colour, "line": line},
        "text": texts,
    }
    anchor = (
        {"insidetextanchor": "middle", "textangle": 0}
        if texts
        else {"textposition": "none"}
    )
    at = {"x": some, "y": [*range(len(some))]}
    return trace("bar", place, orientation="h", **at, **about, **anchor)


def bars_spec(
    pieces: Sequence[Plotly], wide: _Texts, narrow: _Texts, ends: _Texts, axis: str
) -> Plotly:
    """Bars below one another, made of `bar_piece`: their names, longer and shorter; their ends."""
    lengths = zip(*(piece["x"] for piece in pieces), strict=True)
    sums = [sum(filter(None, values), 0.0) for values in lengths]
    shown = [*map(plotly_text, ends)]
    rows = [*range(len(sums))]
    at = {"x": [max(each, 0.0) for each in sums], "y": rows, "hoverinfo": "skip"}
    texts = {"text": [f"  {end}" for end in shown], "textposition": "middle right"}
    # true of whole bars only
    at_ends = trace("scatter", WHOLE, mode="text", **at, **texts)
    lowest = min(sums, default=0.0)
    highest = max(sums, default=0.0)
    bounds = {
        "clipmin": min(lowest, 0.0),
        "clipmax": max(highest, 0.0) or (0.0 if lowest else 1.0),
    }

    def room_for(room: int) -> Plotly:
        names = [*map(plotly_text, wide if room >= _WIDE_BEGINS else narrow)]
        above = is_narrow(room)
        ticks = {"tickmode": "array", "tickvals": rows, "ticktext": names}
        bounds = {
            "range": [len(names) - 0.5, -0.75 if above else -0.5],
            "automargin": True,
        }
        beside = [
            {"text": name, "x": 0, "y": at - 0.25, "xshift": -3}
            for at, name in enumerate(names if above else [])
        ]
        return {
            "height": len(names) * (44 if above else 27) + 34,
            "bargap": 0.52 if above else 0.26,
            "margin": {"l": 16, "r": text_width(shown) + 18, "t": 4, "b": 26},
            "yaxis": {
                **bounds,
                "showgrid": False,
                "showticklabels": not above,
                **ticks,
            },
            "annotations": beside,
        }

    ticks = {"rangemode": "tozero", "ticksuffix": f" {plotly_text(axis)}"}
    across = {"autorangeoptions": bounds, **ticks}
    look = {"uniformtext": {"mode": "hide", "minsize": 12}, "xaxis": across}
    return spec_of([*pieces, at_ends], look, room_for)


def _numbers(
    chart: Chart, table: pd.DataFrame, axis: str, scale: float
) -> list[list[str]]:
    """What bars and their pieces are, in the unit of the axis."""
    named = [
        name
        for name in map(str, table.columns)
        if is_name(name) or name.startswith("(")
    ]
    pieces = named if len(named) > 1 else []
    rows = [
        [
            chart.label_column,
            with_unit("total" if pieces else chart.title, axis),
            *pieces,
        ]
    ]
    for label, values in zip(
        map(str, table.index), table.to_numpy().tolist(), strict=True
    ):
        numbers = [sum(values), *(values if pieces else ())]
        rows.append([label, *(f"{scale * number:,.3f}" for number in numbers)])
    return [[cleaned(text) for text in row] for row in rows]


def timeline_figure(frame: pd.DataFrame) -> Figure:
    """Draw how the time of each device divides, in percent of it, of the table `gpu_timeline`."""
    of_devices = frame if "device" in frame else frame.assign(device=-1)
    bars = of_devices["device"].unique().tolist()
    names = [f"GPU {device}" if "device" in frame else "GPU" for device in bars]
    parts = dict(TIMELINE_PIECES)
    if _SPLIT_IDLE.keys() <= set(frame["type"]):
        del parts["idle_time"]
        parts |= _SPLIT_IDLE
    last = of_devices.groupby(["type", "device"], sort=False)[
        ["time ms", "percent"]
    ].last()
    all_ms, percent = (
        last[column]
        .unstack()
        .reindex(index=["total_time", *parts], columns=bars)
        .fillna(0.0)
        .T
        for column in last
    )
    totals = all_ms["total_time"].tolist()
    pieces: list[Plotly] = []
    legend = []
    said = []
    for kind, name in parts.items():
        shares = percent[kind].tolist()
        if not any(shares):
            continue
        hover = [
            f"<b>{name}</b>, {plotly_text(bar)}<br>{plotly_text(amount_text(ms, 'ms', total))}"
            for bar, ms, total in zip(names, all_ms[kind].tolist(), totals, strict=True)
        ]
        inside = [*map(percent_text, shares)]
        colour = colour_of(kind)
        pieces.append(bar_piece(len(pieces), shares, colour, hover, inside))
        legend.append((name, colour))
        # Of several devices from which to which share they reach.
        ends = dict.fromkeys((percent_text(min(shares)), percent_text(max(shares))))
        said.append(f"{name.lower()} {' to '.join(ends)}")
    spec = bars_spec(pieces, names, names, [*map(duration_text, totals)], "%")
    words = ", ".join(said).capitalize()
    return Figure(
        "chart-gpu-timeline", "GPU timeline", words, legend, "gpu_timeline", spec
    )


def axis_of(unit: str, longest: float) -> tuple[str, float]:
    """Choose the unit of an axis: its name, and the factor to it."""
    if unit == "ms" and 0 < longest < 1:
        return "µs", 1e3
    # up to four digits
    return ("s", 1e-3) if unit == "ms" and longest >= 10_000 else (unit, 1.0)


def _in_words(names: Iterable[str], sums: Iterable[float], whole: float) -> str:
    if not whole:
        return ""
    named = [
        bar
        for bar in zip(sums, names, strict=True)
        if _OTHERS.fullmatch(bar[1]) is None
    ]
    largest = sorted(named, key=lambda bar: -bar[0])[:_IN_SUMMARY]
    return ", ".join(
        f"{name} {percent_text(100.0 * amount / whole)}" for amount, name in largest
    )


LABEL = 120  # characters
#: Of the call tree, pixels: a level has room for one line.
_LEVEL_HEIGHT = 22
_HIGHEST_TREE = 900
_PATH_HEIGHT = 24
_SMALLEST_TEXT = 10


def gpu_work_in_words(sums: pd.Series) -> str:
    """How much there is, and the largest parts of it; `sums`: ns by name."""
    total = int(sums.sum())
    parts = [
        f"{elided(str(name), LABEL)} {percent_text(100 * ns / total)}"
        for name, ns in sums.head(_IN_SUMMARY).items()
    ]
    return f"{duration_text(total / 1e6)} of GPU work: {', '.join(parts)}"


_NO_CATEGORY = "#dfe3ea"  # a module's


def call_tree_figures(frame: pd.DataFrame) -> list[Figure]:
    """Draw the call tree, from the top down; a table of two traces has colors of its own."""
    top = frame[frame["parent"] < 0]
    sums = top.groupby("label")["gpu_time_ns"].sum().sort_values(ascending=False)
    total = int(sums.sum())
    if not total:
        return []
    rows = frame.to_dict("records")
    hover = [
        row.get("hover")
        or f"{duration_text(ns / 1e6)} ({percent_text(100 * ns / total)})"
        for row, ns in zip(rows, frame["gpu_time_ns"], strict=True)
    ]
    categories = [plotly_text(row["category"]) for row in rows]
    colours = [row.get("colour") or _colour(row) for row in rows]
    nodes = {  # one top: several would stand below a blank
        "ids": [*range(len(rows) + 1)],
        "labels": [
            "GPU work",
            *(plotly_text(elided(row["label"], LABEL)) for row in rows),
        ],
        "parents": ["", *(frame["parent"] + 1)],
        "values": [total, *frame["gpu_time_ns"]],
        "customdata": ["", *map("{}<br>{}".format, hover, categories)],
        "hovertemplate": "<b>%{label}</b><br>%{customdata}<extra></extra>",
    }
    line = {"width": 0.5, "color": "#ffffff"}
    look = {"branchvalues": "total", "tiling": {"orientation": "v"}}
    look |= {"textfont": {"color": "#22262e"}}
    look |= {"marker": {"colors": [_NO_CATEGORY, *colours], "line": line}}
    levels = 1 + _levels(frame["parent"].tolist())
    layout = {
        "height": min(_LEVEL_HEIGHT * levels, _HIGHEST_TREE) + _PATH_HEIGHT,
        "margin": {"l": 0, "r": 0, "t": _PATH_HEIGHT, "b": 0},
        # a label that would be too small to read is left out
        "uniformtext": {"minsize": _SMALLEST_TEXT, "mode": "hide"},
    }
    said = (
        "as wide as the time of both; red takes longer than in the baseline, blue less"
    )
    words = said if "colour" in frame else gpu_work_in_words(sums)
    spec = spec_of([trace("icicle", **nodes, **look)], layout)
    return [
        Figure("call-tree", "GPU time in the call tree", words, [], "call_tree", spec)
    ]


def _levels(parents: Sequence[int]) -> int:
    """Return how many levels a tree has; parents stand before their children."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def _colour(row: dict[Hashable, Any]) -> str:
    """Of a kernel that of its category; of an operation a paler one; of a module none."""
    colour = _NO_CATEGORY if row["kind"] == "module" else colour_of(row["category"])
    if row["kind"] != "operation":
        return colour
    return "#" + "".join(
        f"{(part + 255) // 2:02x}" for part in bytes.fromhex(colour[1:])
    )
