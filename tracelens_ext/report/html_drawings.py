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

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import GREY, ONE_COLOUR, colour_of
from tracelens_ext.report.excel_text import cleaned

_IN_SUMMARY = 3
_MOST_POINTS = 400
_TOLD = [
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
    names = ["flops", "bytes", "tflops_per_s", "time_lost_ms", "gpu_time_ms"]
    numbers = frame[names].to_numpy(dtype=np.float64, na_value=np.nan)
    flops, moved, rate, lost, time = numbers.T
    known = bool(np.isfinite(lost).any())
    intensity = flops / np.where(moved > 0, moved, np.nan)
    size = np.nan_to_num(lost) if known else time
    part = frame.assign(x=intensity, y=rate, size=size)[(rate > 0) & (intensity > 0)]
    part = part.sort_values("size", ascending=False, kind="stable").head(_MOST_POINTS)
    if part.empty:
        return []
    devices = _peaks_of_models(roofs)
    ridges = [2 * peak / memory for memory, peaks in devices for peak in peaks.values()]
    across = [float(part["x"].min()) / 2, max([2 * float(part["x"].max())] + ridges)]
    area = part["size"] / max(part["size"].max(), 1e-12)
    part["pixels"] = np.maximum(_SMALLEST, _LARGEST * np.sqrt(area))
    lines = plot.plotly_lines
    time_text = plot.duration_text
    part["customdata"] = [
        f"<b>{lines(str(name))}</b><br>{lines(str(dims).replace(', ()', ''))}<br>"
        + plot.plotly_text(
            f"{bound} bound, {plot.percent_text(percent)} of roofline, {time_text(ms)}, "
            f"{time_text(rest)} lost"
            if isinstance(bound, str)
            else time_text(ms)
        )
        for name, dims, bound, percent, ms, rest in part[_TOLD].itertuples(index=False)
    ]
    data = [roof for memory, peaks in devices for roof in _roofs(peaks, memory, across)]
    legend: list[tuple[str, str]] = []
    for family, own in part.groupby(part["family"].astype(str), sort=False):
        look = {"color": colour_of(family), "opacity": 0.75}
        look |= {
            "line": {"width": 0.5, "color": "#ffffff"},
            "size": own["pixels"].tolist(),
        }
        at = {name: own[name].tolist() for name in ("x", "y", "customdata")}
        data.append(
            plot.trace("scatter", len(legend), mode="markers", marker=look, **at)
        )
        legend.append((family, colour_of(family)))
    largest = part[["op_name", "size"]].head(_IN_SUMMARY).itertuples(index=False)
    said = [
        f"{plot.elided(str(name), 40)} {plot.duration_text(ms)}" for name, ms in largest
    ]
    highest = [peak for _, peaks in devices for peak in peaks.values()]
    up = part["y"].min() / 2, 2 * max([part["y"].max()] + highest)
    axes = {"FLOPs per byte": across, "TFLOP/s": up}
    x, y = (_logarithmic(title, *ends) for title, ends in axes.items())
    summary = f"{'Time lost' if known else 'GPU time'}: {', '.join(said)}"
    spec = plot.spec_of(data, {"height": 420, "xaxis": x, "yaxis": y})
    return [
        plot.Figure("chart-roofline", "Roofline", summary, legend, "roofline", spec)
    ]


def _logarithmic(title: str, low: float, high: float) -> plot.Plotly:
    ends = {"range": [math.log10(low), math.log10(high)], "title": {"text": title}}
    return {"type": "log", "dtick": 1, "exponentformat": "none", **ends}


def _peaks_of_models(
    roofs: pd.DataFrame | None,
) -> list[tuple[float, dict[str, float]]]:
    """Return, for each GPU model, the bandwidth of its memory and its peaks by engine and type."""
    if roofs is None:
        return []
    several = "device_model" in roofs.columns
    models = roofs["device_model"] if several else pd.Series("", index=roofs.index)
    result = []
    for model, rows in roofs.groupby(models, sort=False):
        peaks = dict(zip(rows["what"], rows["peak"], strict=True))
        memory = peaks.pop("memory", None)
        if memory:
            prefix = f"{model} " if several else ""
            result.append(
                (memory, {prefix + name: peak for name, peak in peaks.items()})
            )
    return result


def _roofs(
    peaks: dict[str, float], memory: float, across: list[float]
) -> list[plot.Plotly]:
    """The lines: bandwidth times intensity, up to the peak of each type."""
    lines = []
    for peak in dict.fromkeys(peaks.values()):  # types with one peak have one line
        names = ", ".join(name for name, own in peaks.items() if own == peak)
        name = f"{names}: {peak:,.4g} TFLOP/s; {memory:,.3g} TB/s"
        x = [across[0], peak / memory, across[1]]
        at = {"x": x, "y": [min(each * memory, peak) for each in x]}
        text = {"text": ["", "", plot.plotly_text(name)], "textposition": "top left"}
        look = {"line": {"width": 1.5, "color": GREY}, "textfont": {"size": 11}}
        lines.append(
            plot.trace(
                "scatter", mode="lines+text", hoverinfo="skip", **at, **text, **look
            )
        )
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
    frame = sheets["memory_at_peak"]
    over_time = sheets.get("memory_over_time")
    if over_time is None:
        return []
    peaks = frame.groupby("device")["bytes"].sum().sort_values(ascending=False)
    order = peaks.index[peaks >= _WORTH_DRAWING * peaks.max()].tolist()
    return [
        _memory_figure(
            frame[frame["device"] == device], levels, sheets.get("memory_iterations")
        )
        for device in order[:_MOST_FIGURES]
        if len(levels := over_time[over_time["device"] == device])
    ]


def _memory_figure(
    part: pd.DataFrame, over_time: pd.DataFrame, marks: pd.DataFrame | None
) -> plot.Figure:
    device = int(over_time["device"].iloc[0])
    peak = int(part["bytes"].sum())
    moments = over_time["at_ms"].tolist()
    allocated = over_time["allocated_bytes"].tolist()
    reserved = over_time["reserved_bytes"].dropna().tolist()
    at = allocated.index(max(allocated))
    legend: list[tuple[str, str]] = []
    data: list[plot.Plotly] = []
    levels = ("Allocated", ONE_COLOUR, allocated), ("Reserved", _RESERVED, reserved)
    for name, colour, values in levels:
        if values:
            told = f"<b>{name}</b><br>%{{y:,.4s}}B at %{{x:,.3f}} ms<extra></extra>"
            look = {
                "mode": "lines",
                "line": {"width": 1.5, "shape": "hv", "color": colour},
            }
            line = {"x": moments, "y": values, "hovertemplate": told, **look}
            data.append(plot.trace("scatter", len(legend), **line))
            legend.append((name, colour))
    highest = {
        "x": [moments[at]],
        "y": [allocated[at]],
        "hovertemplate": "Peak<extra></extra>",
    }
    data.append(plot.trace("scatter", 0, mode="markers", marker=plot.MARK, **highest))
    bars = _alive(part)
    shares = [plot.percent_text(size) for size in 100 * bars["bytes"] / (peak or 1)]
    bars["name"] = bars["what"].map(lambda what: plot.elided(what, _NAME))
    sizes = bars["bytes"].map(plot.bytes_text)
    labels = bars["name"] + ": " + sizes + [f" ({share})" for share in shares]
    bars["told"] = labels.map(plot.plotly_text)
    bars["hover"] = "<b>" + bars["what"].map(plot.plotly_lines) + "</b><br>" + sizes
    for phase, colour in _PHASES.items():
        if len(mine := bars[bars["phase"] == phase]):
            data += _bars_of(mine, colour, len(legend))
            legend.append((phase.capitalize() or "Other", colour))
    start = moments[0]
    end = max(moments[-1], moments[0] + 1e-3)
    starts = [] if marks is None else marks["start_ms"].tolist()
    across = [min([start] + starts), end]
    rooms = partial(_memory_layout, across=across, bars=len(bars), marks=marks)
    title = f"Memory of {'the CPU' if device == _HOST else f'device {device}'}"
    named = map("{} {}".format, bars["name"][:_IN_SUMMARY], shares)
    when = f"{plot.bytes_text(peak)} allocated, at {plot.duration_text(moments[at])}"
    summary = f"At most {when}: {', '.join(named)}"
    spec = plot.spec_of(
        data, {"shapes": [_start_line(ms, "y domain") for ms in starts]}, rooms
    )
    return plot.Figure(
        f"chart-memory-{device}", title, summary, legend, "memory_at_peak", spec
    )


def _bars_of(bars: pd.DataFrame, colour: str, piece: int) -> list[plot.Plotly]:
    """What of a phase was alive at the peak: its bars, and the names above them."""
    rows = bars.index.tolist()
    axes = {"xaxis": "x2", "yaxis": "y2"}
    at = {"x": [max(size, 0) or None for size in bars["bytes"].tolist()], "y": rows}
    look = {"orientation": "h", "width": 0.36, "marker": {"color": colour}}
    above = {
        "x": [0] * len(rows),
        "y": [row - 0.2 for row in rows],
        "text": bars["told"].tolist(),
    }
    text = {"mode": "text", "textposition": "top right", "textfont": {"size": 11}}
    return [
        plot.trace(
            "bar", piece, **at, customdata=bars["hover"].tolist(), **look, **axes
        ),
        plot.trace("scatter", piece, hoverinfo="skip", **above, **text, **axes),
    ]


def _memory_layout(
    room: int, *, across: Sequence[float], bars: int, marks: pd.DataFrame | None
) -> plot.Plotly:
    """The bars stand below the lines where there is no room beside."""
    narrow = plot.is_narrow(room)
    share, left = (1.0, 50) if narrow else (0.64, 64)
    names = [] if marks is None else marks.to_numpy().tolist()
    per_ms = (room - left) * share / (across[1] - across[0])  # pixels
    every = math.ceil(len(names) / max(1, room * share // _ROOM_FOR_ITERATION))
    levels = {"tickformat": "~s", "ticksuffix": "B", "nticks": 6, "rangemode": "tozero"}
    start = 0 if narrow else share + 0.04
    beside: plot.Plotly = {"domain": [start, 1], "anchor": "y2", "visible": False}
    below: plot.Plotly = {
        "domain": [0, 0.43 if narrow else 1],
        "anchor": "x2",
        "visible": False,
    }
    above = [
        {
            "text": plot.plotly_text(plot.elided(name, _NAME)),
            "x": ms,
            "y": 1,
            "yref": "y domain",
        }
        for name, ms in names[:: every or 1]
        if (across[1] - ms) * per_ms >= _ROOM_FOR_ITERATION
    ]
    return {
        "height": 420 + bars * 32 if narrow else 380,
        "margin": {"l": left, "r": 12, "t": 24, "b": 42},
        "xaxis": {"domain": [0, share], "range": across, "title": _SINCE},
        "yaxis": {"domain": [0.54 if narrow else 0, 1], **levels},
        "xaxis2": beside | {"rangemode": "tozero"},
        "yaxis2": below | {"range": [bars - 0.4, -0.9]},
        "annotations": above,
    }


def _alive(part: pd.DataFrame) -> pd.DataFrame:
    """The largest of what was alive: `what` it is, `phase`, `bytes`; the rest is one row."""
    module = part["module"].str.rpartition("/")[2]
    outer = part["outer_operation"].str.removeprefix(_AUTOGRAD)
    name = part["operation"].mask(
        part["operation"].str.startswith(_ONLY_ALLOCATE), outer
    )
    label = name.where(module == "", name + " in " + module)
    sums = part["bytes"].groupby([label.rename("what"), part["phase"]]).sum()
    bars = sums.sort_values(ascending=False).reset_index()
    if len(bars) > _MOST_BARS + 1:
        shown = bars[:_MOST_BARS]
        rest = bars["bytes"][_MOST_BARS:]
        others = {"what": [f"({len(rest):,} others)"], "phase": "", "bytes": rest.sum()}
        bars = pd.concat([shown, pd.DataFrame(others)], ignore_index=True)
    return bars


# in the legend; of a kind
_MOST_CATEGORIES = 24
_MOST_MARKS = 400
# pixels: of a device; of a finding, a bar below its title
_ROW = 130
#: Of that, the line with the name of the GPU, and the space for the lowest label of the axis.
_ROW_TITLE = 22
_BELOW_ROW = 10
_FINDING = 32
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


def time_axis_figures(
    frame: pd.DataFrame, marks: pd.DataFrame | None
) -> list[plot.Figure]:
    """Draw when the GPUs worked, and `time_axis_marks`: holes, iterations and findings."""
    sums = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False)
    if not sums.sum():
        return []
    kinds = {} if marks is None else dict(list(marks.groupby("kind")))
    findings = kinds.pop("finding", pd.DataFrame({"finding": []})).groupby(
        "finding", sort=False
    )
    devices = frame.groupby("device")
    first = float(frame["start_ms"].min())
    last = float(frame["end_ms"].max())
    bins = int(frame["bin"].max()) + 1
    step = (last - first) / bins
    below = len(findings) * _FINDING
    plotted = len(devices) * _ROW + below
    laid: plot.Plotly = {"x": 0, "xref": "paper"}
    data: list[plot.Plotly] = []
    names: list[plot.Plotly] = []
    shapes = [
        _start_line(start, "paper") if kind == "iteration" else _hole(start, end)
        for kind, part in kinds.items()
        for start, end in part[["start_ms", "end_ms"]]
        .head(_MOST_MARKS)
        .to_numpy()
        .tolist()
    ]
    xaxis = {"range": [first, last], "anchor": "free", "position": 0, "title": _SINCE}
    look = {"barmode": "overlay", "height": plotted + 70}
    look |= {"margin": {"l": 56, "r": 12, "t": 20, "b": 42}}
    layout: plot.Plotly = {
        **look,
        "xaxis": xaxis,
        "annotations": names,
        "shapes": shapes,
    }
    categories = [str(name) for name in sums.index]
    for row, (device, part) in enumerate(devices):
        axis = str(row + 1) if row else ""
        top = 1 - row * _ROW / plotted
        ends = {
            "domain": [
                top - (_ROW - _BELOW_ROW) / plotted,
                top - _ROW_TITLE / plotted,
            ],
            "rangemode": "tozero",
        }
        layout[f"yaxis{axis}"] = {**ends, "tickformat": ".0%", "nticks": 3}
        name = {"text": f"GPU {device}", "y": top, "yref": "paper", "yanchor": "top"}
        names.append({**name, **laid})
        where = {
            "yaxis": f"y{axis}",
            "stackgroup": f"row{row}",
            "x0": first,
            "dx": step,
        }
        data += [{**area, **where} for area in _areas(part, categories, bins, step)]
    under = f"yaxis{len(devices) + 1}"
    ends = {"domain": [0, below / plotted], "range": [len(findings) - 0.5, -0.75]}
    layout[under] = {**ends, "visible": False}
    under = under.replace("axis", "")
    for row, (ident, part) in enumerate(findings):
        card = f"finding-{cleaned(str(ident))}"
        title = plot.plotly_text(plot.elided(part["name"].iloc[0], plot.LABEL))
        # A short stretch is seen, too.
        lengths = (part["end_ms"] - part["start_ms"]).clip(lower=step / 4).tolist()
        at = {
            "base": part["start_ms"].tolist(),
            "x": lengths,
            "y": [row + 0.2] * len(part),
        }
        opacity = part["covered_percent"].clip(lower=_PALEST_PERCENT) / 100
        look = {
            "orientation": "h",
            "width": 0.35,
            "marker": {
                "color": _FINDING_COLORS[row % len(_FINDING_COLORS)],
                "opacity": opacity.round(2).tolist(),
                "line": {"width": 0},
            },
        }
        about = {"yaxis": under, "name": title, "customdata": [card] * len(part)}
        told = "%{fullData.name}<extra></extra>"
        data.append(plot.trace("bar", hovertemplate=told, **at, **look, **about))
        click = {"name": card, "captureevents": True, "borderpad": 0}
        names.append({"text": title, **click, "y": row - 0.2, "yref": under, **laid})
    legend = [(name, colour_of(name)) for name in categories[:_MOST_CATEGORIES]]
    words = plot.gpu_work_in_words(sums)
    spec = plot.spec_of(data, layout)
    return [
        plot.Figure("time-axis", "GPU work over time", words, legend, "time_axis", spec)
    ]


def _areas(
    frame: pd.DataFrame, categories: Iterable[str], bins: int, step: float
) -> Iterator[plot.Plotly]:
    """The part of each bin, of `step` ms, in which a device worked, by category."""
    for piece, name in enumerate(categories):
        own = frame[frame["category"] == name]
        if len(own):
            ns = own.set_index("bin")["gpu_time_ns"].reindex(
                range(bins + 1), fill_value=0
            )
            ns.iloc[-1] = ns.iloc[-2]  # where the last bin ends
            told = "<b>%{fullData.name}</b><br>%{y:.0%} at %{x:,.3f} ms<extra></extra>"
            look = {"fillcolor": colour_of(name), "line": {"shape": "hv", "width": 0}}
            about = {"name": plot.plotly_text(name), "hovertemplate": told}
            y = (ns / 1e6 / step).round(4).tolist()
            yield plot.trace("scatter", piece, mode="lines", y=y, **look, **about)


def _start_line(ms: float, yref: str) -> plot.Plotly:
    """A line where an iteration begins."""
    line = {"width": 1, "dash": "dot", "color": GREY}
    return {
        "type": "line",
        "x0": ms,
        "x1": ms,
        "y0": 0,
        "y1": 1,
        "yref": yref,
        "line": line,
    }


def _hole(start: float, end: float) -> plot.Plotly:
    at = {"x0": start, "x1": end, "y0": 0, "y1": 1, "yref": "paper"}
    look = {
        "fillcolor": "rgba(139, 147, 161, 0.25)",
        "line": {"width": 0},
        "layer": "below",
    }
    return {"type": "rect", **at, **look}
