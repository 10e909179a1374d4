"""The chart of the parts of each device's time: computation, communication, copies, idle time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.html_bars import bar_piece, bars_spec
from tracelens_ext.report.html_figures import Figure, Plotly
from tracelens_ext.report.html_texts import (
    amount_text,
    duration_text,
    percent_text,
    plotly_text,
)
from tracelens_ext.report.tables.timeline_rows import analyzed_rows

#: The parts of the total time: `type` in `gpu_timeline` → name on the page.
TIMELINE_PIECES = {
    "computation_time": "Computation",
    "exposed_comm_time": "Exposed communication",
    "exposed_memcpy_time": "Exposed memory copies",
    "idle_time": "Idle",
}
#: The parts of the wall time if not all of it is analyzed.
_ANALYZED_PIECES = {
    "analyzed_computation_time": "Computation",
    "analyzed_exposed_comm_time": "Exposed communication",
    "analyzed_exposed_memcpy_time": "Exposed memory copies",
    "analyzed_idle_time": "Idle",
    "warm_up_time": "Warm-up",
    "not_recorded_time": "Not recorded",
}
#: The parts of the idle time if the table divides it.
_SPLIT_IDLE = {
    "micro_idle_time": "Idle, short gaps",
    "macro_idle_time": "Idle, long gaps",
}


def timeline_figure(frame: pd.DataFrame) -> Figure:
    """Draw the parts of each device's time in percent, from the table `gpu_timeline`."""
    has_devices = "device" in frame
    rows_of_devices = frame if has_devices else frame.assign(device=-1)
    devices = rows_of_devices["device"].unique().tolist()
    bar_names = ["GPU"] * len(devices)
    if has_devices:
        bar_names = [f"GPU {device}" for device in devices]
    name_of_part = dict(TIMELINE_PIECES)
    analyzed = analyzed_rows(rows_of_devices)
    if len(analyzed):
        rows_of_devices = _of_wall_time(analyzed)
        name_of_part = dict(_ANALYZED_PIECES)
    elif _SPLIT_IDLE.keys() <= set(frame["type"]):
        del name_of_part["idle_time"]
        name_of_part |= _SPLIT_IDLE
    parts = _timeline_parts(rows_of_devices, devices, name_of_part)
    return Figure(
        key="chart-gpu-timeline",
        title="GPU timeline",
        summary=", ".join(map(_shares_in_words, parts.drawn)).capitalize(),
        legend=[(part.name, color_of(part.kind)) for part in parts.drawn],
        sheet="gpu_timeline",
        spec=bars_spec(
            pieces=_timeline_pieces(parts, bar_names),
            wide=bar_names,
            narrow=bar_names,
            ends=[duration_text(total) for total in parts.totals],
            axis="%",
        ),
    )


class _TimelinePart(NamedTuple):
    """A part of the time of d devices."""

    kind: str  #: `type` in `gpu_timeline`
    name: str  #: the name on the page
    shares: list[float]  #: share of the time of each device, percent, (d,)
    times: list[float]  #: ms, (d,)


class _TimelineParts(NamedTuple):
    """The parts of the time of d devices."""

    drawn: list[_TimelinePart]  #: the parts that are not 0 for all devices
    totals: list[float]  #: the time of each device, ms, (d,)


def _timeline_parts(
    frame: pd.DataFrame, devices: list[int], name_of_part: Mapping[str, str]
) -> _TimelineParts:
    """Return the parts of the time of each device.

    Args:
        frame: rows with `type`, `device`, `time ms` and `percent`.
        devices: the devices, in the order of their bars.
        name_of_part: `type` → the name on the page.
    """
    groups = frame.groupby(["type", "device"], sort=False)[["time ms", "percent"]]
    last_rows = groups.last()
    kinds = ["total_time"] + list(name_of_part)
    ms = _by_device(last_rows["time ms"], kinds, devices)
    percent = _by_device(last_rows["percent"], kinds, devices)
    drawn = []
    for kind, name in name_of_part.items():
        part = _TimelinePart(
            kind=kind,
            name=name,
            shares=percent[kind].tolist(),
            times=ms[kind].tolist(),
        )
        if any(part.shares):
            drawn.append(part)
    return _TimelineParts(drawn=drawn, totals=ms["total_time"].tolist())


def _timeline_pieces(parts: _TimelineParts, bar_names: Sequence[str]) -> list[Plotly]:
    """Return the pieces of the bars, one bar for each device."""
    pieces: list[Plotly] = []
    for part in parts.drawn:
        hover = []
        for bar, ms, total in zip(bar_names, part.times, parts.totals, strict=True):
            amount = plotly_text(amount_text(ms, "ms", total))
            hover.append(f"<b>{part.name}</b>, {plotly_text(bar)}<br>{amount}")
        piece = bar_piece(
            place=len(pieces),
            values=part.shares,
            color=color_of(part.kind),
            hover=hover,
            inside=[percent_text(share) for share in part.shares],
        )
        pieces.append(piece)
    return pieces


def _shares_in_words(part: _TimelinePart) -> str:
    """Return the share of a part as text; for several devices, the smallest and the largest."""
    least = percent_text(min(part.shares))
    most = percent_text(max(part.shares))
    range_text = least if least == most else f"{least} to {most}"
    return f"{part.name.lower()} {range_text}"


def _by_device(values: pd.Series, kinds: list[str], devices: list[int]) -> pd.DataFrame:
    """Return values as a table with a row for each device and a column for each `type`."""
    by_kind = values.unstack().reindex(index=kinds, columns=devices)
    return by_kind.fillna(0.0).T


def _of_wall_time(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the wall time as percentages of the wall time.

    The row `total_time` is the wall time.
    """
    pieces = frame[frame["type"].isin(list(_ANALYZED_PIECES))]
    wall_ms = pieces.groupby("device")["time ms"].sum()
    whole_ms = pieces["device"].map(wall_ms).clip(lower=1e-9)
    shares = pieces.assign(percent=100.0 * pieces["time ms"] / whole_ms)
    totals = wall_ms.reset_index().assign(type="total_time", percent=100.0)
    return pd.concat([shares, totals], ignore_index=True)
