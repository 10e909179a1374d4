"""Convolutions, which the matrix units compute.

Each element of the result is a sum over input channels and the kernel's places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import (
    Cost,
    Engine,
    Models,
    NoModelError,
    bytes_read,
    require,
    required,
)

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()


class _ConvolutionPositions(NamedTuple):
    """Where the arguments of a convolution are; None: it has no such argument."""

    bias: int | None
    stride: int
    padding: int
    dilation: int
    transposed: int | bool  #: a position, or what always holds
    output_padding: int | None
    groups: int | None


_GENERAL: Final = _ConvolutionPositions(
    bias=2, stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8
)
_MIOPEN: Final = _ConvolutionPositions(
    bias=2,
    stride=4,
    padding=3,
    dilation=5,
    transposed=False,
    output_padding=None,
    groups=6,
)
_POSITIONS: Final = {
    "convolution": _GENERAL,
    "_convolution": _GENERAL,
    "convolution_overrideable": _GENERAL,
    "miopen_convolution": _MIOPEN,
    "miopen_depthwise_convolution": _MIOPEN,
    "miopen_convolution_transpose": _ConvolutionPositions(
        bias=2,
        stride=5,
        padding=3,
        dilation=6,
        transposed=True,
        output_padding=4,
        groups=7,
    ),
    "cudnn_convolution": _ConvolutionPositions(
        bias=None,
        stride=3,
        padding=2,
        dilation=4,
        transposed=False,
        output_padding=None,
        groups=5,
    ),
    "cudnn_convolution_transpose": _ConvolutionPositions(
        bias=None,
        stride=4,
        padding=2,
        dilation=5,
        transposed=True,
        output_padding=3,
        groups=6,
    ),
    "cudnn_convolution_relu": _ConvolutionPositions(
        bias=2,
        stride=3,
        padding=4,
        dilation=5,
        transposed=False,
        output_padding=None,
        groups=6,
    ),
    "_conv_depthwise2d": _ConvolutionPositions(
        bias=3,
        stride=4,
        padding=5,
        dilation=6,
        transposed=False,
        output_padding=None,
        groups=None,
    ),
}
_BACKWARD_POSITIONS: Final = _ConvolutionPositions(
    bias=None, stride=4, padding=5, dilation=6, transposed=7, output_padding=8, groups=9
)
_OUTPUT_MASK: Final = 10


class _Settings(NamedTuple):
    """The settings of a convolution, one number for each spatial dimension."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    transposed: bool
    groups: int


class _Convolution(NamedTuple):
    """What a convolution computes."""

    flops: int  #: without a bias
    result: tuple[int, ...]  #: its shape
    parameters: dict[str, object]  #: what experts read


def _convolution(
    operation: Operation,
    inputs: Tensor,
    weight: Tensor,
    positions: _ConvolutionPositions,
) -> _Convolution:
    """Work out a convolution of inputs [N, Cin, …]."""
    rank = len(weight.dims) - 2
    fits = rank > 0 and len(inputs.dims) == rank + 2
    require(fits, "the recorded shapes are not those of a convolution with a batch")
    require(operation.concrete, "stride and padding are not recorded")
    settings = _settings(operation, positions, rank)
    if settings.transposed:
        result = _transposed_result(inputs, weight, settings)
        # Each element of the input meets all elements of its filters.
        flops = 2 * inputs.elements * math.prod(weight.dims[1:])
    else:
        result = _result(inputs, weight, settings)
        channels_of_group = inputs.dims[1] // settings.groups
        flops = 2 * math.prod(result) * channels_of_group * math.prod(weight.dims[2:])
    parameters: dict[str, object] = {
        "convNd": f"conv{rank}d",
        "input_shape": inputs.dims,
        "filter_shape": weight.dims,
        "output_shape": result,
        "dtype_input_weight": (inputs.kind, weight.kind),
        "input_stride": inputs.strides,
        "weight_stride": weight.strides,
        "stride": tuple(settings.stride),
        "padding": tuple(settings.padding),
        "dilation": tuple(settings.dilation),
        "transposed_conv": settings.transposed,
        "output_padding": tuple(settings.output_padding),
        "groups": settings.groups,
    }
    return _Convolution(flops, result, parameters)


def _settings(
    operation: Operation, positions: _ConvolutionPositions, rank: int
) -> _Settings:
    transposed = positions.transposed
    if not isinstance(transposed, bool):
        transposed = bool(operation.value(transposed))
    return _Settings(
        stride=_for_each_dimension(operation, positions.stride, rank, 1),
        dilation=_for_each_dimension(operation, positions.dilation, rank, 1),
        padding=_for_each_dimension(operation, positions.padding, rank, 0),
        output_padding=_for_each_dimension(
            operation, positions.output_padding, rank, 0
        ),
        transposed=transposed,
        groups=operation.whole(positions.groups, 1) or 1,
    )


def _result(inputs: Tensor, weight: Tensor, settings: _Settings) -> tuple[int, ...]:
    """Return the shape of the result: [N, Cout, …]."""
    shape = [inputs.dims[0], weight.dims[0]]
    for dimension, size in enumerate(inputs.dims[2:]):
        room = size - _reach(weight, settings, dimension)
        stride = max(settings.stride[dimension], 1)
        shape.append(room // stride + 1)
    return tuple(shape)


def _transposed_result(
    inputs: Tensor, weight: Tensor, settings: _Settings
) -> tuple[int, ...]:
    """Return the shape of the result of a transposed convolution: [N, Cout, …]."""
    shape = [inputs.dims[0], weight.dims[1] * settings.groups]
    for dimension, size in enumerate(inputs.dims[2:]):
        stride = settings.stride[dimension]
        spread = (size - 1) * stride
        reach = _reach(weight, settings, dimension)
        output_padding = settings.output_padding[dimension]
        shape.append(spread + reach + output_padding)
    return tuple(shape)


def _reach(weight: Tensor, settings: _Settings, dimension: int) -> int:
    """Return how far the kernel reaches beyond the padding, in elements of the input."""
    kernel_size = weight.dims[2 + dimension]
    covered = settings.dilation[dimension] * (kernel_size - 1) + 1
    return covered - 2 * settings.padding[dimension]


def _for_each_dimension(
    operation: Operation, position: int | None, rank: int, default: int
) -> list[int]:
    """Return a setting for each dimension, which may be one number for all."""
    value = operation.value(position)
    if type(value) is int:
        return [value] * rank
    if value is None:
        return [default] * rank
    numbers = operation.wholes(position)
    numbers = required(numbers, f"padding {value!r} is not recorded as numbers")
    if len(numbers) == 1:
        return numbers * rank
    padded = numbers + [default] * rank
    return padded[:rank]


@MODELS.add(*_POSITIONS, tensors=(0, 1))
def forward(operation: Operation, inputs: Tensor, weight: Tensor) -> Cost:
    """Input [N, Cin, …], weight [Cout, Cin / groups, …], bias; the result in the input's type."""
    positions = _POSITIONS[operation.plain_name]
    bias = operation.tensor(positions.bias) if positions.bias is not None else None
    convolution = _convolution(operation, inputs, weight, positions)
    elements = math.prod(convolution.result)
    flops = convolution.flops
    if bias is not None:
        flops += elements
    return Cost(
        family="CONV_fwd",
        flops=flops,
        bytes=bytes_read(inputs, weight, bias) + inputs.bytes_of(elements),
        data_type=inputs.short_type,
        engine=Engine.MATRIX.value,
        parameters={**convolution.parameters, "bias": bias is not None},
    )


@MODELS.add("convolution_backward", tensors=(0, 1, 2))
def backward(
    operation: Operation, gradient: Tensor, inputs: Tensor, weight: Tensor
) -> Cost:
    """Gradients of input, weight and bias, as far as `output_mask` asks for them."""
    mask = operation.value(_OUTPUT_MASK)
    if not isinstance(mask, list | tuple) or len(mask) != 3:
        raise NoModelError("which gradients are wanted is not recorded")
    wants_input, wants_weight, wants_bias = (bool(wanted) for wanted in mask)
    convolution = _convolution(operation, inputs, weight, _BACKWARD_POSITIONS)
    flops = 0
    moved = gradient.read
    if wants_input:
        flops += convolution.flops
        moved += weight.read + inputs.written
    if wants_weight:
        flops += convolution.flops
        moved += inputs.read + weight.written
    if wants_bias:
        flops += gradient.elements
        if len(gradient.dims) > 1:
            moved += gradient.dims[1] * weight.element_bytes
    return Cost(
        family="CONV_bwd",
        flops=flops,
        bytes=moved,
        data_type=inputs.short_type,
        engine=Engine.MATRIX.value,
        parameters={
            **convolution.parameters,
            "dgrad": wants_input,
            "wgrad": wants_weight,
        },
    )
