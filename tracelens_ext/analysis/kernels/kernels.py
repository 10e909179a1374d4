"""GPU time by kernel, by CPU operation and by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.operations.launchers import (
    OpCategories,
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

#: The category of GPU time that is set aside: benchmarks of autotuning, and impossible events.
NOT_ANALYZED: Final = "(not analyzed)"
#: Largest number of operations that are named for a kernel.
_MAX_OPERATIONS_SHOWN = 3


class _OperationsAndKernels(NamedTuple):
    """GPU events grouped by operation and kernel."""

    frame: pd.DataFrame  #: a row per group
    groups: Groups


def time_by_operation_and_kernel(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return GPU time by operation and kernel, longest total first; every GPU event counts."""
    return _group_by_operation_and_kernel(gpu_events).frame


def _group_by_operation_and_kernel(gpu_events: GpuEvents) -> _OperationsAndKernels:
    """Group the GPU events by operation, category, kernel and kind, longest total first.

    If some events are recomputation, they have groups and a column (`is_recompute`) of their own.
    """
    is_recomputed = recomputed(gpu_events)
    has_recomputed = bool(is_recomputed.any())
    keys: dict[str, tuple[IntArray, Sequence[str]]] = {
        "cpu_op": gpu_events.tree.cpu_op_label_of_gpu,
        **gpu_events.category_key,
        "kernel_name": (gpu_events.name, gpu_events.trace.names),
        "kind": (gpu_events.kind, KIND_NAMES),
    }
    if has_recomputed:
        keys["is_recompute"] = (is_recomputed.astype(np.int64), ("", "yes"))
    columns, groups = group_by_labels(keys, gpu_events.duration)
    if has_recomputed:
        columns["is_recompute"] = groups.keys[-1].astype(bool)
    columns |= groups.figures(
        "count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us"
    )
    total_ns = int(gpu_events.duration.sum())
    columns["% of GPU time"] = percent(groups.total, total_ns)
    frame = pd.DataFrame(columns)
    return _OperationsAndKernels(_with_kind_last(frame), groups)


def _with_kind_last(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose key column `kind` comes after the figures."""
    other_columns = [name for name in frame.columns if name != "kind"]
    return frame[other_columns + ["kind"]]


def time_by_kernel(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return GPU time by kernel, longest first, with the columns of the sheet `kernels`."""
    key = ["kernel_name", "kind"]
    summary = time_by_operation_and_kernel(gpu_events)
    aggregations = {
        "total_time_ms": "sum",
        "% of GPU time": "sum",
        "count": "sum",
        "min_time_us": "min",
        "max_time_us": "max",
    }
    if gpu_events.categories is not None:
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
    """Return the operations that launched each kernel as one text, the longest total first.

    Most kernels have a single operation, so only the others go through the slow aggregation.
    """
    # An operation has several rows if only some of its launches are recomputation.
    rows_of_pair = summary.groupby(key + ["cpu_op"], sort=False)
    pairs = rows_of_pair.agg({"total_time_ms": "sum"}).reset_index()
    pairs = pairs.sort_values("total_time_ms", ascending=False, kind="stable")
    has_several = pairs.duplicated(key, keep=False)
    single_operations = pairs[~has_several].set_index(key)["cpu_op"]
    several_operations = pairs[has_several].groupby(key, sort=False)["cpu_op"]
    operations: pd.Series[str] = pd.concat(
        [single_operations, several_operations.agg(_largest_operations)]
    )
    return operations


def _largest_operations(operations: pd.Series[str]) -> str:
    """Return the first operations of a kernel as one text, and the number of the others.

    `UNLINKED` is left out unless it is the only one.
    """
    names = operations.tolist()
    linked_names = [name for name in names if name != UNLINKED]
    names = linked_names or names
    text = ", ".join(names[:_MAX_OPERATIONS_SHOWN])
    left_out = len(names) - _MAX_OPERATIONS_SHOWN
    if left_out > 0:
        text = f"{text} and {left_out} more"
    return text


def detailed_time_by_operation_and_kernel(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return `time_by_operation_and_kernel` with more columns, which TraceLens has, too.

    They are `op category`, `streams` and `% of total time`.
    """
    frame, groups = _group_by_operation_and_kernel(gpu_events)
    category = _parent_op_category(gpu_events)
    stream = gpu_events.trace.stream
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
    total_ns = total_time_ns(gpu_events)
    frame["% of total time"] = percent(groups.total, total_ns)
    return frame


def gpu_time_by_category(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return GPU time by category, longest first; every GPU event counts.

    GPU events that are set aside, such as benchmarks of autotuning, are a category of their own.
    """
    categories = gpu_events.needed_categories
    is_set_aside = coverage_of(gpu_events).is_set_aside(gpu_events)
    code = categories.code
    labels = categories.labels
    if is_set_aside.any():
        code = np.where(is_set_aside, len(labels), code)
        labels = labels + [NOT_ANALYZED]
    keys = {"kernel_category": (code, labels)}
    columns, groups = group_by_labels(keys, gpu_events.duration)
    first_of_names, _ = number_groups([groups.group_index, gpu_events.name])
    group_of_names = groups.group_index[first_of_names]
    columns |= groups.figures("count", "total_time_ms", "avg_time_us")
    columns["kernel_names"] = np.bincount(group_of_names, minlength=len(groups))
    columns["% of GPU time"] = percent(groups.total, int(gpu_events.duration.sum()))
    return pd.DataFrame(columns)


def time_by_operation_and_category(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return GPU time by operation and category; every GPU event counts.

    Operations and the categories within them are sorted by time, longest first.
    """
    op, op_labels = gpu_events.tree.cpu_op_label_of_gpu
    categories = gpu_events.needed_categories
    keys: LabeledColumns = {
        "cpu_op": (op, op_labels),
        "kernel_category": (categories.code, categories.labels),
        "kind": (gpu_events.kind, KIND_NAMES),
    }
    columns, groups = group_by_labels(keys, gpu_events.duration)
    op_of_group = groups.keys[0]
    time_of_op = sums(
        group_index=op, values=gpu_events.duration, group_count=len(op_labels)
    )
    op_total = time_of_op[op_of_group]
    columns |= groups.figures("count", "total_time_ms")
    columns["% of cpu_op time"] = percent(groups.total, op_total)
    columns["% of GPU time"] = percent(groups.total, int(gpu_events.duration.sum()))
    order = np.lexsort((-groups.total, op_of_group, -op_total))
    frame = pd.DataFrame(columns).iloc[order].reset_index(drop=True)
    return _with_kind_last(frame)


def tracelens_kernel_summary(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the sheet `kernel_summary` with TraceLens's columns; only kernels count."""
    kernels = np.flatnonzero(gpu_events.is_kernel)
    streams, stream = np.unique(gpu_events.trace.stream, return_inverse=True)
    category = _parent_op_category(gpu_events)
    keys: LabeledColumns = {
        "Parent op category": (category.code, category.labels),
        "Parent cpu_op": gpu_events.parent_op,
        "Kernel name": (gpu_events.name, gpu_events.trace.names),
        **gpu_events.category_key,
        "Kernel stream": (stream, [str(number) for number in streams]),
    }
    columns, groups = group_by_labels(keys, gpu_events.duration, kernels)
    has_operations = gpu_events.trace.count_of(*gpu_events.trace.operation_kinds)
    if not has_operations:
        # Without recorded operations, no GPU event has a parent.
        del columns["Parent cpu_op"]
    microseconds = groups.total / NS_PER_US
    kernel_time = int(gpu_events.duration[kernels].sum())
    columns |= {
        "Kernel stream": streams[groups.keys[-1]],
        "Kernel duration (µs)_sum": microseconds,
        "Kernel duration (µs)_count": groups.count,
        "Kernel duration (µs)_mean": microseconds / groups.count,
        "Kernel duration (µs)_min": groups.shortest / NS_PER_US,
        "Kernel duration (µs)_max": groups.longest / NS_PER_US,
        "Percent of kernels time (%)": percent(groups.total, kernel_time),
        "Percent of total time (%)": percent(groups.total, total_time_ns(gpu_events)),
    }
    return pd.DataFrame(columns)


def _parent_op_category(gpu_events: GpuEvents) -> OpCategories:
    """Return the operation category of each GPU event.

    It is the category of the innermost CPU op around the launch, or else of the launch itself; it
    is empty for an event without a launch.

    Returns:
        The categories, whose codes have the shape (g,).
    """
    linked = gpu_events.tree.linked
    op_of_linked = gpu_events.tree.op_of_gpu[linked]
    ops, op_number = np.unique(op_of_linked, return_inverse=True)
    op_number_of_gpu = np.full(len(gpu_events), NONE, dtype=np.int64)
    op_number_of_gpu[linked] = op_number
    category = op_categories(gpu_events, ops, op_number_of_gpu)
    labels = list(category.labels)
    labels.append("")
    code = values_at(category.code, op_number_of_gpu, missing=len(labels) - 1)
    return OpCategories(code, labels)
