"""Triton kernels of `torch.compile`: a bound from the tensors they were given."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.elementwise import FLOPS_PER_ELEMENT
from tracelens_ext.roofline.operation import Models, require, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation

MODELS = Models()
#: What Inductor calls its kernels: kind (pointwise, reduction, persistent …), fused operations.
_INDUCTOR: Final = re.compile(
    r"triton_(?:poi|red|per|tem|for|spl|mm|unk)_fused_(?P<words>\w+?)_?\d*$"
)
#: Words of fused operations that compute nothing.
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
    """Every recorded tensor crosses memory once; each fused operation works on the largest."""
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
