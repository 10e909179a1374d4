"""The clocks of the host: threads that take turns share a clock, others run side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
    runtime_calls,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.intervals import DisjointIntervals, union
from tracelens_ext.trace.lookup import values_at

#: Calls that wait for the GPU or that the GPU waits for. All other calls are just host time.
_SYNCHRONIZES: Final = runtime_calls.any_of(
    re.compile(r"(?:cuda|hip|cu)(?:\w*Launch|Memset|\w*Synchronize)"),
    runtime_calls.LAUNCHES_KERNEL,
    runtime_calls.COPIES,
    runtime_calls.WAITS_FOR_DEVICE,
    runtime_calls.WAITS_FOR_STREAM,
    runtime_calls.WAITS_FOR_EVENT,
    runtime_calls.STREAM_WAITS_FOR_EVENT,
    runtime_calls.RECORDS_EVENT,
)
#: At most this many threads get clocks of their own. The others, with the fewest calls, share the
#: last clock.
_MOST_THREADS = 256
_BEFORE_ALL: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Clocks:
    """The k clocks of t threads. The first clock is that of the thread with the most calls."""

    #: the clock of each thread, `NONE` for a thread without calls, (t,)
    of_thread: Int64Array
    #: the end of the last call on each clock, ns since the window's start, (k,)
    end: Int64Array


def synchronizing_calls(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the calls that launch, wait or are waited for, in file order.

    A call with GPU work counts as a launch, no matter what its name is.
    """
    named = gpu_events.trace.rows_named(_SYNCHRONIZES, *LAUNCH_KINDS)
    return np.union1d(named, gpu_events.tree.launch_of_gpu[gpu_events.tree.linked])


def find_clocks(gpu_events: GpuEvents, window: Window) -> Clocks:
    """Give each thread that calls the runtime a clock.

    A thread joins an existing clock of its process if everything that it records falls into pauses
    of this clock: the other threads handed the work over and waited, as for autograd's thread.
    Other threads get clocks of their own.
    """
    trace = gpu_events.trace
    calls = synchronizing_calls(gpu_events)
    events = np.concatenate((calls, trace.rows_of(EventKind.CPU_OP)))
    calls = _rows_in_window(trace, calls, window)
    events = _rows_in_window(trace, events, window)

    threads = _threads_by_calls(trace, calls)
    clocks = _ClockBuilder(trace, window)
    for thread in threads[:_MOST_THREADS].tolist():
        calls_of_thread = calls[trace.thread[calls] == thread]
        events_of_thread = events[trace.thread[events] == thread]
        clocks.add_thread(thread, calls_of_thread, events_of_thread)
    other_threads = threads[_MOST_THREADS:]
    if len(other_threads):
        calls_of_others = calls[np.isin(trace.thread[calls], other_threads)]
        clocks.add_to_last_clock(other_threads, calls_of_others)
    return Clocks(of_thread=clocks.of_thread, end=np.array(clocks.ends, dtype=np.int64))


def _rows_in_window(trace: Trace, rows: Int64Array, window: Window) -> Int64Array:
    """Return the rows of events that overlap a window; an event of no length counts as 1 ns."""
    end = np.maximum(trace.end_of(rows), trace.ts[rows] + 1)
    return rows[(trace.ts[rows] < window.end) & (end > window.start)]


def _threads_by_calls(trace: Trace, calls: Int64Array) -> Int64Array:
    """Return the threads that make calls, those with the most calls first."""
    count = np.bincount(trace.thread[calls], minlength=len(trace.threads))
    by_count = np.argsort(-count, kind="stable")
    return by_count[: np.count_nonzero(count)]


@dataclass(eq=False)
class _ClockActivity:
    """The times at which the threads of a clock record something."""

    calls: DisjointIntervals  #: the times in which a thread is in a call
    edges: Int64Array  #: the starts and ends of all events of the threads, ascending

    def pauses_during(self, intervals: DisjointIntervals) -> bool:
        """Return whether no event starts or ends, and no call runs, during any of the intervals."""
        edges_until_start = np.searchsorted(self.edges, intervals.start, "right")
        edges_before_end = np.searchsorted(self.edges, intervals.end, "left")
        records_nothing = edges_until_start == edges_before_end
        last_call = np.searchsorted(self.calls.start, intervals.start, "right") - 1
        end_of_call = values_at(self.calls.end, last_call, missing=_BEFORE_ALL)
        is_in_no_call = end_of_call <= intervals.start
        return bool(np.all(records_nothing & is_in_no_call))

    def add(
        self, call_start: Int64Array, call_end: Int64Array, edges: Int64Array
    ) -> None:
        """Add the calls and the edges of another thread."""
        self.calls = union(
            np.append(self.calls.start, call_start),
            np.append(self.calls.end, call_end),
        )
        self.edges = np.sort(np.append(self.edges, edges))


class _ClockBuilder:
    """Builds the clocks, one thread after the other.

    Attributes:
        of_thread: the clock of each thread, `NONE` for a thread that was not added, (t,).
        ends: the end of the last call on each clock, ns since the window's start.
    """

    def __init__(self, trace: Trace, window: Window) -> None:
        self._trace = trace
        self._window = window
        self._activities: list[_ClockActivity] = []
        self.of_thread = np.full(len(trace.threads), NONE, dtype=np.int64)
        self.ends: list[int] = []

    def add_thread(self, thread: int, calls: Int64Array, events: Int64Array) -> None:
        """Give a thread a clock that pauses while the thread records, or a new clock."""
        trace = self._trace
        start = trace.ts[events]
        end = trace.end_of(events)
        clock = self._clock_that_pauses(thread, union(start, end))
        if clock == NONE:
            clock = self._new_clock()
        times = np.append(start, end)
        activities = self._activities[clock]
        activities.add(trace.ts[calls], trace.end_of(calls), times)
        self.of_thread[thread] = clock
        self._extend(clock, calls)

    def add_to_last_clock(self, threads: IntArray, calls: Int64Array) -> None:
        """Let threads share the last clock."""
        last_clock = len(self.ends) - 1
        self.of_thread[threads] = last_clock
        self._extend(last_clock, calls)

    def _clock_that_pauses(self, thread: int, intervals: DisjointIntervals) -> int:
        """Return the first clock of the thread's process that pauses in intervals, or `NONE`."""
        process = self._trace.process_of_thread
        clocks_of_process = self.of_thread[process == process[thread]]
        for clock in np.unique(clocks_of_process).tolist():
            if clock != NONE and self._activities[clock].pauses_during(intervals):
                return int(clock)
        return NONE

    def _new_clock(self) -> int:
        nothing = np.empty(0, dtype=np.int64)
        self._activities.append(
            _ClockActivity(DisjointIntervals(nothing, nothing), nothing)
        )
        self.ends.append(0)
        return len(self.ends) - 1

    def _extend(self, clock: int, calls: Int64Array) -> None:
        """Extend a clock to the end of some calls, if they end later than the clock."""
        last_end = min(int(self._trace.end_of(calls).max()), self._window.end)
        self.ends[clock] = max(self.ends[clock], last_end - self._window.start)
