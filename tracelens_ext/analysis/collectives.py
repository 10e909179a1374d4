"""The communication kernels of one rank, and the metadata that describes their collectives.

PyTorch records the name, the process group and the sizes of a collective as arguments of the kernel
or of the `record_param_comms` op around its launch.

Bandwidths follow `doc/PERFORMANCE.md` of NVIDIA's nccl-tests. Algorithm bandwidth is the size of
the whole array divided by the time. Bus bandwidth is the algorithm bandwidth times a factor of the
number of ranks n: 2(n-1)/n for all-reduce; (n-1)/n for all-gather, reduce-scatter and all-to-all,
and (see `gather.cu` and `scatter.cu`) for gather and scatter; 1 for broadcast, reduce, send and
receive. A kernel also runs while it waits for other ranks, so on one rank, the shortest kernel is
the best measurement of the network.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.operations.arguments import argument_values
from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable, json_value
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    NS_PER_US,
    EventKind,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import recode, texts
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: Arguments with the metadata of a collective, by type. Their names are those of the columns, too.
_TEXT_KEYS = (
    "Collective name",
    "Process Group Name",
    "Process Group Description",
    "dtype",
)
NUMBER_KEYS = ("Group size", "In msg nelems", "Out msg nelems")
#: Columns by which communication kernels are grouped, in the order of the table.
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

#: PyTorch's name of a scalar type → bytes per element.
_ELEMENT_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}

#: Collectives that no rank can finish before all ranks have joined.
SYNCHRONOUS = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|barrier", re.IGNORECASE
)

#: Larger numbers of ranks, elements or bytes are implausible: the trace is wrong.
MAX_NUMBER = 2.0**62
#: PyTorch's annotations of collectives are named after the backend and the collective.
_ANNOTATION_PREFIX = "nccl:"


class _BusFactor(NamedTuple):
    """The formula of the bus factor of some collectives among n ranks.

    The factor is `per_remote_share` times (n-1)/n, plus `constant`.
    """

    pattern: re.Pattern[str]  #: matches a part of the collective's name
    per_remote_share: int
    constant: int


#: The first match counts: `reduce` is also a part of `allreduce`.
_BUS_FACTORS = (
    _BusFactor(pattern=re.compile("all_?reduce"), per_remote_share=2, constant=0),
    _BusFactor(
        pattern=re.compile("reduce_?scatter|all_?gather|all_?to_?all|gather|scatter"),
        per_remote_share=1,
        constant=0,
    ),
    _BusFactor(
        pattern=re.compile("broadcast|reduce|send|recv"),
        per_remote_share=0,
        constant=1,
    ),
)


@cached_per_object
def communication_of(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the communication kernels of a trace, with their index among the GPU events.

    The columns are those of `KEYS`, and `time`, the duration in µs.
    """
    kernels = np.flatnonzero(gpu_events.is_communication)
    describing = describing_events(gpu_events, kernels)
    columns: dict[str, object] = {}
    for name in _TEXT_KEYS:
        columns[name] = text_argument(gpu_events, name, describing)
    for name in NUMBER_KEYS:
        columns[name] = number_argument(gpu_events, name, describing)
    recorded_names = np.array(columns["Collective name"], dtype=object)
    columns["Collective name"] = np.where(
        recorded_names == "", _annotated_names(gpu_events, kernels), recorded_names
    )
    columns["kernel_name"] = texts(gpu_events.name[kernels], gpu_events.trace.names)
    table = pd.DataFrame({name: columns[name] for name in KEYS}, index=kernels)
    table["time"] = gpu_events.duration[kernels] / NS_PER_US
    return table


def describing_events(gpu_events: GpuEvents, kernels: Int64Array) -> Int64Array:
    """Return the row of the event with the metadata of each communication kernel, (k,).

    It is the kernel itself, or else the nearest event with metadata around its launch. For a kernel
    without a launch in the trace, it is the operation with the same external id. It is `NONE` for a
    kernel without metadata.

    Args:
        gpu_events: all GPU events.
        kernels: the indices of the kernels among the GPU events, (k,).
    """
    trace = gpu_events.trace
    rows = gpu_events.rows[kernels]
    with_metadata = trace.arg("Collective name").rows
    describes_itself = np.isin(rows, with_metadata)
    around_launch = _event_above(gpu_events, kernels, with_metadata)
    describing = np.where(describes_itself, rows, around_launch)

    operations = with_metadata[np.isin(trace.kind[with_metadata], HOST_KINDS)]
    operations = operations[np.argsort(trace.external_id[operations], kind="stable")]
    operation_ids = trace.external_id[operations]
    has_id = trace.external_id[rows] != NONE
    open_kernels = np.flatnonzero((describing == NONE) & has_id)
    open_ids = trace.external_id[rows[open_kernels]]
    candidate = np.searchsorted(operation_ids, open_ids)
    is_found = values_at(operation_ids, candidate, missing=NONE) == open_ids
    describing[open_kernels[is_found]] = operations[candidate[is_found]]
    return describing


def _annotated_names(
    gpu_events: GpuEvents, kernels: Int64Array
) -> npt.NDArray[np.object_]:
    """Return the collective in the annotation around each kernel's launch; empty without one."""
    trace = gpu_events.trace
    names_collective = trace.names_matching(
        lambda name: name.startswith(_ANNOTATION_PREFIX)
    )
    # NVTX ranges are read as operations.
    annotations = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    is_collective = names_collective[trace.name[annotations]]
    annotations = annotations[is_collective]
    annotation_above = _event_above(gpu_events, kernels, annotations)
    names = values_at(trace.name, annotation_above)

    def collective_of(name: int) -> str:
        if name == NONE:
            return ""
        return trace.names[name].removeprefix(_ANNOTATION_PREFIX)

    code, labels = recode(names, collective_of)
    collectives = np.array(labels, dtype=object)
    return collectives[code]


def _event_above(
    gpu_events: GpuEvents, kernels: Int64Array, events: IntArray
) -> Int64Array:
    """Return the nearest of the events (rows) above each kernel's launch, `NONE` without, (k,)."""
    result = np.full(len(kernels), NONE, dtype=np.int64)
    linked = gpu_events.tree.linked[kernels]
    launch = gpu_events.tree.launch_position_of_gpu[kernels[linked]]
    result[linked] = events_above(gpu_events.tree, launch, events)
    return result


def events_above(tree: CallTree, positions: IntArray, events: IntArray) -> Int64Array:
    """Return the nearest of the events (rows) above each tree position, `NONE` without, (k,)."""
    event_positions = tree.position[events]
    event_positions = event_positions[event_positions != NONE]
    is_marked = np.zeros(len(tree.rows), dtype=bool)
    is_marked[event_positions] = True
    above = nearest_above(tree.parent_position, positions, is_marked)
    rows = values_at(tree.rows, above)
    return np.where(above == ROOT, NONE, rows)


def text_argument(gpu_events: GpuEvents, name: str, rows: Int64Array) -> list[str]:
    """Return a text argument of events without its quotes; empty for an event without it."""
    code, labels = argument_values(
        trace=gpu_events.trace, rows=rows, name=name, convert=_unquoted, missing=""
    )
    return texts(code, labels)


def number_argument(
    gpu_events: GpuEvents, name: str, rows: Int64Array
) -> npt.NDArray[np.float64]:
    """Return a numeric argument of events; NaN for an event without it."""
    code, numbers = argument_values(
        trace=gpu_events.trace, rows=rows, name=name, convert=_as_number, missing=np.nan
    )
    return np.array(numbers, dtype=np.float64)[code]


def _unquoted(raw: str) -> str:
    value = json_value(raw)
    return encodable(value) if isinstance(value, str) else raw


def _as_number(raw: str) -> float:
    """Return a number, which may be in quotes; NaN for other texts and implausible numbers."""
    try:
        value = float(_unquoted(raw))
    except ValueError:
        return np.nan
    return value if 0 <= value < MAX_NUMBER else np.nan


def element_bytes(dtype: str) -> float:
    """Return the bytes of an element of a type, by PyTorch's name; NaN for an unknown type."""
    if dtype.startswith("Float8_"):
        return 1
    return _ELEMENT_BYTES.get(dtype, np.nan)


def bus_factor(collective: str, ranks: float) -> float:
    """Return the bus bandwidth as a multiple of the algorithm bandwidth.

    It is NaN for an unknown collective or number of ranks.
    """
    if not ranks >= 1:
        return np.nan
    for factor in _BUS_FACTORS:
        if factor.pattern.search(collective.lower()):
            remote_share = (ranks - 1) / ranks
            return factor.per_remote_share * remote_share + factor.constant
    return np.nan
