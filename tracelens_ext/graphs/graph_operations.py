"""GPU time of graph launches by the operation that the capture of the graph tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US
from tracelens_ext.work.grouping import group_durations, number_groups, texts

if TYPE_CHECKING:
    from tracelens_ext.work.gpu_work import GpuWork


def graph_operations(work: GpuWork) -> pd.DataFrame:
    """GPU events of graph launches by the innermost CPU op around the captured launch.

    Returns:
        Columns as the sheet `graph_operations`; longest total first. Events that no captured
        launch corresponds to, or without a CPU op around it, are in no row.
    """
    trace = work.trace
    events = np.flatnonzero(work.tree.has_captured_op)
    op = work.tree.cpu_op_of_gpu[events]
    groups = group_durations([trace.name[op]], work.duration[events])
    each, _ = number_groups([op])
    return pd.DataFrame(
        {
            "operation": pd.array(texts(groups.keys[0], trace.names), dtype="str"),
            "calls": np.bincount(groups.number[each], minlength=len(groups)),
            "kernels": groups.count,
            "total_time_us": groups.total / NS_PER_US,
        }
    )
