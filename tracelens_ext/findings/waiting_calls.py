"""The calls in which the CPU waited for the GPU: their places, frequency, and awaited copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time.gpu_calls import blocking_calls
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.findings.attribution import frames_around, ranked
from tracelens_ext.findings.finding import Claim, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.transfer_facts import TO_DEVICE, copied_bytes
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents, pageable_copies
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import nearest_marked
from tracelens_ext.trace.sorted_groups import last_before

#: Waits have a period only if a thread has at least this many of them.
_FEWEST_FOR_PERIOD: Final = 3
#: Waits are regular if the 80th percentile of the times between them is at most this times the
#: 20th.
_REGULAR_FACTOR: Final = 2.0
#: At most this many operations around a wait, such as `aten::to`, are taken for wrappers.
_MOST_WRAPPERS: Final = 8


@dataclass(frozen=True)
class AwaitedCopies:
    """The copies that some calls wait for, if most of the calls wait for a copy."""

    count: int = 0  #: number of copies; 0 if most calls wait for other work
    usual_bytes: float | None = None  #: the most common size; None: not recorded
    to_device: bool = False  #: True if most copies go to the device
    from_pageable: bool = False  #: True if most come from, or go to, pageable memory

    @property
    def in_words(self) -> str:
        """Return ` for 8-byte copies from pageable memory`, or nothing."""
        if not self.count:
            return ""
        size = ""
        if self.usual_bytes is not None:
            size = f"{self.usual_bytes:,.0f}-byte "
        direction = "from"
        if not self.to_device:
            direction = "to"
        memory = ""
        if self.from_pageable:
            memory = f" {direction} pageable memory"
        return f" for {size}copies{memory}"


class WaitingCalls:
    """The calls that waited for the GPU during, or just before, claimed idle time.

    Attributes:
        calls: the rows of the w calls, ascending.
        ns: the idle time of each call, the mean over the devices, (w,).
        during_ms: the part of the idle time during the calls.

    Args:
        inspection: the inspection of the trace.
        claim: idle time caused by synchronization, i intervals.
    """

    def __init__(self, inspection: Inspection, claim: Claim) -> None:
        self._inspection = inspection
        self._gpu_events: GpuEvents = inspection.gpu_events
        trace = self._gpu_events.trace
        call = self._call_of_intervals(claim)
        has_call = call != NONE
        known_call = call[has_call]
        self.calls = distinct(known_call)
        number = np.searchsorted(self.calls, known_call)
        self.ns = np.bincount(number, claim.ns[has_call], len(self.calls))
        ended = values_at(trace.ts, call) + values_at(trace.dur, call)
        is_during = claim.intervals.start < ended
        is_during &= has_call
        during_ns = float(claim.ns[is_during].sum())
        self.during_ms = during_ns / NS_PER_MS

    def _call_of_intervals(self, claim: Claim) -> Int64Array:
        """Return the call during or after which each interval is, (i,); `NONE` if unknown."""
        classified = self._inspection.wall.classified
        intervals = claim.intervals
        trace = self._gpu_events.trace
        calls = blocking_calls(self._gpu_events)
        launch = classified.launch[intervals.gap]
        thread = values_at(trace.thread, launch)
        last = last_before(
            group=trace.thread[calls],
            time=trace.ts[calls],
            query_group=thread,
            query_time=intervals.end,
        )
        call = values_at(calls, last)
        ended = values_at(trace.ts, call) + values_at(trace.dur, call)
        is_during = (call != NONE) & (ended > intervals.start)
        caught_up_call = classified.caught_up_call[intervals.gap]
        is_in_call = is_during | (caught_up_call == NONE)
        return np.where(is_in_call, call, caught_up_call)

    def places(self) -> dict[str, list[Place]]:
        """Return the places of the calls by kind."""
        trace = self._gpu_events.trace
        operation = self._operations()
        name = np.where(operation != NONE, trace.name[operation], NONE)
        return {
            "operations": ranked(code=name, labels=trace.names, ns=self.ns),
            "python_frames": frames_around(
                gpu_events=self._gpu_events, calls=self.calls, ns=self.ns
            ),
            "calls": ranked(
                code=trace.name[self.calls], labels=trace.names, ns=self.ns
            ),
        }

    def _operations(self) -> IntArray:
        """Return the row of the operation around each call, (w,); `NONE` without one.

        Wrappers count as the operation: `aten::to` around `aten::copy_`, if it launches nothing
        else.
        """
        tree = self._gpu_events.tree
        above = nearest_marked(tree.parent_position, tree.is_operation)
        position = above[tree.position[self.calls]]
        for _ in range(_MOST_WRAPPERS):
            outer = values_at(above, position)
            rows = values_at(tree.rows, position)
            outer_rows = values_at(tree.rows, outer)
            is_wrapper = self._is_of_pytorch(outer_rows)
            is_wrapper &= self._launches_in(rows) == self._launches_in(outer_rows)
            if not is_wrapper.any():
                break
            position = np.where(is_wrapper, outer, position)
        return values_at(tree.rows, position)

    def _is_of_pytorch(self, rows: IntArray) -> BoolArray:
        trace = self._gpu_events.trace
        names = values_at(trace.name, rows, missing=0)
        is_of_pytorch = trace.named(names, lambda name: name.startswith("aten::"))
        is_of_pytorch &= rows != NONE
        return is_of_pytorch

    def _launches_in(self, rows: IntArray) -> Int64Array:
        """Return the number of launches inside of each host event; -1 for the event `NONE`."""
        tree = self._gpu_events.tree
        launches = distinct(tree.launch_of_gpu[tree.linked])
        count = np.full(len(rows), NONE, dtype=np.int64)
        known = np.flatnonzero(rows != NONE)
        known_rows = rows[known].astype(np.int64)
        count[known] = self._inspection.held_by(known_rows, launches)
        return count

    @cached_property
    def period_ms(self) -> float | None:
        """The usual time from one call to the next on its thread; None if calls are irregular."""
        trace = self._gpu_events.trace
        periods = []
        thread_of_call = trace.thread[self.calls]
        for thread in np.unique(thread_of_call).tolist():
            calls = self.calls[thread_of_call == thread]
            begun = np.sort(trace.ts[calls])
            if len(begun) >= _FEWEST_FOR_PERIOD:
                periods.append(np.diff(begun))
        if not periods:
            return None
        short, usual, long = np.quantile(np.concatenate(periods), [0.2, 0.5, 0.8])
        if long > _REGULAR_FACTOR * short:
            return None
        return float(usual) / NS_PER_MS

    @cached_property
    def per_iteration(self) -> float | None:
        """The mean number of calls in an iteration; None with few iterations or none."""
        iterations, _, _ = named_iterations(self._gpu_events.tree, None)
        count = len(iterations.start)
        if count < _FEWEST_FOR_PERIOD:
            return None
        begun = np.sort(self._gpu_events.trace.ts[self.calls])
        before_start = np.searchsorted(begun, iterations.start)
        before_end = np.searchsorted(begun, iterations.end)
        in_iterations = int((before_end - before_start).sum())
        if not in_iterations:
            return None
        return in_iterations / count

    @cached_property
    def copies(self) -> AwaitedCopies:
        """The copies that most of the calls wait for.

        A call waits for the last GPU work that its thread launched before it.
        """
        gpu_events = self._gpu_events
        trace = gpu_events.trace
        events = np.flatnonzero(gpu_events.tree.linked)
        launches = gpu_events.tree.launch_of_gpu[events]
        order = np.lexsort((trace.ts[launches], trace.thread[launches]))
        events = events[order]
        launches = launches[order]
        last = last_before(
            group=trace.thread[launches],
            time=trace.ts[launches],
            query_group=trace.thread[self.calls],
            query_time=trace.ts[self.calls] + 1,
        )
        awaited = values_at(events, last)
        copies = awaited[(awaited != NONE) & gpu_events.is_copy[awaited]]
        if 2 * len(copies) <= len(self.calls):
            return AwaitedCopies()
        is_to_device = trace.named(gpu_events.name[copies], TO_DEVICE.match)
        is_pageable = pageable_copies(gpu_events).is_pageable[copies]
        return AwaitedCopies(
            count=len(copies),
            usual_bytes=_most_common(copied_bytes(self._inspection)[copies]),
            to_device=2 * int(is_to_device.sum()) > len(copies),
            from_pageable=2 * int(is_pageable.sum()) > len(copies),
        )


def _most_common(sizes: np.typing.NDArray[np.float64]) -> float | None:
    """Return the most common size; None if no size is known."""
    known_sizes = sizes[sizes > 0]
    values, counts = np.unique(known_sizes, return_counts=True)
    if not len(values):
        return None
    most_common = counts.argmax()
    return float(values[most_common])
