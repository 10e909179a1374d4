"""GPU time by category over time, in bins: what a page draws as its time axis."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NS_PER_MS, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import number_groups

MOST_BINS = 600


def timeline_bins(work: GpuEvents) -> pd.DataFrame:
    """How long GPU events of each category ran in each bin; summed, so overlaps count twice."""
    if not len(work):
        columns = ["device", "category", "bin", "start_ms", "end_ms", "gpu_time_ns"]
        return pd.DataFrame(columns=columns)
    labels = ["GPU work"]
    category = np.zeros(len(work), dtype=np.int32)
    if work.categories is not None:
        labels = work.categories.labels
        category = work.categories.code
    edges = _bin_edges(work)
    device = work.trace.device
    first_event, group_of_event = number_groups([device, category])
    parts = []
    for group, event in enumerate(first_event.tolist()):
        is_of_group = group_of_event == group
        time_until = _time_run_until(
            times=edges, start=work.start[is_of_group], end=work.end[is_of_group]
        )
        time_in_bin = np.diff(time_until)
        bins = np.flatnonzero(time_in_bin)
        part = {
            "device": device[event],
            "category": labels[category[event]],
            "bin": bins,
            "start_ms": edges[bins] / NS_PER_MS,
            "end_ms": edges[bins + 1] / NS_PER_MS,
            "gpu_time_ns": time_in_bin[bins],
        }
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def _bin_edges(work: GpuEvents) -> Int64Array:
    """Return the ascending edges of at most `MOST_BINS` bins of about one width, ns."""
    first = work.start.min()
    last = max(work.end.max(), first + 1)
    return np.unique(np.linspace(first, last, MOST_BINS + 1).astype(np.int64))


def _time_run_until(
    times: Int64Array, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return how long events ran before each time, summed over the events, ns.

    Events 0 to 4 and 2 to 3, until 3: 3 since the first start and 1 since the second, less 0 since
    the second end, so 4.
    """
    return _time_since(start, times) - _time_since(end, times)


def _time_since(instants: Int64Array, times: Int64Array) -> Int64Array:
    """Return the time that has gone by at each time since all earlier instants, summed, ns."""
    ascending = np.sort(instants)
    sum_of_first: Int64Array = np.append(0, np.cumsum(ascending))
    count = np.searchsorted(ascending, times, side="right")
    time_since: Int64Array = times * count - sum_of_first[count]
    return time_since


TIMELINE_BINS = Table(
    name="timeline_bins",
    description="GPU time by category over time",
    columns=[
        Column("device", "its number"),
        Column("category", "category of the GPU events"),
        Column("bin", "index of the time bin, from 0"),
        Column("start_ms", "of the bin, since the first event of the trace"),
        Column("end_ms", "of the bin, since the first event of the trace"),
        Column(
            "gpu_time_ns",
            "sum of the durations of the GPU events in the bin",
            unit="ns",
        ),
    ],
    build=of_gpu_events(timeline_bins),
    enabled_by="timeline_bins",
    on_every_page=True,
    charts=[
        Chart(
            title="GPU work over time",
            sheet="timeline_bins",
            label_column="bin",
            value_column="gpu_time_ns",
            kind="timeline_bins",
        )
    ],
)
