"""Weights of experts that an engine's operation does not name, but operations below it take.

vLLM's `moe_forward` has tokens [T, K] and what the router says [T, E] as arguments. The weights
[E, …] show in views of them, and how many experts a token has in what sorts the chosen ones.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from tracelens_ext.operations.launchers import argument_values, parsed
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, Trace
    from tracelens_ext.tree import CallTree

#: What is kept of captured operations, among their arguments.
EXPERTS_BELOW: Final = "Experts below"
_ARGUMENTS: Final = ("Input Dims", "Input type")
_Tensor = tuple[tuple[int, ...], str]


def is_of_experts(name: str) -> bool:
    """Whether an operation is such a one."""
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


def _tensors(trace: Trace, rows: Int64Array) -> list[list[_Tensor]]:
    """Sizes and types of the tensors that operations take."""
    missing: tuple[object, str] = ((), "")
    columns = []
    for argument in _ARGUMENTS:
        number, values = argument_values(trace, rows, argument, parsed, missing)
        columns.append([values[i][0] for i in number.tolist()])
    return [
        [each for each in zip(*call, strict=False) if _are_sizes(each[0]) and type(each[1]) is str]
        if all(isinstance(part, tuple) for part in call)
        else []
        for call in zip(*columns, strict=True)
    ]


def _are_sizes(dims: object) -> bool:
    sizes = dims if isinstance(dims, tuple) else ()
    return len(sizes) > 0 and all(type(size) is int and size > 0 for size in sizes)
