"""The weights and the routing of mixture-of-experts (MoE) operations, found in operations below."""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

from tracelens_ext.analysis.operations.arguments import argument_values, parsed
from tracelens_ext.trace import EventKind, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree

#: The argument in which the result of `experts_below` is kept for operations of captured graphs.
EXPERTS_BELOW: Final = "Experts below"


class _Tensor(NamedTuple):
    """A tensor argument of an operation."""

    sizes: tuple[int, ...]
    type_name: str


class _Weights(NamedTuple):
    """The two weight tensors of the experts."""

    first: _Tensor
    second: _Tensor


def is_of_experts(name: str) -> bool:
    """Return True for an engine's MoE operation, whose weights only operations below it show.

    The arguments of vLLM's `moe_forward` are the tokens [T, K] and the router's output [T, E].
    """
    return name.startswith("vllm::moe_forward")


def experts_below(tree: CallTree, row: int) -> str:
    """Return the sizes and types of an MoE operation's weights and routing, as JSON.

    The JSON is a list of the sizes, and a list of the types, of four tensors: the first and the
    second weight, and for each token the shares and the numbers of the experts that were chosen.
    The text is empty if the operations below do not show all of them.

    Args:
        tree: the call tree.
        row: the row of an operation with `is_of_experts`.
    """
    position = int(tree.position[row])
    rows = tree.rows[position : int(tree.subtree_end[position])]
    operations = rows[tree.trace.kind[rows] == EventKind.CPU_OP]
    calls = _tensors_of_calls(tree.trace, operations)
    if not calls:
        return ""
    matrices = [tensor for tensor in calls[0] if len(tensor.sizes) == 2]
    if len(matrices) < 2:
        return ""
    token_count = matrices[0].sizes[0]
    expert_count = matrices[1].sizes[1]
    weights = _weights(calls, expert_count)
    routing = _find_routing(calls[1:], token_count, expert_count)
    if weights is None or routing is None:
        return ""
    tensors = (weights.first, weights.second, routing.shares, routing.numbers)
    all_sizes = [tensor.sizes for tensor in tensors]
    all_types = [tensor.type_name for tensor in tensors]
    return json.dumps([all_sizes, all_types])


class _Routing(NamedTuple):
    """The experts of each token, two tensors [tokens, experts per token]."""

    shares: _Tensor  #: the weight of each chosen expert in the result
    numbers: _Tensor  #: the number of each chosen expert


def _find_routing(
    calls: list[list[_Tensor]], token_count: int, expert_count: int
) -> _Routing | None:
    """Return the arguments of the operation that sorts the chosen experts; None without it."""
    for call in calls:
        candidates = [
            tensor
            for tensor in call
            if len(tensor.sizes) == 2 and tensor.sizes[0] == token_count
        ]
        if len(candidates) < 2:
            continue
        shares = candidates[0]
        numbers = candidates[1]
        if shares.sizes == numbers.sizes and shares.sizes[1] < expert_count:
            return _Routing(shares, numbers)
    return None


def _weights(calls: list[list[_Tensor]], expert_count: int) -> _Weights | None:
    """Return the weights: the only two distinct tensors [experts, …, …] in the calls.

    The first weight has as many elements as the second, or twice as many if the experts are gated.
    """
    # A dictionary keeps the order in which tensors occur first.
    candidates: dict[_Tensor, None] = {}
    for call in calls:
        for tensor in call:
            if len(tensor.sizes) == 3 and tensor.sizes[0] == expert_count:
                candidates[tensor] = None
    weights = list(candidates)
    if len(weights) != 2:
        return None
    first, second = weights
    first_size = math.prod(first.sizes)
    second_size = math.prod(second.sizes)
    is_plain = first_size == second_size
    is_gated = first_size == 2 * second_size
    if is_plain or is_gated:
        return _Weights(first, second)
    return None


def _tensors_of_calls(trace: Trace, rows: Int64Array) -> list[list[_Tensor]]:
    """Return the tensor arguments of each operation."""
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
    """Return the arguments of a call that are tensors with known sizes and without empty ones."""
    if not isinstance(sizes_of_call, tuple) or not isinstance(types_of_call, tuple):
        return []
    tensors = []
    for sizes, type_name in zip(sizes_of_call, types_of_call, strict=False):
        if type(type_name) is str and _are_sizes(sizes):
            tensors.append(_Tensor(sizes, type_name))
    return tensors


def _are_sizes(sizes: object) -> bool:
    """Return True for a tuple of positive integers, which is not empty."""
    if not isinstance(sizes, tuple) or not sizes:
        return False
    return all(type(size) is int and size > 0 for size in sizes)
