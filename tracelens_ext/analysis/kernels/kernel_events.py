"""A row for each GPU event, with its launch and the CPU op around the launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.analysis.operations.arguments import op_argument
from tracelens_ext.analysis.operations.launchers import busy_below
from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_US
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.grouping import texts

#: Column → the argument of the CPU op that it shows.
ARGUMENT_COLUMNS = {
    "Input dims": "Input Dims",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


def kernel_events(
    gpu_events: GpuEvents,
    *,
    launcher_detail: bool = False,
    cpu_op_detail: bool = False,
    nn_module_detail: bool = False,
) -> pd.DataFrame:
    """Return a row for each GPU event, in order of start.

    Args:
        gpu_events: the GPU events.
        launcher_detail: add columns that describe the launch.
        cpu_op_detail: add columns that describe the CPU op around the launch.
        nn_module_detail: add a column with the `nn.Module`s around the launch.
    """
    tree = gpu_events.tree
    trace = gpu_events.trace
    columns: dict[str, object] = {"cpu_op": texts(*tree.cpu_op_label_of_gpu)}
    for name, (code, labels) in gpu_events.category_key.items():
        columns[name] = texts(code, labels)
    columns |= {
        "kernel_name": texts(gpu_events.name, trace.names),
        "kind": texts(gpu_events.kind, KIND_NAMES),
        "device": trace.device,
        "stream": trace.stream,
        "start_us": gpu_events.start / NS_PER_US,
        "duration_us": gpu_events.duration / NS_PER_US,
        "correlation": trace.correlation[gpu_events.rows],
        "linked": tree.linked,
    }
    is_recomputed = recomputed(gpu_events)
    if is_recomputed.any():
        columns["is_recompute"] = is_recomputed
    if launcher_detail:
        columns |= _launch_columns(gpu_events)
        columns["Parent cpu_op"] = texts(*gpu_events.parent_op)
    if nn_module_detail:
        columns["nn_module"] = tree.module_of_gpu()
    if cpu_op_detail:
        columns |= _cpu_op_columns(gpu_events)
    by_start = np.argsort(gpu_events.start, kind="stable")
    return pd.DataFrame(columns).iloc[by_start].reset_index(drop=True)


def _launch_columns(gpu_events: GpuEvents) -> dict[str, object]:
    """Return the columns about the launch of each GPU event; an event without one has no values."""
    tree = gpu_events.tree
    trace = gpu_events.trace
    # Events without a launch look up row 0; their values are removed below.
    launch = np.where(tree.linked, tree.launch_of_gpu, 0)
    names: Sequence[str] = []
    if len(gpu_events):
        names = texts(trace.name[launch], trace.names)
    launch_start = trace.ts[launch]
    ns_of_column = {
        "launch_start_us": launch_start,
        "launch_duration_us": trace.dur[launch],
        "launch_delay_us": gpu_events.start - launch_start,
    }
    columns: dict[str, object] = {}
    columns["launch"] = pd.Series(names, dtype="str").where(tree.linked)
    for column, nanoseconds in ns_of_column.items():
        columns[column] = np.where(tree.linked, nanoseconds / NS_PER_US, np.nan)
    return columns


def _cpu_op_columns(gpu_events: GpuEvents) -> dict[str, object]:
    """Return the columns about the innermost CPU op around each launch.

    The busy time and the kernels of an operation include those of operations within it.
    """
    tree = gpu_events.tree
    op = tree.cpu_op_of_gpu
    has_op = op != NONE
    ops, op_number = np.unique(op[has_op], return_inverse=True)
    position = tree.position[ops]
    # The launches within an operation have the tree positions from the operation to the end of its
    # subtree; in the sorted positions, their number is the difference of two places.
    launch_positions = np.sort(tree.launch_position_of_gpu[tree.linked])
    launches_before_begin = np.searchsorted(launch_positions, position)
    launches_before_end = np.searchsorted(launch_positions, tree.subtree_end[position])
    kernels_of_op = launches_before_end - launches_before_begin
    busy = np.full(len(gpu_events), np.nan)
    busy[has_op] = busy_below(gpu_events, ops)[op_number]
    kernel_count = np.full(len(gpu_events), NONE, dtype=np.int64)
    kernel_count[has_op] = kernels_of_op[op_number]
    busy_percent = np.full(len(gpu_events), np.nan)
    np.divide(100.0 * gpu_events.duration, busy, out=busy_percent, where=busy > 0)
    columns: dict[str, object] = {"Parent cpu_op": texts(*gpu_events.parent_op)}
    for column, argument in ARGUMENT_COLUMNS.items():
        columns[column] = texts(*op_argument(gpu_events.trace, op, argument))
    counts = pd.Series(kernel_count, dtype="Int64")
    columns["Parent cpu_op busy time (µs)"] = busy / NS_PER_US
    columns["Parent cpu_op kernel count"] = counts.where(kernel_count != NONE)
    columns["Percent of Parent cpu_op busy time (%)"] = busy_percent
    return columns
