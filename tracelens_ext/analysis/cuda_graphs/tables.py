"""Graph launches: where they are, what is in them, and which captures tell that.

A launch site is the same path of CPU ops and the same sequence of GPU work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.cuda_graphs.captures import Capture
from tracelens_ext.analysis.cuda_graphs.replays import GraphReplays
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table, Tables
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    NS_PER_US,
    EventKind,
    Int64Array,
    grouping,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import maxima, minima, number_groups, percent, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.nesting import ROOT, nearest_marked


class GraphContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and what its graph launches replay."""

    @property
    def graph_replays(self) -> GraphReplays | None:
        """What graph launches replay, where a capture says so."""


def _graph_launches(work: GpuEvents) -> pd.DataFrame:
    """A row a launch site: same launch call, same path of CPU ops, same names stream by stream.

    Longest busy time first. A launch that started nothing counts too, if another of its name did.
    """
    trace = work.trace
    tree = work.tree
    events = np.flatnonzero(tree.by_graph)
    started = tree.launch_of_gpu[events]
    candidates = trace.rows_of(*LAUNCH_KINDS)
    rows = candidates[np.isin(trace.name[candidates], np.unique(trace.name[started]))]
    launch = np.searchsorted(rows, started)
    path, path_texts = _op_paths(tree, tree.position[rows])
    sequence = _sequences(work, events, launch, len(rows))
    first, site = number_groups([trace.name[rows], path, sequence])
    sites = len(first)
    launches = np.bincount(site, minlength=sites)
    owner = np.full(len(work), NONE)
    owner[events] = launch
    busy = BusyTime(work.start, work.end).by_owner(owner, len(rows))
    count = np.bincount(launch, minlength=len(rows))
    start = minima(launch, work.start[events], len(rows))
    end = maxima(launch, work.end[events], len(rows))
    span = np.where(count > 0, end, 0) - np.where(count > 0, start, 0)
    total = sums(site, busy, sites)
    spans = sums(site, span, sites)
    frame = pd.DataFrame(
        {
            "launch": texts(trace.name[rows[first]], trace.names),
            "path": texts(path[first], path_texts),
            "launches": launches,
            "kernels_per_launch": count[first],
            "busy_time_ms": total / NS_PER_MS,
            "avg_busy_time_us": total / launches / NS_PER_US,
            "min_busy_time_us": minima(site, busy, sites) / NS_PER_US,
            "max_busy_time_us": maxima(site, busy, sites) / NS_PER_US,
            "avg_span_time_us": spans / launches / NS_PER_US,
            "% of GPU busy time": percent(total, union_length(work.start, work.end)),
            **_category_shares(work, events, site[launch], sites),
        }
    )
    return frame.iloc[np.lexsort((rows[first], -total))].reset_index(drop=True)


def _sequences(
    work: GpuEvents, events: Int64Array, launch: Int64Array, launches: int
) -> np.ndarray:
    """A number for the names of each launch's GPU events, stream by stream, (n,)."""
    order = np.lexsort((work.start[events], work.trace.stream[events], launch))
    bounds = np.cumsum(np.bincount(launch, minlength=launches))[:-1]
    parts = np.split(work.name[events[order]], bounds)
    known = Interner[bytes]()
    return known.codes((part.tobytes() for part in parts), launches)


def _op_paths(tree: CallTree, positions: np.ndarray) -> tuple[Int64Array, list[str]]:
    """The CPU ops around each position, outermost first: code of the path, texts (last: none)."""
    is_op = tree.trace.kind[tree.rows] == EventKind.CPU_OP
    above = nearest_marked(tree.parent_position, is_op)
    ops = np.flatnonzero(is_op)
    launches = np.sort(positions)
    bounds = (np.searchsorted(launches, edge) for edge in (ops, tree.subtree_end[ops]))
    ops = ops[np.less(*bounds)]  # those around a position
    index = np.full(len(tree.rows) + 1, ROOT, dtype=np.int32)
    index[ops] = np.arange(len(ops))
    paths = grouping.find_paths(index[above[ops]], tree.trace.name[tree.rows[ops]])
    of_op = np.append(paths.of_node, len(paths))  # the last is what `ROOT` picks
    return of_op[index[above[positions]]], [*paths.texts(tree.trace.names, " > "), ""]


def _category_shares(
    work: GpuEvents, events: Int64Array, site: Int64Array, sites: int
) -> dict[str, object]:
    """The share of each category in the summed durations of each site, longest category first."""
    categories = work.categories
    if categories is None or not len(events):
        return {}
    labels = categories.labels
    cell = site * len(labels) + categories.code[events]
    time = sums(cell, work.duration[events], sites * len(labels)).reshape(sites, len(labels))
    order = [i for i in np.argsort(-time.sum(axis=0), kind="stable").tolist() if time[:, i].any()]
    whole = time.sum(axis=1)
    return {f"{labels[i]} (% of kernel time)": percent(time[:, i], whole) for i in order}


def _graph_operations(work: GpuEvents) -> pd.DataFrame:
    """GPU events of graph launches by the innermost CPU op around the captured launch."""
    trace = work.trace
    events = np.flatnonzero(work.tree.has_captured_op)
    op = work.tree.cpu_op_of_gpu[events]
    groups = grouping.group_durations([trace.name[op]], work.duration[events])
    each, _ = number_groups([op])
    operation = pd.array(texts(groups.keys[0], trace.names), dtype="str")
    calls = np.bincount(groups.number[each], minlength=len(groups))
    columns = {"operation": operation, "calls": calls, "kernels": groups.count}
    return pd.DataFrame({**columns, "total_time_us": groups.total / NS_PER_US})


_KEYS = ["launch", "capture", "graph", "batch_size", "mode"]
_SUMMED = ["replays", "gpu_events", "matched", "inserted", "missing", "gpu_time_ms", "tokens"]


def _graph_captures(context: GraphContext) -> pd.DataFrame:
    """Graph launches by the captured graph that they replay, longest GPU time first.

    Raises:
        UsageError: there is no graph launch, or no capture.
    """
    if (replays := context.graph_replays) is None:
        raise UsageError(
            "this needs a trace with graph launches, and"
            " TreePerfAnalyzer(trace, capture=FILE_OR_FOLDER)"
        )
    trace = replays.tree.trace
    launches = replays.launches
    duration = trace.dur[trace.gpu_rows]
    unknown = Capture("", None, "", [])
    told = zip(launches.rows.tolist(), launches.events, launches.tokens.tolist(), strict=True)
    rows = []
    for (row, events, tokens), match in zip(told, replays.matches, strict=True):
        capture = unknown
        graph = NONE
        nodes = 0
        matched = 0
        if match is not None:
            capture = replays.captures[match.capture]
            graph = match.graph
            nodes = len(capture.graphs[graph].nodes)
            matched = int((match.node != NONE).sum())
        size = capture.likely_size if capture.batch_size is None else capture.batch_size
        key = trace.name_of(row), capture.file, graph, NONE if size is None else size, capture.mode
        counts = 1, len(events), matched, len(events) - matched, nodes - matched
        rows.append((*key, *counts, duration[events].sum(), max(tokens, 0), int(tokens != NONE)))
    frame = pd.DataFrame(rows, columns=[*_KEYS, *_SUMMED, "told"])
    frame = frame.groupby(_KEYS, sort=False, as_index=False).sum()
    says = frame.pop("told").to_numpy()
    sizes = frame["batch_size"].to_numpy()
    mean = frame.pop("tokens").to_numpy() / np.maximum(says, 1)
    padded = (says > 0) & (sizes > 0)
    frame["tokens_per_replay"] = np.where(says > 0, mean, np.nan)
    frame["padding (%)"] = np.where(padded, percent(sizes - mean, sizes), np.nan)
    frame["gpu_time_ms"] /= NS_PER_MS
    for column in ("graph", "batch_size"):
        numbers = frame[column].astype("Int64")
        frame[column] = numbers.where(numbers != NONE)
    return frame.sort_values("gpu_time_ms", ascending=False, kind="stable").reset_index(drop=True)


#: Graph launches with a larger share of the GPU time than this deserve a word of advice.
_MUCH = 0.05
_CATEGORY_SHARE = re.compile(r"(?P<category>.+) \(% of kernel time\)")


def _sites(table: pd.DataFrame) -> pd.DataFrame:
    """The busy time of each launch site, divided as the durations of its kernels are."""
    rows = table[["launches", "kernels_per_launch", "path", "launch"]].itertuples(index=False)
    site = [f"{n:,} \u00d7 {kernels:,} kernels: {path or call}" for n, kernels, path, call in rows]
    if len(set(site)) < len(site):  # same path, as many kernels, but not the same ones
        site = [f"#{number} {text}" for number, text in enumerate(site, 1)]
    told = [(_CATEGORY_SHARE.fullmatch(str(name)), each) for name, each in table.items()]
    shares = {found["category"]: share / 100.0 for found, share in told if found}
    busy = table["busy_time_ms"]
    shares = shares or {"": pd.Series(1.0, index=table.index)}
    parts = (
        pd.DataFrame({"site": site, "category": name, "busy_time_ms": busy * share})
        for name, share in shares.items()
    )
    return pd.concat(parts, ignore_index=True)


def _ask_for_captures(context: GraphContext) -> Iterator[str]:
    """What to do about graph launches that nothing is known of."""
    opaque = context.tree.by_unknown_graph
    gpu_events = context.gpu_events
    total = int(gpu_events.duration.sum())
    if context.graph_replays is None and gpu_events.duration[opaque].sum() > _MUCH * total:
        yield (
            f"Graph launches tell no operations of {gpu_events.count_text(opaque)}; --capture"
            " FILE_OR_FOLDER takes them from the profile in which the graphs were captured."
        )


def capture_notes(context: GraphContext) -> Iterator[str]:
    """How much of the graph launches the captures tell."""
    if context.graph_replays is None:
        return
    by_graph = context.tree.by_graph
    opaque = context.tree.by_opaque_graph
    known = f"{int((by_graph & ~opaque).sum()):,} of {int(by_graph.sum()):,}"
    rest = f"; {context.gpu_events.count_text(opaque)} do not" if opaque.any() else ""
    yield f"{known} GPU events of graph launches have the operation of their capture{rest}."


def _has_graph_launches(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.tree.by_graph.any())


def _has_captures(context: GraphContext, _options: ReportOptions) -> bool:
    return context.graph_replays is not None


def _launch_notes(context: GraphContext, _options: ReportOptions, _tables: Tables) -> Iterator[str]:
    return _ask_for_captures(context)


def _capture_notes(
    context: GraphContext, _options: ReportOptions, _tables: Tables
) -> Iterator[str]:
    return capture_notes(context)


GRAPH_LAUNCHES = Table(
    name="graph_launches",
    shows="Graph launches by the place that launches them",
    columns=[
        Column("launch", "the runtime call"),
        Column(
            "path",
            "the CPU ops around it, outermost first, joined by ` > `; annotations such as "
            "`ProfilerStep#3` are no part of it",
        ),
        Column("launches", "how many", unit="launches"),
        Column("kernels_per_launch", "0 if the trace does not hold their work", unit="GPU events"),
        Column("busy_time_ms", "busy time of the launches, summed"),
        Column("avg_busy_time_us", "of a launch"),
        Column("min_busy_time_us", "of a launch"),
        Column("max_busy_time_us", "of a launch"),
        Column(
            "avg_span_time_us",
            "first start to last end of a launch; what exceeds the busy time is gaps within the "
            "graph",
        ),
        Column("% of GPU busy time", "of the busy time of all GPU events"),
        Column(
            "CATEGORY (% of kernel time)",
            "when categories are on: share in the summed durations of the site",
        ),
    ],
    table=of_gpu_events(_graph_launches),
    when=[
        GPU_EVENTS,
        Condition("a graph launch started GPU events", _has_graph_launches),
    ],
    notes=_launch_notes,
    charts=[
        Chart(
            *("GPU time by graph launch", "graph_launches", "site", "busy_time_ms"),
            kind="stacked",
            top=15,
            series_column="category",
            prepare=_sites,
            on="page",
        )
    ],
)

CAPTURED = [
    GPU_EVENTS,
    Condition(
        "a graph launch started GPU events, and the trace or `--capture` holds captures of graphs",
        _has_captures,
    ),
]
GRAPH_OPERATIONS = Table(
    name="graph_operations",
    shows="Graph launches by the operations that were captured",
    columns=[
        Column("operation", "the innermost CPU op around the captured launch"),
        Column("calls", "how many there are in a graph, summed over its replays", unit="calls"),
        Column("kernels", "how many replay what those launched", unit="GPU events"),
        Column("total_time_us", "summed duration of these"),
    ],
    table=of_gpu_events(_graph_operations),
    screen=ScreenView("Operations inside of graph launches"),
    when=CAPTURED,
)
GRAPH_CAPTURES = Table(
    name="graph_captures",
    shows="Which captured graphs the graph launches replay, and how well they correspond",
    columns=[
        Column("launch", "the runtime call"),
        Column(
            "capture",
            "the file with the capture; empty where none fits, or several that are not the same",
        ),
        Column(
            "graph",
            "its place among the graphs that were captured together, from 0",
            unit="graph",
        ),
        Column(
            "batch_size",
            "what it was captured for; where nothing names it, the first dimension of the first "
            "inputs of most operations",
            unit="batch",
        ),
        Column("mode", "likewise, such as `FULL` or `PIECEWISE`"),
        Column("replays", "launches of that graph", unit="launches"),
        Column("gpu_events", "theirs", unit="GPU events"),
        Column("matched", "those that correspond to a captured launch", unit="GPU events"),
        Column(
            "inserted",
            "those that correspond to none; they stay under the graph launch",
            unit="GPU events",
        ),
        Column("missing", "those that no GPU event corresponds to", unit="captured launches"),
        Column("gpu_time_ms", "summed duration of the GPU events"),
        Column(
            "tokens_per_replay",
            "what the annotation of the step says, on average",
            unit="tokens",
        ),
        Column("padding (%)", "how much of the batch size those do not need"),
    ],
    table=_graph_captures,
    when=CAPTURED,
    notes=_capture_notes,
)
