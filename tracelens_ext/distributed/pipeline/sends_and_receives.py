"""The sends and receives of one rank: their kernels, directions and peers, as recorded.

PyTorch records a send or receive as a host event `record_param_comms` with the collective `send` or
`recv`, around the launch of its kernel. In a batch (`batch_isend_irecv`), the records of all sends
and receives come first, and one launch follows outside of them. So a kernel that is launched
without a record belongs to all records on the same thread since the launch before it, unless they
contain a launch themselves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    Trace,
)

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents

#: Values of the column `direction` of `pipeline_calls`.
SEND = "send"
RECEIVE = "recv"

#: Names such as `send`, `isend` and `nccl:recv 0<-1`: the direction, and possibly the numbers of
#: this rank and the other one in their process group.
_POINT_TO_POINT = re.compile(
    r"\W*(?:\w+::?)?(?P<direction>i?send|i?recv|i?receive)_?"
    r"(?:\s+(?P<own_number>\d+)\s*(?:->|<-)\s*(?P<peer>\d+))?\W*",
    re.IGNORECASE,
)
_BATCH = re.compile(r"coalesc|batch|group|send_?recv", re.IGNORECASE)
_SEND_RECV_KERNEL = re.compile(r"send_?recv", re.IGNORECASE)
#: Column → the argument of the trace with its text.
_TEXT_ARGUMENTS = {
    "collective": "Collective name",
    "group_name": "Process Group Name",
    "group": "Process Group Ranks",
    "description": "Process Group Description",
    "dtype": "dtype",
}
#: Column → the argument of the trace with its number.
_NUMBER_ARGUMENTS = {
    "size": "Group size",
    "elements": "In msg nelems",
    "source": "Src Rank",
    "target": "Dst Rank",
}


def sends_and_receives(
    gpu_events: GpuEvents, communication: Int64Array
) -> pd.DataFrame:
    """Return a row for each send and receive among communication kernels, in order of launch.

    Args:
        gpu_events: the GPU events of the trace.
        communication: the communication kernels of a rank.

    Returns:
        `kernel`, `launch`, `start` and `end` (ns), `direction`, `peer`, `is_group_rank`, and the
        columns of `_TEXT_ARGUMENTS` and `_NUMBER_ARGUMENTS`. A kernel that may be a send or
        receive and has no record has one row with an empty direction.
    """
    describing_rows = collectives.describing_events(gpu_events, communication)
    descriptions = _Descriptions(
        kernel=communication,
        row=describing_rows,
        annotation=_annotations_above(gpu_events, communication),
    )
    described = _described_calls(gpu_events, descriptions)
    has_direction = described["direction"] != ""
    may_be_batch = ~has_direction & _may_be_batches(gpu_events, described)
    batch_kernels = communication[may_be_batch.to_numpy()]
    batched_records = _records_of_batches(
        gpu_events=gpu_events,
        batch_kernels=batch_kernels,
        describing_rows=describing_rows,
    )
    batched = _described_calls(gpu_events, batched_records)
    batched = batched[batched["direction"] != ""]
    has_records = np.isin(batch_kernels, batched_records.kernel)
    without_records = described[may_be_batch][~has_records]
    parts = [described[has_direction], batched, without_records]
    non_empty = [part for part in parts if len(part)]
    calls = pd.concat(non_empty or [described])
    kernel = whole_numbers(calls, "kernel")
    base = gpu_events.trace.base_ns
    calls["launch"] = launch_times(gpu_events)[kernel] + base
    calls["start"] = gpu_events.start[kernel] + base
    calls["end"] = gpu_events.end[kernel] + base
    return calls.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def launch_times(gpu_events: GpuEvents) -> Int64Array:
    """Return when each GPU event was launched, or when it started if it has no launch, (g,)."""
    tree = gpu_events.tree
    times = gpu_events.start.astype(np.int64)
    times[tree.linked] = gpu_events.trace.ts[tree.launch_of_gpu[tree.linked]]
    return times


def _may_be_batches(gpu_events: GpuEvents, described: pd.DataFrame) -> pd.Series:
    """Return which kernels may be batches of sends and receives, by their names.

    Args:
        gpu_events: the GPU events of the trace.
        described: a row for each kernel, of `_described_calls`.
    """
    collective = described["collective"]
    is_batch = collective.str.contains(_BATCH) | (collective == "")
    names = gpu_events.name[whole_numbers(described, "kernel")]
    is_send_or_receive = gpu_events.trace.named(names, _SEND_RECV_KERNEL.search)
    return is_batch & is_send_or_receive


# What events record about kernels.


class _Descriptions(NamedTuple):
    """The events that describe communication kernels; a kernel may have several descriptions."""

    kernel: Int64Array  #: a GPU event
    #: the event with the arguments of the call, `NONE` if there is none
    row: Int64Array
    annotation: Int64Array  #: the annotation above the launch, `NONE` if there is none


def _annotations_above(gpu_events: GpuEvents, kernels: Int64Array) -> Int64Array:
    """Return the annotation named like a send or receive around each launch, or `NONE`, (k,)."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    annotation_above = np.full(len(kernels), NONE, dtype=np.int64)
    candidates = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    annotations = candidates[_is_named_like_exchange(trace, candidates)]
    is_linked = tree.linked[kernels]
    launches = tree.launch_position_of_gpu[kernels[is_linked]]
    annotation_above[is_linked] = collectives.events_above(tree, launches, annotations)
    return annotation_above


def _described_calls(
    gpu_events: GpuEvents, descriptions: _Descriptions
) -> pd.DataFrame:
    """Return a row for each description: the recorded arguments, `direction` and `peer`.

    The direction is that of the first of these that has one: the collective in the arguments; if
    there is no collective, the name of the describing event, and then the annotation. The peer is
    the number in the arguments, or else in one of these names; those count within the group.
    """
    columns: dict[str, Any] = {"kernel": descriptions.kernel}
    for column, argument in _TEXT_ARGUMENTS.items():
        values = collectives.text_argument(gpu_events, argument, descriptions.row)
        columns[column] = pd.Series(values, dtype="str")
    for column, argument in _NUMBER_ARGUMENTS.items():
        columns[column] = collectives.number_argument(
            gpu_events=gpu_events, name=argument, rows=descriptions.row
        )
    calls = pd.DataFrame(columns)
    in_collective = _read_names(calls["collective"].tolist())
    in_row_name = _read_names(_names_of(gpu_events.trace, descriptions.row))
    in_annotation = _read_names(_names_of(gpu_events.trace, descriptions.annotation))
    has_collective = calls["collective"] != ""
    direction = in_collective["direction"]
    for in_name in (in_row_name, in_annotation):
        is_final = has_collective | (direction != "")
        direction = direction.where(is_final, in_name["direction"])
    calls["direction"] = direction
    recorded_peer = calls["target"].where(direction == SEND, calls["source"])
    group_rank = in_collective["peer"]
    group_rank = group_rank.fillna(in_row_name["peer"])
    group_rank = group_rank.fillna(in_annotation["peer"])
    calls["is_group_rank"] = recorded_peer.isna() & group_rank.notna()
    calls["peer"] = recorded_peer.fillna(group_rank)
    return calls


def _names_of(trace: Trace, rows: Int64Array) -> list[str]:
    """Return the names of events, empty for `NONE`."""
    return [trace.name_of(row) if row != NONE else "" for row in rows.tolist()]


def _read_names(names: list[str]) -> pd.DataFrame:
    """Return the `direction` (`send`, `recv` or empty) and `peer` (or NaN) in each name."""
    code, distinct_names = pd.factorize(pd.Series(names, dtype="str"))
    directions = []
    peers = []
    for name in distinct_names:
        match = _POINT_TO_POINT.fullmatch(name)
        direction = ""
        peer = np.nan
        if match is not None:
            is_send = "send" in match["direction"].lower()
            direction = SEND if is_send else RECEIVE
            if match["peer"] is not None:
                peer = float(match["peer"])
        directions.append(direction)
        peers.append(peer)
    columns = {
        "direction": pd.Series(directions, dtype="str").to_numpy()[code],
        "peer": np.array(peers, dtype=np.float64)[code],
    }
    return pd.DataFrame(columns).astype({"direction": "str"})


def _is_named_like_exchange(trace: Trace, rows: Int64Array) -> BoolArray:
    """Return which events have the name of a send or receive, (n,)."""
    return trace.named(trace.name[rows], _POINT_TO_POINT.fullmatch)


# Batches.


def _records_of_batches(
    gpu_events: GpuEvents,
    batch_kernels: Int64Array,
    describing_rows: Int64Array,
) -> _Descriptions:
    """Return the records of the sends and receives that were launched in batches.

    Args:
        gpu_events: the GPU events of the trace.
        batch_kernels: the kernels that may be batches.
        describing_rows: the events that describe the kernel they contain, which are not in batches.
    """
    tree = gpu_events.tree
    batch_kernels = batch_kernels[tree.linked[batch_kernels]]
    launches = tree.launch_of_gpu[batch_kernels]
    records = _records_of_exchanges(gpu_events)
    records = np.setdiff1d(records, describing_rows)
    records = np.setdiff1d(records, _records_with_launches(gpu_events, records))
    if not len(launches) or not len(records):
        nothing = np.zeros(0, dtype=np.int64)
        return _Descriptions(kernel=nothing, row=nothing, annotation=nothing)
    next_launch = _next_launches(
        trace=gpu_events.trace,
        launches=launches,
        records=records,
    )
    has_launch = next_launch != NONE
    records = records[has_launch]
    return _Descriptions(
        kernel=batch_kernels[next_launch[has_launch]],
        row=records,
        annotation=np.full_like(records, NONE),
    )


def _next_launches(
    trace: Trace, launches: Int64Array, records: Int64Array
) -> Int64Array:
    """Return the position of the first launch after each record on its thread, or `NONE`, (r,).

    Args:
        trace: the trace.
        launches: the rows of launches.
        records: the rows of other events.
    """
    launch_thread = trace.thread[launches].astype(np.int64)
    record_thread = trace.thread[records].astype(np.int64)
    # A thread and a time become one number that sorts by thread first: with times up to 99,
    # time 7 on thread 2 is 207.
    thread_span = int(trace.ts.max()) + 1
    launch_key = launch_thread * thread_span + trace.ts[launches]
    record_key = record_thread * thread_span + trace.ts[records]
    order = np.argsort(launch_key, kind="stable")
    following = np.searchsorted(launch_key[order], record_key)
    is_beyond_last = following == len(order)
    next_launch = order[np.where(is_beyond_last, 0, following)]
    is_same_thread = launch_thread[next_launch] == record_thread
    return np.where(is_same_thread & ~is_beyond_last, next_launch, NONE)


def _records_with_launches(gpu_events: GpuEvents, records: Int64Array) -> Int64Array:
    """Return the records that contain the launch of a GPU event."""
    tree = gpu_events.tree
    launches = tree.launch_position_of_gpu[tree.linked]
    return np.unique(collectives.events_above(tree, launches, records))


def _records_of_exchanges(gpu_events: GpuEvents) -> Int64Array:
    """Return the host events that record a send or receive in their arguments, or in their name.

    Names count only if no arguments record any send or receive.
    """
    trace = gpu_events.trace
    argument = _TEXT_ARGUMENTS["collective"]
    rows = trace.arg(argument).rows.astype(np.int64)
    host_rows = rows[np.isin(trace.kind[rows], HOST_KINDS)]
    collective = collectives.text_argument(gpu_events, argument, host_rows)
    is_exchange = (_read_names(collective)["direction"] != "").to_numpy(bool)
    if is_exchange.any():
        return host_rows[is_exchange]
    candidates = trace.rows_of(*HOST_KINDS)
    annotations: Int64Array = candidates[_is_named_like_exchange(trace, candidates)]
    return annotations
