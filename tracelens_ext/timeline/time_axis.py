"""GPU work by category over time, for a chart: a bin a stretch of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

MOST_BINS = 600


def time_axis(work: GpuWork) -> pd.DataFrame:
    """How long GPU events of each category ran in each bin; summed, so overlaps count twice.

    Returns:
        A row a device, category and bin in which any ran: `device`, `category`, `bin` (from 0),
        `start_ms`, `end_ms` (since the trace's first event), `gpu_time_ns`. The sums over bins are
        those of the durations, to the ns.
    """
    found = work.categories
    code = found.code if found is not None else np.zeros(len(work), dtype=np.int32)
    labels = found.labels if found is not None else ["GPU work"]
    edges = np.linspace(work.start.min(), work.end.max(), MOST_BINS + 1).astype(np.int64)
    edges = np.unique(edges)
    if len(edges) < 2:
        edges = np.array([edges[0], edges[0] + 1])
    device = work.trace.device
    pairs, group = np.unique(np.stack((device, code)), axis=1, return_inverse=True)
    parts = []
    for at, (number, category) in enumerate(pairs.T.tolist()):
        own = group.reshape(-1) == at
        ns = np.diff(_work_until(edges, work.start[own], work.end[own]))
        bins = np.flatnonzero(ns)
        columns = {"device": number, "category": labels[category], "bin": bins}
        times = {"start_ms": edges[bins] / NS_PER_MS, "end_ms": edges[bins + 1] / NS_PER_MS}
        parts.append(pd.DataFrame({**columns, **times, "gpu_time_ns": ns[bins]}))
    return pd.concat(parts, ignore_index=True)


def _work_until(times: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """How long events ran before each time, summed over the events."""

    def past(moments: Int64Array) -> Int64Array:
        """The sum of what has gone by since each moment, of those that are past."""
        ascending = np.sort(moments)
        sums = np.concatenate(([0], np.cumsum(ascending)))
        count = np.searchsorted(ascending, times, side="right")
        gone: Int64Array = times * count - sums[count]
        return gone

    return past(start) - past(end)
