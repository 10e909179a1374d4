"""The sheets about the replay: what the wall time would be, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.replay.changes import parse_change
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import GPU_EVENTS, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer


def _what_if(
    analyzer: TreePerfAnalyzer,
    changes: Sequence[str] = (),
    iteration: int | None = None,
    device: int | None = None,
) -> pd.DataFrame:
    """The wall time if something changed.

    Args:
        analyzer: of the trace.
        changes: each as `--change` of `tracelens-ext what-if`; the usual ones by default.
        iteration: the N of a `ProfilerStep#N`, the window; the whole recording by default.
        device: the only device that is asked about.

    Raises:
        UsageError: a change, the iteration or the device is of nothing that the trace has.
    """
    asked = [parse_change(text) for text in changes] or None
    return analyzer.simulation(iteration, device).what_if(asked)


def _critical_path(
    analyzer: TreePerfAnalyzer, iteration: int | None = None, device: int | None = None
) -> pd.DataFrame:
    """What the wall time is made of, segment by segment."""
    return analyzer.simulation(iteration, device).critical_path.copy()


def _critical_path_summary(
    analyzer: TreePerfAnalyzer, iteration: int | None = None, device: int | None = None
) -> pd.DataFrame:
    """The critical path by kind and category."""
    return analyzer.simulation(iteration, device).critical_path_summary()


TABLES = [
    Table(
        name="what_if",
        shows="The wall time if something took longer or shorter, by a replay of the trace",
        columns="""
            change: what is multiplied; [replay](replay.md) has all names
            factor: by what; empty where several are, which `change` then tells
            wall_ms: the wall time then
            saved_ms: of the unchanged replay's wall time
            saved (%): likewise
            """,
        table=_what_if,
        when=[GPU_EVENTS],
        asked_by="what_if",
        notes=lambda analyzer, _, tables: (
            analyzer.simulation().lines() if "what_if" in tables else []
        ),
    ),
    Table(
        name="critical_path_summary",
        shows="What the wall time hangs on, by kind and category",
        columns="""
            kind: `host`, `launch` (calls that launch, and the latency after them), `kernel`,
                `copy`, `communication`, `other rank`, `gap` or `sync`
            category: of the GPU work
            on_path_ms: time on the critical path
            on_path (%): of all of it
            total_ms: all GPU work of the kind and category; empty of what is none
            """,
        table=_critical_path_summary,
        when=[GPU_EVENTS],
        asked_by="what_if",
        charts=[
            Chart(
                "Critical path",
                "critical_path_summary",
                "kind",
                "on_path_ms",
                kind="stacked",
                on="page",
            )
        ],
        on_every_page=True,
    ),
    Table(
        name="critical_path",
        shows="What the wall time hangs on, segment by segment",
        columns="""
            start_us: from the start of the window
            duration_us: segments leave no gap: they sum to the replayed wall time
            kind, category: as in `critical_path_summary`
            name: of the kernel, the copy, or the call
            operation: the one that launched it, or the host was in
            stream: -1 of the host
            edge: what bound it: `stream`, `wait`, `launch`, `sync` or `not in the file`
            known [yes/no]: whether the recording tells that, and how long it lasts by itself
            """,
        table=_critical_path,
        when=[GPU_EVENTS],
        asked_by="what_if",
    ),
]
