"""How GPUs spent their time: computing, communicating, copying, idle; and their counters."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, EventKind, Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, holes
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.intervals import union_length


def gpu_timeline(work: GpuEvents, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
    """How the GPU spent its time, as the sheet `gpu_timeline`; no rows without GPU events.

    `micro_idle_thresh_us` splits idle time into holes up to this many µs and longer ones.
    """
    if micro_idle_thresh_us is not None and not micro_idle_thresh_us >= 0:
        given = f"micro_idle_thresh_us is {micro_idle_thresh_us}"
        raise UsageError(f"{given}; expected a time of at least 0")
    parts = _counted_by_device(work)
    records = [
        (device, kind, time / NS_PER_MS, 100.0 * time / times["total_time"] if time else 0.0)
        for device, chosen in parts.items()
        for times in [_times(work, chosen, micro_idle_thresh_us)]
        for kind, time in times.items()
    ]
    frame = pd.DataFrame(records, columns=["device", "type", "time ms", "percent"])
    return frame if len(parts) > 1 else frame.drop(columns="device")


def _counted_by_device(work: GpuEvents) -> dict[int, BoolArray]:
    """Which GPU events of each device count in the timeline."""
    device = work.trace.device
    counted = work.counted
    return {number: counted & (device == number) for number in np.unique(device[counted]).tolist()}


def _times(
    work: GpuEvents, chosen: BoolArray, micro_idle_thresh_us: float | None
) -> dict[str, int]:
    def length(part: BoolArray) -> int:
        part = part & chosen
        return union_length(work.start[part], work.end[part])

    communication = work.is_communication
    copy = work.is_copy
    computation = ~(communication | copy)
    start = work.start[chosen]
    end = work.end[chosen]
    before, after = holes(start, end)
    idle = start[after] - end[before]
    total = int(end.max() - start.min())
    computing = length(computation)
    busy = total - int(idle.sum())
    both = length(computation | communication)
    times = {
        "computation_time": computing,
        "exposed_comm_time": both - computing,
        "exposed_memcpy_time": busy - both,
        "busy_time": busy,
        "idle_time": total - busy,
    }
    if micro_idle_thresh_us is not None:
        micro = int(idle[idle <= micro_idle_thresh_us * 1000].sum())
        times |= {"micro_idle_time": micro, "macro_idle_time": total - busy - micro}
    totals = {"total_comm_time": length(communication), "total_memcpy_time": length(copy)}
    return {**times, "total_time": total, **totals}


def total_time_ns(work: GpuEvents) -> int:
    """First start to last end of GPU work, summed over the devices, ns."""
    parts = _counted_by_device(work).values()
    return sum(int(work.end[part].max() - work.start[part].min()) for part in parts)


MOST_BINS = 600


def time_axis(work: GpuEvents) -> pd.DataFrame:
    """How long GPU events of each category ran in each bin; summed, so overlaps count twice."""
    found = work.categories
    device = work.trace.device
    labels = found.labels if found is not None else ["GPU work"]
    code = found.code if found is not None else np.zeros(len(work), dtype=np.int32)
    if not len(work):
        names = ["device", "category", "bin", "start_ms", "end_ms", "gpu_time_ns"]
        return pd.DataFrame(columns=names)
    first = work.start.min()
    last = max(work.end.max(), work.start.min() + 1)
    edges = np.unique(np.linspace(first, last, MOST_BINS + 1).astype(np.int64))
    (groups, number) = number_groups([device, code])
    parts = []
    for at, group in enumerate(groups.tolist()):
        own = number == at
        ns = np.diff(_work_until(edges, work.start[own], work.end[own]))
        bins = np.flatnonzero(ns)
        columns = {"device": device[group], "category": labels[code[group]], "bin": bins}
        times = {"start_ms": edges[bins] / NS_PER_MS, "end_ms": edges[bins + 1] / NS_PER_MS}
        parts.append(pd.DataFrame({**columns, **times, "gpu_time_ns": ns[bins]}))
    return pd.concat(parts, ignore_index=True)


def _work_until(times: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """How long events ran before each time, summed over the events."""

    def past(moments: Int64Array) -> Int64Array:
        """The sum of what has gone by since each moment, of those that are past."""
        ascending = np.sort(moments)
        sums: Int64Array = np.append(0, np.cumsum(ascending))
        count = np.searchsorted(ascending, times, side="right")
        gone: Int64Array = times * count - sums[count]
        return gone

    return past(start) - past(end)


#: The argument that holds the value, and the process that the samples are under.
_VALUE: Final = ""
_PROCESS: Final = re.compile(r"GPU (\d{1,6}) Counters")


def gpu_counters(work: GpuEvents) -> pd.DataFrame:
    """Sampled counters of GPUs, as the sheet `gpu_counters`, in order of name."""
    trace = work.trace
    rows = work.trace.arg(_VALUE).rows
    rows = rows[trace.kind[rows] == EventKind.OTHER]
    found = [_PROCESS.fullmatch(str(process)) for process, _ in trace.threads]
    device = np.array([int(m[1]) if m else NONE for m in found] or [NONE])[trace.thread[rows]]
    value = _numbers(work, _VALUE, rows)
    counter = np.array(trace.names, dtype=object)
    frame = pd.DataFrame({"device": device, "counter": counter[trace.name[rows]], "value": value})
    frame = frame[(device != NONE) & np.isfinite(value)]
    values = frame.groupby(["device", "counter"])["value"]
    table = values.agg(samples="size", mean="mean", min="min", max="max")
    return pd.DataFrame(table.reset_index())


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the column `device`, which the one of a single device lacks."""
    if "device" in table:
        return table
    return table.assign(device="")


def _has_counters(context: AnalysisContext, _options: ReportOptions) -> bool:
    return _VALUE in context.trace.args


GPU_TIMELINE = Table(
    name="gpu_timeline",
    shows="How the GPU spent its time; overlaps counted once",
    columns=[
        Column("device", "where there are several; a block each"),
        Column(
            "type",
            "`computation_time`: kernels that are neither communication nor copies, and "
            "memsets. `exposed_comm_time`: communication under which nothing computes. "
            "`exposed_memcpy_time`: copies under which nothing computes or communicates. "
            "`busy_time`: all. `idle_time`: the rest, with `micro_idle_thresh_us` also split "
            "into `micro_idle_time` (holes up to that long) and `macro_idle_time`. "
            "`total_time`: first start to last end. `total_comm_time`, `total_memcpy_time`: "
            "hidden or not.",
        ),
        Column("time ms", "busy time over all streams"),
        Column("percent", "of `total_time`"),
    ],
    table=of_gpu_events(gpu_timeline),
    options=["micro_idle_thresh_us"],
    answer="GPU timeline",
    answer_columns=("type", "time ms", "percent", "device"),
    charts=[
        Chart(
            "GPU timeline",
            "gpu_timeline",
            "device",
            "time ms",
            kind="stacked",
            series_column="type",  # The rows that do not overlap and add up to the total.
            only=("computation_time", "exposed_comm_time", "exposed_memcpy_time", "idle_time"),
            prepare=_with_device,
            on="workbook",
        ),
        Chart("GPU timeline", "gpu_timeline", "type", "percent", kind="timeline", on="page"),
    ],
)
GPU_COUNTERS = Table(
    name="gpu_counters",
    shows="Counters of the GPUs, sampled while the program ran",
    columns=[
        Column("device", "the GPU"),
        Column("counter", "its name, with its unit"),
        Column("samples", "how many have a value", unit="samples"),
        Column("mean", "of their values"),
        Column("min", "of their values"),
        Column("max", "of their values"),
    ],
    table=of_gpu_events(gpu_counters),
    when=[Condition("counters of a GPU were sampled", _has_counters)],
)


def _numbers(work: GpuEvents, name: str, rows: Int64Array) -> Float64Array:
    """A numeric argument of some events, NaN where an event has none, or no number."""
    column = work.trace.arg(name)
    told = pd.Series([*(column.texts or ()), ""], dtype="str").str.strip('"')
    return pd.to_numeric(told, errors="coerce").to_numpy(np.float64)[column.at(rows)]


#: So many launches wait at most: the host waits when a stream's queue is full.
FULL_QUEUE = 1024
_BANDWIDTH = "memory bandwidth (GB/s)"
_DIRECTION = re.compile(r"\b([HDPA])to([HDPA])\b")
_DIRECTION_WORDS = re.compile(r"(Host|Device|Peer)(?: ?(?:->|-to-|[tT]o) ?)(Host|Device|Peer)")


def queue_levels(work: GpuEvents) -> pd.DataFrame:
    """How many GPU events are launched and not begun (`level`), a row a change by stream and time.

    A launch adds one for each GPU event that it starts; the start of a GPU event takes one away.
    Of changes at one instant launches come first.
    """
    linked = np.flatnonzero(work.tree.linked)
    device = work.trace.device[linked]
    stream = work.trace.stream[linked]
    launched = work.trace.ts[work.tree.launch_of_gpu[linked]]
    times = np.append(launched, work.start[linked])
    columns = {"device": np.tile(device, 2), "stream": np.tile(stream, 2), "time_ns": times}
    frame = pd.DataFrame({**columns, "level": np.repeat((1, -1), len(linked))})
    keys = [*columns, "level"]
    descending = [True, True, True, False]
    frame = frame.sort_values(keys, ascending=descending, kind="stable", ignore_index=True)
    frame["level"] = frame.groupby(["device", "stream"])["level"].cumsum()
    return frame


def queue_length(work: GpuEvents) -> pd.DataFrame:
    """A row a stream; see the sheet `queue_length`."""
    levels = queue_levels(work)
    streams = levels.groupby(["device", "stream"])
    levels["whole"] = streams["time_ns"].shift(-1).sub(levels["time_ns"]).fillna(0)
    levels["full"] = levels["whole"].where(levels["level"] >= FULL_QUEUE, 0)
    sums = streams[["whole", "full"]].sum()
    table = streams["level"].agg(changes="size", mean="mean", max="max")
    table[f"time at {FULL_QUEUE} (%)"] = (100 * sums["full"] / sums["whole"]).fillna(0.0)
    return table.reset_index()


def copies(work: GpuEvents) -> pd.DataFrame:
    """The copies whose speed is known: as recorded, else of its bytes and its duration."""
    trace = work.trace
    at = np.flatnonzero(work.kind == EventKind.MEMCPY)
    rows = work.rows[at]
    size = trace.arg("bytes").at(rows)
    speed = _numbers(work, _BANDWIDTH, rows)
    duration = work.duration[at]
    computed = np.where((size > 0) & (duration > 0), size / np.maximum(duration, 1), np.nan)
    speed = np.where((speed > 0) & (speed < np.inf), speed, computed)
    names = [*map(_direction, trace.names)]
    frame = pd.DataFrame(
        {
            "start_ns": work.start[at],
            "end_ns": work.end[at],
            "device": trace.device[at],
            "direction": [names[code] for code in work.name[at].tolist()],
            "bytes": np.maximum(size, 0),
            "gb_per_s": speed,
        }
    )
    return frame[frame["gb_per_s"].notna()].reset_index(drop=True)


def copy_bandwidth(work: GpuEvents) -> pd.DataFrame:
    """A row a device and direction; see the sheet `copy_bandwidth`."""
    groups = copies(work).groupby(["device", "direction"])
    table = pd.DataFrame(groups["gb_per_s"].agg(copies="size", mean="mean", max="max"))
    return table.assign(bytes=groups["bytes"].sum()).reset_index()


def _direction(name: str) -> str:
    """`HtoD` of a copy's name, in any profiler's words; `other` where it does not say."""
    found = _DIRECTION.search(name) or _DIRECTION_WORDS.search(name)
    return f"{found[1][0]}to{found[2][0]}" if found else "other"


def _copy_bandwidth_if_any(context: AnalysisContext) -> pd.DataFrame | None:
    """How fast copies are, by direction; None without copies of known speed."""
    table = copy_bandwidth(context.gpu_events)
    return table if len(table) else None


QUEUE_LENGTH = Table(
    name="queue_length",
    shows="How much launched work waits for each stream",
    columns=[
        Column("device", "whose queue it is"),
        Column("stream", "whose queue it is"),
        Column(
            "changes",
            "launches and starts of GPU events that have a launch",
            unit="changes",
        ),
        Column(
            "mean",
            "launched and not begun, on average after each change",
            unit="GPU events",
        ),
        Column("max", "likewise, at most", unit="GPU events"),
        Column(
            "time at 1024 (%)",
            "share of the time in which so many wait that the host must wait too",
        ),
    ],
    table=of_gpu_events(queue_length),
    asked_by="counters",
    screen=ScreenView("Launched and not begun, by stream"),
)
COPY_BANDWIDTH = Table(
    name="copy_bandwidth",
    shows="How fast copies are, by direction",
    columns=[
        Column("device", "its number"),
        Column("direction", "`HtoD`, `DtoH`, `DtoD`, `HtoH`, `PtoP`; or `other`"),
        Column("copies", "those whose speed is known", unit="copies"),
        Column("mean", "as recorded, else bytes by duration; 10⁹ bytes", unit="GB/s"),
        Column("max", "likewise, the fastest", unit="GB/s"),
        Column("bytes", "copied", unit="bytes"),
    ],
    table=_copy_bandwidth_if_any,
    asked_by="counters",
    screen=ScreenView("Speed of copies, GB/s"),
)
