"""Activation checkpointing: GPU work with which the backward pass runs the forward pass again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import minima, number_groups
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_AUTOGRAD_NODE = "autograd::engine::evaluate_function: "


class _Backward(NamedTuple):
    """The autograd nodes around the t events of the tree.

    An autograd node is an event of autograd's engine, which runs a part of the backward pass.
    """

    is_node: BoolArray  #: mask of the events that are autograd nodes, (t,)
    #: position of the innermost node above each event, `ROOT` for an event without one, (t,)
    node_above: Int64Array


@cached_per_object
def recomputed(gpu_events: GpuEvents) -> BoolArray:
    """Return a mask of the GPU events launched by forward operations that ran again, (g,).

    With `torch.utils.checkpoint`, the backward pass runs a part of the forward pass again to get
    its activations. Such an operation runs below an autograd node, and has one of these signs:

    * it has a sequence number. PyTorch numbers operations that create an autograd node; the
      operations of a backward formula create none;
    * the node above it is that of a checkpoint.

    It counts if the same operation ran before with the same shapes, outside of the backward pass.
    """
    trace = gpu_events.trace
    tree = gpu_events.tree
    is_node_name = trace.names_matching(lambda name: name.startswith(_AUTOGRAD_NODE))
    if not is_node_name.any():
        return np.zeros(len(gpu_events), dtype=bool)
    is_node = is_node_name[trace.name[tree.rows]]
    node_above = nearest_marked(tree.parent_position, is_node)
    backward = _Backward(is_node, node_above.astype(np.int64))
    runs_again = _ran_before(gpu_events, backward, _may_run_again(gpu_events, backward))
    op_above = nearest_marked(tree.parent_position, runs_again)
    launch = tree.launch_position_of_gpu
    op_of_gpu = values_at(op_above, launch, missing=ROOT)
    # Below a recomputed operation, another node runs the backward pass of that operation. The work
    # that it launches is not recomputed.
    node_of_gpu = values_at(node_above, launch, missing=ROOT)
    node_of_op = values_at(node_above, op_of_gpu, missing=ROOT)
    result: BoolArray = (
        (launch != NONE) & (op_of_gpu != ROOT) & (node_of_gpu == node_of_op)
    )
    return result


def _may_run_again(gpu_events: GpuEvents, backward: _Backward) -> BoolArray:
    """Return a mask of the operations in the backward pass that have a sign of a forward one, (t,).

    They create autograd nodes, or run in the node of a checkpoint.
    """
    trace = gpu_events.trace
    rows = gpu_events.tree.rows
    in_node = backward.node_above != ROOT
    is_checkpoint_name = trace.names_matching(lambda name: "checkpoint" in name.lower())
    node = np.maximum(backward.node_above, 0)
    node_name = trace.name[rows[node]]
    in_checkpoint = in_node & is_checkpoint_name[node_name]
    has_number = trace.arg("Sequence number").at(rows) >= 0
    is_of_forward = trace.arg("Fwd thread id").at(rows) <= 0
    creates_node = in_node & has_number & is_of_forward
    is_op = trace.kind[rows] == EventKind.CPU_OP
    is_op &= ~backward.is_node
    may_run_again: BoolArray = is_op & (in_checkpoint | creates_node)
    return may_run_again


def _ran_before(
    gpu_events: GpuEvents, backward: _Backward, is_candidate: BoolArray
) -> BoolArray:
    """Return a mask of the candidates that the forward pass ran before with the same shapes, (t,).

    Args:
        gpu_events: the GPU events.
        backward: the autograd nodes around events.
        is_candidate: mask of the candidates, (t,).
    """
    trace = gpu_events.trace
    rows = gpu_events.tree.rows
    is_op = trace.kind[rows] == EventKind.CPU_OP
    forward = np.flatnonzero((backward.node_above == ROOT) & is_op)
    candidates = np.flatnonzero(is_candidate)
    compared = rows[np.concatenate((forward, candidates))]
    shapes = trace.arg("Input Dims").at(compared)
    first, group = number_groups([trace.name[compared], shapes])
    forward_group = group[: len(forward)]
    candidate_group = group[len(forward) :]
    first_run = minima(
        group_index=forward_group,
        values=trace.ts[rows[forward]],
        group_count=len(first),
    )
    ran_before = is_candidate.copy()
    ran_before[candidates] = first_run[candidate_group] < trace.ts[rows[candidates]]
    return ran_before
