"""The charts of iterations: an upright bar an iteration, in order of time, and the odd ones marked.

A bar is the GPU time of what the iteration launched and the idle time in it. Its wall time differs
where the GPU runs behind the host: a line across the bar shows it.

Of thousands a bar is the mean of several in a row, so that the page stays quick and the bars wide
enough to be seen; every odd iteration keeps a mark at its own height. Where a few iterations are
far longer than the rest (the first one compiles), the axis ends below them, and they say how far
they reach.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of
from tracelens_ext.report.html_figures import (
    MARK,
    TIMELINE_PIECES,
    WHOLE,
    Figure,
    axis_of,
    is_narrow,
    spec_of,
    text_width,
    trace,
)
from tracelens_ext.report.html_text import (
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.tables.charts import MOST_SERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.report.html_figures import Plotly

    Float64Array = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.int64]

MOST_BARS = 240
_MOST_MARKS = 200
_MOST_FIGURES = 4  # processes and devices
_IN_SUMMARY = 3  # odd iterations
_IN_HOVER = 6  # categories
_TITLE = 60  # characters
#: A bar is cut when it is so many times the median, and the axis ends at so many.
_FAR_BEYOND, _AXIS_ENDS = 6.0, 3.0
_ABOVE = 1.08  # of the highest bar: room for what stands on it
_FEW_BARS = 12  # that are narrower than their places
_RIGHT = 12  # pixels
#: Pixels of the lines of wall time: the one behind has the page's colour, so that the other is seen
#: on any.
_LINES = (5, 2)
_NUMBERED = re.compile(r"(.*\D|)(\d+)", re.DOTALL)
_SHEET = "iterations"
_WALL = "Wall time"
#: What stands for it in the legend, as CSS has it: a line in the colour of the page's text.
_LINE = "linear-gradient(transparent 40%, currentColor 40% 60%, transparent 60%)"
_TIMES = tuple((f"{kind}_ms", name, colour) for kind, name, colour in TIMELINE_PIECES)
#: What the names of the columns of categories end in; so do those of other times.
_CATEGORY_ENDING = "_time_ms"
_NO_CATEGORIES = {"wall_time_ms", "busy_time_ms", *(column for column, _, _ in _TIMES)}


@dataclass(frozen=True, eq=False)
class _Bars:
    """Which iterations, of n, make each bar."""

    starts: IntArray  #: the first of each, (b,)
    counts: IntArray  #: how many, (b,)
    most: int  #: how many the largest is made of

    @classmethod
    def of(cls, count: int) -> _Bars:
        """As many bars as have room, with as many iterations each, except for the last."""
        most = -(-count // MOST_BARS)
        starts = np.arange(0, count, most)
        return cls(starts, np.diff(np.append(starts, count)), most)

    def means(self, values: Float64Array) -> Float64Array:
        """The mean of each bar's iterations, (b,)."""
        means: Float64Array = np.add.reduceat(values, self.starts) / self.counts
        return means


@dataclass(frozen=True, eq=False)
class _Piece:
    """What bars are divided into: a name, a colour, and ms of each iteration, (n,)."""

    name: str
    colour: str
    values: Float64Array


def iteration_figures(frame: pd.DataFrame) -> list[Figure]:
    """Draw what each iteration's time was, and by category where the table has them.

    `frame`: the table `iterations`. Those that are not whole are left out; where fewer than two are
    left there is nothing to see.
    """
    whole = frame[frame["whole"].to_numpy(dtype=bool)]
    keys = [key for key in ("process", "device") if key in whole]
    parts: list[tuple[str, pd.DataFrame]] = [("", whole)]
    if keys:
        parts = [
            (", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True)), part)
            for values, part in whole.groupby(keys, sort=False)
        ]
    figures: list[Figure] = []
    for number, (where, part) in enumerate(parts[:_MOST_FIGURES]):
        if len(part) > 1:
            figures.append(_figure(part, _time_pieces(part), "Iterations", where, number))
            if categories := _category_pieces(part):
                title = "Iterations by category"
                figures.append(_figure(part, categories, title, where, number))
    return figures


def _time_pieces(frame: pd.DataFrame) -> list[_Piece]:
    """How the time of iterations divides; without what none of them has."""
    pieces = [_Piece(name, colour, _numbers(frame, column)) for column, name, colour in _TIMES]
    return [piece for piece in pieces if piece.values.any()]


def _category_pieces(frame: pd.DataFrame) -> list[_Piece]:
    """The summed durations by category, the longest first; those beyond a dozen are one piece."""
    found = {
        str(column).removesuffix(_CATEGORY_ENDING): _numbers(frame, str(column))
        for column in frame.columns
        if _is_category_time(str(column))
    }
    order = sorted(found, key=lambda name: -float(found[name].sum()))
    order = [name for name in order if found[name].any()]
    most = len(order) if len(order) <= MOST_SERIES + 1 else MOST_SERIES
    shown, rest = order[:most], order[most:]
    pieces = [_Piece(name, colour_of(name), found[name]) for name in shown]
    if rest:
        name = f"({len(rest):,} others)"
        values = np.sum([found[each] for each in rest], axis=0)
        pieces.append(_Piece(name, colour_of(name), values))
    return pieces


def _is_category_time(column: str) -> bool:
    return column.endswith(_CATEGORY_ENDING) and column not in _NO_CATEGORIES


def _numbers(frame: pd.DataFrame, column: str) -> Float64Array:
    values: Float64Array = frame[column].to_numpy(dtype=np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _figure(
    frame: pd.DataFrame, pieces: Sequence[_Piece], title: str, where: str, number: int
) -> Figure:
    by_category = title != "Iterations"
    labels = [str(label) for label in frame["iteration"].tolist()]
    wall = _numbers(frame, "wall_time_ms")
    sums = np.sum([wall * 0, *(piece.values for piece in pieces)], axis=0)
    odd = _odd(frame, by_category=by_category)
    bars = _Bars.of(len(frame))
    heights = bars.means(sums)
    walls = heights * 0 if by_category else bars.means(wall)
    ceiling = _ceiling(np.maximum(heights, walls), sums[list(odd)])
    axis, scale = axis_of("ms", ceiling)
    numbered, counted_in = _numbered(labels)
    marked = sorted(odd, key=lambda at: -abs(sums[at] - float(np.median(sums))))

    def heights_of(piece: _Piece) -> list[float | None]:
        return [value or None for value in (bars.means(piece.values) * scale).tolist()]

    gap = 0.4 if len(heights) < _FEW_BARS else 0.14
    data = [
        trace("bar", place, y=heights_of(piece), marker={"color": piece.colour}, hoverinfo="skip")
        for place, piece in enumerate(pieces)
    ]
    if not by_category:
        drawn = np.where(walls <= ceiling, walls * scale, np.nan)
        data += _wall_lines(drawn, len(pieces), min(0.5, (1 - gap) / 2 + 0.07))
    shown = sorted(marked[:_MOST_MARKS])
    tops = [(min(float(sums[at]), ceiling) + 0.025 * ceiling) * scale for at in shown]
    told = [
        f"<b>{plotly_lines(labels[at])}</b> is odd<br>{plotly_lines(odd[at])}<br>"
        + _time_line("wall time", wall[at])
        for at in shown
    ]
    places = [at // bars.most for at in shown]
    look = {"mode": "markers", "marker": MARK}
    data.append(trace("scatter", WHOLE, x=places, y=tops, customdata=told, **look))
    # Over the whole height of each bar: what it is.
    hover, unseen = _hovers(labels, wall, pieces, bars), {"width": 1, "marker": {"opacity": 0}}
    data.append(trace("bar", yaxis="y2", y=[1] * len(heights), customdata=hover, **unseen))
    clip = {"autorangeoptions": {"clipmax": ceiling * scale * _ABOVE}, "rangemode": "tozero"}
    layout = {
        "bargap": gap,
        "yaxis": {**clip, "ticksuffix": f" {axis}", "nticks": 6},
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False},
    }
    names = [numbered[start] for start in bars.starts.tolist()]
    ends = _ends(heights, walls, ceiling)
    rooms = partial(_layout, names=names, across=elided(counted_in, _TITLE), ends=ends)
    return Figure(
        key=f"chart-{title.lower().replace(' ', '-')}" + (f"-{number}" if number else ""),
        title=f"{title}, {elided(where, _TITLE)}" if where else title,
        summary=_in_words(labels, wall, marked, bars.most, by_category=by_category),
        legend=[
            *((elided(piece.name, _TITLE), piece.colour) for piece in pieces),
            *([] if by_category else [(_WALL, _LINE)]),
        ],
        sheet=_SHEET,
        spec=spec_of(data, layout, rooms),
    )


def _wall_lines(heights: Float64Array, piece: int, reach: float) -> list[Plotly]:
    """Lines across each bar, a little wider; the style sheet gives the colours."""
    ys = [None if math.isnan(height) else height for height in heights.tolist()]
    x = [x for bar in range(len(ys)) for x in (bar - reach, bar + reach, None)]
    y = [y for height in ys for y in (height, height, None)]
    line = trace("scatter", piece, mode="lines", x=x, y=y, hoverinfo="skip")
    return [{**line, "line": {"width": pixels, "simplify": False}} for pixels in _LINES]


def _layout(room: int, *, names: Sequence[str], across: str, ends: Sequence[str]) -> Plotly:
    left = 46 if is_narrow(room) else 64
    width = room - left - _RIGHT
    every = max(1, math.ceil(len(names) * (text_width(names) + 14) / width))
    edge = max(0.2, len(names) * 0.015)  # bars
    return {
        "height": 210 if is_narrow(room) else 260,
        "margin": {"l": left, "r": _RIGHT, "t": 22 if any(ends) else 12, "b": 42},
        "xaxis": {
            "range": [-0.5 - edge, len(names) - 0.5 + edge],
            "showgrid": False,
            "tickmode": "array",
            "tickvals": [*range(0, len(names), every)],
            "ticktext": [plotly_text(name) for name in names[::every]],
            "tickangle": 0,
            "title": {"text": plotly_text(across)},
        },
        "annotations": _annotations([*map(plotly_text, ends)], width),
    }


def _annotations(ends: Sequence[str], width: int) -> list[Plotly]:
    """How high the bars are that the axis cuts; of neighbours without room for both, the first."""
    apart = (text_width(["1,234.56 ms", *ends]) + 10) * len(ends) / width  # bars
    found: list[Plotly] = []
    for bar, end in enumerate(ends):
        if end and (not found or bar - found[-1]["x"] >= apart):
            edge = "right" if bar > len(ends) - apart / 2 else "center"
            side = {"xanchor": "left" if bar < apart / 2 else edge, "yref": "paper"}
            found.append({"name": WHOLE, "text": f"↑ {end}", "x": bar, "y": 1, **side})
    return found


def _odd(frame: pd.DataFrame, *, by_category: bool) -> dict[int, str]:
    """Which iterations are odd in what the chart shows, and in which columns that is."""
    found = {}
    for at, told in enumerate(frame["odd"].tolist()):
        columns = [column for column in str(told or "").split(", ") if column]
        columns = [column for column in columns if _is_category_time(column) == by_category]
        if columns:
            found[at] = ", ".join(columns)
    return found


def _ends(heights: Float64Array, walls: Float64Array, ceiling: float) -> list[str]:
    """What stands on the bars that the axis cuts, or whose line for the wall time is beyond it."""
    return [
        duration_text(height)
        if height > ceiling
        else f"wall time {duration_text(wall)}"
        if wall > ceiling
        else ""
        for height, wall in zip(heights.tolist(), walls.tolist(), strict=True)
    ]


def _ceiling(heights: Float64Array, of_marks: Float64Array) -> float:
    """Where the axis ends, ms: above all, unless a few are far longer than the rest."""
    highest = float(max(heights.max(initial=0.0), of_marks.max(initial=0.0)))
    median = float(np.median(heights)) if len(heights) else 0.0
    return _AXIS_ENDS * median if highest > _FAR_BEYOND * median > 0 else highest or 1.0


def _numbered(labels: Sequence[str]) -> tuple[list[str], str]:
    """What stands below each bar, and what that is: `5` and `ProfilerStep#`; else places."""
    found = [_NUMBERED.fullmatch(label) for label in labels]
    numbers = [match[2] for match in found if match is not None]
    before = {match[1] for match in found if match is not None}
    if len(numbers) == len(labels) and len(before) == 1:
        return numbers, before.pop()
    places = [str(place) for place in range(1, len(labels) + 1)]
    return places, labels[0] if len(set(labels)) == 1 else "iteration, in order of time"


def _hovers(
    labels: Sequence[str], wall: Float64Array, pieces: Sequence[_Piece], bars: _Bars
) -> list[str]:
    """What is said of each bar beside the pointer: its iterations, wall time, and largest parts."""
    walls = bars.means(wall)
    means = [bars.means(piece.values) for piece in pieces]
    of_pieces = np.array(means).reshape(len(pieces), len(walls))
    texts = []
    each = zip(bars.starts.tolist(), bars.counts.tolist(), strict=True)
    for bar, (start, count) in enumerate(each):
        name = plotly_lines(labels[start])
        if count > 1:
            last = plotly_lines(labels[start + count - 1])
            name = f"{name} to {last}, mean of {count:,}"
        whole = float(of_pieces[:, bar].sum())
        largest = np.argsort(-of_pieces[:, bar], kind="stable")[:_IN_HOVER].tolist()
        lines = [f"<b>{name}</b>", _time_line("wall time", walls[bar])]
        lines += [
            _time_line(pieces[at].name, of_pieces[at, bar], whole)
            for at in sorted(largest)
            if of_pieces[at, bar]
        ]
        texts.append("<br>".join(lines))
    return texts


def _time_line(name: str, ms: float, whole: float = 0.0) -> str:
    share = f" ({percent_text(100.0 * float(ms) / whole)})" if whole else ""
    return plotly_text(f"{elided(name, _TITLE)}: {duration_text(float(ms))}{share}")


def _in_words(
    labels: Sequence[str], wall: Float64Array, odd: Sequence[int], a_bar: int, *, by_category: bool
) -> str:
    """How many there are, how long they take, which are odd, the farthest off first."""
    middle, least, most = (duration_text(float(f(wall))) for f in (np.median, np.min, np.max))
    count = f"{len(labels):,} iterations"
    parts = [f"{count}, wall time {middle} each at the median, {least} to {most}"]
    if by_category:
        parts = ["Summed durations of the GPU work that each of them launched"]
    if odd:
        named = ", ".join(elided(labels[at], 24) for at in odd[:_IN_SUMMARY])
        more = f" and {len(odd) - _IN_SUMMARY:,} more" if len(odd) > _IN_SUMMARY else ""
        parts.append(f"odd (marked): {named}{more}")
    if a_bar > 1:
        parts.append(f"a bar is the mean of {a_bar:,} in a row")
    return "; ".join(parts)
