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
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)
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
    f"{kind}_ms": (name, color_of(kind)) for kind, name in plot.TIMELINE_PIECES.items()
}
#: What the names of the columns of categories end in; so do those of other times.
_CATEGORY_ENDING = "_time_ms"
_NO_CATEGORIES = {"wall_time_ms", "busy_time_ms", "launched_time_ms"} | set(_TIMES)


def iteration_figures(frame: pd.DataFrame) -> list[plot.Figure]:
    """Draw the times of the table `iterations`, and by category; two whole ones are needed."""
    whole = frame[frame["whole"].to_numpy(dtype=bool)]
    keys = [key for key in ("process", "device") if key in whole]
    parts: list[tuple[Any, pd.DataFrame]] = [((), whole)]
    if keys:
        parts = list(whole.groupby(keys, sort=False))
    figures: list[plot.Figure] = []
    for number, (values, part) in enumerate(parts[:_MOST_FIGURES]):
        if len(part) < 2:
            continue
        places = [f"{key} {value}" for key, value in zip(keys, values, strict=True)]
        where = ", ".join(places)
        figures.append(_figure_of_times(part, where, number))
        by_category = _figure_by_category(part, where, number)
        if by_category is not None:
            figures.append(by_category)
    return figures


def _figure_of_times(frame: pd.DataFrame, where: str, number: int) -> plot.Figure:
    """Draw the parts of the wall time that occur."""
    times = _numbers(frame, list(_TIMES))
    occurs: list[bool] = [bool(ms.any()) for ms in times]
    legend = list(compress(_TIMES.values(), occurs))
    return _figure(
        frame=frame,
        legend=legend,
        times=times[occurs],
        where=where,
        number=number,
        title=_TIMES_TITLE,
    )


def _figure_by_category(
    frame: pd.DataFrame, where: str, number: int
) -> plot.Figure | None:
    """Draw the time of each category, the longest first; those beyond a dozen are one piece."""
    columns = [name for name in map(str, frame.columns) if _is_category_time(name)]
    categories = [column.removesuffix(_CATEGORY_ENDING) for column in columns]
    longest = ranked(
        rows=NamedRows(names=categories, values=_numbers(frame, columns)),
        only=(),
        most=MOST_SERIES,
    )
    if not longest.names:
        return None
    legend = [(name, color_of(name)) for name in longest.names]
    return _figure(
        frame=frame,
        legend=legend,
        times=longest.values,
        where=where,
        number=number,
        title=_CATEGORIES_TITLE,
    )


def _is_category_time(column: str) -> bool:
    return column.endswith(_CATEGORY_ENDING) and column not in _NO_CATEGORIES


def _numbers(frame: pd.DataFrame, columns: Sequence[str]) -> Float64Array:
    """The numbers of columns, a row each, (k, n); 0 for what is missing."""
    values: Float64Array = frame[list(columns)].to_numpy(dtype=np.float64).T
    return np.where(np.isfinite(values), values, 0.0)


@dataclass(frozen=True)
class _Bars:
    """What the chart shows; of many iterations a bar is the mean of several in a row."""

    per_bar: int  #: iterations of a bar; the last bar may have fewer
    names: list[Sequence[str]]  #: the iterations of each bar, (b,)
    heights: Float64Array  #: ms, (b,)
    walls: Float64Array  #: mean wall time, ms, (b,)
    parts: Float64Array  #: ms by piece of the legend, (k, b)

    @classmethod
    def of(
        cls, labels: Sequence[str], wall: Float64Array, times: Float64Array
    ) -> _Bars:
        """Average iterations, (n,), with times of (k, n), so that there are not too many bars."""
        per_bar = math.ceil(len(wall) / MOST_BARS)
        starts = np.arange(0, len(wall), per_bar)
        counts = np.diff(np.append(starts, len(wall)))
        rows = np.stack([times.sum(axis=0), wall, *times])
        means: Float64Array = np.add.reduceat(rows, starts, axis=1) / counts
        return cls(
            per_bar=per_bar,
            names=[labels[start : start + per_bar] for start in starts.tolist()],
            heights=means[0],
            walls=means[1],
            parts=means[2:],
        )


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
    labels = [str(label) for label in frame["iteration"]]
    (wall,) = _numbers(frame, ["wall_time_ms"])
    bars = _Bars.of(labels, wall, times)
    wall_lines = bars.walls
    if by_category:
        wall_lines = np.zeros_like(bars.walls)

    sums = times.sum(axis=0)
    odd = _odd(frame, by_category=by_category)
    median = float(np.median(sums))
    odd_by_distance = sorted(odd, key=lambda place: -abs(sums[place] - median))
    ceiling = _ceiling(np.maximum(bars.heights, wall_lines), sums[list(odd)])
    axis, scale = plot.axis_of("ms", ceiling)
    gap = 0.4 if len(bars.heights) < _FEW_BARS else 0.14

    data = _stacked_bars(bars, legend, scale)
    if not by_category:
        drawn_walls = np.where(wall_lines <= ceiling, wall_lines * scale, np.nan)
        reach = min(0.5, (1 - gap) / 2 + 0.07)
        data += _wall_lines(heights=drawn_walls, piece=len(legend), reach=reach)
    data.append(
        _marks_of_odd(
            odd={place: odd[place] for place in sorted(odd_by_distance[:_MOST_MARKS])},
            labels=labels,
            wall=wall,
            tops=(np.minimum(sums, ceiling) + 0.025 * ceiling) * scale,
            per_bar=bars.per_bar,
        )
    )
    data.append(_hover_bars(bars, legend))

    highest = ceiling * scale * _ABOVE
    layout = {
        "bargap": gap,
        "yaxis": {
            "autorangeoptions": {"clipmax": highest},
            "rangemode": "tozero",
            "ticksuffix": f" {axis}",
            "nticks": 6,
        },
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False},
    }
    cut_bars = _ends(bars.heights, wall_lines, ceiling)
    full_legend = [(elided(name, _TITLE), color) for name, color in legend]
    if not by_category:
        full_legend.append(("Wall time", _LINE))
    key = f"chart-{title.lower().replace(' ', '-')}"
    if number:
        key = f"{key}-{number}"
    full_title = title
    if where:
        full_title = f"{title}, {elided(where, _TITLE)}"
    return plot.Figure(
        key=key,
        title=full_title,
        summary=_in_words(
            labels=labels,
            wall=wall,
            odd=odd_by_distance,
            per_bar=bars.per_bar,
            by_category=by_category,
        ),
        legend=full_legend,
        sheet="iterations",
        spec=plot.spec_of(
            data=data, layout=layout, rooms=_rooms(labels, bars.per_bar, cut_bars)
        ),
    )


def _stacked_bars(bars: _Bars, legend: _Legend, scale: float) -> list[plot.Plotly]:
    """The pieces of the bars, one trace each."""
    traces = []
    pieces = zip(legend, (bars.parts * scale).tolist(), strict=True)
    for place, ((_, color), heights) in enumerate(pieces):
        trace = plot.trace(
            "bar",
            place,
            y=[height or None for height in heights],
            marker={"color": color},
            hoverinfo="skip",
        )
        traces.append(trace)
    return traces


def _marks_of_odd(
    odd: dict[int, str],
    labels: Sequence[str],
    wall: Float64Array,
    tops: Float64Array,
    per_bar: int,
) -> plot.Plotly:
    """A mark above each odd iteration, at its own height, that says in what it is odd."""
    hover = []
    for place, columns in odd.items():
        name = plotly_lines(labels[place])
        reason = plotly_lines(columns)
        wall_time = _time_line("wall time", wall[place])
        hover.append(f"<b>{name}</b> is odd<br>{reason}<br>{wall_time}")
    return plot.trace(
        "scatter",
        plot.WHOLE,
        mode="markers",
        marker=plot.MARK,
        x=[place // per_bar for place in odd],
        y=[float(tops[place]) for place in odd],
        customdata=hover,
    )


def _hover_bars(bars: _Bars, legend: _Legend) -> plot.Plotly:
    """Unseen bars over the whole height, which say what each bar is."""
    pieces = [name for name, _ in legend]
    hover = []
    for names, wall, times in zip(bars.names, bars.walls, bars.parts.T, strict=True):
        hover.append(_hover(labels=names, wall=wall, times=times, pieces=pieces))
    return plot.trace(
        "bar",
        customdata=hover,
        width=1,
        marker={"opacity": 0},
        yaxis="y2",
        y=[1] * len(hover),
    )


def _ceiling(heights: Float64Array, of_marks: Float64Array) -> float:
    """Where the axis ends, ms: above all, unless a few are far longer than the rest."""
    highest = float(np.append(heights, of_marks).max())
    median = float(np.median(heights))
    if highest > _FAR_BEYOND * median > 0:
        return _AXIS_ENDS * median
    return highest or 1.0


def _wall_lines(heights: Float64Array, piece: int, reach: float) -> list[plot.Plotly]:
    """Lines across each bar, a little wider; the style sheet gives the colors."""
    x: list[float | None] = []
    y: list[float | None] = []
    for bar, height in enumerate(heights.tolist()):
        x += [bar - reach, bar + reach, None]
        end = None if math.isnan(height) else height
        y += [end, end, None]
    trace = plot.trace("scatter", piece, mode="lines", x=x, y=y, hoverinfo="skip")
    lines = []
    for pixels in _LINES:
        line = {"width": pixels, "simplify": False}
        lines.append({**trace, "line": line})
    return lines


def _rooms(
    labels: Sequence[str], per_bar: int, ends: Sequence[str]
) -> Callable[[int], plot.Plotly]:
    """The layout by the width, in px; `ends`: what stands on bars of `per_bar` iterations."""
    names_of_iterations, axis_title = _numbered(labels)
    names = names_of_iterations[::per_bar]
    cut_bars = [plotly_text(end) for end in ends]
    title = plotly_text(elided(axis_title, _TITLE))
    top_margin = 22 if any(ends) else 12

    def room_for(room: int) -> plot.Plotly:
        is_narrow = plot.is_narrow(room)
        left_margin = 46 if is_narrow else 64
        width = room - left_margin - _RIGHT
        width_of_names = len(names) * (plot.text_width(names) + 14)
        every = max(1, math.ceil(width_of_names / width))
        edge = max(0.2, len(names) * 0.015)  # in bars
        return {
            "height": 210 if is_narrow else 260,
            "margin": {"l": left_margin, "r": _RIGHT, "t": top_margin, "b": 42},
            "xaxis": {
                "range": [-0.5 - edge, len(names) - 0.5 + edge],
                "showgrid": False,
                "tickmode": "array",
                "tickvals": list(range(0, len(names), every)),
                "ticktext": [plotly_text(name) for name in names[::every]],
                "tickangle": 0,
                "title": {"text": title},
            },
            "annotations": _annotations(cut_bars, width),
        }

    return room_for


def _annotations(ends: Sequence[str], width: int) -> list[plot.Plotly]:
    """How high the bars are that the axis cuts; of neighbors without room for both, the first."""
    texts = list(ends) + ["1,234.56 ms"]
    widest = plot.text_width(texts) + 10
    apart = widest * len(ends) / width  # in bars
    annotations: list[plot.Plotly] = []
    for bar, end in enumerate(ends):
        if not end:
            continue
        if annotations and bar - annotations[-1]["x"] < apart:
            continue
        anchor = "center"
        if bar < apart / 2:
            anchor = "left"
        elif bar > len(ends) - apart / 2:
            anchor = "right"
        annotations.append(
            {
                "name": plot.WHOLE,
                "text": f"↑ {end}",
                "x": bar,
                "y": 1,
                "xanchor": anchor,
                "yref": "paper",
            }
        )
    return annotations


def _ends(heights: Float64Array, walls: Float64Array, ceiling: float) -> list[str]:
    """What stands on the bars that the axis cuts, or whose line for the wall time is beyond it."""
    ends = []
    bars = zip(heights.tolist(), walls.tolist(), strict=True)
    for height, wall in bars:
        end = ""
        if height > ceiling:
            end = duration_text(height)
        elif wall > ceiling:
            end = f"wall time {duration_text(wall)}"
        ends.append(end)
    return ends


def _odd(frame: pd.DataFrame, *, by_category: bool) -> dict[int, str]:
    """Return the columns of the chart in which iterations are odd, by place of the iteration."""
    odd = {}
    for place, text in enumerate(frame["odd"].tolist()):
        columns = [
            column
            for column in str(text or "").split(", ")
            if column and _is_category_time(column) == by_category
        ]
        if columns:
            odd[place] = ", ".join(columns)
    return odd


def _numbered(labels: Sequence[str]) -> tuple[list[str], str]:
    """What stands below each bar, and what that is: `5` and `ProfilerStep#`; else places."""
    numbers = []
    names = set()
    for label in labels:
        match = _NUMBERED.fullmatch(label)
        if match is not None:
            names.add(match[1])
            numbers.append(match[2])
    if len(numbers) == len(labels) and len(names) == 1:
        return numbers, names.pop()
    places = [str(place) for place in range(1, len(labels) + 1)]
    if len(set(labels)) == 1:
        return places, labels[0]
    return places, "iteration, in order of time"


def _hover(
    labels: Sequence[str], wall: float, times: Float64Array, pieces: Sequence[str]
) -> str:
    """The text beside the pointer: the iterations of a bar, their wall time, the largest parts."""
    name = plotly_lines(labels[0])
    if len(labels) > 1:
        last = plotly_lines(labels[-1])
        name = f"{name} to {last}, mean of {len(labels):,}"
    lines = [f"<b>{name}</b>", _time_line("wall time", wall)]
    whole = float(times.sum())
    longest = np.argsort(-times, kind="stable")[:_IN_HOVER]
    for place in sorted(longest.tolist()):
        ms = times[place]
        if not ms:
            continue
        lines.append(_time_line(name=pieces[place], ms=ms, whole=whole))
    return "<br>".join(lines)


def _time_line(name: str, ms: float, whole: float = 0.0) -> str:
    text = f"{elided(name, _TITLE)}: {duration_text(float(ms))}"
    if whole:
        share = 100.0 * float(ms) / whole
        text = f"{text} ({percent_text(share)})"
    return plotly_text(text)


def _in_words(
    labels: Sequence[str],
    wall: Float64Array,
    odd: Sequence[int],
    per_bar: int,
    *,
    by_category: bool,
) -> str:
    """How many there are, how long they take, which are odd, the farthest off first."""
    if by_category:
        parts = ["Sum of the durations of the GPU work that each iteration launched"]
    else:
        median = duration_text(float(np.median(wall)))
        least = duration_text(float(wall.min()))
        most = duration_text(float(wall.max()))
        count = f"{len(labels):,} iterations"
        parts = [f"{count}, median wall time {median} each, from {least} to {most}"]
    if odd:
        names = [elided(labels[place], 24) for place in odd[:_IN_SUMMARY]]
        text = f"odd (marked): {', '.join(names)}"
        if len(odd) > _IN_SUMMARY:
            text = f"{text} and {len(odd) - _IN_SUMMARY:,} more"
        parts.append(text)
    if per_bar > 1:
        parts.append(f"each bar is the mean of {per_bar:,} consecutive iterations")
    return "; ".join(parts)
