"""GPU events whose launch is not in the trace: what they are, when they ran, and why it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.gpu_work import KIND_LABELS
from tracelens_ext.analysis.grouping import percent, texts
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, EventKind

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.trace import Int64Array

NO_ID = "no correlation id"
NO_LAUNCH = "launch not in the trace"

_KIND_NAMES = [KIND_LABELS.get(kind, kind.name.lower()) for kind in EventKind]


def unlinked_kernels(work: GpuWork) -> pd.DataFrame:
    """GPU events without a launch in the trace, by name.

    Returns:
        Columns `kernel_name`, `kernel_category` when there are categories, `kind` (kernel, memcpy,
        memset), `reason` (`launch not in the trace`, as when the profiler started between launch
        and kernel, or `no correlation id`), `count`, `total_time_ms`, `avg_time_us`, `min_time_us`,
        `max_time_us`, `% of unlinked time`, `% of GPU time` (both of summed durations),
        `first_start_ms`, `last_end_ms` (since the trace's first event: all early means that the
        profiler started late). Longest total first. No rows when every event is linked.
    """
    import pandas as pd

    chosen = np.flatnonzero(~work.tree.linked)
    has_id = (work.trace.correlation[work.rows[chosen]] > 0).astype(np.int64)
    categories = work.categories
    key = (work.name[chosen].astype(np.int64) * len(EventKind) + work.kind[chosen]) * 2 + has_id
    if categories:
        key = key * len(categories.labels) + categories.code[chosen]
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    start, end, duration = work.start[chosen], work.end[chosen], work.duration[chosen]
    total = np.zeros(len(first), dtype=np.int64)
    np.add.at(total, group, duration)
    count = np.bincount(group, minlength=len(first))
    columns: dict[str, object] = {"kernel_name": texts(work.name[chosen[first]], work.trace.names)}
    if categories:
        columns["kernel_category"] = texts(categories.code[chosen[first]], categories.labels)
    columns |= {
        "kind": texts(work.kind[chosen[first]], _KIND_NAMES),
        "reason": texts(has_id[first], [NO_ID, NO_LAUNCH]),
        "count": count,
        "total_time_ms": total / NS_PER_MS,
        "avg_time_us": total / count / NS_PER_US,
        "min_time_us": _least(group, duration, len(first)) / NS_PER_US,
        "max_time_us": -_least(group, -duration, len(first)) / NS_PER_US,
        "% of unlinked time": percent(total, int(total.sum())),
        "% of GPU time": percent(total, int(work.duration.sum())),
        "first_start_ms": _least(group, start, len(first)) / NS_PER_MS,
        "last_end_ms": -_least(group, -end, len(first)) / NS_PER_MS,
    }
    frame = pd.DataFrame(columns)
    return frame.iloc[np.lexsort((chosen[first], -total))].reset_index(drop=True)


def _least(group: Int64Array, values: Int64Array, groups: int) -> Int64Array:
    """The least value of each group, none of which is empty."""
    result = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(result, group, values)
    return result
