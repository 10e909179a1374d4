"""The critical path as a table: kind, name, category and operation of each segment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_during,
)
from tracelens_ext.lazy import pd
from tracelens_ext.simulation.critical_path import (
    EDGE_LABELS,
    CriticalPath,
    Part,
    Segment,
)
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.simulation.scenarios import Changes
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_US,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.lookup import values_at

_OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
#: Beginnings of annotations that do not tell what the host did.
_IGNORED: Final = ("ProfilerStep#",)


class _Pieces(NamedTuple):
    """The p pieces of segments, in order of time. Times are ns since the window's start."""

    segment: Int64Array  #: the segment of each piece, (p,)
    start: Int64Array  #: (p,)
    end: Int64Array  #: (p,)
    #: True for host time inside of a launching call, and for time that waits for other ranks, (p,)
    is_marked: BoolArray


class PathDescriber:
    """Describes the nodes of a replay, and the segments of its critical path, in tables.

    Args:
        replay: the replay of the program.
        replayed: the unchanged replay.
        changes: knows the category of each node, and which nodes are copies.
        waits_known: True if it is known how long collectives wait for other ranks.
    """

    def __init__(
        self, replay: Replay, replayed: Replayed, changes: Changes, *, waits_known: bool
    ) -> None:
        self._program = replay.program
        self._gpu_events = replay.program.gpu_events
        self._replay = replay
        self._replayed = replayed
        self._changes = changes
        self._waits_known = waits_known

    def describe(self, nodes: Int64Array) -> pd.DataFrame:
        """Return kind, category, name, operation and stream of nodes.

        A text is empty, and a stream is -1, if a node does not have it. A node `NONE` has nothing.
        """
        program = self._program
        gpu_events = self._gpu_events
        event = values_at(program.event, nodes)
        is_event = event != NONE
        is_communication = values_at(gpu_events.is_communication, event, missing=False)
        is_copy = values_at(self._changes.is_copy, nodes, missing=False)
        kind = np.where(is_communication, "communication", "kernel")
        kind = np.where(is_copy, "copy", kind)
        category, categories = self._changes.categories
        operation, operations = gpu_events.tree.cpu_op_label_of_gpu
        stream_of_node = program.tracks.stream[program.track]
        category_of_event = np.where(is_event, values_at(category, nodes), NONE)
        columns = {
            "kind": np.where(is_event, kind, "gap"),
            "category": _labels(category_of_event, categories),
            "name": _labels(values_at(gpu_events.name, event), gpu_events.trace.names),
            "operation": _labels(values_at(operation, event), operations),
            "stream": values_at(stream_of_node, nodes),
        }
        return pd.DataFrame(columns)

    def table(self, path: CriticalPath) -> pd.DataFrame:
        """Return the segments of a path, cut at the limits of launching calls and of waits."""
        pieces = self._cut_at_calls_and_waits(path)
        part = path.part[pieces.segment]
        source = path.source[pieces.segment]
        is_on_stream = np.isin(part, (Part.RUNS, Part.GAP, Part.LAUNCH))
        table = self.describe(np.where(is_on_stream, source, NONE))

        runs = part == Part.RUNS
        is_host = part == Part.HOST
        is_latency = part == Part.LAUNCH
        is_launch = is_latency | (is_host & pieces.is_marked)
        is_wait = runs & pieces.is_marked
        table["kind"] = np.select(
            [part == Part.GAP, part == Part.SYNC, is_launch, is_host, is_wait],
            ["gap", "sync", "launch", "host", "other rank"],
            table["kind"],
        )
        table.loc[~runs, ["category", "name"]] = ""
        launch = self._program.launch[source[is_latency]]
        table.loc[is_latency, "name"] = self._event_names(launch)
        host_time = _HostTime(
            row=source[is_host], start=pieces.start[is_host], end=pieces.end[is_host]
        )
        calls = self._innermost_events(LAUNCH_KINDS, host_time)
        operations = self._innermost_events(_OPERATIONS, host_time)
        table.loc[is_host, "name"] = self._event_names(calls)
        table.loc[is_host, "operation"] = self._event_names(operations)

        table.insert(0, "start_us", pieces.start / NS_PER_US)
        table.insert(1, "duration_us", (pieces.end - pieces.start) / NS_PER_US)
        is_communication = (table["kind"] == "communication").to_numpy()
        table["edge"] = _labels(path.edge[pieces.segment], EDGE_LABELS)
        is_known = path.known[pieces.segment]
        table["known"] = is_known & (self._waits_known | ~is_communication)
        return table

    def _event_names(self, rows: Int64Array) -> npt.NDArray[np.object_]:
        """Return the names of events of the trace; empty for `NONE`."""
        trace = self._gpu_events.trace
        return _labels(values_at(trace.name, rows), trace.names)

    def _cut_at_calls_and_waits(self, path: CriticalPath) -> _Pieces:
        """Cut host time at launching calls, and collectives at the ends of their waits."""
        calls_by_clock = self._changes.host_intervals("launch")
        # For each clock start, end, start, end … of its calls.
        limits_of_calls = [np.ravel(np.column_stack(calls)) for calls in calls_by_clock]

        pieces: list[tuple[int, int, int, bool]] = []
        for number, segment in enumerate(path.segments()):
            limits = self._limits_of_marked(segment, limits_of_calls)
            # The pieces between the limits are unmarked and marked by turns, unmarked first.
            bounds = [segment.start]
            bounds.extend(limits)
            bounds.append(segment.end)
            is_marked = False
            for start, end in pairwise(bounds):
                if start < end:
                    pieces.append((number, start, end, is_marked))
                is_marked = not is_marked
        rows = np.array(pieces, dtype=np.int64).reshape(-1, len(_Pieces._fields))
        return _Pieces(
            segment=rows[:, 0],
            start=rows[:, 1],
            end=rows[:, 2],
            is_marked=rows[:, 3] > 0,
        )

    def _limits_of_marked(
        self, segment: Segment, limits_of_calls: Sequence[Int64Array]
    ) -> list[int]:
        """Return the starts and ends of the marked pieces of a segment, a start first.

        Args:
            segment: the segment.
            limits_of_calls: starts and ends of the launching calls of each clock by turns.
        """
        source = segment.source
        if segment.part == Part.RUNS:
            waiting_ns = int(self._program.waiting[source])
            if not waiting_ns:
                return []
            wait_end = int(self._replayed.start[source]) + waiting_ns
            return [segment.start, min(max(wait_end, segment.start), segment.end)]
        if segment.part == Part.HOST and source < len(self._replay.clock):
            calls = limits_of_calls[self._replay.clock[source]]
            return _limits_within(
                limits=calls,
                start=segment.start,
                end=segment.end,
                delay=int(self._delay_after(source)),
            )
        return []

    def _delay_after(self, row: IntArray | int) -> Int64Array:
        """Return by how much the replay is later than the recording after rows, ns.

        Args:
            row: rows of `Replay.recorded` from which host time runs.
        """
        delay: Int64Array = self._replayed.returned[row] - self._replay.recorded[row]
        return delay

    def _innermost_events(
        self, kinds: Sequence[EventKind], host_time: _HostTime
    ) -> Int64Array:
        """Return the innermost event that covers at least half of each piece of host time.

        Args:
            kinds: the kinds of events to look at.
            host_time: the h pieces of host time.

        Returns:
            A row for each piece, `NONE` without such an event, (h,).
        """
        clock = values_at(self._replay.clock, host_time.row)
        # Turn replayed time since the window's start into recorded time since the first event.
        shift = self._delay_after(host_time.row) - self._program.window.start
        start = host_time.start - shift
        end = host_time.end - shift
        events = np.full(len(clock), NONE, dtype=np.int64)
        clock_of_thread = self._program.clocks.of_thread.tolist()
        for thread, thread_clock in enumerate(clock_of_thread):
            if thread_clock == NONE:
                continue
            pieces = np.flatnonzero((clock == thread_clock) & (events == NONE))
            if not len(pieces):
                continue
            threads = np.full(len(pieces), thread)
            intervals = HostIntervals(
                thread=threads, start=start[pieces], end=end[pieces]
            )
            events[pieces] = innermost_during(
                trace=self._gpu_events.trace,
                kinds=kinds,
                intervals=intervals,
                ignored=_IGNORED,
            )
        return events


class _HostTime(NamedTuple):
    """The h pieces of host time, in replayed time, ns since the window's start."""

    row: Int64Array  #: the row of `Replay.recorded` from which each piece runs, (h,)
    start: Int64Array  #: (h,)
    end: Int64Array  #: (h,)


def _limits_within(limits: Int64Array, start: int, end: int, delay: int) -> list[int]:
    """Return the starts and ends of calls in a piece of host time; a start comes first.

    For calls from 10 to 20 and from 30 to 40, host time from 15 to 32 gives 15, 20, 30.

    Args:
        limits: the start and the end of each call by turns, as recorded, ascending.
        start: the start of the piece, in replayed time.
        end: the end of the piece, in replayed time.
        delay: by how much replayed time is later than recorded time.
    """
    first, stop = np.searchsorted(limits, [start - delay, end - delay])
    within: list[int] = (limits[first:stop] + delay).clip(start, end).tolist()
    # An odd index is an end, so the piece starts inside of a call.
    starts_in_call = first % 2 == 1
    if starts_in_call:
        within.insert(0, start)
    return within


def _labels(code: IntArray, labels: Sequence[str]) -> npt.NDArray[np.object_]:
    """Return the label of each code; empty for the code `NONE`."""
    # `NONE`, -1, reads the last text.
    texts = np.array(list(labels) + [""], dtype=object)
    return texts[code]
