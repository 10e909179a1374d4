"""Finds the places in the program at which GPU work was launched.

A place consists of a path of modules, a chain of nested operations, and the shapes of the outermost
operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import STEP
from tracelens_ext.analysis.modules import (
    SEPARATOR,
    forward_of_gpu,
    has_modules,
    module_of_gpu,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_paths import CallPaths, find_paths
from tracelens_ext.trace.call_tree import GRAPH, UNLINKED
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, depths, nearest_marked

#: JAX annotates the run of an HLO module with such a text.
_HLO_MODULE = re.compile(r"(.*):XLA GPU module")
#: A number after one of `._#/`, such as those in `fusion.12` and `layers/3`.
_INSTANCE_NUMBER = re.compile(r"(?<=[._#/])\d+(?![^\W_])")
#: Names that take the place of an operation if a GPU event has none.
STAND_IN_OPERATIONS = (GRAPH, "(launch)", UNLINKED)
_GRAPH_INDEX = 0
_LAUNCH_INDEX = 1
_UNLINKED_INDEX = 2
#: The most operations in one chain. Deeper operations begin a new chain.
_MAX_CHAIN = 32


@dataclass(frozen=True)
class ProgramPlace:
    """A place in the program: an operation with the operations and modules around it."""

    path: str  #: the path of modules or NVTX ranges, or the HLO module
    backward: bool  #: True for the backward pass of the path
    chain: tuple[str, ...]  #: the nested operations, the outermost first
    shapes: str = ""  #: the shapes of the outermost operation, as they were recorded

    @property
    def name(self) -> str:
        """The innermost operation."""
        return self.chain[-1]

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """The chain with the numbers of instances replaced."""
        return tuple(without_instance_numbers(name) for name in self.chain)


class KernelTime(NamedTuple):
    """The GPU events with the same name at a place."""

    ns: int  #: the sum of their durations
    events: int  #: the number of GPU events


@dataclass(frozen=True)
class PlaceWork:
    """The work that was launched directly at a place, not in operations nested in it."""

    calls: int  #: the number of calls of the operation in which GPU work was launched
    first_start: int = 0  #: the start of the first GPU event, ns
    #: name → `KernelTime`; empty if only nested operations launched GPU work
    kernels: Mapping[str, tuple[int, int]] = field(default_factory=dict)


#: The places of GPU events and all places that enclose them.
PlacesWithWork = Mapping[ProgramPlace, PlaceWork]


def without_instance_numbers(text: str) -> str:
    """Return a name with `#` for the numbers of instances, which differ between recordings."""
    return _INSTANCE_NUMBER.sub("#", text)


def calls_of(gpu_events: GpuEvents) -> Int64Array:
    """Return a number for the call that each GPU event belongs to, (g,).

    This is the row of its operation. A GPU event without an operation is a call of its own, with a
    number that is larger than all rows.
    """
    tree = gpu_events.tree
    own_number = len(gpu_events.trace) + np.arange(len(gpu_events))
    has_no_operation = (tree.cpu_op_of_gpu == NONE) | tree.by_opaque_graph
    return np.where(has_no_operation, own_number, tree.cpu_op_of_gpu)


class _PathKey(NamedTuple):
    """A path and its direction."""

    path: str
    backward: bool


class _OperationLabel(NamedTuple):
    """The name of an operation, and its shapes if it is the outermost one."""

    name: str
    shapes: str  #: empty for nested operations


@dataclass(frozen=True, eq=False)
class _PlaceTree:
    """The places of all GPU events of a trace."""

    #: the distinct chains of the m operations: those of the trace, then the stand-ins
    chains: CallPaths
    labels: list[_OperationLabel]  #: the innermost operation of each chain
    parent: Int64Array  #: the operation around each operation; `ROOT` if there is none, (m,)
    operation_of_gpu: Int64Array  #: the innermost operation of each GPU event, (g,)
    path_of_gpu: Int64Array  #: the index of each GPU event's path in `paths`, (g,)
    paths: list[_PathKey]

    def place(self, path: int, chain: int) -> ProgramPlace:
        """Return the place with a path and a chain, which are given as indices."""
        names = []
        shapes = ""
        while chain != ROOT:
            name, shapes = self.labels[chain]
            names.append(name)
            chain = int(self.chains.parent[chain])
        names.reverse()
        key = self.paths[path]
        return ProgramPlace(
            path=key.path, backward=key.backward, chain=tuple(names), shapes=shapes
        )


def places(
    gpu_events: GpuEvents, chosen: BoolArray | slice
) -> dict[ProgramPlace, PlaceWork]:
    """Return the places of the chosen GPU events, and all places that enclose them."""
    tree = _place_tree(gpu_events)
    call_count = _calls_of_places(tree, chosen)
    kernels_of_place = _kernels_of_places(gpu_events, tree, chosen)
    result = {}
    for (path, chain), calls in call_count.items():
        place = tree.place(path, chain)
        work = kernels_of_place.get((path, chain))
        if work is None:
            result[place] = PlaceWork(calls)
            continue
        # Without an operation, every GPU event is a call of its own.
        if place.chain[0] in STAND_IN_OPERATIONS:
            calls = sum(kernel.events for kernel in work.kernels.values())
        result[place] = PlaceWork(
            calls=calls, first_start=work.first_start, kernels=work.kernels
        )
    return result


def _calls_of_places(
    tree: _PlaceTree, chosen: BoolArray | slice
) -> dict[tuple[int, int], int]:
    """Return the number of calls of each path and chain, also of those that enclose others.

    A call counts once, however many GPU events were launched in it.
    """
    columns = {
        "path": tree.path_of_gpu[chosen],
        "operation": tree.operation_of_gpu[chosen],
    }
    level = pd.DataFrame(columns).drop_duplicates()
    levels = [level]
    # Each round goes from all operations found so far to the ones around them.
    while len(level):
        outer = level.assign(operation=tree.parent[level["operation"]])
        level = outer[outer["operation"] != ROOT].drop_duplicates()
        levels.append(level)
    distinct_calls = pd.concat(levels).drop_duplicates()
    chain = tree.chains.of_node[distinct_calls["operation"]]
    counts = distinct_calls.groupby(["path", chain]).size()
    return dict(zip(counts.index.tolist(), counts.tolist(), strict=True))


@dataclass
class _OwnWork:
    """The GPU events that were launched directly at a place."""

    first_start: int  #: the start of the first one, ns
    kernels: dict[str, KernelTime] = field(default_factory=dict)


def _kernels_of_places(
    gpu_events: GpuEvents, tree: _PlaceTree, chosen: BoolArray | slice
) -> dict[tuple[int, int], _OwnWork]:
    """Return the GPU events that were launched directly at each path and chain, by name."""
    names = gpu_events.trace.names
    keys = [
        tree.path_of_gpu[chosen],
        tree.chains.of_node[tree.operation_of_gpu[chosen]],
        gpu_events.name[chosen],
    ]
    events = pd.DataFrame(
        {"start": gpu_events.start[chosen], "ns": gpu_events.duration[chosen]}
    )
    cells = events.groupby(keys).agg(
        first_start=("start", "min"), ns=("ns", "sum"), count=("ns", "size")
    )
    own_work: dict[tuple[int, int], _OwnWork] = {}
    for (path, chain, name), first_start, ns, count in cells.itertuples(name=None):
        work = own_work.setdefault((path, chain), _OwnWork(first_start))
        work.first_start = min(work.first_start, first_start)
        work.kernels[names[name]] = KernelTime(ns, count)
    return own_work


@cached_per_object
def _place_tree(gpu_events: GpuEvents) -> _PlaceTree:
    """Return the places of all GPU events of a trace."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    has_operation = (tree.cpu_op_of_gpu != NONE) & ~tree.by_opaque_graph
    innermost = tree.position[tree.cpu_op_of_gpu[has_operation]]
    is_operation = trace.kind[tree.rows] == EventKind.CPU_OP
    operation_around = nearest_marked(tree.parent_position, is_operation)
    # In some formats, annotations take the place of operations.
    is_operation[innermost] = True
    positions = np.flatnonzero(is_operation)
    operation_of_position = np.full(len(is_operation), ROOT, dtype=np.int64)
    operation_of_position[positions] = np.arange(len(positions))
    parent = values_at(operation_of_position, operation_around[positions], missing=ROOT)
    parent = np.append(parent, np.full(len(STAND_IN_OPERATIONS), ROOT))
    is_too_deep = depths(parent.astype(np.int32)) % _MAX_CHAIN == 0
    parent[is_too_deep] = ROOT
    labels = _operation_labels(gpu_events, tree.rows[positions], parent)
    chains = find_paths(parent.astype(np.int32), labels.code)
    first_stand_in = len(positions)
    stand_in = np.full(len(gpu_events), _UNLINKED_INDEX)
    stand_in[tree.linked] = _LAUNCH_INDEX
    stand_in[tree.by_graph] = _GRAPH_INDEX
    operation_of_gpu = first_stand_in + stand_in
    operation_of_gpu[has_operation] = operation_of_position[innermost]
    path_of_gpu, paths = _paths(gpu_events)
    return _PlaceTree(
        chains=chains,
        labels=[labels.distinct[code] for code in chains.name.tolist()],
        parent=parent,
        operation_of_gpu=operation_of_gpu,
        path_of_gpu=path_of_gpu,
        paths=paths,
    )


class _OperationLabels(NamedTuple):
    """The labels of operations, as indices into the distinct ones."""

    code: Int64Array  #: the index of each operation's label in `distinct`, (m,)
    distinct: list[_OperationLabel]


def _operation_labels(
    gpu_events: GpuEvents, rows: Int64Array, parent: Int64Array
) -> _OperationLabels:
    """Return the names of operations, with the shapes of the outermost ones.

    Args:
        gpu_events: the GPU events of the trace.
        rows: the rows of the operations of the trace, without the stand-ins.
        parent: the operation around each operation, with the stand-ins at the end, (m,).
    """
    trace = gpu_events.trace
    dimensions = trace.arg("Input Dims")
    # The first text is that of operations without shapes, whose index is NONE + 1 = 0.
    shape_texts = [""] + list(dimensions.texts or ())
    is_outermost = parent[: len(rows)] == ROOT
    shape = np.where(is_outermost, dimensions.at(rows), NONE) + 1
    shape = np.append(shape, np.zeros(len(STAND_IN_OPERATIONS), dtype=np.int64))
    names = trace.names + list(STAND_IN_OPERATIONS)
    name = np.append(trace.name[rows], np.arange(len(trace.names), len(names)))
    # Name and shape are combined into one number, name * (number of shapes) + shape, and the
    # distinct numbers are taken apart again.
    number = name.astype(np.int64) * len(shape_texts) + shape
    distinct_numbers, code = np.unique(number, return_inverse=True)
    distinct_names, distinct_shapes = np.divmod(distinct_numbers, len(shape_texts))
    distinct = [
        _OperationLabel(name=names[name_index], shapes=shape_texts[shape_index])
        for name_index, shape_index in zip(
            distinct_names.tolist(), distinct_shapes.tolist(), strict=True
        )
    ]
    return _OperationLabels(code, distinct)


class _PathsOfGpu(NamedTuple):
    """The path and direction of GPU events, as indices into the distinct ones."""

    number: Int64Array  #: the index of each GPU event's path in `paths`, (g,)
    paths: list[_PathKey]


def _paths(gpu_events: GpuEvents) -> _PathsOfGpu:
    """Return the path and direction of each GPU event."""
    is_backward = (forward_of_gpu(gpu_events) != NONE).astype(np.int64)
    if has_modules(gpu_events.trace):
        code, labels = module_of_gpu(gpu_events, instances=False)
    else:
        code, labels = _ranges(gpu_events)
    first_event_of_path, number = number_groups([code, is_backward])
    paths = []
    for path, backward in zip(
        code[first_event_of_path].tolist(),
        is_backward[first_event_of_path].tolist(),
        strict=True,
    ):
        text = "" if path == NONE else labels[path]
        paths.append(_PathKey(text, bool(backward)))
    return _PathsOfGpu(number, paths)


class _RangesOfGpu(NamedTuple):
    """The paths of NVTX ranges, or the HLO modules, of GPU events."""

    #: the index of each GPU event's path in `paths`; `NONE` if it has no path, (g,)
    code: Int64Array
    paths: list[str]


def _ranges(gpu_events: GpuEvents) -> _RangesOfGpu:
    """Return the path of NVTX ranges around the operation of each GPU event, or its HLO module."""
    trace = gpu_events.trace
    tree = gpu_events.tree
    name = trace.name[tree.rows]
    hlo_modules = [_hlo_module(text) for text in trace.names]
    is_range = trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    if any(hlo_modules):
        has_module = np.array([bool(module) for module in hlo_modules])
        is_range &= has_module[name]
    else:
        is_range &= trace.conventions.annotations_are_operations
        is_range &= ~trace.named(name, STEP.fullmatch)
    positions = np.flatnonzero(is_range)
    range_of_position = np.full(len(is_range), ROOT, dtype=np.int64)
    range_of_position[positions] = np.arange(len(positions))
    position_around = nearest_marked(tree.parent_position, is_range)
    range_around = values_at(range_of_position, position_around, missing=ROOT)
    texts = [
        without_instance_numbers(module or text)
        for module, text in zip(hlo_modules, trace.names, strict=True)
    ]
    labels = list(dict.fromkeys(texts))
    label_code = _codes(texts, labels)[name]
    paths = find_paths(range_around[positions].astype(np.int32), label_code[positions])
    position_of_gpu = values_at(tree.position, tree.cpu_op_of_gpu, missing=NONE)
    has_no_operation = position_of_gpu == NONE
    position_of_gpu = np.where(
        has_no_operation, tree.launch_position_of_gpu, position_of_gpu
    )
    range_of_gpu = values_at(range_around, position_of_gpu, missing=ROOT)
    code = values_at(paths.of_node, range_of_gpu, missing=NONE)
    return _RangesOfGpu(code, paths.texts(labels, SEPARATOR))


def _hlo_module(name: str) -> str:
    """Return the name of the HLO module that an annotation is about; empty if it is not."""
    match = _HLO_MODULE.match(name)
    return match[1] if match else ""


def _codes(texts: Sequence[str], labels: Sequence[str]) -> Int64Array:
    """Return the index of each text among distinct labels."""
    code_of_label = {label: code for code, label in enumerate(labels)}
    return np.array([code_of_label[text] for text in texts], dtype=np.int64)
