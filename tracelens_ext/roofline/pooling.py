"""Pooling, resampling and losses. Inputs are read once, results written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import Models, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
_INDEX_BYTES: Final = 8
#: Values of `at::Reduction`: a loss is not reduced, or reduced to its mean.
_NOT_REDUCED: Final = 0
_REDUCED: Final = 1
_INDEX_TYPES: Final = ("long int", "long", "int")


def _pooled(
    tensor: Tensor,
    flops: int,
    moved: int,
    *read: Tensor | None,
    family: str = "Pooling",
) -> Cost:
    return vector_cost(family, tensor, flops, moved, *read, shape=tensor.dims)


def _for_each_dimension(numbers: list[int], rank: int) -> list[int]:
    """Return a setting for each of `rank` dimensions; a single number holds for all."""
    return numbers * rank if len(numbers) == 1 else numbers


def _pool(
    operation: Operation, dilation_position: int | None, ceil_position: int
) -> Cost:
    """Return the cost of pooling: a result for each position of the window.

    Operations with `indices` in their names also write the index of each result.

    Args:
        operation: its arguments are the input, the window, stride, padding, and others.
        dilation_position: the position of the dilation; None: no such argument.
        ceil_position: the position of the flag that rounds the number of positions up.
    """
    inputs = operation.need(0)
    kernel = operation.need_wholes(1, "the window is not recorded")
    rank = len(kernel)
    strides = _for_each_dimension(operation.wholes(2) or kernel, rank)
    paddings = _for_each_dimension(operation.wholes(3) or [0], rank)
    dilations = _for_each_dimension(operation.wholes(dilation_position) or [1], rank)
    rounds_up = operation.value(ceil_position) is True
    first_spatial = len(inputs.dims) - rank
    results = math.prod(inputs.dims[:first_spatial])
    for dimension, size in enumerate(inputs.dims[first_spatial:]):
        steps_in_window = kernel[dimension] - 1
        covered = dilations[dimension] * steps_in_window + 1
        padded = size + 2 * paddings[dimension]
        # The window can move from its first position by this many elements.
        movable = padded - covered
        stride = strides[dimension]
        if rounds_up:
            movable += stride - 1
        results *= movable // max(1, stride) + 1
    bytes_of_result = inputs.element_bytes
    if "indices" in operation.name:
        bytes_of_result += _INDEX_BYTES
    return _pooled(
        inputs, results * math.prod(kernel), results * bytes_of_result, inputs
    )


@MODELS.add(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
)
def max_pool(operation: Operation) -> Cost:
    """Reads the input, writes the maxima, and their indices if the operation returns them."""
    return _pool(operation, dilation_position=4, ceil_position=5)


@MODELS.add("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(operation: Operation) -> Cost:
    """Reads the input, writes the means."""
    return _pool(operation, dilation_position=None, ceil_position=4)


_RESAMPLING: Final = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
)


@MODELS.add(
    *_RESAMPLING,
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    tensors=(0,),
)
def to_size(operation: Operation, inputs: Tensor) -> Cost:
    """Adaptive pooling and resampling to a given size: reads the input, writes the result."""
    size = operation.need_wholes(1, "the size of the result is not recorded")
    first_spatial = len(inputs.dims) - len(size)
    images = math.prod(inputs.dims[:first_spatial])
    results = images * math.prod(size)
    flops = max(results, inputs.elements)
    written = results * inputs.element_bytes
    return _pooled(inputs, flops, written, inputs)


@MODELS.add(
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "avg_pool2d_backward",
    "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
    tensors=(0, 1),
)
def pool_backward(operation: Operation, gradient: Tensor, inputs: Tensor) -> Cost:
    """Reads the gradient and the indices, if there are any; writes the gradient of the input."""
    indices = [
        tensor for tensor in operation.tensors[2:] if tensor.kind in _INDEX_TYPES
    ]
    return _pooled(inputs, gradient.elements, inputs.written, gradient, *indices)


@MODELS.add(*(f"{name}_backward" for name in _RESAMPLING), tensors=(0,))
def resample_backward(operation: Operation, gradient: Tensor) -> Cost:
    """Reads the gradient, writes the gradient of the input."""
    size = operation.need_wholes(2, "the size of the input is not recorded")
    written = math.prod(size) * gradient.element_bytes
    return _pooled(gradient, gradient.elements, written, gradient)


@MODELS.add("nll_loss_forward", "nll_loss2d_forward", "nll_loss", tensors=(0, 1))
def nll_loss(operation: Operation, inputs: Tensor, target: Tensor) -> Cost:
    """Reads the targets and an element of the input for each of them; writes the loss.

    The loss is a single number, or one for each target if it is not reduced. The total weight is
    written, too.
    """
    results = 1
    if operation.whole(3, _REDUCED) == _NOT_REDUCED:
        results = target.elements
    total_weight = 1
    elements = target.elements + results + total_weight
    moved = elements * inputs.element_bytes
    return _pooled(inputs, target.elements, moved, target, family="Loss")


@MODELS.add("nll_loss_backward", "nll_loss2d_backward", tensors=(0, 1, 2))
def nll_loss_backward(
    _: Operation, gradient: Tensor, inputs: Tensor, target: Tensor
) -> Cost:
    """Reads the targets, writes an element for each; another operation zeroes the others."""
    moved = target.elements * inputs.element_bytes
    return _pooled(inputs, target.elements, moved, gradient, target, family="Loss")


_LOSSES_OF_PAIRS: Final = (
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "l1_loss",
    "binary_cross_entropy",
)


@MODELS.add(*_LOSSES_OF_PAIRS, tensors=(0, 1))
def pair_loss(operation: Operation, inputs: Tensor, target: Tensor) -> Cost:
    """Reads input and target; writes one number, or one for each element if not reduced."""
    results = 1
    if operation.whole(2, _REDUCED) == _NOT_REDUCED:
        results = inputs.elements
    flops = 3 * inputs.elements
    written = results * inputs.element_bytes
    return _pooled(inputs, flops, written, inputs, target, family="Loss")


@MODELS.add(*(f"{name}_backward" for name in _LOSSES_OF_PAIRS), tensors=(0, 1, 2))
def pair_loss_backward(
    _: Operation, gradient: Tensor, inputs: Tensor, target: Tensor
) -> Cost:
    """Reads gradient, input and target; writes the gradient of the input."""
    flops = 3 * inputs.elements
    return _pooled(
        inputs, flops, inputs.written, gradient, inputs, target, family="Loss"
    )
