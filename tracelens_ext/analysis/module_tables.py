"""The table of GPU time by `nn.Module`, which shows the parts of the model that take the time."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.modules import (
    SEPARATOR,
    ModuleFrames,
    find_module_frames,
    has_modules,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS, Int64Array, IntArray, Trace
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.call_paths import CallPaths
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.nesting import depths, summed_up


def nn_modules(gpu_events: GpuEvents, *, instances: bool = False) -> pd.DataFrame:
    """Return GPU time by module path, longest total first; no rows without modules.

    Args:
        gpu_events: the GPU events.
        instances: True for a row per module, such as `Block_0`; False for a row per path of module
            classes.
    """
    module_frames = find_module_frames(gpu_events)
    of_gpu = module_frames.of_gpu
    paths, labels = module_frames.paths(gpu_events.trace, instances=instances)
    path_count = len(paths)
    busy_time = BusyTime(start=gpu_events.start, end=gpu_events.end)
    total_of_frame = busy_time.by_subtree(module_frames.parent, of_gpu)
    self_of_frame = busy_time.by_owner(of_gpu, len(module_frames.rows))
    total_ns = sums(paths.of_node, total_of_frame, path_count)
    self_ns = sums(paths.of_node, self_of_frame, path_count)
    all_busy_ns = union_length(gpu_events.start, gpu_events.end)
    events = np.flatnonzero(of_gpu != NONE)
    path_of_event = paths.of_node[of_gpu[events]]
    columns: dict[str, object] = {"path": paths.texts(labels, SEPARATOR)}
    if not instances:
        columns["modules"] = _module_counts(gpu_events.trace, module_frames, paths)
    columns["calls"] = np.bincount(paths.of_node, minlength=path_count)
    columns["kernels"] = _event_counts(paths, path_of_event)
    columns["gpu_time_total_ms"] = total_ns / NS_PER_MS
    columns["gpu_time_self_ms"] = self_ns / NS_PER_MS
    columns["% of GPU busy time"] = percent(total_ns, all_busy_ns)
    columns |= _top_category_columns(
        gpu_events=gpu_events, paths=paths, events=events, path_of_event=path_of_event
    )
    if (module_frames.of_forward != NONE).any():
        backward_of_frame = busy_time.by_subtree(
            module_frames.parent, module_frames.of_forward
        )
        backward_ns = sums(paths.of_node, backward_of_frame, path_count)
        columns["backward_time_ms"] = backward_ns / NS_PER_MS
    table = pd.DataFrame(columns)
    return table.iloc[np.argsort(-total_ns, kind="stable")].reset_index(drop=True)


def _module_counts(
    trace: Trace, module_frames: ModuleFrames, class_paths: CallPaths
) -> Int64Array:
    """Return the number of modules with each path of classes, (paths,)."""
    paths_of_modules, _ = module_frames.paths(trace, instances=True)
    # Each frame has both paths; all frames of one module have the same path of classes.
    class_path_of_module = np.zeros(len(paths_of_modules), dtype=np.int64)
    class_path_of_module[paths_of_modules.of_node] = class_paths.of_node
    return np.bincount(class_path_of_module, minlength=len(class_paths))


def _event_counts(paths: CallPaths, path_of_event: IntArray) -> Int64Array:
    """Return the number of GPU events within each path, inner paths included, (paths,)."""
    own_events = np.bincount(path_of_event, minlength=len(paths))
    parent = paths.parent.astype(np.int32)
    return summed_up(parent, depths(parent), own_events)


def _top_category_columns(
    gpu_events: GpuEvents, paths: CallPaths, events: IntArray, path_of_event: IntArray
) -> dict[str, object]:
    """Return columns with the longest category within each path, and its share.

    Args:
        gpu_events: all GPU events.
        paths: the module paths, p of them.
        events: the GPU events that are in a module, (e,).
        path_of_event: the path of each of these, (e,).
    """
    categories = gpu_events.categories
    if categories is None:
        return {}
    labels = categories.labels
    # One sum per pair of a path and a category makes a table (p, categories).
    pair = path_of_event * len(labels) + categories.code[events]
    time_of_pair = sums(
        group_index=pair,
        values=gpu_events.duration[events],
        group_count=len(paths) * len(labels),
    )
    self_times = time_of_pair.reshape(len(paths), len(labels))
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    total_columns = [summed_up(parent, depth, column) for column in self_times.T]
    total_times = np.stack(total_columns, axis=1)
    time_of_path = total_times.sum(axis=1)
    no_category = len(labels)
    top = np.where(time_of_path > 0, total_times.argmax(axis=1), no_category)
    return {
        "top_category": texts(top, labels + [""]),
        "top_category_percent": percent(total_times.max(axis=1), time_of_path),
    }


def _build_nn_modules(
    context: AnalysisContext, *, nn_module_instances: bool = False
) -> pd.DataFrame:
    """Return GPU time by path of `nn.Module` classes, or of modules."""
    return nn_modules(context.gpu_events, instances=nn_module_instances)


def _has_module_frames(context: AnalysisContext, _options: ReportOptions) -> bool:
    return has_modules(context.trace)


_HAS_MODULE_FRAMES = Condition(
    "the trace has Python frames of `nn.Module`s", _has_module_frames
)
NN_MODULES = Table(
    name="nn_modules",
    description="GPU time by `nn.Module`",
    columns=[
        Column(
            "path",
            "classes of the modules, outermost first, separated by `/`; with "
            "`nn_module_instances=True`, the modules themselves (`Block_0`, "
            "`Block_1`)",
        ),
        Column(
            "modules",
            "number of modules with this path of classes; absent with "
            "`nn_module_instances=True`",
            unit="modules",
        ),
        Column("calls", "number of calls of the modules", unit="calls"),
        Column(
            "kernels",
            "number of GPU events that were launched within the modules, "
            "including those inside them",
            unit="GPU events",
        ),
        Column(
            "gpu_time_total_ms",
            "busy time of the GPU events that a call launched, including "
            "inner modules, summed over the calls",
        ),
        Column(
            "gpu_time_self_ms",
            "busy time of the GPU events that a call launched outside of "
            "inner modules, summed over the calls",
        ),
        Column(
            "% of GPU busy time",
            "`gpu_time_total_ms` as a share of the busy time of all GPU events",
        ),
        Column(
            "top_category",
            "kernel category with the longest total duration within the "
            "modules, when categories are on",
        ),
        Column(
            "top_category_percent",
            "share of that category in the total duration of the GPU events "
            "within the modules",
        ),
        Column(
            "backward_time_ms",
            "busy time of the GPU events that the backward pass launched for "
            "the operations of the modules. They run on another thread, "
            "outside of the modules, and count in no other column; absent if "
            "the trace has none",
        ),
    ],
    build=_build_nn_modules,
    options=["nn_module_instances"],
    requires=[GPU_EVENTS, _HAS_MODULE_FRAMES],
    analyzer_call="get_df_nn_modules()",
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
