"""Triton kernels of `torch.compile`: a lower bound of their work, from their tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.elementwise import FLOPS_PER_ELEMENT
from tracelens_ext.roofline.operation import Models, require, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation

MODELS = Models()
#: Names of Inductor's kernels: the kind (pointwise, reduction, persistent …), then the names of the
#: fused operations, joined with `_`.
_INDUCTOR: Final = re.compile(
    r"triton_(?:poi|red|per|tem|for|spl|mm|unk)_fused_(?P<words>\w+?)_?\d*$"
)
#: Words in the names of fused operations that move data and compute nothing.
_MOVES: Final = frozenset(
    (
        "view",
        "unsafe",
        "clone",
        "copy",
        "to",
        "cat",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "as",
        "strided",
        "empty",
        "unsqueeze",
        "squeeze",
        "split",
        "stack",
        "constant",
        "pad",
        "nd",
        "embedding",
        "index",
        "detach",
        "lift",
        "fresh",
    )
)


@MODELS.add("triton_*")
def inductor(operation: Operation) -> Cost:
    """Every recorded tensor is read or written once.

    Each fused operation computes once for every element of the largest tensor.
    """
    tensors = operation.tensors
    require(tensors, "no argument is a tensor with a recorded shape")
    match = _INDUCTOR.match(operation.plain_name)
    words = match["words"].split("_") if match else []
    flops_of_element = 0
    for word in words:
        if word and word not in _MOVES:
            flops_of_element += FLOPS_PER_ELEMENT.get(word, 1)
    largest = max(tensors, key=lambda tensor: tensor.elements)
    cost = vector_cost(
        "Triton",
        largest,
        flops_of_element * largest.elements,
        0,
        *tensors,
        fused=" ".join(words),
        shape=largest.dims,
    )
    return replace(cost, bound_only=True)
