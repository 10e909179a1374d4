"""Triton kernels of `torch.compile`: a bound from the tensors they were given."""

from __future__ import annotations

import re

from tracelens_ext.roofline.elementwise import FLOPS_PER_ELEMENT
from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, bytes_read, short_type

#: What Inductor calls its kernels: kind (pointwise, reduction, persistent …), fused operations.
NAME = re.compile(r"triton_(?P<kind>poi|red|per|tem|for|spl|mm|unk)_fused_(?P<words>\w+?)_?\d*$")
_NO_WORK = re.compile(
    r"^(view|unsafe|clone|copy|to|cat|t|transpose|permute|expand|slice|select|as|strided|empty"
    r"|unsqueeze|squeeze|split|stack|constant|pad|nd|embedding|index|detach|lift|fresh)$"
)


def inductor(op: Operation) -> Cost:
    """Every recorded tensor crosses memory once; each fused operation works on the largest."""
    tensors = op.tensors
    if not tensors:
        raise NoModelError("no argument is a tensor with a recorded shape")
    match = NAME.match(op.plain_name)
    words = match["words"].split("_") if match else []
    largest = max(tensors, key=lambda t: t.elements)
    each = sum(
        FLOPS_PER_ELEMENT.get(word, 1) for word in words if not _NO_WORK.match(word) and word
    )
    return Cost(
        "Triton",
        each * largest.elements,
        bytes_read(*tensors),
        short_type(largest.kind),
        parameters={"fused": " ".join(words), "shape": largest.dims},
        bound_only=True,
    )


MODELS = {"triton_*": inductor}
