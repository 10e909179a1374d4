"""The launch sites of graph launches, and their GPU time.

Graph launches belong to the same launch site if they have the same runtime call, the same path of
CPU ops and the same sequence of GPU events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    NS_PER_US,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    call_paths,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import (
    maxima,
    minima,
    number_groups,
    percent,
    sums,
    texts,
)
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: The name of a column with the share of a category.
_CATEGORY_SHARE = re.compile(r"(?P<category>.+)_percent")


@dataclass(frozen=True, eq=False)
class _LaunchedEvents:
    """The n graph launches of a trace, and the e GPU events that they started."""

    rows: Int64Array  #: the launches, (n,)
    events: Int64Array  #: places in the GPU events, (e,)
    launch: Int64Array  #: the launch of each GPU event, as an index into `rows`, (e,)

    @classmethod
    def of(cls, gpu_events: GpuEvents) -> _LaunchedEvents:
        """Return the graph launches of a trace.

        A launch that started no GPU event counts as a graph launch if another runtime call of the
        same name started GPU events of a graph.
        """
        trace = gpu_events.trace
        tree = gpu_events.tree
        events = np.flatnonzero(tree.by_graph)
        launch_rows = tree.launch_of_gpu[events]
        candidates = trace.rows_of(*LAUNCH_KINDS)
        names = np.unique(trace.name[launch_rows])
        rows = candidates[np.isin(trace.name[candidates], names)]
        return cls(rows=rows, events=events, launch=np.searchsorted(rows, launch_rows))

    def __len__(self) -> int:
        return len(self.rows)


def launch_sites(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row per launch site, longest busy time first."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    launches = _LaunchedEvents.of(gpu_events)
    path, path_texts = _op_paths(tree, tree.position[launches.rows])
    sequence = _kernel_sequences(gpu_events, launches)
    first, site = number_groups([trace.name[launches.rows], path, sequence])
    site_count = len(first)
    launches_of_site = np.bincount(site, minlength=site_count)
    events_of_launch = np.bincount(launches.launch, minlength=len(launches))
    busy_ns = _busy_ns(gpu_events, launches)
    site_busy_ns = sums(site, busy_ns, site_count)
    site_span_ns = sums(site, _span_ns(gpu_events, launches), site_count)
    all_busy_ns = union_length(gpu_events.start, gpu_events.end)
    columns: dict[str, object] = {
        "launch": texts(trace.name[launches.rows[first]], trace.names),
        "path": texts(path[first], path_texts),
        "launches": launches_of_site,
        "kernels_per_launch": events_of_launch[first],
        "busy_time_ms": site_busy_ns / NS_PER_MS,
        "avg_busy_time_us": site_busy_ns / launches_of_site / NS_PER_US,
        "min_busy_time_us": minima(site, busy_ns, site_count) / NS_PER_US,
        "max_busy_time_us": maxima(site, busy_ns, site_count) / NS_PER_US,
        "avg_span_time_us": site_span_ns / launches_of_site / NS_PER_US,
        "% of GPU busy time": percent(site_busy_ns, all_busy_ns),
    }
    site_of_event = site[launches.launch]
    columns |= _category_shares(
        gpu_events=gpu_events,
        events=launches.events,
        site=site_of_event,
        site_count=site_count,
    )
    order = np.lexsort((launches.rows[first], -site_busy_ns))
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def _busy_ns(gpu_events: GpuEvents, launches: _LaunchedEvents) -> Int64Array:
    """Return the busy time of each launch, ns, (n,)."""
    owner = np.full(len(gpu_events), NONE)
    owner[launches.events] = launches.launch
    busy_time = BusyTime(start=gpu_events.start, end=gpu_events.end)
    return busy_time.by_owner(owner, len(launches))


def _span_ns(gpu_events: GpuEvents, launches: _LaunchedEvents) -> Int64Array:
    """Return the time from the first start to the last end of each launch, ns, (n,)."""
    count = len(launches)
    start = minima(
        group_index=launches.launch,
        values=gpu_events.start[launches.events],
        group_count=count,
    )
    end = maxima(
        group_index=launches.launch,
        values=gpu_events.end[launches.events],
        group_count=count,
    )
    has_events = np.bincount(launches.launch, minlength=count) > 0
    span: Int64Array = np.zeros(count, dtype=np.int64)
    span[has_events] = end[has_events] - start[has_events]
    return span


def _kernel_sequences(gpu_events: GpuEvents, launches: _LaunchedEvents) -> Int32Array:
    """Return a number for the sequence of each launch's kernels, stream by stream, (n,)."""
    events = launches.events
    stream = gpu_events.trace.stream[events]
    order = np.lexsort((gpu_events.start[events], stream, launches.launch))
    events_of_launch = np.bincount(launches.launch, minlength=len(launches))
    bounds = np.cumsum(events_of_launch)[:-1]
    names_by_launch = np.split(gpu_events.name[events[order]], bounds)
    sequences = Interner[bytes]()
    return sequences.codes(
        (names.tobytes() for names in names_by_launch), len(launches)
    )


def _op_paths(tree: CallTree, positions: IntArray) -> tuple[Int64Array, list[str]]:
    """Return the path of CPU ops around positions in the tree, outermost op first.

    Returns:
        A code for the path of each position, and the texts of the codes. The last text is empty:
        it is the path of positions outside of CPU ops.
    """
    names = tree.trace.names
    is_op = tree.trace.kind[tree.rows] == EventKind.CPU_OP
    op_above = nearest_marked(tree.parent_position, is_op)
    ops = np.flatnonzero(is_op)
    # Ops without any of the positions in their subtree are left out. A subtree is a range of
    # positions, so it contains one if the sorted positions have one between its two ends.
    sorted_positions = np.sort(positions)
    first_inside = np.searchsorted(sorted_positions, ops)
    first_after = np.searchsorted(sorted_positions, tree.subtree_end[ops])
    ops = ops[first_inside < first_after]
    index_of_op = np.full(len(tree.rows), ROOT, dtype=np.int32)
    index_of_op[ops] = np.arange(len(ops))
    parents = values_at(index_of_op, op_above[ops], missing=ROOT)
    name_of_op = tree.trace.name[tree.rows[ops]]
    paths = call_paths.find_paths(parents, name_of_op)
    innermost_op = values_at(index_of_op, op_above[positions], missing=ROOT)
    no_path = len(paths)
    path_texts = list(paths.texts(names, " > "))
    path_texts.append("")
    path = values_at(paths.of_node, innermost_op, missing=no_path)
    return path, path_texts


def _category_shares(
    gpu_events: GpuEvents, events: Int64Array, site: Int64Array, site_count: int
) -> dict[str, object]:
    """Return a column for the share of each category in the GPU time of the launch sites.

    The category with the longest time comes first.

    Args:
        gpu_events: all GPU events.
        events: the GPU events of graph launches, (e,).
        site: the launch site of each of these, (e,).
        site_count: the number of launch sites.
    """
    categories = gpu_events.categories
    if categories is None or not len(events):
        return {}
    labels = categories.labels
    # One sum per pair of a site and a category makes a table (site_count, categories).
    pair = site * len(labels) + categories.code[events]
    time_of_pair = sums(
        group_index=pair,
        values=gpu_events.duration[events],
        group_count=site_count * len(labels),
    )
    time = time_of_pair.reshape(site_count, len(labels))
    time_of_category = time.sum(axis=0)
    time_of_site = time.sum(axis=1)
    shares: dict[str, object] = {}
    for category in np.argsort(-time_of_category, kind="stable").tolist():
        if time[:, category].any():
            title = f"{labels[category]}_percent"
            shares[title] = percent(time[:, category], time_of_site)
    return shares


def busy_time_by_category(table: pd.DataFrame) -> pd.DataFrame:
    """Return the busy time of each launch site, divided among the categories of its kernels.

    The busy time is divided in proportion to the summed durations of the kernels.
    """
    labels = []
    for row in table.to_dict("records"):
        location = row["path"] or row["launch"]
        labels.append(
            f"{row['launches']:,} \u00d7 {row['kernels_per_launch']:,} kernels: {location}"
        )
    # Two sites may have the same path and number of kernels, but different kernels.
    if len(set(labels)) < len(labels):
        labels = [f"#{number} {label}" for number, label in enumerate(labels, 1)]
    shares = {}
    for name, values in table.items():
        share_column = _CATEGORY_SHARE.fullmatch(str(name))
        if share_column:
            shares[share_column["category"]] = values / 100.0
    if not shares:
        shares = {"": pd.Series(1.0, index=table.index)}
    parts = []
    for category, share in shares.items():
        busy_time = table["busy_time_ms"] * share
        part = {"site": labels, "category": category, "busy_time_ms": busy_time}
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)
