"""What a finding claims: stretches of time of devices, which nothing else claims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.intervals import union
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array, Int64Array


class Intervals(NamedTuple):
    """Claimed stretches of time, apart on each device, i of them."""

    start: Int64Array  #: ns since the trace's first event
    end: Int64Array
    lane: Int64Array  #: the device, an index into `Claim.devices`
    gap: Int64Array  #: the gap that it is a part of, `NONE` where a GPU event runs
    event: Int64Array  #: the GPU event that runs, `NONE` in a gap
    thread: Int64Array  #: the host thread that a gap waits for, `NONE` for an event, or if unknown


@dataclass(frozen=True, eq=False)
class Claim:
    """Wall time that a finding claims. Sums are means over all devices that work."""

    intervals: Intervals
    devices: list[int | str]  #: what those devices are called
    wall_start: int  #: ns since the trace's first event

    @property
    def ns(self) -> Float64Array:
        """What each interval is of the mean over the devices, (i,)."""
        return (self.intervals.end - self.intervals.start) / len(self.devices)

    @property
    def saving_ns(self) -> float:
        """All of it."""
        return float((self.intervals.end - self.intervals.start).sum()) / len(self.devices)

    @property
    def ns_of_devices(self) -> Int64Array:
        """What is claimed of each device."""
        result = np.zeros(len(self.devices), dtype=np.int64)
        np.add.at(result, self.intervals.lane, self.intervals.end - self.intervals.start)
        return result

    @property
    def gaps(self) -> Int64Array:
        """The gaps of the devices of which it has something, (j,)."""
        found: Int64Array = np.unique(self.intervals.gap[self.intervals.gap != NONE])
        return found

    @cached_property
    def _by_event(self) -> tuple[Int64Array, Float64Array]:
        busy = self.intervals.event != NONE
        events, number = np.unique(self.intervals.event[busy], return_inverse=True)
        return events, np.bincount(number, self.ns[busy], len(events)).astype(np.float64)

    @property
    def events(self) -> Int64Array:
        """The GPU events of which it has something, (j,)."""
        return self._by_event[0]

    @property
    def event_ns(self) -> Float64Array:
        """What it has of each of them, (j,)."""
        return self._by_event[1]

    @property
    def idle_ns(self) -> float:
        """What of it is idle time."""
        return float(self.ns[self.intervals.gap != NONE].sum())

    def as_records(self) -> list[dict[str, object]]:
        """Its stretches of time by device, those that touch in one; ns from the wall's start."""
        records: list[dict[str, object]] = []
        for lane, device in enumerate(self.devices):
            mine = self.intervals.lane == lane
            start, end = union(self.intervals.start[mine], self.intervals.end[mine])
            times = zip((start - self.wall_start).tolist(), end.tolist(), strict=True)
            records += [
                {"device": device, "start_ns": first, "end_ns": last - self.wall_start}
                for first, last in times
            ]
        return records

    def __add__(self, other: Claim) -> Claim:
        """Both claims, which have nothing in common."""
        both = zip(self.intervals, other.intervals, strict=True)
        intervals = Intervals(*(np.concatenate(columns) for columns in both))
        return Claim(intervals, self.devices, self.wall_start)
