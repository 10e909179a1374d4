"""The charts of memory: allocated and reserved over time, and beside it what was alive at the peak.

A figure a device. The bars beside the lines are the largest of what was alive, coloured by phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import GREY, ONE_COLOUR
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


_HOST = -1
_MOST_FIGURES = 4
_WORTH_DRAWING = 0.01  # of the largest peak: the host of a job on GPUs allocates a few bytes
_MOST_BARS = 10
_NAME = 36  # characters
_IN_SUMMARY = 3
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
    """Draw the memory of each device, that of the highest peak first.

    Args:
        sheets: with the tables `memory_at_peak`, `memory_over_time` and `memory_iterations`.
    """
    frame, over_time = sheets["memory_at_peak"], sheets.get("memory_over_time")
    if over_time is None:
        return []
    peaks = frame.groupby("device")["bytes"].sum()
    least = _WORTH_DRAWING * float(peaks.max()) if len(peaks) else 0.0
    order = peaks[peaks >= least].sort_values(ascending=False).index.tolist()
    marks = sheets.get("memory_iterations")
    return [
        _figure(frame[frame["device"] == device], levels, marks)
        for device in order[:_MOST_FIGURES]
        if len(levels := over_time[over_time["device"] == device])
    ]


def _figure(part: pd.DataFrame, over_time: pd.DataFrame, marks: pd.DataFrame | None) -> Figure:
    device, peak = int(over_time["device"].iloc[0]), int(part["bytes"].sum())
    moments, allocated = over_time["at_ms"].tolist(), over_time["allocated_bytes"].tolist()
    reserved = over_time["reserved_bytes"].dropna().tolist()
    lines = [("Allocated", ONE_COLOUR, allocated), ("Reserved", _RESERVED, reserved)]
    lines = [line for line in lines if line[2]]
    at = allocated.index(max(allocated))
    bars = _bars(part)
    phases = [phase for phase in _PHASES if any(bar[1] == phase for bar in bars)]
    return Figure(
        key=f"chart-memory-{device}",
        title=f"Memory of {'the host' if device == _HOST else f'device {device}'}",
        summary=_in_words(bars, peak, moments[at]),
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


def _bars(part: pd.DataFrame) -> list[tuple[str, str, int]]:
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


def _in_words(bars: list[tuple[str, str, int]], peak: int, ms: float) -> str:
    """The peak and what most of it was."""
    named = [
        f"{elided(name, _NAME)} {percent_text(100 * size / (peak or 1))}"
        for name, _, size in bars[:_IN_SUMMARY]
    ]
    return f"At most {bytes_text(peak)} allocated, at {duration_text(ms)}: {', '.join(named)}"
