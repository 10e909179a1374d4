"""Intervals of time that do not overlap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import BoolArray, Int64Array
from tracelens_ext.trace.intervals import covered, outside, union


class Intervals(NamedTuple):
    """Disjoint intervals, ascending, ns."""

    start: Int64Array
    end: Int64Array

    @classmethod
    def joined(cls, start: Int64Array, end: Int64Array) -> Intervals:
        """Return the union of intervals that may overlap."""
        parts = union(start, end)
        return cls(parts.start, parts.end)

    @classmethod
    def of_rows(cls, rows: pd.DataFrame) -> Intervals:
        """Return the union of the rows of a table with `start` and `end`."""
        start = whole_numbers(rows, "start")
        end = whole_numbers(rows, "end")
        return cls.joined(start, end)

    @property
    def length(self) -> int:
        """The total length of all intervals, ns."""
        lengths = self.end - self.start
        return int(lengths.sum())

    def time_within(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return how much of each window the intervals cover, ns, (n,)."""
        time: Int64Array = covered(
            start=self.start,
            end=self.end,
            window_start=start,
            window_end=end,
        )
        return time

    def selected(self, is_chosen: BoolArray) -> Intervals:
        """Return the intervals that a mask selects."""
        return Intervals(start=self.start[is_chosen], end=self.end[is_chosen])

    def not_empty(self) -> Intervals:
        """Return the intervals that are longer than 0 ns."""
        return self.selected(self.end > self.start)

    def in_order(self) -> Intervals:
        """Return the intervals that are longer than 0 ns, in order of start."""
        parts = self.not_empty()
        order = np.argsort(parts.start, kind="stable")
        return Intervals(start=parts.start[order], end=parts.end[order])

    def clipped(self, start: int, end: int) -> Intervals:
        """Return the parts of the intervals that lie in a window."""
        begins_before = self.start < end
        ends_after = self.end > start
        inside = self.selected(begins_before & ends_after)
        return Intervals(
            start=np.maximum(inside.start, start),
            end=np.minimum(inside.end, end),
        )

    def before(self, end: int) -> Intervals:
        """Return the parts of the intervals that lie before an instant."""
        return self.clipped(np.iinfo(np.int64).min, end)

    def without(self, others: Intervals) -> Intervals:
        """Return the parts of the intervals that lie outside other intervals.

        The other intervals may overlap.
        """
        excluded = Intervals.joined(others.start, others.end)
        parts = outside(
            start=self.start,
            end=self.end,
            other_start=excluded.start,
            other_end=excluded.end,
        )
        return Intervals(start=parts.start, end=parts.end).not_empty()


def window(start: int, end: int) -> Intervals:
    """Return a single interval."""
    return Intervals(
        start=np.array([start], dtype=np.int64),
        end=np.array([end], dtype=np.int64),
    )
