"""CPU time by operation, which also traces without a GPU have."""

from __future__ import annotations

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS, NS_PER_US
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations, percent, sums, texts
from tracelens_ext.trace.nesting import ROOT, nearest_marked


def cpu_ops(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return CPU time by CPU op, as the table `cpu_ops`, longest self time first."""
    tree = gpu_events.tree
    trace = gpu_events.trace
    # Operations that a graph replays were added to the trace. They take no CPU time.
    is_recorded = tree.rows < trace.recorded
    is_op = tree.is_operation & is_recorded
    op_above = nearest_marked(tree.parent_position, is_op)
    duration = trace.dur[tree.rows]
    is_within_op = op_above != ROOT
    inner = np.flatnonzero(is_op & is_within_op)
    outer = op_above[inner]
    start = trace.ts[tree.rows]
    end = start + duration
    # An operation may end a little after the one around it. The time after that does not count.
    inner_end = np.minimum(end[inner], end[outer])
    inner_time = BusyTime(start[inner], inner_end)
    time_of_children = inner_time.by_owner(outer, len(tree.rows))
    self_time = (duration - time_of_children)[is_op]
    groups = group_durations([trace.name[tree.rows[is_op]]], duration[is_op])
    self_time_of_group = sums(
        group_index=groups.group_index, values=self_time, group_count=len(groups)
    )
    frame = pd.DataFrame(
        {
            "cpu_op": texts(groups.keys[0], trace.names),
            "count": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "self_time_ms": self_time_of_group / NS_PER_MS,
            "avg_time_us": groups.total / NS_PER_US / groups.count,
            "% of CPU op time": percent(self_time_of_group, int(self_time.sum())),
        }
    )
    order = np.argsort(-self_time_of_group, kind="stable")
    return frame.iloc[order].reset_index(drop=True)
