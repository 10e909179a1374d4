"""The sheets `iterations` and `iteration_statistics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.iterations.measured import iteration_table
from tracelens_ext.lazy import pd
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.tables.options import ReportOptions


def _iterations(
    analyzer: TreePerfAnalyzer, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    """A row an iteration; `annotation` says what is one, `ProfilerStep#N` by default."""
    return iteration_table(analyzer.work, annotation).frame.copy()


def _statistics(
    analyzer: TreePerfAnalyzer, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    """Mean and spread over whole iterations."""
    return iteration_table(analyzer.work, annotation).statistics.copy()


def _notes(
    analyzer: TreePerfAnalyzer, options: ReportOptions, _: Mapping[str, pd.DataFrame]
) -> Iterable[str]:
    if not options.iterations or not len(analyzer.work):
        return []
    if not len(found := iteration_table(analyzer.work, options.annotation)):
        asked = options.annotation
        wanted = "ProfilerStep#N" if asked is None else f"annotation like {asked!r}"
        return [f"The trace has no {wanted}, so there are no tables of iterations."]
    return found.notes


def _whole(frame: pd.DataFrame) -> int:
    return int(frame["iteration"][frame["whole"]].nunique()) if len(frame) else 0


def _enough(analyzer: TreePerfAnalyzer, options: ReportOptions) -> bool:
    """Whether there are iterations; if nobody asked for them, two whole ones to be compared."""
    found = iteration_table(analyzer.work, options.annotation)
    asked = options.iterations or options.names("iterations", "iteration_statistics")
    return len(found) > 0 if asked else _whole(found.frame) > 1


_HAS_ITERATIONS = Condition("the trace has iterations (for a page, two whole ones)", _enough)

TABLES = [
    Table(
        name="iterations",
        shows="Time of each iteration, and which are odd",
        columns="""
            iteration: the annotation's name
            process, device: where there are several
            start_ms: since the trace's first event
            wall_time_ms: of the annotation, on the host
            busy_time_ms: of what was launched in it, and what started in it without a launch in the
             trace: the sum of the three that follow
            computation_time_ms: kernels that neither communicate nor copy, and memsets
            exposed_comm_time_ms: communication (by the built-in rules) that none of those hid
            exposed_memcpy_time_ms: copies that neither hid
            idle_time_ms: of the wall time, while the device ran nothing at all
            kernels [kernels]: of its GPU work
            launches_without_gpu_work [launches]: of kernels, graphs and copies; they were lost,
                or cut off by the end of the recording
            whole: it ended before the recording did, and launched GPU work
            odd: the columns in which it is odd
            CATEGORY_time_ms: when categories are on: summed durations
            """,
        table=_iterations,
        when=[GPU_EVENTS, _HAS_ITERATIONS],
        asked_by="iterations",
        charts=[
            Chart(
                "Iterations",
                "iterations",
                "iteration",
                "wall_time_ms",
                kind="iterations",
                on="page",
            )
        ],
        notes=_notes,
        on_every_page=True,
    ),
    Table(
        name="iteration_statistics",
        shows="Mean and spread over whole iterations",
        columns="""
            column: what was measured, with its unit
            device: where there are several
            iterations [iterations]: that are whole
            mean [unit of what is told]: over them
            std [unit of what is told]: standard deviation of a sample, 0 for a single iteration
            median [unit of what is told]: over them
            mad [unit of what is told]: median absolute deviation
            min [unit of what is told]: the least
            max [unit of what is told]: the largest
            odd [iterations]: beyond three of `mad`, and 5 %, from the median
            """,
        table=_statistics,
        when=[GPU_EVENTS, _HAS_ITERATIONS],
        asked_by="iterations",
        on_every_page=True,
    ),
]
