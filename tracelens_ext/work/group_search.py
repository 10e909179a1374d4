"""Look-ups among events that are sorted by group (a thread, a stream) and time.

Groups are few, so a loop over them costs nothing; within one of them numpy does the work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import stable_order
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray, Trace

#: How Python frames of a step of a serving engine end: vLLM's and SGLang's.
_ENGINE_STEP = re.compile(r".*: (?:execute_model|forward_batch_generation)$")


def by_group_and_time(group: IntArray, time: Int64Array) -> Int64Array:
    """The order by group, then by time. Traces are nearly sorted by time already."""
    order = np.argsort(time, kind="stable")
    return order[stable_order(group[order])]


def items_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """How many items, which are sorted by group and time, come before a group and time.

    That is the index of the first of the group that is not earlier, or of what would follow it.
    """
    result = np.empty(len(asked_group), dtype=np.int64)
    least = int(asked_group.min(initial=0))
    count = np.bincount(asked_group - least)
    present = np.flatnonzero(count)
    wanted = (present + least).astype(group.dtype)  # of another type, all groups were converted
    begins, ends = (np.searchsorted(group, wanted, side).tolist() for side in ("left", "right"))
    if len(present) == 1:
        result[:] = begins[0] + np.searchsorted(time[begins[0] : ends[0]], asked_time)
        return result
    bounds = np.cumsum(count[present])
    places = np.split(stable_order(asked_group - least), bounds)  # and what is left: nothing
    for begin, end, asked in zip(begins, ends, places, strict=False):
        result[asked] = begin + np.searchsorted(time[begin:end], asked_time[asked])
    return result


def last_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """The last item of a group that is earlier than a time, `NONE` without; as `items_before`."""
    at = items_before(group, time, asked_group, asked_time) - 1
    found = at >= 0
    found[found] = group[at[found]] == asked_group[found]
    return np.where(found, at, NONE)


def running_maximum(group: IntArray, values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The largest value so far within each group, and its place (the last of equals)."""
    place = np.arange(len(values))
    bounds = np.flatnonzero(np.diff(group)) + 1
    for begin, end in zip([0, *bounds], [*bounds, len(values)], strict=True):
        highest = np.maximum.accumulate(values[begin:end])
        place[begin:end][values[begin:end] < highest] = begin
        np.maximum.accumulate(place[begin:end], out=place[begin:end])
    return values[place], place


def outermost(group: IntArray, end: Int64Array) -> BoolArray:
    """Which ranges lie in no other of their group; they come by group, start and descending end."""
    keep: BoolArray = np.ones(len(group), dtype=bool)
    for number in np.unique(group).tolist():
        those = np.flatnonzero(group == number)
        reach = np.maximum.accumulate(end[those])
        keep[those[1:]] = end[those[1:]] > reach[:-1]
    return keep


def engine_frames(trace: Trace) -> Int64Array:
    """The rows of the outermost Python frames of an engine's steps, by thread and start.

    None where annotations name the steps: where one is around a frame, and not twice as long.
    """
    rows = trace.rows_of(EventKind.PYTHON_FUNCTION)
    rows = rows[trace.named(trace.name[rows], _ENGINE_STEP.match)]
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], trace.thread[rows]))
    rows = rows[order]
    rows = rows[outermost(trace.thread[rows].astype(np.int64), trace.end_of(rows))]
    marks = trace.rows_of(EventKind.USER_ANNOTATION)
    marks = marks[by_group_and_time(trace.thread[marks], trace.ts[marks])]
    if len(marks) and len(rows):
        threads, times = trace.thread[marks].astype(np.int64), trace.ts[marks]
        at = last_before(threads, times, trace.thread[rows].astype(np.int64), trace.ts[rows] + 1)
        around = (at != NONE) & (trace.end_of(marks[at]) >= trace.end_of(rows))
        if (around & (trace.dur[marks[at]] < 2 * trace.dur[rows])).any():
            return rows[:0]
    found: Int64Array = rows
    return found
