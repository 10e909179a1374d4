"""GPU events whose launch is not in the trace."""

from __future__ import annotations

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.grouping import (
    LabeledColumns,
    group_by_labels,
    maxima,
    minima,
    percent,
)


def unlinked_kernels(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the GPU events without a launch in the trace by name, longest total first."""
    unlinked = np.flatnonzero(~gpu_events.tree.linked)
    has_id = gpu_events.trace.correlation[gpu_events.rows] > 0
    keys: LabeledColumns = {
        "kernel_name": (gpu_events.name, gpu_events.trace.names),
        **gpu_events.category_key,
        "kind": (gpu_events.kind, KIND_NAMES),
        "reason": (
            has_id.astype(np.int64),
            ["no correlation id", "launch not in the trace"],
        ),
    }
    columns, groups = group_by_labels(keys, gpu_events.duration, unlinked)
    first_start = minima(
        group_index=groups.group_index,
        values=gpu_events.start[unlinked],
        group_count=len(groups),
    )
    last_end = maxima(
        group_index=groups.group_index,
        values=gpu_events.end[unlinked],
        group_count=len(groups),
    )
    columns |= {
        **groups.figures(
            "count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us"
        ),
        "% of unlinked time": percent(groups.total, int(groups.total.sum())),
        "% of GPU time": percent(groups.total, int(gpu_events.duration.sum())),
        "first_start_ms": first_start / NS_PER_MS,
        "last_end_ms": last_end / NS_PER_MS,
    }
    return pd.DataFrame(columns)
