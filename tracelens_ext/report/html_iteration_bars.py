"""The bars, lines and marks in a chart of iterations, without the axes and texts around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)

Legend = Sequence[tuple[str, str]]  # name and color (CSS) of each piece of the bars
Float64Array = npt.NDArray[np.float64]

MOST_BARS = 240  # more iterations share bars
_IN_HOVER = 6  # number of pieces beside the pointer
#: If a bar is more than 6 times as high as the median, the axis ends at 3 times the median.
_FAR_BEYOND = 6.0
_AXIS_ENDS = 3.0
#: How far a line for the wall time reaches beyond each side of its bar, in bars.
_LINE_BESIDE_BAR = 0.07
_MARK_ABOVE = 0.025  # distance of a mark from its bar, as a part of the axis
#: The widths in pixels of the two lines for the wall time. The one behind has the color of the
#: page, so that the other one is visible on any color.
_LINES = (5, 2)
_NAME_CHARACTERS = 60  # the most characters of a name beside the pointer


@dataclass(frozen=True)
class IterationBars:
    """The b bars of a chart, each the mean of one iteration or several in a row."""

    per_bar: int  #: number of iterations of a bar; the last bar may have fewer
    names: list[Sequence[str]]  #: the names of the iterations of each bar, (b,)
    heights: Float64Array  #: height of each bar, ms, (b,)
    walls: Float64Array  #: mean wall time of each bar, ms, (b,)
    parts: Float64Array  #: the k pieces of each bar, ms, (k, b)

    @classmethod
    def of(
        cls, labels: Sequence[str], wall: Float64Array, times: Float64Array
    ) -> IterationBars:
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


class Scale(NamedTuple):
    """The vertical axis."""

    ceiling: float  #: the end of the axis, ms; higher bars are cut
    unit: str  #: the unit of the axis
    factor: float  #: converts ms to that unit


def scale_of(heights: Float64Array, heights_of_odd: Float64Array) -> Scale:
    """Return the axis for bars and marks of some heights, ms."""
    ceiling = _ceiling(heights, heights_of_odd)
    unit, factor = plot.axis_of("ms", ceiling)
    return Scale(ceiling=ceiling, unit=unit, factor=factor)


def _ceiling(heights: Float64Array, heights_of_odd: Float64Array) -> float:
    """Return the end of the axis, ms: above all bars, unless a few are far higher than the rest."""
    highest = float(np.append(heights, heights_of_odd).max())
    median = float(np.median(heights))
    if highest > _FAR_BEYOND * median > 0:
        return _AXIS_ENDS * median
    return highest or 1.0


def stacked_bars(
    bars: IterationBars, legend: Legend, scale: float
) -> list[plot.Plotly]:
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


def wall_lines(
    walls: Float64Array, scale: Scale, piece: int, bar_gap: float
) -> list[plot.Plotly]:
    """Return lines across the bars, which are slightly wider; the style sheet has their colors.

    Args:
        walls: the wall time of each bar, ms, (b,). A time above the end of the axis has no line.
        scale: the vertical axis.
        piece: the index of the wall time in the legend.
        bar_gap: the space between bars, in bars.
    """
    heights = np.where(walls <= scale.ceiling, walls * scale.factor, np.nan)
    reach = min(0.5, (1 - bar_gap) / 2 + _LINE_BESIDE_BAR)
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


def marks_of_odd(
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


def heights_of_marks(sums: Float64Array, scale: Scale) -> Float64Array:
    """Return the height of a mark slightly above each iteration, in the unit of the axis."""
    tops = np.minimum(sums, scale.ceiling) + _MARK_ABOVE * scale.ceiling
    return tops * scale.factor


def hover_bars(bars: IterationBars, legend: Legend) -> plot.Plotly:
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
    text = f"{elided(name, _NAME_CHARACTERS)}: {duration_text(float(ms))}"
    if whole:
        share = 100.0 * float(ms) / whole
        text = f"{text} ({percent_text(share)})"
    return plotly_text(text)
