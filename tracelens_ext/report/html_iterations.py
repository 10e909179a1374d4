"""The charts of iterations: an upright bar an iteration, in order of time, and the odd ones marked.

A bar is the GPU time of what the iteration launched and the idle time in it; a line across it shows
its wall time, which differs where the GPU runs behind the host. Of thousands a bar is the mean of
several in a row; every odd iteration keeps a mark at its own height. Where a few are far longer
than the rest (the first one compiles), the axis ends below them, and they say how far they reach.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import colour_of
from tracelens_ext.report.tables.charts import MOST_SERIES, NamedRows, ranked

_Legend = Sequence[tuple[str, str]]
_TIMES_TITLE = "Iterations"
_CATEGORIES_TITLE = "Iterations by category"
Float64Array = npt.NDArray[np.float64]

# the last of processes and devices
MOST_BARS = 240
_MOST_MARKS = 200
_MOST_FIGURES = 4
# odd iterations, categories, characters
_IN_SUMMARY = 3
_IN_HOVER = 6
_TITLE = 60
#: A bar is cut when it is so many times the median, and the axis ends at so many.
_FAR_BEYOND = 6.0
_AXIS_ENDS = 3.0
_ABOVE = 1.08  # of the highest bar: room for what stands on it
# that are narrower than their places; pixels
_FEW_BARS = 12
_RIGHT = 12
#: Pixels of the lines of wall time: the one behind has the page's color, so that the other is seen
#: on any.
_LINES = (5, 2)
_NUMBERED = re.compile(r"(.*\D|)(\d+)", re.DOTALL)
#: Wall time in the legend, as CSS has it: a line in the color of the page's text.
_LINE = "linear-gradient(transparent 40%, currentColor 40% 60%, transparent 60%)"
_TIMES = {
    f"{kind}_ms": (name, colour_of(kind)) for kind, name in plot.TIMELINE_PIECES.items()
}
#: What the names of the columns of categories end in; so do those of other times.
_CATEGORY_ENDING = "_time_ms"
_NO_CATEGORIES = {"wall_time_ms", "busy_time_ms", *_TIMES}


def iteration_figures(frame: pd.DataFrame) -> list[plot.Figure]:
    """Draw the times of the table `iterations`, and by category; two whole ones are needed."""
    whole = frame[frame["whole"].to_numpy(dtype=bool)]
    keys = [key for key in ("process", "device") if key in whole]
    parts: list[tuple[Any, pd.DataFrame]]
    parts = [*whole.groupby(keys, sort=False)] if keys else [((), whole)]
    categories = [
        column for column in map(str, frame.columns) if _is_category_time(column)
    ]
    names = [column.removesuffix(_CATEGORY_ENDING) for column in categories]
    figures: list[plot.Figure] = []
    for number, (values, part) in enumerate(parts[:_MOST_FIGURES]):
        where = ", ".join(
            f"{key} {value}" for key, value in zip(keys, values, strict=True)
        )
        if len(part) > 1:
            times = _numbers(part, [*_TIMES])
            some: list[bool] = [bool(ms.any()) for ms in times]
            legend = [*compress(_TIMES.values(), some)]
            figures.append(
                _figure(part, legend, times[some], where, number, _TIMES_TITLE)
            )
            # The longest first; those beyond a dozen are one piece.
            most = ranked(NamedRows(names, _numbers(part, categories)), (), MOST_SERIES)
            ranks = most.names
            times = most.values
            if ranks:
                legend = [(name, colour_of(name)) for name in ranks]
                figures.append(
                    _figure(part, legend, times, where, number, _CATEGORIES_TITLE)
                )
    return figures


def _is_category_time(column: str) -> bool:
    return column.endswith(_CATEGORY_ENDING) and column not in _NO_CATEGORIES


def _numbers(frame: pd.DataFrame, columns: Sequence[str]) -> Float64Array:
    """The numbers of columns, a row each, (k, n); 0 for what is missing."""
    values: Float64Array = frame[list(columns)].to_numpy(dtype=np.float64).T
    return np.where(np.isfinite(values), values, 0.0)


def _figure(
    frame: pd.DataFrame,
    legend: _Legend,
    times: Float64Array,
    where: str,
    number: int,
    title: str,
) -> plot.Figure:
    """Draw ms of each iteration, (k, n), of the pieces in the legend: name and color."""
    by_category = title == _CATEGORIES_TITLE
    labels = [*map(str, frame["iteration"])]
    (wall,) = _numbers(frame, ["wall_time_ms"])
    sums = times.sum(axis=0)
    odd = _odd(frame, by_category=by_category)
    most = -(-len(wall) // MOST_BARS)  # iterations of a bar; the last may have fewer
    starts = np.arange(0, len(wall), most)
    counts = np.diff(np.append(starts, len(wall)))
    means: Float64Array = np.add.reduceat([sums, wall, *times], starts, axis=1) / counts
    heights = means[0]
    mean_walls = means[1]
    parts = means[2:]
    walls = heights * 0 if by_category else mean_walls
    ceiling = _ceiling(np.maximum(heights, walls), sums[list(odd)])
    axis, scale = plot.axis_of("ms", ceiling)
    marked = sorted(odd, key=lambda at: -abs(sums[at] - float(np.median(sums))))
    shown = sorted(marked[:_MOST_MARKS])
    gap = 0.4 if len(heights) < _FEW_BARS else 0.14
    data = []
    for place, ((_, colour), ms) in enumerate(
        zip(legend, (parts * scale).tolist(), strict=True)
    ):
        look = {"marker": {"color": colour}, "hoverinfo": "skip"}
        data.append(plot.trace("bar", place, y=[each or None for each in ms], **look))
    if not by_category:
        heights_of_walls = np.where(walls <= ceiling, walls * scale, np.nan)
        data += _wall_lines(
            heights_of_walls, len(legend), min(0.5, (1 - gap) / 2 + 0.07)
        )
    told = [
        f"<b>{plot.plotly_lines(labels[at])}</b> is odd<br>{plot.plotly_lines(odd[at])}<br>"
        + _time_line("wall time", wall[at])
        for at in shown
    ]
    tops = [(min(float(sums[at]), ceiling) + 0.025 * ceiling) * scale for at in shown]
    marks = {"x": [at // most for at in shown], "y": tops, "customdata": told}
    data.append(
        plot.trace("scatter", plot.WHOLE, mode="markers", marker=plot.MARK, **marks)
    )
    # Over the whole height of each bar: what it is.
    bars = [labels[start : start + most] for start in starts.tolist()]
    names = [name for name, _ in legend]
    hover = [
        _hover(*each, names) for each in zip(bars, mean_walls, parts.T, strict=True)
    ]
    unseen = {"width": 1, "marker": {"opacity": 0}, "yaxis": "y2", "y": [1] * len(bars)}
    data.append(plot.trace("bar", customdata=hover, **unseen))
    clip = {
        "autorangeoptions": {"clipmax": ceiling * scale * _ABOVE},
        "rangemode": "tozero",
    }
    layout = {
        "bargap": gap,
        "yaxis": {**clip, "ticksuffix": f" {axis}", "nticks": 6},
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False},
    }
    told_legend = [(plot.elided(name, _TITLE), colour) for name, colour in legend]
    return plot.Figure(
        key=f"chart-{title.lower().replace(' ', '-')}"
        + (f"-{number}" if number else ""),
        title=f"{title}, {plot.elided(where, _TITLE)}" if where else title,
        summary=_in_words(labels, wall, marked, most, by_category=by_category),
        legend=told_legend if by_category else [*told_legend, ("Wall time", _LINE)],
        sheet="iterations",
        spec=plot.spec_of(
            data, layout, _rooms(labels, most, _ends(heights, walls, ceiling))
        ),
    )


def _ceiling(heights: Float64Array, of_marks: Float64Array) -> float:
    """Where the axis ends, ms: above all, unless a few are far longer than the rest."""
    highest = float(np.append(heights, of_marks).max())
    median = float(np.median(heights))
    return _AXIS_ENDS * median if highest > _FAR_BEYOND * median > 0 else highest or 1.0


def _wall_lines(heights: Float64Array, piece: int, reach: float) -> list[plot.Plotly]:
    """Lines across each bar, a little wider; the style sheet gives the colors."""
    ys = [None if math.isnan(height) else height for height in heights.tolist()]
    x = [x for bar in range(len(ys)) for x in (bar - reach, bar + reach, None)]
    y = [y for height in ys for y in (height, height, None)]
    line = plot.trace("scatter", piece, mode="lines", x=x, y=y, hoverinfo="skip")
    return [{**line, "line": {"width": pixels, "simplify": False}} for pixels in _LINES]


def _rooms(
    labels: Sequence[str], most: int, ends: Sequence[str]
) -> Callable[[int], plot.Plotly]:
    """The layout by the width, in px; `ends`: what stands on bars of `most` iterations."""
    numbered, across = _numbered(labels)
    names = numbered[::most]
    above = [*map(plot.plotly_text, ends)]

    def room_for(room: int) -> plot.Plotly:
        narrow = plot.is_narrow(room)
        left = 46 if narrow else 64
        width = room - left - _RIGHT
        every = max(1, math.ceil(len(names) * (plot.text_width(names) + 14) / width))
        edge = max(0.2, len(names) * 0.015)  # bars
        return {
            "height": 210 if narrow else 260,
            "margin": {"l": left, "r": _RIGHT, "t": 22 if any(ends) else 12, "b": 42},
            "xaxis": {
                "range": [-0.5 - edge, len(names) - 0.5 + edge],
                "showgrid": False,
                "tickmode": "array",
                "tickvals": [*range(0, len(names), every)],
                "ticktext": [*map(plot.plotly_text, names[::every])],
                "tickangle": 0,
                "title": {"text": plot.plotly_text(plot.elided(across, _TITLE))},
            },
            "annotations": _annotations(above, width),
        }

    return room_for


def _annotations(ends: Sequence[str], width: int) -> list[plot.Plotly]:
    """How high the bars are that the axis cuts; of neighbors without room for both, the first."""
    apart = (plot.text_width(["1,234.56 ms", *ends]) + 10) * len(ends) / width  # bars
    found: list[plot.Plotly] = []
    for bar, end in enumerate(ends):
        if end and (not found or bar - found[-1]["x"] >= apart):
            edge = "right" if bar > len(ends) - apart / 2 else "center"
            side = {"xanchor": "left" if bar < apart / 2 else edge, "yref": "paper"}
            found.append(
                {"name": plot.WHOLE, "text": f"↑ {end}", "x": bar, "y": 1, **side}
            )
    return found


def _ends(heights: Float64Array, walls: Float64Array, ceiling: float) -> list[str]:
    """What stands on the bars that the axis cuts, or whose line for the wall time is beyond it."""
    ends = []
    for height, wall in zip(heights.tolist(), walls.tolist(), strict=True):
        if height > ceiling:
            ends.append(plot.duration_text(height))
        else:
            ends.append(
                f"wall time {plot.duration_text(wall)}" if wall > ceiling else ""
            )
    return ends


def _odd(frame: pd.DataFrame, *, by_category: bool) -> dict[int, str]:
    """Which iterations are odd in what the chart shows, and in which columns that is."""
    odd = {}
    for at, told in enumerate(frame["odd"].tolist()):
        names = filter(None, str(told or "").split(", "))
        if of_chart := [
            name for name in names if _is_category_time(name) == by_category
        ]:
            odd[at] = ", ".join(of_chart)
    return odd


def _numbered(labels: Sequence[str]) -> tuple[list[str], str]:
    """What stands below each bar, and what that is: `5` and `ProfilerStep#`; else places."""
    found = [match.groups() for match in map(_NUMBERED.fullmatch, labels) if match]
    before = {name for name, _ in found}
    if len(found) == len(labels) and len(before) == 1:
        return [number for _, number in found], before.pop()
    places = [str(place) for place in range(1, len(labels) + 1)]
    return places, labels[0] if len(set(labels)) == 1 else "iteration, in order of time"


def _hover(
    labels: Sequence[str], wall: float, times: Float64Array, names: Sequence[str]
) -> str:
    """What is said of a bar beside the pointer: its iterations, wall time, and largest parts."""
    name = plot.plotly_lines(labels[0])
    if len(labels) > 1:
        name = f"{name} to {plot.plotly_lines(labels[-1])}, mean of {len(labels):,}"
    whole = float(times.sum())
    order = np.argsort(-times, kind="stable")[:_IN_HOVER]
    largest = [at for at in sorted(order.tolist()) if times[at]]
    lines = [_time_line(names[at], times[at], whole) for at in largest]
    return "<br>".join([f"<b>{name}</b>", _time_line("wall time", wall), *lines])


def _time_line(name: str, ms: float, whole: float = 0.0) -> str:
    share = f" ({plot.percent_text(100.0 * float(ms) / whole)})" if whole else ""
    return plot.plotly_text(
        f"{plot.elided(name, _TITLE)}: {plot.duration_text(float(ms))}{share}"
    )


def _in_words(
    labels: Sequence[str],
    wall: Float64Array,
    odd: Sequence[int],
    a_bar: int,
    *,
    by_category: bool,
) -> str:
    """How many there are, how long they take, which are odd, the farthest off first."""
    middle, least, most = (
        plot.duration_text(float(f(wall))) for f in (np.median, np.min, np.max)
    )
    count = f"{len(labels):,} iterations"
    parts = [f"{count}, median wall time {middle} each, from {least} to {most}"]
    if by_category:
        parts = ["Sum of the durations of the GPU work that each iteration launched"]
    if odd:
        named = ", ".join(plot.elided(labels[at], 24) for at in odd[:_IN_SUMMARY])
        more = f" and {len(odd) - _IN_SUMMARY:,} more" if len(odd) > _IN_SUMMARY else ""
        parts.append(f"odd (marked): {named}{more}")
    if a_bar > 1:
        parts.append(f"each bar is the mean of {a_bar:,} consecutive iterations")
    return "; ".join(parts)
