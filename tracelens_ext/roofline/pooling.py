"""Pooling, resampling and losses: inputs read once, results written once."""

from __future__ import annotations

import math

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    short_type,
    words,
)

_INDEX_BYTES = ELEMENT_BYTES["long int"]


def _cost(family: str, x: Tensor, flops: int, moved: int) -> Cost:
    return Cost(family, flops, moved, short_type(x.kind), parameters={"shape": x.dims})


def _window_result(
    op: Operation, x: Tensor, dilation_at: int | None, ceil_at: int
) -> tuple[int, int]:
    """Elements of the result, and places of the window."""
    kernel = op.wholes(1)
    if not kernel:
        raise NoModelError("the window is not recorded")
    n = len(kernel)

    def each(i: int | None, default: list[int]) -> list[int]:
        numbers = op.wholes(i) or default
        return numbers * n if len(numbers) == 1 else numbers

    stride, padding = each(2, kernel), each(3, [0])
    dilation = each(dilation_at, [1])
    up = op.value(ceil_at) is True
    result = math.prod(x.dims[: len(x.dims) - n])
    for i, size in enumerate(x.dims[len(x.dims) - n :]):
        room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        result *= (room + (stride[i] - 1 if up else 0)) // max(1, stride[i]) + 1
    return result, math.prod(kernel)


def max_pool(op: Operation) -> Cost:
    """Input read; values written, and their indices where the operation gives them."""
    x = op.need(0)
    elements, window = _window_result(op, x, 4, 5)
    item = x.item + (_INDEX_BYTES if "indices" in op.name else 0)
    return _cost("Pooling", x, elements * window, x.read + elements * item)


def average_pool(op: Operation) -> Cost:
    """Input read, means written."""
    x = op.need(0)
    elements, window = _window_result(op, x, None, 4)
    return _cost("Pooling", x, elements * window, x.read + elements * x.item)


def to_size(op: Operation) -> Cost:
    """Adaptive pooling and resampling to a size: input read, result written."""
    x, size = op.need(0), op.wholes(1)
    if not size:
        raise NoModelError("the size of the result is not recorded")
    elements = math.prod(x.dims[: len(x.dims) - len(size)]) * math.prod(size)
    return _cost("Pooling", x, max(elements, x.elements), x.read + elements * x.item)


def pool_backward(op: Operation) -> Cost:
    """Gradient read (and indices, where there are any), gradient of the input written."""
    grad, x = op.need(0), op.need(1)
    indices = [t for t in op.tensors[2:] if t.kind in ("long int", "long", "int")]
    moved = grad.read + x.written + bytes_read(*indices)
    return _cost("Pooling", x, grad.elements, moved)


def resample_backward(op: Operation) -> Cost:
    """Gradient read, gradient of the input written."""
    grad, size = op.need(0), op.wholes(2)
    if not size:
        raise NoModelError("the size of the input is not recorded")
    return _cost("Pooling", grad, grad.elements, grad.read + math.prod(size) * grad.item)


def nll_loss(op: Operation) -> Cost:
    """One element a target is read; reduced to one result unless told otherwise."""
    x, target = op.need(0), op.need(1)
    results = target.elements if op.whole(3, 1) == 0 else 1
    moved = target.read + target.elements * x.item + (results + 1) * x.item
    return _cost("Loss", x, target.elements, moved)


def nll_loss_backward(op: Operation) -> Cost:
    """Targets read, one element a target written; another operation zeroes the rest."""
    grad, x, target = op.need(0), op.need(1), op.need(2)
    moved = bytes_read(grad, target) + target.elements * x.item
    return _cost("Loss", x, target.elements, moved)


def pair_loss(op: Operation) -> Cost:
    """Input and target read; a result, or one for each element."""
    x, target = op.need(0), op.need(1)
    results = x.elements if op.whole(2, 1) == 0 else 1
    return _cost("Loss", x, 3 * x.elements, bytes_read(x, target) + results * x.item)


def pair_loss_backward(op: Operation) -> Cost:
    """Gradient, input and target read, the gradient of the input written."""
    grad, x, target = op.need(0), op.need(1), op.need(2)
    return _cost("Loss", x, 3 * x.elements, bytes_read(grad, x, target) + x.written)


_PAIRS = words("mse_loss smooth_l1_loss huber_loss l1_loss binary_cross_entropy")
_SIZED = words("nearest1d nearest2d nearest3d linear1d bilinear2d bicubic2d trilinear3d")

MODELS = {
    **dict.fromkeys(
        ("max_pool2d", "max_pool1d", "max_pool3d", "max_pool2d_with_indices"), max_pool
    ),
    "max_pool3d_with_indices": max_pool,
    **dict.fromkeys(("avg_pool2d", "avg_pool1d", "avg_pool3d"), average_pool),
    **dict.fromkeys(
        (
            *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d"),
            *("adaptive_max_pool2d", "adaptive_avg_pool1d"),
            *(f"upsample_{kind}" for kind in _SIZED),
            *(f"_upsample_{kind}_aa" for kind in ("bilinear2d", "bicubic2d")),
        ),
        to_size,
    ),
    **dict.fromkeys(
        (
            *("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
            *("avg_pool2d_backward", "avg_pool3d_backward"),
            *("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward"),
        ),
        pool_backward,
    ),
    **dict.fromkeys([f"upsample_{kind}_backward" for kind in _SIZED], resample_backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
    **dict.fromkeys(_PAIRS, pair_loss),
    **dict.fromkeys([f"{name}_backward" for name in _PAIRS], pair_loss_backward),
}
