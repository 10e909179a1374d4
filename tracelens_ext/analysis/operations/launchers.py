"""Launchers: the operations to which the `ops_*` tables attribute GPU work.

The launcher of a GPU event is the nearest CPU op above its launch, or the launch itself if there is
none. Ops called `execute` do not count, because such a wrapper says nothing about the work. The
*direct* time of a launcher is the busy time of the GPU events that it launched itself; its
*subtree* time is that of all GPU events below it. Communication has no launcher here, because its
time is mostly spent waiting for other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.operations.arguments import ARGUMENTS, op_argument
from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.categorize.rules import OTHER_OP
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    NS_PER_US,
    BoolArray,
    Int32Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import inverse_permutation, number_groups, recode
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above

_COLUMNS_OF_THREAD = ("process_name", "process_label", "thread_name")
#: Columns of `launcher_table` that contain text.
TEXT_COLUMNS = ("name", "op category") + ARGUMENTS + _COLUMNS_OF_THREAD

#: Name of an operation that wraps others and says nothing about them.
_WRAPPER = "execute"
#: Stands for the name of a process or thread that the trace does not name.
_UNKNOWN = "Unknown"


@dataclass(frozen=True, eq=False)
class Launchers:
    """The k launchers of the g GPU events of a trace, in order of start.

    Attributes:
        rows: row of each launcher in the trace, (k,).
        of_gpu: index of the launcher of each GPU event, `NONE` for an event without one, (g,).
        direct_ns: busy time of the GPU events that each launcher launched itself, (k,).
        subtree_ns: busy time of all GPU events below each launcher, including communication, (k,).
        count: number of GPU events that each launcher launched itself, (k,).
    """

    rows: Int64Array
    of_gpu: Int64Array
    direct_ns: Int64Array
    subtree_ns: Int64Array
    count: Int64Array

    def __len__(self) -> int:
        return len(self.rows)


def find_launchers(gpu_events: GpuEvents) -> Launchers:
    """Find the launcher of every linked GPU event that is not communication."""
    tree = gpu_events.tree
    trace = gpu_events.trace
    counted = np.flatnonzero(tree.linked & ~gpu_events.is_communication)
    positions, launcher_of_counted = np.unique(
        _launcher_positions(gpu_events, counted), return_inverse=True
    )
    # So far, launchers are in the order of the tree. The result is in order of start.
    rows_in_tree_order = tree.rows[positions]
    order = np.lexsort((rows_in_tree_order, trace.ts[rows_in_tree_order]))
    of_gpu = np.full(len(gpu_events), NONE, dtype=np.int64)
    of_gpu[counted] = inverse_permutation(order)[launcher_of_counted]
    busy = BusyTime(start=gpu_events.start, end=gpu_events.end)
    forest = _forest(gpu_events, positions)
    return Launchers(
        rows=rows_in_tree_order[order],
        of_gpu=of_gpu,
        direct_ns=busy.by_owner(of_gpu, len(positions)),
        subtree_ns=busy.by_subtree(forest.parent, forest.innermost_of_gpu)[order],
        count=np.bincount(launcher_of_counted, minlength=len(positions))[order],
    )


def _launcher_positions(gpu_events: GpuEvents, events: IntArray) -> Int64Array:
    """Return the position in the tree of the launcher of each linked GPU event."""
    tree = gpu_events.tree
    trace = gpu_events.trace
    is_wrapper = trace.names_matching(lambda name: name == _WRAPPER)
    is_meaningful_op = tree.is_operation & ~is_wrapper[trace.name[tree.rows]]
    launch = tree.launch_position_of_gpu[events]
    op_above = nearest_above(tree.parent_position, launch, is_meaningful_op)
    return np.where(op_above != ROOT, op_above, launch)


class _Forest(NamedTuple):
    """How k chosen events of the tree nest, and which of them enclose the GPU events.

    Attributes:
        parent: index of the nearest chosen event above each, `ROOT` for an event without one, (k,).
        innermost_of_gpu: index of the nearest chosen event at or above the launch of each GPU
            event, `NONE` for an event without one, (g,).
    """

    parent: Int32Array
    innermost_of_gpu: Int64Array


def _forest(gpu_events: GpuEvents, positions: IntArray) -> _Forest:
    """Nest chosen events of the tree, and the GPU events, while all others are left out.

    Args:
        gpu_events: the GPU events.
        positions: the positions of the chosen events in the tree, (k,).
    """
    tree = gpu_events.tree
    index_of_position = np.full(len(tree.rows), NONE, dtype=np.int64)
    index_of_position[positions] = np.arange(len(positions))
    is_chosen = index_of_position != NONE
    launch = tree.launch_position_of_gpu[tree.linked]
    above_launch = nearest_above(tree.parent_position, launch, is_chosen)
    innermost_at_launch = np.where(
        is_chosen[launch],
        index_of_position[launch],
        values_at(index_of_position, above_launch),
    )
    innermost_of_gpu = np.full(len(gpu_events), NONE, dtype=np.int64)
    innermost_of_gpu[tree.linked] = innermost_at_launch
    above = nearest_above(tree.parent_position, positions, is_chosen)
    parent = values_at(index_of_position, above, missing=ROOT)
    return _Forest(parent.astype(np.int32), innermost_of_gpu)


def busy_below(gpu_events: GpuEvents, rows: IntArray) -> Int64Array:
    """Return the busy time of all GPU events below each event of the tree, ns, (k,).

    Args:
        gpu_events: the GPU events.
        rows: the rows of distinct events, (k,).
    """
    position = gpu_events.tree.position[rows]
    order = np.argsort(position)
    forest = _forest(gpu_events, position[order])
    busy_time = BusyTime(start=gpu_events.start, end=gpu_events.end)
    busy = busy_time.by_subtree(
        parent=forest.parent,
        owner=forest.innermost_of_gpu,
    )
    return busy[inverse_permutation(order)]


def launcher_table(gpu_events: GpuEvents, launchers: Launchers) -> pd.DataFrame:
    """Return a row for each launcher, in order of start.

    The columns, in which texts are categorical, are:

    * `name`, `op category`;
    * `UID`: the row of the launcher in the trace;
    * `total_direct_kernel_time`, `total_subtree_kernel_time`: µs;
    * `direct_kernel_count`: number of GPU events that it launched itself;
    * `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`: empty if not recorded;
    * `process_name`, `process_label`, `thread_name`: `Unknown` if the trace does not name them;
    * `is_recompute`: whether the backward pass ran the operation again for its activations. This
      column exists only if there are such operations.
    """
    trace = gpu_events.trace
    rows = launchers.rows
    category = op_categories(gpu_events, rows, launchers.of_gpu)
    columns: dict[str, object] = {
        "name": _text_column(trace.name[rows], trace.names),
        "op category": _text_column(category.code, category.labels),
        "UID": rows,
        "total_direct_kernel_time": launchers.direct_ns / NS_PER_US,
        "total_subtree_kernel_time": launchers.subtree_ns / NS_PER_US,
        "direct_kernel_count": launchers.count,
    }
    for argument in ARGUMENTS:
        code, labels = op_argument(trace, rows, argument)
        columns[argument] = _text_column(code, labels)
    columns |= _thread_columns(gpu_events, rows)
    is_recomputed = recomputed(gpu_events)
    if is_recomputed.any():
        recomputing_launchers = launchers.of_gpu[is_recomputed]
        recomputing_launchers = recomputing_launchers[recomputing_launchers != NONE]
        is_recompute = np.zeros(len(rows), dtype=bool)
        is_recompute[recomputing_launchers] = True
        columns["is_recompute"] = is_recompute
    return pd.DataFrame(columns)


def _thread_columns(gpu_events: GpuEvents, rows: IntArray) -> dict[str, object]:
    """Return the columns with the names of the process and the thread of each event."""
    trace = gpu_events.trace
    process_names: list[str] = []
    process_labels: list[str] = []
    thread_names: list[str] = []
    for process, thread in trace.threads:
        process_names.append(trace.process_names.get(process, _UNKNOWN))
        process_labels.append(trace.process_labels.get(process, _UNKNOWN))
        thread_names.append(trace.thread_names.get((process, thread), _UNKNOWN))
    thread_of_row = trace.thread[rows]
    return {
        "process_name": _text_column(thread_of_row, process_names),
        "process_label": _text_column(thread_of_row, process_labels),
        "thread_name": _text_column(thread_of_row, thread_names),
    }


def _text_column(codes: IntArray, labels: list[str]) -> pd.Categorical[str]:
    """Return texts as a categorical column, whose categories are distinct and all occur."""
    merged_codes, used_labels = recode(codes, labels.__getitem__)
    return pd.Categorical.from_codes(merged_codes, pd.Index(used_labels, dtype="str"))


class OpCategories(NamedTuple):
    """The categories of k operations."""

    code: Int64Array  #: index into `labels`, (k,)
    labels: list[str]


def op_categories(
    gpu_events: GpuEvents, rows: IntArray, of_gpu: IntArray
) -> OpCategories:
    """Categorize CPU ops and launches.

    A launch outside of all CPU ops is `graph` or `runtime`. The category of a CPU op is decided by
    the first of these that is known:

    1. the name of the op;
    2. `graph`, if the op launched a graph, as compiled functions do;
    3. the name of the first kernel that the op launched. Some rules recognize an operation by the
       name of its kernel.

    Args:
        gpu_events: the GPU events.
        rows: the CPU ops and launches, (k,).
        of_gpu: index of the op or launch of each GPU event, `NONE` for an event without one, (g,).
    """
    trace = gpu_events.trace
    labels = ["graph", "runtime", OTHER_OP]
    graph = labels.index("graph")
    runtime = labels.index("runtime")
    other = labels.index(OTHER_OP)
    launched_graph = _launched_graph(gpu_events, rows, of_gpu)
    is_op = np.isin(trace.kind[rows], trace.operation_kinds)
    category = np.where(is_op, other, np.where(launched_graph, graph, runtime))
    for names in (trace.name[rows], _first_kernel_names(gpu_events, rows, of_gpu)):
        undecided = np.flatnonzero((category == other) & (names != NONE))
        category[undecided] = _categories_by_name(gpu_events, names[undecided], labels)
        category[(category == other) & launched_graph] = graph
    return OpCategories(category, labels)


def _categories_by_name(
    gpu_events: GpuEvents, names: IntArray, labels: list[str]
) -> Int64Array:
    """Return the category that each name has, as an index into `labels`.

    Categories that `labels` lacks are appended to it.

    Args:
        gpu_events: the GPU events.
        names: codes of names, (n,).
        labels: the categories.
    """
    first, group = number_groups([names])
    distinct_names = [gpu_events.trace.names[code] for code in names[first].tolist()]
    categories = gpu_events.op_categorizer.categorize_ops(distinct_names)
    labels += sorted(set(categories) - set(labels))
    code_of_category = {label: code for code, label in enumerate(labels)}
    codes = [code_of_category[category] for category in categories]
    return np.array(codes, dtype=np.int64)[group]


def _launched_graph(
    gpu_events: GpuEvents, rows: IntArray, of_gpu: IntArray
) -> BoolArray:
    """Return a mask of the events that launched a graph whose capture is not known, (k,)."""
    launched_graph = np.zeros(len(rows), dtype=bool)
    launched_graph[of_gpu[(of_gpu != NONE) & gpu_events.tree.by_opaque_graph]] = True
    return launched_graph


def _first_kernel_names(
    gpu_events: GpuEvents, rows: IntArray, of_gpu: IntArray
) -> Int64Array:
    """Return the code of the name of the first kernel that each event launched, (k,).

    The code of an event that launched no kernel is `NONE`.
    """
    kernels = np.flatnonzero((of_gpu != NONE) & gpu_events.is_kernel)
    owners, first = np.unique(of_gpu[kernels], return_index=True)
    kernel_name = np.full(len(rows), NONE, dtype=np.int64)
    kernel_name[owners] = gpu_events.name[kernels[first]]
    return kernel_name
