"""The roofline chart of an HTML page.

A point is an operation with its arguments: FLOPs per byte on the x axis, TFLOP/s on the y axis, and
an area that is the time lost (or the GPU time if no peaks are known). Copies and fills have no
FLOPs, so they are not on the chart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import GREY, color_of
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)

_IN_SUMMARY = 3  # number of operations in the summary
_MOST_POINTS = 400
_HOVER_COLUMNS = [
    "op_name",
    "Input Dims",
    "bound",
    "% of roofline",
    "gpu_time_ms",
    "time_lost_ms",
]
# Diameters of points, pixels.
_SMALLEST = 5.0
_LARGEST = 42.0


def roofline_figures(
    frame: pd.DataFrame, roofs: pd.DataFrame | None
) -> list[plot.Figure]:
    """Draw the operations with FLOPs and the peaks of the GPUs; empty without such operations."""
    is_loss_known = bool(np.isfinite(_floats(frame, "time_lost_ms")).any())
    points = _largest_points(frame, is_loss_known=is_loss_known)
    if points.empty:
        return []
    models = _peaks_of_models(roofs)
    ranges = _ranges(points, models)
    roofs_of_models: list[plot.Plotly] = []
    for model in models:
        roofs_of_models += _roofs(model, ranges.intensity)
    operations = _points_by_family(points)
    layout = {
        "height": 420,
        "xaxis": _logarithmic_axis("FLOPs per byte", ranges.intensity),
        "yaxis": _logarithmic_axis("TFLOP/s", ranges.rate),
    }
    figure = plot.Figure(
        key="chart-roofline",
        title="Roofline",
        summary=_roofline_in_words(points, is_loss_known=is_loss_known),
        legend=operations.legend,
        sheet="roofline",
        spec=plot.spec_of(roofs_of_models + operations.traces, layout),
    )
    return [figure]


class _Ranges(NamedTuple):
    """The ends of both axes, which show all operations, peaks and ridges."""

    intensity: list[float]  #: FLOPs per byte
    rate: list[float]  #: TFLOP/s


def _ranges(points: pd.DataFrame, models: Sequence[_ModelPeaks]) -> _Ranges:
    """Return the ends of the axes: half the least and twice the most of what they show."""
    highest_peak = 0.0
    last_ridge = 0.0
    for model in models:
        for peak in model.peaks.values():
            highest_peak = max(highest_peak, peak)
            last_ridge = max(last_ridge, peak / model.bandwidth)
    least_intensity = float(points["x"].min())
    most_intensity = float(points["x"].max())
    rates = points["y"]
    return _Ranges(
        intensity=[least_intensity / 2, max(2 * most_intensity, 2 * last_ridge)],
        rate=[rates.min() / 2, 2 * max(rates.max(), highest_peak)],
    )


def _points_by_family(points: pd.DataFrame) -> plot.Drawing:
    """Return the points of operations, in the color of their family."""
    drawing = plot.Drawing(traces=[], legend=[])
    families = points["family"].astype(str)
    for family, points_of_family in points.groupby(families, sort=False):
        color = color_of(family)
        marker = {
            "color": color,
            "opacity": 0.75,
            "line": {"width": 0.5, "color": "#ffffff"},
            "size": points_of_family["pixels"].tolist(),
        }
        trace = plot.plotly_trace(
            "scatter",
            len(drawing.legend),
            mode="markers",
            marker=marker,
            x=points_of_family["x"].tolist(),
            y=points_of_family["y"].tolist(),
            customdata=points_of_family["customdata"].tolist(),
        )
        drawing.traces.append(trace)
        drawing.legend.append((family, color))
    return drawing


def _floats(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = frame[column].to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    return values


def _largest_points(frame: pd.DataFrame, *, is_loss_known: bool) -> pd.DataFrame:
    """Return the operations of the chart, the largest first, with columns for the drawing.

    The columns are the position `x` and `y`, the `size`, the diameter in `pixels`, and the text
    beside the pointer, `customdata`.
    """
    moved_bytes = _floats(frame, "bytes")
    known_bytes = np.where(moved_bytes > 0, moved_bytes, np.nan)
    intensity = _floats(frame, "flops") / known_bytes
    rate = _floats(frame, "tflops_per_s")
    size = _floats(frame, "gpu_time_ms")
    if is_loss_known:
        size = np.nan_to_num(_floats(frame, "time_lost_ms"))
    can_be_drawn = (rate > 0) & (intensity > 0)
    points = frame.assign(x=intensity, y=rate, size=size)[can_be_drawn]
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
    """Return the text beside the pointer for an operation; without peaks, it has no bound."""
    title = plotly_lines(str(name))
    shapes_text = plotly_lines(str(shapes).replace(", ()", ""))
    text = duration_text(gpu_time_ms)
    if isinstance(bound, str):
        share = percent_text(percent)
        lost = duration_text(time_lost_ms)
        text = f"{bound} bound, {share} of roofline, {text}, {lost} lost"
    return f"<b>{title}</b><br>{shapes_text}<br>{plotly_text(text)}"


def _roofline_in_words(points: pd.DataFrame, *, is_loss_known: bool) -> str:
    quantity = "Time lost" if is_loss_known else "GPU time"
    largest = points[["op_name", "size"]].head(_IN_SUMMARY)
    texts = []
    for name, ms in largest.itertuples(index=False):
        operation = elided(str(name), 40)
        texts.append(f"{operation} {duration_text(ms)}")
    return f"{quantity}: {', '.join(texts)}"


def _logarithmic_axis(title: str, ends: Sequence[float]) -> plot.Plotly:
    return {
        "type": "log",
        "dtick": 1,
        "exponentformat": "none",
        "range": [math.log10(end) for end in ends],
        "title": {"text": title},
        "automargin": True,
    }


class _ModelPeaks(NamedTuple):
    """The peaks of a GPU model."""

    bandwidth: float  #: memory bandwidth, TB/s
    peaks: dict[str, float]  #: engine and type → TFLOP/s


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


def _roofs(model: _ModelPeaks, x_range: list[float]) -> list[plot.Plotly]:
    """Return the lines of a model: bandwidth times intensity, up to the peak of each type."""
    bandwidth = model.bandwidth
    lines = []
    # Types with the same peak have one line.
    for peak in dict.fromkeys(model.peaks.values()):
        types = [name for name, other in model.peaks.items() if other == peak]
        name = f"{', '.join(types)}: {peak:,.4g} TFLOP/s; {bandwidth:,.3g} TB/s"
        ridge = peak / bandwidth
        intensities = [x_range[0], ridge, x_range[1]]
        line = plot.plotly_trace(
            "scatter",
            mode="lines+text",
            hoverinfo="skip",
            x=intensities,
            y=[min(intensity * bandwidth, peak) for intensity in intensities],
            text=["", "", plotly_text(name)],
            textposition="top left",
            line={"width": 1.5, "color": GREY},
            textfont={"size": 11},
        )
        lines.append(line)
    return lines
