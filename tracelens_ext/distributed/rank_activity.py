"""How long a rank has computed, loaded data, used its CPU and idled until an instant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.gpu_calls import blocking_calls
from tracelens_ext.trace import HOST_KINDS, BoolArray, Int64Array
from tracelens_ext.trace.intervals import covered, union

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents

#: What a rank does outside of its communication. `RankActivity` defines each of them.
OWN_ACTIVITIES = ("computation", "data_loader", "host", "idle")
#: PyTorch's data loaders record an event with such a name for every batch.
_DATA_LOADER = re.compile(r"enumerate\(DataLoader\)#")


class RankActivity:
    """How long a rank spent on each of `OWN_ACTIVITIES` until an instant.

    `computation` is the time in which GPU events other than communication run. The remaining time
    belongs to the first of these states that it is in:

    1. The GPU is busy with communication. This is no activity of the rank's own.
    2. `data_loader`: the CPU loads data.
    3. `idle`: the CPU waits for the GPU.
    4. `host`: the time is between the rank's first and last CPU events.
    5. `idle`: nothing is recorded.

    Attributes:
        kernels: the intervals in which kernels compute, without copies.
    """

    def __init__(self, gpu_events: GpuEvents, is_of_rank: BoolArray) -> None:
        """Find the activities of the rank whose GPU events `is_of_rank` selects, (g,)."""
        trace = gpu_events.trace
        is_computation = is_of_rank & ~gpu_events.is_communication
        self._computation = _union_of(gpu_events, is_computation)
        self.kernels = _union_of(gpu_events, is_computation & ~gpu_events.is_copy)
        cpu_events = _CpuEvents.of_rank(gpu_events, is_of_rank)
        # Each of these unions contains the one before it, so that the difference between two
        # of them is the time that belongs to a single state.
        self._busy = _union_of(gpu_events, is_of_rank)
        self._busy_or_loading = self._busy.with_others(
            trace.ts[cpu_events.data_loader], trace.end_of(cpu_events.data_loader)
        )
        self._busy_to_waiting = self._busy_or_loading.with_others(
            trace.ts[cpu_events.blocking_calls],
            trace.end_of(cpu_events.blocking_calls),
        )
        self._recorded = self._busy_to_waiting
        if len(cpu_events.all_rows):
            first_start = trace.ts[cpu_events.all_rows].min(keepdims=True)
            last_end = trace.end_of(cpu_events.all_rows).max(keepdims=True)
            self._recorded = self._busy_to_waiting.with_others(first_start, last_end)

    def until(self, instants: Int64Array) -> dict[str, Int64Array]:
        """Return the time spent on each of `OWN_ACTIVITIES` until each instant, ns, (n,)."""
        busy = self._busy.time_until(instants)
        busy_or_loading = self._busy_or_loading.time_until(instants)
        busy_to_waiting = self._busy_to_waiting.time_until(instants)
        recorded = self._recorded.time_until(instants)
        waiting = busy_to_waiting - busy_or_loading
        not_recorded = instants - recorded
        return {
            "computation": self._computation.time_until(instants),
            "data_loader": busy_or_loading - busy,
            "host": recorded - busy_to_waiting,
            "idle": waiting + not_recorded,
        }


class _Intervals(NamedTuple):
    """Disjoint intervals of time, ascending, ns since the trace's first event."""

    start: Int64Array
    end: Int64Array

    def with_others(self, start: Int64Array, end: Int64Array) -> _Intervals:
        """Return the union with other intervals."""
        all_starts = np.append(self.start, start)
        all_ends = np.append(self.end, end)
        return _Intervals(*union(all_starts, all_ends))

    def time_until(self, instants: Int64Array) -> Int64Array:
        """Return how much of these intervals lies before each instant, ns."""
        return covered(
            start=self.start,
            end=self.end,
            window_start=np.zeros_like(instants),
            window_end=instants,
        )


@dataclass(frozen=True)
class _CpuEvents:
    """The CPU events of the processes that launched the GPU work of a rank, as rows."""

    all_rows: Int64Array
    data_loader: Int64Array  #: events of data loaders
    blocking_calls: Int64Array  #: calls that wait for the GPU

    @classmethod
    def of_rank(cls, gpu_events: GpuEvents, is_of_rank: BoolArray) -> _CpuEvents:
        """Find the CPU events of the rank whose GPU events are selected."""
        trace = gpu_events.trace
        tree = gpu_events.tree
        process_of_event = trace.process_of_thread[trace.thread]
        launches = tree.launch_of_gpu[is_of_rank & tree.linked]
        processes_of_rank = np.unique(process_of_event[launches])
        is_of_processes = np.isin(process_of_event, processes_of_rank)
        rows = trace.rows_of(*HOST_KINDS)
        rows = rows[is_of_processes[rows]]
        blocking_rows = blocking_calls(gpu_events)
        return cls(
            all_rows=rows,
            data_loader=rows[trace.named(trace.name[rows], _DATA_LOADER.match)],
            blocking_calls=blocking_rows[is_of_processes[blocking_rows]],
        )


def _union_of(gpu_events: GpuEvents, selected: BoolArray) -> _Intervals:
    """Return the intervals in which any of the selected GPU events runs."""
    return _Intervals(*union(gpu_events.start[selected], gpu_events.end[selected]))
