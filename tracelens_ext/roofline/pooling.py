"""Pooling, resampling and losses. Inputs are read once, results written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import Models, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
_INDEX_BYTES: Final = 8
#: How losses are reduced (`at::Reduction`): not at all, else to a mean or a sum.
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
    """Return a setting for each dimension, which may be one number for all."""
    return numbers * rank if len(numbers) == 1 else numbers


def _pool(
    operation: Operation, dilation_position: int | None, ceil_position: int
) -> Cost:
    """Input read; a result for each place of the window, with its index if the name says so."""
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
        room = padded - covered
        stride = strides[dimension]
        if rounds_up:
            room += stride - 1
        results *= room // max(1, stride) + 1
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
    """Input read; values written, and their indices where the operation gives them."""
    return _pool(operation, dilation_position=4, ceil_position=5)


@MODELS.add("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(operation: Operation) -> Cost:
    """Input read, means written."""
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
    """Adaptive pooling and resampling to a size: input read, result written."""
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
    """Gradient read (and indices, where there are any), gradient of the input written."""
    indices = [
        tensor for tensor in operation.tensors[2:] if tensor.kind in _INDEX_TYPES
    ]
    return _pooled(inputs, gradient.elements, inputs.written, gradient, *indices)


@MODELS.add(*(f"{name}_backward" for name in _RESAMPLING), tensors=(0,))
def resample_backward(operation: Operation, gradient: Tensor) -> Cost:
    """Gradient read, gradient of the input written."""
    size = operation.need_wholes(2, "the size of the input is not recorded")
    written = math.prod(size) * gradient.element_bytes
    return _pooled(gradient, gradient.elements, written, gradient)


@MODELS.add("nll_loss_forward", "nll_loss2d_forward", "nll_loss", tensors=(0, 1))
def nll_loss(operation: Operation, inputs: Tensor, target: Tensor) -> Cost:
    """One element a target is read; reduced to one result unless told otherwise."""
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
    """Targets read, one element a target written; another operation zeroes the rest."""
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
    """Input and target read; a result, or one for each element."""
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
    """Gradient, input and target read, the gradient of the input written."""
    read = (gradient, inputs, target)
    return _pooled(inputs, 3 * inputs.elements, inputs.written, *read, family="Loss")
