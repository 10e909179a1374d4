"""The call tree that a page draws: modules, the operations in them, and the largest kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.modules import SEPARATOR, module_of_gpu
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, BoolArray
from tracelens_ext.trace.gpu_events import GpuEvents

MAX_NODES = 1000
#: Numbers of kernels to show, tried in this order until the tree has at most `MAX_NODES` nodes.
_KERNEL_COUNTS = (600, 300, 150, 75, 30, 10, 0)

#: The kind and the label of a node and of all nodes above it, outermost first.
NodePath = tuple[tuple[str, str], ...]


class _TreeLeaf(NamedTuple):
    """The GPU events of one kernel in one operation of one module."""

    path: NodePath
    category: str
    duration: int  #: sum of the durations of the events, ns


def call_tree(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the tree of modules, operations and kernels, with a row per node.

    Parents come before their children. The tree has at most `MAX_NODES` nodes, so only the largest
    kernels have one. The time of other kernels is in nodes `other`, one for each category, below
    the innermost node that contains them.
    """
    leaves = _leaves(gpu_events)
    for kernel_count in _KERNEL_COUNTS:
        nodes = _nodes(leaves, kernel_count)
        if len(nodes) <= MAX_NODES:
            break
    nodes = {path: nodes[path] for path in sorted(nodes, key=len)}
    columns: dict[str, object] = {}
    columns |= node_columns(nodes)
    columns["category"] = [times.most_common(1)[0][0] for times in nodes.values()]
    columns["gpu_time_ns"] = [times.total() for times in nodes.values()]
    return pd.DataFrame(columns)


def _leaves(gpu_events: GpuEvents) -> list[_TreeLeaf]:
    """Return the kernels within their operations and modules, longest first.

    A kernel that was launched outside of operations is directly within its module; the name of the
    runtime call that launched it is not shown.
    """
    operation, operations = gpu_events.tree.cpu_op_label_of_gpu
    operation = np.where(_is_outside_operations(gpu_events), NONE, operation)
    module, modules = module_of_gpu(gpu_events)
    categories = ["GPU work"]
    category = np.zeros(len(gpu_events), dtype=np.int32)
    if gpu_events.categories is not None:
        categories = gpu_events.categories.labels
        category = gpu_events.categories.code
    events = pd.DataFrame(
        {
            "module": module,
            "operation": operation,
            "kernel": gpu_events.name,
            "category": category,
            "duration": gpu_events.duration,
        }
    )
    keys = ["module", "operation", "kernel", "category"]
    durations = events.groupby(keys, sort=False)["duration"].sum()
    durations = durations.sort_values(ascending=False)
    path_of_module = [_module_path(path) for path in modules]
    leaves = []
    for codes, duration in zip(
        durations.index.tolist(), durations.tolist(), strict=True
    ):
        module_code, operation_code, kernel_code, category_code = codes
        path: NodePath = ()
        if module_code != NONE:
            path = path_of_module[module_code]
        if operation_code != NONE:
            path += (("operation", operations[operation_code]),)
        path += (("kernel", gpu_events.trace.names[kernel_code]),)
        leaves.append(
            _TreeLeaf(path=path, category=categories[category_code], duration=duration)
        )
    return leaves


def _is_outside_operations(gpu_events: GpuEvents) -> BoolArray:
    """Tell which GPU events have a launch outside of operations that launches no graph, (g,)."""
    tree = gpu_events.tree
    has_no_operation = tree.cpu_op_of_gpu == NONE
    result: BoolArray = has_no_operation & tree.linked & ~tree.by_opaque_graph
    return result


def _module_path(path: str) -> NodePath:
    return tuple(("module", module) for module in path.split(SEPARATOR) if module)


def _nodes(leaves: list[_TreeLeaf], kernel_count: int) -> dict[NodePath, Counter[str]]:
    """Return the nodes of the tree, and the time of each by category, ns.

    Args:
        leaves: all leaves, longest first.
        kernel_count: the number of leaves that become nodes, together with the nodes above them.
            The others are added to nodes `other`.
    """
    nodes: dict[NodePath, Counter[str]] = {}
    for leaf in leaves[:kernel_count]:
        _add_time(nodes, leaf.path, leaf)
    paths_of_largest = frozenset(nodes)
    for leaf in leaves[kernel_count:]:
        depth = len(leaf.path) - 1
        while depth and leaf.path[:depth] not in paths_of_largest:
            depth -= 1
        other = ("other", f"other ({leaf.category})")
        _add_time(nodes, leaf.path[:depth] + (other,), leaf)
    return nodes


def _add_time(
    nodes: dict[NodePath, Counter[str]], path: NodePath, leaf: _TreeLeaf
) -> None:
    """Add the time of a leaf to a node and to all nodes above it."""
    for depth in range(1, len(path) + 1):
        times = nodes.setdefault(path[:depth], Counter())
        times[leaf.category] += leaf.duration


def node_columns(nodes: Mapping[NodePath, Any]) -> dict[str, list[int] | list[str]]:
    """Return the columns `node`, `parent`, `label` and `kind` of nodes, parents before children."""
    number_of_path = {path: number for number, path in enumerate(nodes)}
    parents: list[int] = []
    labels: list[str] = []
    kinds: list[str] = []
    for path in nodes:
        kind, label = path[-1]
        parent_path = path[:-1]
        parents.append(number_of_path.get(parent_path, NONE))
        labels.append(label)
        kinds.append(kind)
    return {
        "node": list(number_of_path.values()),
        "parent": parents,
        "label": labels,
        "kind": kinds,
    }


CALL_TREE = Table(
    name="call_tree",
    description="GPU time by module, operation and kernel, for the largest kernels",
    columns=[
        Column("node", "number of the node, from 0"),
        Column("parent", "number of the node above; -1 for a root"),
        Column(
            "label",
            "name of the module, operation or kernel; `other (CATEGORY)` for "
            "the kernels that are too small to show",
        ),
        Column("kind", "kind of the node: `module`, `operation`, `kernel` or `other`"),
        Column(
            "category",
            "kernel category with the most time in the node; `GPU work` when "
            "categories are off",
        ),
        Column(
            "gpu_time_ns",
            "total duration of the GPU events at the node and below",
            unit="ns",
        ),
    ],
    build=of_gpu_events(call_tree),
    enabled_by="call_tree",
    analyzer_call='table("call_tree")',
    on_every_page=True,
    charts=[
        Chart(
            title="GPU time in the call tree",
            sheet="call_tree",
            label_column="label",
            value_column="gpu_time_ns",
            kind="call_tree",
        )
    ],
)
