"""GPU time by `nn.Module`: which part of the model the time went to.

Modules are the Python frames that the profiler names `nn.Module: …`. A tree of those frames and of
the launches alone answers the question; it is hundreds of times smaller than one of all frames.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
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
    IntArray,
    Replays,
    Trace,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_paths import CallPaths, find_paths
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, depths, nearest_marked, nest, summed_up

MODULE_PREFIX = "nn.Module: "
SEPARATOR = "/"
_NO_MODULE = "NA"
#: PyTorch numbers the modules of a class.
_INSTANCE = re.compile(r"_\d+$")


@dataclass(frozen=True, eq=False)
class _Frames:
    """The module frames of a trace, parents before children, m of them.

    Attributes:
        rows: the frames, (m,).
        parent: the module frame around each, `ROOT` without one, (m,).
        of_gpu: the innermost module frame around each GPU event's launch, `NONE` without, (g,).
        of_forward: the same for the forward op that made each GPU event's autograd node, (g,).
    """

    rows: Int64Array
    parent: Int32Array
    of_gpu: Int64Array
    of_forward: Int64Array


def has_modules(trace: Trace) -> bool:
    """Return whether `nn.Module` frames were recorded, or the capture of a graph has some."""
    return bool(len(_module_rows(trace)) or _is_replayed_module(trace).any())


def module_of_gpu(
    work: GpuEvents, *, instances: bool = True
) -> tuple[Int64Array, list[str]]:
    """Return the innermost module around each GPU event's launch, or around its forward operation.

    Args:
        work: the GPU events.
        instances: whether paths are of modules, such as `Model_0/Block_3`, or of their classes.

    Returns:
        Codes, `NONE` without a module, (g,), and the paths that they stand for.
    """
    frames = _find_frames(work)
    paths, labels = _paths(work.trace, frames, instances=instances)
    frame = np.where(frames.of_gpu != NONE, frames.of_gpu, frames.of_forward)
    path = values_at(paths.of_node, frame)
    return path, paths.texts(labels, SEPARATOR)


class ModuleStacks(NamedTuple):
    """The modules around launchers."""

    innermost_class: list[str]  #: the class of the innermost module, `NA` for none
    #: the name of the launcher and all modules, innermost first; a list as text
    stacks: list[str]


def call_stacks(
    work: GpuEvents, launcher_of_gpu: Int64Array, names: list[str]
) -> ModuleStacks:
    """Return the modules around the first GPU event of each launcher.

    Args:
        work: the GPU events.
        launcher_of_gpu: the launcher of each GPU event, `NONE` for none, (g,).
        names: the name of each launcher.
    """
    path_of_gpu, paths = module_of_gpu(work)
    path_of_launcher = np.full(len(names), NONE, dtype=np.int64)
    has_launcher = np.flatnonzero(launcher_of_gpu != NONE)
    # so that the first event of a launcher is written last
    first_last = has_launcher[::-1]
    path_of_launcher[launcher_of_gpu[first_last]] = path_of_gpu[first_last]
    modules_of_path = []
    for path in paths:
        modules = path.split(SEPARATOR)[::-1]
        modules_of_path.append([f"{MODULE_PREFIX}{module}" for module in modules])
    innermost = []
    stacks = []
    for name, path_number in zip(names, path_of_launcher.tolist(), strict=True):
        modules = modules_of_path[path_number] if path_number != NONE else []
        innermost.append(_INSTANCE.sub("", modules[0]) if modules else _NO_MODULE)
        stacks.append(str([name] + modules))
    return ModuleStacks(innermost, stacks)


def nn_modules(work: GpuEvents, *, instances: bool = False) -> pd.DataFrame:
    """Return GPU time by path of module classes, longest total first; no rows without modules.

    With `instances` there is a row for each module: PyTorch numbers those of a class, `Block_0`.
    """
    frames = _find_frames(work)
    paths, labels = _paths(work.trace, frames, instances=instances)
    count = len(paths)
    busy = BusyTime(start=work.start, end=work.end)
    busy_of_frame = busy.by_subtree(frames.parent, frames.of_gpu)
    own_of_frame = busy.by_owner(frames.of_gpu, len(frames.rows))
    total = sums(paths.of_node, busy_of_frame, count)
    own_times = sums(paths.of_node, own_of_frame, count)
    parent = paths.parent.astype(np.int32)
    events = np.flatnonzero(frames.of_gpu != NONE)
    path_of_event = paths.of_node[frames.of_gpu[events]]
    own_events = np.bincount(path_of_event, minlength=count)
    columns: dict[str, object] = {"path": paths.texts(labels, SEPARATOR)}
    if not instances:
        columns["modules"] = _modules_of_paths(work.trace, frames, paths)
    columns["calls"] = np.bincount(paths.of_node, minlength=count)
    columns["kernels"] = summed_up(parent, depths(parent), own_events)
    columns["gpu_time_total_ms"] = total / NS_PER_MS
    columns["gpu_time_self_ms"] = own_times / NS_PER_MS
    columns["% of GPU busy time"] = percent(total, union_length(work.start, work.end))
    columns |= _top_category_columns(
        work=work, paths=paths, events=events, path_of_event=path_of_event
    )
    if (frames.of_forward != NONE).any():
        backward = busy.by_subtree(frames.parent, frames.of_forward)
        columns["backward_time_ms"] = sums(paths.of_node, backward, count) / NS_PER_MS
    frame = pd.DataFrame(columns)
    return frame.iloc[np.argsort(-total, kind="stable")].reset_index(drop=True)


def _modules_of_paths(trace: Trace, frames: _Frames, paths: CallPaths) -> Int64Array:
    """Return how many modules there are of each path of classes."""
    module_paths, _ = _paths(trace, frames, instances=True)
    modules = len(module_paths)
    class_path_of_module = np.zeros(modules, dtype=np.int64)
    class_path_of_module[module_paths.of_node] = paths.of_node
    return np.bincount(class_path_of_module, minlength=len(paths))


def _top_category_columns(
    work: GpuEvents, paths: CallPaths, events: IntArray, path_of_event: IntArray
) -> dict[str, object]:
    """Return the category with the longest summed duration below each path, and its share.

    Args:
        work: the GPU events.
        paths: the paths.
        events: the GPU events that are in a module.
        path_of_event: the path of each of those.
    """
    categories = work.categories
    if categories is None:
        return {}
    labels = categories.labels
    cell = path_of_event * len(labels) + categories.code[events]
    own_times = sums(
        group_index=cell,
        values=work.duration[events],
        group_count=len(paths) * len(labels),
    )
    own_times = own_times.reshape(len(paths), len(labels))
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    columns = [summed_up(parent, depth, column) for column in own_times.T]
    times = np.stack(columns, axis=1)
    whole = times.sum(axis=1)
    none = len(labels)
    top = np.where(whole > 0, times.argmax(axis=1), none)
    return {
        "top_category": texts(top, labels + [""]),
        "top_category_percent": percent(times.max(axis=1), whole),
    }


def _is_module(name: str) -> bool:
    return name.startswith(MODULE_PREFIX)


def _module_rows(trace: Trace) -> Int64Array:
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    rows: Int64Array = frames[trace.named(trace.name[frames], _is_module)]
    return rows


def _is_replayed_module(trace: Trace) -> BoolArray:
    """Return which of the events that graphs replay are module frames, (r,)."""
    is_frame = trace.kind[trace.recorded :] == EventKind.PYTHON_FUNCTION
    frames = np.flatnonzero(is_frame)
    names = trace.name[trace.recorded + frames]
    result = np.zeros(len(is_frame), dtype=bool)
    result[frames] = trace.named(names, _is_module)
    return result


@cached_per_object
def _find_frames(work: GpuEvents) -> _Frames:
    """Nest module frames, launches, and the forward ops whose backward launched something.

    Frames of captures are around what is captured, within those around the graph's launch.
    """
    trace = work.trace
    tree = work.tree
    modules = _module_rows(trace)
    forward = np.full(len(work), NONE, dtype=np.int64)
    inner = np.empty(0, dtype=np.int64)
    if len(modules) or trace.replays is not None:
        forward = forward_of_gpu(work)
        launches = tree.launch_of_gpu[tree.linked]
        forward_rows = forward[forward != NONE]
        inner = np.unique(np.concatenate((launches, forward_rows)))
    recorded = _nest_recorded(trace, modules, inner)
    frames = recorded
    if trace.replays is not None:
        frames = _with_replayed_frames(trace, trace.replays, recorded)
    return _Frames(
        rows=frames.rows,
        parent=frames.parent.astype(np.int32),
        of_gpu=values_at(frames.frame_of_row, tree.parent_of_gpu),
        of_forward=values_at(frames.frame_of_row, forward),
    )


class _NestedFrames(NamedTuple):
    """Module frames, and which events are in them."""

    rows: Int64Array  #: the frames, parents before children, (m,)
    parent: Int64Array  #: the frame around each, an index, `ROOT` without one, (m,)
    #: the frame around each event of the trace, `NONE` without, (n,)
    frame_of_row: Int64Array


def _nest_recorded(
    trace: Trace, modules: Int64Array, inner: Int64Array
) -> _NestedFrames:
    """Nest recorded module frames and some events that may be in them."""
    rows = np.concatenate((modules, inner))
    # Of a frame and another event with equal times, the frame encloses.
    rank = np.repeat((0, 1), (len(modules), len(inner)))
    is_leaf = np.isin(trace.kind[rows], LAUNCH_KINDS)
    nesting = nest(
        thread=trace.thread[rows],
        start=trace.ts[rows],
        end=trace.end_of(rows),
        tie=rank,
        childless=is_leaf,
    )
    is_module = rank[nesting.order] == 0
    around = _frame_around(nesting.parent, is_module, 0)
    frame_of_row = np.full(len(trace), NONE, dtype=np.int64)
    frame_of_row[rows[nesting.order]] = around
    return _NestedFrames(
        rows=rows[nesting.order[is_module]],
        parent=around[is_module],
        frame_of_row=frame_of_row,
    )


def _with_replayed_frames(
    trace: Trace, replays: Replays, recorded: _NestedFrames
) -> _NestedFrames:
    """Return the recorded frames, and those that graphs replay, within those of their launch."""
    is_module = _is_replayed_module(trace)
    around = _frame_around(
        parent=replays.parent, is_module=is_module, first_number=len(recorded.rows)
    )
    around_launch = values_at(recorded.frame_of_row, replays.graph_launch)
    around = np.where(around == ROOT, around_launch, around)
    frame_of_row = recorded.frame_of_row.copy()
    frame_of_row[trace.recorded :] = around
    replayed_rows = trace.recorded + np.flatnonzero(is_module)
    return _NestedFrames(
        rows=np.concatenate((recorded.rows, replayed_rows)),
        parent=np.concatenate((recorded.parent, around[is_module])),
        frame_of_row=frame_of_row,
    )


def _frame_around(
    parent: Int32Array, is_module: BoolArray, first_number: int
) -> Int64Array:
    """Return the module frame above each node of a forest, `ROOT` without one.

    Frames are numbered from `first_number` on.
    """
    number = np.full(len(is_module), ROOT, dtype=np.int64)
    number[is_module] = first_number + np.arange(is_module.sum())
    return values_at(number, nearest_marked(parent, is_module), missing=ROOT)


def forward_of_gpu(work: GpuEvents) -> Int64Array:
    """Return the forward op that made the autograd node around each GPU event's launch, (g,).

    `NONE` without one.
    """
    tree = work.tree
    result = np.full(len(work), NONE, dtype=np.int64)
    if not tree.forward_of_backward:
        return result
    pairs = np.array(list(tree.forward_of_backward.items()), dtype=np.int64)
    backward_rows = pairs[:, 0]
    forward_rows = pairs[:, 1]
    forward = np.full(len(tree.rows), NONE, dtype=np.int64)
    forward[tree.position[backward_rows]] = forward_rows
    node_above = nearest_marked(tree.parent_position, forward != NONE)
    node_of_gpu = values_at(node_above, tree.launch_position_of_gpu, missing=ROOT)
    return values_at(forward, node_of_gpu)


def _paths(
    trace: Trace, frames: _Frames, *, instances: bool
) -> tuple[CallPaths, list[str]]:
    """Return the paths of frames, by modules or classes; and what the names in them stand for."""
    names, codes = np.unique(trace.name[frames.rows], return_inverse=True)
    labels = [trace.names[code].removeprefix(MODULE_PREFIX) for code in names.tolist()]
    if not instances:
        labels, codes = class_names(labels, codes)
    return find_paths(frames.parent, codes), labels


def class_names(labels: list[str], codes: Int64Array) -> tuple[list[str], Int64Array]:
    """Return labels without the number of the instance, and codes that stand for them.

    `Block` of `Block_0`, `layers` of `layers/0`.
    """
    code_of_class: dict[str, int] = {}
    class_of_label = []
    for label in labels:
        class_name, separator, _ = label.partition(SEPARATOR)
        if not separator:
            class_name = _INSTANCE.sub("", class_name)
        code = code_of_class.setdefault(class_name, len(code_of_class))
        class_of_label.append(code)
    new_codes = np.array(class_of_label, dtype=np.int64)[codes]
    return list(code_of_class), new_codes


def _nn_modules(
    context: AnalysisContext, *, nn_module_instances: bool = False
) -> pd.DataFrame:
    """GPU time by path of `nn.Module` classes, or of modules."""
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
            "classes, outermost module first, separated by `/`; with "
            "`nn_module_instances=True` modules, `Block_0`, `Block_1`",
        ),
        Column(
            "modules",
            "number of modules with this path; not with `nn_module_instances=True`",
            unit="modules",
        ),
        Column("calls", "how many", unit="calls"),
        Column("kernels", "launched within", unit="GPU events"),
        Column(
            "gpu_time_total_ms",
            "busy time of the GPU events below, summed over the calls",
        ),
        Column("gpu_time_self_ms", "GPU events that no inner module launched"),
        Column(
            "% of GPU busy time",
            "`gpu_time_total_ms` as a share of the busy time of all GPU events",
        ),
        Column(
            "top_category",
            "the category with the longest total duration inside, when categories are "
            "on",
        ),
        Column("top_category_percent", "its share"),
        Column(
            "backward_time_ms",
            "in training: busy time of what autograd launched for the module's "
            "operations. It runs on another thread, outside of the module, and is in "
            "no other column.",
        ),
    ],
    table=_nn_modules,
    options=["nn_module_instances"],
    when=[GPU_EVENTS, _HAS_MODULES],
    method="get_df_nn_modules()",
    charts=[
        Chart(
            title="GPU time by module class, without inner modules",
            sheet="nn_modules",
            label_column="path",
            value_column="gpu_time_self_ms",
            top=15,
            on="page",
        )
    ],
)
