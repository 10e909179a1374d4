"""Idle time in which the GPU waits for the CPU: the shapes of gaps, and what the CPU does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.idle_time.cpu_activity import (
    KINDS_OF_COLUMN,
    HostColumn,
    HostIntervals,
    event_labels,
    innermost_during,
)
from tracelens_ext.analysis.idle_time.shapes import (
    SHAPES,
    GapShapes,
    RecurringPause,
    Shape,
    shapes_of_gaps,
)
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.finding import Claim, Evidence
from tracelens_ext.findings.idle_places import time_in_compiled_calls
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS, Int64Array
from tracelens_ext.trace.grouping import sums

#: Kinds of CPU events, the most informative first.
_COLUMNS: Final[tuple[HostColumn, ...]] = ("python_frame", "host_op", "host_call")
#: Annotations around everything, which tell nothing about a gap.
_IGNORED: Final = ("ProfilerStep#",)
_LONGEST_NAMED: Final = 3
#: A pause leads from this share of the claim on; long gaps do from half of it on.
_PAUSE_SHARE: Final = 1 / 3
_MOST: Final = 0.5
#: More gaps than these are not told by their number and lengths alone.
_MOST_FEW_GAPS: Final = 20


@dataclass(frozen=True)
class Lead:
    """The gaps that the title of a finding is about.

    Attributes:
        variant: the variant of the text; empty if most of the time is in short gaps.
        words: the gaps in words, such as `3 gaps of 2.3 ms`.
        share: the share of the claim in these gaps.
    """

    variant: str = ""
    words: str = ""
    share: float = 0.0


class ShapedClaim:
    """Claimed idle time by the shape of the gaps that contain it.

    Args:
        inspection: the inspection of the trace.
        claim: the idle time, i intervals.
    """

    def __init__(self, inspection: Inspection, claim: Claim) -> None:
        self._inspection = inspection
        self._gpu_events = inspection.gpu_events
        self._claim = claim
        intervals = claim.intervals
        self._length: Int64Array = intervals.end - intervals.start
        self.shapes: GapShapes = shapes_of_gaps(inspection.gpu_events)
        self._gap_count = len(self.shapes.shape)
        #: the claimed time of each gap, ns, (k,)
        self.ns_of_gap: Int64Array = sums(
            group_index=intervals.gap, values=self._length, group_count=self._gap_count
        )

    @cached_property
    def ms_by_shape(self) -> dict[str, float]:
        """The claimed time of each shape that occurs, the mean over the devices, ms."""
        gap = self._claim.intervals.gap
        shape = self.shapes.shape[gap]
        ns_of_shapes = np.bincount(shape, self._claim.ns, len(SHAPES))
        ms_of_shapes = ns_of_shapes.astype(np.float64) / NS_PER_MS
        by_shape = zip(SHAPES, ms_of_shapes.tolist(), strict=True)
        return {name: shape_ms for name, shape_ms in by_shape if shape_ms}

    def lead(self) -> Lead:
        """Return what leads: a pause, a few long gaps, or the end of the recording."""
        for pause in self.shapes.pauses[:1]:
            share = self._share_of(pause.gaps)
            if share >= _PAUSE_SHARE:
                words = _pause_in_words(pause)
                return Lead(variant="pauses", words=words, share=share)
        tail = np.flatnonzero(self.shapes.shape == Shape.TAIL.code)
        share = self._share_of(tail)
        if share >= _MOST:
            words = self._gaps_in_words(tail)
            return Lead(variant="tail", words=words, share=share)
        long_gaps = np.flatnonzero(self.shapes.shape != Shape.SHORT.code)
        long_gaps = long_gaps[self.ns_of_gap[long_gaps] > 0]
        large = self._similar_to_longest(long_gaps)
        for gaps in (large, long_gaps):
            share = self._share_of(gaps)
            if share >= _MOST:
                words = self._gaps_in_words(gaps)
                return Lead(variant="few", words=words, share=share)
        return Lead()

    def _share_of(self, gaps: Int64Array) -> float:
        """Return the share of the claimed time that is in some gaps."""
        total_ns = max(int(self.ns_of_gap.sum()), 1)
        ns = int(self.ns_of_gap[gaps].sum())
        return ns / total_ns

    def _similar_to_longest(self, gaps: Int64Array) -> Int64Array:
        """Return the gaps with at least a tenth of the longest gap's time."""
        longest = int(self.ns_of_gap[gaps].max(initial=0))
        return gaps[10 * self.ns_of_gap[gaps] >= longest]

    def _gaps_in_words(self, gaps: Int64Array) -> str:
        """Return `1 gap of 2.0 ms`, or `3 gaps of 1.2 to 2.0 ms`."""
        lengths_ms = self.ns_of_gap[gaps] / NS_PER_MS
        shortest_ms = float(lengths_ms.min())
        longest_ms = float(lengths_ms.max())
        lengths = lengths_in_words(shortest_ms, longest_ms)
        if len(gaps) == 1:
            return f"1 gap of {lengths}"
        return f"{len(gaps):,} gaps of {lengths}"

    def longest(self) -> list[Evidence]:
        """Return the three longest gaps: when each begins, and what the CPU does in it."""
        longest_first = np.argsort(-self.ns_of_gap, kind="stable")
        gaps = longest_first[:_LONGEST_NAMED]
        gaps = gaps[self.ns_of_gap[gaps] > 0]
        begin = classify_gaps(self._gpu_events, "device").gaps.start[gaps]
        begin_ms = (begin - self._inspection.wall.start) / NS_PER_MS
        named = zip(gaps.tolist(), begin_ms.tolist(), self._cpu_in(gaps), strict=True)
        return [
            Evidence(
                what=f"long gap at {start_ms:,.1f} ms, {activity}",
                value=float(self.ns_of_gap[gap]) / NS_PER_MS,
                unit="ms",
                see="gaps",
            )
            for gap, start_ms, activity in named
        ]

    def _cpu_in(self, gaps: Int64Array) -> list[str]:
        """Return what the CPU does in most of each gap, in words."""
        classified = classify_gaps(self._gpu_events, "device")
        thread = self._inspection.wall.threads_of_gaps.waited_for[gaps]
        times = HostIntervals(
            thread=thread,
            start=classified.gaps.start[gaps],
            end=classified.gaps.end[gaps],
        )
        activities = ["nothing recorded"] * len(gaps)
        calls = time_in_compiled_calls(self._inspection, times.start, times.end)
        for name, ns in calls.items():
            is_most = ns > _MOST * (times.end - times.start)
            for position in np.flatnonzero(is_most).tolist():
                activities[position] = f"in {name}"
        for column in reversed(_COLUMNS):
            rows = innermost_during(
                trace=self._gpu_events.trace,
                kinds=KINDS_OF_COLUMN[column],
                intervals=times,
                ignored=_IGNORED,
            )
            code, labels = event_labels(self._gpu_events.trace, rows)
            names = [labels[number] for number in code.tolist()]
            activities = [
                f"in {name}" if name else other
                for name, other in zip(names, activities, strict=True)
            ]
        return activities


def lengths_in_words(shortest_ms: float, longest_ms: float) -> str:
    """Return `2.0 ms`, or `1.2 to 2.0 ms`."""
    shortest = ms_text(shortest_ms)
    longest = ms_text(longest_ms)
    if shortest == longest:
        return longest
    return f"{shortest.removesuffix(' ms')} to {longest}"


def _pause_in_words(pause: RecurringPause) -> str:
    """Return `13 pauses of 40.6 to 59.5 ms, every 148.0 ms`, and what comes next."""
    lengths = lengths_in_words(pause.shortest_ms, pause.longest_ms)
    words = f"{len(pause.gaps):,} pauses of {lengths}"
    if pause.between_iterations:
        return f"{words} between iterations"
    words += f", every {ms_text(pause.period_ms)}"
    if pause.followed_by:
        words += f" before {simple_name(pause.followed_by)}"
    return words
