"""What the wall time would be if something took longer or shorter: windows, errors, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.iterations.selection import Selection, span_of_step
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.simulation.critical_path import (
    CriticalPath,
    critical_path,
    described,
    path_table,
)
from tracelens_ext.simulation.dependency_graph import MOST_TRACKS, DependencyGraph
from tracelens_ext.simulation.replay import Change, Replay, Replayed, telling_calls
from tracelens_ext.simulation.scenarios import Changes, Named, parse_change
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Int64Array, distributed_info
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent

#: Errors beyond which the replay is warned of, and withheld, percent.
_WARNED: Final = 5.0
_WITHHELD: Final = 15.0
_KEYS: Final = ["kind", "category"]


class State(StrEnum):
    """Whether a simulation can be relied on."""

    GOOD = "good"
    WARNED = "warned"
    WITHHELD = "withheld"


class Simulation:
    """A window of a trace, run again: the recording, or the `ProfilerStep#N` of `iteration`.

    `device` is the only one that is asked about; `waits` (of `read_waits`) tells how long
    collectives wait for other ranks.
    """

    def __init__(
        self,
        work: GpuEvents,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> None:
        trace = work.trace
        if not len(work):
            raise UsageError("the trace has no GPU events, so nothing can be replayed")
        Selection(device=device).of(work)
        if iteration is None:
            rows = np.concatenate((telling_calls(work), work.rows))
            window = int(trace.ts[rows].min()), int(trace.end_of(rows).max())
        else:
            window = span_of_step(work, iteration)
        self.program = DependencyGraph(
            work, window, device, closes=iteration is not None
        )
        self.waits_known = waits is not None
        if waits is not None:
            self.program.waiting = waiting_of(self.program, waits)
        self.changes = Changes(self.program)
        self.replay = Replay(self.program)

    @cached_property
    def replayed(self) -> Replayed:
        """The unchanged replay."""
        return self.replay.run([])[1]

    def saved(self, changes: Iterable[Change]) -> Int64Array:
        """What each change saves, ns; the unchanged program is run beside them."""
        walls, self.replayed = self.replay.run(changes)
        return self.replayed.wall - walls

    @property
    def error_percent(self) -> float:
        """By how much the unchanged replay misses the recorded wall time."""
        start, end = self.program.window
        return 100.0 * (self.replayed.wall / max(end - start, 1) - 1.0)

    @property
    def state(self) -> State:
        """Whether it can be relied on."""
        return self._judged[0]

    @cached_property
    def _judged(self) -> tuple[State, str]:
        error = self.error_percent
        if not (self.program.call != NONE).any():
            why = "no call in the window launched GPU work: what that waits for is unknown"
            return State.WITHHELD, why
        if abs(error) <= _WARNED:
            streams = len(np.unique(self.program.track))
            why = f"of {streams:,} streams the waits of {MOST_TRACKS} were looked for"
            if streams > MOST_TRACKS:
                return State.WARNED, why
            return State.GOOD, ""
        too = "short"
        why = "something waits for what"
        if error > 0:
            too = "long"
            why = "work overlaps, or begins early, in ways that"
        why += " the recording does not tell"
        if self.program.contradicted:
            why += (
                f"; {self.program.contradicted:,} waits contradict the recorded times"
            )
        why = f"the unchanged replay is {abs(error):.1f} % too {too}: {why}"
        if abs(error) > _WITHHELD:
            return State.WITHHELD, why
        return State.WARNED, why

    def model(self) -> dict[str, object]:
        """How good the replay is, for JSON; constants are of the device with the most work."""
        program = self.program
        (state, reason) = self._judged
        busy = np.bincount(program.track, program.duration, len(program.tracks))
        constants = program.constants[int(program.tracks.device[busy.argmax()])]
        told = {f"{name}_us": ns / NS_PER_US for name, ns in constants.items()}
        judged = {
            "error_percent": self.error_percent,
            "state": str(state),
            "reason": reason,
        }
        return {**judged, **told, "edges": program.edges}

    def window(self) -> dict[str, float]:
        """The window and its wall times, for JSON."""
        start, end = self.program.window
        recorded = (end - start) / NS_PER_MS
        replayed = self.replayed.wall / NS_PER_MS
        at = {"start_us": start / NS_PER_US, "end_us": end / NS_PER_US}
        return at | {"wall_ms": recorded, "replayed_ms": replayed}

    def lines(self) -> list[str]:
        """The error, the constants and the edges in words, a line each."""
        window = self.window()
        (state, reason) = self._judged
        replayed = (
            f"{window['replayed_ms']:,.3f} ms for {window['wall_ms']:,.3f} ms recorded"
        )
        found = [f"Replay: {replayed}: error {self.error_percent:+.2f} %, {state}"]
        found += [f"{reason[:1].upper()}{reason[1:]}."] if reason else []
        for device, its in self.program.constants.items():
            constants = [f"{name} {ns / NS_PER_US:,.3f} µs" for name, ns in its.items()]
            found.append(f"Device {device}: launch {', '.join(constants)}")
        edges = ", ".join(
            f"{count:,} {kind}" for kind, count in self.program.edges.items()
        )
        return [*found, f"Edges: {edges}"]

    def what_if(self, changes: Sequence[Named] | None = None) -> pd.DataFrame:
        """A row a change, or of the usual ones by what they save; as the sheet `what_if`.

        None where the replay is withheld.
        """
        asked = self.changes.default() if changes is None else changes
        saved = self.saved([self.changes.change(each) for each in asked])
        if self.state == State.WITHHELD:
            asked = []
            saved = saved[:0]
        factors = [each.terms[0][1] if len(each.terms) == 1 else None for each in asked]
        columns = {
            "change": pd.Series([each.text for each in asked], dtype="str"),
            "factor": np.array(factors, dtype=np.float64),
            "wall_ms": (self.replayed.wall - saved) / NS_PER_MS,
            "saved_ms": saved / NS_PER_MS,
            "saved (%)": percent(saved, self.replayed.wall),
        }
        order = np.arange(len(asked)) if changes else np.argsort(-saved, kind="stable")
        return pd.DataFrame(columns).take(order).reset_index(drop=True)

    @cached_property
    def _path(self) -> CriticalPath:
        return critical_path(self.replay, self.replayed)

    @property
    def known_edges(self) -> float:
        """Which share of the waits on the critical path the recording tells."""
        return self._path.known_share

    @cached_property
    def critical_path(self) -> pd.DataFrame:
        """The segments in order of time, as the sheet `critical_path`."""
        return path_table(self, self._path)

    def critical_path_summary(self) -> pd.DataFrame:
        """The critical path by kind and category, as the sheet of that name."""
        program = self.program
        table = self.critical_path
        found = (table.groupby(_KEYS, sort=False)["duration_us"].sum() / 1e3).rename(
            "on_path_ms"
        )
        real = np.flatnonzero(program.event != NONE)
        works = described(self, real)[_KEYS].assign(
            ns=(program.duration - program.waiting)[real]
        )
        waits = works.assign(kind="other rank", ns=program.waiting[real])
        sums = (
            pd.concat((works, waits)).groupby(_KEYS, sort=False)["ns"].sum() / NS_PER_MS
        )
        result = found.reset_index().merge(
            sums.rename("total_ms").reset_index(), "left", _KEYS
        )
        share = percent(NS_PER_MS * result["on_path_ms"].to_numpy(), self.replayed.wall)
        result.insert(3, "on_path (%)", share)
        ascending = [False, True, True]
        return result.sort_values(
            ["on_path_ms", *_KEYS], ascending=ascending, ignore_index=True
        )


_NUMBERS: Final = ["rank", "start_us", "wait_us"]


def read_waits(path: Path) -> pd.DataFrame:
    """Read a `collective_waits.parquet`."""
    try:
        table = pd.read_parquet(path, columns=["call", *_NUMBERS])[_NUMBERS].astype(
            np.float64
        )
    except ImportError:
        raise UsageError(
            "--waits needs pyarrow; install tracelens-ext[parquet]"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--waits {path}: no table of collective_waits ({reason})"
        ) from None
    return pd.DataFrame(table[np.isfinite(table).all(axis=1)]).sort_values("start_us")


def waiting_of(program: DependencyGraph, waits: pd.DataFrame) -> Int64Array:
    """How long each node waits for other ranks by a table of the calls of all, ns, (n,).

    The rank is the one that the trace says, else the one whose calls start when the trace's do.
    """
    work = program.work
    mine = np.flatnonzero(
        (program.event != NONE) & work.is_communication[program.event]
    )
    begun = work.start[program.event[mine]]
    rank = distributed_info(work.trace.metadata).get("rank")
    if not isinstance(rank, int):
        fits = np.isin(np.rint(waits["start_us"]), np.rint(begun / NS_PER_US))
        rank = int(waits.loc[fits, "rank"].mode().head(1).sum())
    waits = waits[waits["rank"] == rank]
    start = np.append(waits["start_us"].to_numpy() * NS_PER_US, np.inf)
    at = np.searchsorted(start, begun - NS_PER_US)
    found = np.abs(start[at] - begun) <= NS_PER_US
    if not found.any():
        why = f"no call of rank {rank} starts when a collective of the trace does"
        raise UsageError(f"--waits: {why}")
    result = np.zeros_like(program.duration)
    ns = np.rint(waits["wait_us"].to_numpy()[at[found]] * NS_PER_US).astype(np.int64)
    result[mine[found]] = np.clip(ns, 0, program.duration[mine[found]])
    return result


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
        device: the only device that is asked about.

    Raises:
        UsageError: a change, the iteration or the device is of nothing that the trace has.
    """
    asked = [parse_change(text) for text in changes] or None
    return context.simulation(iteration, device).what_if(asked)


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


_PATH = ("Critical path", "critical_path_summary", "kind", "on_path_ms")
_CHART = Chart(*_PATH, kind="stacked", on="page")
WHAT_IF = Table(
    name="what_if",
    shows="The wall time if something took longer or shorter, by a replay of the trace",
    columns=[
        Column("change", "what is multiplied; [replay](replay.md) has all names"),
        Column("factor", "by what; empty where several are, which `change` then tells"),
        Column("wall_ms", "the wall time then"),
        Column("saved_ms", "of the unchanged replay's wall time"),
        Column("saved (%)", "likewise"),
    ],
    table=_what_if,
    asked_by="what_if",
    notes=_simulation_notes,
)
CRITICAL_PATH_SUMMARY = Table(
    name="critical_path_summary",
    shows="What the wall time hangs on, by kind and category",
    columns=[
        Column(
            "kind",
            "`host`, `launch` (calls that launch, and the latency after them), `kernel`, "
            "`copy`, `communication`, `other rank`, `gap` or `sync`",
        ),
        Column("category", "of the GPU work"),
        Column("on_path_ms", "time on the critical path"),
        Column("on_path (%)", "of all of it"),
        Column(
            "total_ms", "all GPU work of the kind and category; empty of what is none"
        ),
    ],
    table=_critical_path_summary,
    asked_by="what_if",
    charts=[_CHART],
    on_every_page=True,
)
CRITICAL_PATH = Table(
    name="critical_path",
    shows="What the wall time hangs on, segment by segment",
    columns=[
        Column("start_us", "from the start of the window"),
        Column(
            "duration_us", "segments leave no gap: they sum to the replayed wall time"
        ),
        Column("kind", "as in `critical_path_summary`"),
        Column("category", "as in `critical_path_summary`"),
        Column("name", "of the kernel, the copy, or the call"),
        Column("operation", "the one that launched it, or the host was in"),
        Column("stream", "-1 of the host"),
        Column(
            "edge",
            "what bound it: `stream`, `wait`, `launch`, `sync` or `not in the file`",
        ),
        Column(
            "known",
            "whether the recording tells that, and how long it lasts by itself",
            unit="yes/no",
        ),
    ],
    table=_critical_path,
    asked_by="what_if",
)
