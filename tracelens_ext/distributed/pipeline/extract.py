"""What is kept of one rank, so that the stages of a pipeline can be found and compared.

PyTorch records a send or a receive as `record_param_comms` with the collective `send` or `recv`,
around the launch of its kernel. The launch of a batch (`batch_isend_irecv`) comes after the
operations of the batch, outside of them: its kernel belongs to all that were recorded on the
thread since the launch before it and that launched nothing themselves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.iterations.iterations import find_iterations, iteration_at
from tracelens_ext.distributed.pipeline.intervals import Intervals
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
    from tracelens_ext.distributed.rank_numbers import TraceRanks
    from tracelens_ext.trace.gpu_events import GpuEvents

CALLS = "pipeline_calls"
ACTIVITY = "pipeline_activity"
#: The tables of `pipeline_tables`.
PIPELINE_TABLES = (CALLS, ACTIVITY)

#: Values of the column `direction` of `pipeline_calls`.
SEND = "send"
RECEIVE = "recv"
#: Values of the column `kind` of `pipeline_activity`.
COMPUTATION = "computation"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"

#: `send`, `nccl:recv 0<-1`, `isend`: the direction, and the two ranks of the group.
_POINT_TO_POINT = re.compile(
    r"\W*(?:\w+::?)?(?P<direction>i?send|i?recv|i?receive)_?"
    r"(?:\s+(?P<first>\d+)\s*(?:->|<-)\s*(?P<second>\d+))?\W*",
    re.IGNORECASE,
)
_BATCH = re.compile(r"coalesc|batch|group|send_?recv", re.IGNORECASE)
_SEND_RECV_KERNEL = re.compile(r"send_?recv", re.IGNORECASE)
_OPTIMIZER_STEP = re.compile(r"optimizer[._]step|optimizer#", re.IGNORECASE)
#: Column → the argument of the trace.
_TEXTS = {
    "collective": "Collective name",
    "group_name": "Process Group Name",
    "group": "Process Group Ranks",
    "description": "Process Group Description",
    "dtype": "dtype",
}
_NUMBERS = {
    "size": "Group size",
    "elements": "In msg nelems",
    "source": "Src Rank",
    "target": "Dst Rank",
}

_CALL_TYPES = {
    "rank": "int64",
    "kernel": "int64",
    "start": "int64",
    "end": "int64",
    "launch": "int64",
    "iteration": "str",
    "direction": "str",
    "peer": "float64",
    "is_group_rank": "bool",
    "group_name": "str",
    "group": "str",
    "description": "str",
    "size": "float64",
    "elements": "float64",
    "dtype": "str",
}
_ACTIVITY_TYPES = {
    "rank": "int64",
    "kind": "str",
    "group": "str",
    "iteration": "str",
    "start": "int64",
    "end": "int64",
}


def pipeline_tables(
    gpu_events: GpuEvents, ranks: TraceRanks
) -> dict[str, pd.DataFrame]:
    """Return `pipeline_calls` and `pipeline_activity` of the rank or ranks of a trace.

    `pipeline_calls` has a row for each send or receive: `kernel`, a number that those of one batch
    share; `start`, `end`, `launch` (ns, own clock); `iteration`; `direction` (`send` or `recv`);
    `peer`, as the trace has it (NaN if it does not tell), `is_group_rank` if that counts within the
    process group, and its process group.

    `pipeline_activity` has the union of intervals of each `kind` of work: computation, steps of the
    optimizer, and other communication of each process group. Both are empty without a send.
    """
    if ranks.of_device:
        parts = []
        for device, rank in ranks.of_device.items():
            is_on_device = gpu_events.trace.device == device
            parts.append(
                _tables_of_rank(
                    gpu_events=gpu_events,
                    is_of_rank=is_on_device,
                    rank=rank,
                )
            )
    else:
        everything = np.ones(len(gpu_events), dtype=bool)
        parts = [
            _tables_of_rank(
                gpu_events=gpu_events,
                is_of_rank=everything,
                rank=ranks.first,
            )
        ]
    return {
        name: pd.concat([part[name] for part in parts], ignore_index=True)
        for name in PIPELINE_TABLES
    }


def _tables_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray, rank: int
) -> dict[str, pd.DataFrame]:
    """Return the tables of one rank, whose GPU events `is_of_rank` selects."""
    is_candidate = gpu_events.is_communication & is_of_rank
    calls = _calls(gpu_events, np.flatnonzero(is_candidate))
    exchanges = whole_numbers(calls, "kernel")
    iteration = _iteration_names(gpu_events)
    if not any(iteration):
        iteration = _iterations_by_optimizer(gpu_events, np.unique(exchanges))
    calls["iteration"] = iteration[exchanges]
    calls["rank"] = rank
    activity = pd.DataFrame(columns=list(_ACTIVITY_TYPES))
    if len(calls):
        is_other = is_of_rank.copy()
        is_other[exchanges] = False
        activity = _activity(
            gpu_events=gpu_events,
            selected=is_other,
            iteration=iteration,
        )
        activity["rank"] = rank
    return {
        CALLS: _with_types(calls, _CALL_TYPES),
        ACTIVITY: _with_types(activity, _ACTIVITY_TYPES),
    }


def _with_types(frame: pd.DataFrame, types: dict[str, str]) -> pd.DataFrame:
    """Return the columns that a table has, with their types."""
    return frame[list(types)].astype(types)


def _iteration_names(gpu_events: GpuEvents) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the number of the iteration of each GPU event as text, empty without one, (g,)."""
    iterations = find_iterations(gpu_events.tree)
    index = iterations.of_gpu.copy()
    processes = np.unique(iterations.process)
    has_no_launch = ~gpu_events.tree.linked
    is_unknown = has_no_launch & (index == NONE)
    if len(processes) == 1 and is_unknown.any():
        # Without launches, the iteration in which the event ran has to do.
        start = gpu_events.start[is_unknown]
        process = np.full_like(start, processes[0], dtype=np.int64)
        index[is_unknown] = iteration_at(iterations.spans, process, start)
    names = iterations.numbers(index)
    return np.array(names, dtype=object)


def _iterations_by_optimizer(
    gpu_events: GpuEvents, exchanges: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the numbers of iterations that end with a step of the optimizer, from 1, (g,).

    Steps without sends or receives in between are of one iteration. Empty where all sends and
    receives are of one iteration.

    Args:
        gpu_events: of the trace.
        exchanges: the kernels of sends and receives.
    """
    trace = gpu_events.trace
    names = np.full(len(gpu_events), "", dtype=object)
    steps = _optimizer_steps(gpu_events)
    step_ends = np.unique(trace.end_of(steps))
    steps_before = np.searchsorted(step_ends, _launch_times(gpu_events))
    with_exchanges = np.unique(steps_before[exchanges])
    if len(with_exchanges) < 2:
        return names
    number = np.searchsorted(with_exchanges, steps_before, side="right")
    names[:] = np.maximum(number, 1).astype("str")
    return names


def _launch_times(gpu_events: GpuEvents) -> Int64Array:
    """Return when each GPU event was launched; without a launch, when it started, (g,)."""
    tree = gpu_events.tree
    times = gpu_events.start.astype(np.int64)
    times[tree.linked] = gpu_events.trace.ts[tree.launch_of_gpu[tree.linked]]
    return times


def _optimizer_steps(gpu_events: GpuEvents) -> Int64Array:
    """Return the host events that are steps of an optimizer."""
    trace = gpu_events.trace
    hosts = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    is_step = trace.named(trace.name[hosts], _OPTIMIZER_STEP.search)
    steps: Int64Array = hosts[is_step]
    return steps


def has_unknown_exchanges(calls: pd.DataFrame) -> bool:
    """Tell whether there are sends or receives of which the trace records only the kernel.

    Args:
        calls: `pipeline_calls`.
    """
    is_unknown = (calls["direction"] == "") & ~_has_group(calls)
    return bool(is_unknown.any())


def has_unknown_partners(calls: pd.DataFrame) -> bool:
    """Tell whether there are sends or receives without a record of the other rank or of the group.

    Args:
        calls: `pipeline_calls`.
    """
    is_unknown = calls["peer"].isna() & ~_has_group(calls)
    return bool(is_unknown.any())


def _has_group(calls: pd.DataFrame) -> pd.Series:
    """Return which calls record anything about their process group."""
    names: pd.Series = calls["group"] + calls["group_name"] + calls["description"]
    return names != ""


# Sends and receives.


class _Describing(NamedTuple):
    """The events that describe the communication kernels."""

    kernel: Int64Array  #: a GPU event
    row: Int64Array  #: the event that says what it does, `NONE` if only its annotation does
    annotation: Int64Array  #: the annotation above its launch, `NONE` without


def _calls(gpu_events: GpuEvents, kernels: Int64Array) -> pd.DataFrame:
    """Return a row for each send and receive of some communication kernels."""
    described = collectives.describing_events(gpu_events, kernels)
    describing = _Describing(
        kernel=kernels,
        row=described,
        annotation=_annotations_above(gpu_events, kernels),
    )
    own = _rows_of(gpu_events, describing)
    is_named = own["direction"] != ""
    is_bare = ~is_named & _may_be_batches(gpu_events, own)
    bare_kernels = kernels[is_bare.to_numpy()]
    batched = _batched_records(
        gpu_events=gpu_events,
        bare_kernels=bare_kernels,
        described=described,
    )
    of_batches = _rows_of(gpu_events, batched)
    of_batches = of_batches[of_batches["direction"] != ""]
    is_known = np.isin(bare_kernels, batched.kernel)
    unknown = own[is_bare][~is_known]
    parts = [own[is_named], of_batches, unknown]
    parts_with_rows = [part for part in parts if len(part)]
    calls = pd.concat(parts_with_rows or [own])
    kernel = whole_numbers(calls, "kernel")
    base = gpu_events.trace.base_ns
    calls["launch"] = _launch_times(gpu_events)[kernel] + base
    calls["start"] = gpu_events.start[kernel] + base
    calls["end"] = gpu_events.end[kernel] + base
    return calls.sort_values(["launch", "start"], kind="stable", ignore_index=True)


def _may_be_batches(gpu_events: GpuEvents, rows: pd.DataFrame) -> pd.Series:
    """Return which kernels may be batches of sends and receives, by their names.

    Args:
        gpu_events: of the trace.
        rows: what events say of each kernel, of `_rows_of`.
    """
    collective = rows["collective"]
    is_batch = collective.str.contains(_BATCH) | (collective == "")
    names = gpu_events.name[whole_numbers(rows, "kernel")]
    is_send_or_receive = gpu_events.trace.named(names, _SEND_RECV_KERNEL.search)
    return is_batch & is_send_or_receive


def _annotations_above(gpu_events: GpuEvents, kernels: Int64Array) -> Int64Array:
    """Return the annotation of a send or receive around the launch of each kernel, (k,)."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    result = np.full(len(kernels), NONE, dtype=np.int64)
    candidates = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    annotations = candidates[_names_direction(trace, candidates)]
    linked = tree.linked[kernels]
    launches = tree.launch_position_of_gpu[kernels[linked]]
    result[linked] = collectives.events_above(tree, launches, annotations)
    return result


def _rows_of(gpu_events: GpuEvents, describing: _Describing) -> pd.DataFrame:
    """Return what events say of the kernels that they describe."""
    trace = gpu_events.trace
    columns: dict[str, Any] = {"kernel": describing.kernel}
    for column, argument in _TEXTS.items():
        values = collectives.text_argument(gpu_events, argument, describing.row)
        columns[column] = pd.Series(values, dtype="str")
    for column, argument in _NUMBERS.items():
        columns[column] = collectives.number_argument(
            gpu_events=gpu_events, name=argument, rows=describing.row
        )
    rows = pd.DataFrame(columns)
    # The annotation is the record itself where that has no arguments.
    annotated = [
        trace.name_of(row) if row != NONE else ""
        for row in describing.annotation.tolist()
    ]
    recorded = [
        trace.name_of(row) if row != NONE else "" for row in describing.row.tolist()
    ]
    of_name = _directions(rows["collective"].tolist())
    of_record = _directions(recorded)
    of_annotation = _directions(annotated)
    direction = of_name["direction"]
    has_collective = (direction != "") | (rows["collective"] != "")
    direction = direction.where(has_collective, of_record["direction"])
    has_direction = (direction != "") | has_collective
    direction = direction.where(has_direction, of_annotation["direction"])
    rows["direction"] = direction
    is_send = direction == "send"
    peer = rows["target"].where(is_send, rows["source"])
    group_rank = of_name["peer"].fillna(of_record["peer"])
    group_rank = group_rank.fillna(of_annotation["peer"])
    rows["is_group_rank"] = peer.isna() & group_rank.notna()
    rows["peer"] = peer.fillna(group_rank)
    return rows


def _directions(names: list[str]) -> pd.DataFrame:
    """Return `direction` (`send`, `recv` or empty) and `peer` (NaN) that names tell."""
    code, distinct = pd.factorize(pd.Series(names, dtype="str"))
    directions = []
    peers = []
    for name in distinct:
        match = _POINT_TO_POINT.fullmatch(name)
        direction = ""
        peer = np.nan
        if match is not None:
            is_send = "send" in match["direction"].lower()
            direction = SEND if is_send else RECEIVE
            if match["second"] is not None:
                peer = float(match["second"])
        directions.append(direction)
        peers.append(peer)
    columns = {
        "direction": pd.Series(directions, dtype="str").to_numpy()[code],
        "peer": np.array(peers, dtype=np.float64)[code],
    }
    return pd.DataFrame(columns).astype({"direction": "str"})


def _batched_records(
    gpu_events: GpuEvents,
    bare_kernels: Int64Array,
    described: Int64Array,
) -> _Describing:
    """Return the records of sends and receives that were launched in batches.

    Args:
        gpu_events: of the trace.
        bare_kernels: those that no record of a send or receive is around.
        described: the events that describe kernels of their own.
    """
    trace = gpu_events.trace
    tree = gpu_events.tree
    bare_kernels = bare_kernels[tree.linked[bare_kernels]]
    launches = tree.launch_of_gpu[bare_kernels]
    records = _records_of_exchanges(gpu_events)
    records = np.setdiff1d(records, described)
    records = np.setdiff1d(records, _records_with_launches(gpu_events, records))
    nothing = np.zeros(0, dtype=np.int64)
    if not len(launches) or not len(records):
        return _Describing(kernel=nothing, row=nothing, annotation=nothing)
    launch = _next_launches(
        trace=trace,
        launches=launches,
        records=records,
    )
    has_launch = launch != NONE
    records = records[has_launch]
    return _Describing(
        kernel=bare_kernels[launch[has_launch]],
        row=records,
        annotation=np.full_like(records, NONE),
    )


def _next_launches(
    trace: Trace, launches: Int64Array, records: Int64Array
) -> Int64Array:
    """Return the place of the first launch after each record on its thread, (r,).

    It is `NONE` for records without a later launch.
    """
    launch_thread = trace.thread[launches].astype(np.int64)
    record_thread = trace.thread[records].astype(np.int64)
    # An instant of a thread as one number: threads follow one another.
    thread_span = int(trace.ts.max()) + 1
    launch_key = launch_thread * thread_span + trace.ts[launches]
    record_key = record_thread * thread_span + trace.ts[records]
    order = np.argsort(launch_key, kind="stable")
    place = np.searchsorted(launch_key[order], record_key)
    is_last = place == len(order)
    following = order[np.where(is_last, 0, place)]
    is_of_thread = launch_thread[following] == record_thread
    return np.where(is_of_thread & ~is_last, following, NONE)


def _records_with_launches(gpu_events: GpuEvents, records: Int64Array) -> Int64Array:
    """Return which records have the launch of a GPU event in them."""
    tree = gpu_events.tree
    launches = tree.launch_position_of_gpu[tree.linked]
    return np.unique(collectives.events_above(tree, launches, records))


def _records_of_exchanges(gpu_events: GpuEvents) -> Int64Array:
    """Return the host events that record a send or receive."""
    trace = gpu_events.trace
    rows = trace.arg(_TEXTS["collective"]).rows.astype(np.int64)
    recorded = rows[np.isin(trace.kind[rows], HOST_KINDS)]
    texts = collectives.text_argument(gpu_events, _TEXTS["collective"], recorded)
    direction = _directions(texts)["direction"]
    is_exchange = (direction != "").to_numpy(bool)
    if is_exchange.any():
        return recorded[is_exchange]
    # Without such records, their annotations are there at least.
    candidates = trace.rows_of(*HOST_KINDS)
    annotations: Int64Array = candidates[_names_direction(trace, candidates)]
    return annotations


def _names_direction(trace: Trace, rows: Int64Array) -> BoolArray:
    """Return which events are called like a send or receive, (n,)."""
    return trace.named(trace.name[rows], _POINT_TO_POINT.fullmatch)


# Everything else that a rank does.


def _activity(
    gpu_events: GpuEvents,
    selected: BoolArray,
    iteration: np.ndarray[Any, np.dtype[np.object_]],
) -> pd.DataFrame:
    """Return the union of intervals of each kind, group and iteration."""
    is_computed = gpu_events.is_kernel & ~gpu_events.is_copy
    kernels = np.flatnonzero(selected & is_computed)
    frame = pd.DataFrame(
        {
            "kind": _kinds(gpu_events, kernels),
            "group": _groups(gpu_events, kernels),
            "iteration": iteration[kernels],
            "start": gpu_events.start[kernels],
            "end": gpu_events.end[kernels],
        }
    )
    keys = ["kind", "group", "iteration"]
    base = gpu_events.trace.base_ns
    parts = []
    for _, rows in frame.groupby(keys, sort=True):
        intervals = Intervals.of_rows(rows)
        part = pd.DataFrame(
            {
                "start": intervals.start + base,
                "end": intervals.end + base,
            }
        )
        for key in keys:
            part[key] = rows[key].iloc[0]
        parts.append(part)
    if not parts:
        return pd.DataFrame(columns=list(_ACTIVITY_TYPES))
    return pd.concat(parts, ignore_index=True)


def _kinds(
    gpu_events: GpuEvents, kernels: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return what each kernel is for, (k,)."""
    kinds = np.full(len(kernels), COMPUTATION, dtype=object)
    kinds[_is_of_optimizer(gpu_events, kernels)] = OPTIMIZER
    kinds[gpu_events.is_communication[kernels]] = COMMUNICATION
    return kinds


def _groups(
    gpu_events: GpuEvents, kernels: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the ranks of the process group of each collective; empty for other kernels, (k,)."""
    is_communication = gpu_events.is_communication[kernels]
    described = collectives.describing_events(gpu_events, kernels[is_communication])
    groups = np.full(len(kernels), "", dtype=object)
    groups[is_communication] = collectives.text_argument(
        gpu_events=gpu_events,
        name=_TEXTS["group"],
        rows=described,
    )
    return groups


def _is_of_optimizer(gpu_events: GpuEvents, kernels: Int64Array) -> BoolArray:
    """Return which kernels a step of the optimizer launched, (k,)."""
    tree = gpu_events.tree
    result = np.zeros(len(kernels), dtype=bool)
    steps = _optimizer_steps(gpu_events)
    linked = tree.linked[kernels]
    launches = tree.launch_position_of_gpu[kernels[linked]]
    result[linked] = collectives.events_above(tree, launches, steps) != NONE
    return result
