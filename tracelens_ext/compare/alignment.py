"""Where in the program GPU work was launched, and which places of two traces stand for each other.

A place is a module path, operations, and the shapes of the outermost. Places are aligned by path,
outermost operation and shapes, then without shapes, then without numbers; where the operations
inside differ, at their common ancestor. The rest is paired by operation, then by what ran before.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tracelens_ext.analysis.iterations.selection import STEP
from tracelens_ext.analysis.modules import SEPARATOR, forward_of_gpu, has_modules, module_of_gpu
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import GRAPH, UNLINKED
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import CallPaths, find_paths, number_groups
from tracelens_ext.trace.nesting import ROOT, depths, nearest_marked

Leaf = tuple["ProgramPlace", "PlaceWork"]  # of a place with GPU work of its own
Both = tuple[list[Leaf], list[Leaf]]
_Key = Callable[[int, Leaf], Hashable]  #: of a leaf of A (0) or B (1)
Found = tuple[int, Both]  #: how long the chain of the common ancestor is (0: of none), and what
Rows = dict[tuple[str, bool, str, str], list[Found]]

#: How JAX annotates the run of an HLO module.
_HLO_MODULE = re.compile(r"(.*):XLA GPU module")
_NUMBER = re.compile(r"(?<=[._#/])\d+(?![^\W_])")
#: What stands for operations where a GPU event has none, whichever runtime launched it.
_WITHOUT = (GRAPH, "(launch)", UNLINKED)
_DEEPEST = 32  # operations in one chain; what is deeper begins another


@dataclass(frozen=True)
class ProgramPlace:
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
class PlaceWork:
    """What was launched at a place itself; no kernels where only operations in it launched."""

    calls: int  #: of its operation, those in which anything was launched
    first: int = 0  #: when the first GPU event started, ns
    #: name → ns and number of GPU events
    kernels: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def normal(text: str) -> str:
    """A name without the numbers of instances, which differ between recordings."""
    return _NUMBER.sub("#", text)


def calls_of(work: GpuEvents) -> Int64Array:
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

    def place(self, where: int, chain: int) -> ProgramPlace:
        names = []
        shapes = ""
        while chain != ROOT:
            name, shapes = self.labels[chain]
            names.append(name)
            chain = int(self.chains.parent[chain])
        return ProgramPlace(*self.wheres[where], tuple(reversed(names)), shapes)


def places(work: GpuEvents, chosen: BoolArray | slice) -> dict[ProgramPlace, PlaceWork]:
    """The places of some GPU events, with all that encloses them."""
    found = _tree(work)
    chain_of = _tree(work).chains.of_node
    names = work.trace.names
    keys = {"where": found.where[chosen], "node": found.node[chosen]}
    rounds = [pd.DataFrame(keys).drop_duplicates()]
    while len(rounds[-1]):  # each round one operation further out
        level = rounds[-1].assign(node=found.parent[rounds[-1]["node"]])
        rounds.append(level[level["node"] != ROOT].drop_duplicates())
    instances = pd.concat(rounds).drop_duplicates()
    calls = instances.groupby(["where", chain_of[instances["node"]]]).size()
    events = pd.DataFrame({"start": work.start[chosen], "ns": work.duration[chosen]})
    by = [keys["where"], chain_of[keys["node"]], work.name[chosen]]
    cells = events.groupby(by).agg(first=("start", "min"), ns=("ns", "sum"), count=("ns", "size"))
    own: dict[tuple[int, int], list[tuple[str, int, int, int]]] = defaultdict(list)
    for (where, chain, name), *figures in cells.itertuples(name=None):
        own[where, chain].append((names[name], *figures))
    result = {}
    for key, number in zip(calls.index.tolist(), calls.tolist(), strict=True):
        place = found.place(*key)
        held = own.get(key, [])
        alone = place.chain[0] in _WITHOUT
        kernels = {name: (ns, count) for name, _, ns, count in held}
        number = sum(count for _, count in kernels.values()) if alone else number
        result[place] = PlaceWork(number, min((first for _, first, *_ in held), default=0), kernels)
    return result


@cached_per_object
def _tree(work: GpuEvents) -> _Tree:
    trace = work.trace
    tree = work.tree
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
    rows = tree.rows[nodes]
    dims = trace.arg("Input Dims")
    texts = ["", *(dims.texts or ())]
    shape = np.where(parent[: len(rows)] == ROOT, dims.at(rows), NONE) + 1
    names = [*trace.names, *_WITHOUT]
    name = np.append(trace.name[rows], np.arange(len(trace.names), len(names)))
    both = name.astype(np.int64) * len(texts) + np.append(shape, [0] * len(_WITHOUT))
    used, code = np.unique(both, return_inverse=True)
    chains = find_paths(parent.astype(np.int32), code)
    node = np.where(tree.by_graph, 0, np.where(tree.linked, 1, 2)) + len(rows)
    node[with_op] = number[innermost]
    last = used[chains.name].tolist()
    labels = [(names[each // len(texts)], texts[each % len(texts)]) for each in last]
    return _Tree(chains, parent, node, labels, *_wheres(work))


def _wheres(work: GpuEvents) -> tuple[Int64Array, list[tuple[str, bool]]]:
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


def _ranges(work: GpuEvents) -> tuple[Int64Array, list[str]]:
    """The path of NVTX ranges, or the HLO module, around the operation of each GPU event."""
    trace = work.trace
    tree = work.tree
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


# kernels and operations that a cell names
_MOST_KERNELS = 8
_MOST_NAMED = 4
_SCOPES: tuple[Callable[[ProgramPlace], Hashable], ...] = (
    lambda place: (place.path, place.backward, place.chain[0], place.shapes),
    lambda place: (place.path, place.backward, place.chain[0]),
    lambda place: (place.path, place.backward, normal(place.chain[0])),
)


@dataclass(frozen=True)
class Aligned:
    """One table of all traces: k rows, t traces."""

    keys: pd.DataFrame  #: the columns that name the rows, k of them
    ns: Int64Array  #: time of each row in each trace, of all its iterations together, (k, t)
    count: Int64Array  #: GPU events, likewise
    calls: Int64Array  #: calls of operations, likewise

    @cached_property
    def names(self) -> list[str]:
        """What each row is called, without its device or category, (k,)."""
        return self.keys.iloc[:, -1].astype(str).tolist()

    def work_and_speed(self, at: int) -> tuple[float | None, float | None]:
        """Median ratio of calls, weighted by A's time; B's time by that of as many calls of A."""
        both = ((self.ns > 0) & (self.calls > 0))[:, [0, at]].all(axis=1)
        if not both.any():
            return None, None
        ns = self.ns[both]
        ratio = self.calls[both, at] / self.calls[both, 0]
        order = np.argsort(ratio)
        weight = np.cumsum(ns[order, 0])
        median = float(ratio[order][np.searchsorted(weight, weight[-1] / 2)])
        return median, float(ns[:, at].sum() / (ns[:, 0] * ratio).sum())


def align(a: Mapping[ProgramPlace, PlaceWork], b: Mapping[ProgramPlace, PlaceWork]) -> Aligned:
    """The rows of two traces, a row an operation of a path, with its operations and kernels."""
    known = a, b
    leaves = ([leaf for leaf in each.items() if leaf[1].kernels] for each in known)
    left: Both = next(leaves), next(leaves)
    found: list[Found] = []
    deepest = max((len(place.chain) for side in left for place, _ in side), default=0)
    for scope in _SCOPES:
        for depth in range(deepest, 0, -1):
            left = _paired(left, _chains(scope, depth, deeper=False), 0, found)
            left = _paired(left, _chains(scope, depth, deeper=True), depth, found)
    left = _paired(left, lambda _, each: (each[0].path, each[0].backward, each[0].name), 0, found)
    left = _paired(left, _after(found), 0, found)
    rows: Rows = defaultdict(list)
    for depth, both in found:
        place = both[0][0][0]
        inner = ([*dict.fromkeys(place.name for place, _ in side)] for side in both)
        named = [_first(names, _MOST_NAMED, " + ") for names in inner]
        names = [place.chain[depth - 1]] * 2 if depth else named
        rows[place.path, place.backward, names[0], names[1]].append((depth, both))
    own = {(*key[:2], key[2 + side], side): key for key in reversed(rows) for side in (0, 1)}
    for side in (0, 1):  # what is in one trace alone, beside other work of the same operation
        for leaf in left[side]:
            where = (leaf[0].path, leaf[0].backward)
            name = leaf[0].name
            alone = (*where, "" if side else name, name if side else "")
            pair: Both = ([], [leaf]) if side else ([leaf], [])
            rows[own.get((*where, name, side), alone)].append((0, pair))
    return _table(rows, known)


def _paired(left: Both, key: _Key, depth: int, found: list[Found]) -> Both:
    """Pair what has one key, other than None, in both traces; the rest is left."""
    groups: dict[Hashable, Both] = defaultdict(lambda: ([], []))
    for side in (0, 1) if all(left) else ():
        for leaf in left[side]:
            groups[key(side, leaf)][side].append(leaf)
    if not groups:
        return left
    rest: Both = groups.pop(None, ([], []))
    for both in groups.values():
        if all(both):
            found.append((depth, both))
        else:
            for side in (0, 1):
                rest[side].extend(both[side])
    return rest


def _chains(scope: Callable[[ProgramPlace], Hashable], depth: int, *, deeper: bool) -> _Key:
    """Chains of so many operations, or the beginnings of those that are as long or longer."""

    def key(_: int, leaf: Leaf) -> Hashable:
        length = len(leaf[0].chain)
        fits = length >= depth if deeper else length == depth
        return (scope(leaf[0]), leaf[0].plain[:depth]) if fits else None

    return key


def _after(found: list[Found]) -> _Key:
    """The last pair that ran before a place without a path; all of one path are one."""
    firsts = [[min(w.first for _, w in side) for side in both] for _, both in found]
    starts = [sorted((first[side], at) for at, first in enumerate(firsts)) for side in (0, 1)]

    def last(side: int, leaf: Leaf) -> Hashable:
        place, work = leaf
        before = bisect(starts[side], (work.first, -1)) - 1
        slot = starts[side][before][1] if before >= 0 else -1
        return place.path, place.backward, None if place.path else slot

    return last


def _first(names: Sequence[str], most: int, between: str) -> str:
    """So many names, and how many more there are."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return between.join([*names[:most], *more])


def _calls(known: Mapping[ProgramPlace, PlaceWork], leaves: Iterable[Leaf], depth: int) -> int:
    """The calls of some places, or of their ancestors of so long a chain."""
    if not depth:
        return sum(work.calls for _, work in leaves)
    above = {replace(place, chain=place.chain[:depth]) for place, _ in leaves}
    return sum(known[place].calls for place in above)


def _table(rows: Rows, known: Sequence[Mapping[ProgramPlace, PlaceWork]]) -> Aligned:
    """The rows, with the kernels of each side summed by name, the longest first."""
    ns, count, calls = np.zeros((3, len(rows), 2), dtype=np.int64)
    kernels: list[list[str]] = [[], []]
    for row, found in enumerate(rows.values()):
        for side in (0, 1):
            calls[row, side] = sum(_calls(known[side], both[side], depth) for depth, both in found)
            times = Counter[str]()
            numbers = Counter[str]()
            for work in (work for _, both in found for _, work in both[side]):
                for name, (own_ns, own_count) in work.kernels.items():
                    times[name] += own_ns
                    numbers[name] += own_count
            ns[row, side], count[row, side] = times.total(), numbers.total()
            order = sorted(times, key=lambda name: (-times[name], name))
            told = [f"{name} × {numbers[name]}" for name in order]
            kernels[side].append(_first(told, _MOST_KERNELS, "; "))
    columns = list(zip(*rows, strict=True)) or [()] * 4
    names = ("path", "backward", "A_operation", "B_operation", "A_kernels", "B_kernels")
    keys = dict(zip(names, [*columns, *kernels], strict=True))
    return Aligned(pd.DataFrame(keys), ns, count, calls)
