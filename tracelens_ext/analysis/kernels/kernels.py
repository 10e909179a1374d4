"""GPU time by kernel, operation and category; and GPU events one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.operations.arguments import op_argument
from tracelens_ext.analysis.operations.launchers import (
    OpCategories,
    busy_below,
    op_categories,
)
from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, IntArray
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.grouping import (
    Groups,
    LabeledColumns,
    group_by_labels,
    joined_labels,
    number_groups,
    percent,
    sums,
    texts,
)
from tracelens_ext.trace.lookup import values_at

_OPERATIONS_SHOWN = 3
#: Column → argument of the CPU op.
ARGUMENT_COLUMNS = {
    "Input dims": "Input Dims",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


class _Summary(NamedTuple):
    """GPU events by operation and kernel."""

    frame: pd.DataFrame  #: a row for each group
    groups: Groups


def kernel_summary(work: GpuEvents) -> pd.DataFrame:
    """Return GPU time by operation and kernel; every GPU event counts. Longest total first."""
    return _summary(work).frame


def _summary(work: GpuEvents) -> _Summary:
    is_recomputed = recomputed(work)
    has_recomputed = bool(is_recomputed.any())
    keys: dict[str, tuple[IntArray, Sequence[str]]] = {
        "cpu_op": work.tree.cpu_op_label_of_gpu,
        **work.category_key,
        "kernel_name": (work.name, work.trace.names),
        "kind": (work.kind, KIND_NAMES),
    }
    if has_recomputed:
        keys["is_recompute"] = (is_recomputed.astype(np.int64), ("", "yes"))
    columns, groups = group_by_labels(keys, work.duration)
    if has_recomputed:
        columns["is_recompute"] = groups.keys[-1].astype(bool)
    columns |= groups.figures(
        "count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us"
    )
    total_ns = int(work.duration.sum())
    columns["% of GPU time"] = percent(groups.total, total_ns)
    columns["kind"] = columns.pop("kind")
    return _Summary(pd.DataFrame(columns), groups)


def kernel_names(work: GpuEvents) -> pd.DataFrame:
    """Return GPU time by kernel, whatever launched it, longest first.

    The columns are those of the sheet `kernels`.
    """
    key = ["kernel_name", "kind"]
    summary = kernel_summary(work)
    aggregations = {
        "total_time_ms": "sum",
        "% of GPU time": "sum",
        "count": "sum",
        "min_time_us": "min",
        "max_time_us": "max",
    }
    if work.categories is not None:
        aggregations["kernel_category"] = "first"
    frame = summary.groupby(key, sort=False).agg(aggregations)
    operations = _operations_of_kernels(summary, key)
    frame.insert(0, "operations", operations.reindex(frame.index))
    frame = frame.reset_index()
    frame["avg_time_us"] = (
        frame["total_time_ms"] / frame["count"] * (NS_PER_MS / NS_PER_US)
    )
    return frame.sort_values(
        "total_time_ms", ascending=False, kind="stable", ignore_index=True
    )


def _operations_of_kernels(summary: pd.DataFrame, key: list[str]) -> pd.Series[str]:
    """Return the names of the operations of each kernel; few kernels are of several operations."""
    launched = summary.drop_duplicates(["kernel_name", "kind", "cpu_op"])
    is_of_several = launched.duplicated(key, keep=False)
    of_several = launched[is_of_several].groupby(key, sort=False)["cpu_op"]
    of_one = launched[~is_of_several].set_index(key)["cpu_op"]
    operations: pd.Series[str] = pd.concat(
        [of_one, of_several.agg(_largest_operations)]
    )
    return operations


def _largest_operations(operations: pd.Series[str]) -> str:
    """Return the operations of a kernel as one text, the one with the most time first."""
    names = list(dict.fromkeys(operations.tolist()))
    linked_names = [name for name in names if name != UNLINKED]
    names = linked_names or names
    text = ", ".join(names[:_OPERATIONS_SHOWN])
    left_out = len(names) - _OPERATIONS_SHOWN
    if left_out > 0:
        text = f"{text} and {left_out} more"
    return text


def kernel_detail(work: GpuEvents) -> pd.DataFrame:
    """Return `kernel_summary` with what TraceLens's sheet of kernels has as well."""
    frame, groups = _summary(work)
    category = _parent_op_category(work)
    stream = work.trace.stream
    known_streams = np.unique(stream[stream >= 0])
    stream_labels = {number: str(number) for number in known_streams.tolist()}
    codes = category.code[groups.first]
    frame["op category"] = texts(codes, category.labels)
    frame["streams"] = joined_labels(
        group_index=groups.group_index,
        labels=stream_labels,
        code=stream,
        group_count=len(groups),
    )
    total_ns = total_time_ns(work)
    frame["% of total time"] = percent(groups.total, total_ns)
    return frame


#: What GPU time is shown as that is set aside: benchmarks of autotuning, events that cannot be
#: right.
NOT_ANALYZED: Final = "(not analyzed)"


def gpu_time_by_category(work: GpuEvents) -> pd.DataFrame:
    """GPU time by category, longest first; every GPU event is in it.

    What is not analyzed, such as benchmarks of autotuning, is no work of a category.
    """
    categories = work.needed_categories
    is_set_aside = recording_of(work).set_aside(work)
    code = categories.code
    labels = categories.labels
    if is_set_aside.any():
        code = np.where(is_set_aside, len(labels), code)
        labels = labels + [NOT_ANALYZED]
    keys = {"kernel_category": (code, labels)}
    columns, groups = group_by_labels(keys, work.duration)
    first_of_names, _ = number_groups([groups.group_index, work.name])
    group_of_names = groups.group_index[first_of_names]
    columns |= groups.figures("count", "total_time_ms", "avg_time_us")
    columns["kernel_names"] = np.bincount(group_of_names, minlength=len(groups))
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    return pd.DataFrame(columns)


def kernel_category_summary(work: GpuEvents) -> pd.DataFrame:
    """GPU time by operation and category, longest first; every GPU event is in it."""
    op, op_labels = work.tree.cpu_op_label_of_gpu
    categories = work.needed_categories
    keys: LabeledColumns = {
        "cpu_op": (op, op_labels),
        "kernel_category": (categories.code, categories.labels),
        "kind": (work.kind, KIND_NAMES),
    }
    columns, groups = group_by_labels(keys, work.duration)
    op_of_group = groups.keys[0]
    op_total = sums(group_index=op, values=work.duration, group_count=len(op_labels))[
        op_of_group
    ]
    columns |= groups.figures("count", "total_time_ms")
    columns["% of cpu_op time"] = percent(groups.total, op_total)
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    columns["kind"] = columns.pop("kind")
    order = np.lexsort((-groups.total, op_of_group, -op_total))
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def kernels(
    work: GpuEvents,
    *,
    launcher_detail: bool = False,
    cpu_op_detail: bool = False,
    nn_module_detail: bool = False,
) -> pd.DataFrame:
    """Return a row for each GPU event, in order of start.

    Args:
        work: the GPU events.
        launcher_detail: whether columns describe the launch.
        cpu_op_detail: whether columns describe the CPU op around the launch.
        nn_module_detail: whether a column has the `nn.Module`s around the launch.
    """
    tree = work.tree
    trace = work.trace
    columns: dict[str, object] = {"cpu_op": texts(*tree.cpu_op_label_of_gpu)}
    for name, (code, labels) in work.category_key.items():
        columns[name] = texts(code, labels)
    columns |= {
        "kernel_name": texts(work.name, trace.names),
        "kind": texts(work.kind, KIND_NAMES),
        "device": trace.device,
        "stream": trace.stream,
        "start_us": work.start / NS_PER_US,
        "duration_us": work.duration / NS_PER_US,
        "correlation": trace.correlation[work.rows],
        "linked": tree.linked,
    }
    is_recomputed = recomputed(work)
    if is_recomputed.any():
        columns["is_recompute"] = is_recomputed
    if launcher_detail:
        columns |= _launch_columns(work)
        columns["Parent cpu_op"] = texts(*work.parent_op)
    if nn_module_detail:
        columns["nn_module"] = tree.module_of_gpu()
    if cpu_op_detail:
        columns |= _cpu_op_columns(work)
    by_start = np.argsort(work.start, kind="stable")
    return pd.DataFrame(columns).iloc[by_start].reset_index(drop=True)


def _launch_columns(work: GpuEvents) -> dict[str, object]:
    """Return the columns about the launch of each GPU event; empty without one."""
    tree = work.tree
    trace = work.trace
    launch = np.where(tree.linked, tree.launch_of_gpu, 0)
    names: Sequence[str] = []
    if len(work):
        names = texts(trace.name[launch], trace.names)
    launched_at = trace.ts[launch]
    times = {
        "launch_start_us": launched_at,
        "launch_duration_us": trace.dur[launch],
        "launch_delay_us": work.start - launched_at,
    }
    name_of_launch = pd.Series(names, dtype="str")
    columns: dict[str, object] = {}
    columns["launch"] = name_of_launch.where(tree.linked)
    for label, nanoseconds in times.items():
        microseconds = nanoseconds / NS_PER_US
        columns[label] = np.where(tree.linked, microseconds, np.nan)
    return columns


def _cpu_op_columns(work: GpuEvents) -> dict[str, object]:
    """Return the columns about the innermost CPU op around each launch.

    What is below the operation counts in its time.
    """
    tree = work.tree
    op = tree.cpu_op_of_gpu
    has_op = op != NONE
    ops, op_number = np.unique(op[has_op], return_inverse=True)
    position = tree.position[ops]
    # Launches below an operation lie between its position and the end of its subtree.
    launches = np.sort(tree.launch_position_of_gpu[tree.linked])
    launched_before = np.searchsorted(launches, position)
    launched_until = np.searchsorted(launches, tree.subtree_end[position])
    busy = np.full(len(work), np.nan)
    busy[has_op] = busy_below(work, ops)[op_number]
    kernel_count = np.full(len(work), NONE, dtype=np.int64)
    kernel_count[has_op] = (launched_until - launched_before)[op_number]
    share = np.full(len(work), np.nan)
    np.divide(100.0 * work.duration, busy, out=share, where=busy > 0)
    columns: dict[str, object] = {"Parent cpu_op": texts(*work.parent_op)}
    for column, argument in ARGUMENT_COLUMNS.items():
        columns[column] = texts(*op_argument(work.trace, op, argument))
    counts = pd.Series(kernel_count, dtype="Int64")
    columns["Parent cpu_op busy time (µs)"] = busy / NS_PER_US
    columns["Parent cpu_op kernel count"] = counts.where(kernel_count != NONE)
    columns["Percent of Parent cpu_op busy time (%)"] = share
    return columns


def reference_kernel_summary(work: GpuEvents) -> pd.DataFrame:
    """The sheet `kernel_summary`, with the columns TraceLens gives it; kernels only."""
    chosen = np.flatnonzero(work.is_kernel)
    streams, stream = np.unique(work.trace.stream, return_inverse=True)
    category = _parent_op_category(work)
    keys: LabeledColumns = {
        "Parent op category": (category.code, category.labels),
        "Parent cpu_op": work.parent_op,
        "Kernel name": (work.name, work.trace.names),
        **work.category_key,
        "Kernel stream": (stream, [str(number) for number in streams]),
    }
    columns, groups = group_by_labels(keys, work.duration, chosen)
    if not work.trace.count_of(*work.trace.operation_kinds):
        del columns["Parent cpu_op"]
    microseconds = groups.total / NS_PER_US
    kernel_time = int(work.duration[chosen].sum())
    columns |= {
        "Kernel stream": streams[groups.keys[-1]],
        "Kernel duration (µs)_sum": microseconds,
        "Kernel duration (µs)_count": groups.count,
        "Kernel duration (µs)_mean": microseconds / groups.count,
        "Kernel duration (µs)_min": groups.shortest / NS_PER_US,
        "Kernel duration (µs)_max": groups.longest / NS_PER_US,
        "Percent of kernels time (%)": percent(groups.total, kernel_time),
        "Percent of total time (%)": percent(groups.total, total_time_ns(work)),
    }
    return pd.DataFrame(columns)


def _parent_op_category(work: GpuEvents) -> OpCategories:
    """Return the category of the innermost CPU op around each launch, of the launch, or empty.

    The codes are those of GPU events, (g,).
    """
    linked = work.tree.linked
    of_gpu = np.full(len(work), NONE, dtype=np.int64)
    rows, of_gpu[linked] = np.unique(work.tree.op_of_gpu[linked], return_inverse=True)
    category = op_categories(work, rows, of_gpu)
    labels = list(category.labels)
    labels.append("")
    code = values_at(category.code, of_gpu, missing=len(labels) - 1)
    return OpCategories(code, labels)
