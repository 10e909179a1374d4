"""GPU time by `nn.Module`: which part of the model the time went to.

Modules are the Python frames that the profiler names `nn.Module: …`. A tree of those frames and of
the launches alone answers the question; it is hundreds of times smaller than one of all frames.
With operations and kernels below, it is small enough to be drawn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    Trace,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import CallPaths, find_paths, percent, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.nesting import ROOT, depths, nearest_marked, nest, summed_up

MODULE_PREFIX = "nn.Module: "
SEPARATOR = "/"
_is_module = methodcaller("startswith", MODULE_PREFIX)
_INSTANCE = re.compile(r"_\d+$")  # PyTorch numbers the modules of a class


@dataclass(frozen=True, eq=False)
class _Frames:
    """The module frames of a trace, parents before children, m of them."""

    rows: Int64Array  #: the frames, (m,)
    parent: Int32Array  #: the module frame around each, `ROOT` without one, (m,)
    #: the innermost module frame around each GPU event's launch, `NONE` without, (g,)
    of_gpu: Int64Array
    #: the same for the forward op that made each GPU event's autograd node, (g,)
    of_forward: Int64Array


def has_modules(trace: Trace) -> bool:
    """Whether the profiler recorded `nn.Module` frames, or the capture of a graph has some."""
    return bool(len(_module_rows(trace)) or _is_replayed_module(trace).any())


def module_of_gpu(work: GpuEvents, *, instances: bool = True) -> tuple[Int64Array, list[str]]:
    """The innermost module around each GPU event's launch, or around its forward operation.

    Codes, `NONE` without a module, (g,), and the paths that they stand for, such as
    `Model_0/Block_3`; without `instances` of classes.
    """
    frames = _find_frames(work)
    paths, labels = _paths(work.trace, frames, instances=instances)
    frame = np.where(frames.of_gpu != NONE, frames.of_gpu, frames.of_forward)
    path = np.append(paths.of_node, NONE)[frame]
    return path, paths.texts(labels, SEPARATOR)


def call_stacks(
    work: GpuEvents, launcher_of_gpu: Int64Array, names: list[str]
) -> tuple[list[str], list[str]]:
    """The class of the innermost module (`NA` for none), and name and modules, of each launcher.

    The modules are those around its first GPU event, innermost first, in a list as text.
    """
    code, paths = module_of_gpu(work)
    of_launcher = np.full(len(names) + 1, NONE, dtype=np.int64)  # the last is that of none
    of_launcher[launcher_of_gpu[::-1]] = code[::-1]
    modules = [path.split(SEPARATOR)[::-1] for path in paths]
    around = [*([f"{MODULE_PREFIX}{name}" for name in each] for each in modules), []]  # of NONE
    stacks = [around[path] for path in of_launcher[:-1].tolist()]
    innermost = [_INSTANCE.sub("", stack[0]) if stack else "NA" for stack in stacks]
    return innermost, [str([name, *stack]) for name, stack in zip(names, stacks, strict=True)]


def nn_modules(work: GpuEvents, *, instances: bool = False) -> pd.DataFrame:
    """GPU time by path of module classes, longest total first; no rows without modules.

    With `instances` there is a row for each module: PyTorch numbers those of a class, `Block_0`.
    """
    frames = _find_frames(work)
    each, _ = _paths(work.trace, frames, instances=True)
    paths, labels = _paths(work.trace, frames, instances=instances)
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    inside = frames.of_gpu != NONE
    path = paths.of_node[frames.of_gpu[inside]]
    of_each = np.zeros(len(each), dtype=np.int64)
    of_each[each.of_node] = paths.of_node
    busy = BusyTime(work.start, work.end)
    total = sums(paths.of_node, busy.by_subtree(frames.parent, frames.of_gpu), len(paths))
    own = sums(paths.of_node, busy.by_owner(frames.of_gpu, len(frames.rows)), len(paths))
    columns: dict[str, object] = {
        "path": paths.texts(labels, SEPARATOR),
        **({} if instances else {"modules": np.bincount(of_each, minlength=len(paths))}),
        "calls": np.bincount(paths.of_node, minlength=len(paths)),
        "kernels": summed_up(parent, depth, np.bincount(path, minlength=len(paths))),
        "gpu_time_total_ms": total / NS_PER_MS,
        "gpu_time_self_ms": own / NS_PER_MS,
        "% of GPU busy time": percent(total, union_length(work.start, work.end)),
    }
    if (categories := work.categories) is not None:  # the longest below each path
        code = categories.code[inside]
        ns = work.duration[inside]
        named = categories.labels
        own_ns = sums(path * len(named) + code, ns, len(paths) * len(named)).reshape(-1, len(named))
        time = np.stack([summed_up(parent, depth, each) for each in own_ns.T], axis=1)
        whole = time.sum(axis=1)
        tops = texts(np.where(whole > 0, time.argmax(axis=1), len(named)), [*named, ""])
        columns["top_category"] = tops
        columns["top_category (% of kernel time)"] = percent(time.max(axis=1), whole)
    if (frames.of_forward != NONE).any():
        backward = busy.by_subtree(frames.parent, frames.of_forward)
        columns["backward_time_ms"] = sums(paths.of_node, backward, len(paths)) / NS_PER_MS
    frame = pd.DataFrame(columns)
    return frame.iloc[np.argsort(-total, kind="stable")].reset_index(drop=True)


def _module_rows(trace: Trace) -> Int64Array:
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    rows: Int64Array = frames[trace.named(trace.name[frames], _is_module)]
    return rows


def _is_replayed_module(trace: Trace) -> BoolArray:
    """Which of the events that graphs replay are module frames, (r,)."""
    result: BoolArray = trace.kind[trace.recorded :] == EventKind.PYTHON_FUNCTION
    result[result] = trace.named(trace.name[trace.recorded :][result], _is_module)
    return result


@cached_per_object
def _find_frames(work: GpuEvents) -> _Frames:
    """Nest module frames, launches, and the forward ops whose backward launched something.

    Frames of captures are around what is captured, within those around the graph's launch.
    """
    trace = work.trace
    tree = work.tree
    replays = work.trace.replays
    modules = _module_rows(trace)
    forward = np.full(len(work), NONE, dtype=np.int64)
    inner = forward[:0]
    if len(modules) or replays is not None:  # without them nothing is looked for
        forward = forward_of_gpu(work)
        launches = tree.launch_of_gpu[tree.linked]
        inner = np.unique(np.concatenate((launches, forward[forward != NONE])))
    rows = np.concatenate((modules, inner))
    kind = np.where(np.arange(len(rows)) < len(modules), 0, 1)  # of two equals the frame encloses
    start = trace.ts[rows]
    leaf = np.isin(trace.kind[rows], LAUNCH_KINDS)
    nesting = nest(trace.thread[rows], start, start + trace.dur[rows], kind, leaf)
    is_module = kind[nesting.order] == 0
    around = _frame_around(nesting.parent, is_module, 0)
    # Row → the frame around it; the last is what `NONE` picks.
    frame_of_row = np.full(len(trace) + 1, NONE, dtype=np.int64)
    frame_of_row[rows[nesting.order]] = around
    rows = rows[nesting.order[is_module]]
    parent = around[is_module]
    if replays is not None:
        is_module = _is_replayed_module(trace)
        around = _frame_around(replays.parent, is_module, len(rows))
        around = np.where(around == ROOT, frame_of_row[replays.graph_launch], around)
        frame_of_row[trace.recorded : -1] = around
        rows = np.concatenate((rows, trace.recorded + np.flatnonzero(is_module)))
        parent = np.concatenate((parent, around[is_module]))
    of_gpu = frame_of_row[tree.parent_of_gpu]
    of_forward = frame_of_row[forward]
    return _Frames(rows, parent.astype(np.int32), of_gpu, of_forward)


def _frame_around(parent: Int32Array, is_module: BoolArray, known: int) -> Int64Array:
    """The module frame above each node of a forest, numbered from `known` on; `ROOT` without."""
    number = np.full(len(is_module) + 1, ROOT, dtype=np.int64)
    number[:-1][is_module] = known + np.arange(is_module.sum())
    return number[nearest_marked(parent, is_module)]


def forward_of_gpu(work: GpuEvents) -> Int64Array:
    """The forward op that made the autograd node around each GPU event's launch, `NONE` without."""
    tree = work.tree
    result = np.full(len(work), NONE, dtype=np.int64)
    if not tree.forward_of_backward:
        return result
    backward_rows, forward_rows = np.array([*tree.forward_of_backward.items()], dtype=np.int64).T
    forward = np.full(len(tree.rows), NONE, dtype=np.int64)
    forward[tree.position[backward_rows]] = forward_rows
    above = nearest_marked(tree.parent_position, forward != NONE)
    at = above[tree.launch_position_of_gpu[tree.linked]]
    result[tree.linked] = np.where(at != ROOT, forward[at], NONE)
    return result


def _paths(trace: Trace, frames: _Frames, *, instances: bool) -> tuple[CallPaths, list[str]]:
    """The paths of frames, by modules or by their classes; and what the names in them stand for."""
    used, codes = np.unique(trace.name[frames.rows], return_inverse=True)
    labels = [trace.names[i].removeprefix(MODULE_PREFIX) for i in used.tolist()]
    if not instances:
        labels, codes = class_names(labels, codes)
    return find_paths(frames.parent, codes), labels


def class_names(labels: list[str], codes: Int64Array) -> tuple[list[str], Int64Array]:
    """The same without the number of the instance: `Block` of `Block_0`, `layers` of `layers/0`."""
    parts = [label.partition(SEPARATOR) for label in labels]
    named = [name if number else _INSTANCE.sub("", name) for name, number, _ in parts]
    classes = {name: code for code, name in enumerate(dict.fromkeys(named))}
    return list(classes), np.array([classes[name] for name in named], dtype=np.int64)[codes]


MOST_NODES = 1000


def call_tree(work: GpuEvents) -> pd.DataFrame:
    """The tree: modules, the operations in them, and their kernels; the largest kernels.

    A row a node, parents before children, at most `MOST_NODES`. What is not shown stands below what
    encloses it as `other`, by category.
    """
    leaves = _leaves(work)
    for shown in (600, 300, 150, 75, 30, 10, 0):
        nodes = _nodes(leaves, shown)
        if len(nodes) <= MOST_NODES:
            break
    nodes = {path: nodes[path] for path in sorted(nodes, key=len)}
    category = [max(times, key=lambda each: times[each]) for times in nodes.values()]
    total = [times.total() for times in nodes.values()]
    return pd.DataFrame({**numbered(nodes), "category": category, "gpu_time_ns": total})


#: Kind and label at each level.
NodePath = tuple[tuple[str, str], ...]


def _leaves(work: GpuEvents) -> list[tuple[NodePath, str, int]]:
    """Path, category and ns of kernels, the longest first."""
    operation, operations = work.tree.cpu_op_label_of_gpu
    (module, modules) = module_of_gpu(work)
    found = work.categories
    categories = found.labels if found is not None else ["GPU work"]
    keys = {"module": module, "operation": operation, "kernel": work.name}
    frame = pd.DataFrame({**keys, "category": 0 if found is None else found.code})
    frame["ns"] = work.duration
    sums = frame.groupby([*frame][:-1], sort=False)["ns"].sum().sort_values(ascending=False)
    above = [tuple(("module", part) for part in path.split(SEPARATOR) if part) for path in modules]
    above.append(())  # of NONE
    return [
        (
            (*above[at], ("operation", operations[op]), ("kernel", work.trace.names[kernel])),
            categories[of],
            ns,
        )
        for (at, op, kernel, of), ns in zip(sums.index.tolist(), sums.tolist(), strict=True)
    ]


def _nodes(leaves: list[tuple[NodePath, str, int]], shown: int) -> dict[NodePath, Counter[str]]:
    """By path the ns by category: of the first leaves and what encloses them, and of `other`."""
    nodes: dict[NodePath, Counter[str]] = {}

    def add(path: NodePath, category: str, ns: int) -> None:
        for depth in range(1, len(path) + 1):
            nodes.setdefault(path[:depth], Counter())[category] += ns

    for leaf in leaves[:shown]:
        add(*leaf)
    kept = frozenset(nodes)
    for path, category, ns in leaves[shown:]:
        depth = len(path) - 1
        while depth and path[:depth] not in kept:
            depth -= 1
        add((*path[:depth], ("other", f"other ({category})")), category, ns)
    return nodes


def numbered(nodes: Mapping[NodePath, Any]) -> dict[str, list[int] | list[str]]:
    """The columns `node`, `parent`, `label` and `kind` of nodes that are sorted, parents first."""
    number = {path: at for at, path in enumerate(nodes)}
    return {
        "node": list(number.values()),
        "parent": [number.get(path[:-1], NONE) for path in nodes],
        "label": [path[-1][1] for path in nodes],
        "kind": [path[-1][0] for path in nodes],
    }


def _nn_modules(context: AnalysisContext, *, nn_module_instances: bool = False) -> pd.DataFrame:
    """GPU time by `nn.Module`."""
    return nn_modules(context.gpu_events, instances=nn_module_instances)


def _has_modules(context: AnalysisContext, _options: ReportOptions) -> bool:
    return has_modules(context.trace)


_HAS_MODULES = Condition("the trace has Python frames of `nn.Module`s", _has_modules)
NN_MODULES = Table(
    name="nn_modules",
    shows="GPU time by nn.Module",
    columns=[
        Column(
            "path",
            "classes, the outermost module first, joined by `/`; with "
            "`nn_module_instances=True` modules, `Block_0`, `Block_1`",
        ),
        Column(
            "modules",
            "how many there are of the path; not with `nn_module_instances=True`",
            unit="modules",
        ),
        Column("calls", "how many", unit="calls"),
        Column("kernels", "launched within", unit="GPU events"),
        Column("gpu_time_total_ms", "busy time of those, summed over the calls"),
        Column("gpu_time_self_ms", "of those that no module within launched"),
        Column(
            "% of GPU busy time",
            "of `gpu_time_total_ms` in the busy time of all GPU events",
        ),
        Column(
            "top_category",
            "when categories are on: that with the longest summed duration within",
        ),
        Column("top_category (% of kernel time)", "its share"),
        Column(
            "backward_time_ms",
            "in training: busy time of what autograd launched for the operations of the "
            "module. It runs on another thread, outside of the module, and is in no other "
            "column.",
        ),
    ],
    table=_nn_modules,
    options=["nn_module_instances"],
    when=[GPU_EVENTS, _HAS_MODULES],
    method="get_df_nn_modules()",
    charts=[
        Chart(
            *("GPU time by module class, without the modules within", "nn_modules", "path"),
            "gpu_time_self_ms",
            top=15,
            on="page",
        )
    ],
)

CALL_TREE = Table(
    name="call_tree",
    shows="GPU time by module, operation and kernel, the largest kernels",
    columns=[
        Column("node", "its number"),
        Column("parent", "the node above it; -1 at the top"),
        Column(
            "label",
            "module, operation or kernel; `other` for what is too small to be shown",
        ),
        Column("kind", "`module`, `operation`, `kernel` or `other`"),
        Column("category", "of its kernels, or of most of them"),
        Column("gpu_time_ns", "summed durations of its GPU events", unit="ns"),
    ],
    table=of_gpu_events(call_tree),
    asked_by="call_tree",
    method='table("call_tree")',
    on_every_page=True,
    charts=[Chart("GPU time in the call tree", "call_tree", "label", "gpu_time_ns", "call_tree")],
)
