"""CPU operations by the time the host spent in them: what a trace without a GPU can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import NO_GPU_EVENTS, Condition, Table, cited_sheets
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.busy_time import BusyTime
from tracelens_ext.work.grouping import group_durations, percent, sums, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.tree import CallTree


def cpu_ops(tree: CallTree) -> pd.DataFrame:
    """Host time by CPU op.

    Returns:
        Columns as the sheet `cpu_ops`; longest self time first.
    """
    trace = tree.trace
    is_op = tree.is_operation & (tree.rows < trace.recorded)  # what a graph replays takes no time
    above = nearest_marked(tree.parent_position, is_op)
    duration = trace.dur[tree.rows]
    inner = np.flatnonzero(is_op & (above != ROOT))
    start = trace.ts[tree.rows][inner]
    below = BusyTime(start, start + duration[inner]).by_owner(above[inner], len(tree.rows))
    self_time = duration - below
    names, self_time, duration = trace.name[tree.rows][is_op], self_time[is_op], duration[is_op]
    total = group_durations([names], duration)
    own = sums(total.number, self_time, len(total))
    frame = pd.DataFrame(
        {
            "cpu_op": texts(total.keys[0], trace.names),
            "count": total.count,
            "total_time_ms": total.total / NS_PER_MS,
            "self_time_ms": own / NS_PER_MS,
            "avg_time_us": total.total / 1e3 / total.count,
            "% of CPU op time": percent(own, int(self_time.sum())),
        }
    )
    return frame.iloc[np.argsort(-own, kind="stable")].reset_index(drop=True)


def _cpu_ops(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """Host time by CPU operation."""
    return cpu_ops(analyzer.tree)


TABLES = [
    Table(
        name="cpu_ops",
        shows="Host time by CPU operation",
        columns="""
            cpu_op: the operation
            count [operations]: how many
            total_time_ms: on the host; an operation within itself counts each time
            self_time_ms: without the CPU ops directly below
            avg_time_us: of one, with those
            % of CPU op time: of the sum of self times
            """,
        table=_cpu_ops,
        when=[
            Condition(
                "the trace has no GPU events, or evidence names it",
                lambda analyzer, options: (
                    NO_GPU_EVENTS.holds(analyzer, options)
                    or "cpu_ops" in cited_sheets(analyzer, options)
                ),
            )
        ],
        answer="Top CPU operations",
        answer_when=NO_GPU_EVENTS,
        answer_columns=(
            *("cpu_op", "count", "total_time_ms", "self_time_ms", "avg_time_us"),
            "% of CPU op time",
        ),
        charts=[
            Chart("CPU time by operation", "cpu_ops", "cpu_op", "self_time_ms", top=15, on="page")
        ],
    )
]
