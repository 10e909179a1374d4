"""The tables of one trace that a fleet keeps: a part each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.collectives.collectives import collective_calls
from tracelens_ext.lazy import pd
from tracelens_ext.ranks.part import rank_tables
from tracelens_ext.timeline.timeline import gpu_timeline
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.grouping import group_durations, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.work.gpu_work import GpuWork

#: The folders of parts.
TABLES = (
    *("timeline", "categories", "kernels", "ops", "collectives", "collective_calls"),
    *("findings", "rank_calls", "rank_iterations", "overlap"),
)
#: The first columns of each part.
KEYS = ("trace", "rank", "device")
#: What has no type of its own in a table without rows: a column has one type in all parts.
_NUMBERS = {"time ms": "float64", "percent": "float64"}
_TEXTS = (
    "type",
    "kind",
    "cpu_op",
    "name",
    "Categories",
    "kernel_category",
    "kernel_name",
    "collective",
    "Collective name",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "dtype",
    "iteration",
)


def trace_tables(
    analyzer: TreePerfAnalyzer, name: str, rank: int, place: int
) -> dict[str, pd.DataFrame]:
    """The tables of a trace by their names in `TABLES`.

    Args:
        analyzer: of the trace, with categories.
        name: what the trace is called in the column `trace`.
        rank: its rank.
        place: its place among all traces: those of several ranks count from there.

    Returns:
        Tables with the columns `trace`, `rank`, `device` first. The GPU of a row is missing in
        tables that add up several (`kernels`, `ops`, `collectives`), unless the trace has one.
    """
    work = analyzer.work
    tables = {
        "timeline": _timeline(work),
        "categories": categories(work),
        "kernels": analyzer.get_df_kernel_summary(),
        "ops": analyzer.get_df_kernel_launchers_summary(),
        "collectives": analyzer.get_df_collectives(),
        "collective_calls": collective_calls(work),
        "findings": analyzer.get_df_findings(),
    }
    keyed = {table: _keyed(frame, work, name, rank) for table, frame in tables.items()}
    return keyed | rank_tables(work, rank, place)


def categories(work: GpuWork) -> pd.DataFrame:
    """GPU time by device and category.

    Returns:
        Columns `device`, `kernel_category`, `count`, `total_time_ms`, `% of GPU time` (of the
        summed durations on that device); longest first.
    """
    found = work.categories
    if found is None:
        raise ValueError("kernel categories were not asked for")
    device = work.trace.device
    groups = group_durations([device, found.code], work.duration)
    of_device = {int(number): int(work.duration[device == number].sum()) for number in set(device)}
    whole = np.array([of_device[number] for number in groups.keys[0].tolist()], dtype=np.int64)
    return pd.DataFrame(
        {
            "device": groups.keys[0],
            "kernel_category": texts(groups.keys[1], found.labels),
            "count": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "% of GPU time": percent(groups.total, whole),
        }
    )


def _timeline(work: GpuWork) -> pd.DataFrame:
    frame = gpu_timeline(work)
    if "device" not in frame:
        frame.insert(0, "device", np.repeat(work.trace.device[work.counted][:1], len(frame)))
    return frame


def _keyed(frame: pd.DataFrame, work: GpuWork, name: str, rank: int) -> pd.DataFrame:
    """A table with the columns that tell traces apart, first."""
    types = dict.fromkeys(_TEXTS, "str") | _NUMBERS
    frame = frame.astype({column: kind for column, kind in types.items() if column in frame})
    if "device" not in frame:
        devices = np.unique(work.trace.device)
        only = int(devices[0]) if len(devices) == 1 else None
        numbers = pd.Series([only] * len(frame), dtype="Int64", index=frame.index)
        frame.insert(0, "device", numbers)
    frame.insert(0, "rank", rank)
    frame.insert(0, "trace", pd.Series([name] * len(frame), dtype="str", index=frame.index))
    return frame
