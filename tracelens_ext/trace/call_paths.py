"""The distinct call paths of a forest: which nodes have the same names from the root down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace.nesting import ROOT, depths, is_narrow, levels

if TYPE_CHECKING:
    from tracelens_ext.trace import Int32Array, Int64Array, IntArray


@dataclass(frozen=True, eq=False)
class CallPaths:
    """The p distinct paths of a forest of m nodes, shorter paths first.

    A path is a path above and a last name. For a root `main` that calls `f` twice:

        of_node [0, 1, 1], parent [ROOT, 0], name [code of "main", code of "f"]
    """

    of_node: Int64Array  #: index of the path of each node, shape (m,)
    #: index of each path without its last name, `ROOT` for a path of a single name, (p,)
    parent: Int64Array
    name: Int64Array  #: code of the last name of each path, (p,)

    def __len__(self) -> int:
        return len(self.name)

    def texts(self, labels: Sequence[str], separator: str) -> list[str]:
        """Return each path as text: its names, outermost first, with a separator between them."""
        paths: list[str] = []
        parents = self.parent.tolist()
        names = self.name.tolist()
        for parent, name in zip(parents, names, strict=True):
            path = labels[name]
            if parent != ROOT:
                path_above = paths[parent]
                path = path_above + separator + path
            paths.append(path)
        return paths


def find_paths(parent: Int32Array, name: IntArray) -> CallPaths:
    """Return the distinct paths of a forest.

    Args:
        parent: the parent of each node, `ROOT` for a root, (m,).
        name: the code of each node's name, not negative, (m,).
    """
    depth = depths(parent)
    if is_narrow(depth):
        return _find_paths_one_by_one(parent, name, depth)
    return _find_paths_by_level(parent, name, depth)


def _find_paths_by_level(
    parent: Int32Array, name: IntArray, depth: Int32Array
) -> CallPaths:
    """Find the paths one level of depth after the other, all nodes of a level at once."""
    name_count = int(name.max(initial=0)) + 1
    path_of_node = np.full(len(parent), ROOT, dtype=np.int64)
    # Each path is encoded as one integer: (path above + 1) * name_count + last name.
    # The 1 makes the code of a path without a path above (ROOT is -1) not negative.
    codes_of_levels: list[IntArray] = [np.empty(0, dtype=np.int64)]
    path_count = 0
    for nodes in levels(depth):
        parents = parent[nodes]
        path_above = np.where(parents == ROOT, ROOT, path_of_node[parents])
        code = (path_above + 1) * name_count + name[nodes]
        distinct_codes, index_in_level = np.unique(code, return_inverse=True)
        path_of_node[nodes] = index_in_level + path_count
        codes_of_levels.append(distinct_codes)
        path_count = path_count + len(distinct_codes)
    path_code = np.concatenate(codes_of_levels)
    path_above_plus_one, last_name = np.divmod(path_code, name_count)
    return CallPaths(
        of_node=path_of_node, parent=path_above_plus_one - 1, name=last_name
    )


def _find_paths_one_by_one(
    parent: Int32Array, name: IntArray, depth: Int32Array
) -> CallPaths:
    """Find the paths node by node; quicker than level by level for a deep, narrow forest."""
    order = np.argsort(depth, kind="stable")
    nodes = order.tolist()
    parents = parent[order].tolist()
    names = name[order].tolist()
    index_of_path: dict[tuple[int, int], int] = {}
    # The additional last entry is the path above a root: a root's parent, -1, is its index.
    path_of_node = [ROOT] * (len(parent) + 1)
    for node, node_above, last_name in zip(nodes, parents, names, strict=True):
        path = (path_of_node[node_above], last_name)
        path_of_node[node] = index_of_path.setdefault(path, len(index_of_path))
    distinct_paths = np.array(list(index_of_path), dtype=np.int64).reshape(-1, 2)
    path_above, last_name_of_path = distinct_paths.T
    return CallPaths(
        of_node=np.array(path_of_node[:-1], dtype=np.int64),
        parent=path_above,
        name=last_name_of_path,
    )
