"""The simulation of a trace: the wall time if something took longer or shorter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.selection import EventFilter, span_of_step
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.simulation.blocking_calls import MOST_TRACKS
from tracelens_ext.simulation.collective_waits import waiting_of_nodes
from tracelens_ext.simulation.critical_path import CriticalPath, find_critical_path
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.host_clocks import synchronizing_calls
from tracelens_ext.simulation.path_table import PathDescriber
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.simulation.scenarios import Changes, NamedChange
from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent

#: With a larger error, percent, the simulation is of low confidence.
_LARGEST_OK_ERROR: Final = 5.0
#: With a larger error, percent, no results are given.
_LARGEST_USABLE_ERROR: Final = 15.0
#: The columns by which the summary of the critical path is grouped.
_SUMMARY_KEYS: Final = ["kind", "category"]


class State(StrEnum):
    """How reliable a simulation is."""

    OK = "ok"
    LOW_CONFIDENCE = "low_confidence"
    UNAVAILABLE = "unavailable"


class Assessment(NamedTuple):
    """How reliable a simulation is, and the reason."""

    state: State
    reason: str  #: empty if the state is `OK`


class Simulation:
    """The simulation of a window of a trace.

    Args:
        gpu_events: the GPU events of the trace.
        iteration: the N of the `ProfilerStep#N` that is the window; None: the whole recording.
        device: the only device whose work is simulated; None: all devices.
        waits: how long collectives wait for other ranks, from `read_collective_waits`; None: not
            known.

    Raises:
        UsageError: the trace has no GPU events, no such iteration or no such device.
    """

    def __init__(
        self,
        gpu_events: GpuEvents,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> None:
        if not len(gpu_events):
            raise UsageError("the trace has no GPU events, so nothing can be simulated")
        # The selected events are not needed, but this raises if there is no such device.
        EventFilter(device=device).of(gpu_events)
        window = _whole_window(gpu_events)
        if iteration is not None:
            window = Window(*span_of_step(gpu_events, iteration))
        self.program = DependencyGraph(
            gpu_events=gpu_events,
            window=window,
            device=device,
            closes=iteration is not None,
        )
        self.waits_known = waits is not None
        if waits is not None:
            self.program.waiting = waiting_of_nodes(self.program, waits)
        self.changes = Changes(self.program)
        self.replay = Replay(self.program)
        self._replayed: Replayed | None = None

    @property
    def replayed(self) -> Replayed:
        """The unchanged replay, which is run when it is first needed."""
        if self._replayed is None:
            _, self._replayed = self.replay.run([], 0)
        return self._replayed

    def savings_ns(self, changes: Sequence[NamedChange]) -> Int64Array:
        """Replay each change, and return by how much it shortens the wall time, ns, (changes,)."""
        # Changes are made one at a time, because each may have as many numbers as the program.
        changed_programs = (self.changes.change(change) for change in changes)
        walls_ns, replayed = self.replay.run(changed_programs, len(changes))
        # Each run also replays the unchanged program, with the same result. Keeping it spares a
        # replay of its own, if none was run before.
        self._replayed = self._replayed or replayed
        return replayed.wall - walls_ns

    @property
    def error_percent(self) -> float:
        """The error of the unchanged replay: positive if its wall time is longer than recorded."""
        recorded = max(self.program.window.length, 1)
        return 100.0 * (self.replayed.wall / recorded - 1.0)

    @property
    def state(self) -> State:
        """How reliable the simulation is."""
        return self._assessment.state

    @cached_property
    def _assessment(self) -> Assessment:
        """Whether the unchanged simulation is close enough to the recorded time to be trusted."""
        if not self.program.nodes.is_called.any():
            reason = (
                "no call in the window launched GPU work, so its dependencies are "
                "unknown"
            )
            return Assessment(State.UNAVAILABLE, reason)
        if abs(self.error_percent) > _LARGEST_USABLE_ERROR:
            return Assessment(State.UNAVAILABLE, self._reason_of_error())
        if abs(self.error_percent) > _LARGEST_OK_ERROR:
            return Assessment(State.LOW_CONFIDENCE, self._reason_of_error())
        streams = len(np.unique(self.program.track))
        if streams > MOST_TRACKS:
            reason = (
                f"waits were determined for only {MOST_TRACKS} of {streams:,} streams"
            )
            return Assessment(State.LOW_CONFIDENCE, reason)
        return Assessment(State.OK, "")

    def _reason_of_error(self) -> str:
        """Return how far the unchanged replay is off, and the likely cause."""
        error = self.error_percent
        if error > 0:
            deviation = "too long"
            cause = "work overlaps or starts early in ways that"
        else:
            deviation = "too short"
            cause = "something waits for work that"
        cause += " the recording does not show"
        contradicted = self.program.contradicted
        if contradicted:
            cause += f"; {contradicted:,} waits contradict the recorded times"
        return f"the unchanged simulation is {abs(error):.1f} % {deviation}: {cause}"

    def json_model(self) -> dict[str, object]:
        """Return error, state and constants for JSON.

        The constants are those of the device with the most work.
        """
        program = self.program
        assessment = self._assessment
        busy_ns = np.bincount(program.track, program.duration, len(program.tracks))
        busiest_device = int(program.tracks.device[busy_ns.argmax()])
        constants = program.constants[busiest_device]
        return {
            "error_percent": self.error_percent,
            "state": str(assessment.state),
            "reason": assessment.reason,
            "latency_us": constants.latency / NS_PER_US,
            "gap_us": constants.gap / NS_PER_US,
            "tail_us": constants.tail / NS_PER_US,
            "edges": program.edges,
        }

    def json_window(self) -> dict[str, float]:
        """Return the window, and its recorded and simulated wall times, for JSON."""
        window = self.program.window
        return {
            "start_us": window.start / NS_PER_US,
            "end_us": window.end / NS_PER_US,
            "wall_ms": window.length / NS_PER_MS,
            "replayed_ms": self.replayed.wall / NS_PER_MS,
        }

    def summary_lines(self) -> list[str]:
        """Return lines of text: the error, the constants of each device, and the dependencies."""
        assessment = self._assessment
        replayed_ms = self.replayed.wall / NS_PER_MS
        recorded_ms = self.program.window.length / NS_PER_MS
        wall = f"{replayed_ms:,.3f} ms for {recorded_ms:,.3f} ms recorded"
        error = f"error {self.error_percent:+.2f} %"
        lines = [f"Simulation: {wall}: {error}, {assessment.state}"]
        reason = assessment.reason
        if reason:
            lines.append(f"{reason[0].upper()}{reason[1:]}.")
        for device, constants in self.program.constants.items():
            latency_us = constants.latency / NS_PER_US
            gap_us = constants.gap / NS_PER_US
            tail_us = constants.tail / NS_PER_US
            lines.append(
                f"Device {device}: launch latency {latency_us:,.3f} µs, "
                f"gap {gap_us:,.3f} µs, tail {tail_us:,.3f} µs"
            )
        edges = self.program.edges.items()
        counts = ", ".join(f"{count:,} {kind}" for kind, count in edges)
        lines.append(f"Dependencies: {counts}")
        return lines

    def what_if(self, changes: Sequence[NamedChange] | None = None) -> pd.DataFrame:
        """Return the sheet `what_if`: a row for each change.

        Args:
            changes: the changes; None: the default ones, the largest saving first.

        Returns:
            A table without rows if the simulation is unavailable.
        """
        simulated_changes = changes
        if simulated_changes is None:
            simulated_changes = self.changes.default()
        saved_ns = self.savings_ns(simulated_changes)
        if self.state == State.UNAVAILABLE:
            simulated_changes = []
            saved_ns = saved_ns[:0]
        labels = [change.text for change in simulated_changes]
        factors = [change.factor for change in simulated_changes]
        columns = {
            "change": pd.Series(labels, dtype="str"),
            "factor": np.array(factors, dtype=np.float64),
            "wall_ms": (self.replayed.wall - saved_ns) / NS_PER_MS,
            "saved_ms": saved_ns / NS_PER_MS,
            "saved_percent": percent(saved_ns, self.replayed.wall),
        }
        table = pd.DataFrame(columns)
        if not changes:
            by_saving = np.argsort(-saved_ns, kind="stable")
            table = table.take(by_saving)
        return table.reset_index(drop=True)

    @cached_property
    def _path_segments(self) -> CriticalPath:
        """The segments of the critical path as arrays."""
        return find_critical_path(self.replay, self.replayed)

    @property
    def recorded_share_of_waits(self) -> float:
        """The share of the waits on the critical path that the recording shows, 0 to 1."""
        return self._path_segments.known_share

    @property
    def _path_describer(self) -> PathDescriber:
        """Describes nodes and path segments of the unchanged replay in tables."""
        return PathDescriber(
            replay=self.replay,
            replayed=self.replayed,
            changes=self.changes,
            waits_known=self.waits_known,
        )

    @cached_property
    def critical_path_table(self) -> pd.DataFrame:
        """The sheet `critical_path`: the segments in order of time."""
        return self._path_describer.table(self._path_segments)

    def critical_path_summary(self) -> pd.DataFrame:
        """Return the sheet `critical_path_summary`: the critical path by kind and category."""
        segments = self.critical_path_table.groupby(_SUMMARY_KEYS, sort=False)
        on_path_ms = segments["duration_us"].sum() / 1e3
        on_path = on_path_ms.rename("on_path_ms").reset_index()
        summary = on_path.merge(self._total_work(), "left", _SUMMARY_KEYS)
        on_path_ns = NS_PER_MS * summary["on_path_ms"].to_numpy()
        summary.insert(3, "on_path_percent", percent(on_path_ns, self.replayed.wall))
        return summary.sort_values(
            ["on_path_ms"] + _SUMMARY_KEYS,
            ascending=[False, True, True],
            ignore_index=True,
        )

    def _total_work(self) -> pd.DataFrame:
        """Return the time of all GPU events, on the path or not, by kind and category."""
        program = self.program
        events = np.flatnonzero(program.nodes.is_event)
        waiting_ns = program.waiting[events]
        gpu_events = self._path_describer.describe(events)[_SUMMARY_KEYS]
        gpu_events["ns"] = program.duration[events] - waiting_ns
        waits = gpu_events.assign(kind="other rank", ns=waiting_ns)
        groups = pd.concat((gpu_events, waits)).groupby(_SUMMARY_KEYS, sort=False)
        total_ms = groups["ns"].sum() / NS_PER_MS
        return total_ms.rename("total_ms").reset_index()


def _whole_window(gpu_events: GpuEvents) -> Window:
    """Return the window from the first launch or GPU event to the end of the last one."""
    trace = gpu_events.trace
    rows = np.concatenate((synchronizing_calls(gpu_events), gpu_events.rows))
    return Window(start=int(trace.ts[rows].min()), end=int(trace.end_of(rows).max()))
