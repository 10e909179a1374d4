"""Graph launches by launch site: the same path of CPU ops and the same sequence of GPU work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import union_length
from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, NS_PER_US, EventKind
from tracelens_ext.work.busy_time import BusyTime
from tracelens_ext.work.call_paths import find_paths
from tracelens_ext.work.grouping import maxima, minima, number_groups, percent, sums, texts

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Float64Array, Int64Array, IntArray
    from tracelens_ext.tree import CallTree
    from tracelens_ext.work.gpu_work import GpuWork

SEPARATOR = " > "


def graph_launches(work: GpuWork) -> pd.DataFrame:
    """A row a launch site: same launch call, same path of CPU ops, same sequence of GPU events.

    The sequence is that of the names, in order of start within a stream.

    Returns:
        Columns as the sheet `graph_launches`. Longest busy time first. No rows without graph
        launches.
    """
    rows, launch_of_gpu = _launches(work)
    site, first = _sites(work, rows, launch_of_gpu)
    sites = len(first)
    launches = np.bincount(site, minlength=sites)
    busy = BusyTime(work.start, work.end).by_owner(launch_of_gpu, len(rows))
    events = np.flatnonzero(launch_of_gpu != NONE)
    of_event = launch_of_gpu[events]
    count = np.bincount(of_event, minlength=len(rows))
    start = minima(of_event, work.start[events], len(rows))
    end = maxima(of_event, work.end[events], len(rows))
    span = np.where(count > 0, end, 0) - np.where(count > 0, start, 0)
    total, spans = sums(site, busy, sites), sums(site, span, sites)
    path, path_texts = _op_paths(work.tree, work.tree.position[rows[first]])
    frame = pd.DataFrame(
        {
            "launch": texts(work.trace.name[rows[first]], work.trace.names),
            "path": texts(path, path_texts),
            "launches": launches,
            "kernels_per_launch": count[first],
            "busy_time_ms": total / NS_PER_MS,
            "avg_busy_time_us": total / launches / NS_PER_US,
            "min_busy_time_us": minima(site, busy, sites) / NS_PER_US,
            "max_busy_time_us": maxima(site, busy, sites) / NS_PER_US,
            "avg_span_time_us": spans / launches / NS_PER_US,
            "% of GPU busy time": percent(total, union_length(work.start, work.end)),
            **_category_shares(work, events, site[of_event], sites),
        }
    )
    return frame.iloc[np.lexsort((rows[first], -total))].reset_index(drop=True)


def _launches(work: GpuWork) -> tuple[Int64Array, Int64Array]:
    """The graph launches, and which of them started each GPU event.

    A launch that started nothing counts too (a trace may end before its work does), as long as
    another of the same name shows that the call launches graphs.

    Returns:
        Rows, ascending, shape (n,); index into them or `NONE` for each GPU event, (g,).
    """
    tree, trace = work.tree, work.trace
    started = np.where(tree.by_graph, tree.launch_of_gpu, NONE)
    calls = np.unique(trace.name[started[started != NONE]])
    candidates = trace.rows_of(*LAUNCH_KINDS)
    rows = candidates[np.isin(trace.name[candidates], calls)]
    index = np.searchsorted(rows, started)
    return rows, np.where(started != NONE, index, NONE)


def _sites(
    work: GpuWork, rows: Int64Array, launch_of_gpu: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Number the launch sites.

    Returns:
        The site of each launch, shape (n,); the first launch of each site, (s,).
    """
    path, _ = _op_paths(work.tree, work.tree.position[rows])
    sequence = _sequence_hash(work, launch_of_gpu, len(rows))
    first, site = number_groups([work.trace.name[rows], path, sequence.view(np.int64)])
    return site, first


def _sequence_hash(work: GpuWork, launch_of_gpu: Int64Array, launches: int) -> IntArray:
    """A 64-bit hash of the names of each launch's GPU events, stream by stream, shape (n,)."""
    events = np.flatnonzero(launch_of_gpu != NONE)
    stream, launch = work.trace.stream[events], launch_of_gpu[events]
    order = np.lexsort((work.start[events], stream, launch))
    launch = launch[order]
    names = work.name[events[order]].astype(np.uint64)
    count = np.bincount(launch, minlength=launches)
    begin = np.cumsum(count) - count
    place = (np.arange(len(launch)) - begin[launch]).astype(np.uint64)
    hashes = np.zeros(launches, dtype=np.uint64)
    np.add.at(hashes, launch, _mix(_mix(place) + names))
    return _mix(hashes + count.astype(np.uint64))


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64 bits: the finalizer of the SplitMix64 generator."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _op_paths(tree: CallTree, positions: IntArray) -> tuple[Int64Array, list[str]]:
    """The CPU ops around each position, outermost first: code of the path, and the texts.

    The last text is empty: the path of a position that no CPU op encloses.
    """
    parent = tree.parent_position
    is_op = tree.trace.kind[tree.rows] == EventKind.CPU_OP
    around = nearest_above(parent, positions, is_op)
    needed = np.zeros(len(tree.rows), dtype=bool)
    fresh = np.unique(around)
    while len(fresh := fresh[fresh != ROOT]):
        needed[fresh] = True
        fresh = np.unique(nearest_above(parent, fresh, is_op))
        fresh = fresh[~needed[fresh]]
    places = np.flatnonzero(needed)
    index = np.full(len(tree.rows) + 1, ROOT, dtype=np.int32)
    index[places] = np.arange(len(places))
    above = index[nearest_above(parent, places, is_op)]
    paths = find_paths(above, tree.trace.name[tree.rows[places]])
    of_place = np.append(paths.of_node, len(paths))  # the last is what `ROOT` picks
    return of_place[index[around]], [*paths.texts(tree.trace.names, SEPARATOR), ""]


def _category_shares(
    work: GpuWork, events: Int64Array, site: Int64Array, sites: int
) -> dict[str, Float64Array]:
    """The share of each category in the summed durations of each site, longest category first."""
    categories = work.categories
    if categories is None or not len(events):
        return {}
    labels = categories.labels
    cell = site * len(labels) + categories.code[events]
    time = sums(cell, work.duration[events], sites * len(labels)).reshape(sites, len(labels))
    order = np.argsort(-time.sum(axis=0), kind="stable")
    return {
        f"{labels[i]} (% of kernel time)": percent(time[:, i], time.sum(axis=1))
        for i in order.tolist()
        if time[:, i].any()
    }
