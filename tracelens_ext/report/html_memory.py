"""The memory charts of an HTML page, one for each device.

A chart shows the allocated and reserved memory over time, and beside it the largest of the memory
blocks that were alive at the peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import GREY, ONE_COLOR
from tracelens_ext.report.html_texts import (
    bytes_text,
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)

_IN_SUMMARY = 3  # number of owners in the summary
_HOST = -1  # the device number of the CPU
_MOST_FIGURES = 4  # of devices
_MOST_BARS = 10  # the smaller owners are one more bar
_NAME_CHARACTERS = 36  # the most characters of a name
#: A device is drawn if its peak is at least this part of the highest peak. The host of a job on
#: GPUs only allocates a few bytes.
_WORTH_DRAWING = 0.01
#: Operations that only allocate memory: the operations around them tell what it is for.
_ONLY_ALLOCATE = ("aten::empty", "aten::resize_")
_AUTOGRAD = "autograd::engine::evaluate_function: "
_WIDTH_OF_ITERATION_NAME = 95  # pixels
_RESERVED = "#e58a2b"  # the color of the line of reserved memory
_ALLOCATED_PIECE = 0  # the index of the line of allocated memory in the legend
_SHORTEST_AXIS_MS = 1e-3
# A bar and the text above it, in rows of bars.
_BAR_THICKNESS = 0.36
_TEXT_ABOVE_BAR = 0.2
# From half a row above the first text to half a row below the last bar.
_FIRST_BAR_ROW_BEGINS = -0.9
_LAST_BAR_ROW_ENDS = -0.4
#: Phase → color; the phase of other memory is empty.
_COLOR_OF_PHASE = {
    "": GREY,
    "forward": "#2f9e73",
    "backward": "#8d6bc7",
    "optimizer": "#b5651d",
}


def memory_figures(sheets: Mapping[str, pd.DataFrame]) -> list[plot.Figure]:
    """Draw the memory of each device, the device with the highest peak first."""
    peak_table = sheets["memory_at_peak"]
    over_time = sheets.get("memory_over_time")
    if over_time is None:
        return []
    peaks = peak_table.groupby("device")["bytes"].sum().sort_values(ascending=False)
    is_worth_drawing = peaks >= _WORTH_DRAWING * peaks.max()
    devices = peaks.index[is_worth_drawing].tolist()
    figures = []
    for device in devices[:_MOST_FIGURES]:
        levels = over_time[over_time["device"] == device]
        if not len(levels):
            continue
        figure = _memory_figure(
            at_peak=peak_table[peak_table["device"] == device],
            over_time=levels,
            iterations=sheets.get("memory_iterations"),
        )
        figures.append(figure)
    return figures


def _memory_figure(
    at_peak: pd.DataFrame, over_time: pd.DataFrame, iterations: pd.DataFrame | None
) -> plot.Figure:
    """Draw the memory of a device over time, and beside it the memory that was alive at the peak.

    Args:
        at_peak: the rows of `memory_at_peak` for the device.
        over_time: the rows of `memory_over_time` for the device.
        iterations: the table `memory_iterations`; None if there is none.
    """
    device = int(over_time["device"].iloc[0])
    owner = "the CPU" if device == _HOST else f"device {device}"
    peak_bytes = int(at_peak["bytes"].sum())
    peak_moment = _peak_moment(over_time)
    bars = _labelled_bars(at_peak, peak_bytes)
    curves = _memory_curves(over_time)
    bars_of_phases = _bars_of_phases(bars, pieces_before=len(curves.legend))
    iteration_starts = []
    if iterations is not None:
        iteration_starts = iterations["start_ms"].tolist()
    layout_of_width = partial(
        _memory_layout,
        time_range=_time_range(over_time["at_ms"].tolist(), iteration_starts),
        bar_count=len(bars),
        iterations=iterations,
    )
    start_lines = [plot.start_line(ms, "y domain") for ms in iteration_starts]
    return plot.Figure(
        key=f"chart-memory-{device}",
        title=f"Memory of {owner}",
        summary=_memory_in_words(bars, peak_bytes, peak_moment.ms),
        legend=curves.legend + bars_of_phases.legend,
        sheet="memory_at_peak",
        spec=plot.spec_of(
            data=curves.traces + [_peak_mark(peak_moment)] + bars_of_phases.traces,
            layout={"shapes": start_lines},
            layout_of_width=layout_of_width,
        ),
    )


class _PeakMoment(NamedTuple):
    """The first moment at which a device had the most allocated memory."""

    ms: float
    allocated_bytes: float


def _peak_moment(over_time: pd.DataFrame) -> _PeakMoment:
    allocated = over_time["allocated_bytes"].tolist()
    row = allocated.index(max(allocated))
    return _PeakMoment(
        ms=over_time["at_ms"].tolist()[row], allocated_bytes=allocated[row]
    )


def _memory_curves(over_time: pd.DataFrame) -> plot.Drawing:
    """Return the lines of allocated and reserved memory; without values, there is no line."""
    times = over_time["at_ms"].tolist()
    allocated = over_time["allocated_bytes"].tolist()
    reserved = over_time["reserved_bytes"].dropna().tolist()
    levels = [("Allocated", ONE_COLOR, allocated), ("Reserved", _RESERVED, reserved)]
    curves = plot.Drawing(traces=[], legend=[])
    for name, color, values in levels:
        if not values:
            continue
        hover = f"<b>{name}</b><br>%{{y:,.4s}}B at %{{x:,.3f}} ms<extra></extra>"
        curve = plot.plotly_trace(
            "scatter",
            len(curves.legend),
            x=times,
            y=values,
            hovertemplate=hover,
            mode="lines",
            line={"width": 1.5, "shape": "hv", "color": color},
        )
        curves.traces.append(curve)
        curves.legend.append((name, color))
    return curves


def _peak_mark(peak_moment: _PeakMoment) -> plot.Plotly:
    """Return the mark at the peak, which disappears with the line of allocated memory."""
    return plot.plotly_trace(
        "scatter",
        _ALLOCATED_PIECE,
        mode="markers",
        marker=plot.MARK,
        x=[peak_moment.ms],
        y=[peak_moment.allocated_bytes],
        hovertemplate="Peak<extra></extra>",
    )


def _bars_of_phases(bars: pd.DataFrame, pieces_before: int) -> plot.Drawing:
    """Return the bars of what was alive at the peak, in the color of their phases.

    `pieces_before` is the number of pieces that the legend has already.
    """
    drawing = plot.Drawing(traces=[], legend=[])
    for phase, color in _COLOR_OF_PHASE.items():
        bars_of_phase = bars[bars["phase"] == phase]
        if not len(bars_of_phase):
            continue
        piece = pieces_before + len(drawing.legend)
        drawing.traces.extend(_bar_traces(bars_of_phase, color, piece))
        drawing.legend.append((phase.capitalize() or "Other", color))
    return drawing


def _time_range(times: list[float], iteration_starts: list[float]) -> list[float]:
    """Return the ends of the time axis, ms; the axis is never empty.

    Iterations may start before the first change of memory.
    """
    first = min([times[0]] + iteration_starts)
    last = max(times[-1], times[0] + _SHORTEST_AXIS_MS)
    return [first, last]


def _memory_in_words(bars: pd.DataFrame, peak_bytes: int, peak_ms: float) -> str:
    """Return the peak and its largest owners as text."""
    when = f"{bytes_text(peak_bytes)} allocated, at {duration_text(peak_ms)}"
    largest = bars["name"] + " " + bars["share"]
    return f"At most {when}: {', '.join(largest[:_IN_SUMMARY])}"


def _labelled_bars(at_peak: pd.DataFrame, peak_bytes: int) -> pd.DataFrame:
    """Return the bars of what was alive at the peak, with columns for the drawing.

    The columns are `name`, `share`, `label` (the text at the bar) and `hover` (beside the pointer).
    """
    bars = _largest_owners(at_peak)
    sizes = bars["bytes"].map(bytes_text)
    percent = 100 * bars["bytes"] / (peak_bytes or 1)
    bars["share"] = percent.map(percent_text)
    bars["name"] = bars["what"].map(lambda what: elided(what, _NAME_CHARACTERS))
    labels = bars["name"] + ": " + sizes + " (" + bars["share"] + ")"
    bars["label"] = labels.map(plotly_text)
    titles = bars["what"].map(plotly_lines)
    bars["hover"] = "<b>" + titles + "</b><br>" + sizes
    return bars


def _bar_traces(bars: pd.DataFrame, color: str, piece: int) -> list[plot.Plotly]:
    """Return the traces of the bars of a phase, and of the texts above them.

    `piece` is the index of the phase in the legend.
    """
    rows = bars.index.tolist()
    sizes = bars["bytes"].tolist()
    drawn_bars = plot.plotly_trace(
        "bar",
        piece,
        # None instead of 0, because a bar of length 0 would have an outline.
        x=[max(size, 0) or None for size in sizes],
        y=rows,
        customdata=bars["hover"].tolist(),
        orientation="h",
        width=_BAR_THICKNESS,
        marker={"color": color},
        xaxis="x2",
        yaxis="y2",
    )
    names = plot.plotly_trace(
        "scatter",
        piece,
        hoverinfo="skip",
        x=[0] * len(rows),
        y=[row - _TEXT_ABOVE_BAR for row in rows],
        text=bars["label"].tolist(),
        mode="text",
        textposition="top right",
        textfont={"size": 11},
        xaxis="x2",
        yaxis="y2",
    )
    return [drawn_bars, names]


class _Panels(NamedTuple):
    """Where the lines and the bars are in a chart.

    The shares count from the left and from the bottom of the area inside the margins.
    """

    height: int  #: height of the chart, pixels
    left_margin: int  #: pixels
    lines_end: float  #: share of the width where the lines end
    lines_bottom: float  #: share of the height above which the lines are
    bars_begin: float  #: share of the width where the bars begin
    bars_top: float  #: share of the height below which the bars are


_BESIDE_EACH_OTHER = _Panels(
    height=380,
    left_margin=64,
    lines_end=0.64,
    lines_bottom=0,
    bars_begin=0.68,
    bars_top=1,
)
_HEIGHT_OF_NARROW_CHART = 420  # without its bars, pixels
_HEIGHT_OF_BAR = 32  # of a bar below the lines, pixels


def _panels(page_width: int, bar_count: int) -> _Panels:
    """Return the places of the lines and bars: on a narrow screen, bars are below the lines."""
    if not plot.is_narrow(page_width):
        return _BESIDE_EACH_OTHER
    return _Panels(
        height=_HEIGHT_OF_NARROW_CHART + bar_count * _HEIGHT_OF_BAR,
        left_margin=50,
        lines_end=1.0,
        lines_bottom=0.54,
        bars_begin=0,
        bars_top=0.43,
    )


def _memory_layout(
    page_width: int,
    *,
    time_range: Sequence[float],
    bar_count: int,
    iterations: pd.DataFrame | None,
) -> plot.Plotly:
    """Return the layout for a page of a width.

    Args:
        page_width: the width, pixels.
        time_range: the first and the last time, ms.
        bar_count: the number of bars.
        iterations: the names and start times of iterations; None if there are none.
    """
    panels = _panels(page_width, bar_count)
    first, last = time_range
    pixels_of_lines = (page_width - panels.left_margin) * panels.lines_end
    most_names = page_width * panels.lines_end // _WIDTH_OF_ITERATION_NAME
    layout: plot.Plotly = {
        "height": panels.height,
        "margin": {"l": panels.left_margin, "r": 12, "t": 24, "b": 42},
    }
    layout |= _axes_of_curves(panels, time_range)
    layout |= _axes_of_bars(panels, bar_count)
    layout["annotations"] = _iteration_names(
        iterations=iterations,
        end=last,
        pixels_per_ms=pixels_of_lines / (last - first),
        most=most_names,
    )
    return layout


def _axes_of_curves(panels: _Panels, time_range: Sequence[float]) -> plot.Plotly:
    return {
        "xaxis": {
            "domain": [0, panels.lines_end],
            "range": time_range,
            "title": plot.MS_SINCE_FIRST_EVENT,
        },
        "yaxis": {
            "domain": [panels.lines_bottom, 1],
            "tickformat": "~s",
            "ticksuffix": "B",
            "nticks": 6,
            "rangemode": "tozero",
        },
    }


def _axes_of_bars(panels: _Panels, bar_count: int) -> plot.Plotly:
    """Return the invisible axes of the bars: one row for each bar, the first one at the top."""
    return {
        "xaxis2": {
            "domain": [panels.bars_begin, 1],
            "anchor": "y2",
            "visible": False,
            "rangemode": "tozero",
        },
        "yaxis2": {
            "domain": [0, panels.bars_top],
            "anchor": "x2",
            "visible": False,
            "range": [bar_count + _LAST_BAR_ROW_ENDS, _FIRST_BAR_ROW_BEGINS],
        },
    }


def _iteration_names(
    iterations: pd.DataFrame | None, end: float, pixels_per_ms: float, most: float
) -> list[plot.Plotly]:
    """Return the names of iterations above the lines at their starts, as many as fit.

    Args:
        iterations: the names and start times of iterations; None if there are none.
        end: the last time, ms.
        pixels_per_ms: the scale of the time axis.
        most: the number of names that fit.
    """
    if iterations is None:
        return []
    rows = iterations.to_numpy().tolist()
    every = max(1, math.ceil(len(rows) / max(1, most)))
    names = []
    for name, ms in rows[::every]:
        if (end - ms) * pixels_per_ms < _WIDTH_OF_ITERATION_NAME:
            continue
        text = plotly_text(elided(name, _NAME_CHARACTERS))
        names.append({"text": text, "x": ms, "y": 1, "yref": "y domain"})
    return names


def _largest_owners(at_peak: pd.DataFrame) -> pd.DataFrame:
    """Return the largest owners of memory at the peak: `what`, `phase` and `bytes`.

    The last row is the sum of all smaller owners.
    """
    module = at_peak["module"].str.rpartition("/")[2]
    outer = at_peak["outer_operation"].str.removeprefix(_AUTOGRAD)
    operation = at_peak["operation"]
    only_allocates = operation.str.startswith(_ONLY_ALLOCATE)
    name = operation.mask(only_allocates, outer)
    name_in_module = name + " in " + module
    owner = name.where(module == "", name_in_module)
    groups = at_peak["bytes"].groupby([owner.rename("what"), at_peak["phase"]])
    bars = groups.sum().sort_values(ascending=False).reset_index()
    if len(bars) <= _MOST_BARS + 1:
        return bars
    smaller = bars["bytes"][_MOST_BARS:]
    sum_of_smaller = {
        "what": [f"({len(smaller):,} others)"],
        "phase": "",
        "bytes": smaller.sum(),
    }
    rows = [bars[:_MOST_BARS], pd.DataFrame(sum_of_smaller)]
    return pd.concat(rows, ignore_index=True)
