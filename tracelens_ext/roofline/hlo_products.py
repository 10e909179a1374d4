"""The work of products that XLA instructions compute: matrix products, convolutions, attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tracelens_ext.text import json_value

if TYPE_CHECKING:
    from tracelens_ext.readers.xplane.hlo import Shape
    from tracelens_ext.readers.xplane.messages import Message

#: Products that custom calls compute, by the beginning of the call's target.
_PRODUCTS: Final = {
    b"__cublas": "dot",
    b"__triton_gemm": "dot",
    b"__cudnn$convForward": "convolution",
    b"__cudnn$convBiasActivation": "convolution",
    b"__cudnn$convBackwardInput": "convolution of gradients",
    b"__cudnn$convBackwardFilter": "convolution of gradients",
    b"__cudnn$fmha": "attention",
}
_PRODUCTS_OF_ATTENTION: Final = 2
_PRODUCTS_OF_ATTENTION_GRADIENTS: Final = 5
#: Numbers with more digits come from damaged programs.
_MOST_DIGITS: Final = 18


@dataclass(eq=False)
class HloWork:
    """The work of an instruction."""

    flops: int = 0  #: operations of the whole instruction
    #: the largest product that the instruction computes: `dot`, `convolution`, `attention`,
    #: `convolution of gradients` or `attention of gradients`; empty without one
    product: str = ""
    kind: str = ""  #: the type of the elements of the largest product
    #: the sizes of the largest product: B, M, N, K of a `dot`; B, H, S, T, D of attention
    sizes: tuple[int, ...] = ()
    #: operations of the largest product; -1 without one
    product_flops: int = field(init=False, repr=False)
    bytes: int = 0  #: bytes of operands and results
    #: stride, padding and dilation of an instruction with a window
    windows: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.product_flops = self.flops if self.product else -1

    @classmethod
    def of_parts(cls, parts: Iterable[HloWork | None]) -> HloWork | None:
        """Return the sum of the operations of some parts, and the largest of their products.

        None if the work of a part is not known. Bytes are not added, because intermediate results
        that a part leaves to another one do not cross the memory.
        """
        gpu_events = cls()
        for part in parts:
            if part is None:
                return None
            gpu_events.flops += part.flops
            if part.product_flops > gpu_events.product_flops:
                gpu_events.product_flops = part.product_flops
                gpu_events.product = part.product
                gpu_events.kind = part.kind
                gpu_events.sizes = part.sizes
        return gpu_events


def custom_call_work(
    message: Message, operands: list[Shape], results: list[Shape]
) -> HloWork | None:
    """Return the product that a library computes; None for other calls."""
    target = message.custom_call_target
    product = _product_of_target(target)
    if not product or len(operands) < 2 or not results:
        return None
    config = json_value(message.backend_config)
    if product == "dot":
        dot = _member(config, "gemm_backend_config", "dot_dimension_numbers")
        if not isinstance(dot, dict):
            return None
        contracting = _whole_numbers(dot.get("lhs_contracting_dimensions"))
        batch = _whole_numbers(dot.get("lhs_batch_dimensions"))
        return dot_work(
            contracting=contracting,
            batch_dimensions=batch,
            operands=operands,
            results=results,
        )
    if product == "attention":
        return _attention_work(target, config, operands[0])
    # Put the arrays in the order of the forward convolution: input, filter, output. The result is
    # the output of the convolution, or the gradient of its input or filter.
    first = operands[0]
    second = operands[1]
    result = results[0]
    arrays = [first, second, result]
    if b"Input" in target:
        arrays = [result, second, first]
    elif b"Filter" in target:
        arrays = [first, result, second]
    return convolution_work(product, message, arrays)


def _product_of_target(target: bytes) -> str:
    """Return the product that a custom call computes; empty if it computes something else."""
    for beginning, product in _PRODUCTS.items():
        if target.startswith(beginning):
            return product
    return ""


def dot_work(
    contracting: Iterable[int],
    batch_dimensions: Iterable[int],
    operands: list[Shape],
    results: list[Shape],
) -> HloWork:
    """Return the work of a product.

    Args:
        contracting: the dimensions of the first operand that the product sums over.
        batch_dimensions: the dimensions of the first operand that are a batch.
        operands: the two factors.
        results: the result.
    """
    if len(operands) < 2 or not results:
        return HloWork()
    # What remains after the dimensions of K and of the batch are removed is M.
    remaining_sizes = dict(enumerate(operands[0].dims))
    k = math.prod(remaining_sizes.pop(dimension, 1) for dimension in contracting)
    batch = math.prod(
        remaining_sizes.pop(dimension, 1) for dimension in batch_dimensions
    )
    m = math.prod(remaining_sizes.values())
    elements = results[0].elements
    n = elements // max(batch * m, 1)
    return HloWork(
        flops=2 * elements * k,
        product="dot",
        kind=operands[0].kind,
        sizes=(batch, m, n, k),
    )


def convolution_work(
    product: str, message: Message, arrays: Sequence[Shape], input_dilation: int = 1
) -> HloWork:
    """Return the work of a convolution.

    Args:
        product: `convolution` or `convolution of gradients`.
        message: the instruction.
        arrays: input, filter and output of the forward convolution.
        input_dilation: how many elements the dilated input has for each element of the input. The
            others are 0 and need no multiplication.
    """
    if len(arrays) < 3:
        return HloWork()
    inputs, weight, output = arrays[:3]
    feature_dimension = message.convolution.kernel_output_feature
    features = 1
    if 0 <= feature_dimension < len(weight.dims):
        features = weight.dims[feature_dimension]
    weights_of_feature = weight.elements // max(features, 1)
    flops = 2 * output.elements * weights_of_feature // input_dilation
    return HloWork(flops=flops, product=product, kind=inputs.kind)


def _attention_work(target: bytes, config: object, query: Shape) -> HloWork | None:
    """Return the work of attention: two products forward and five backward, all of one size.

    None if the configuration of the call does not tell the size.
    """
    settings = _member(config, "cudnn_fmha_backend_config")
    sizes = _whole_numbers(_member(settings, "intermediate_tensor_shape", "dimensions"))
    dot = _member(settings, "bmm1_dot_dimension_numbers")
    contracting = _whole_numbers(_member(dot, "lhs_contracting_dimensions"))
    if (
        len(sizes) != 4
        or len(contracting) != 1
        or not 0 <= contracting[0] < len(query.dims)
    ):
        return None
    head_size = query.dims[contracting[0]]
    product = "attention"
    count = _PRODUCTS_OF_ATTENTION
    if b"Backward" in target:
        product = "attention of gradients"
        count = _PRODUCTS_OF_ATTENTION_GRADIENTS
    return HloWork(
        flops=count * 2 * math.prod(sizes) * head_size,
        product=product,
        kind=query.kind,
        sizes=tuple(sizes) + (head_size,),
    )


def _member(value: object, *names: str) -> object:
    """Return a member of nested JSON objects, given the names on the way; None without it."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _whole_numbers(value: object) -> list[int]:
    """Return the whole numbers of a list; the JSON of Protocol Buffers contains them as text."""
    if not isinstance(value, list):
        return []
    numbers = []
    for number in value:
        text = str(number)
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            numbers.append(int(text))
    return numbers
