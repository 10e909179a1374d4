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
