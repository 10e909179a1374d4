"""The charts of iterations: a vertical bar for each iteration, with marks on unusual ones.

A bar is the GPU time of the work that the iteration launched, plus the idle time in the iteration.
A line across the bar shows the wall time, which differs if the GPU runs behind the host. With very
many iterations, a bar is the mean of several in a row, but each unusual ("odd") iteration has a
mark at its own height. If a few iterations are far longer than the rest (the first one often
compiles), the axis ends below their tops, and a text tells their height.
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

MOST_BARS = 240
_MOST_MARKS = 200
_MOST_FIGURES = 4  # of processes and devices
_IN_SUMMARY = 3  # number of odd iterations in the summary
_IN_HOVER = 6  # number of categories beside the pointer
_TITLE = 60  # the most characters of a name
#: If a bar is more than 6 times as high as the median, the axis ends at 3 times the median.
_FAR_BEYOND = 6.0
_AXIS_ENDS = 3.0
_ABOVE = 1.08  # the axis reaches this much higher than the highest bar
_FEW_BARS = 12  # fewer bars than this are narrower
_RIGHT = 12  # margin, pixels
#: The widths in pixels of the two lines for the wall time. The one behind has the color of the
#: page, so that the other one is visible on any color.
_LINES = (5, 2)
_NUMBERED = re.compile(r"(.*\D|)(\d+)", re.DOTALL)
#: The look of the wall time in the legend, in CSS: a line in the color of texts.
_LINE = "linear-gradient(transparent 40%, currentColor 40% 60%, transparent 60%)"
_TIMES = {
    f"{kind}_ms": (name, color_of(kind)) for kind, name in plot.TIMELINE_PIECES.items()
}
#: How columns of categories end. Columns of other times end so, too.
_CATEGORY_ENDING = "_time_ms"
_NO_CATEGORIES = {"wall_time_ms", "busy_time_ms", "launched_time_ms"} | set(_TIMES)


def iteration_figures(frame: pd.DataFrame) -> list[plot.Figure]:
    """Draw the iterations by kind of time and by category, for each process and device.

    At least two whole iterations are needed.

    Args:
        frame: the table `iterations`.
    """
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
    """Draw the kinds of time that occur in the iterations."""
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
    """Draw the time of each category, the longest first; the shortest ones are one piece."""
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
    """Return k columns of n numbers as a matrix, (k, n); missing values are 0."""
    values: Float64Array = frame[list(columns)].to_numpy(dtype=np.float64).T
    return np.where(np.isfinite(values), values, 0.0)


@dataclass(frozen=True)
class _Bars:
    """The b bars of a chart, each the mean of one iteration or several in a row."""

    per_bar: int  #: number of iterations of a bar; the last bar may have fewer
    names: list[Sequence[str]]  #: the names of the iterations of each bar, (b,)
    heights: Float64Array  #: height of each bar, ms, (b,)
    walls: Float64Array  #: mean wall time of each bar, ms, (b,)
    parts: Float64Array  #: the k pieces of each bar, ms, (k, b)

    @classmethod
    def of(
        cls, labels: Sequence[str], wall: Float64Array, times: Float64Array
    ) -> _Bars:
        """Average n iterations, so that there are not too many bars.

        Args:
            labels: the name of each iteration, (n,).
            wall: the wall time of each iteration, ms, (n,).
            times: the k pieces of each iteration, ms, (k, n).
        """
        per_bar = math.ceil(len(wall) / MOST_BARS)
        starts = np.arange(0, len(wall), per_bar)
        counts = np.diff(np.append(starts, len(wall)))
        rows = np.vstack([times.sum(axis=0), wall, times])
        # The sums from each start to the next one, divided by the number of iterations there.
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
    """Draw the iterations of a process and device.

    Args:
        frame: the rows of `iterations`, (n,).
        legend: the name and color of each piece, (k,).
        times: the pieces of each iteration, ms, (k, n).
        where: the process and device in words; empty if there is only one.
        number: the index of the process and device.
        title: the title of the chart.
    """
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
    odd_by_distance = sorted(odd, key=lambda index: -abs(sums[index] - median))
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
            odd={index: odd[index] for index in sorted(odd_by_distance[:_MOST_MARKS])},
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
    texts_of_cut_bars = _texts_of_cut_bars(bars.heights, wall_lines, ceiling)
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
            data=data,
            layout=layout,
            layout_of_width=_layout_by_width(labels, bars.per_bar, texts_of_cut_bars),
        ),
    )


def _stacked_bars(bars: _Bars, legend: _Legend, scale: float) -> list[plot.Plotly]:
    """Return the pieces of the bars, one trace for each piece."""
    traces = []
    pieces = zip(legend, (bars.parts * scale).tolist(), strict=True)
    for place, ((_, color), heights) in enumerate(pieces):
        trace = plot.plotly_trace(
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
    """Return marks above odd iterations, with the columns in which they are odd beside the pointer.

    Args:
        odd: index of an iteration → the columns in which it is odd.
        labels: the names of all iterations.
        wall: the wall times of all iterations, ms.
        tops: the heights of marks for all iterations.
        per_bar: the number of iterations of a bar.
    """
    hover = []
    for place, columns in odd.items():
        name = plotly_lines(labels[place])
        reason = plotly_lines(columns)
        wall_time = _time_line("wall time", wall[place])
        hover.append(f"<b>{name}</b> is odd<br>{reason}<br>{wall_time}")
    return plot.plotly_trace(
        "scatter",
        plot.WHOLE,
        mode="markers",
        marker=plot.MARK,
        x=[place // per_bar for place in odd],
        y=[float(tops[place]) for place in odd],
        customdata=hover,
    )


def _hover_bars(bars: _Bars, legend: _Legend) -> plot.Plotly:
    """Return invisible bars over the whole height, with texts about the bars beside the pointer."""
    pieces = [name for name, _ in legend]
    hover = []
    for names, wall, times in zip(bars.names, bars.walls, bars.parts.T, strict=True):
        hover.append(_hover(labels=names, wall=wall, times=times, pieces=pieces))
    return plot.plotly_trace(
        "bar",
        customdata=hover,
        width=1,
        marker={"opacity": 0},
        yaxis="y2",
        y=[1] * len(hover),
    )


def _ceiling(heights: Float64Array, of_marks: Float64Array) -> float:
    """Return the end of the axis, ms: above all bars, unless a few are far higher than the rest."""
    highest = float(np.append(heights, of_marks).max())
    median = float(np.median(heights))
    if highest > _FAR_BEYOND * median > 0:
        return _AXIS_ENDS * median
    return highest or 1.0


def _wall_lines(heights: Float64Array, piece: int, reach: float) -> list[plot.Plotly]:
    """Return lines across the bars, which are slightly wider; the style sheet has their colors."""
    x: list[float | None] = []
    y: list[float | None] = []
    for bar, height in enumerate(heights.tolist()):
        x += [bar - reach, bar + reach, None]
        end = None if math.isnan(height) else height
        y += [end, end, None]
    trace = plot.plotly_trace(
        "scatter", piece, mode="lines", x=x, y=y, hoverinfo="skip"
    )
    lines = []
    for pixels in _LINES:
        line = {"width": pixels, "simplify": False}
        lines.append({**trace, "line": line})
    return lines


def _layout_by_width(
    labels: Sequence[str], per_bar: int, texts_of_cut_bars: Sequence[str]
) -> Callable[[int], plot.Plotly]:
    """Return the function that returns the layout for a width in pixels."""
    names_of_iterations, axis_title = _numbered(labels)
    names = names_of_iterations[::per_bar]
    texts_above = [plotly_text(text) for text in texts_of_cut_bars]
    title = plotly_text(elided(axis_title, _TITLE))
    top_margin = 22 if any(texts_above) else 12

    def layout_of_width(page_width: int) -> plot.Plotly:
        is_narrow = plot.is_narrow(page_width)
        left_margin = 46 if is_narrow else 64
        width = page_width - left_margin - _RIGHT
        width_of_names = len(names) * (plot.text_width(names) + 14)
        every = max(1, math.ceil(width_of_names / width))
        edge = max(0.2, len(names) * 0.015)  # space beside the bars, in bars
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
            "annotations": _annotations(texts_above, width),
        }

    return layout_of_width


def _annotations(texts_above: Sequence[str], width: int) -> list[plot.Plotly]:
    """Return the texts above bars that the axis cuts, without those that would overlap.

    Args:
        texts_above: the text of each bar; empty for bars that are not cut.
        width: the width of all bars, pixels.
    """
    texts = list(texts_above) + ["1,234.56 ms"]
    widest = plot.text_width(texts) + 10
    apart = widest * len(texts_above) / width  # least distance of two texts, in bars
    annotations: list[plot.Plotly] = []
    for bar, text in enumerate(texts_above):
        if not text:
            continue
        if annotations and bar - annotations[-1]["x"] < apart:
            continue
        anchor = "center"
        if bar < apart / 2:
            anchor = "left"
        elif bar > len(texts_above) - apart / 2:
            anchor = "right"
        annotations.append(
            {
                "name": plot.WHOLE,
                "text": f"↑ {text}",
                "x": bar,
                "y": 1,
                "xanchor": anchor,
                "yref": "paper",
            }
        )
    return annotations


def _texts_of_cut_bars(
    heights: Float64Array, walls: Float64Array, ceiling: float
) -> list[str]:
    """Return the height of each bar that the axis cuts, or its wall time if only that is cut.

    The text is empty for all other bars.
    """
    texts = []
    bars = zip(heights.tolist(), walls.tolist(), strict=True)
    for height, wall in bars:
        text = ""
        if height > ceiling:
            text = duration_text(height)
        elif wall > ceiling:
            text = f"wall time {duration_text(wall)}"
        texts.append(text)
    return texts


def _odd(frame: pd.DataFrame, *, by_category: bool) -> dict[int, str]:
    """Return index of an odd iteration → the columns of the chart in which it is odd."""
    odd = {}
    for index, text in enumerate(frame["odd"].tolist()):
        columns = [
            column
            for column in str(text or "").split(", ")
            if column and _is_category_time(column) == by_category
        ]
        if columns:
            odd[index] = ", ".join(columns)
    return odd


def _numbered(labels: Sequence[str]) -> tuple[list[str], str]:
    """Return the label below each bar, and the title of the axis.

    Names such as `ProfilerStep#5` have the labels `5` and the title `ProfilerStep#`. Other names
    have their positions as labels, from 1 on.
    """
    numbers = []
    names = set()
    for label in labels:
        match = _NUMBERED.fullmatch(label)
        if match is not None:
            names.add(match[1])
            numbers.append(match[2])
    if len(numbers) == len(labels) and len(names) == 1:
        return numbers, names.pop()
    positions = [str(position) for position in range(1, len(labels) + 1)]
    if len(set(labels)) == 1:
        return positions, labels[0]
    return positions, "iteration, in order of time"


def _hover(
    labels: Sequence[str], wall: float, times: Float64Array, pieces: Sequence[str]
) -> str:
    """Return the text beside the pointer: the iterations, wall time and largest pieces."""
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
    """Return the summary: the number of iterations, their wall time, and the odd ones.

    `odd` has the indices of odd iterations, the most unusual first.
    """
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
