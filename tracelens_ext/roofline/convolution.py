"""Convolutions, which the matrix units compute.

Each element of the result is a sum over input channels and the kernel's places.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import (
    Cost,
    Engine,
    Models,
    NoModelError,
    Tensor,
    bytes_read,
    require,
    required,
)

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation

MODELS = Models()
_Sizes = tuple[int, ...]


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
#: Where PyTorch before 2022 says which gradients are wanted, by operation.
_OLD_OUTPUT_MASKS: Final = {
    "cudnn_convolution_backward": (9, 8),
    "cudnn_convolution_transpose_backward": (10, 9),
    "miopen_convolution_backward": (9,),
    "miopen_convolution_transpose_backward": (10,),
    "miopen_depthwise_convolution_backward": (9,),
}


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
    require(
        fits, "the recorded shapes do not match a convolution with a batch dimension"
    )
    if not operation.concrete and operation.result_dims:
        result = operation.result_dims
        flops = 2 * math.prod(result) * math.prod(weight.dims[1:])
        shapes: dict[str, object] = {
            "convNd": f"conv{rank}d",
            "input_shape": inputs.dims,
            "filter_shape": weight.dims,
            "output_shape": result,
        }
        return _Convolution(flops=flops, result=result, parameters=shapes)
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
    return _Convolution(flops=flops, result=result, parameters=parameters)


def _settings(
    operation: Operation, positions: _ConvolutionPositions, rank: int
) -> _Settings:
    transposed = positions.transposed
    if not isinstance(transposed, bool):
        transposed = bool(operation.value(transposed))
    return _Settings(
        stride=_for_each_dimension(
            operation=operation, position=positions.stride, rank=rank, default=1
        ),
        dilation=_for_each_dimension(
            operation=operation, position=positions.dilation, rank=rank, default=1
        ),
        padding=_for_each_dimension(
            operation=operation, position=positions.padding, rank=rank, default=0
        ),
        output_padding=_for_each_dimension(
            operation=operation, position=positions.output_padding, rank=rank, default=0
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
    defaults = [default] * rank
    padded = numbers + defaults
    return padded[:rank]


@MODELS.add(*_POSITIONS, tensors=(0, 1))
def forward(operation: Operation, inputs: Tensor, weight: Tensor) -> Cost:
    """Input [N, Cin, …], weight [Cout, Cin / groups, …], bias; the result in the input's type."""
    positions = _POSITIONS[operation.plain_name]
    bias = operation.tensor(positions.bias) if positions.bias is not None else None
    convolution = _convolution(
        operation=operation, inputs=inputs, weight=weight, positions=positions
    )
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
        raise NoModelError("which gradients are requested is not recorded")
    wants_input, wants_weight, wants_bias = (bool(wanted) for wanted in mask)
    convolution = _convolution(
        operation=operation, inputs=inputs, weight=weight, positions=_BACKWARD_POSITIONS
    )
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


# Gradients as PyTorch before 2022 computes them: an operation of a library for each.


def _gradient_flops(larger: Tensor, weight: Tensor) -> int:
    """Return the operations of one gradient: as many as those of the convolution itself.

    Args:
        larger: the result; of a transposed convolution its input.
        weight: [Cout, Cin / groups, …]; of a transposed convolution [Cin, Cout / groups, …].
    """
    rank = len(weight.dims) - 2
    fits = rank > 0 and len(larger.dims) == rank + 2
    require(
        fits, "the recorded shapes do not match a convolution with a batch dimension"
    )
    return 2 * larger.elements * math.prod(weight.dims[1:])


def _old_backward_cost(
    gradient: Tensor, flops: int, moved: int, *, dgrad: bool, wgrad: bool
) -> Cost:
    return Cost(
        family="CONV_bwd",
        flops=flops,
        bytes=moved,
        data_type=gradient.short_type,
        engine=Engine.MATRIX.value,
        parameters={"output_shape": gradient.dims, "dgrad": dgrad, "wgrad": wgrad},
    )


@MODELS.add(*_OLD_OUTPUT_MASKS, tensors=(0, 1, 2))
def old_backward(
    operation: Operation, inputs: Tensor, gradient: Tensor, weight: Tensor
) -> Cost:
    """Gradients of input and weight: those that a recorded `output_mask` asks for, else both."""
    summed_over = gradient
    if "transpose" in operation.plain_name:
        summed_over = inputs
    wants = [True, True]
    for position in _OLD_OUTPUT_MASKS[operation.plain_name]:
        mask = operation.value(position)
        if isinstance(mask, list | tuple) and len(mask) > 1:
            wants = [bool(wanted) for wanted in mask]
            break
    wants_input = wants[0]
    wants_weight = wants[1]
    one = _gradient_flops(summed_over, weight)
    moved = gradient.read
    if wants_input:
        moved += weight.read + inputs.written
    if wants_weight:
        moved += inputs.read + weight.written
    return _old_backward_cost(
        gradient=gradient,
        flops=one * (wants_input + wants_weight),
        moved=moved,
        dgrad=wants_input,
        wgrad=wants_weight,
    )


@MODELS.add(
    "cudnn_convolution_backward_input",
    "miopen_convolution_backward_input",
    "miopen_depthwise_convolution_backward_input",
    tensors=(1, 2),
)
def backward_input(operation: Operation, gradient: Tensor, weight: Tensor) -> Cost:
    """Gradient of an input whose size comes first, [N, Cin, …]."""
    flops = _gradient_flops(gradient, weight)
    size = operation.wholes(0)
    written = gradient.written
    if size:
        written = gradient.bytes_of(math.prod(size))
    moved = gradient.read + weight.read + written
    return _old_backward_cost(gradient, flops, moved, dgrad=True, wgrad=False)


@MODELS.add(
    "cudnn_convolution_backward_weight",
    "miopen_convolution_backward_weight",
    "miopen_depthwise_convolution_backward_weight",
    tensors=(1, 2),
)
def backward_weight(operation: Operation, gradient: Tensor, inputs: Tensor) -> Cost:
    """Gradient of a weight whose size comes first, [Cout, Cin / groups, …]."""
    sizes = required(
        operation.wholes(0) or operation.result_dims,
        "the size of the weight is not recorded as numbers",
    )
    weight = Tensor(dims=tuple(sizes), kind=inputs.kind)
    flops = _gradient_flops(gradient, weight)
    moved = gradient.read + inputs.read + weight.written
    return _old_backward_cost(gradient, flops, moved, dgrad=False, wgrad=True)


def with_known_results(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations; convolutions without recorded settings have the sizes of their results.

    Profilers before 2022 record no numbers: neither stride and padding, which the size of the
    result follows from, nor the size of the weight, which the operation for its gradient takes.
    Convolution and gradient share the input, and tell each other: the gradient of the result has
    the size of the result, and the gradient of the weight that of the weight.
    """
    pairs = _SharedInputs(operations)
    return [pairs.with_result(operation) for operation in operations]


class _SharedInputs:
    """The sizes of results and weights of convolutions, by the sizes of their inputs."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.results: defaultdict[_Sizes, set[_Sizes]] = defaultdict(set)
        self.weights: defaultdict[_Sizes, set[_Sizes]] = defaultdict(set)
        for operation in operations:
            if _is_weight_gradient(operation):
                gradient = operation.tensor(1)
                inputs = operation.tensor(2)
                if gradient is not None and inputs is not None:
                    self.results[inputs.dims].add(gradient.dims)
            elif _is_plain_forward(operation):
                inputs = operation.tensor(0)
                weight = operation.tensor(1)
                if inputs is not None and weight is not None:
                    self.weights[inputs.dims].add(weight.dims)

    def with_result(self, operation: Operation) -> Operation:
        """Return an operation with the size of its result, if it is not recorded, and one fits."""
        if operation.concrete:
            return operation
        if _is_weight_gradient(operation):
            return _with_only(
                operation=operation,
                sizes_by_inputs=self.weights,
                inputs=operation.tensor(2),
                other=operation.tensor(1),
                channels=(0, 1),
            )
        if _is_plain_forward(operation):
            return _with_only(
                operation=operation,
                sizes_by_inputs=self.results,
                inputs=operation.tensor(0),
                other=operation.tensor(1),
                channels=(1, 0),
            )
        return operation


def _is_weight_gradient(operation: Operation) -> bool:
    return operation.plain_name.endswith("convolution_backward_weight")


def _is_plain_forward(operation: Operation) -> bool:
    name = operation.plain_name
    return name in _POSITIONS and "transpose" not in name


def _with_only(
    operation: Operation,
    sizes_by_inputs: Mapping[_Sizes, Collection[_Sizes]],
    inputs: Tensor | None,
    other: Tensor | None,
    channels: tuple[int, int],
) -> Operation:
    """Return an operation with the only size whose output channels are those of another tensor.

    Args:
        operation: it.
        sizes_by_inputs: the sizes that may be its result's, by those of the input.
        inputs: its input.
        other: the tensor with as many output channels.
        channels: the dimension of the channels in the size, and in the other tensor.
    """
    if inputs is None or other is None:
        return operation
    (of_size, of_other) = channels
    fitting = [
        sizes
        for sizes in sizes_by_inputs.get(inputs.dims, ())
        if len(sizes) == len(other.dims) and sizes[of_size] == other.dims[of_other]
    ]
    if len(fitting) != 1:
        return operation
    return replace(operation, result_dims=fitting[0])
