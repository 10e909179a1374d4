"""A change of a recorded program: other durations, delays and host time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import DisjointIntervals, union
from tracelens_ext.trace.lookup import values_at

#: A time after all others.
_AFTER_ALL: Final = 2**62


class Scaled(NamedTuple):
    """Intervals of a clock whose time is multiplied. Times are ns since the window's start."""

    start: Int64Array
    end: Int64Array
    factor: float  #: what the time of the intervals is multiplied by


class Curve(NamedTuple):
    """The changed time of a clock by its recorded time, with straight lines between k points."""

    recorded: Int64Array  #: recorded time, ns since the window's start, ascending, (k,)
    changed: Float64Array  #: changed time, ns since the window's start, (k,)

    def time_between(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return how long recorded intervals take in changed time, ns.

        Starts and ends are rounded before they are subtracted, so that adjacent intervals add up.
        """
        changed_end = np.rint(np.interp(end, self.recorded, self.changed))
        changed_start = np.rint(np.interp(start, self.recorded, self.changed))
        return changed_end.astype(np.int64) - changed_start.astype(np.int64)


@dataclass(frozen=True, eq=False)
class DelaySavings:
    """By how much delays of a program become shorter, ns. The number 0 stands for no change."""

    latency: Int64Array | int = 0  #: from the call of each node to its start, (n,)
    #: from the end of GPU work to the return of each block, (b,)
    tail: Int64Array | int = 0
    standstill: Int64Array | int = 0  #: standstill of the device before each node, (n,)
    gap: Int64Array | int = 0  #: gap on the stream before each node, (n,)

    def plus(self, other: DelaySavings) -> DelaySavings:
        """Return the sum of the savings of two changes."""
        return DelaySavings(
            latency=self.latency + other.latency,
            tail=self.tail + other.tail,
            standstill=self.standstill + other.standstill,
            gap=self.gap + other.gap,
        )

    def halved(self) -> DelaySavings:
        """Return half of the savings, rounded down."""
        return DelaySavings(
            latency=self.latency // 2,
            tail=self.tail // 2,
            standstill=self.standstill // 2,
            gap=self.gap // 2,
        )


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a program. The default of each field changes nothing."""

    duration: Int64Array | None = None  #: duration of each node, ns; None: as recorded
    #: the scaled intervals of each clock; empty: all clocks run as recorded
    host: Sequence[Sequence[Scaled]] = ()
    gap_factor: float = 1.0  #: what gaps are multiplied by
    least_wall: int = 0  #: the least wall time, ns
    delays: DelaySavings = field(default_factory=DelaySavings)
    #: blocks that do not wait, so that the CPU runs ahead, (b,); None: no block
    nonblocking: BoolArray | None = None


def host_curve(scaled: Sequence[Scaled], frozen: DisjointIntervals) -> Curve | None:
    """Return the time of a clock with some scaled intervals; None without any.

    If intervals overlap, their factors multiply. Frozen intervals take their recorded time.
    """
    if not scaled:
        return None
    edges = [np.array([0, _AFTER_ALL]), frozen.start, frozen.end]
    for intervals in scaled:
        edges.append(intervals.start)
        edges.append(intervals.end)
    recorded = distinct(np.concatenate(edges))
    factor = np.ones(len(recorded))  # of the time from each edge to the next one
    for intervals in scaled:
        is_inside = _is_inside(recorded, union(intervals.start, intervals.end))
        factor[is_inside] *= intervals.factor
    factor[_is_inside(recorded, frozen)] = 1.0
    changed = np.zeros(len(recorded))
    changed[1:] = np.cumsum(np.diff(recorded) * factor[:-1])
    return Curve(recorded, changed)


def _is_inside(time: Int64Array, intervals: DisjointIntervals) -> BoolArray:
    """Return which times lie in an interval; its start does, its end does not."""
    begun = np.searchsorted(intervals.start, time, "right")
    last = begun - 1
    end_of_last = values_at(intervals.end, last)
    is_inside: BoolArray = time < end_of_last
    return is_inside
