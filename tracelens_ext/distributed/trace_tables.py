"""Computes the tables of one trace that a fleet stores as its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.collective_tables import collective_calls
from tracelens_ext.analysis.timeline.timeline import gpu_timeline
from tracelens_ext.distributed.extract import RANK_TABLES, rank_tables
from tracelens_ext.distributed.pipeline.extract import PIPELINE_TABLES, pipeline_tables
from tracelens_ext.lazy import pd
from tracelens_ext.trace.grouping import (
    group_durations,
    number_groups,
    percent,
    sums,
    texts,
)

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.distributed.rank_numbers import TraceRanks
    from tracelens_ext.trace.gpu_events import GpuEvents

#: The tables whose first columns are `trace`, `rank` and `device`.
KEYED_TABLES = (
    "timeline",
    "categories",
    "kernels",
    "ops",
    "collectives",
    "collective_kernels",
    "findings",
)
#: All tables. Each is a folder with one part per trace.
TABLES = KEYED_TABLES + RANK_TABLES + PIPELINE_TABLES

#: Columns whose types are set explicitly. In a table without rows they would have no type, but a
#: column must have the same type in all parts.
_TEXT_COLUMNS = (
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
_NUMBER_COLUMNS = ("time ms", "percent")
_COLUMN_TYPES = {
    **dict.fromkeys(_TEXT_COLUMNS, "str"),
    **dict.fromkeys(_NUMBER_COLUMNS, "float64"),
}


def trace_tables(
    analyzer: TreePerfAnalyzer, name: str, ranks: TraceRanks
) -> dict[str, pd.DataFrame]:
    """Return the tables of a trace, by their names in `TABLES`.

    A table whose computation fails is left out, and the analyzer's failures name it.

    Args:
        analyzer: the analyzer of the trace.
        name: the path or URL of the trace as the user gave it.
        ranks: the rank or ranks of the trace.
    """
    gpu_events = analyzer.gpu_events
    function_of_table: dict[str, Callable[[], pd.DataFrame]] = {
        "timeline": lambda: timeline_by_device(gpu_events),
        "categories": lambda: categories(gpu_events),
        "kernels": lambda: analyzer.get_df_kernel_summary(),
        "ops": lambda: analyzer.get_df_kernel_launchers_summary(),
        "collectives": lambda: analyzer.get_df_collectives(),
        "collective_kernels": lambda: collective_calls(gpu_events),
        "findings": lambda: analyzer.get_df_findings(),
    }
    tables = {}
    for table in KEYED_TABLES:
        with analyzer.failures.isolate(f"The table {table}"):
            tables[table] = _with_keys(
                frame=function_of_table[table](),
                gpu_events=gpu_events,
                name=name,
                ranks=ranks,
            )
    with analyzer.failures.isolate("The communication between ranks"):
        tables.update(rank_tables(gpu_events, ranks))
    with analyzer.failures.isolate("The part in a pipeline"):
        tables.update(pipeline_tables(gpu_events, ranks))
    return tables


def timeline_by_device(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the GPU timeline with the column `device`, even if there is only one GPU."""
    timeline = gpu_timeline(gpu_events)
    if "device" not in timeline:
        device = gpu_events.trace.device[gpu_events.counted][:1]
        timeline.insert(0, "device", np.repeat(device, len(timeline)))
    return timeline


def categories(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the GPU time of each device and category, longest first."""
    category = gpu_events.needed_categories
    device = gpu_events.trace.device
    groups = group_durations([device, category.code], gpu_events.duration)
    device_of_group, category_of_group = groups.keys
    _, device_number = number_groups([device])
    device_count = int(device_number.max(initial=-1)) + 1
    time_of_device = sums(device_number, gpu_events.duration, device_count)
    device_time_of_group = time_of_device[device_number[groups.first]]
    columns = {
        "device": device_of_group,
        "kernel_category": texts(category_of_group, category.labels),
        **groups.figures("count", "total_time_ms"),
        "% of GPU time": percent(groups.total, device_time_of_group),
    }
    return pd.DataFrame(columns)


def _with_keys(
    frame: pd.DataFrame, gpu_events: GpuEvents, name: str, ranks: TraceRanks
) -> pd.DataFrame:
    """Return a table with `trace`, `rank` and `device` as its first columns.

    In rows that cover several GPUs, the device is missing and the rank is the lowest one.
    """
    types = {column: kind for column, kind in _COLUMN_TYPES.items() if column in frame}
    frame = frame.astype(types)
    if "device" not in frame:
        devices = np.unique(gpu_events.trace.device).tolist()
        device = devices[0] if len(devices) == 1 else pd.NA
        frame.insert(0, "device", pd.Series(device, frame.index, "Int64"))
    rank: pd.Series | int = ranks.first
    if ranks.of_device:
        rank = frame["device"].map(ranks.of_device).fillna(ranks.first).astype("int64")
    frame.insert(0, "rank", rank)
    frame.insert(0, "trace", pd.Series(name, frame.index, "str"))
    return frame
