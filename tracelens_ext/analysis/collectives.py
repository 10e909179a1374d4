"""Collectives of one rank: what was sent, how long it took, and at what bandwidth.

Sizes come from the metadata that PyTorch records with a collective, on the kernel or on the
`record_param_comms` op around its launch. Bandwidths follow `doc/PERFORMANCE.md` of NVIDIA's
nccl-tests: algorithm bandwidth is the size S of the whole array divided by the time, and bus
bandwidth is that times a factor of the number of ranks n: 2(n-1)/n for an all-reduce, (n-1)/n for
all-gather, reduce-scatter and all-to-all (and, as its `gather.cu` and `scatter.cu` have it, for
those), 1 for broadcast, reduce and a send or receive. A kernel also runs while it waits for the
other ranks, so on one rank the shortest run tells most about the network.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.analysis.operations.arguments import argument_values
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.text import encodable, json_value
from tracelens_ext.trace import HOST_KINDS, NONE, NS_PER_US, EventKind, Int64Array, IntArray
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, texts
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: Columns that tell collectives apart, by their names in the trace.
_TEXTS = ("Collective name", "Process Group Name", "Process Group Description", "dtype")
_NUMBERS = ("Group size", "In msg nelems", "Out msg nelems")
KEYS = (*_TEXTS[:3], "Group size", "dtype", *_NUMBERS[1:], "kernel_name")

#: Bytes an element, by PyTorch's names of scalar types.
_ELEMENT_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}

#: Collectives that no rank leaves before all have come.
SYNCHRONOUS = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|barrier", re.IGNORECASE
)

#: No number of ranks, elements or bytes is as large; a trace may say anything.
_MOST = 2.0**62

#: What a collective's name contains → the factor of n ranks as (n-1)/n times the first number, or
#: the second, in order: `reduce` is within `allreduce`.
_FACTORS = (
    (re.compile("all_?reduce"), 2, 0),
    (re.compile("reduce_?scatter|all_?gather|all_?to_?all|gather|scatter"), 1, 0),
    (re.compile("broadcast|reduce|send|recv"), 0, 1),
)


def collectives(work: GpuEvents) -> pd.DataFrame:
    """Communication by collective, group, size and type, the longest total first."""
    table = communication_of(work)
    grouped = table.groupby(list(KEYS), sort=False, dropna=False)["time"]
    frame = grouped.agg(["count", "sum", "mean", "std", "min", "max"]).reset_index()
    frame = frame.sort_values("sum", ascending=False, kind="stable", ignore_index=True)
    element = np.array([*map(element_bytes, frame["dtype"])], dtype=np.float64)
    sent, received = (frame[f"{side} msg nelems"].to_numpy() * element for side in ("In", "Out"))
    size = np.fmax(sent, received)  # the whole array, whichever side has all of it
    factor = np.array([*map(bus_factor, frame["Collective name"], frame["Group size"])])
    total = frame["sum"].to_numpy()
    result = frame[list(KEYS)].copy()
    for name in _NUMBERS:
        result[name] = _whole(frame[name].to_numpy())
    result["In msg bytes"], result["Out msg bytes"] = _whole(sent), _whole(received)
    result["count"] = frame["count"]
    result["total_time_ms"] = total / 1e3
    for label, statistic in (("avg", "mean"), *((each, each) for each in ("std", "min", "max"))):
        result[f"{label}_time_us"] = frame[statistic]
    result["% of communication time"] = percent(total, total.sum())
    bandwidth, best = (size / (frame[n].where(frame[n] > 0) * 1e3) for n in ("mean", "min"))
    result["algorithm bandwidth (GB/s)"] = bandwidth
    result["bus bandwidth (GB/s)"] = bandwidth * factor
    result["best bus bandwidth (GB/s)"] = best * factor
    return result


def collective_calls(work: GpuEvents) -> pd.DataFrame:
    """A row a communication kernel, in order of start.

    `sequence` counts the calls of this collective, group and type in the iteration (the N of its
    `ProfilerStep#N`, else empty) on the device; `Process Group Ranks` is as the trace spells it.
    """
    chosen = np.flatnonzero(work.is_communication)
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    table = communication_of(work).drop(columns="time").loc[chosen].reset_index(drop=True)
    table.insert(0, "device", work.trace.device[chosen])
    steps = find_iterations(work.tree)
    described = described_by(work, chosen)
    table["Process Group Ranks"] = text_argument(work, "Process Group Ranks", described)
    table["iteration"] = steps.numbers(steps.of_gpu[chosen])
    name = table["Collective name"]
    simple = [simple_name(kernel) for kernel in table["kernel_name"]]
    table.insert(1, "collective", name.where(name != "", simple))
    same = ["device", "collective", *_TEXTS[1:], "Group size", "Process Group Ranks", "iteration"]
    table["sequence"] = table.groupby(same, sort=False, dropna=False).cumcount() + 1
    table["start_us"] = work.start[chosen] / NS_PER_US
    table["duration_us"] = work.duration[chosen] / NS_PER_US
    return table


@cached_per_object
def communication_of(work: GpuEvents) -> pd.DataFrame:
    """The `KEYS` of each communication kernel, and its `time` in µs, by the GPU event's index."""
    chosen = np.flatnonzero(work.is_communication)
    described = described_by(work, chosen)
    keys: dict[str, object] = {name: text_argument(work, name, described) for name in _TEXTS}
    keys |= {name: number_argument(work, name, described) for name in _NUMBERS}
    named = np.array(keys["Collective name"], dtype=object)
    keys["Collective name"] = np.where(named == "", _annotated(work, chosen), named)
    keys["kernel_name"] = texts(work.name[chosen], work.trace.names)
    table = pd.DataFrame({name: keys[name] for name in KEYS}, index=chosen)
    table["time"] = work.duration[chosen] / NS_PER_US
    return table


def described_by(work: GpuEvents, chosen: Int64Array) -> Int64Array:
    """The event whose metadata describes each chosen GPU event, `NONE` without; (k,)."""
    trace = work.trace
    rows = work.rows[chosen]
    described = trace.arg("Collective name").rows
    has = np.isin(rows, described)
    found = np.where(has, rows, _event_above(work, chosen, described))
    # Without a launch in the trace the id that operation and kernel share tells.
    host = described[np.isin(trace.kind[described], HOST_KINDS)]
    host = host[np.argsort(trace.external_id[host], kind="stable")]
    ids = trace.external_id[rows]
    known = trace.external_id[host]
    at = np.minimum(np.searchsorted(known, ids), max(len(host) - 1, 0))
    if len(host):
        same = (found == NONE) & (ids != NONE) & (known[at] == ids)
        found[same] = host[at[same]]
    return found


def _annotated(work: GpuEvents, chosen: Int64Array) -> npt.NDArray[np.object_]:
    """The collective that the annotation around each chosen GPU event names, else empty; (k,)."""
    trace = work.trace
    # PyTorch names its annotation after backend and collective.
    named = [n.removeprefix("nccl:") for n in trace.names]
    names_one = np.array([n != k for n, k in zip(trace.names, named, strict=True)], dtype=bool)
    annotations = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)  # the latter: NVTX
    row = _event_above(work, chosen, annotations[names_one[trace.name[annotations]]])
    code = np.where(row == NONE, len(named), trace.name[row])
    return np.array([*named, ""], dtype=object)[code]


def _event_above(work: GpuEvents, chosen: Int64Array, events: IntArray) -> Int64Array:
    """Which of some events is nearest above the launch of each chosen GPU event; (k,)."""
    result = np.full(len(chosen), NONE, dtype=np.int64)
    linked = work.tree.linked[chosen]
    launch = work.tree.launch_position_of_gpu[chosen[linked]]
    result[linked] = events_above(work.tree, launch, events)
    return result


def events_above(tree: CallTree, positions: IntArray, events: IntArray) -> Int64Array:
    """Which of some events, a row, is nearest above each position, `NONE` without; (k,)."""
    marked = np.zeros(len(tree.rows) + 1, dtype=bool)
    marked[tree.position[events]] = True  # the last is what index `NONE` picks
    at = nearest_above(tree.parent_position, positions, marked[:-1])
    return np.where(at == ROOT, NONE, np.append(tree.rows, NONE)[at])


def text_argument(work: GpuEvents, name: str, rows: Int64Array) -> list[str]:
    """A text argument of some events, without its quotes; empty where an event has none."""
    return texts(*argument_values(work.trace, rows, name, _plain, ""))


def number_argument(work: GpuEvents, name: str, rows: Int64Array) -> npt.NDArray[np.float64]:
    """A numeric argument of some events, NaN where an event has none."""
    code, numbers = argument_values(work.trace, rows, name, _as_number, np.nan)
    return np.array(numbers, dtype=np.float64)[code]


def _plain(raw: str) -> str:
    value = json_value(raw)
    return encodable(value) if isinstance(value, str) else raw


def _as_number(raw: str) -> float:
    """A number, or a number in quotes; NaN for anything else, and for what counts nothing."""
    try:
        value = float(_plain(raw))
    except ValueError:
        return np.nan
    return value if 0 <= value < _MOST else np.nan


def element_bytes(dtype: str) -> float:
    """Bytes of an element, by PyTorch's name of its type; NaN for one that is not known."""
    return 1 if dtype.startswith("Float8_") else _ELEMENT_BYTES.get(dtype, np.nan)


def bus_factor(collective: str, ranks: float) -> float:
    """Bus bandwidth as a multiple of algorithm bandwidth; NaN where it is not defined."""
    if not ranks >= 1:
        return np.nan
    found = (each for each in _FACTORS if each[0].search(collective.lower()))
    _, parts, whole = next(found, (None, np.nan, np.nan))
    return parts * (ranks - 1) / ranks + whole


def _whole(values: npt.NDArray[np.float64]) -> pd.Series[int]:
    """Whole numbers of which some may be missing."""
    return pd.Series(np.floor(np.where(np.abs(values) < _MOST, values, np.nan))).astype("Int64")


def _has_communication(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.gpu_events.is_communication.any())


COLL_ANALYSIS = Table(
    name="coll_analysis",
    shows="Collectives by size: duration and bandwidth",
    columns=[
        Column("kernel", "a short name, which tells it from the others of the sheet"),
        Column("Collective name", "of the metadata, else of the annotation `nccl:…` around it"),
        Column("Process Group Name", "of the metadata"),
        Column("Process Group Description", "of the metadata"),
        Column("Group size", "of the process group", unit="ranks"),
        Column("dtype", "of an element"),
        Column("In msg nelems", "what this rank puts in", unit="elements"),
        Column("Out msg nelems", "what this rank gets out", unit="elements"),
        Column("In msg bytes", "what this rank puts in", unit="bytes"),
        Column("Out msg bytes", "what this rank gets out", unit="bytes"),
        Column("count", "how many", unit="kernels"),
        Column("total_time_ms", "summed duration"),
        Column("avg_time_us", "of a kernel; `std` is that of a sample"),
        Column("std_time_us", "of a kernel; `std` is that of a sample"),
        Column("min_time_us", "of a kernel; `std` is that of a sample"),
        Column("max_time_us", "of a kernel; `std` is that of a sample"),
        Column("% of communication time", "of the summed durations of all communication"),
        Column(
            "algorithm bandwidth (GB/s)",
            "size of the whole array, that is the larger side, divided by the mean duration",
            unit="10⁹ bytes/s",
        ),
        Column(
            "bus bandwidth (GB/s)",
            "algorithm bandwidth times a factor of the collective",
            unit="10⁹ bytes/s",
        ),
        Column(
            "best bus bandwidth (GB/s)",
            "the same at the shortest duration",
            unit="10⁹ bytes/s",
        ),
        Column("kernel_name", "as the trace has it"),
    ],
    table=of_gpu_events(collectives),
    short_names="kernel_name",
    when=[GPU_EVENTS, Condition("there is communication", _has_communication)],
    asked_by="collective_analysis",
    method="get_df_collectives()",
)
