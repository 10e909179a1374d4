"""The causes of idle time, and intervals of idle time that have a cause.

`docs/how-to/idle-time.md` describes the causes for users. `classification` finds them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import BoolArray, Int64Array, IntArray, grouping
from tracelens_ext.trace.intervals import inside, outside


class Cause(StrEnum):
    """Why the GPU was idle, as it is named in tables and JSON."""

    SYNCHRONIZATION = "synchronization"
    """The launching thread waited for the GPU, or was catching up after such a wait."""
    HOST = "host"
    """The launching thread was doing other work, or was launching."""
    DEPENDENCY = "dependency"
    """The work was launched, but waited for other GPU work."""
    LAUNCH_OVERHEAD = "launch overhead"
    """The work was launched, and the GPU took this long to start it."""
    UNKNOWN = "unknown"
    """The work was launched, and nothing recorded shows why it did not start."""
    NOT_RECORDED = "not_recorded"
    """Events were dropped, or the work was launched before the recording began."""
    WARM_UP = "warm_up"
    """First use, compilation or graph capture: costs that are paid once."""
    EDGE = "edge"
    """Before the first event of a device, or after its last."""

    @property
    def code(self) -> int:
        """The number of the cause in arrays: its index in `CAUSES`."""
        return CAUSES.index(self.value)


CAUSES = tuple(cause.value for cause in Cause)


class IdleIntervals(NamedTuple):
    """The p intervals of idle time by track and time; those of a track do not overlap."""

    start: Int64Array  #: ns since the trace's first event, (p,)
    end: Int64Array  #: ns since the trace's first event, (p,)
    track: IntArray  #: the index of the stream or device that was idle, (p,)
    gap: IntArray  #: the gap that contains the interval, `NONE` for an edge, (p,)
    cause: IntArray  #: the code of a `Cause`, (p,)

    @property
    def duration(self) -> Int64Array:
        """The length of each interval, ns, (p,)."""
        return self.end - self.start

    def chosen(self, selected: BoolArray | IntArray) -> IdleIntervals:
        """Return the intervals that a mask or their indices select."""
        return IdleIntervals(
            start=self.start[selected],
            end=self.end[selected],
            track=self.track[selected],
            gap=self.gap[selected],
            cause=self.cause[selected],
        )

    def with_cause(self, cause: Cause) -> IdleIntervals:
        """Return the intervals, all with the same cause."""
        return self._replace(cause=np.full(len(self.gap), cause.code, dtype=np.int8))

    def split(self, window_start: Int64Array, window_end: Int64Array) -> SplitIntervals:
        """Split the intervals at windows of time, which are ascending and do not overlap."""
        start, end, interval, _ = inside(
            start=self.start,
            end=self.end,
            other_start=window_start,
            other_end=window_end,
        )
        inner = self.chosen(interval)._replace(start=start, end=end)
        start, end, interval = outside(
            start=self.start,
            end=self.end,
            other_start=window_start,
            other_end=window_end,
        )
        outer = self.chosen(interval)._replace(start=start, end=end)
        return SplitIntervals(inside=inner, outside=outer)


class SplitIntervals(NamedTuple):
    """The parts of idle intervals inside of windows of time, and outside of them."""

    inside: IdleIntervals
    outside: IdleIntervals


def joined_intervals(*parts: IdleIntervals) -> IdleIntervals:
    """Return the intervals of all parts, by track and time."""
    joined = IdleIntervals(
        start=np.concatenate([part.start for part in parts]),
        end=np.concatenate([part.end for part in parts]),
        track=np.concatenate([part.track for part in parts]),
        gap=np.concatenate([part.gap for part in parts]),
        cause=np.concatenate([part.cause for part in parts]),
    )
    return joined.chosen(np.lexsort((joined.start, joined.track)))


def time_by_cause(
    intervals: IdleIntervals, group: IntArray, group_count: int
) -> Int64Array:
    """Return the idle time of groups of intervals by cause, ns, (group_count, causes).

    Args:
        intervals: the intervals.
        group: the group of each interval, (p,).
        group_count: the number of groups.
    """
    # One sum per pair of a group and a cause makes the table.
    pair = group * len(CAUSES) + intervals.cause
    times = grouping.sums(
        group_index=pair,
        values=intervals.duration,
        group_count=group_count * len(CAUSES),
    )
    return times.reshape(group_count, len(CAUSES))
