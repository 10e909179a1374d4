"""NVTX ranges projected onto the GPU: from the first to the last GPU event launched inside.

As the report `nvtx_gpu_proj_trace` of Nsight Systems has it, a GPU event is inside a range when
the call that launched it is, on the range's own thread; a range that launches nothing has no
projection. A range of a process that drives several devices has one projection on each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import NONE
from tracelens_ext.work.group_search import by_group_and_time, items_before
from tracelens_ext.work.grouping import number_groups

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray, Trace


@dataclass(frozen=True)
class ProjectedRanges:
    """Projections of ranges, k of them, by device, then in the order of the ranges."""

    row: Int64Array  #: the range, a row of the trace, (k,)
    device: Int64Array  #: the device, (k,)
    start: Int64Array  #: start of the first GPU event, ns since the trace's first event, (k,)
    end: Int64Array  #: end of the last GPU event, likewise, (k,)
    count: Int64Array  #: GPU events launched inside, (k,)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def duration(self) -> Int64Array:
        """From the first start to the last end, ns, (k,)."""
        return self.end - self.start


def project_ranges(trace: Trace, launch_of_gpu: Int64Array, rows: IntArray) -> ProjectedRanges:
    """Project ranges onto the devices that they started work on.

    Args:
        trace: the events.
        launch_of_gpu: row of each GPU event's launch, `NONE` without one, as `linking.link` and
            `CallTree` give it, (g,).
        rows: the ranges, host events of the trace, in any order; they may overlap.
    """
    linked = np.flatnonzero(launch_of_gpu != NONE)
    device = trace.device[linked]
    columns: list[list[Int64Array]] = [[np.empty(0, dtype=np.int64)] for _ in range(5)]
    for number in np.unique(device).tolist():
        events = linked[device == number]
        launch = launch_of_gpu[events]
        order = by_group_and_time(trace.thread[launch], trace.ts[launch])
        events, launch = events[order], launch[order]
        thread, moment = trace.thread[launch], trace.ts[launch]
        first, last = (
            items_before(thread, moment, trace.thread[rows], times)
            for times in (trace.ts[rows], trace.end_of(rows))
        )
        some = np.flatnonzero(last > first)
        first, last = first[some], last[some]
        gpu = trace.gpu_rows[events]
        start = _reduced(np.minimum, trace.ts[gpu], first, last)
        end = _reduced(np.maximum, trace.end_of(gpu), first, last)
        of_device = (rows[some], np.full(len(some), number), start, end, last - first)
        for column, part in zip(columns, of_device, strict=True):
            column.append(part.astype(np.int64))
    return ProjectedRanges(*map(np.concatenate, columns))


def _reduced(
    function: np.ufunc, values: Int64Array, first: Int64Array, last: Int64Array
) -> Int64Array:
    """A function of each slice of values, `first` inclusive, `last` exclusive; none is empty.

    Slices are taken in order of their starts, so that what lies between two is looked at once.
    """
    if not len(first):
        return np.empty(0, dtype=np.int64)
    # Equal slices are computed once: a thousand ranges may hold the same launches.
    chosen, code = number_groups([first, last])
    bounds = np.column_stack((first[chosen], last[chosen])).ravel()
    padded = np.append(values, values[-1:])  # the end of the last slice must be an index too
    result: Int64Array = function.reduceat(padded, bounds)[::2][code]
    return result
