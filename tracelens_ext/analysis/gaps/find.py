"""Gaps: the idle time of a stream, or of a whole device, between successive GPU events.

A stream is (process, device, stream). Events of one stream that overlap count as one stretch of
work: a gap begins when the last of them has ended, and the event that ended last is the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_ext.analysis.codes import dense_codes, running_maximum
from tracelens_ext.analysis.memoize import once_for_each
from tracelens_ext.intervals import union
from tracelens_ext.ordering import stable_order

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.trace import Int64Array

    BoolArray = npt.NDArray[np.bool_]
    IntArray = npt.NDArray[np.integer]

Scope = Literal["stream", "device"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """What is idle or busy as a whole: the streams of a trace, or its devices, p of them.

    Attributes:
        scope: which of the two.
        first: the first GPU event of each, (p,).
        process: the process of each as the trace spells it, (p,).
        device: its number, `NONE` where the trace does not say, (p,).
        stream: likewise; `NONE` for a whole device, (p,).
        of_gpu: the lane of each GPU event, (g,).
    """

    scope: Scope
    first: Int64Array
    process: list[int | str]
    device: Int64Array
    stream: Int64Array
    of_gpu: Int64Array

    def __len__(self) -> int:
        return len(self.process)


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps of all lanes, k of them, by lane, then by time.

    Attributes:
        lanes: the streams or devices.
        lane: of each gap, an index into those, (k,).
        start: when the event before ended, ns since the trace's first event, (k,).
        end: when the event after started, (k,).
        before: the event that ended last, a place in `trace.gpu_rows`, (k,).
        after: the event that ended the gap, likewise, (k,).
        overlapped: how much of the gap other streams of the device were busy, ns, (k,).
    """

    lanes: Lanes
    lane: Int64Array
    start: Int64Array
    end: Int64Array
    before: Int64Array
    after: Int64Array
    overlapped: Int64Array

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def duration(self) -> Int64Array:
        """Length of each gap, ns, always more than 0, (k,)."""
        return self.end - self.start

    def chosen(self, which: BoolArray | IntArray) -> Gaps:
        """Some of the gaps."""
        return Gaps(
            self.lanes,
            self.lane[which],
            self.start[which],
            self.end[which],
            self.before[which],
            self.after[which],
            self.overlapped[which],
        )


def find_lanes(work: GpuWork, scope: Scope = "stream") -> Lanes:
    """The streams, or the devices, on which GPU events ran.

    Args:
        work: the GPU events.
        scope: `stream`, or `device` for all streams of a device taken together.
    """
    return _lanes(work, scope)


@once_for_each
def _lanes(work: GpuWork, scope: Scope) -> Lanes:
    trace = work.trace
    process = trace.process_of_thread[trace.thread[work.rows]].astype(np.int64)
    keys: list[IntArray] = [process, trace.device]
    if scope == "stream":
        keys.append(trace.stream)
    elif trace.conventions.gpu_by_process:
        keys = [trace.device]  # two processes may share one
    first, code = dense_codes(keys)
    none = np.full(len(first), -1, dtype=np.int64)
    return Lanes(
        scope=scope,
        first=first,
        process=processes_of(work, first),
        device=trace.device[first],
        stream=trace.stream[first] if scope == "stream" else none,
        of_gpu=code,
    )


def processes_of(work: GpuWork, events: Int64Array) -> list[int | str]:
    """The processes of some GPU events, as the trace spells them."""
    trace = work.trace
    return [trace.threads[i][0] for i in trace.thread[work.rows[events]].tolist()]


def find_gaps(work: GpuWork, scope: Scope = "stream") -> Gaps:
    """The gaps between successive GPU events of each stream, or of each device.

    Args:
        work: the GPU events; all of them count, unlinked ones too.
        scope: as for `find_lanes`. The gaps of a device are what its timeline calls idle.
    """
    return _gaps(work, scope)


@once_for_each
def _gaps(work: GpuWork, scope: Scope) -> Gaps:
    lanes = find_lanes(work, scope)
    order = _in_order(lanes.of_gpu, work.start, work.end)
    lane, start = lanes.of_gpu[order], work.start[order]
    reach, last = running_maximum(lane, work.end[order])
    follows = (lane[1:] == lane[:-1]) & (start[1:] > reach[:-1])
    at = np.flatnonzero(follows)
    gaps = Gaps(
        lanes=lanes,
        lane=lane[at],
        start=reach[at],
        end=start[at + 1],
        before=order[last[at]],
        after=order[at + 1],
        overlapped=np.zeros(len(at), dtype=np.int64),
    )
    if scope == "stream":
        gaps.overlapped[:] = _busy_elsewhere(work, gaps)
    return gaps


def _in_order(lane: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """By lane, start and end. Traces are nearly sorted by start already, and have few lanes."""
    order = np.argsort(start, kind="stable")
    order = order[stable_order(lane[order])]
    by_lane, begun = lane[order], start[order]
    together = (by_lane[1:] == by_lane[:-1]) & (begun[1:] == begun[:-1])
    if (together & (end[order[1:]] < end[order[:-1]])).any():
        return np.lexsort((end, start, lane))
    return order


def _busy_elsewhere(work: GpuWork, gaps: Gaps) -> Int64Array:
    """How much of each gap of a stream its device was busy, ns, (k,): on other streams, then."""
    lanes = find_lanes(work, "device")
    devices = lanes.of_gpu
    of_gap = devices[gaps.after]
    result = np.zeros(len(gaps), dtype=np.int64)
    for device in range(len(lanes)):
        mine, here = devices == device, of_gap == device
        first, last = union(work.start[mine], work.end[mine])
        length = np.concatenate(([0], np.cumsum(last - first)))

        def busy_until(
            time: Int64Array,
            first: Int64Array = first,
            last: Int64Array = last,
            length: Int64Array = length,
        ) -> Int64Array:
            at = np.searchsorted(first, time, side="right")
            beyond = np.maximum(last[np.maximum(at, 1) - 1] - time, 0)
            return np.where(at > 0, length[at] - beyond, 0)

        result[here] = busy_until(gaps.end[here]) - busy_until(gaps.start[here])
    return result
