"""GPU time by category in bins of time, which a page draws as its time axis."""

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

MAX_BINS = 600


def timeline_bins(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the time of the GPU events of each category in each bin.

    Times are summed, so two events that overlap count twice.
    """
    if not len(gpu_events):
        columns = ["device", "category", "bin", "start_ms", "end_ms", "gpu_time_ns"]
        return pd.DataFrame(columns=columns)
    labels = ["GPU work"]
    category = np.zeros(len(gpu_events), dtype=np.int32)
    if gpu_events.categories is not None:
        labels = gpu_events.categories.labels
        category = gpu_events.categories.code
    edges = _bin_edges(gpu_events)
    device = gpu_events.trace.device
    first_event, group_of_event = number_groups([device, category])
    tables = []
    for group, event in enumerate(first_event.tolist()):
        is_of_group = group_of_event == group
        time_before_edge = _time_before(
            times=edges,
            start=gpu_events.start[is_of_group],
            end=gpu_events.end[is_of_group],
        )
        time_in_bin = np.diff(time_before_edge)
        bins = np.flatnonzero(time_in_bin)
        bins_of_group = {
            "device": device[event],
            "category": labels[category[event]],
            "bin": bins,
            "start_ms": edges[bins] / NS_PER_MS,
            "end_ms": edges[bins + 1] / NS_PER_MS,
            "gpu_time_ns": time_in_bin[bins],
        }
        tables.append(pd.DataFrame(bins_of_group))
    return pd.concat(tables, ignore_index=True)


def _bin_edges(gpu_events: GpuEvents) -> Int64Array:
    """Return the ascending edges of at most `MAX_BINS` bins of nearly equal width, ns."""
    first = gpu_events.start.min()
    last = max(gpu_events.end.max(), first + 1)
    return np.unique(np.linspace(first, last, MAX_BINS + 1).astype(np.int64))


def _time_before(times: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return how long events have run before each time, summed over the events, ns.

    It is the time since all starts minus the time since all ends. For two events, 0 to 4 and 2 to
    3, the result at time 3 is (3 - 0) + (3 - 2) - (3 - 3) = 4.
    """
    return _time_since(start, times) - _time_since(end, times)


def _time_since(instants: Int64Array, times: Int64Array) -> Int64Array:
    """Return the time from all earlier instants to each time, summed over the instants, ns."""
    ascending = np.sort(instants)
    sum_of_first: Int64Array = np.append(0, np.cumsum(ascending))
    earlier_count = np.searchsorted(ascending, times, side="right")
    time_since: Int64Array = times * earlier_count - sum_of_first[earlier_count]
    return time_since


TIMELINE_BINS = Table(
    name="timeline_bins",
    description="GPU time by category, in bins of time",
    columns=[
        Column("device", "number of the device; -1 if not recorded"),
        Column(
            "category", "category of the GPU events; `GPU work` when categories are off"
        ),
        Column("bin", "index of the time bin, from 0"),
        Column("start_ms", "start of the bin, since the first event of the trace"),
        Column("end_ms", "end of the bin, since the first event of the trace"),
        Column(
            "gpu_time_ns",
            "time of the GPU events within the bin, summed over events that overlap",
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
