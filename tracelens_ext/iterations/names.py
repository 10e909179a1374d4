"""Which annotations of a trace could be its iterations, where it has no `ProfilerStep#N`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.nesting import ROOT
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray
    from tracelens_ext.tree import CallTree

_OPERATION_AT_MOST = 5  # GPU events: what launches more could be an iteration
_OF_THE_BEST = 0.1  # a candidate that has less of the GPU's work than so much is no iteration
_NUMBER = re.compile("[0-9]+")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def likely_iterations(tree: CallTree, most: int) -> list[str]:
    """Regular expressions for what could be iterations, the likeliest first.

    Names that differ in their numbers are one candidate. It is the likelier the more GPU work is
    launched in its ranges, the more evenly that is spread over them, and the farther out they are;
    and less likely when there is but one. Ranges on threads that launch nothing, and in which
    nothing is launched, do not count. CPU ops, which annotations become in some traces, count where
    they are likelier than all annotations: several without another around them, that launch more
    than an operation does.
    """
    trace = tree.trace
    rows = tree.rows[np.isin(trace.kind[tree.rows], (EventKind.USER_ANNOTATION, EventKind.CPU_OP))]
    rows = rows[np.isin(trace.thread[rows], trace.thread[tree.launch_of_gpu[tree.linked]])]
    work = _launched_in(tree, rows)
    is_op = trace.kind[rows] == EventKind.CPU_OP
    inside = tree.parent_position[tree.position[rows]] != ROOT
    chosen = ~(is_op & (inside | (work <= _OPERATION_AT_MOST)))
    rows, work, is_op = rows[chosen], work[chosen], is_op[chosen]
    if not work.any():
        return []
    family, names = _families(trace.name[rows], trace.names)
    count = np.bincount(family)
    total, squares = np.bincount(family, work), np.bincount(family, work.astype(np.float64) ** 2)
    depth = np.bincount(family, tree.depth[tree.position[rows]]) / count
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0)) / np.maximum(mean, 1)
    score = np.minimum(total / tree.linked.sum(), 1) / (1 + spread)
    score[count < 2] /= 2
    of_ops = np.bincount(family, is_op).astype(bool)
    of_ops &= (count < 2) | (score <= score[~of_ops].max(initial=0.0))
    kept = (score >= max(_OF_THE_BEST * score.max(), 1e-9)) & ~of_ops
    order = np.lexsort((np.arange(len(names)), depth, -np.round(score, 2)))
    return [names[at] for at in order.tolist() if kept[at]][:most]


def _launched_in(tree: CallTree, rows: Int64Array) -> Int64Array:
    """How many GPU events were launched in the time of each host event, in its process."""
    trace = tree.trace
    launch = tree.launch_of_gpu[tree.linked]
    process = trace.process_of_thread[trace.thread]
    launched = np.zeros(len(rows), dtype=np.int64)
    for number in np.unique(process[rows]).tolist():
        moments = np.sort(trace.ts[launch[process[launch] == number]])
        those = process[rows] == number
        asked = rows[those]
        first, last = (
            np.searchsorted(moments, times) for times in (trace.ts[asked], trace.end_of(asked))
        )
        launched[those] = last - first
    return launched


def _families(name: IntArray, names: list[str]) -> tuple[IntArray, list[str]]:
    """The candidate that each event belongs to, and the expression for each."""
    used, of_row = np.unique(name, return_inverse=True)
    numbers: dict[str, int] = {}
    shapes = [_NUMBER.sub("0", names[code]) for code in used.tolist()]
    family = np.array([numbers.setdefault(shape, len(numbers)) for shape in shapes])
    first, members = np.unique(family, return_index=True)[1], np.bincount(family)
    expressions = [
        _expression(names[int(used[at])], any_number=int(many) > 1)
        for at, many in zip(first.tolist(), members.tolist(), strict=True)
    ]
    return family[of_row], expressions


def _expression(name: str, *, any_number: bool) -> str:
    """What matches a name; with any other numbers in it too."""
    text = _SPECIAL.sub(r"\\\g<0>", name)
    return f"^{_NUMBER.sub('[0-9]+', text) if any_number else text}$"
