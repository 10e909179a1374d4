"""Where in the program GPU work was launched: module path, operations, shapes of the outermost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.iterations.iterations import STEP
from tracelens_ext.lazy import pd
from tracelens_ext.modules.modules import SEPARATOR, forward_of_gpu, has_modules, module_of_gpu
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.call_paths import find_paths
from tracelens_ext.work.grouping import minima, number_groups, sums
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.call_paths import CallPaths
    from tracelens_ext.work.gpu_work import GpuWork

#: How JAX annotates the run of an HLO module.
_HLO_MODULE = re.compile(r"(.*):XLA GPU module")
_NUMBER = re.compile(r"(?<=[._#/])\d+(?![^\W_])")
#: What stands for any launch by no operation, whichever runtime made it.
LAUNCH = "(launch)"


@dataclass(frozen=True)
class Place:
    """A node of the tree of operations in one path."""

    path: str  #: of modules, NVTX ranges or the HLO module
    backward: bool  #: whether it is the backward of that path
    chain: tuple[str, ...]  #: operations, the outermost first
    shapes: str  #: of the outermost operation, as they were recorded


@dataclass(frozen=True)
class Work:
    """What was launched at a place itself; nothing where only operations in it launched."""

    calls: int  #: of its operation, those in which anything was launched
    first: int  #: when the first GPU event started, ns
    label: str  #: what tables call the operation
    kernels: dict[str, tuple[int, int]]  #: name → GPU events and their ns

    @property
    def ns(self) -> int:
        """Time of its GPU events."""
        return sum(ns for _, ns in self.kernels.values())


@dataclass(frozen=True, eq=False)
class _Tree:
    """The places of all GPU events of a trace."""

    chains: CallPaths  #: of the nodes
    parent: Int64Array  #: operation → the one around it, `ROOT` without, (m,)
    node: Int64Array  #: the innermost operation of each GPU event, `NONE` without, (g,)
    where: Int64Array  #: path and direction of each, as a number, (g,)
    labels: list[str]  #: of `chains`
    shapes: list[str]  #: of the outermost of `chains`
    wheres: list[tuple[str, bool]]


def normal(text: str) -> str:
    """A name without the numbers of instances, which differ between recordings."""
    return _NUMBER.sub("#", text)


def calls_of(work: GpuWork) -> Int64Array:
    """The call that each GPU event belongs to: its operation, else itself, (g,)."""
    tree = work.tree
    own = len(work.trace) + np.arange(len(work))
    alone = (tree.cpu_op_of_gpu == NONE) | tree.by_opaque_graph
    return np.where(alone, own, tree.cpu_op_of_gpu)


def places(work: GpuWork, chosen: BoolArray | slice) -> dict[Place, Work]:
    """The places of some GPU events, with all that encloses them."""
    found = _tree(work)
    events = np.arange(len(work))[chosen]
    node, where = found.node[events], found.where[events]
    pairs = [np.empty((0, 2), dtype=np.int64)]
    level = np.unique(np.column_stack((where, node))[node != NONE], axis=0)
    while len(level):  # each round one operation further out
        pairs.append(level)
        level = np.column_stack((level[:, 0], found.parent[level[:, 1]]))
        level = np.unique(level[level[:, 1] != ROOT], axis=0)
    instances = np.unique(np.concatenate(pairs), axis=0)
    chain = np.append(found.chains.of_node, NONE)[instances[:, 1]]
    first, number = number_groups([instances[:, 0], chain])
    calls = np.bincount(number, minlength=len(first))
    result = {
        _place(found, int(instances[at, 0]), int(chain[at])): Work(int(count), 0, "", {})
        for at, count in zip(first.tolist(), calls.tolist(), strict=True)
    }
    return result | _own_work(work, found, events, result)


def _place(found: _Tree, where: int, chain: int) -> Place:
    names, at = [], chain
    while at != ROOT:
        names.append(found.labels[at])
        top, at = at, int(found.chains.parent[at])
    return Place(*found.wheres[where], tuple(reversed(names)), found.shapes[top])


def _own_work(
    work: GpuWork, found: _Tree, events: Int64Array, known: dict[Place, Work]
) -> dict[Place, Work]:
    """What was launched at the places themselves."""
    codes, labels = work.tree.cpu_op_label_of_gpu
    chain = np.append(found.chains.of_node, NONE)[found.node[events]]
    label = np.where(chain == NONE, codes[events], NONE)
    first, number = number_groups([found.where[events], chain, label])
    started = minima(number, work.start[events], len(first))
    name = work.name[events]
    own, cell = number_groups([number, name])
    ns = sums(cell, work.duration[events], len(own))
    count = np.bincount(cell, minlength=len(own))
    kernels: list[dict[str, tuple[int, int]]] = [{} for _ in first]
    cells = zip(number[own].tolist(), name[own].tolist(), count.tolist(), ns.tolist(), strict=True)
    for group, code, events_of, time in cells:
        kernels[group][work.trace.names[code]] = events_of, time
    result = {}
    for group, at in enumerate(first.tolist()):
        where = int(found.where[events[at]])
        if chain[at] != NONE:
            place = _place(found, where, int(chain[at]))
            calls, shown = known[place].calls, place.chain[-1]
        else:
            shown = labels[label[at]]
            key = shown if shown.startswith("(") or work.tree.by_graph[events[at]] else LAUNCH
            place = Place(*found.wheres[where], (key,), "")
            calls = sum(events_of for events_of, _ in kernels[group].values())
            if (before := result.get(place)) is not None:
                calls += before.calls
                for kernel, (n, t) in before.kernels.items():
                    m, s = kernels[group].get(kernel, (0, 0))
                    kernels[group][kernel] = n + m, t + s
        result[place] = Work(calls, int(started[group]), shown, kernels[group])
    return result


@once_for_each
def _tree(work: GpuWork) -> _Tree:
    trace, tree = work.trace, work.tree
    with_op = (tree.cpu_op_of_gpu != NONE) & ~tree.by_opaque_graph
    innermost = tree.position[tree.cpu_op_of_gpu[with_op]]
    is_op = trace.kind[tree.rows] == EventKind.CPU_OP
    around = nearest_marked(tree.parent_position, is_op)
    is_op[innermost] = True  # annotations that stand for operations too
    nodes = np.flatnonzero(is_op)
    number = np.full(len(is_op) + 1, ROOT, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    parent = number[around[nodes]]
    rows = tree.rows[nodes]
    dims = trace.arg("Input Dims")
    shape = np.where(parent == ROOT, dims.at(rows), NONE) + 1
    several = len(dims.texts or ()) + 1
    name = trace.name[rows].astype(np.int64) * several + shape
    used, code = np.unique(name, return_inverse=True)
    chains = find_paths(parent.astype(np.int32), code)
    node = np.full(len(work), NONE, dtype=np.int64)
    node[with_op] = number[innermost]
    where, wheres = _wheres(work)
    texts = ["", *(dims.texts or ())]
    last = used[chains.name].tolist()
    return _Tree(
        chains,
        parent,
        node,
        where,
        [trace.names[each // several] for each in last],
        [texts[each % several] for each in last],
        wheres,
    )


def _wheres(work: GpuWork) -> tuple[Int64Array, list[tuple[str, bool]]]:
    """Path and direction of each GPU event: numbers, and what they stand for."""
    backward = (forward_of_gpu(work) != NONE).astype(np.int64)
    if has_modules(work.trace):
        code, labels = module_of_gpu(work, instances=False)
    else:
        code, labels = _ranges(work)
    first, number = number_groups([code, backward])
    known = [*labels, ""]  # NONE is the last
    pairs = zip(code[first].tolist(), backward[first].tolist(), strict=True)
    return number, [(known[at], bool(back)) for at, back in pairs]


def _ranges(work: GpuWork) -> tuple[Int64Array, Sequence[str]]:
    """The path of NVTX ranges, or the HLO module, around the operation of each GPU event."""
    trace, tree = work.trace, work.tree
    none = np.full(len(work), NONE, dtype=np.int64)
    hlo = [found[1] if (found := _HLO_MODULE.match(name)) else "" for name in trace.names]
    ranges = trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    if any(hlo):
        ranges &= np.array([bool(each) for each in hlo])[trace.name[tree.rows]]
    elif not trace.conventions.annotations_are_operations:
        return none, []
    else:
        ranges &= ~trace.named(trace.name[tree.rows], STEP.fullmatch)
    nodes = np.flatnonzero(ranges)
    if not len(nodes):
        return none, []
    above = nearest_marked(tree.parent_position, ranges)
    number = np.full(len(ranges) + 1, ROOT, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    texts = [normal(hlo[at] or name) for at, name in enumerate(trace.names)]
    distinct = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([distinct[text] for text in texts], dtype=np.int64)[trace.name[tree.rows]]
    paths = find_paths(number[above[nodes]].astype(np.int32), codes[nodes])
    inner = tree.position[np.where(tree.cpu_op_of_gpu != NONE, tree.cpu_op_of_gpu, 0)]
    inner = np.where(tree.cpu_op_of_gpu != NONE, inner, tree.launch_position_of_gpu)
    around = np.append(above, ROOT)[inner]
    path = np.append(paths.of_node, NONE)[np.append(number, ROOT)[around]]
    return path, paths.texts(list(distinct), SEPARATOR)
