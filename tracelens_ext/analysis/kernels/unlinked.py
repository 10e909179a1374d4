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


def unlinked_kernels(work: GpuEvents) -> pd.DataFrame:
    """GPU events without a launch in the trace, by name. Longest total first."""
    chosen = np.flatnonzero(~work.tree.linked)
    has_id = work.trace.correlation[work.rows] > 0
    keys: LabeledColumns = {
        "kernel_name": (work.name, work.trace.names),
        **work.category_key,
        "kind": (work.kind, KIND_NAMES),
        "reason": (
            has_id.astype(np.int64),
            ["no correlation id", "launch not in the trace"],
        ),
    }
    columns, groups = group_by_labels(keys, work.duration, chosen)
    first_start = minima(
        group_index=groups.group_index,
        values=work.start[chosen],
        group_count=len(groups),
    )
    last_end = maxima(
        group_index=groups.group_index, values=work.end[chosen], group_count=len(groups)
    )
    columns |= {
        **groups.figures(
            "count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us"
        ),
        "% of unlinked time": percent(groups.total, int(groups.total.sum())),
        "% of GPU time": percent(groups.total, int(work.duration.sum())),
        "first_start_ms": first_start / NS_PER_MS,
        "last_end_ms": last_end / NS_PER_MS,
    }
    return pd.DataFrame(columns)
