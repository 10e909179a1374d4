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
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.html_iteration_bars import (
    Float64Array,
    IterationBars,
    Legend,
    Scale,
    heights_of_marks,
    hover_bars,
    marks_of_odd,
    scale_of,
    stacked_bars,
    wall_lines,
)
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    plotly_text,
)
from tracelens_ext.report.html_timeline import TIMELINE_PIECES
from tracelens_ext.report.tables.charts import MOST_SERIES, NamedRows, ranked

_TIMES_TITLE = "Iterations"
_CATEGORIES_TITLE = "Iterations by category"
_MOST_MARKS = 200
_MOST_FIGURES = 4  # of processes and devices
_IN_SUMMARY = 3  # number of odd iterations in the summary
_TITLE = 60  # the most characters of a name
_ABOVE = 1.08  # the axis reaches this much higher than the highest bar
_FEW_BARS = 12  # fewer bars than this are narrower
# The space between bars, in bars.
_GAP_OF_FEW_BARS = 0.4
_GAP_OF_MANY_BARS = 0.14
_RIGHT = 12  # margin, pixels
_NUMBERED = re.compile(r"(.*\D|)(\d+)", re.DOTALL)
#: The look of the wall time in the legend, in CSS: a line in the color of texts.
_LINE = "linear-gradient(transparent 40%, currentColor 40% 60%, transparent 60%)"
_TIMES = {
    f"{kind}_ms": (name, color_of(kind)) for kind, name in TIMELINE_PIECES.items()
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
        by_category=False,
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
        by_category=True,
    )


def _is_category_time(column: str) -> bool:
    return column.endswith(_CATEGORY_ENDING) and column not in _NO_CATEGORIES


def _numbers(frame: pd.DataFrame, columns: Sequence[str]) -> Float64Array:
    """Return k columns of n numbers as a matrix, (k, n); missing values are 0."""
    values: Float64Array = frame[list(columns)].to_numpy(dtype=np.float64).T
    return np.where(np.isfinite(values), values, 0.0)


def _figure(
    frame: pd.DataFrame,
    legend: Legend,
    times: Float64Array,
    where: str,
    number: int,
    *,
    by_category: bool,
) -> plot.Figure:
    """Draw the iterations of a process and device.

    Args:
        frame: the rows of `iterations`, (n,).
        legend: the name and color of each piece, (k,).
        times: the pieces of each iteration, ms, (k, n).
        where: the process and device in words; empty if there is only one.
        number: the index of the process and device.
        by_category: True if the pieces are categories, False if they are kinds of time. Only a
            chart of kinds of time shows the wall time.
    """
    labels = [str(label) for label in frame["iteration"]]
    (wall,) = _numbers(frame, ["wall_time_ms"])
    bars = IterationBars.of(labels, wall, times)
    drawn_walls = bars.walls
    full_legend = [(elided(name, _TITLE), color) for name, color in legend]
    if by_category:
        drawn_walls = np.zeros_like(bars.walls)
    else:
        full_legend.append(("Wall time", _LINE))

    sums = times.sum(axis=0)
    odd = _odd(frame, by_category=by_category)
    odd_by_distance = _most_unusual_first(odd, sums)
    marked = {index: odd[index] for index in sorted(odd_by_distance[:_MOST_MARKS])}
    scale = scale_of(np.maximum(bars.heights, drawn_walls), sums[list(odd)])
    bar_gap = _GAP_OF_FEW_BARS if len(bars.heights) < _FEW_BARS else _GAP_OF_MANY_BARS

    data = stacked_bars(bars, legend, scale.factor)
    if not by_category:
        data += wall_lines(drawn_walls, scale, piece=len(legend), bar_gap=bar_gap)
    marks = marks_of_odd(
        odd=marked,
        labels=labels,
        wall=wall,
        tops=heights_of_marks(sums, scale),
        per_bar=bars.per_bar,
    )
    data.append(marks)
    data.append(hover_bars(bars, legend))
    texts_of_cut_bars = _texts_of_cut_bars(bars.heights, drawn_walls, scale.ceiling)
    title = _CATEGORIES_TITLE if by_category else _TIMES_TITLE
    return plot.Figure(
        key=_key(title, number),
        title=f"{title}, {elided(where, _TITLE)}" if where else title,
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
            layout=_layout(scale, bar_gap),
            layout_of_width=_layout_by_width(labels, bars.per_bar, texts_of_cut_bars),
        ),
    )


def _most_unusual_first(odd: Iterable[int], sums: Float64Array) -> list[int]:
    """Return indices of iterations, those farthest from the median first.

    Args:
        odd: the indices.
        sums: the time of each iteration, ms, (n,).
    """
    median = float(np.median(sums))
    return sorted(odd, key=lambda index: -abs(sums[index] - median))


def _key(title: str, number: int) -> str:
    """Return the id of a chart in the page; only the first process and device has no number."""
    key = f"chart-{title.lower().replace(' ', '-')}"
    if number:
        return f"{key}-{number}"
    return key


def _layout(scale: Scale, bar_gap: float) -> plot.Plotly:
    """Return the layout for all widths; `bar_gap` is the space between bars, in bars."""
    highest = scale.ceiling * scale.factor * _ABOVE
    return {
        "bargap": bar_gap,
        "yaxis": {
            "autorangeoptions": {"clipmax": highest},
            "rangemode": "tozero",
            "ticksuffix": f" {scale.unit}",
            "nticks": 6,
        },
        # The axis of the invisible bars that carry the texts beside the pointer.
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False},
    }


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
