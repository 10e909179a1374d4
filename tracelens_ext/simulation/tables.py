"""The tables of the simulation: scenarios, the critical path and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.simulation.scenarios import parse_change

if TYPE_CHECKING:
    from tracelens_ext.lazy import pd
    from tracelens_ext.simulation.simulation import Simulation


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
    return context.simulation().summary_lines()


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
    return context.simulation(iteration, device).critical_path_table.copy()


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
    description="Simulated wall time if something took more or less time",
    columns=[
        Column("change", "what changes, in the form that `--change` takes"),
        Column(
            "factor",
            "factor of the durations; empty if there are several, which `change` lists",
        ),
        Column("wall_ms", "simulated wall time with the change"),
        Column(
            "saved_ms",
            "what the change saves of the wall time of the unchanged "
            "simulation; negative if it takes longer",
        ),
        Column(
            "saved_percent",
            "`saved_ms` as a share of the wall time of the unchanged simulation",
        ),
    ],
    build=_what_if,
    enabled_by="what_if",
    notes=_simulation_notes,
)
CRITICAL_PATH_SUMMARY = Table(
    name="critical_path_summary",
    description="The critical path by kind and category",
    columns=[
        Column(
            "kind",
            "what the time is spent on: `host`, `launch` (launching calls, "
            "and the latency after them), `kernel`, `copy`, `communication`, "
            "`other rank`, `gap` or `sync`",
        ),
        Column("category", "category of the GPU work; empty for other kinds"),
        Column("on_path_ms", "time on the critical path"),
        Column("on_path_percent", "share of the whole critical path"),
        Column(
            "total_ms",
            "time of all GPU work of the kind and category, on the critical "
            "path or not; empty for other kinds",
        ),
    ],
    build=_critical_path_summary,
    enabled_by="what_if",
    charts=[_CHART],
    on_every_page=True,
)
CRITICAL_PATH = Table(
    name="critical_path",
    description="The critical path, segment by segment",
    columns=[
        Column(
            "start_us", "start of the segment, since the start of the simulated window"
        ),
        Column(
            "duration_us",
            "duration of the segment; segments are contiguous and add up to "
            "the simulated wall time",
        ),
        Column("kind", "kind of the segment, as in `critical_path_summary`"),
        Column("category", "category of the GPU work; empty for other segments"),
        Column("name", "name of the GPU event, or of the call that the CPU was in"),
        Column(
            "operation", "operation that launched the GPU work, or that the CPU was in"
        ),
        Column("stream", "number of the stream; -1 for the CPU"),
        Column(
            "edge",
            "what determined the start of the segment: `stream`, `wait`, "
            "`launch`, `sync` or `not in the file`",
        ),
        Column(
            "known",
            "whether the recording shows this dependency and, for "
            "communication, how long it waited for other ranks",
            unit="yes/no",
        ),
    ],
    build=_critical_path,
    enabled_by="what_if",
)
