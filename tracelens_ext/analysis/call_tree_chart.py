"""The call tree that a page draws: modules, the operations in them, and their largest kernels."""

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

MOST_NODES = 1000
#: Numbers of kernels that are tried, until the tree has few enough nodes.
_KERNELS_SHOWN = (600, 300, 150, 75, 30, 10, 0)

#: Kind and label at each level.
NodePath = tuple[tuple[str, str], ...]


class _TreeLeaf(NamedTuple):
    """The GPU events of one kernel, in one operation of one module."""

    path: NodePath
    category: str
    duration: int  #: summed, ns


def call_tree(work: GpuEvents) -> pd.DataFrame:
    """The tree: modules, the operations in them, and their kernels; the largest kernels.

    A row a node, parents before children, at most `MOST_NODES`. What is not shown stands below what
    encloses it as `other`, by category.
    """
    leaves = _leaves(work)
    for kernel_count in _KERNELS_SHOWN:
        nodes = _nodes(leaves, kernel_count)
        if len(nodes) <= MOST_NODES:
            break
    nodes = {path: nodes[path] for path in sorted(nodes, key=len)}
    main_category = [times.most_common(1)[0][0] for times in nodes.values()]
    total = [times.total() for times in nodes.values()]
    columns = {**numbered(nodes), "category": main_category, "gpu_time_ns": total}
    return pd.DataFrame(columns)


def _leaves(work: GpuEvents) -> list[_TreeLeaf]:
    """Return the kernels in their operations and modules, the longest first.

    A kernel that no operation launched stands for itself: which API call did, tells little.
    """
    operation, operations = work.tree.cpu_op_label_of_gpu
    operation = np.where(_launched_by_no_operation(work), NONE, operation)
    module, modules = module_of_gpu(work)
    categories = ["GPU work"]
    category = np.zeros(len(work), dtype=np.int32)
    if work.categories is not None:
        categories = work.categories.labels
        category = work.categories.code
    events = pd.DataFrame(
        {
            "module": module,
            "operation": operation,
            "kernel": work.name,
            "category": category,
            "duration": work.duration,
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
        above = path_of_module[module_code] if module_code != NONE else ()
        if operation_code != NONE:
            above += (("operation", operations[operation_code]),)
        kernel_node = ("kernel", work.trace.names[kernel_code])
        path = above + (kernel_node,)
        leaves.append(
            _TreeLeaf(path=path, category=categories[category_code], duration=duration)
        )
    return leaves


def _launched_by_no_operation(work: GpuEvents) -> BoolArray:
    """Tell which GPU events have a launch, but no operation around it and no graph, (g,)."""
    tree = work.tree
    has_no_operation = tree.cpu_op_of_gpu == NONE
    result: BoolArray = has_no_operation & tree.linked & ~tree.by_opaque_graph
    return result


def _module_path(path: str) -> NodePath:
    return tuple(("module", module) for module in path.split(SEPARATOR) if module)


def _nodes(
    leaves: list[_TreeLeaf], kernels_per_node: int
) -> dict[NodePath, Counter[str]]:
    """Return the ns by category of each node.

    Nodes are the first leaves and what encloses them, and `other` for all further leaves.
    """
    nodes: dict[NodePath, Counter[str]] = {}
    for leaf in leaves[:kernels_per_node]:
        _add(nodes, leaf.path, leaf)
    kept = frozenset(nodes)
    for leaf in leaves[kernels_per_node:]:
        depth = len(leaf.path) - 1
        while depth and leaf.path[:depth] not in kept:
            depth -= 1
        other = ("other", f"other ({leaf.category})")
        _add(nodes, leaf.path[:depth] + (other,), leaf)
    return nodes


def _add(nodes: dict[NodePath, Counter[str]], path: NodePath, leaf: _TreeLeaf) -> None:
    """Add the time of a leaf to a node and to all that enclose it."""
    for depth in range(1, len(path) + 1):
        times = nodes.setdefault(path[:depth], Counter())
        times[leaf.category] += leaf.duration


def numbered(nodes: Mapping[NodePath, Any]) -> dict[str, list[int] | list[str]]:
    """Return the columns `node`, `parent`, `label` and `kind` of nodes, parents first."""
    number_of_path = {path: number for number, path in enumerate(nodes)}
    parents: list[int] = []
    labels: list[str] = []
    kinds: list[str] = []
    for path in nodes:
        kind, label = path[-1]
        path_above = path[:-1]
        parents.append(number_of_path.get(path_above, NONE))
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
    description="GPU time by module, operation and kernel, largest kernels only",
    columns=[
        Column("node", "its number"),
        Column("parent", "the parent node; -1 at the root"),
        Column(
            "label",
            "module, operation or kernel; `other` for nodes that are too small to show",
        ),
        Column("kind", "`module`, `operation`, `kernel` or `other`"),
        Column("category", "category of its kernels, or of most of them"),
        Column("gpu_time_ns", "sum of the durations of its GPU events", unit="ns"),
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
