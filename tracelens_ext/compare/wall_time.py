"""Compares the wall times of traces, and what the GPU did in them: the headline of a comparison.

The wall time is that of the GPU timeline: from the start of the first GPU event to the end of the
last one. That of iterations includes the gap after each iteration. With several devices, the wall
time is that of the longest device, and its parts are means over the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from tracelens_ext.compare.measurement import Figures
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.trace import NS_PER_MS

#: Type of time in the timeline → name of the part of the wall time.
_PARTS: Final[Mapping[str, str]] = {
    "computation_time": "computation",
    "exposed_comm_time": "exposed communication",
    "exposed_memcpy_time": "exposed copies",
    "idle_time": "idle",
}
_TOTAL: Final = "total_time"
_BUSY: Final = "busy_time"
#: Smaller changes of the wall time count as none, percent.
_SAME_WALL_TIME_PERCENT: Final = 0.05


class ComparedFigures(Protocol):
    """The part of `Comparison` that wall times need."""

    @property
    def letters(self) -> list[str]:
        """The letters of the traces."""

    @property
    def basis(self) -> str:
        """The unit to which the times refer: `iteration`, `period` or `trace`."""

    @property
    def divisors(self) -> list[float]:
        """The number by which the time of each trace is divided."""

    @property
    def figures(self) -> list[Figures]:
        """The figures of each trace that are compared."""


class TraceWallTime(NamedTuple):
    """The wall time of one trace, and its parts."""

    wall_ms: float
    busy_ms: float
    parts_ms: dict[str, float]  #: name of the part (a value of `_PARTS`) → ms


def wall_times(comparison: ComparedFigures) -> list[TraceWallTime]:
    """Return the wall time of each trace; empty if the timeline of a trace lacks a part."""
    times = []
    for figures, divisor in zip(comparison.figures, comparison.divisors, strict=True):
        time = _wall_time(figures.tables["timeline"], NS_PER_MS * divisor)
        if time is None:
            return []
        times.append(time)
    return times


def _wall_time(timeline: pd.DataFrame, ns_per_unit_ms: float) -> TraceWallTime | None:
    """Return the wall time of a timeline; None if it lacks a part, as that of a report may.

    Args:
        timeline: the timeline of all devices.
        ns_per_unit_ms: the number by which ns are divided to get ms per unit of work.
    """
    by_type = timeline.groupby("type")["ns"]
    mean = by_type.mean()
    if not {_TOTAL, _BUSY, *_PARTS} <= set(mean.index):
        return None
    parts = {name: float(mean[kind]) / ns_per_unit_ms for kind, name in _PARTS.items()}
    return TraceWallTime(
        wall_ms=float(by_type.max()[_TOTAL]) / ns_per_unit_ms,
        busy_ms=float(mean[_BUSY]) / ns_per_unit_ms,
        parts_ms=parts,
    )


def wall_time_table(
    times: Sequence[TraceWallTime], letters: Sequence[str]
) -> pd.DataFrame:
    """Return a table with a row for the wall time, the busy time and each part of the wall time."""
    names = ["wall time", "busy", *_PARTS.values()]
    values = np.array(
        [[time.wall_ms, time.busy_ms, *time.parts_ms.values()] for time in times]
    )
    columns: dict[str, object] = {"part": names}
    for letter, values_of_trace in zip(letters, values, strict=True):
        columns[f"{letter}_time_ms"] = values_of_trace
    for index, letter in enumerate(letters[1:], start=1):
        prefix = "" if len(letters) == 2 else f"{letter}_"
        difference = values[index] - values[0]
        baseline = np.where(values[0] == 0, np.nan, values[0])
        columns[f"{prefix}difference_ms"] = difference
        columns[f"{prefix}difference_percent"] = 100.0 * difference / baseline
    return pd.DataFrame(columns)


def wall_time_sentences(
    times: Sequence[TraceWallTime], letters: Sequence[str], basis: str
) -> list[str]:
    """Return a sentence for each trace about how its wall time differs from the baseline's."""
    sentences = []
    baseline = times[0].wall_ms
    unit = "" if basis == "trace" else f" per {basis}"
    for letter, time in zip(letters[1:], times[1:], strict=True):
        change_ms = time.wall_ms - baseline
        percent = 100.0 * change_ms / baseline if baseline else 0.0
        if abs(percent) < _SAME_WALL_TIME_PERCENT:
            sentences.append(
                f"{letter} takes as long as {letters[0]}: {time.wall_ms:,.3f} ms of "
                f"wall time{unit}."
            )
            continue
        times_text = (
            f"wall time{unit} {baseline:,.3f} ms → {time.wall_ms:,.3f} ms "
            f"({change_ms:+,.3f} ms)"
        )
        if basis == "trace":
            # The traces may have done different amounts of work, so neither is "slower".
            direction = "more" if change_ms > 0 else "less"
            comparison = f"takes {abs(percent):.1f} % {direction} time than"
        else:
            direction = "slower" if change_ms > 0 else "faster"
            comparison = f"is {abs(percent):.1f} % {direction} than"
        sentences.append(f"{letter} {comparison} {letters[0]}: {times_text}.")
    return sentences


def wall_time_chart() -> Chart:
    """Return the chart with a bar for each trace, stacked from the parts of its wall time."""
    return Chart(
        title="Wall time of each trace",
        sheet="wall_time",
        label_column="trace",
        value_column="time_ms",
        kind="stacked",
        series_column="part",
        only=tuple(_PARTS.values()),
        has_shares=False,
        prepare=_by_trace,
    )


def _by_trace(table: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the wall time with a row for each trace and part, for the chart."""
    parts = table[table["part"].isin(_PARTS.values())]
    time_columns = [column for column in parts if str(column).endswith("_time_ms")]
    rows = parts[["part"] + time_columns].melt(
        id_vars=["part"], var_name="trace", value_name="time_ms"
    )
    return rows.assign(trace=rows["trace"].str.removesuffix("_time_ms"))
