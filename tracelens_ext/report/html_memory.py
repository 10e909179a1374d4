"""The memory charts of an HTML page, one for each device.

A chart shows the allocated and reserved memory over time, and beside it the largest of the memory
blocks that were alive at the peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

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

_IN_SUMMARY = 3
_HOST = -1
_MOST_FIGURES = 4
_MOST_BARS = 10
_NAME_CHARACTERS = 36  # the most characters of a name
#: A device is drawn if its peak is at least this part of the highest peak. The host of a job on
#: GPUs only allocates a few bytes.
_WORTH_DRAWING = 0.01
#: Operations that only allocate memory: the operations around them tell what it is for.
_ONLY_ALLOCATE = ("aten::empty", "aten::resize_")
_AUTOGRAD = "autograd::engine::evaluate_function: "
_ROOM_FOR_ITERATION = 95  # width of the name of an iteration, pixels
_RESERVED = "#e58a2b"
#: Phase → color; the phase of other memory is empty.
_PHASES = {
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
            part=peak_table[peak_table["device"] == device],
            over_time=levels,
            iterations=sheets.get("memory_iterations"),
        )
        figures.append(figure)
    return figures


def _memory_figure(
    part: pd.DataFrame, over_time: pd.DataFrame, iterations: pd.DataFrame | None
) -> plot.Figure:
    """Draw the memory of a device over time, and beside it the memory that was alive at the peak.

    Args:
        part: the rows of `memory_at_peak` for the device.
        over_time: the rows of `memory_over_time` for the device.
        iterations: the table `memory_iterations`; None if there is none.
    """
    device = int(over_time["device"].iloc[0])
    owner = "the CPU" if device == _HOST else f"device {device}"
    peak = int(part["bytes"].sum())
    times = over_time["at_ms"].tolist()
    allocated = over_time["allocated_bytes"].tolist()
    reserved = over_time["reserved_bytes"].dropna().tolist()
    peak_place = allocated.index(max(allocated))
    peak_ms = times[peak_place]

    legend: list[tuple[str, str]] = []
    data: list[plot.Plotly] = []
    levels = [("Allocated", ONE_COLOR, allocated), ("Reserved", _RESERVED, reserved)]
    for name, color, values in levels:
        if not values:
            continue
        hover = f"<b>{name}</b><br>%{{y:,.4s}}B at %{{x:,.3f}} ms<extra></extra>"
        line = plot.trace(
            "scatter",
            len(legend),
            x=times,
            y=values,
            hovertemplate=hover,
            mode="lines",
            line={"width": 1.5, "shape": "hv", "color": color},
        )
        data.append(line)
        legend.append((name, color))
    mark_of_peak = plot.trace(
        "scatter",
        0,
        mode="markers",
        marker=plot.MARK,
        x=[peak_ms],
        y=[allocated[peak_place]],
        hovertemplate="Peak<extra></extra>",
    )
    data.append(mark_of_peak)
    bars = _labelled_bars(part, peak)
    for phase, color in _PHASES.items():
        of_phase = bars[bars["phase"] == phase]
        if not len(of_phase):
            continue
        data += _bars_of(of_phase, color, len(legend))
        legend.append((phase.capitalize() or "Other", color))

    starts = []
    if iterations is not None:
        starts = iterations["start_ms"].tolist()
    first = min([times[0]] + starts)
    last = max(times[-1], times[0] + 1e-3)
    layout_of_room = partial(
        _memory_layout, across=[first, last], bars=len(bars), iterations=iterations
    )
    when = f"{bytes_text(peak)} allocated, at {duration_text(peak_ms)}"
    largest = bars["name"] + " " + bars["share"]
    summary = f"At most {when}: {', '.join(largest[:_IN_SUMMARY])}"
    return plot.Figure(
        key=f"chart-memory-{device}",
        title=f"Memory of {owner}",
        summary=summary,
        legend=legend,
        sheet="memory_at_peak",
        spec=plot.spec_of(
            data=data,
            layout={"shapes": [plot.start_line(ms, "y domain") for ms in starts]},
            rooms=layout_of_room,
        ),
    )


def _labelled_bars(part: pd.DataFrame, peak: int) -> pd.DataFrame:
    """Return the bars of what was alive at the peak, with columns for the drawing.

    The columns are `name`, `share`, `label` (the text at the bar) and `hover` (beside the pointer).
    """
    bars = _alive(part)
    sizes = bars["bytes"].map(bytes_text)
    percent = 100 * bars["bytes"] / (peak or 1)
    bars["share"] = percent.map(percent_text)
    bars["name"] = bars["what"].map(lambda what: elided(what, _NAME_CHARACTERS))
    labels = bars["name"] + ": " + sizes + " (" + bars["share"] + ")"
    bars["label"] = labels.map(plotly_text)
    titles = bars["what"].map(plotly_lines)
    bars["hover"] = "<b>" + titles + "</b><br>" + sizes
    return bars


def _bars_of(bars: pd.DataFrame, color: str, piece: int) -> list[plot.Plotly]:
    """Return the drawing of the bars of a phase, and of the texts above them.

    `piece` is the index of the phase in the legend.
    """
    rows = bars.index.tolist()
    sizes = bars["bytes"].tolist()
    drawn_bars = plot.trace(
        "bar",
        piece,
        x=[max(size, 0) or None for size in sizes],
        y=rows,
        customdata=bars["hover"].tolist(),
        orientation="h",
        width=0.36,
        marker={"color": color},
        xaxis="x2",
        yaxis="y2",
    )
    names = plot.trace(
        "scatter",
        piece,
        hoverinfo="skip",
        x=[0] * len(rows),
        y=[row - 0.2 for row in rows],
        text=bars["label"].tolist(),
        mode="text",
        textposition="top right",
        textfont={"size": 11},
        xaxis="x2",
        yaxis="y2",
    )
    return [drawn_bars, names]


def _memory_layout(
    room: int,
    *,
    across: Sequence[float],
    bars: int,
    iterations: pd.DataFrame | None,
) -> plot.Plotly:
    """Return the layout for a width: bars beside the lines, or below them on a narrow screen.

    Args:
        room: the width, pixels.
        across: the first and the last time, ms.
        bars: the number of bars.
        iterations: the names and start times of iterations; None if there are none.
    """
    is_narrow = plot.is_narrow(room)
    if is_narrow:
        height = 420 + bars * 32
        left_margin = 50
        width_of_lines: float = 1.0
        bars_begin: float = 0
        bars_top: float = 0.43
        lines_bottom: float = 0.54
    else:
        height = 380
        left_margin = 64
        width_of_lines = 0.64
        bars_begin = width_of_lines + 0.04
        bars_top = 1
        lines_bottom = 0
    return {
        "height": height,
        "margin": {"l": left_margin, "r": 12, "t": 24, "b": 42},
        "xaxis": {
            "domain": [0, width_of_lines],
            "range": across,
            "title": plot.MS_SINCE_FIRST_EVENT,
        },
        "yaxis": {
            "domain": [lines_bottom, 1],
            "tickformat": "~s",
            "ticksuffix": "B",
            "nticks": 6,
            "rangemode": "tozero",
        },
        "xaxis2": {
            "domain": [bars_begin, 1],
            "anchor": "y2",
            "visible": False,
            "rangemode": "tozero",
        },
        "yaxis2": {
            "domain": [0, bars_top],
            "anchor": "x2",
            "visible": False,
            "range": [bars - 0.4, -0.9],
        },
        "annotations": _iteration_names(
            iterations=iterations,
            end=across[1],
            pixels_per_ms=(room - left_margin)
            * width_of_lines
            / (across[1] - across[0]),
            most=room * width_of_lines // _ROOM_FOR_ITERATION,
        ),
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
    every = math.ceil(len(rows) / max(1, most))
    names = []
    for name, ms in rows[:: every or 1]:
        if (end - ms) * pixels_per_ms < _ROOM_FOR_ITERATION:
            continue
        text = plotly_text(elided(name, _NAME_CHARACTERS))
        names.append({"text": text, "x": ms, "y": 1, "yref": "y domain"})
    return names


def _alive(part: pd.DataFrame) -> pd.DataFrame:
    """Return the largest owners of memory at the peak: `what`, `phase` and `bytes`.

    The last row is the sum of all smaller owners.
    """
    module = part["module"].str.rpartition("/")[2]
    outer = part["outer_operation"].str.removeprefix(_AUTOGRAD)
    operation = part["operation"]
    only_allocates = operation.str.startswith(_ONLY_ALLOCATE)
    name = operation.mask(only_allocates, outer)
    name_in_module = name + " in " + module
    label = name.where(module == "", name_in_module)
    groups = part["bytes"].groupby([label.rename("what"), part["phase"]])
    bars = groups.sum().sort_values(ascending=False).reset_index()
    if len(bars) <= _MOST_BARS + 1:
        return bars
    smaller = bars["bytes"][_MOST_BARS:]
    others = {
        "what": [f"({len(smaller):,} others)"],
        "phase": "",
        "bytes": smaller.sum(),
    }
    return pd.concat([bars[:_MOST_BARS], pd.DataFrame(others)], ignore_index=True)
