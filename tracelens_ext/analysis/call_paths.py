"""Call paths: which nodes of a forest have the same names above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.nesting import ROOT, depths, levels, nearest_above

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray
    from tracelens_ext.tree import CallTree


@dataclass(frozen=True, eq=False)
class CallPaths:
    """The distinct paths of a forest, p of them, shorter ones first."""

    of_node: Int64Array  #: the path of each node, shape (m,)
    #: path → the path without its last name, `ROOT` for one of a single name, (p,)
    parent: Int64Array
    name: Int64Array  #: code of the last name of each path, (p,)

    def __len__(self) -> int:
        return len(self.name)

    def texts(self, labels: Sequence[str], separator: str) -> list[str]:
        """Each path as its names, outermost first.

        Args:
            labels: what the name codes stand for.
            separator: what stands between two names.
        """
        result: list[str] = []
        for parent, name in zip(self.parent.tolist(), self.name.tolist(), strict=True):
            label = labels[name]
            result.append(label if parent == ROOT else result[parent] + separator + label)
        return result


def find_paths(parent: Int32Array, name: IntArray) -> CallPaths:
    """Number the distinct paths of a forest, one level of depth after the other.

    Args:
        parent: node → its parent, `ROOT` without one, shape (m,).
        name: code of each node's name, not negative, shape (m,).
    """
    names = int(name.max()) + 1 if len(name) else 1
    of_node = np.full(len(parent), ROOT, dtype=np.int64)
    parents: list[Int64Array] = [np.empty(0, dtype=np.int64)]
    last_names: list[Int64Array] = [np.empty(0, dtype=np.int64)]
    known = 0
    for level in levels(depths(parent)):
        above = np.where(parent[level] == ROOT, ROOT, of_node[parent[level]])
        pairs = (above + 1) * names + name[level].astype(np.int64)
        distinct, which = np.unique(pairs, return_inverse=True)
        of_node[level] = which + known
        parents.append(distinct // names - 1)
        last_names.append(distinct % names)
        known += len(distinct)
    return CallPaths(of_node, np.concatenate(parents), np.concatenate(last_names))


def paths_around(
    tree: CallTree, positions: IntArray, marked: BoolArray, separator: str
) -> tuple[Int64Array, list[str]]:
    """The marked events around some positions of a call tree, outermost first.

    Args:
        tree: the call tree.
        positions: in the tree, shape (k,).
        marked: which events are looked for, (m,).
        separator: what stands between two names.

    Returns:
        The path of each as a code, (k,), and the texts; the last is empty, the path of a position
        that no marked event encloses.
    """
    parent = tree.parent_position
    around = nearest_above(parent, positions, marked)
    needed = np.zeros(len(tree.rows), dtype=bool)
    fresh = np.unique(around)
    while len(fresh := fresh[fresh != ROOT]):
        needed[fresh] = True
        fresh = np.unique(nearest_above(parent, fresh, marked))
        fresh = fresh[~needed[fresh]]
    places = np.flatnonzero(needed)
    index = np.full(len(tree.rows) + 1, ROOT, dtype=np.int32)
    index[places] = np.arange(len(places))
    above = index[nearest_above(parent, places, marked)]
    paths = find_paths(above, tree.trace.name[tree.rows[places]])
    of_place = np.append(paths.of_node, len(paths))  # the last is what `ROOT` picks
    return of_place[index[around]], [*paths.texts(tree.trace.names, separator), ""]
