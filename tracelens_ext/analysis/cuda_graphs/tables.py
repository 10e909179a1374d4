"""The tables of graph launches: their launch sites, their operations, and the captures they replay.

Graph launches belong to the same launch site if they have the same runtime call, the same path of
CPU ops and the same sequence of GPU events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import ScreenView
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
    grouping,
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


class GraphContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the captured graphs that its graph launches replay."""

    @property
    def graph_replays(self) -> GraphReplays | None:
        """The captured graphs that graph launches replay; None without captures."""


@dataclass(frozen=True, eq=False)
class _Launches:
    """The n graph launches of a trace, and the e GPU events that they started."""

    rows: Int64Array  #: the launches, (n,)
    events: Int64Array  #: places in the GPU events, (e,)
    launch: Int64Array  #: the launch of each GPU event, as an index into `rows`, (e,)

    @classmethod
    def of(cls, gpu_events: GpuEvents) -> _Launches:
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


def _graph_launches(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row per launch site, longest busy time first."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    launches = _Launches.of(gpu_events)
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


def _busy_ns(gpu_events: GpuEvents, launches: _Launches) -> Int64Array:
    """Return the busy time of each launch, ns, (n,)."""
    owner = np.full(len(gpu_events), NONE)
    owner[launches.events] = launches.launch
    busy_time = BusyTime(start=gpu_events.start, end=gpu_events.end)
    return busy_time.by_owner(owner, len(launches))


def _span_ns(gpu_events: GpuEvents, launches: _Launches) -> Int64Array:
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


def _kernel_sequences(gpu_events: GpuEvents, launches: _Launches) -> Int32Array:
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


def _graph_operations(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return a row per captured operation: the innermost CPU op around a captured launch."""
    trace = gpu_events.trace
    events = np.flatnonzero(gpu_events.tree.has_captured_op)
    op = gpu_events.tree.cpu_op_of_gpu[events]
    groups = grouping.group_durations([trace.name[op]], gpu_events.duration[events])
    first_event_of_op, _ = number_groups([op])
    calls = np.bincount(groups.group_index[first_event_of_op], minlength=len(groups))
    return pd.DataFrame(
        {
            "operation": pd.array(texts(groups.keys[0], trace.names), dtype="str"),
            "calls": calls,
            "kernels": groups.count,
            "total_time_us": groups.total / NS_PER_US,
        }
    )


_REPLAY_KEYS = ["launch", "capture", "graph", "batch_size", "mode"]


class _ReplayRow(NamedTuple):
    """A graph launch and the captured graph that it replays; unknown numbers are `NONE`."""

    launch: str
    capture: str
    graph: int
    batch_size: int
    mode: str
    replays: int
    gpu_events: int
    matched: int
    inserted: int
    missing: int
    gpu_time_ms: int  #: ns at first; `_graph_captures` sums and converts it
    tokens: int  #: 0 if unknown
    steps_with_tokens: int  #: 1 if the tokens are known, else 0


_NO_CAPTURE = Capture(file="", batch_size=None, mode="", graphs=[])


def _graph_captures(context: GraphContext) -> pd.DataFrame:
    """Return a row per captured graph that is replayed, longest GPU time first.

    Raises:
        UsageError: the trace has no graph launch, or there is no capture.
    """
    replays = context.graph_replays
    if replays is None:
        raise UsageError(
            "this needs a trace with graph launches, and TreePerfAnalyzer(trace, "
            "capture=FILE_OR_FOLDER)"
        )
    launch_count = len(replays.launches.rows)
    rows = [_replay_row(replays, launch) for launch in range(launch_count)]
    launches = pd.DataFrame(rows, columns=_ReplayRow._fields)
    frame = launches.groupby(_REPLAY_KEYS, sort=False, as_index=False).sum()
    steps_with_tokens = frame.pop("steps_with_tokens").to_numpy()
    has_tokens = steps_with_tokens > 0
    batch_size = frame["batch_size"].to_numpy()
    tokens_per_replay = frame.pop("tokens").to_numpy() / np.maximum(
        steps_with_tokens, 1
    )
    padding = percent(batch_size - tokens_per_replay, batch_size)
    has_padding = has_tokens & (batch_size > 0)
    frame["tokens_per_replay"] = np.where(has_tokens, tokens_per_replay, np.nan)
    frame["padding_percent"] = np.where(has_padding, padding, np.nan)
    frame["gpu_time_ms"] /= NS_PER_MS
    for column in ("graph", "batch_size"):
        numbers = frame[column].astype("Int64")
        frame[column] = numbers.where(numbers != NONE)
    return frame.sort_values("gpu_time_ms", ascending=False, kind="stable").reset_index(
        drop=True
    )


def _replay_row(replays: GraphReplays, launch: int) -> _ReplayRow:
    """Return the row of a graph launch, given by its index among the graph launches."""
    trace = replays.tree.trace
    launches = replays.launches
    events = launches.events[launch]
    tokens = int(launches.tokens[launch])
    capture = _NO_CAPTURE
    graph = NONE
    node_count = 0
    matched = 0
    match = replays.matches[launch]
    if match is not None:
        capture = replays.captures[match.capture]
        graph = match.graph
        node_count = len(capture.graphs[graph].nodes)
        matched = int((match.node != NONE).sum())
    batch_size = capture.batch_size
    if batch_size is None:
        batch_size = capture.likely_size
    if batch_size is None:
        batch_size = NONE
    return _ReplayRow(
        launch=trace.name_of(int(launches.rows[launch])),
        capture=capture.file,
        graph=graph,
        batch_size=batch_size,
        mode=capture.mode,
        replays=1,
        gpu_events=len(events),
        matched=matched,
        inserted=len(events) - matched,
        missing=node_count - matched,
        gpu_time_ms=int(trace.dur[trace.gpu_rows[events]].sum()),
        tokens=max(tokens, 0),
        steps_with_tokens=int(tokens != NONE),
    )


#: The least share of GPU time in unknown graphs for which the report asks for captures.
_MIN_SHARE_TO_ADVISE = 0.05
_CATEGORY_SHARE = re.compile(r"(?P<category>.+)_percent")


def _busy_time_by_category(table: pd.DataFrame) -> pd.DataFrame:
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


def _ask_for_captures(context: GraphContext) -> Iterator[str]:
    """Yield the advice to give captures, if graphs of unknown content take much GPU time."""
    is_unknown = context.tree.by_unknown_graph
    gpu_events = context.gpu_events
    total_ns = int(gpu_events.duration.sum())
    unknown_ns = gpu_events.duration[is_unknown].sum()
    if context.graph_replays is None and unknown_ns > _MIN_SHARE_TO_ADVISE * total_ns:
        yield (
            f"The operations of {gpu_events.count_text(is_unknown)} inside graph "
            "launches are unknown; --capture FILE_OR_FOLDER takes them from the "
            "profile in which the graphs were captured."
        )


def capture_notes(context: GraphContext) -> Iterator[str]:
    """Yield how many GPU events of graph launches have the operation of their capture."""
    if context.graph_replays is None:
        return
    by_graph = context.tree.by_graph
    is_opaque = context.tree.by_opaque_graph
    known_count = int((by_graph & ~is_opaque).sum())
    graph_count = int(by_graph.sum())
    note = (
        f"{known_count:,} of {graph_count:,} GPU events of graph launches are "
        "assigned to the operation of their capture."
    )
    if is_opaque.any():
        note += f" Not assigned: {context.gpu_events.count_text(is_opaque)}."
    yield note


def _has_graph_launches(context: AnalysisContext, _options: ReportOptions) -> bool:
    return bool(context.tree.by_graph.any())


def _has_captures(context: GraphContext, _options: ReportOptions) -> bool:
    return context.graph_replays is not None


def _launch_notes(
    context: GraphContext, _options: ReportOptions, _tables: Tables
) -> Iterator[str]:
    return _ask_for_captures(context)


def _capture_notes(
    context: GraphContext, _options: ReportOptions, _tables: Tables
) -> Iterator[str]:
    return capture_notes(context)


GRAPH_LAUNCHES = Table(
    name="graph_launches",
    description="Graph launches, by where they are launched",
    columns=[
        Column("launch", "name of the runtime call that launched the graphs"),
        Column(
            "path",
            "CPU ops around the launches, outermost first, separated by ` > "
            "`; annotations such as `ProfilerStep#3` are not included",
        ),
        Column("launches", "number of launches", unit="launches"),
        Column(
            "kernels_per_launch",
            "number of GPU events of each launch; 0 if the trace does not contain them",
            unit="GPU events",
        ),
        Column("busy_time_ms", "total busy time of the launches"),
        Column("avg_busy_time_us", "mean busy time of a launch"),
        Column("min_busy_time_us", "shortest busy time of a launch"),
        Column("max_busy_time_us", "longest busy time of a launch"),
        Column(
            "avg_span_time_us",
            "mean time from the first start to the last end of the GPU events "
            "of a launch; what exceeds the busy time is gaps within the "
            "graph",
        ),
        Column(
            "% of GPU busy time",
            "`busy_time_ms` as a share of the busy time of all GPU events",
        ),
        Column(
            "CATEGORY_percent",
            "share of the kernel category in the total duration of the GPU "
            "events of the launches, when categories are on",
        ),
    ],
    build=of_gpu_events(_graph_launches),
    requires=[
        GPU_EVENTS,
        Condition("a graph launch started GPU events", _has_graph_launches),
    ],
    notes=_launch_notes,
    charts=[
        Chart(
            title="GPU time by graph launch",
            sheet="graph_launches",
            label_column="site",
            value_column="busy_time_ms",
            kind="stacked",
            top=15,
            series_column="category",
            prepare=_busy_time_by_category,
            on="page",
        )
    ],
)

CAPTURED = [
    GPU_EVENTS,
    Condition(
        "a graph launch started GPU events, and the trace or `--capture` contains "
        "captures of graphs",
        _has_captures,
    ),
]
GRAPH_OPERATIONS = Table(
    name="graph_operations",
    description="Work of the graph launches, by the operation that was captured",
    columns=[
        Column("operation", "innermost CPU op around the captured launches"),
        Column(
            "calls",
            "number of calls of the operation; each replay of a graph counts",
            unit="calls",
        ),
        Column(
            "kernels",
            "number of GPU events that replay these launches",
            unit="GPU events",
        ),
        Column("total_time_us", "total duration of these GPU events"),
    ],
    build=of_gpu_events(_graph_operations),
    screen=ScreenView("Operations in graph launches"),
    requires=CAPTURED,
)
GRAPH_CAPTURES = Table(
    name="graph_captures",
    description="Captured graphs that the graph launches replay, and how well they match",
    columns=[
        Column("launch", "name of the runtime call that launched the graph"),
        Column(
            "capture",
            "file with the capture; empty if no capture matches, or if "
            "several different ones do",
        ),
        Column(
            "graph",
            "position among the graphs that were captured together, from 0",
            unit="graph",
        ),
        Column(
            "batch_size",
            "batch size that the graph was captured for; if not recorded, the "
            "first dimension of the first inputs of most of its operations",
            unit="batch",
        ),
        Column("mode", "mode of the capture, such as `FULL` or `PIECEWISE`"),
        Column("replays", "number of launches of the graph", unit="launches"),
        Column(
            "gpu_events", "number of GPU events of these launches", unit="GPU events"
        ),
        Column(
            "matched",
            "number of GPU events that match a captured launch",
            unit="GPU events",
        ),
        Column(
            "inserted",
            "number of GPU events that match no captured launch; they stay "
            "below the graph launch",
            unit="GPU events",
        ),
        Column(
            "missing",
            "number of captured launches that no GPU event matches",
            unit="captured launches",
        ),
        Column("gpu_time_ms", "total duration of the GPU events"),
        Column(
            "tokens_per_replay",
            "mean number of tokens per launch, from the annotations of the steps",
            unit="tokens",
        ),
        Column(
            "padding_percent", "share of the batch size that these tokens do not use"
        ),
    ],
    build=_graph_captures,
    requires=CAPTURED,
    notes=_capture_notes,
)
