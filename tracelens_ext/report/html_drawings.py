"""The drawings of a page that are no bars: roofline and memory.

*Roofline*: what each operation reached, below what its GPU can do; both axes are logarithmic. A
point is an operation with its arguments: FLOPs per byte across, TFLOP/s up, its area the time
lost (its GPU time where no peaks are known), its colour the family. Copies and fills have no place
on it, as they compute nothing.

*Memory*: a figure a device; allocated and reserved over time, and beside it the largest of what was
alive at the peak, coloured by phase.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import GREY, ONE_COLOUR, colour_of
from tracelens_ext.report.html_figures import MARK, Figure, is_narrow, spec_of, trace
from tracelens_ext.report.html_text import (
    bytes_text,
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.report.html_views import SINCE, start_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from tracelens_ext.report.html_figures import Plotly

_MOST_POINTS = 400
_IN_SUMMARY = 3
_TOLD = ["op_name", "Input Dims", "bound", "% of roofline", "gpu_time_ms", "time_lost_ms"]
_SMALLEST, _LARGEST, _HEIGHT = 5.0, 42.0, 420  # pixels


def roofline_figures(frame: pd.DataFrame, roofs: pd.DataFrame | None) -> list[Figure]:
    """Draw the operations that compute; none without any."""
    lost = _numbers(frame, "time_lost_ms")
    known = np.isfinite(lost).any()
    size = np.nan_to_num(lost) if known else _numbers(frame, "gpu_time_ms")
    rate, intensity = _numbers(frame, "tflops_per_s"), _intensity(frame)
    drawn = np.flatnonzero((rate > 0) & (intensity > 0))
    drawn = drawn[np.argsort(-size[drawn], kind="stable")][:_MOST_POINTS]
    if not len(drawn):
        return []
    x, y = intensity[drawn], rate[drawn]
    part = frame.iloc[drawn]
    families = [str(family) for family in part["family"]]
    named = list(dict.fromkeys(families))
    peaks = {} if roofs is None else dict(zip(roofs["what"], roofs["peak"], strict=True))
    memory = peaks.pop("memory", None)
    ridges = [2 * peak / memory for peak in peaks.values()] if memory else []
    across = [float(x.min()) / 2, max([2 * float(x.max()), *ridges])]
    largest = max(float(size[drawn].max()), 1e-12)
    hover = [
        f"<b>{plotly_lines(str(name))}</b><br>{plotly_lines(str(dims).replace(', ()', ''))}<br>"
        + plotly_text(_in_figures(bound, percent, ms, rest))
        for name, dims, bound, percent, ms, rest in part[_TOLD].itertuples(index=False)
    ]
    sizes = np.maximum(_SMALLEST, _LARGEST * np.sqrt(size[drawn] / largest))
    points: list[Plotly] = []
    for family in named:
        places = [at for at, each in enumerate(families) if each == family]
        marker = {"size": sizes[places].tolist(), "color": colour_of(family), "opacity": 0.75}
        marker |= {"line": {"width": 0.5, "color": "#ffffff"}}
        at = {"x": x[places].tolist(), "y": y[places].tolist()}
        told = [hover[at] for at in places]
        points.append(
            trace("scatter", len(points), mode="markers", **at, marker=marker, customdata=told)
        )
    return [
        Figure(
            key="chart-roofline",
            title="Roofline",
            summary=_largest_in_words(part, size[drawn], lost=bool(known)),
            legend=[(family, colour_of(family)) for family in named],
            sheet="roofline",
            spec=spec_of(
                [*_roofs(peaks, memory, across), *points],
                {
                    "height": _HEIGHT,
                    "xaxis": _logarithmic("FLOPs per byte", *across),
                    "yaxis": _logarithmic(
                        "TFLOP/s", float(y.min()) / 2, 2 * max([float(y.max()), *peaks.values()])
                    ),
                },
            ),
        )
    ]


def _logarithmic(title: str, low: float, high: float) -> Plotly:
    ends = {"range": [math.log10(low), math.log10(high)], "title": {"text": title}}
    return {"type": "log", "dtick": 1, "exponentformat": "none", **ends}


def _numbers(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    return frame[column].to_numpy(dtype=np.float64, na_value=np.nan)


def _intensity(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """FLOPs per byte; NaN where nothing is moved."""
    flops, moved = _numbers(frame, "flops"), _numbers(frame, "bytes")
    result = np.full(len(frame), np.nan)
    np.divide(flops, moved, out=result, where=moved > 0)
    return result


def _roofs(peaks: dict[str, float], memory: float | None, across: list[float]) -> list[Plotly]:
    """The lines: bandwidth times intensity, up to the peak of each type."""
    if not memory:
        return []
    lines: list[Plotly] = []
    by_peak: dict[float, list[str]] = {}
    for name, peak in peaks.items():  # types with one peak have one line
        by_peak.setdefault(peak, []).append(name)
    for peak, names in by_peak.items():
        name = f"{', '.join(names)}: {peak:,.4g} TFLOP/s; {memory:,.3g} TB/s"
        places = [across[0], peak / memory, across[1]]
        text = {"text": ["", "", plotly_text(name)], "textposition": "top left"}
        look = {"line": {"width": 1.5, "color": GREY}, "textfont": {"size": 11}}
        y = [min(at * memory, peak) for at in places]
        line = trace("scatter", mode="lines+text", x=places, y=y, hoverinfo="skip", **text, **look)
        lines.append(line)
    return lines


def _in_figures(bound: object, percent: float, ms: float, lost: float) -> str:
    time = duration_text(float(ms))
    if not isinstance(bound, str):
        return time
    reached = f"{bound} bound, {percent_text(float(percent))} of roofline"
    return f"{reached}, {time}, {duration_text(float(lost))} lost"


def _largest_in_words(part: pd.DataFrame, size: npt.NDArray[np.float64], *, lost: bool) -> str:
    names = part["op_name"].head(_IN_SUMMARY)
    said = [
        f"{elided(str(name), 40)} {duration_text(float(ms))}"
        for name, ms in zip(names, size[:_IN_SUMMARY], strict=False)
    ]
    return f"{'Time lost' if lost else 'GPU time'}: {', '.join(said)}"


_HOST = -1
_MOST_FIGURES = 4
_WORTH_DRAWING = 0.01  # of the largest peak: the host of a job on GPUs allocates a few bytes
_MOST_BARS = 10
_NAME = 36  # characters
#: Operations that tell nothing of what the memory is for; those around them do.
_ONLY_ALLOCATE = ("aten::empty", "aten::resize_")
_AUTOGRAD = "autograd::engine::evaluate_function: "
_ROOM_FOR_ITERATION = 95  # pixels of its name
_RESERVED = "#e58a2b"
#: What stands in the legend for each phase, and its colour; nothing else has a phase.
_PHASES = {
    "": ("Other", GREY),
    "forward": ("Forward", "#2f9e73"),
    "backward": ("Backward", "#8d6bc7"),
    "optimizer": ("Optimizer", "#b5651d"),
}


def memory_figures(sheets: Mapping[str, pd.DataFrame]) -> list[Figure]:
    """Draw the memory of each device, that of the highest peak first."""
    frame, over_time = sheets["memory_at_peak"], sheets.get("memory_over_time")
    if over_time is None:
        return []
    peaks = frame.groupby("device")["bytes"].sum()
    least = _WORTH_DRAWING * float(peaks.max()) if len(peaks) else 0.0
    order = peaks[peaks >= least].sort_values(ascending=False).index.tolist()
    marks = sheets.get("memory_iterations")
    return [
        _memory_figure(frame[frame["device"] == device], levels, marks)
        for device in order[:_MOST_FIGURES]
        if len(levels := over_time[over_time["device"] == device])
    ]


def _memory_figure(
    part: pd.DataFrame, over_time: pd.DataFrame, marks: pd.DataFrame | None
) -> Figure:
    device, peak = int(over_time["device"].iloc[0]), int(part["bytes"].sum())
    moments, allocated = over_time["at_ms"].tolist(), over_time["allocated_bytes"].tolist()
    reserved = over_time["reserved_bytes"].dropna().tolist()
    lines = [("Allocated", ONE_COLOUR, allocated), ("Reserved", _RESERVED, reserved)]
    lines = [line for line in lines if line[2]]
    at = allocated.index(max(allocated))
    bars = _alive(part)
    phases = [phase for phase in _PHASES if any(bar[1] == phase for bar in bars)]
    data: list[Plotly] = []
    for piece, (name, colour, values) in enumerate(lines):
        told = f"<b>{name}</b><br>%{{y:,.4s}}B at %{{x:,.3f}} ms<extra></extra>"
        look = {"mode": "lines", "line": {"width": 1.5, "shape": "hv", "color": colour}}
        data.append(trace("scatter", piece, x=moments, y=values, hovertemplate=told, **look))
    highest = {"x": [moments[at]], "y": [allocated[at]], "hovertemplate": "Peak<extra></extra>"}
    data.append(trace("scatter", 0, mode="markers", marker=MARK, **highest))
    for piece, phase in enumerate(phases, len(lines)):
        data += _bars_of(phase, bars, peak, piece)
    start, end = moments[0], max(moments[-1], moments[0] + 1e-3)
    starts = [] if marks is None else marks["start_ms"].tolist()
    across = [min([start, *starts]), end]
    return Figure(
        key=f"chart-memory-{device}",
        title=f"Memory of {'the host' if device == _HOST else f'device {device}'}",
        summary=_peak_in_words(bars, peak, moments[at]),
        legend=[
            *((name, colour) for name, colour, _ in lines),
            *(_PHASES[phase] for phase in phases),
        ],
        sheet="memory_at_peak",
        spec=spec_of(
            data,
            {"shapes": [start_line(ms, "y domain") for ms in starts]},
            partial(_memory_layout, across=across, bars=len(bars), marks=marks),
        ),
    )


def _bars_of(
    phase: str, bars: Sequence[tuple[str, str, int]], peak: int, piece: int
) -> list[Plotly]:
    """What of a phase was alive at the peak: its bars, and the names above them."""
    mine = [(at, name, size) for at, (name, own, size) in enumerate(bars) if own == phase]
    ys, axes = [at for at, _, _ in mine], {"xaxis": "x2", "yaxis": "y2"}
    sizes = [max(size, 0) or None for _, _, size in mine]
    hover = [f"<b>{plotly_lines(name)}</b><br>{bytes_text(size)}" for _, name, size in mine]
    names = [
        plotly_text(
            f"{elided(name, _NAME)}: {bytes_text(size)} ({percent_text(100 * size / (peak or 1))})"
        )
        for _, name, size in mine
    ]
    look = {"orientation": "h", "width": 0.36, "marker": {"color": _PHASES[phase][1]}}
    above = {"y": [y - 0.2 for y in ys], "textposition": "top right", "textfont": {"size": 11}}
    return [
        trace("bar", piece, x=sizes, y=ys, customdata=hover, **look, **axes),
        trace(
            "scatter",
            piece,
            mode="text",
            x=[0] * len(ys),
            text=names,
            hoverinfo="skip",
            **above,
            **axes,
        ),
    ]


def _memory_layout(
    room: int, *, across: Sequence[float], bars: int, marks: pd.DataFrame | None
) -> Plotly:
    """The bars stand below the lines where there is no room beside."""
    narrow = is_narrow(room)
    share, left = (1.0, 50) if narrow else (0.64, 64)
    names = [] if marks is None else marks.to_numpy().tolist()
    per_ms = (room - left) * share / (across[1] - across[0])  # pixels
    every = math.ceil(len(names) / max(1, room * share // _ROOM_FOR_ITERATION))
    named = [
        (name, ms)
        for name, ms in names[:: every or 1]
        if (across[1] - ms) * per_ms >= _ROOM_FOR_ITERATION
    ]
    return {
        "height": 420 + bars * 32 if narrow else 380,
        "margin": {"l": left, "r": 12, "t": 24, "b": 42},
        "xaxis": {"domain": [0, share], "range": across, "title": SINCE},
        "yaxis": {
            "domain": [0.54 if narrow else 0, 1],
            "rangemode": "tozero",
            "tickformat": "~s",
            "ticksuffix": "B",
            "nticks": 6,
        },
        "xaxis2": {
            "domain": [0, 1] if narrow else [share + 0.04, 1],
            "anchor": "y2",
            "rangemode": "tozero",
            "visible": False,
        },
        "yaxis2": {
            "domain": [0, 0.43 if narrow else 1],
            "anchor": "x2",
            "range": [bars - 0.4, -0.9],
            "visible": False,
        },
        "annotations": [
            {"text": plotly_text(elided(name, _NAME)), "x": ms, "y": 1, "yref": "y domain"}
            for name, ms in named
        ],
    }


def _alive(part: pd.DataFrame) -> list[tuple[str, str, int]]:
    """The largest of what was alive: what it is, its phase, its bytes; the rest is one bar."""
    module = part["module"].str.rpartition("/")[2]
    outer = part["outer_operation"].str.removeprefix(_AUTOGRAD)
    name = part["operation"].mask(part["operation"].str.startswith(_ONLY_ALLOCATE), outer)
    label = name.where(module == "", name + " in " + module)
    sums = part["bytes"].groupby([label, part["phase"]]).sum().sort_values(ascending=False)
    named = zip(sums.index.tolist(), sums.tolist(), strict=True)
    bars = [(name, phase, size) for (name, phase), size in named]
    if len(bars) <= _MOST_BARS + 1:
        return bars
    rest = bars[_MOST_BARS:]
    return [*bars[:_MOST_BARS], (f"({len(rest):,} others)", "", sum(bar[2] for bar in rest))]


def _peak_in_words(bars: list[tuple[str, str, int]], peak: int, ms: float) -> str:
    named = [
        f"{elided(name, _NAME)} {percent_text(100 * size / (peak or 1))}"
        for name, _, size in bars[:_IN_SUMMARY]
    ]
    return f"At most {bytes_text(peak)} allocated, at {duration_text(ms)}: {', '.join(named)}"
