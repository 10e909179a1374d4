"""Tables of kernels and other GPU events: by name and operation, by category, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.operations.launchers import busy_below, op_argument, op_categories, recomputed
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.gpu_work import KIND_NAMES
from tracelens_ext.work.grouping import (
    Groups,
    group_durations,
    number_groups,
    percent,
    sums,
    texts,
)

if TYPE_CHECKING:
    from tracelens_ext.trace import IntArray
    from tracelens_ext.work.gpu_work import GpuWork

#: Column → argument of the CPU op.
_ARGUMENTS = {
    "Input dims": "Input Dims",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


def kernel_summary(work: GpuWork) -> pd.DataFrame:
    """GPU time by operation and kernel; every GPU event is in it.

    Returns:
        Columns as the sheet `kernels_by_category`. Longest total first.
    """
    op, op_labels = work.tree.cpu_op_label_of_gpu
    categories = work.categories
    keys: list[IntArray] = [op, work.name, work.kind]
    if categories:
        keys.append(categories.code)
    if (again := recomputed(work)).any():
        keys.append(again.astype(np.int64))
    groups = group_durations(keys, work.duration)
    columns: dict[str, object] = {"cpu_op": texts(groups.keys[0], op_labels)}
    if categories:
        columns["kernel_category"] = texts(groups.keys[3], categories.labels)
    columns["kernel_name"] = texts(groups.keys[1], work.trace.names)
    if again.any():
        columns["is_recompute"] = groups.keys[-1].astype(bool)
    columns |= _statistics(groups)
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    columns["kind"] = texts(groups.keys[2], KIND_NAMES)
    return pd.DataFrame(columns)


def kernel_detail(work: GpuWork, total_time_ns: int) -> pd.DataFrame:
    """As `kernel_summary`, with what TraceLens's sheet of kernels tells as well.

    Args:
        work: the GPU events.
        total_time_ns: what `% of total time` is a percentage of.

    Returns:
        The columns of `kernel_summary`, then `op category` (of the innermost CPU op around the
        launch; of several the first), `streams` (joined by commas) and `% of total time`.
    """
    op, _ = work.tree.cpu_op_label_of_gpu
    keys: list[IntArray] = [op, work.name, work.kind]
    if work.categories:
        keys.append(work.categories.code)
    if (again := recomputed(work)).any():
        keys.append(again.astype(np.int64))
    groups = group_durations(keys, work.duration)
    category, labels = _parent_op_category(work)
    first, _ = number_groups([groups.number, work.trace.stream])
    streams: list[list[str]] = [[] for _ in range(len(groups))]
    for group, stream in zip(
        groups.number[first].tolist(), work.trace.stream[first].tolist(), strict=True
    ):
        if stream >= 0:
            streams[group].append(str(stream))
    frame = kernel_summary(work)
    frame["op category"] = texts(category[groups.first], labels)
    frame["streams"] = [", ".join(each) for each in streams]
    frame["% of total time"] = percent(groups.total, total_time_ns)
    return frame


def gpu_time_by_category(work: GpuWork) -> pd.DataFrame:
    """GPU time by category; every GPU event is in it.

    Returns:
        Columns `kernel_category`, `count`, `total_time_ms` (summed duration), `avg_time_us`,
        `kernel_names` (distinct ones), `% of GPU time` (the sum of all durations being 100).
        Longest total first.

    Raises:
        ValueError: there are no categories.
    """
    if work.categories is None:
        raise ValueError("kernel categories were not asked for")
    groups = group_durations([work.categories.code], work.duration)
    named, _ = number_groups([groups.number, work.name])
    return pd.DataFrame(
        {
            "kernel_category": texts(groups.keys[0], work.categories.labels),
            "count": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "avg_time_us": groups.mean / NS_PER_US,
            "kernel_names": np.bincount(groups.number[named], minlength=len(groups)),
            "% of GPU time": percent(groups.total, int(work.duration.sum())),
        }
    )


def kernel_category_summary(work: GpuWork) -> pd.DataFrame:
    """GPU time by operation and category; every GPU event is in it.

    Returns:
        Columns as the sheet `kernel_categories`. Operations with the longest total first, within
        an operation the same.

    Raises:
        ValueError: there are no categories.
    """
    op, op_labels = work.tree.cpu_op_label_of_gpu
    categories = work.categories
    if categories is None:
        raise ValueError("kernel categories were not asked for")
    groups = group_durations([op, categories.code, work.kind], work.duration)
    op_total = sums(op, work.duration, len(op_labels))[groups.keys[0]]
    order = np.lexsort((-groups.total, groups.keys[0], -op_total))
    frame = pd.DataFrame(
        {
            "cpu_op": texts(groups.keys[0], op_labels),
            "kernel_category": texts(groups.keys[1], categories.labels),
            "count": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "% of cpu_op time": percent(groups.total, op_total),
            "% of GPU time": percent(groups.total, int(work.duration.sum())),
            "kind": texts(groups.keys[2], KIND_NAMES),
        }
    )
    return frame.iloc[order].reset_index(drop=True)


def kernels(
    work: GpuWork, *, launcher_detail: bool = False, nn_module_detail: bool = False
) -> pd.DataFrame:
    """A row a GPU event, in order of start.

    Args:
        work: the GPU events.
        launcher_detail: also the launch and the CPU op around it.
        nn_module_detail: also the `nn.Module`s around the launch (needs Python frames in the tree).

    Returns:
        Columns `cpu_op`, `kernel_category` when there are categories, `kernel_name`, `kind`,
        `device`, `stream` (-1 where the trace does not say), `start_us` (since the trace's first
        event), `duration_us`, `correlation` (-1 without one), `linked`; `is_recompute` where the
        backward ran a part of the forward again; with `launcher_detail`
        `launch`, `launch_start_us`, `launch_duration_us`, `launch_delay_us` (from the launch's
        start to the event's), `Parent cpu_op`; with `nn_module_detail` `nn_module`.
    """
    tree, trace = work.tree, work.trace
    op, op_labels = tree.cpu_op_label_of_gpu
    categories = work.categories
    columns: dict[str, object] = {"cpu_op": texts(op, op_labels)}
    if categories:
        columns["kernel_category"] = texts(categories.code, categories.labels)
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
    if (again := recomputed(work)).any():
        columns["is_recompute"] = again
    if launcher_detail:
        launch = np.where(tree.linked, tree.launch_of_gpu, 0)
        missing = ~tree.linked
        names = texts(trace.name[launch], trace.names) if len(work) else []
        columns["launch"] = pd.array(names, dtype="str")
        columns["launch"][missing] = None  # type: ignore[index]
        for label, value in (
            ("launch_start_us", trace.ts[launch]),
            ("launch_duration_us", trace.dur[launch]),
            ("launch_delay_us", work.start - trace.ts[launch]),
        ):
            columns[label] = np.where(missing, np.nan, value / NS_PER_US)
        columns["Parent cpu_op"] = texts(*work.parent_op)
    if nn_module_detail:
        columns["nn_module"] = tree.module_of_gpu()
    return pd.DataFrame(columns).iloc[np.argsort(work.start, kind="stable")].reset_index(drop=True)


def reference_kernel_summary(work: GpuWork, total_time_ns: int) -> pd.DataFrame:
    """The sheet `kernel_summary`, with the columns TraceLens gives it; kernels only.

    Returns:
        Columns as the sheet `kernel_summary`. Longest total first.
    """
    chosen = np.flatnonzero(work.is_kernel)
    code, ops = work.parent_op
    category, category_labels = _parent_op_category(work)
    keys = [category, code, work.name, work.trace.stream]
    if work.categories:
        keys.append(work.categories.code)
    groups = group_durations([key[chosen] for key in keys], work.duration[chosen])
    columns: dict[str, object] = {
        "Parent op category": texts(groups.keys[0], category_labels),
    }
    if work.trace.count_of(*work.trace.operation_kinds):
        columns["Parent cpu_op"] = texts(groups.keys[1], ops)
    columns["Kernel name"] = texts(groups.keys[2], work.trace.names)
    if work.categories:
        columns["kernel_category"] = texts(groups.keys[4], work.categories.labels)
    microseconds = groups.total / NS_PER_US
    columns |= {
        "Kernel stream": groups.keys[3],
        "Kernel duration (µs)_sum": microseconds,
        "Kernel duration (µs)_count": groups.count,
        "Kernel duration (µs)_mean": microseconds / groups.count,
        "Kernel duration (µs)_min": groups.shortest / NS_PER_US,
        "Kernel duration (µs)_max": groups.longest / NS_PER_US,
        "Percent of kernels time (%)": percent(groups.total, int(work.duration[chosen].sum())),
        "Percent of total time (%)": percent(groups.total, total_time_ns),
    }
    return pd.DataFrame(columns)


def _parent_op_category(work: GpuWork) -> tuple[np.ndarray, list[str]]:
    """The category of the innermost CPU op around each launch, else of the launch, else empty."""
    tree = work.tree
    parent = np.where(tree.cpu_op_of_gpu != NONE, tree.cpu_op_of_gpu, tree.launch_of_gpu)
    rows, number = np.unique(parent[tree.linked], return_inverse=True)
    of_gpu = np.full(len(work), NONE, dtype=np.int64)
    of_gpu[tree.linked] = number
    code, labels = op_categories(work, rows, of_gpu)
    return np.append(code, len(labels))[of_gpu], [*labels, ""]


def _statistics(groups: Groups) -> dict[str, object]:
    return {
        "count": groups.count,
        "total_time_ms": groups.total / NS_PER_MS,
        "avg_time_us": groups.total / NS_PER_US / groups.count,
        "min_time_us": groups.shortest / NS_PER_US,
        "max_time_us": groups.longest / NS_PER_US,
    }


def cpu_op_detail(work: GpuWork) -> pd.DataFrame:
    """A row a GPU event, in order of start: the innermost CPU op around its launch.

    Returns:
        Columns `Parent cpu_op` (else the launch's name, else empty), `Input dims`, `Input types`,
        `Input strides`, `Concrete Inputs` (empty where the trace has none), and, missing without a
        CPU op, `Parent cpu_op busy time (µs)` (of all GPU events below the CPU op),
        `Parent cpu_op kernel count` (those events) and `Percent of Parent cpu_op busy time (%)`
        (this event's duration).
    """
    op = work.tree.cpu_op_of_gpu
    ops, number = np.unique(op[op != NONE], return_inverse=True)
    tree = work.tree
    position = tree.position[ops]
    launches = np.sort(tree.launch_position_of_gpu[tree.linked])
    below = np.searchsorted(launches, tree.subtree_end[position])
    count = below - np.searchsorted(launches, position)
    busy = np.full(len(work), np.nan)
    busy[op != NONE] = busy_below(work, ops)[number]
    kernels = np.full(len(work), NONE, dtype=np.int64)
    kernels[op != NONE] = count[number]
    percent = np.full(len(work), np.nan)
    np.divide(100.0 * work.duration, busy, out=percent, where=busy > 0)
    columns: dict[str, object] = {"Parent cpu_op": texts(*work.parent_op)}
    columns |= {
        column: texts(*op_argument(work.trace, op, argument))
        for column, argument in _ARGUMENTS.items()
    }
    columns |= {
        "Parent cpu_op busy time (µs)": busy / NS_PER_US,
        "Parent cpu_op kernel count": pd.Series(kernels, dtype="Int64").where(kernels != NONE),
        "Percent of Parent cpu_op busy time (%)": percent,
    }
    return pd.DataFrame(columns).iloc[np.argsort(work.start, kind="stable")].reset_index(drop=True)
