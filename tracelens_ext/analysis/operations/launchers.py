"""Launchers: the operations that GPU work is filed under in the `ops_*` tables.

The launcher of a GPU event is the nearest CPU op above its launch that is not called `execute`
(a wrapper that says nothing about the work), else the launch itself. Its *direct* time is the
busy-time union of the GPU events it is the launcher of, its *subtree* time that of all GPU events
below it. Communication has no launcher here: its time is mostly waiting for other ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

import numpy as np

from tracelens_ext.categorize.rules import OTHER_OP
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    NS_PER_US,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import inverse, minima, number_groups, renamed
from tracelens_ext.trace.nesting import ROOT, nearest_above, nearest_marked

#: Arguments that tell two launches of one operation apart.
ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
#: Columns of `launcher_table` that hold text.
TEXT_COLUMNS = ("name", "op category", *ARGUMENTS, "process_name", "process_label", "thread_name")

_WRAPPER = "execute"
_UNKNOWN = "Unknown"


@dataclass(frozen=True, eq=False)
class Launchers:
    """The launchers of a trace in order of start, k of them; g GPU events."""

    rows: Int64Array  #: the events, (k,)
    of_gpu: Int64Array  #: index of each GPU event's launcher, `NONE` for one that has none, (g,)
    direct_ns: Int64Array  #: busy time of the GPU events a launcher has launched itself, (k,)
    subtree_ns: Int64Array  #: busy time of all GPU events below it, communication included, (k,)
    count: Int64Array  #: GPU events it has launched itself, (k,)

    def __len__(self) -> int:
        return len(self.rows)


def find_launchers(work: GpuEvents) -> Launchers:
    """Find the launcher of every linked GPU event that is not communication."""
    tree = work.tree
    trace = work.trace
    wrapper = trace.names_matching(lambda name: name == _WRAPPER)
    is_op = tree.is_operation & ~wrapper[trace.name[tree.rows]]
    counted = np.flatnonzero(tree.linked & ~work.is_communication)
    launch = tree.launch_position_of_gpu[counted]
    above = nearest_above(tree.parent_position, launch, is_op)
    position = np.where(above != ROOT, above, launch)
    # From here on launchers are numbered in tree order, in the end in order of start.
    places, number = np.unique(position, return_inverse=True)
    rows = tree.rows[places]
    order = np.lexsort((rows, trace.ts[rows]))
    of_gpu = np.full(len(work), NONE, dtype=np.int64)
    of_gpu[counted] = inverse(order)[number]
    busy = BusyTime(work.start, work.end)
    return Launchers(
        rows=rows[order],
        of_gpu=of_gpu,
        direct_ns=busy.by_owner(of_gpu, len(places)),
        subtree_ns=busy.by_subtree(*_forest(work, places))[order],
        count=np.bincount(number, minlength=len(places))[order],
    )


def _forest(work: GpuEvents, places: IntArray) -> tuple[Int32Array, Int64Array]:
    """How given positions of the tree nest, and which of them is innermost at each GPU event.

    Parents among the positions, `ROOT` without one; indices into them, `NONE` for a GPU event below
    none of them.
    """
    tree = work.tree
    index = np.full(len(tree.rows) + 1, NONE, dtype=np.int64)
    index[places] = np.arange(len(places))
    marked = index[:-1] != NONE
    innermost = np.full(len(work), NONE, dtype=np.int64)
    launch = tree.launch_position_of_gpu[tree.linked]
    above_launch = nearest_above(tree.parent_position, launch, marked)
    innermost[tree.linked] = np.where(marked[launch], index[launch], index[above_launch])
    above = nearest_above(tree.parent_position, places, marked)
    return index[above].astype(np.int32), innermost


def busy_below(work: GpuEvents, rows: IntArray) -> Int64Array:
    """Busy time of all GPU events below some distinct host events of the tree, ns."""
    position = work.tree.position[rows]
    order = np.argsort(position)
    busy = BusyTime(work.start, work.end).by_subtree(*_forest(work, position[order]))
    return busy[inverse(order)]


def launcher_table(work: GpuEvents, launchers: Launchers) -> pd.DataFrame:
    """A row a launcher, in order of start.

    Columns `name`, `op category`, `UID` (the event's row in the trace), `total_direct_kernel_time`,
    `total_subtree_kernel_time` (µs), `direct_kernel_count` (GPU events), `Input Dims`, `Input
    type`, `Input Strides`, `Concrete Inputs` (empty where the trace has none), `process_name`,
    `process_label`, `thread_name` (`Unknown` where the trace does not name them). Texts are
    categorical. Where the backward ran a part of the forward again, also `is_recompute`: whether
    the operation belongs to that.
    """
    trace = work.trace
    rows = launchers.rows
    category, labels = op_categories(work, rows, launchers.of_gpu)
    columns: dict[str, object] = {
        "name": _text_column(trace.name[rows], trace.names),
        "op category": _text_column(category, labels),
        "UID": rows,
        "total_direct_kernel_time": launchers.direct_ns / NS_PER_US,
        "total_subtree_kernel_time": launchers.subtree_ns / NS_PER_US,
        "direct_kernel_count": launchers.count,
    }
    columns |= {each: _text_column(*op_argument(trace, rows, each)) for each in ARGUMENTS}
    for column, named in {
        "process_name": [trace.process_names.get(pid, _UNKNOWN) for pid, _ in trace.threads],
        "process_label": [trace.process_labels.get(pid, _UNKNOWN) for pid, _ in trace.threads],
        "thread_name": [trace.thread_names.get(both, _UNKNOWN) for both in trace.threads],
    }.items():
        columns[column] = _text_column(trace.thread[rows], named)
    if (again := recomputed(work)).any():
        of_launcher = np.zeros(len(rows) + 1, dtype=bool)
        of_launcher[launchers.of_gpu[again]] = True
        columns["is_recompute"] = of_launcher[:-1]
    return pd.DataFrame(columns)


def _text_column(codes: IntArray, labels: list[str]) -> pd.Categorical[str]:
    """The texts that codes stand for; only those that occur are kept, equal ones merged."""
    merged, found = renamed(codes, labels.__getitem__)
    return pd.Categorical.from_codes(merged, pd.Index(found, dtype="str"))


def op_categories(
    work: GpuEvents, rows: IntArray, of_gpu: IntArray
) -> tuple[Int64Array, list[str]]:
    """Categorize CPU ops and launches, each by its name and what it launched.

    A CPU op is judged by its name. One whose name says nothing is `graph` when it launched one (as
    compiled functions do), else it is judged by the name of the first kernel it launched: the same
    rules are asked, for some know what a kernel tells of its operation. A launch that no CPU op
    encloses is `graph` or `runtime`. `of_gpu`: which of the `rows`, (k,), each GPU event belongs
    to, `NONE` for none, (g,). Gives codes, (k,), and the labels that they stand for.
    """
    trace = work.trace
    name = trace.name[rows]
    kernels = np.flatnonzero((of_gpu != NONE) & work.is_kernel)
    owners, first = np.unique(of_gpu[kernels], return_index=True)
    kernel_name = np.full(len(rows), NONE, dtype=np.int64)
    kernel_name[owners] = work.name[kernels[first]]

    labels = ["graph", "runtime", OTHER_OP]
    (graph, runtime, other) = range(3)
    launched_graph = np.zeros(len(rows), dtype=bool)
    launched_graph[of_gpu[(of_gpu != NONE) & work.tree.by_opaque_graph]] = True
    is_op = np.isin(trace.kind[rows], trace.operation_kinds)
    category = np.where(is_op, other, np.where(launched_graph, graph, runtime))
    for names in (name, kernel_name):
        unknown = np.flatnonzero((category == other) & (names != NONE))
        first, place = number_groups([names[unknown]])
        used = names[unknown[first]]
        answers = work.op_categorizer.categorize_ops([trace.names[i] for i in used.tolist()])
        labels += sorted(set(answers) - set(labels))
        code = np.array([labels.index(answer) for answer in answers], dtype=np.int64)
        category[unknown] = code[place]
        category[(category == other) & launched_graph] = graph
    return category, labels


_NODE = "autograd::engine::evaluate_function: "


@cached_per_object
def recomputed(work: GpuEvents) -> BoolArray:
    """Whether each GPU event was launched by a forward operation that ran again, (g,).

    With `torch.utils.checkpoint` the backward runs a part of the forward again for its activations.
    Such operations run below an autograd node and nevertheless make nodes of their own, so PyTorch
    gives them a sequence number, which operations that a backward formula calls do not have; or the
    node itself is that of a checkpoint. They count if the same operation ran with the same shapes
    outside the backward before.
    """
    trace = work.trace
    tree = work.tree
    is_node = trace.names_matching(lambda name: name.startswith(_NODE))
    if not is_node.any():
        return np.zeros(len(work), dtype=bool)
    rows = tree.rows
    parent = tree.parent_position
    node = is_node[trace.name[rows]]
    around = nearest_marked(parent, node)
    inside = around != ROOT
    of_checkpoint = trace.names_matching(lambda name: "checkpoint" in name.lower())
    again = inside & of_checkpoint[trace.name[rows[np.maximum(around, 0)]]]
    number = trace.arg("Sequence number").at(rows)
    makes_node = (number >= 0) & (trace.arg("Fwd thread id").at(rows) <= 0)
    candidate = (trace.kind[rows] == EventKind.CPU_OP) & ~node & (again | inside & makes_node)
    # Without what no operation of the same name and shapes, outside the backward, ran before.
    asked = np.flatnonzero(candidate)
    before = np.flatnonzero(~inside & (trace.kind[rows] == EventKind.CPU_OP))
    both = rows[np.concatenate((before, asked))]
    first, group = number_groups([trace.name[both], trace.arg("Input Dims").at(both)])
    begun = minima(group[: len(before)], trace.ts[rows[before]], len(first))
    candidate[asked] = begun[group[len(before) :]] < trace.ts[rows[asked]]
    at = tree.launch_position_of_gpu
    around = np.append(around, ROOT)
    owner = np.append(nearest_marked(parent, candidate), ROOT)[at]
    # What a nested node launches is the backward of what was recomputed.
    result: BoolArray = (at != NONE) & (owner != ROOT) & (around[at] == around[owner])
    return result


Value = TypeVar("Value")


def argument_values(
    trace: Trace, rows: IntArray, name: str, convert: Callable[[str], Value], missing: Value
) -> tuple[Int64Array, list[Value]]:
    """An argument of some events, converted once for each distinct text.

    Codes, and the values that they stand for; `missing` is that of an event without the argument.
    """
    column = trace.arg(name)
    code = np.where(rows == NONE, NONE, column.at(np.maximum(rows, 0)))
    first, number = number_groups([code])
    raw = column.texts or []
    return number, [convert(raw[i]) if i != NONE else missing for i in code[first].tolist()]


def op_argument(trace: Trace, rows: IntArray, name: str) -> tuple[Int64Array, list[str]]:
    """An argument of some events, such as `Input Dims`, as a table shows it.

    Codes, and the distinct texts: tuples as Python writes them, empty where an event has none.
    """
    return argument_values(trace, rows, name, _shown_once(trace), "")


@cached_per_object
def _shown_once(_: Trace) -> Callable[[str], str]:
    """`[[4, 3], []]` as `((4, 3), ())`, each text once: several tables show the same."""
    return cache(lambda text: parsed(text)[1])


def parsed(text: str) -> tuple[object, str]:
    """What a JSON text stands for, arrays as tuples, and that as Python writes it.

    A text that is no JSON stands for itself.
    """
    try:
        value = _as_tuple(json.loads(text))
        return value, repr(value)
    except (ValueError, RecursionError):
        return text, text


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


#: What is kept of captured operations, among their arguments.
EXPERTS_BELOW: Final = "Experts below"


def is_of_experts(name: str) -> bool:
    """Whether an engine's operation has experts, whose weights operations below it take.

    vLLM's `moe_forward` has tokens [T, K] and what the router says [T, E] as arguments. The weights
    [E, …] show in views of them, and how many experts a token has in what sorts the chosen ones.
    """
    return name.startswith("vllm::moe_forward")


def experts_below(tree: CallTree, row: int) -> str:
    """JSON of sizes and types of both weights, then of the choice (shares, numbers); or empty."""
    at = int(tree.position[row])
    rows = tree.rows[at : int(tree.subtree_end[at])]
    calls = _tensors(tree.trace, rows[tree.trace.kind[rows] == EventKind.CPU_OP])
    matrices = [dims for dims, _ in calls[0] if len(dims) == 2] if calls else []
    if len(matrices) < 2:
        return ""
    (tokens, _), (_, experts) = matrices[:2]
    every = dict.fromkeys(tensor for call in calls for tensor in call if len(tensor[0]) == 3)
    weights = [tensor for tensor in every if tensor[0][0] == experts]
    first, second = (math.prod(sizes) for sizes, _ in weights) if len(weights) == 2 else (0, 1)
    for call in calls[1:] if first in (second, 2 * second) else ():  # 2: of gated experts
        chosen = [each for each in call if len(each[0]) == 2 and each[0][0] == tokens]
        if len(chosen) > 1 and chosen[0][0] == chosen[1][0] and chosen[0][0][1] < experts:
            return json.dumps([*zip(*weights, *chosen[:2], strict=True)])
    return ""


def _tensors(trace: Trace, rows: Int64Array) -> list[list[tuple[tuple[int, ...], str]]]:
    """Sizes and types of the tensors that operations take."""
    columns = []
    missing = parsed("[]")
    for argument in ARGUMENTS[:2]:
        number, values = argument_values(trace, rows, argument, parsed, missing)
        told = [value if isinstance(value, tuple) else () for value, _ in values]
        columns.append([told[i] for i in number.tolist()])
    return [
        [
            (dims, kind)
            for dims, kind in zip(*call, strict=False)
            if isinstance(dims, tuple) and dims and type(kind) is str
            if all(type(size) is int and size > 0 for size in dims)
        ]
        for call in zip(*columns, strict=True)
    ]
