"""The simulation of a trace: the wall time if something took longer or shorter, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.iterations.selection import EventFilter, span_of_step
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.simulation.blocking_calls import MOST_TRACKS
from tracelens_ext.simulation.critical_path import CriticalPath, critical_path
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.host_clocks import synchronizing_calls
from tracelens_ext.simulation.path_table import PathDescriber
from tracelens_ext.simulation.replay import Replay, Replayed
from tracelens_ext.simulation.scenarios import Changes, NamedChange, parse_change
from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Int64Array, distributed_info
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent
from tracelens_ext.trace.lookup import values_at

#: With a larger error, percent, the simulation is of low confidence.
_WARNED: Final = 5.0
#: With a larger error, percent, no results are given.
_WITHHELD: Final = 15.0
_KEYS: Final = ["kind", "category"]


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
        work: the GPU events of the trace.
        iteration: the N of the `ProfilerStep#N` that is the window; None: the whole recording.
        device: the only device whose work is simulated; None: all devices.
        waits: how long collectives wait for other ranks, from `read_waits`; None: not known.

    Raises:
        UsageError: the trace has no GPU events, no such iteration or no such device.
    """

    def __init__(
        self,
        work: GpuEvents,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> None:
        if not len(work):
            raise UsageError("the trace has no GPU events, so nothing can be simulated")
        EventFilter(device=device).of(work)
        window = _whole_window(work)
        if iteration is not None:
            window = Window(*span_of_step(work, iteration))
        self.program = DependencyGraph(
            work=work, window=window, device=device, closes=iteration is not None
        )
        self.waits_known = waits is not None
        if waits is not None:
            self.program.waiting = waiting_of(self.program, waits)
        self.changes = Changes(self.program)
        self.replay = Replay(self.program)

    @cached_property
    def replayed(self) -> Replayed:
        """The unchanged replay."""
        _, replayed = self.replay.run([], 0)
        return replayed

    def saved(self, changes: Sequence[NamedChange]) -> Int64Array:
        """Return what each change saves, ns, and run the unchanged program beside them."""
        # Changes are made one at a time, because each may have as many numbers as the program.
        changed_programs = (self.changes.change(change) for change in changes)
        walls, self.replayed = self.replay.run(changed_programs, len(changes))
        return self.replayed.wall - walls

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
        program = self.program
        error = self.error_percent
        if not program.nodes.is_called.any():
            reason = (
                "no call in the window launched GPU work, so its dependencies are "
                "unknown"
            )
            return Assessment(State.UNAVAILABLE, reason)
        if abs(error) <= _WARNED:
            streams = len(np.unique(program.track))
            if streams <= MOST_TRACKS:
                return Assessment(State.OK, "")
            reason = (
                f"waits were determined for only {MOST_TRACKS} of {streams:,} streams"
            )
            return Assessment(State.LOW_CONFIDENCE, reason)
        if error > 0:
            deviation = "too long"
            cause = "work overlaps or starts early in ways that"
        else:
            deviation = "too short"
            cause = "something waits for work that"
        cause += " the recording does not show"
        if program.contradicted:
            cause += f"; {program.contradicted:,} waits contradict the recorded times"
        reason = f"the unchanged simulation is {abs(error):.1f} % {deviation}: {cause}"
        if abs(error) > _WITHHELD:
            return Assessment(State.UNAVAILABLE, reason)
        return Assessment(State.LOW_CONFIDENCE, reason)

    def model(self) -> dict[str, object]:
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

    def window(self) -> dict[str, float]:
        """Return the window, and its recorded and simulated wall times, for JSON."""
        window = self.program.window
        return {
            "start_us": window.start / NS_PER_US,
            "end_us": window.end / NS_PER_US,
            "wall_ms": window.length / NS_PER_MS,
            "replayed_ms": self.replayed.wall / NS_PER_MS,
        }

    def lines(self) -> list[str]:
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
        shown_changes = changes
        if shown_changes is None:
            shown_changes = self.changes.default()
        saved_ns = self.saved(shown_changes)
        if self.state == State.UNAVAILABLE:
            shown_changes = []
            saved_ns = saved_ns[:0]
        labels = [change.text for change in shown_changes]
        factors = [change.factor for change in shown_changes]
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
    def _path(self) -> CriticalPath:
        return critical_path(self.replay, self.replayed)

    @property
    def known_edges(self) -> float:
        """The share of the waits on the critical path that the recording tells, 0 to 1."""
        return self._path.known_share

    @property
    def _describer(self) -> PathDescriber:
        return PathDescriber(
            replay=self.replay,
            replayed=self.replayed,
            changes=self.changes,
            waits_known=self.waits_known,
        )

    @cached_property
    def critical_path(self) -> pd.DataFrame:
        """The sheet `critical_path`: the segments in order of time."""
        return self._describer.table(self._path)

    def critical_path_summary(self) -> pd.DataFrame:
        """Return the sheet `critical_path_summary`: the critical path by kind and category."""
        segments = self.critical_path.groupby(_KEYS, sort=False)
        on_path_ms = segments["duration_us"].sum() / 1e3
        on_path = on_path_ms.rename("on_path_ms").reset_index()
        summary = on_path.merge(self._total_work(), "left", _KEYS)
        on_path_ns = NS_PER_MS * summary["on_path_ms"].to_numpy()
        summary.insert(3, "on_path_percent", percent(on_path_ns, self.replayed.wall))
        return summary.sort_values(
            ["on_path_ms"] + _KEYS, ascending=[False, True, True], ignore_index=True
        )

    def _total_work(self) -> pd.DataFrame:
        """Return the time of all GPU events, on the path or not, by kind and category."""
        program = self.program
        events = np.flatnonzero(program.nodes.is_event)
        waiting_ns = program.waiting[events]
        work = self._describer.describe(events)[_KEYS]
        work["ns"] = program.duration[events] - waiting_ns
        waits = work.assign(kind="other rank", ns=waiting_ns)
        groups = pd.concat((work, waits)).groupby(_KEYS, sort=False)
        total_ms = groups["ns"].sum() / NS_PER_MS
        return total_ms.rename("total_ms").reset_index()


def _whole_window(work: GpuEvents) -> Window:
    """Return the window from the first launch or GPU event to the end of the last one."""
    trace = work.trace
    rows = np.concatenate((synchronizing_calls(work), work.rows))
    return Window(start=int(trace.ts[rows].min()), end=int(trace.end_of(rows).max()))


_WAIT_COLUMNS: Final = ["rank", "start_us", "wait_us"]


def read_waits(path: Path) -> pd.DataFrame:
    """Read a `collective_waits.parquet`.

    Raises:
        UsageError: the file is not such a table, or pyarrow is missing.
    """
    try:
        # The column `call` tells this table from others.
        table = pd.read_parquet(path, columns=["call"] + _WAIT_COLUMNS)
        waits = table[_WAIT_COLUMNS].astype(np.float64)
    except ImportError:
        raise UsageError(
            "--collective-waits needs pyarrow; run: pip install 'tracelens-ext[parquet]'"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--collective-waits {path}: is not a collective_waits table ({reason})"
        ) from None
    is_finite = np.isfinite(waits).all(axis=1)
    return pd.DataFrame(waits[is_finite]).sort_values("start_us")


def waiting_of(program: DependencyGraph, waits: pd.DataFrame) -> Int64Array:
    """Return how long each node waits for other ranks, ns, (n,).

    If the trace does not tell its rank, the rank is the one with the most calls that start at the
    same times as collectives of the trace.

    Args:
        program: the n nodes.
        waits: the collective calls of all ranks, from `read_waits`.

    Raises:
        UsageError: no call of the rank starts at the same time as a collective of the trace.
    """
    work = program.work
    nodes = np.flatnonzero(
        values_at(values=work.is_communication, index=program.event, missing=False)
    )
    start = work.start[program.event[nodes]]
    rank = distributed_info(work.trace.metadata).get("rank")
    if not isinstance(rank, int):
        starts_together = np.isin(
            np.rint(waits["start_us"]), np.rint(start / NS_PER_US)
        )
        ranks = waits.loc[starts_together, "rank"]
        rank = int(ranks.mode().head(1).sum())  # 0 if no call starts together
    waits = waits[waits["rank"] == rank]

    start_of_call = waits["start_us"].to_numpy() * NS_PER_US
    wait_of_call = waits["wait_us"].to_numpy() * NS_PER_US
    call = np.searchsorted(start_of_call, start - NS_PER_US)
    distance = np.abs(values_at(start_of_call, call, missing=np.inf) - start)
    is_matched = distance <= NS_PER_US
    if not is_matched.any():
        reason = (
            f"no call of rank {rank} starts at the same time as a collective of the "
            "trace"
        )
        raise UsageError(f"--collective-waits: {reason}")
    matched = nodes[is_matched]
    wait_ns = np.rint(wait_of_call[call[is_matched]]).astype(np.int64)
    waiting = np.zeros_like(program.duration)
    waiting[matched] = np.clip(wait_ns, 0, program.duration[matched])
    return waiting


class SimulationContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and its simulation."""

    def simulation(
        self,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> Simulation:
        """Return the simulation of the recording, or of an iteration."""


def _simulation_notes(
    context: SimulationContext, _options: ReportOptions, tables: Tables
) -> Iterable[str]:
    if "what_if" not in tables:
        return ()
    return context.simulation().lines()


def _what_if(
    context: SimulationContext,
    changes: Sequence[str] = (),
    iteration: int | None = None,
    device: int | None = None,
) -> pd.DataFrame:
    """The wall time if something changed.

    Args:
        context: of the trace.
        changes: each as `--change` of `tracelens-ext what-if`; the usual ones by default.
        iteration: the N of a `ProfilerStep#N`, the window; the whole recording by default.
        device: the only device that is simulated; all by default.

    Raises:
        UsageError: the trace has nothing of the name in a change, or no such iteration or device.
    """
    named = [parse_change(text) for text in changes]
    return context.simulation(iteration, device).what_if(named or None)


def _critical_path(
    context: SimulationContext, iteration: int | None = None, device: int | None = None
) -> pd.DataFrame:
    """What the wall time is made of, segment by segment."""
    return context.simulation(iteration, device).critical_path.copy()


def _critical_path_summary(
    context: SimulationContext, iteration: int | None = None, device: int | None = None
) -> pd.DataFrame:
    """The critical path by kind and category."""
    return context.simulation(iteration, device).critical_path_summary()


_CHART = Chart(
    title="Critical path",
    sheet="critical_path_summary",
    label_column="kind",
    value_column="on_path_ms",
    kind="stacked",
    on="page",
)
WHAT_IF = Table(
    name="what_if",
    description="Simulated wall time if something took longer or shorter",
    columns=[
        Column("change", "what changes, as written with `--change`"),
        Column(
            "factor",
            "duration factor; empty if there are several, which `change` lists",
        ),
        Column("wall_ms", "simulated wall time"),
        Column("saved_ms", "of the wall time of the unchanged simulation"),
        Column("saved_percent", "likewise"),
    ],
    build=_what_if,
    enabled_by="what_if",
    notes=_simulation_notes,
)
CRITICAL_PATH_SUMMARY = Table(
    name="critical_path_summary",
    description="Critical path by kind and category",
    columns=[
        Column(
            "kind",
            "`host`, `launch` (launching calls, and the latency after them), "
            "`kernel`, `copy`, `communication`, `other rank`, `gap` or `sync`",
        ),
        Column("category", "category of the GPU work"),
        Column("on_path_ms", "time on the critical path"),
        Column("on_path_percent", "of the whole critical path"),
        Column(
            "total_ms", "all GPU work of the kind and category; empty for other kinds"
        ),
    ],
    build=_critical_path_summary,
    enabled_by="what_if",
    charts=[_CHART],
    on_every_page=True,
)
CRITICAL_PATH = Table(
    name="critical_path",
    description="Critical path, segment by segment",
    columns=[
        Column("start_us", "from the start of the window"),
        Column(
            "duration_us",
            "segments are contiguous: they add up to the simulated wall time",
        ),
        Column("kind", "as in `critical_path_summary`"),
        Column("category", "as in `critical_path_summary`"),
        Column("name", "name of the kernel, the copy, or the call"),
        Column("operation", "operation that launched it, or that the CPU was in"),
        Column("stream", "-1 for the CPU"),
        Column(
            "edge",
            "what determined its start: `stream`, `wait`, `launch`, `sync` or `not in "
            "the file`",
        ),
        Column(
            "known",
            "whether this dependency was recorded, and how long the segment lasts by "
            "itself",
            unit="yes/no",
        ),
    ],
    build=_critical_path,
    enabled_by="what_if",
)
