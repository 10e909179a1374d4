"""The tables of the collectives of one rank: sizes, durations and bandwidths."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.collectives import (
    KEYS,
    MAX_NUMBER,
    NUMBER_KEYS,
    bus_factor,
    communication_of,
    describing_events,
    element_bytes,
    text_argument,
)
from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NS_PER_US, Float64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent

#: Columns that are equal for calls of the same sequence: within it, calls are numbered in order.
_SEQUENCE_KEYS = (
    "device",
    "collective",
    "Process Group Name",
    "Process Group Description",
    "dtype",
    "Group size",
    "Process Group Ranks",
    "iteration",
)


def collectives(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the communication kernels by collective, group, size and type, longest total first."""
    calls = communication_of(gpu_events)
    grouped = calls.groupby(list(KEYS), sort=False, dropna=False)["time"]
    frame = grouped.agg(["count", "sum", "mean", "std", "min", "max"]).reset_index()
    frame = frame.sort_values("sum", ascending=False, kind="stable", ignore_index=True)
    bytes_per_element = np.array(
        [element_bytes(dtype) for dtype in frame["dtype"]], dtype=np.float64
    )
    sent_bytes = frame["In msg nelems"].to_numpy() * bytes_per_element
    received_bytes = frame["Out msg nelems"].to_numpy() * bytes_per_element
    array_bytes = np.fmax(sent_bytes, received_bytes)
    names_and_ranks = zip(frame["Collective name"], frame["Group size"], strict=True)
    factor = np.array([bus_factor(name, ranks) for name, ranks in names_and_ranks])
    total_us = frame["sum"].to_numpy()
    result = frame[list(KEYS)].copy()
    for name in NUMBER_KEYS:
        result[name] = _whole_numbers(frame[name].to_numpy())
    result["In msg bytes"] = _whole_numbers(sent_bytes)
    result["Out msg bytes"] = _whole_numbers(received_bytes)
    result["count"] = frame["count"]
    result["total_time_ms"] = total_us / 1e3
    result["avg_time_us"] = frame["mean"]
    result["std_time_us"] = frame["std"]
    result["min_time_us"] = frame["min"]
    result["max_time_us"] = frame["max"]
    result["% of communication time"] = percent(total_us, total_us.sum())
    bandwidth = _bandwidth(array_bytes, frame["mean"])
    best_bandwidth = _bandwidth(array_bytes, frame["min"])
    result["algorithm_bandwidth_gb_s"] = bandwidth
    result["bus_bandwidth_gb_s"] = bandwidth * factor
    result["best_bus_bandwidth_gb_s"] = best_bandwidth * factor
    return result


def _bandwidth(size: Float64Array, microseconds: pd.Series[float]) -> pd.Series[float]:
    """Return bytes divided by time, GB/s; NaN where the time is 0."""
    nanoseconds = microseconds.where(microseconds > 0) * 1e3
    return pd.Series(size, index=microseconds.index) / nanoseconds


def collective_calls(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row for each communication kernel, in order of start.

    `sequence` numbers the calls of a collective with the same group and type within an iteration
    on a device. `iteration` is the N of `ProfilerStep#N`, empty outside. `Process Group Ranks` is
    the text in the trace.
    """
    kernels = np.flatnonzero(gpu_events.is_communication)
    kernels = kernels[np.argsort(gpu_events.start[kernels], kind="stable")]
    communication = communication_of(gpu_events).drop(columns="time")
    table = communication.loc[kernels].reset_index(drop=True)
    table.insert(0, "device", gpu_events.trace.device[kernels])
    steps = find_iterations(gpu_events.tree)
    describing = describing_events(gpu_events, kernels)
    table["Process Group Ranks"] = text_argument(
        gpu_events, "Process Group Ranks", describing
    )
    table["iteration"] = steps.numbers(steps.of_gpu[kernels])
    name = table["Collective name"]
    simple_names = [simple_name(kernel) for kernel in table["kernel_name"]]
    table.insert(1, "collective", name.where(name != "", simple_names))
    sequence = table.groupby(list(_SEQUENCE_KEYS), sort=False, dropna=False).cumcount()
    table["sequence"] = sequence + 1
    table["start_us"] = gpu_events.start[kernels] / NS_PER_US
    table["duration_us"] = gpu_events.duration[kernels] / NS_PER_US
    return table


def _whole_numbers(values: npt.NDArray[np.float64]) -> pd.Series[int]:
    """Return numbers as a nullable integer column; NaN and implausible numbers are missing."""
    plausible = np.where(np.abs(values) < MAX_NUMBER, values, np.nan)
    return pd.Series(np.floor(plausible)).astype("Int64")


def _has_communication(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.gpu_events.is_communication.any())


COLL_ANALYSIS = Table(
    name="coll_analysis",
    description="Collectives by size, with durations and bandwidths",
    columns=[
        Column("kernel", "short name of the kernel, unique within the table"),
        Column(
            "Collective name",
            "name of the collective: as recorded, else from the annotation "
            "`nccl:…` around the launch; empty if unknown",
        ),
        Column(
            "Process Group Name", "name of the process group; empty if not recorded"
        ),
        Column(
            "Process Group Description",
            "description of the process group; empty if not recorded",
        ),
        Column("Group size", "number of ranks of the process group", unit="ranks"),
        Column("dtype", "data type of the elements"),
        Column(
            "In msg nelems",
            "number of elements that this rank contributes to a call",
            unit="elements",
        ),
        Column(
            "Out msg nelems",
            "number of elements that this rank receives from a call",
            unit="elements",
        ),
        Column(
            "In msg bytes", "size of what this rank contributes to a call", unit="bytes"
        ),
        Column(
            "Out msg bytes", "size of what this rank receives from a call", unit="bytes"
        ),
        Column("count", "number of kernels", unit="kernels"),
        Column("total_time_ms", "total duration of the kernels"),
        Column(
            "avg_time_us",
            "mean duration of a kernel",
        ),
        Column(
            "std_time_us",
            "sample standard deviation of the durations; empty for a single kernel",
        ),
        Column(
            "min_time_us",
            "duration of the shortest kernel",
        ),
        Column(
            "max_time_us",
            "duration of the longest kernel",
        ),
        Column(
            "% of communication time",
            "share of the total duration of all communication kernels",
        ),
        Column(
            "algorithm_bandwidth_gb_s",
            "size of what a rank contributes or receives, whichever is "
            "larger, divided by the mean duration",
            unit="10⁹ bytes/s",
        ),
        Column(
            "bus_bandwidth_gb_s",
            "algorithm bandwidth times the bus factor of the collective, "
            "which depends on the number of ranks",
            unit="10⁹ bytes/s",
        ),
        Column(
            "best_bus_bandwidth_gb_s",
            "bus bandwidth of the shortest kernel",
            unit="10⁹ bytes/s",
        ),
        Column("kernel_name", "full name of the kernel, as recorded"),
    ],
    build=of_gpu_events(collectives),
    short_names="kernel_name",
    requires=[GPU_EVENTS, Condition("there is communication", _has_communication)],
    enabled_by="collective_analysis",
    analyzer_call="get_df_collectives()",
)
