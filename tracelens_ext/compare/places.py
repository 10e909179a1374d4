"""Where in the program GPU work was launched: module path, operations, shapes of the outermost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.iterations.iterations import STEP
from tracelens_ext.modules.modules import SEPARATOR, forward_of_gpu, has_modules, module_of_gpu
from tracelens_ext.nesting import ROOT, depths, nearest_marked
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.tree import GRAPH, UNLINKED
from tracelens_ext.work.grouping import find_paths, minima, number_groups, sums
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork
    from tracelens_ext.work.grouping import CallPaths

#: How JAX annotates the run of an HLO module.
_HLO_MODULE = re.compile(r"(.*):XLA GPU module")
_NUMBER = re.compile(r"(?<=[._#/])\d+(?![^\W_])")
#: What stands for operations where a GPU event has none, whichever runtime launched it.
_WITHOUT = (GRAPH, "(launch)", UNLINKED)
_DEEPEST = 32  # operations in one chain; what is deeper begins another


@dataclass(frozen=True)
class Place:
    """A node of the tree of operations in one path."""

    path: str  #: of modules, NVTX ranges or the HLO module
    backward: bool  #: whether it is the backward of that path
    chain: tuple[str, ...]  #: operations, the outermost first
    shapes: str = ""  #: of the outermost operation, as they were recorded

    @property
    def name(self) -> str:
        """The innermost operation."""
        return self.chain[-1]

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """The chain without the numbers of instances."""
        return tuple(map(normal, self.chain))


@dataclass(frozen=True)
class Work:
    """What was launched at a place itself; no kernels where only operations in it launched."""

    calls: int  #: of its operation, those in which anything was launched
    first: int = 0  #: when the first GPU event started, ns
    kernels: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  #: name → ns and number of GPU events


def normal(text: str) -> str:
    """A name without the numbers of instances, which differ between recordings."""
    return _NUMBER.sub("#", text)


def calls_of(work: GpuWork) -> Int64Array:
    """The call that each GPU event belongs to: its operation, else itself, (g,)."""
    own = len(work.trace) + np.arange(len(work))
    alone = (work.tree.cpu_op_of_gpu == NONE) | work.tree.by_opaque_graph
    return np.where(alone, own, work.tree.cpu_op_of_gpu)


@dataclass(frozen=True, eq=False)
class _Tree:
    """The places of all GPU events of a trace."""

    chains: CallPaths  #: of the operations, then of what stands for them
    parent: Int64Array  #: operation → the one around it, `ROOT` without, (m,)
    node: Int64Array  #: the innermost operation of each GPU event, (g,)
    labels: list[tuple[str, str]]  #: of `chains`: name, shapes
    where: Int64Array  #: path and direction of each GPU event, as a number, (g,)
    wheres: list[tuple[str, bool]]

    def place(self, where: int, chain: int) -> Place:
        names, shapes = [], ""
        while chain != ROOT:
            name, shapes = self.labels[chain]
            names.append(name)
            chain = int(self.chains.parent[chain])
        return Place(*self.wheres[where], tuple(reversed(names)), shapes)


def places(work: GpuWork, chosen: BoolArray | slice) -> dict[Place, Work]:
    """The places of some GPU events, with all that encloses them."""
    found = _tree(work)
    events = np.arange(len(work))[chosen]
    node, where = found.node[events], found.where[events]
    level = np.unique(np.column_stack((where, node)), axis=0)
    rounds = [level]
    while len(level):  # each round one operation further out
        level = np.column_stack((level[:, 0], found.parent[level[:, 1]]))
        level = np.unique(level[level[:, 1] != ROOT], axis=0)
        rounds.append(level)
    instances = np.unique(np.concatenate(rounds), axis=0)
    chain = found.chains.of_node[instances[:, 1]]
    first, number = number_groups([instances[:, 0], chain])
    known = [
        found.place(*each)
        for each in zip(instances[first, 0].tolist(), chain[first].tolist(), strict=True)
    ]
    calls = np.bincount(number, minlength=len(first))
    result = {place: Work(n) for place, n in zip(known, calls.tolist(), strict=True)}
    chain = found.chains.of_node[node]
    first, number = number_groups([where, chain])
    started = minima(number, work.start[events], len(first)).tolist()
    cells, cell = number_groups([number, work.name[events]])
    ns = sums(cell, work.duration[events], len(cells)).tolist()
    count = np.bincount(cell, minlength=len(cells)).tolist()
    kernels: list[dict[str, tuple[int, int]]] = [{} for _ in first]
    for at, *both in zip(cells.tolist(), ns, count, strict=True):
        kernels[number[at]][work.trace.names[work.name[events[at]]]] = both[0], both[1]
    keys = zip(where[first].tolist(), chain[first].tolist(), strict=True)
    for key, start, own in zip(keys, started, kernels, strict=True):
        place = found.place(*key)
        alone = place.chain[0] in _WITHOUT
        n = sum(each for _, each in own.values()) if alone else result[place].calls
        result[place] = Work(n, start, own)
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
    parent = np.append(number[around[nodes]], [ROOT] * len(_WITHOUT))
    parent[depths(parent.astype(np.int32)) % _DEEPEST == 0] = ROOT
    rows, dims = tree.rows[nodes], trace.arg("Input Dims")
    texts = ["", *(dims.texts or ())]
    shape = np.where(parent[: len(rows)] == ROOT, dims.at(rows), NONE) + 1
    names = [*trace.names, *_WITHOUT]
    name = np.append(trace.name[rows], np.arange(len(trace.names), len(names)))
    used, code = np.unique(
        name.astype(np.int64) * len(texts) + np.append(shape, [0] * len(_WITHOUT)),
        return_inverse=True,
    )
    chains = find_paths(parent.astype(np.int32), code)
    node = np.where(tree.by_graph, 0, np.where(tree.linked, 1, 2)) + len(rows)
    node[with_op] = number[innermost]
    last = used[chains.name].tolist()
    labels = [(names[each // len(texts)], texts[each % len(texts)]) for each in last]
    return _Tree(chains, parent, node, labels, *_wheres(work))


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


def _ranges(work: GpuWork) -> tuple[Int64Array, list[str]]:
    """The path of NVTX ranges, or the HLO module, around the operation of each GPU event."""
    trace, tree = work.trace, work.tree
    names = trace.name[tree.rows]
    hlo = [found[1] if (found := _HLO_MODULE.match(name)) else "" for name in trace.names]
    ranges = trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    if any(hlo):
        ranges &= np.array([bool(each) for each in hlo])[names]
    else:
        ranges &= trace.conventions.annotations_are_operations
        ranges &= ~trace.named(names, STEP.fullmatch)
    nodes = np.flatnonzero(ranges)
    number = np.full(len(ranges) + 1, ROOT, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    above = np.append(number[nearest_marked(tree.parent_position, ranges)], ROOT)
    texts = [normal(module or name) for module, name in zip(hlo, trace.names, strict=True)]
    distinct = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([distinct[text] for text in texts], dtype=np.int64)[names]
    paths = find_paths(above[nodes].astype(np.int32), codes[nodes])
    inner = np.append(tree.position, NONE)[tree.cpu_op_of_gpu]
    inner = np.where(inner == NONE, tree.launch_position_of_gpu, inner)
    return np.append(paths.of_node, NONE)[above[inner]], paths.texts(list(distinct), SEPARATOR)
