"""GPU time as a tree of modules, operations and kernels, small enough to be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.modules.modules import SEPARATOR, has_modules, module_of_gpu
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.work.gpu_work import GpuWork

MOST_NODES = 1000
_TOP = NONE
_OTHER = "other"


def call_tree(work: GpuWork) -> pd.DataFrame:
    """The tree: modules, the operations in them, and their kernels; the largest kernels.

    What is not shown stands below what encloses it as `other`, by category.

    Returns:
        A row a node, parents before children, at most `MOST_NODES`: `node`, `parent` (-1 at the
        top), `label`, `kind` (`module`, `operation`, `kernel`, `other`), `category` (of a node with
        children that of most of its time), `gpu_time_ns`, which is the sum of its children's.
    """
    leaves = _leaves(work)
    for shown in (600, 300, 150, 75, 30, 10, 0):
        nodes = _nodes(leaves, shown)
        if len(nodes) <= MOST_NODES:
            break
    return _table(nodes)


def _leaves(work: GpuWork) -> list[tuple[str, str, str, str, int]]:
    """(module, operation, kernel, category, ns), the longest first."""
    code, labels = work.tree.cpu_op_label_of_gpu
    names, found = work.trace.names, work.categories
    module = ["" for _ in range(len(work))]
    if has_modules(work.trace):
        codes, paths = module_of_gpu(work)
        known = [*paths, ""]  # NONE is the last
        module = [known[each] for each in codes.tolist()]
    frame = pd.DataFrame(
        {
            "module": module,
            "operation": pd.Categorical.from_codes(code, pd.Index(range(len(labels)))),
            "kernel": work.name,
            "category": found.code if found is not None else 0,
            "ns": work.duration,
        }
    )
    keys = ["module", "operation", "kernel", "category"]
    sums = frame.groupby(keys, observed=True, sort=False)["ns"].sum().sort_values(ascending=False)
    categories = found.labels if found is not None else ["GPU work"]
    return [
        (place, labels[operation], names[kernel], categories[category], int(ns))
        for (place, operation, kernel, category), ns in zip(
            sums.index.tolist(), sums.tolist(), strict=True
        )
    ]


#: Path of a node (its kind and label at each level) → ns by category.
_Nodes = dict[tuple[tuple[str, str], ...], dict[str, int]]


def _nodes(leaves: list[tuple[str, str, str, str, int]], shown: int) -> _Nodes:
    """The nodes of the first leaves and what encloses them; the others as `other`."""
    nodes: _Nodes = {}

    def add(path: tuple[tuple[str, str], ...], category: str, ns: int) -> None:
        for depth in range(1, len(path) + 1):
            times = nodes.setdefault(path[:depth], {})
            times[category] = times.get(category, 0) + ns

    rest = []
    for at, (module, operation, kernel, category, ns) in enumerate(leaves):
        above = [("module", part) for part in module.split(SEPARATOR) if part]
        path = (*above, ("operation", operation), ("kernel", kernel))
        if at < shown:
            add(path, category, ns)
        else:
            rest.append((path, category, ns))
    kept = frozenset(nodes)
    for path, category, ns in rest:
        depth = len(path) - 1
        while depth and path[:depth] not in kept:
            depth -= 1
        add((*path[:depth], (_OTHER, f"{_OTHER} ({category})")), category, ns)
    return nodes


def _table(nodes: _Nodes) -> pd.DataFrame:
    paths = sorted(nodes, key=len)
    number = {path: at for at, path in enumerate(paths)}
    rows = [
        (
            number[path],
            number.get(path[:-1], _TOP),
            path[-1][1],
            path[-1][0],
            max(times, key=lambda category: times[category]),
            sum(times.values()),
        )
        for path in paths
        for times in (nodes[path],)
    ]
    columns = ["node", "parent", "label", "kind", "category", "gpu_time_ns"]
    return pd.DataFrame(rows, columns=columns)
