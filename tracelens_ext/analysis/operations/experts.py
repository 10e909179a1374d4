"""What the operations of experts (MoE) take: found in the tree below an engine's operation."""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

from tracelens_ext.analysis.operations.arguments import argument_values, parsed
from tracelens_ext.trace import EventKind, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree

#: What is kept of captured operations, among their arguments.
EXPERTS_BELOW: Final = "Experts below"


class _Tensor(NamedTuple):
    """A tensor that an operation takes."""

    sizes: tuple[int, ...]
    type_name: str


class _Weights(NamedTuple):
    """The two weights of gated or plain experts."""

    first: _Tensor
    second: _Tensor


def is_of_experts(name: str) -> bool:
    """Return whether an engine's operation has experts, whose weights operations below it take.

    vLLM's `moe_forward` has tokens [T, K] and what the router says [T, E] as arguments. The weights
    [E, …] show in views of them, and how many experts a token has in what sorts the chosen ones.
    """
    return name.startswith("vllm::moe_forward")


def experts_below(tree: CallTree, row: int) -> str:
    """Return JSON of sizes and types of both weights, then of the choice (shares, numbers).

    Empty where the operations below do not show them.
    """
    position = int(tree.position[row])
    rows = tree.rows[position : int(tree.subtree_end[position])]
    operations = rows[tree.trace.kind[rows] == EventKind.CPU_OP]
    calls = _tensors_of_calls(tree.trace, operations)
    matrices = (
        [tensor for tensor in calls[0] if len(tensor.sizes) == 2] if calls else []
    )
    if len(matrices) < 2:
        return ""
    tokens = matrices[0].sizes[0]
    experts = matrices[1].sizes[1]
    weights = _weights(calls, experts)
    if weights is None:
        return ""
    for call in calls[1:]:
        chosen = [
            tensor
            for tensor in call
            if len(tensor.sizes) == 2 and tensor.sizes[0] == tokens
        ]
        if len(chosen) < 2:
            continue
        shares = chosen[0]
        numbers = chosen[1]
        if shares.sizes == numbers.sizes and shares.sizes[1] < experts:
            tensors = (weights.first, weights.second, shares, numbers)
            all_sizes = [tensor.sizes for tensor in tensors]
            all_types = [tensor.type_name for tensor in tensors]
            return json.dumps([all_sizes, all_types])
    return ""


def _weights(calls: list[list[_Tensor]], experts: int) -> _Weights | None:
    """Return the two tensors [E, …, …], of which the first is as large or twice as large."""
    cubes: dict[_Tensor, None] = {}
    for call in calls:
        cubes |= dict.fromkeys(tensor for tensor in call if len(tensor.sizes) == 3)
    weights = [tensor for tensor in cubes if tensor.sizes[0] == experts]
    if len(weights) != 2:
        return None
    first, second = weights
    first_size = math.prod(first.sizes)
    second_size = math.prod(second.sizes)
    is_plain = first_size == second_size
    is_gated = first_size == 2 * second_size
    return _Weights(first, second) if is_plain or is_gated else None


def _tensors_of_calls(trace: Trace, rows: Int64Array) -> list[list[_Tensor]]:
    """Return the tensors that each of some operations takes."""
    missing = parsed("[]")
    dims = argument_values(
        trace=trace, rows=rows, name="Input Dims", convert=parsed, missing=missing
    )
    types = argument_values(
        trace=trace, rows=rows, name="Input type", convert=parsed, missing=missing
    )
    calls = []
    for dims_code, types_code in zip(
        dims.code.tolist(), types.code.tolist(), strict=True
    ):
        sizes_of_call = dims.values[dims_code].value
        types_of_call = types.values[types_code].value
        calls.append(_tensors(sizes_of_call, types_of_call))
    return calls


def _tensors(sizes_of_call: object, types_of_call: object) -> list[_Tensor]:
    """Return the arguments of a call that are tensors of known sizes, none of them empty."""
    if not isinstance(sizes_of_call, tuple) or not isinstance(types_of_call, tuple):
        return []
    tensors = []
    for sizes, type_name in zip(sizes_of_call, types_of_call, strict=False):
        if type(type_name) is str and _are_sizes(sizes):
            tensors.append(_Tensor(sizes, type_name))
    return tensors


def _are_sizes(sizes: object) -> bool:
    if not isinstance(sizes, tuple) or not sizes:
        return False
    return all(type(size) is int and size > 0 for size in sizes)
