"""What the CPU did at each moment: data loading, optimizer, backward pass, operations, Python.

The activities are disjoint. A moment at which several of them run counts for the first of
`ACTIVITIES`: an operation of the optimizer is the optimizer's. Time of all threads of a process
counts once, so activities and `not recorded` add up to the wall time.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.intervals import covered

#: What PyTorch puts around fetching the next batch.
DATA_LOADER: Final = re.compile(r"enumerate\(DataLoader\)#")
#: The same as Python frames, where profilers record no annotation.
_DATA_LOADER_FRAME: Final = re.compile(
    r".*torch/utils/data/dataloader\.py\(\d+\): __next__$"
)
_OPTIMIZER: Final = re.compile(r"Optimizer\.(?:step|zero_grad)#")
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


class Activity(StrEnum):
    """What the CPU did."""

    DATA_LOADING = "data_loading"
    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    OPERATIONS = "other_operations"
    PYTHON = "python"
    NOT_RECORDED = "not_recorded"


class _Events(NamedTuple):
    """The events of one activity."""

    activity: Activity
    rows: Int64Array


def time_by_activity(
    trace: Trace,
    process: Int64Array,
    start: Int64Array,
    end: Int64Array,
) -> dict[Activity, Int64Array]:
    """Return how long the CPU did what in some windows, ns, (k,) for each activity.

    Args:
        trace: the trace.
        process: the process of each window, as in `Trace.process_of_thread`, (k,).
        start: ns since the trace's first event, (k,).
        end: likewise, (k,).
    """
    times = {activity: np.zeros(len(start), dtype=np.int64) for activity in Activity}
    for number in np.unique(process).tolist():
        in_process = np.flatnonzero(process == number)
        times_of_process = _time_in_process(
            trace=trace, process=number, start=start[in_process], end=end[in_process]
        )
        for activity, time in times_of_process.items():
            times[activity][in_process] = time
    return times


def _time_in_process(
    trace: Trace, process: int, start: Int64Array, end: Int64Array
) -> dict[Activity, Int64Array]:
    times = {}
    rows_so_far = np.empty(0, dtype=np.int64)
    time_so_far = np.zeros(len(start), dtype=np.int64)
    for activity, rows in events_of_activities(trace):
        is_of_process = trace.process_of_thread[trace.thread[rows]] == process
        rows_so_far = np.append(rows_so_far, rows[is_of_process])
        time = covered(
            start=trace.ts[rows_so_far],
            end=trace.end_of(rows_so_far),
            window_start=start,
            window_end=end,
        )
        times[activity] = time - time_so_far
        time_so_far = time
    times[Activity.NOT_RECORDED] = end - start - time_so_far
    return times


@cached_per_object
def events_of_activities(trace: Trace) -> list[_Events]:
    """Return the events of each recorded activity, in the order in which they count."""
    operations = trace.rows_of(EventKind.CPU_OP)
    ranges = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    frames = frames[_is_of_working_thread(trace, frames)]
    loading = [
        ranges[trace.named(trace.name[ranges], DATA_LOADER.match)],
        frames[trace.named(trace.name[frames], _DATA_LOADER_FRAME.match)],
    ]
    return [
        _Events(activity=Activity.DATA_LOADING, rows=np.concatenate(loading)),
        _Events(
            activity=Activity.OPTIMIZER,
            rows=ranges[trace.named(trace.name[ranges], _OPTIMIZER.match)],
        ),
        _Events(
            activity=Activity.BACKWARD,
            rows=operations[trace.named(trace.name[operations], _BACKWARD.match)],
        ),
        _Events(Activity.OPERATIONS, operations),
        _Events(Activity.PYTHON, frames),
    ]


def _is_of_working_thread(trace: Trace, rows: Int64Array) -> BoolArray:
    """Return which events are of threads that run operations.

    A thread that does nothing but wait in a Python frame, as those that pin memory do, works on
    nothing.
    """
    operations = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    works = np.zeros(len(trace.threads), dtype=bool)
    works[trace.thread[operations]] = True
    if not works.any():
        works[:] = True
    is_working: BoolArray = works[trace.thread[rows]]
    return is_working


def working_frames(trace: Trace) -> Int64Array:
    """Return the rows of the Python frames of threads that run operations."""
    return events_of_activities(trace)[-1].rows
