"""Which GPU work is activation checkpointing's second forward.

With `torch.utils.checkpoint` the backward runs a part of the forward again, for its activations.
Such operations run below an autograd node and nevertheless make nodes of their own, so PyTorch
gives them a sequence number, which operations that a backward formula calls do not have; or the
node itself is that of a checkpoint. They count if the same operation ran with the same shapes
outside the backward before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.grouping import number_groups
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

_NODE = "autograd::engine::evaluate_function: "


@once_for_each
def recomputed(work: GpuWork) -> BoolArray:
    """Whether each GPU event was launched by a forward operation that ran again, (g,)."""
    trace, tree = work.trace, work.tree
    nothing = np.zeros(len(work), dtype=bool)
    is_node = trace.names_matching(lambda name: name.startswith(_NODE))
    if not is_node.any():
        return nothing
    rows, parent = tree.rows, tree.parent_position
    node = is_node[trace.name[rows]]
    around = nearest_marked(parent, node)
    inside = around != ROOT
    of_checkpoint = trace.names_matching(lambda name: "checkpoint" in name.lower())
    again = inside & of_checkpoint[trace.name[rows[np.maximum(around, 0)]]]
    number = trace.arg("Sequence number").at(rows)
    makes_node = (number >= 0) & (trace.arg("Fwd thread id").at(rows) <= 0)
    candidate = (trace.kind[rows] == EventKind.CPU_OP) & ~node & (again | inside & makes_node)
    candidate &= ~_ran_first(work, inside, candidate)
    above = nearest_marked(parent, candidate)
    at = tree.launch_position_of_gpu
    result: BoolArray = (at != NONE) & (np.append(above, ROOT)[at] != ROOT)
    # What a nested node launches is the backward of what was recomputed.
    owner = np.append(above, ROOT)[at]
    result &= np.append(around, ROOT)[at] == np.append(around, ROOT)[owner]
    return result


def _ran_first(work: GpuWork, inside: BoolArray, candidate: BoolArray) -> BoolArray:
    """Whether no operation of the same name and shapes ran outside the backward before, (m,)."""
    trace, rows = work.trace, work.tree.rows
    asked = np.flatnonzero(candidate)
    forward = np.flatnonzero(~inside & (trace.kind[rows] == EventKind.CPU_OP))
    both = np.concatenate((forward, asked))
    dims: IntArray = trace.arg("Input Dims").at(rows[both])
    first, group = number_groups([trace.name[rows[both]], dims])
    begun = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(begun, group[: len(forward)], trace.ts[rows[forward]])
    result = np.zeros(len(rows), dtype=bool)
    result[asked] = begun[group[len(forward) :]] >= trace.ts[rows[asked]]
    return result
