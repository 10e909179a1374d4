"""The sends, receives and other GPU work of one rank, as far as pipelines are concerned.

Each trace is read on its own and becomes two tables. The stages of a pipeline are then found and
compared with the tables of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.analysis.iterations.iterations import find_iterations, iteration_at
from tracelens_ext.distributed.pipeline.activity import other_activity
from tracelens_ext.distributed.pipeline.optimizer_steps import optimizer_steps
from tracelens_ext.distributed.pipeline.sends_and_receives import (
    launch_times,
    sends_and_receives,
)
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array

if TYPE_CHECKING:
    from tracelens_ext.distributed.rank_numbers import TraceRanks
    from tracelens_ext.trace.gpu_events import GpuEvents

CALLS = "pipeline_calls"
ACTIVITY = "pipeline_activity"
#: The names of the tables of `pipeline_tables`.
PIPELINE_TABLES = (CALLS, ACTIVITY)

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

    `pipeline_calls` has a row for each send and receive: `kernel`, a number that the sends and
    receives of one batch share; `start`, `end`, `launch` (ns, on the clock of the trace);
    `iteration`; `direction` (`send` or `recv`, empty if not recorded); `peer`, the recorded number
    of the other rank (NaN if not recorded); `is_group_rank`, true if that number counts within the
    process group; and the process group, the number of elements and their type.

    `pipeline_activity` has the union of the intervals of each `kind` of other work: computation,
    steps of the optimizer, and the communication of each process group.

    Both tables are empty if the rank neither sends nor receives.
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
        all_events = np.ones(len(gpu_events), dtype=bool)
        parts = [
            _tables_of_rank(
                gpu_events=gpu_events,
                is_of_rank=all_events,
                rank=ranks.first,
            )
        ]
    return {
        name: pd.concat([part[name] for part in parts], ignore_index=True)
        for name in PIPELINE_TABLES
    }


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


# One rank.


def _tables_of_rank(
    gpu_events: GpuEvents, is_of_rank: BoolArray, rank: int
) -> dict[str, pd.DataFrame]:
    """Return both tables of one rank.

    Args:
        gpu_events: the GPU events of the trace.
        is_of_rank: the GPU events that the rank ran, (g,).
        rank: its number.
    """
    communication = np.flatnonzero(gpu_events.is_communication & is_of_rank)
    calls = sends_and_receives(gpu_events, communication)
    exchange_kernels = whole_numbers(calls, "kernel")
    iteration = _recorded_iterations(gpu_events)
    if not any(iteration):
        distinct_kernels = np.unique(exchange_kernels)
        iteration = _iterations_by_optimizer(gpu_events, distinct_kernels)
    calls["iteration"] = iteration[exchange_kernels]
    calls["rank"] = rank
    activity = pd.DataFrame(columns=list(_ACTIVITY_TYPES))
    if len(calls):
        is_other_work = is_of_rank.copy()
        is_other_work[exchange_kernels] = False
        activity = other_activity(
            gpu_events=gpu_events,
            is_other_work=is_other_work,
            iteration=iteration,
        )
        activity["rank"] = rank
    return {
        CALLS: _with_types(calls, _CALL_TYPES),
        ACTIVITY: _with_types(activity, _ACTIVITY_TYPES),
    }


def _with_types(frame: pd.DataFrame, types: dict[str, str]) -> pd.DataFrame:
    """Return the columns of a table that have a type here, converted to that type."""
    return frame[list(types)].astype(types)


# Iterations.


def _recorded_iterations(
    gpu_events: GpuEvents,
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the number of the recorded iteration of each GPU event as text, or "", (g,)."""
    iterations = find_iterations(gpu_events.tree)
    index = iterations.of_gpu.copy()
    processes = np.unique(iterations.process)
    has_no_launch = ~gpu_events.tree.linked
    is_unknown = has_no_launch & (index == NONE)
    if len(processes) == 1 and is_unknown.any():
        # An event without a launch counts in the iteration in which it started on the GPU.
        start = gpu_events.start[is_unknown]
        process = np.full_like(start, processes[0], dtype=np.int64)
        index[is_unknown] = iteration_at(iterations.spans, process, start)
    names = iterations.numbers(index)
    return np.array(names, dtype=object)


def _iterations_by_optimizer(
    gpu_events: GpuEvents, exchange_kernels: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return iteration numbers for a trace without recorded iterations, from 1, as text, (g,).

    An iteration ends with a step of the optimizer. Several steps without a send or receive between
    them end the same iteration. All numbers are empty if no step separates sends and receives.

    Args:
        gpu_events: the GPU events of the trace.
        exchange_kernels: the kernels of sends and receives.
    """
    trace = gpu_events.trace
    names = np.full(len(gpu_events), "", dtype=object)
    step_ends = np.unique(trace.end_of(optimizer_steps(gpu_events)))
    steps_before = np.searchsorted(step_ends, launch_times(gpu_events))
    # The numbers of steps after which sends and receives follow, such as 0, 2 and 4 if each
    # iteration takes two steps. The position of an event's number among them is its iteration.
    steps_before_exchanges = np.unique(steps_before[exchange_kernels])
    if len(steps_before_exchanges) < 2:
        return names
    number = np.searchsorted(steps_before_exchanges, steps_before, side="right")
    names[:] = np.maximum(number, 1).astype("str")
    return names
