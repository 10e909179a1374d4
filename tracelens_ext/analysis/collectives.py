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
from typing import NamedTuple

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
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    NS_PER_US,
    EventKind,
    Float64Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, recode, texts
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: Columns that tell collectives apart, by their names in the trace.
_TEXTS = ("Collective name", "Process Group Name", "Process Group Description", "dtype")
_NUMBERS = ("Group size", "In msg nelems", "Out msg nelems")
KEYS = (
    "Collective name",
    "Process Group Name",
    "Process Group Description",
    "Group size",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "kernel_name",
)
#: Calls that are equal in these are numbered in their order.
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
#: How PyTorch's annotations begin, which are named after backend and collective.
_ANNOTATION_PREFIX = "nccl:"


class _BusFactor(NamedTuple):
    """The bus bandwidth of some collectives among n ranks, as a multiple of algorithm bandwidth.

    It is `of_parts` times (n-1)/n, plus `of_whole`.
    """

    pattern: re.Pattern[str]  #: what the name of the collective contains
    of_parts: int
    of_whole: int


#: In this order: `reduce` is within `allreduce`.
_BUS_FACTORS = (
    _BusFactor(pattern=re.compile("all_?reduce"), of_parts=2, of_whole=0),
    _BusFactor(
        pattern=re.compile("reduce_?scatter|all_?gather|all_?to_?all|gather|scatter"),
        of_parts=1,
        of_whole=0,
    ),
    _BusFactor(
        pattern=re.compile("broadcast|reduce|send|recv"), of_parts=0, of_whole=1
    ),
)


def collectives(work: GpuEvents) -> pd.DataFrame:
    """Communication by collective, group, size and type, the longest total first."""
    calls = communication_of(work)
    grouped = calls.groupby(list(KEYS), sort=False, dropna=False)["time"]
    frame = grouped.agg(["count", "sum", "mean", "std", "min", "max"]).reset_index()
    frame = frame.sort_values("sum", ascending=False, kind="stable", ignore_index=True)
    element = np.array(
        [element_bytes(dtype) for dtype in frame["dtype"]], dtype=np.float64
    )
    sent = frame["In msg nelems"].to_numpy() * element
    received = frame["Out msg nelems"].to_numpy() * element
    whole_array = np.fmax(sent, received)
    names_and_ranks = zip(frame["Collective name"], frame["Group size"], strict=True)
    factor = np.array([bus_factor(name, ranks) for name, ranks in names_and_ranks])
    total = frame["sum"].to_numpy()
    result = frame[list(KEYS)].copy()
    for name in _NUMBERS:
        result[name] = _whole_numbers(frame[name].to_numpy())
    result["In msg bytes"] = _whole_numbers(sent)
    result["Out msg bytes"] = _whole_numbers(received)
    result["count"] = frame["count"]
    result["total_time_ms"] = total / 1e3
    result["avg_time_us"] = frame["mean"]
    result["std_time_us"] = frame["std"]
    result["min_time_us"] = frame["min"]
    result["max_time_us"] = frame["max"]
    result["% of communication time"] = percent(total, total.sum())
    bandwidth = _bandwidth(whole_array, frame["mean"])
    best_bandwidth = _bandwidth(whole_array, frame["min"])
    result["algorithm_bandwidth_gb_s"] = bandwidth
    result["bus_bandwidth_gb_s"] = bandwidth * factor
    result["best_bus_bandwidth_gb_s"] = best_bandwidth * factor
    return result


def _bandwidth(size: Float64Array, microseconds: pd.Series[float]) -> pd.Series[float]:
    """Return bytes by time, GB/s; NaN for no time."""
    nanoseconds = microseconds.where(microseconds > 0) * 1e3
    return pd.Series(size, index=microseconds.index) / nanoseconds


def collective_calls(work: GpuEvents) -> pd.DataFrame:
    """Return a row for each communication kernel, in order of start.

    `sequence` counts the calls of this collective, group and type in the iteration (the N of its
    `ProfilerStep#N`, else empty) on the device; `Process Group Ranks` is as the trace spells it.
    """
    chosen = np.flatnonzero(work.is_communication)
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    table = (
        communication_of(work).drop(columns="time").loc[chosen].reset_index(drop=True)
    )
    table.insert(0, "device", work.trace.device[chosen])
    steps = find_iterations(work.tree)
    described = described_by(work, chosen)
    table["Process Group Ranks"] = text_argument(work, "Process Group Ranks", described)
    table["iteration"] = steps.numbers(steps.of_gpu[chosen])
    name = table["Collective name"]
    simple_names = [simple_name(kernel) for kernel in table["kernel_name"]]
    table.insert(1, "collective", name.where(name != "", simple_names))
    sequence = table.groupby(list(_SEQUENCE_KEYS), sort=False, dropna=False).cumcount()
    table["sequence"] = sequence + 1
    table["start_us"] = work.start[chosen] / NS_PER_US
    table["duration_us"] = work.duration[chosen] / NS_PER_US
    return table


@cached_per_object
def communication_of(work: GpuEvents) -> pd.DataFrame:
    """Return the `KEYS` of each communication kernel, and its `time` in µs, by its index."""
    chosen = np.flatnonzero(work.is_communication)
    described = described_by(work, chosen)
    columns: dict[str, object] = {}
    for name in _TEXTS:
        columns[name] = text_argument(work, name, described)
    for name in _NUMBERS:
        columns[name] = number_argument(work, name, described)
    named = np.array(columns["Collective name"], dtype=object)
    columns["Collective name"] = np.where(
        named == "", _annotated_names(work, chosen), named
    )
    columns["kernel_name"] = texts(work.name[chosen], work.trace.names)
    table = pd.DataFrame({name: columns[name] for name in KEYS}, index=chosen)
    table["time"] = work.duration[chosen] / NS_PER_US
    return table


def described_by(work: GpuEvents, chosen: Int64Array) -> Int64Array:
    """Return the event whose metadata describes each chosen GPU event, `NONE` without; (k,).

    That is the GPU event itself, or what is around its launch. Without a launch in the trace it is
    known by the id that operation and kernel share.
    """
    trace = work.trace
    rows = work.rows[chosen]
    described = trace.arg("Collective name").rows
    describes_itself = np.isin(rows, described)
    result = np.where(describes_itself, rows, _event_above(work, chosen, described))
    host = described[np.isin(trace.kind[described], HOST_KINDS)]
    host = host[np.argsort(trace.external_id[host], kind="stable")]
    known_ids = trace.external_id[host]
    wanted = np.flatnonzero((result == NONE) & (trace.external_id[rows] != NONE))
    wanted_ids = trace.external_id[rows[wanted]]
    candidate = np.searchsorted(known_ids, wanted_ids)
    has_id = values_at(known_ids, candidate, missing=NONE) == wanted_ids
    result[wanted[has_id]] = host[candidate[has_id]]
    return result


def _annotated_names(work: GpuEvents, chosen: Int64Array) -> npt.NDArray[np.object_]:
    """Return the collective that the annotation around each chosen GPU event names, else empty."""
    trace = work.trace
    names_collective = trace.names_matching(
        lambda name: name.startswith(_ANNOTATION_PREFIX)
    )
    # NVTX ranges are read as operations.
    annotations = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    is_collective = names_collective[trace.name[annotations]]
    annotations = annotations[is_collective]
    annotation_above = _event_above(work, chosen, annotations)
    names = values_at(trace.name, annotation_above)

    def collective(name: int) -> str:
        if name == NONE:
            return ""
        return trace.names[name].removeprefix(_ANNOTATION_PREFIX)

    code, labels = recode(names, collective)
    collectives = np.array(labels, dtype=object)
    return collectives[code]


def _event_above(work: GpuEvents, chosen: Int64Array, events: IntArray) -> Int64Array:
    """Return which of some events is nearest above the launch of each chosen GPU event; (k,)."""
    result = np.full(len(chosen), NONE, dtype=np.int64)
    linked = work.tree.linked[chosen]
    launch = work.tree.launch_position_of_gpu[chosen[linked]]
    result[linked] = events_above(work.tree, launch, events)
    return result


def events_above(tree: CallTree, positions: IntArray, events: IntArray) -> Int64Array:
    """Return which of some events, a row, is nearest above each position, `NONE` without; (k,)."""
    event_positions = tree.position[events]
    event_positions = event_positions[event_positions != NONE]
    is_marked = np.zeros(len(tree.rows), dtype=bool)
    is_marked[event_positions] = True
    above = nearest_above(tree.parent_position, positions, is_marked)
    rows = values_at(tree.rows, above)
    return np.where(above == ROOT, NONE, rows)


def text_argument(work: GpuEvents, name: str, rows: Int64Array) -> list[str]:
    """Return a text argument of some events, without its quotes; empty where an event has none."""
    code, labels = argument_values(
        trace=work.trace, rows=rows, name=name, convert=_unquoted, missing=""
    )
    return texts(code, labels)


def number_argument(
    work: GpuEvents, name: str, rows: Int64Array
) -> npt.NDArray[np.float64]:
    """Return a numeric argument of some events, NaN where an event has none."""
    code, numbers = argument_values(
        trace=work.trace, rows=rows, name=name, convert=_as_number, missing=np.nan
    )
    return np.array(numbers, dtype=np.float64)[code]


def _unquoted(raw: str) -> str:
    value = json_value(raw)
    return encodable(value) if isinstance(value, str) else raw


def _as_number(raw: str) -> float:
    """Return a number, or one in quotes; NaN for anything else, and for what counts nothing."""
    try:
        value = float(_unquoted(raw))
    except ValueError:
        return np.nan
    return value if 0 <= value < _MOST else np.nan


def element_bytes(dtype: str) -> float:
    """Return bytes of an element, by PyTorch's name of its type; NaN for an unknown type."""
    if dtype.startswith("Float8_"):
        return 1
    return _ELEMENT_BYTES.get(dtype, np.nan)


def bus_factor(collective: str, ranks: float) -> float:
    """Return bus bandwidth as a multiple of algorithm bandwidth; NaN where it is not defined."""
    if not ranks >= 1:
        return np.nan
    for factor in _BUS_FACTORS:
        if factor.pattern.search(collective.lower()):
            return factor.of_parts * (ranks - 1) / ranks + factor.of_whole
    return np.nan


def _whole_numbers(values: npt.NDArray[np.float64]) -> pd.Series[int]:
    """Return whole numbers of which some may be missing."""
    sane = np.where(np.abs(values) < _MOST, values, np.nan)
    return pd.Series(np.floor(sane)).astype("Int64")


def _has_communication(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.gpu_events.is_communication.any())


COLL_ANALYSIS = Table(
    name="coll_analysis",
    shows="Collectives by size: duration and bandwidth",
    columns=[
        Column("kernel", "a short name that is unique within the sheet"),
        Column(
            "Collective name",
            "from the metadata, else from the annotation `nccl:…` around it",
        ),
        Column("Process Group Name", "from the metadata"),
        Column("Process Group Description", "from the metadata"),
        Column("Group size", "of the process group", unit="ranks"),
        Column("dtype", "of an element"),
        Column("In msg nelems", "what this rank contributes", unit="elements"),
        Column("Out msg nelems", "what this rank receives", unit="elements"),
        Column("In msg bytes", "what this rank contributes", unit="bytes"),
        Column("Out msg bytes", "what this rank receives", unit="bytes"),
        Column("count", "how many", unit="kernels"),
        Column("total_time_ms", "summed duration"),
        Column(
            "avg_time_us",
            "duration of a kernel; `std` is the sample standard deviation",
        ),
        Column(
            "std_time_us",
            "duration of a kernel; `std` is the sample standard deviation",
        ),
        Column(
            "min_time_us",
            "duration of a kernel; `std` is the sample standard deviation",
        ),
        Column(
            "max_time_us",
            "duration of a kernel; `std` is the sample standard deviation",
        ),
        Column("% of communication time", "of the sum of all communication durations"),
        Column(
            "algorithm_bandwidth_gb_s",
            "size of the whole array (the larger side), divided by the mean duration",
            unit="10⁹ bytes/s",
        ),
        Column(
            "bus_bandwidth_gb_s",
            "algorithm bandwidth times a factor for the collective",
            unit="10⁹ bytes/s",
        ),
        Column(
            "best_bus_bandwidth_gb_s",
            "bus bandwidth at the shortest duration",
            unit="10⁹ bytes/s",
        ),
        Column("kernel_name", "full name, as recorded"),
    ],
    table=of_gpu_events(collectives),
    short_names="kernel_name",
    when=[GPU_EVENTS, Condition("there is communication", _has_communication)],
    asked_by="collective_analysis",
    method="get_df_collectives()",
)
