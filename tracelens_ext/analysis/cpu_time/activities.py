"""CPU time by activity: data loading, optimizer, backward pass, other operations, Python.

Activities do not overlap. When events of several activities run at the same time, the time counts
for the activity that comes first in `Activity`: while an operation runs within an optimizer step,
the time belongs to `OPTIMIZER`. Time during which several threads of a process are busy counts
once. The activities, with `NOT_RECORDED`, therefore add up to the wall time of the process.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.intervals import covered

#: The annotation that PyTorch records around fetching the next batch.
DATA_LOADER: Final = re.compile(r"enumerate\(DataLoader\)#")
#: The Python frame that fetches the next batch, for profilers that record no annotation.
_DATA_LOADER_FRAME: Final = re.compile(
    r".*torch/utils/data/dataloader\.py\(\d+\): __next__$"
)
_OPTIMIZER: Final = re.compile(r"Optimizer\.(?:step|zero_grad)#")
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


class Activity(StrEnum):
    """What the CPU was doing; of activities at the same time, the first one counts."""

    DATA_LOADING = "data_loading"
    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    OPERATIONS = "other_operations"
    PYTHON = "python"
    NOT_RECORDED = "not_recorded"


class ActivityEvents(NamedTuple):
    """The events of one activity."""

    activity: Activity
    rows: Int64Array  #: rows of the trace


def time_by_activity(
    trace: Trace,
    process: Int64Array,
    start: Int64Array,
    end: Int64Array,
) -> dict[Activity, Int64Array]:
    """Return the time of each activity within each of k windows of time.

    Args:
        trace: the trace.
        process: the process of each window, as in `Trace.process_of_thread`, (k,).
        start: the start of each window, ns since the trace's first event, (k,).
        end: the end of each window, ns since the trace's first event, (k,).

    Returns:
        For each activity, its time in each window, ns, (k,).
    """
    times = {activity: np.zeros(len(start), dtype=np.int64) for activity in Activity}
    for process_index in np.unique(process).tolist():
        windows = np.flatnonzero(process == process_index)
        times_of_process = _time_in_process(
            trace=trace,
            process=process_index,
            start=start[windows],
            end=end[windows],
        )
        for activity, time in times_of_process.items():
            times[activity][windows] = time
    return times


def _time_in_process(
    trace: Trace, process: int, start: Int64Array, end: Int64Array
) -> dict[Activity, Int64Array]:
    """Return the time of each activity within windows of one process, ns, (k,).

    The activities are added one by one. The time of an activity is the time by which its events
    extend the union of the events of all activities before it.
    """
    times = {}
    added_rows = np.empty(0, dtype=np.int64)
    previous_union = np.zeros(len(start), dtype=np.int64)
    for activity, rows in events_by_activity(trace):
        is_of_process = trace.process_of_thread[trace.thread[rows]] == process
        added_rows = np.append(added_rows, rows[is_of_process])
        union = covered(
            start=trace.ts[added_rows],
            end=trace.end_of(added_rows),
            window_start=start,
            window_end=end,
        )
        times[activity] = union - previous_union
        previous_union = union
    times[Activity.NOT_RECORDED] = end - start - previous_union
    return times


@cached_per_object
def events_by_activity(trace: Trace) -> list[ActivityEvents]:
    """Return the events of each activity except `NOT_RECORDED`, in the order of `Activity`."""
    operations = trace.rows_of(EventKind.CPU_OP)
    ranges = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    frames = frames[_is_on_working_thread(trace, frames)]
    loading_ranges = ranges[trace.named(trace.name[ranges], DATA_LOADER.match)]
    is_loading = trace.named(trace.name[frames], _DATA_LOADER_FRAME.match)
    loading_frames = frames[is_loading]
    optimizer_ranges = ranges[trace.named(trace.name[ranges], _OPTIMIZER.match)]
    is_backward = trace.named(trace.name[operations], _BACKWARD.match)
    return [
        ActivityEvents(
            activity=Activity.DATA_LOADING,
            rows=np.append(loading_ranges, loading_frames),
        ),
        ActivityEvents(Activity.OPTIMIZER, optimizer_ranges),
        ActivityEvents(Activity.BACKWARD, operations[is_backward]),
        ActivityEvents(Activity.OPERATIONS, operations),
        ActivityEvents(Activity.PYTHON, frames),
    ]


def _is_on_working_thread(trace: Trace, rows: Int64Array) -> BoolArray:
    """Return a mask of the events on threads that run operations or annotations.

    Other threads, such as the one that pins memory for a data loader, wait in a Python frame all
    the time. In a trace without any operation or annotation, every thread counts as working.
    """
    ranges = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    is_working = np.zeros(len(trace.threads), dtype=bool)
    is_working[trace.thread[ranges]] = True
    if not is_working.any():
        is_working[:] = True
    is_on_working_thread: BoolArray = is_working[trace.thread[rows]]
    return is_on_working_thread


def working_frames(trace: Trace) -> Int64Array:
    """Return the rows of the Python frames on threads that run operations or annotations."""
    python = events_by_activity(trace)[-1]
    return python.rows
