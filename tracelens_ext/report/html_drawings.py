"""The drawings of a page that are no bars: roofline, memory, time axis and call tree.

*Roofline*: what each operation reached, below what its GPU can do; both axes are logarithmic. A
point is an operation with its arguments: FLOPs per byte across, TFLOP/s up, its area the time
lost (its GPU time where no peaks are known), its colour the family. Copies and fills have no place
on it, as they compute nothing.

*Memory*: a figure a device; allocated and reserved over time, and beside it the largest of what was
alive at the peak, coloured by phase.

*Time axis* and *call tree*: their data, in whole ns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import GREY, ONE_COLOUR, colour_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_figures import Figure
from tracelens_ext.report.html_text import (
    bytes_text,
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_MOST_POINTS = 400
_IN_SUMMARY = 3
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
        for name, dims, bound, percent, ms, rest in zip(
            part["op_name"],
            part["Input Dims"],
            part["bound"],
            part["% of roofline"],
            part["gpu_time_ms"],
            part["time_lost_ms"],
            strict=True,
        )
    ]
    sizes = np.maximum(_SMALLEST, _LARGEST * np.sqrt(size[drawn] / largest))
    points = []
    for family in named:
        places = [at for at, each in enumerate(families) if each == family]
        marker = {"size": sizes[places].tolist(), "color": colour_of(family), "opacity": 0.75}
        points.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": x[places].tolist(),
                "y": y[places].tolist(),
                "marker": {**marker, "line": {"width": 0.5, "color": "#ffffff"}},
                "customdata": [hover[at] for at in places],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return [
        Figure(
            key="chart-roofline",
            title="Roofline",
            summary=_largest_in_words(part, size[drawn], lost=bool(known)),
            legend=[(family, colour_of(family)) for family in named],
            sheet="roofline",
            spec={
                "plain": points,
                "below": _roofs(peaks, memory, across),
                "height": _HEIGHT,
                "x": _logarithmic("FLOPs per byte", *across),
                "y": _logarithmic(
                    "TFLOP/s", float(y.min()) / 2, 2 * max([float(y.max()), *peaks.values()])
                ),
            },
        )
    ]


def _logarithmic(title: str, low: float, high: float) -> dict[str, object]:
    ends = [math.log10(low), math.log10(high)]
    return {"type": "log", "dtick": 1, "exponentformat": "none", "range": ends, "title": title}


def _numbers(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    return frame[column].to_numpy(dtype=np.float64, na_value=np.nan)


def _intensity(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """FLOPs per byte; NaN where nothing is moved."""
    flops, moved = _numbers(frame, "flops"), _numbers(frame, "bytes")
    result = np.full(len(frame), np.nan)
    np.divide(flops, moved, out=result, where=moved > 0)
    return result


def _roofs(
    peaks: dict[str, float], memory: float | None, across: list[float]
) -> list[dict[str, object]]:
    """The lines: bandwidth times intensity, up to the peak of each type."""
    if not memory:
        return []
    lines: list[dict[str, object]] = []
    by_peak: dict[float, list[str]] = {}
    for name, peak in peaks.items():  # types with one peak have one line
        by_peak.setdefault(peak, []).append(name)
    for peak, names in by_peak.items():
        name = f"{', '.join(names)}: {peak:,.4g} TFLOP/s; {memory:,.3g} TB/s"
        places = [across[0], peak / memory, across[1]]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+text",
                "x": places,
                "y": [min(at * memory, peak) for at in places],
                "line": {"width": 1.5, "color": "#8b93a1"},
                "text": ["", "", plotly_text(name)],
                "textposition": "top left",
                "textfont": {"size": 11},
                "hoverinfo": "skip",
                "cliponaxis": False,
            }
        )
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
    return Figure(
        key=f"chart-memory-{device}",
        title=f"Memory of {'the host' if device == _HOST else f'device {device}'}",
        summary=_peak_in_words(bars, peak, moments[at]),
        legend=[
            *((name, colour) for name, colour, _ in lines),
            *(_PHASES[phase] for phase in phases),
        ],
        sheet="memory_at_peak",
        spec={
            "levels": [
                {
                    "colour": colour,
                    "values": values,
                    "hover": [
                        f"<b>{name}</b><br>{bytes_text(value)} at {ms:,.3f} ms"
                        for value, ms in zip(values, moments, strict=True)
                    ],
                }
                for name, colour, values in lines
            ],
            "ms": moments,
            "end": bytes_text(max(max(values) for _, _, values in lines)),
            "peak": {"ms": moments[at], "value": allocated[at]},
            "iterations": [
                {"name": plotly_text(elided(name, _NAME)), "ms": ms}
                for name, ms in ([] if marks is None else marks.to_numpy().tolist())
            ],
            "bars": [
                {
                    "name": plotly_text(elided(name, _NAME)),
                    "end": f"{bytes_text(size)} ({percent_text(100 * size / (peak or 1))})",
                    "value": max(size, 0),
                    "piece": len(lines) + phases.index(phase),
                    "colour": _PHASES[phase][1],
                    "hover": f"<b>{plotly_lines(name)}</b><br>{bytes_text(size)}",
                }
                for name, phase, size in bars
            ],
        },
    )


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


_LABEL = 120  # characters
_MOST_CATEGORIES = 24  # in the legend
_MOST_MARKS = 400  # of a kind


def view_figures(sheets: Mapping[str, pd.DataFrame], sheet: str) -> list[Figure]:
    """The figure of `time_axis` or `call_tree`; its data is what `view_data` says."""
    frame = sheets[sheet]
    if not frame["gpu_time_ns"].sum():
        return []
    if sheet == "time_axis":
        sums = frame.groupby("category")["gpu_time_ns"].sum()
    else:
        top = frame[frame["parent"] < 0]
        sums = top.groupby("label")["gpu_time_ns"].sum()
    sums = sums.sort_values(ascending=False)
    total = int(sums.sum())
    parts = [
        f"{elided(str(name), _LABEL)} {percent_text(100 * ns / total)}"
        for name, ns in sums.head(_IN_SUMMARY).items()
    ]
    axis = sheet == "time_axis"
    return [
        Figure(
            key=sheet.replace("_", "-"),
            title="GPU work over time" if axis else "GPU time in the call tree",
            summary="as wide as the time of both; red takes longer than the baseline, blue less"
            if "colour" in frame
            else f"{duration_text(total / 1e6)} of GPU work: {', '.join(parts)}",
            legend=[(str(name), colour_of(str(name))) for name in sums.index[:_MOST_CATEGORIES]]
            if axis
            else [],
            sheet=sheet,
            spec={"view": sheet},
        )
    ]


def view_data(sheets: Mapping[str, pd.DataFrame]) -> dict[str, object]:
    """What the script draws, by the names of the tables."""
    data: dict[str, object] = {}
    if "time_axis" in sheets:
        data["time_axis"] = _time_axis(sheets["time_axis"], sheets.get("time_axis_marks"))
    if "call_tree" in sheets:
        data["call_tree"] = _call_tree(sheets["call_tree"])
    return data


def _time_axis(frame: pd.DataFrame, marks: pd.DataFrame | None) -> dict[str, object]:
    bins = int(frame["bin"].max()) + 1
    order = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False).index
    rows = []
    for device, part in frame.groupby("device"):
        cells = part.set_index("bin").groupby("category")["gpu_time_ns"]
        ns = {name: own.reindex(range(bins), fill_value=0).tolist() for name, own in cells}
        ordered = {plotly_text(name): ns[name] for name in order if name in ns}
        rows.append({"rank": None, "device": device, "ns": ordered})
    marked: dict[str, list[dict[str, object]]] = {"iteration": [], "hole": []}
    findings: dict[str, dict[str, Any]] = {}
    for each in [] if marks is None else marks.to_dict("records"):
        name = plotly_text(elided(each["name"], _LABEL))
        span = {"start_ms": each["start_ms"], "end_ms": each["end_ms"]}
        if each["kind"] == "finding":
            known = {"id": cleaned(each["finding"]), "title": name, "intervals": []}
            findings.setdefault(each["finding"], known)["intervals"].append(span)
            continue
        marks_of_kind = marked["iteration" if each["kind"] == "iteration" else "hole"]
        if len(marks_of_kind) < _MOST_MARKS:
            marks_of_kind.append({"name": name, "device": each["device"], **span})
    return {
        "start_ms": float(frame["start_ms"].min()),
        "end_ms": float(frame["end_ms"].max()),
        "bins": bins,
        "rows": rows,
        "iterations": marked["iteration"],
        "holes": marked["hole"],
        "findings": list(findings.values()),
        "colours": {plotly_text(name): colour_of(name) for name in order},
    }


def _call_tree(frame: pd.DataFrame) -> dict[str, object]:
    total = int(frame.loc[frame["parent"] < 0, "gpu_time_ns"].sum())
    rows = frame.to_dict("records")
    return {
        "labels": [plotly_text(elided(row["label"], _LABEL)) for row in rows],
        "parents": [row["parent"] for row in rows],
        "ns": [row["gpu_time_ns"] for row in rows],
        "kinds": [row["kind"] for row in rows],
        "categories": [plotly_text(row["category"]) for row in rows],
        "colours": [row.get("colour") or _colour(row["kind"], row["category"]) for row in rows],
        "hover": [
            row.get("hover")
            or f"{duration_text(row['gpu_time_ns'] / 1e6)}"
            f" ({percent_text(100 * row['gpu_time_ns'] / total)})"
            for row in rows
        ],
    }


def _colour(kind: str, category: str) -> str:
    """Of a kernel that of its category; of an operation a paler one; of a module none."""
    if kind == "module":
        return "#dfe3ea"
    colour = colour_of(category)
    if kind != "operation":
        return colour
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)
