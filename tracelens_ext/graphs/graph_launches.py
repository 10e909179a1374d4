"""Graph launches: by launch site, by what they replay, and by the operations that a capture tells.

A launch site is the same path of CPU ops and the same sequence of GPU work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import union_length
from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, NS_PER_US, EventKind
from tracelens_ext.work.busy_time import BusyTime
from tracelens_ext.work.grouping import (
    find_paths,
    group_durations,
    maxima,
    minima,
    number_groups,
    percent,
    sums,
    texts,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.graphs.replays import GraphReplays
    from tracelens_ext.trace import Float64Array, Int64Array, IntArray
    from tracelens_ext.tree import CallTree
    from tracelens_ext.work.gpu_work import GpuWork


SEPARATOR = " > "


def graph_launches(work: GpuWork) -> pd.DataFrame:
    """A row a launch site: same launch call, same path of CPU ops, same sequence of GPU events.

    The sequence is that of the names, in order of start within a stream. Longest busy time first.
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
    """The graph launches, ascending; and which of them, or `NONE`, started each GPU event.

    A launch that started nothing counts too (a trace may end before its work does), as long as
    another of the same name shows that the call launches graphs.
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
    """The site of each launch; and the first launch of each site."""
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


def graph_operations(work: GpuWork) -> pd.DataFrame:
    """GPU events of graph launches by the innermost CPU op around the captured launch.

    Longest total first. Events that no captured launch corresponds to, or without a CPU op around
    it, are in no row.
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


_KEYS = ["launch", "capture", "graph", "batch_size", "mode"]


def graph_captures(replays: GraphReplays) -> pd.DataFrame:
    """Graph launches by the captured graph that they replay, longest GPU time first."""
    trace, launches = replays.tree.trace, replays.launches
    duration = trace.dur[trace.gpu_rows]
    rows = []
    for number, match in enumerate(replays.matches):
        events = launches.events[number]
        row: dict[str, object] = {
            "launch": trace.name_of(int(launches.rows[number])),
            "capture": "",
            "graph": NONE,
            "batch_size": NONE,
            "mode": "",
            "replays": 1,
            "gpu_events": len(events),
            "matched": 0,
            "inserted": len(events),
            "missing": 0,
            "gpu_time_ms": int(duration[events].sum()),
            "tokens": max(int(launches.tokens[number]), 0),
            "told": int(launches.tokens[number] != NONE),
        }
        if match is not None:
            capture = replays.captures[match.capture]
            matched = int((match.node != NONE).sum())
            known = capture.likely_size if capture.batch_size is None else capture.batch_size
            row |= {
                "capture": capture.file,
                "graph": match.graph,
                "batch_size": NONE if known is None else known,
                "mode": capture.mode,
                "matched": matched,
                "inserted": len(events) - matched,
                "missing": len(capture.graphs[match.graph].nodes) - matched,
            }
        rows.append(row)
    frame = pd.DataFrame(rows).groupby(_KEYS, sort=False, as_index=False).sum()
    told, sizes = frame.pop("told").to_numpy(), frame["batch_size"].to_numpy()
    tokens = frame.pop("tokens").to_numpy() / np.maximum(told, 1)
    padded = (told > 0) & (sizes > 0)
    frame["tokens_per_replay"] = np.where(told > 0, tokens, np.nan)
    frame["padding (%)"] = np.where(padded, percent(sizes - tokens, sizes), np.nan)
    frame["gpu_time_ms"] /= NS_PER_MS
    for column in ("graph", "batch_size"):
        numbers = frame[column].astype("Int64")
        frame[column] = numbers.where(numbers != NONE)
    return frame.sort_values("gpu_time_ms", ascending=False, kind="stable").reset_index(drop=True)
