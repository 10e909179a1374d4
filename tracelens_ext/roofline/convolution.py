"""Convolutions: each element of the result is a sum over input channels and the kernel's places."""

from __future__ import annotations

import math
from typing import NamedTuple

from tracelens_ext.roofline.operation import (
    Cost,
    Models,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    short_type,
)

MODELS = Models()
_of = MODELS.of("convolution")


class _Places(NamedTuple):
    """Where the arguments of a convolution are; None: it has no such argument."""

    bias: int | None
    stride: int
    padding: int
    dilation: int
    transposed: int | bool
    output_padding: int | None
    groups: int | None


_GENERAL = _Places(2, 3, 4, 5, 6, 7, 8)
_MIOPEN = _Places(2, 4, 3, 5, False, None, 6)
_FORWARD = {
    "convolution": _GENERAL,
    "_convolution": _GENERAL,
    "convolution_overrideable": _GENERAL,
    "cudnn_convolution": _Places(None, 3, 2, 4, False, None, 5),
    "cudnn_convolution_transpose": _Places(None, 4, 2, 5, True, 3, 6),
    "cudnn_convolution_relu": _Places(2, 3, 4, 5, False, None, 6),
    "miopen_convolution": _MIOPEN,
    "miopen_depthwise_convolution": _MIOPEN,
    "miopen_convolution_transpose": _Places(2, 5, 3, 6, True, 4, 7),
    "_conv_depthwise2d": _Places(3, 4, 5, 6, False, None, None),
}


def _shape(
    op: Operation, x: Tensor, weight: Tensor, at: _Places
) -> tuple[int, int, dict[str, object]]:
    """Operations without a bias, elements of the result, and what experts read."""
    n = len(weight.dims) - 2
    if n < 1 or len(x.dims) != n + 2:
        raise NoModelError("the recorded shapes are not those of a convolution with a batch")
    if not op.concrete:
        raise NoModelError("stride and padding are not recorded")
    stride, dilation = _each(op, at.stride, n, 1), _each(op, at.dilation, n, 1)
    padding, extra = _each(op, at.padding, n, 0), _each(op, at.output_padding, n, 0)
    groups = op.whole(at.groups, 1) or 1
    transposed = at.transposed if isinstance(at.transposed, bool) else bool(op.value(at.transposed))
    kernel = weight.dims[2:]
    reach = [dilation[i] * (kernel[i] - 1) - 2 * padding[i] + 1 for i in range(n)]
    if transposed:  # each element of the input meets all elements of its filters
        channels = weight.dims[1] * groups
        spatial = [(x.dims[2 + i] - 1) * stride[i] + reach[i] + extra[i] for i in range(n)]
        flops = 2 * x.elements * math.prod(weight.dims[1:])
    else:
        channels = weight.dims[0]
        spatial = [(x.dims[2 + i] - reach[i]) // max(stride[i], 1) + 1 for i in range(n)]
        flops = 2 * x.dims[0] * channels * math.prod(spatial)
        flops *= (x.dims[1] // groups) * math.prod(kernel)
    result = (x.dims[0], channels, *spatial)
    parameters = {
        "convNd": f"conv{n}d",
        "input_shape": x.dims,
        "filter_shape": weight.dims,
        "output_shape": result,
        "dtype_input_weight": (x.kind, weight.kind),
        "input_stride": x.strides,
        "weight_stride": weight.strides,
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "transposed_conv": transposed,
        "output_padding": tuple(extra),
        "groups": groups,
    }
    return flops, math.prod(result), parameters


def _each(op: Operation, i: int | None, n: int, default: int) -> list[int]:
    """A setting for each of n dimensions, which may be one number for all."""
    value = op.value(i)
    numbers = [value] if type(value) is int else [] if value is None else op.wholes(i)
    if numbers is None:
        raise NoModelError(f"padding {value!r} is not recorded as numbers")
    return numbers * n if len(numbers) == 1 else (numbers + [default] * n)[:n]


@_of(" ".join(_FORWARD))
def forward(op: Operation) -> Cost:
    """Input [N, Cin, …], weight [Cout, Cin / groups, …], bias; the result in the input's type."""
    at = _FORWARD[op.plain_name]
    x, weight = op.need(0), op.need(1)
    bias = op.tensor(at.bias) if at.bias is not None else None
    flops, elements, parameters = _shape(op, x, weight, at)
    moved = bytes_read(x, weight, bias) + elements * x.item
    parameters["bias"] = bias is not None
    flops += elements * (bias is not None)
    return Cost("CONV_fwd", flops, moved, short_type(x.kind), "matrix", parameters)


@_of("convolution_backward")
def backward(op: Operation) -> Cost:
    """Gradients of input, weight and bias, as far as `output_mask` asks for them."""
    grad, x, weight = op.need(0), op.need(1), op.need(2)
    mask = op.value(10)
    if not isinstance(mask, list | tuple) or len(mask) != 3:
        raise NoModelError("which gradients are wanted is not recorded")
    flops, _, parameters = _shape(op, x, weight, _Places(None, 4, 5, 6, 7, 8, 9))
    of_input, of_weight, of_bias = map(bool, mask)
    moved = grad.read + (x.read + weight.written) * of_weight + (weight.read + x.written) * of_input
    if of_bias and len(grad.dims) > 1:
        moved += grad.dims[1] * weight.item
    flops = flops * (of_input + of_weight) + grad.elements * of_bias
    parameters |= {"dgrad": of_input, "wgrad": of_weight}
    return Cost("CONV_bwd", flops, moved, short_type(x.kind), "matrix", parameters)
