"""Call paths: which nodes of a forest have the same names above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.nesting import ROOT, depths, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import Int32Array, Int64Array, IntArray


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
        """Each path as its names, outermost first, joined."""
        result: list[str] = []
        for parent, name in zip(self.parent.tolist(), self.name.tolist(), strict=True):
            label = labels[name]
            result.append(label if parent == ROOT else result[parent] + separator + label)
        return result


def find_paths(parent: Int32Array, name: IntArray) -> CallPaths:
    """Number the distinct paths of a forest, one level of depth after the other."""
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
