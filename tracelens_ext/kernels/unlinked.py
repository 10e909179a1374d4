"""GPU events whose launch is not in the trace: what they are, when they ran, and why it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table
from tracelens_ext.trace import NS_PER_MS, NS_PER_US
from tracelens_ext.work.gpu_work import KIND_NAMES
from tracelens_ext.work.grouping import group_durations, maxima, minima, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace import IntArray
    from tracelens_ext.work.gpu_work import GpuWork

NO_ID = "no correlation id"
NO_LAUNCH = "launch not in the trace"


def unlinked_kernels(work: GpuWork) -> pd.DataFrame:
    """GPU events without a launch in the trace, by name.

    Returns:
        Columns as the sheet `unlinked_kernels`. Longest total first. No rows when every event is
        linked.
    """
    chosen = np.flatnonzero(~work.tree.linked)
    has_id = (work.trace.correlation[work.rows[chosen]] > 0).astype(np.int64)
    categories = work.categories
    keys: list[IntArray] = [work.name[chosen], work.kind[chosen], has_id]
    if categories:
        keys.append(categories.code[chosen])
    groups = group_durations(keys, work.duration[chosen])
    columns: dict[str, object] = {"kernel_name": texts(groups.keys[0], work.trace.names)}
    if categories:
        columns["kernel_category"] = texts(groups.keys[3], categories.labels)
    start, end = work.start[chosen], work.end[chosen]
    columns |= {
        "kind": texts(groups.keys[1], KIND_NAMES),
        "reason": texts(groups.keys[2], [NO_ID, NO_LAUNCH]),
        "count": groups.count,
        "total_time_ms": groups.total / NS_PER_MS,
        "avg_time_us": groups.mean / NS_PER_US,
        "min_time_us": groups.shortest / NS_PER_US,
        "max_time_us": groups.longest / NS_PER_US,
        "% of unlinked time": percent(groups.total, int(groups.total.sum())),
        "% of GPU time": percent(groups.total, int(work.duration.sum())),
        "first_start_ms": minima(groups.number, start, len(groups)) / NS_PER_MS,
        "last_end_ms": maxima(groups.number, end, len(groups)) / NS_PER_MS,
    }
    return pd.DataFrame(columns)


def _unlinked_kernels(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """GPU events without a launch in the trace."""
    return unlinked_kernels(analyzer.work)


TABLES = [
    Table(
        name="unlinked_kernels",
        shows="GPU events whose launch is not in the trace",
        columns="""
            kernel: a short name, which tells it from the others of the sheet
            kernel_category: of the kernel, by its name; when categories are on
            kind: `kernel`, `memcpy` or `memset`
            reason: `launch not in the trace` (as when the profiler started between launch and
                kernel) or `no correlation id`
            count [GPU events]: how many
            total_time_ms: summed duration
            avg_time_us, min_time_us, max_time_us: of a GPU event
            % of unlinked time: of the summed durations of unlinked GPU events
            % of GPU time: of all summed durations
            first_start_ms: since the trace's first event
            last_end_ms: likewise; all early means that the profiler started late
            kernel_name: as the trace has it
            """,
        table=_unlinked_kernels,
        short_names="kernel_name",
        when=[
            GPU_EVENTS,
            Condition(
                "some GPU events are unlinked", lambda analyzer, _: not analyzer.tree.linked.all()
            ),
        ],
    )
]
