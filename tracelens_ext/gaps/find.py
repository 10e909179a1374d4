"""Gaps: the idle time of a stream, or of a whole device, between successive GPU events.

A stream is (process, device, stream). Events of one stream that overlap count as one stretch of
work: a gap begins when the last of them has ended, and the event that ended last is the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.intervals import covered
from tracelens_ext.work.group_search import by_group_and_time, running_maximum
from tracelens_ext.work.lanes import find_lanes
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork
    from tracelens_ext.work.lanes import Lanes, Scope

#: Sums of gaps, ns, fit in 64 bits below this, 146 years; streams count one by one.
_MOST_IN_ALL = 2**62


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps of all lanes, k of them, by lane, then by time."""

    lanes: Lanes  #: the streams or devices
    lane: Int64Array  #: of each gap, an index into those, (k,)
    start: Int64Array  #: when the event before ended, ns since the trace's first event, (k,)
    end: Int64Array  #: when the event after started, (k,)
    before: Int64Array  #: the event that ended last, a place in `trace.gpu_rows`, (k,)
    after: Int64Array  #: the event that ended the gap, likewise, (k,)
    overlapped: Int64Array  #: how much of the gap other streams of the device were busy, ns, (k,)

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def duration(self) -> Int64Array:
        """Length of each gap, ns, always more than 0, (k,)."""
        return self.end - self.start

    def chosen(self, which: BoolArray | IntArray) -> Gaps:
        """Some of the gaps."""
        columns = [field.name for field in fields(self) if field.name != "lanes"]
        return replace(self, **{name: getattr(self, name)[which] for name in columns})


@once_for_each
def find_gaps(work: GpuWork, scope: Scope) -> Gaps:
    """The gaps between successive GPU events of each stream, or of each device.

    Args:
        work: the GPU events; all of them count, unlinked ones too.
        scope: as for `find_lanes`. The gaps of a device are what its timeline calls idle.

    Raises:
        TraceFormatError: together they are longer than 64 bits of ns hold.
    """
    lanes = find_lanes(work, scope)
    order = _in_order(lanes.of_gpu, work.start, work.end)
    lane, start = lanes.of_gpu[order], work.start[order]
    reach, last = running_maximum(lane, work.end[order])
    at = np.flatnonzero((lane[1:] == lane[:-1]) & (start[1:] > reach[:-1]))
    begins, ends, after = reach[at], start[at + 1], order[at + 1]
    if (ends - begins).sum(dtype=np.float64) >= _MOST_IN_ALL:
        path = work.trace.provenance.path
        raise TraceFormatError(
            path, "its GPU is idle for more than a century", "check the times of its GPU events"
        )
    overlapped = overlapped_time(work, after, begins, ends)
    return Gaps(lanes, lane[at], begins, ends, order[last[at]], after, overlapped)


def overlapped_time(
    work: GpuWork, event: Int64Array, start: Int64Array, end: Int64Array
) -> Int64Array:
    """How long the device of each GPU event is busy in a stretch of time, ns; all (k,)."""
    devices = find_lanes(work, "device")
    result = np.zeros(len(event), dtype=np.int64)
    for device in range(len(devices)):
        mine, here = devices.of_gpu == device, devices.of_gpu[event] == device
        result[here] = covered(work.start[mine], work.end[mine], start[here], end[here])
    return result


def _in_order(lane: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """By lane, start and end; there are few lanes."""
    order = by_group_and_time(lane, start)
    by_lane, begun = lane[order], start[order]
    together = (by_lane[1:] == by_lane[:-1]) & (begun[1:] == begun[:-1])
    if (together & (end[order[1:]] < end[order[:-1]])).any():
        return np.lexsort((end, start, lane))
    return order
