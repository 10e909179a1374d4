"""The drawings of a page that are no bars: roofline, memory, time axis.

A point of the roofline is an operation with its arguments: FLOPs per byte across, TFLOP/s up, its
area the time lost (its GPU time where no peaks are known). Copies and fills have no place on it, as
they compute nothing. Memory, a figure a device: allocated and reserved over time, and beside it the
largest of what was alive at the peak. The time axis has areas by category, a row a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import GREY, ONE_COLOR, color_of
from tracelens_ext.report.excel_text import cleaned

_IN_SUMMARY = 3
_MOST_POINTS = 400
_HOVER_COLUMNS = [
    "op_name",
    "Input Dims",
    "bound",
    "% of roofline",
    "gpu_time_ms",
    "time_lost_ms",
]
# pixels
_SMALLEST = 5.0
_LARGEST = 42.0


def roofline_figures(
    frame: pd.DataFrame, roofs: pd.DataFrame | None
) -> list[plot.Figure]:
    """Draw the operations that compute; none without any."""
    is_loss_known = bool(np.isfinite(_floats(frame, "time_lost_ms")).any())
    points = _largest_points(frame, is_loss_known=is_loss_known)
    if points.empty:
        return []
    models = _peaks_of_models(roofs)
    highest_peak = 0.0
    last_ridge = 0.0
    for model in models:
        for peak in model.peaks.values():
            highest_peak = max(highest_peak, peak)
            last_ridge = max(last_ridge, peak / model.bandwidth)
    least_intensity = float(points["x"].min())
    most_intensity = float(points["x"].max())
    across = [least_intensity / 2, max(2 * most_intensity, 2 * last_ridge)]
    rates = points["y"]
    up = [rates.min() / 2, 2 * max(rates.max(), highest_peak)]

    data: list[plot.Plotly] = []
    for model in models:
        data += _roofs(model, across)
    legend: list[tuple[str, str]] = []
    for family, of_family in points.groupby(points["family"].astype(str), sort=False):
        color = color_of(family)
        marker = {
            "color": color,
            "opacity": 0.75,
            "line": {"width": 0.5, "color": "#ffffff"},
            "size": of_family["pixels"].tolist(),
        }
        operations = plot.trace(
            "scatter",
            len(legend),
            mode="markers",
            marker=marker,
            x=of_family["x"].tolist(),
            y=of_family["y"].tolist(),
            customdata=of_family["customdata"].tolist(),
        )
        data.append(operations)
        legend.append((family, color))
    layout = {
        "height": 420,
        "xaxis": _logarithmic("FLOPs per byte", across),
        "yaxis": _logarithmic("TFLOP/s", up),
    }
    return [
        plot.Figure(
            key="chart-roofline",
            title="Roofline",
            summary=_roofline_in_words(points, is_loss_known=is_loss_known),
            legend=legend,
            sheet="roofline",
            spec=plot.spec_of(data, layout),
        )
    ]


def _floats(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = frame[column].to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    return values


def _largest_points(frame: pd.DataFrame, *, is_loss_known: bool) -> pd.DataFrame:
    """The operations with a place on the chart, the largest first, with what is drawn of them."""
    moved = _floats(frame, "bytes")
    intensity = _floats(frame, "flops") / np.where(moved > 0, moved, np.nan)
    rate = _floats(frame, "tflops_per_s")
    size = _floats(frame, "gpu_time_ms")
    if is_loss_known:
        size = np.nan_to_num(_floats(frame, "time_lost_ms"))
    has_place = (rate > 0) & (intensity > 0)
    points = frame.assign(x=intensity, y=rate, size=size)[has_place]
    points = points.sort_values("size", ascending=False, kind="stable")
    points = points.head(_MOST_POINTS)
    area = points["size"] / max(points["size"].max(), 1e-12)
    points["pixels"] = np.maximum(_SMALLEST, _LARGEST * np.sqrt(area))
    rows = points[_HOVER_COLUMNS].itertuples(index=False)
    points["customdata"] = [_operation_hover(*row) for row in rows]
    return points


def _operation_hover(
    name: object,
    shapes: object,
    bound: object,
    percent: float,
    gpu_time_ms: float,
    time_lost_ms: float,
) -> str:
    """The text beside the pointer about an operation; without a bound its peaks are unknown."""
    title = plot.plotly_lines(str(name))
    shapes_text = plot.plotly_lines(str(shapes).replace(", ()", ""))
    text = plot.duration_text(gpu_time_ms)
    if isinstance(bound, str):
        share = plot.percent_text(percent)
        lost = plot.duration_text(time_lost_ms)
        text = f"{bound} bound, {share} of roofline, {text}, {lost} lost"
    return f"<b>{title}</b><br>{shapes_text}<br>{plot.plotly_text(text)}"


def _roofline_in_words(points: pd.DataFrame, *, is_loss_known: bool) -> str:
    quantity = "Time lost" if is_loss_known else "GPU time"
    largest = points[["op_name", "size"]].head(_IN_SUMMARY)
    texts = []
    for name, ms in largest.itertuples(index=False):
        operation = plot.elided(str(name), 40)
        texts.append(f"{operation} {plot.duration_text(ms)}")
    return f"{quantity}: {', '.join(texts)}"


def _logarithmic(title: str, ends: Sequence[float]) -> plot.Plotly:
    return {
        "type": "log",
        "dtick": 1,
        "exponentformat": "none",
        "range": [math.log10(end) for end in ends],
        "title": {"text": title},
        "automargin": True,
    }


class _ModelPeaks(NamedTuple):
    """What a GPU model reaches."""

    bandwidth: float  #: of its memory, TB/s
    peaks: dict[str, float]  #: TFLOP/s by engine and type


def _peaks_of_models(roofs: pd.DataFrame | None) -> list[_ModelPeaks]:
    """Return the peaks of each GPU model whose memory bandwidth is known."""
    if roofs is None:
        return []
    has_several = "device_model" in roofs.columns
    models = pd.Series("", index=roofs.index)
    if has_several:
        models = roofs["device_model"]
    result = []
    for model, rows in roofs.groupby(models, sort=False):
        peaks = dict(zip(rows["what"], rows["peak"], strict=True))
        bandwidth = peaks.pop("memory", None)
        if not bandwidth:
            continue
        if has_several:
            peaks = {f"{model} {name}": peak for name, peak in peaks.items()}
        result.append(_ModelPeaks(bandwidth=bandwidth, peaks=peaks))
    return result


def _roofs(model: _ModelPeaks, across: list[float]) -> list[plot.Plotly]:
    """The lines: bandwidth times intensity, up to the peak of each type."""
    bandwidth = model.bandwidth
    lines = []
    for peak in dict.fromkeys(
        model.peaks.values()
    ):  # types with one peak have one line
        types = [name for name, other in model.peaks.items() if other == peak]
        name = f"{', '.join(types)}: {peak:,.4g} TFLOP/s; {bandwidth:,.3g} TB/s"
        ridge = peak / bandwidth
        intensities = [across[0], ridge, across[1]]
        line = plot.trace(
            "scatter",
            mode="lines+text",
            hoverinfo="skip",
            x=intensities,
            y=[min(intensity * bandwidth, peak) for intensity in intensities],
            text=["", "", plot.plotly_text(name)],
            textposition="top left",
            line={"width": 1.5, "color": GREY},
            textfont={"size": 11},
        )
        lines.append(line)
    return lines


_HOST = -1
# the last in characters
_MOST_FIGURES = 4
_MOST_BARS = 10
_NAME = 36
# of the largest peak: the host of a job on GPUs allocates a few bytes
_WORTH_DRAWING = 0.01
#: Operations that tell nothing of what the memory is for; those around them do.
_ONLY_ALLOCATE = ("aten::empty", "aten::resize_")
_AUTOGRAD = "autograd::engine::evaluate_function: "
_ROOM_FOR_ITERATION = 95  # pixels of its name
_RESERVED = "#e58a2b"
#: The phases and their colors; nothing else has a phase.
_PHASES = {
    "": GREY,
    "forward": "#2f9e73",
    "backward": "#8d6bc7",
    "optimizer": "#b5651d",
}
_SINCE = {"text": "ms since the first event"}


def memory_figures(sheets: Mapping[str, pd.DataFrame]) -> list[plot.Figure]:
    """Draw the memory of each device, that of the highest peak first."""
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
    """Draw the memory of a device over time, and beside it what was alive at the peak."""
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
    when = f"{plot.bytes_text(peak)} allocated, at {plot.duration_text(peak_ms)}"
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
            layout={"shapes": [_start_line(ms, "y domain") for ms in starts]},
            rooms=layout_of_room,
        ),
    )


def _labelled_bars(part: pd.DataFrame, peak: int) -> pd.DataFrame:
    """What was alive at the peak, with `name`, `share`, `label` and `hover` of each bar."""
    bars = _alive(part)
    sizes = bars["bytes"].map(plot.bytes_text)
    percent = 100 * bars["bytes"] / (peak or 1)
    bars["share"] = percent.map(plot.percent_text)
    bars["name"] = bars["what"].map(lambda what: plot.elided(what, _NAME))
    labels = bars["name"] + ": " + sizes + " (" + bars["share"] + ")"
    bars["label"] = labels.map(plot.plotly_text)
    titles = bars["what"].map(plot.plotly_lines)
    bars["hover"] = "<b>" + titles + "</b><br>" + sizes
    return bars


def _bars_of(bars: pd.DataFrame, color: str, piece: int) -> list[plot.Plotly]:
    """What of a phase was alive at the peak: its bars, and the names above them."""
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
    """The bars stand beside the lines, and below them where there is no room beside."""
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
        "xaxis": {"domain": [0, width_of_lines], "range": across, "title": _SINCE},
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
    """The names above the lines where iterations begin, as many as there is room for."""
    if iterations is None:
        return []
    rows = iterations.to_numpy().tolist()
    every = math.ceil(len(rows) / max(1, most))
    names = []
    for name, ms in rows[:: every or 1]:
        if (end - ms) * pixels_per_ms < _ROOM_FOR_ITERATION:
            continue
        text = plot.plotly_text(plot.elided(name, _NAME))
        names.append({"text": text, "x": ms, "y": 1, "yref": "y domain"})
    return names


def _alive(part: pd.DataFrame) -> pd.DataFrame:
    """The largest of what was alive: `what` it is, `phase`, `bytes`; the rest is one row."""
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


# in the legend; of a kind
_MOST_CATEGORIES = 24
_MOST_MARKS = 400
# pixels: of a device; of a finding, a bar below its title
_ROW = 130
#: Of that, the line with the name of the GPU, and the space for the lowest label of the axis.
_ROW_TITLE = 22
_BELOW_ROW = 10
_FINDING = 32
#: Pixels beside the title of a finding, and of a character in it.
_TITLE_MARGIN = 68
_TITLE_DIGIT = 6.4
#: Of the strips of findings: none is the color of a category.
_FINDING_COLORS = (
    "#1d3557",
    "#7a1f4a",
    "#14532d",
    "#6b3e00",
    "#4c1d95",
    "#134e4a",
    "#7c2d12",
    "#3f3f46",
)
#: A stretch of which a finding has little is still seen.
_PALEST_PERCENT = 25.0


class _TimeAxis(NamedTuple):
    """What the rows of the chart have in common."""

    first: float  #: where the axis begins, ms
    last: float  #: where it ends, ms
    bins: int
    height: int  #: of all rows, pixels

    @property
    def step(self) -> float:
        """The length of a bin, ms."""
        return (self.last - self.first) / self.bins


def timeline_bins_figures(
    frame: pd.DataFrame, marks: pd.DataFrame | None
) -> list[plot.Figure]:
    """Draw when the GPUs worked, and `timeline_markers`: holes, iterations and findings."""
    sums = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False)
    if not sums.sum():
        return []
    marks_of_kind: dict[str, pd.DataFrame] = {}
    if marks is not None:
        marks_of_kind = {str(kind): part for kind, part in marks.groupby("kind")}
    no_findings = pd.DataFrame({"finding": []})
    all_findings = marks_of_kind.pop("finding", no_findings)
    findings = all_findings.groupby("finding", sort=False)
    devices = frame.groupby("device")
    height_of_findings = len(findings) * _FINDING
    axis = _TimeAxis(
        first=float(frame["start_ms"].min()),
        last=float(frame["end_ms"].max()),
        bins=int(frame["bin"].max()) + 1,
        height=len(devices) * _ROW + height_of_findings,
    )
    layout: plot.Plotly = {
        "barmode": "overlay",
        "height": axis.height + 70,
        "margin": {"l": 56, "r": 12, "t": 20, "b": 42},
        "xaxis": {
            "range": [axis.first, axis.last],
            "anchor": "free",
            "position": 0,
            "title": _SINCE,
        },
        "shapes": _shapes(marks_of_kind),
    }
    data: list[plot.Plotly] = []
    device_names: list[plot.Plotly] = []
    categories = [str(name) for name in sums.index]
    for row, (device, part) in enumerate(devices):
        number = str(row + 1) if row else ""
        top = 1 - row * _ROW / axis.height
        layout[f"yaxis{number}"] = _axis_of_row(top, axis.height)
        device_names.append(_device_name(str(device), top))
        for area in _areas(
            frame=part, categories=categories, bins=axis.bins, step=axis.step
        ):
            area["yaxis"] = f"y{number}"
            area["stackgroup"] = f"row{row}"
            area["x0"] = axis.first
            area["dx"] = axis.step
            data.append(area)

    number_of_findings = len(devices) + 1
    layout[f"yaxis{number_of_findings}"] = {
        "domain": [0, height_of_findings / axis.height],
        "range": [len(findings) - 0.5, -0.75],
        "visible": False,
    }
    finding_axis = f"y{number_of_findings}"
    titles: dict[str, str] = {}
    for row, (finding_id, part) in enumerate(findings):
        card = f"finding-{cleaned(str(finding_id))}"
        titles[card] = part["name"].iloc[0]
        strip = _finding_strip(
            part=part,
            row=row,
            least_length=axis.step / 4,
            yaxis=finding_axis,
            name=plot.plotly_text(plot.elided(titles[card], plot.LABEL)),
            customdata=[card] * len(part),
        )
        data.append(strip)

    def layout_of_room(room: int) -> plot.Plotly:
        return {"annotations": device_names + _titles(titles, finding_axis, room)}

    return [
        plot.Figure(
            key="time-axis",
            title="GPU work over time",
            summary=plot.gpu_work_in_words(sums),
            legend=[(name, color_of(name)) for name in categories[:_MOST_CATEGORIES]],
            sheet="timeline_bins",
            spec=plot.spec_of(data, layout, layout_of_room),
        )
    ]


def _device_name(device: str, top: float) -> plot.Plotly:
    """The name of a device above its areas; `top` is a share of the height."""
    return {
        "text": f"GPU {device}",
        "y": top,
        "yref": "paper",
        "yanchor": "top",
        "x": 0,
        "xref": "paper",
    }


def _titles(titles: Mapping[str, str], axis: str, room: int) -> list[plot.Plotly]:
    """The titles of findings, by their cards, above their strips, cut to the room, in pixels."""
    width = int((room - _TITLE_MARGIN) / _TITLE_DIGIT)
    annotations = []
    for row, (card, title) in enumerate(titles.items()):
        annotations.append(
            {
                "text": plot.plotly_text(plot.elided(title, width)),
                "name": card,
                "captureevents": True,
                "borderpad": 0,
                "y": row,
                "yref": axis,
                "x": 0,
                "xref": "paper",
            }
        )
    return annotations


def _shapes(marks_of_kind: Mapping[str, pd.DataFrame]) -> list[plot.Plotly]:
    """A line where each iteration begins, and a rectangle over each hole."""
    shapes = []
    for kind, part in marks_of_kind.items():
        times = part[["start_ms", "end_ms"]].head(_MOST_MARKS)
        for start, end in times.to_numpy().tolist():
            if kind == "iteration":
                shapes.append(_start_line(start, "paper"))
            else:
                shapes.append(_hole(start, end))
    return shapes


def _axis_of_row(top: float, height: int) -> plot.Plotly:
    """The axis of the areas of a device, below the line with its name."""
    return {
        "domain": [top - (_ROW - _BELOW_ROW) / height, top - _ROW_TITLE / height],
        "rangemode": "tozero",
        "tickformat": ".0%",
        "nticks": 3,
    }


def _finding_strip(
    part: pd.DataFrame, row: int, least_length: float, **about: object
) -> plot.Plotly:
    """The times of a finding: bars in a row, paler where little of the time is the finding's."""
    # A short interval is seen, too.
    lengths = (part["end_ms"] - part["start_ms"]).clip(lower=least_length)
    opacity = part["covered_percent"].clip(lower=_PALEST_PERCENT) / 100
    marker = {
        "color": _FINDING_COLORS[row % len(_FINDING_COLORS)],
        "opacity": opacity.round(2).tolist(),
        "line": {"width": 0},
    }
    return plot.trace(
        "bar",
        hovertemplate="%{fullData.name}<extra></extra>",
        base=part["start_ms"].tolist(),
        x=lengths.tolist(),
        y=[row + 0.2] * len(part),
        orientation="h",
        width=0.35,
        marker=marker,
        **about,
    )


def _areas(
    frame: pd.DataFrame, categories: Iterable[str], bins: int, step: float
) -> Iterator[plot.Plotly]:
    """The part of each bin, of `step` ms, in which a device worked, by category."""
    for piece, name in enumerate(categories):
        of_category = frame[frame["category"] == name]
        if not len(of_category):
            continue
        time_of_bin = of_category.set_index("bin")["gpu_time_ns"]
        ns = time_of_bin.reindex(range(bins + 1), fill_value=0)
        ns.iloc[-1] = ns.iloc[-2]  # where the last bin ends
        share = ns / 1e6 / step
        hover = "<b>%{fullData.name}</b><br>%{y:.0%} at %{x:,.3f} ms<extra></extra>"
        yield plot.trace(
            "scatter",
            piece,
            mode="lines",
            y=share.round(4).tolist(),
            fillcolor=color_of(name),
            line={"shape": "hv", "width": 0},
            name=plot.plotly_text(name),
            hovertemplate=hover,
        )


def _start_line(ms: float, yref: str) -> plot.Plotly:
    """A line where an iteration begins."""
    return {
        "type": "line",
        "x0": ms,
        "x1": ms,
        "y0": 0,
        "y1": 1,
        "yref": yref,
        "line": {"width": 1, "dash": "dot", "color": GREY},
    }


def _hole(start: float, end: float) -> plot.Plotly:
    """A rectangle over times of which nothing was recorded."""
    return {
        "type": "rect",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": "rgba(139, 147, 161, 0.25)",
        "line": {"width": 0},
        "layer": "below",
    }
