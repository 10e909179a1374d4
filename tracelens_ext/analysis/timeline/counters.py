"""Counters of GPUs: sampled counters, the queues of launched work, and the bandwidth of copies."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import ScreenView
from tracelens_ext.trace import NONE, EventKind, Float64Array, Int64Array, Trace
from tracelens_ext.trace.gpu_events import GpuEvents

#: The name of the argument with the value of a counter.
_VALUE: Final = ""
#: The process whose threads have the samples of a device.
_COUNTER_PROCESS: Final = re.compile(r"GPU (\d{1,6}) Counters")
#: The number of launches that the queue of a stream can hold. When it is full, launches block the
#: CPU.
FULL_QUEUE = 1024
_BANDWIDTH = "memory bandwidth (GB/s)"
_DIRECTION = re.compile(r"\b([HDPA])to([HDPA])\b")
_DIRECTION_WORDS = re.compile(
    r"(Host|Device|Peer)(?: ?(?:->|-to-|[tT]o) ?)(Host|Device|Peer)"
)


def gpu_counters(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the sampled counters of GPUs by device and name, as the sheet `gpu_counters`."""
    trace = gpu_events.trace
    rows = trace.arg(_VALUE).rows
    rows = rows[trace.kind[rows] == EventKind.OTHER]
    device = _device_of_threads(trace)[trace.thread[rows]]
    value = _numbers(gpu_events, _VALUE, rows)
    names = np.array(trace.names, dtype=object)
    samples = pd.DataFrame(
        {"device": device, "counter": names[trace.name[rows]], "value": value}
    )
    samples = samples[(device != NONE) & np.isfinite(value)]
    values = samples.groupby(["device", "counter"])["value"]
    table = values.agg(samples="size", mean="mean", min="min", max="max")
    return pd.DataFrame(table.reset_index())


def _device_of_threads(trace: Trace) -> Int64Array:
    """Return the device whose counters are on each thread, `NONE` for a thread without counters."""
    devices = [NONE] * max(len(trace.threads), 1)
    for thread, (process, _) in enumerate(trace.threads):
        match = _COUNTER_PROCESS.fullmatch(str(process))
        if match is not None:
            devices[thread] = int(match[1])
    return np.array(devices, dtype=np.int64)


def _has_counters(context: AnalysisContext, _options: ReportOptions) -> bool:
    return _VALUE in context.trace.args


def _numbers(gpu_events: GpuEvents, name: str, rows: Int64Array) -> Float64Array:
    """Return a numeric argument of events; NaN for an event without it, or with another value."""
    column = gpu_events.trace.arg(name)
    # The last text is for events without the argument: their code is `NONE`, which is -1.
    texts = list(column.texts or ())
    texts.append("")
    unquoted = pd.Series(texts, dtype="str").str.strip('"')
    number_of_text = pd.to_numeric(unquoted, errors="coerce")
    numbers = number_of_text.to_numpy(np.float64)
    return numbers[column.at(rows)]


def queue_levels(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the number of GPU events that are launched but not started, over time.

    A launch raises the level by one for each GPU event that it starts; the start of a GPU event
    lowers it by one. Of several changes at the same time, launches come first.

    Returns:
        A row per change, sorted by `device`, `stream` and `time_ns`, with the `level` after it.
    """
    linked = np.flatnonzero(gpu_events.tree.linked)
    device = gpu_events.trace.device[linked]
    stream = gpu_events.trace.stream[linked]
    launch_time = gpu_events.trace.ts[gpu_events.tree.launch_of_gpu[linked]]
    changes = pd.DataFrame(
        {
            "device": np.tile(device, 2),
            "stream": np.tile(stream, 2),
            "time_ns": np.append(launch_time, gpu_events.start[linked]),
            "level": np.repeat((1, -1), len(linked)),
        }
    )
    changes = changes.sort_values(
        ["device", "stream", "time_ns", "level"],
        ascending=[True, True, True, False],
        kind="stable",
        ignore_index=True,
    )
    changes["level"] = changes.groupby(["device", "stream"])["level"].cumsum()
    return changes


def queue_length(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the lengths of the queues, a row per stream, as the sheet `queue_length`."""
    levels = queue_levels(gpu_events)
    streams = levels.groupby(["device", "stream"])
    next_change = streams["time_ns"].shift(-1)
    until_next_change = next_change.sub(levels["time_ns"]).fillna(0)
    is_full = levels["level"] >= FULL_QUEUE
    levels["time"] = until_next_change
    levels["full_time"] = until_next_change.where(is_full, 0)
    times = streams[["time", "full_time"]].sum()
    table = streams["level"].agg(changes="size", mean="mean", max="max")
    full_percent = 100 * times["full_time"] / times["time"]
    table[f"time_at_{FULL_QUEUE}_percent"] = full_percent.fillna(0.0)
    return table.reset_index()


def copies(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the copies whose bandwidth is known, a row per copy.

    It is the recorded bandwidth, or else the number of bytes divided by the duration.
    """
    trace = gpu_events.trace
    events = np.flatnonzero(gpu_events.kind == EventKind.MEMCPY)
    rows = gpu_events.rows[events]
    size = trace.arg("bytes").at(rows)
    duration = gpu_events.duration[events]
    recorded_gb_per_s = _numbers(gpu_events, _BANDWIDTH, rows)
    # bytes per nanosecond are gigabytes per second
    computed_gb_per_s = size / np.maximum(duration, 1)
    computed_gb_per_s[(size <= 0) | (duration <= 0)] = np.nan
    is_recorded = (recorded_gb_per_s > 0) & (recorded_gb_per_s < np.inf)
    direction_of_name = [_direction(name) for name in trace.names]
    frame = pd.DataFrame(
        {
            "start_ns": gpu_events.start[events],
            "end_ns": gpu_events.end[events],
            "device": trace.device[events],
            "direction": [
                direction_of_name[code] for code in gpu_events.name[events].tolist()
            ],
            "bytes": np.maximum(size, 0),
            "gb_per_s": np.where(is_recorded, recorded_gb_per_s, computed_gb_per_s),
        }
    )
    return frame[frame["gb_per_s"].notna()].reset_index(drop=True)


def copy_bandwidth(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the bandwidth of copies by device and direction, as the sheet `copy_bandwidth`."""
    groups = copies(gpu_events).groupby(["device", "direction"])
    table = pd.DataFrame(groups["gb_per_s"].agg(copies="size", mean="mean", max="max"))
    return table.assign(bytes=groups["bytes"].sum()).reset_index()


def _direction(name: str) -> str:
    """Return the direction in a copy's name, such as `HtoD`; `other` if the name has none."""
    match = _DIRECTION.search(name) or _DIRECTION_WORDS.search(name)
    if match is None:
        return "other"
    return f"{match[1][0]}to{match[2][0]}"


def _copy_bandwidth_if_any(context: AnalysisContext) -> pd.DataFrame | None:
    """Return the table `copy_bandwidth`; None without copies of known bandwidth."""
    table = copy_bandwidth(context.gpu_events)
    if not len(table):
        return None
    return table


GPU_COUNTERS = Table(
    name="gpu_counters",
    description="GPU counters, sampled while the program ran",
    columns=[
        Column("device", "number of the device"),
        Column("counter", "name of the counter, with its unit"),
        Column("samples", "number of samples with a value", unit="samples"),
        Column("mean", "mean of the values"),
        Column("min", "least value"),
        Column("max", "greatest value"),
    ],
    build=of_gpu_events(gpu_counters),
    requires=[Condition("GPU counters were sampled", _has_counters)],
)
QUEUE_LENGTH = Table(
    name="queue_length",
    description="How much launched work waits on each stream",
    columns=[
        Column("device", "number of the device; -1 if not recorded"),
        Column("stream", "number of the stream; -1 if not recorded"),
        Column(
            "changes",
            "number of changes of the length of the queue: the launch and the "
            "start of each linked GPU event",
            unit="changes",
        ),
        Column(
            "mean",
            "number of GPU events that were launched but had not started: "
            "mean over all changes",
            unit="GPU events",
        ),
        Column(
            "max",
            "largest number of GPU events that were launched but had not started",
            unit="GPU events",
        ),
        Column(
            "time_at_1024_percent",
            "share of the time during which 1024 or more GPU events were "
            "waiting; launches block the CPU while the queue is full",
        ),
    ],
    build=of_gpu_events(queue_length),
    enabled_by="counters",
    screen=ScreenView("GPU events launched but not started, by stream"),
)
COPY_BANDWIDTH = Table(
    name="copy_bandwidth",
    description="Bandwidth of memory copies, by direction",
    columns=[
        Column("device", "number of the device; -1 if not recorded"),
        Column(
            "direction",
            "direction of the copies: `HtoD`, `DtoH`, `DtoD`, `HtoH` or "
            "`PtoP`; or `other`",
        ),
        Column("copies", "number of copies with a known bandwidth", unit="copies"),
        Column(
            "mean",
            "mean bandwidth of a copy: as recorded, else its bytes divided by "
            "its duration",
            unit="GB/s",
        ),
        Column("max", "highest bandwidth of a copy", unit="GB/s"),
        Column("bytes", "total size of the copies", unit="bytes"),
    ],
    build=_copy_bandwidth_if_any,
    enabled_by="counters",
    screen=ScreenView("Copy bandwidth, GB/s"),
)
