"""The roofline chart: what each operation reached, below what its GPU can do; both axes are log.

A point is an operation with its arguments: FLOPs per byte across, TFLOP/s up, its area the time
lost (its GPU time where no peaks are known), its colour the family. What computes nothing (copies,
fills) has no place on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of
from tracelens_ext.report.html_figures import Figure
from tracelens_ext.report.html_text import (
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST_POINTS = 400
_IN_SUMMARY = 3
_SMALLEST, _LARGEST = 5.0, 42.0  # pixels


def roofline_figures(frame: pd.DataFrame, roofs: pd.DataFrame | None) -> list[Figure]:
    """Draw the operations that compute; none without any.

    Args:
        frame: the table `roofline`.
        roofs: the table `roofline_peaks`, if there is one.
    """
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
    pieces = []
    for family in named:
        places = [at for at, each in enumerate(families) if each == family]
        pieces.append(
            {
                "colour": colour_of(family),
                "x": x[places].tolist(),
                "y": y[places].tolist(),
                "sizes": np.maximum(
                    _SMALLEST, _LARGEST * np.sqrt(size[drawn][places] / largest)
                ).tolist(),
                "hover": [hover[at] for at in places],
            }
        )
    return [
        Figure(
            key="chart-roofline",
            title="Roofline",
            summary=_in_words(part, size[drawn], lost=bool(known)),
            legend=[(family, colour_of(family)) for family in named],
            sheet="roofline",
            spec={
                "roofs": _roofs(peaks, memory, across),
                "points": pieces,
                "across": across,
                "up": [float(y.min()) / 2, 2 * max([float(y.max()), *peaks.values()])],
            },
        )
    ]


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
        name = ", ".join(names)
        places = [across[0], peak / memory, across[1]]
        lines.append(
            {
                "x": places,
                "y": [min(at * memory, peak) for at in places],
                "name": plotly_text(f"{name}: {peak:,.4g} TFLOP/s; {memory:,.3g} TB/s"),
            }
        )
    return lines


def _in_figures(bound: object, percent: float, ms: float, lost: float) -> str:
    time = duration_text(float(ms))
    if not isinstance(bound, str):
        return time
    reached = f"{bound} bound, {percent_text(float(percent))} of roofline"
    return f"{reached}, {time}, {duration_text(float(lost))} lost"


def _in_words(part: pd.DataFrame, size: npt.NDArray[np.float64], *, lost: bool) -> str:
    """The operations with the largest points."""
    names = part["op_name"].head(_IN_SUMMARY)
    said = [
        f"{elided(str(name), 40)} {duration_text(float(ms))}"
        for name, ms in zip(names, size[:_IN_SUMMARY], strict=False)
    ]
    return f"{'Time lost' if lost else 'GPU time'}: {', '.join(said)}"
