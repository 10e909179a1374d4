"""Convolutions, which the matrix units compute.

Each element of the result is a sum over the input channels and the positions of the filter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
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
_NO_CONVOLUTION: Final = (
    "the recorded shapes do not match a convolution with a batch dimension"
)


class _ConvolutionPositions(NamedTuple):
    """The positions of the arguments of a convolution; None: no such argument."""

    bias: int | None
    stride: int
    padding: int
    dilation: int
    #: the position of the flag, or its value if it is no argument
    transposed: int | bool
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
#: Position of `output_mask`: the flags that say which gradients are wanted.
_OUTPUT_MASK: Final = 10
#: Possible positions of `output_mask` in PyTorch before 2022, by operation.
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
    """The work and the result of a convolution."""

    flops: int  #: operations without those of a bias
    result: tuple[int, ...]  #: the shape of the result
    parameters: dict[str, object]  #: sizes and settings for the tables


def _convolution(
    operation: Operation,
    inputs: Tensor,
    weight: Tensor,
    positions: _ConvolutionPositions,
) -> _Convolution:
    """Compute the work and the result of a convolution of inputs [N, Cin, …].

    Raises:
        NoModelError: the shapes do not match, or stride and padding are not known.
    """
    rank = len(weight.dims) - 2
    require(rank > 0 and len(inputs.dims) == rank + 2, _NO_CONVOLUTION)
    if not operation.concrete and operation.result_dims:
        return _convolution_with_result(
            result=operation.result_dims, inputs=inputs, weight=weight
        )
    require(operation.concrete, "stride and padding are not recorded")
    settings = _settings(operation, positions, rank)
    if settings.transposed:
        result = _transposed_result(inputs, weight, settings)
        # Each element of the input is multiplied by all elements of its filters.
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


def _convolution_with_result(
    result: tuple[int, ...], inputs: Tensor, weight: Tensor
) -> _Convolution:
    """Return a convolution that is not transposed, given the shape of its result."""
    rank = len(weight.dims) - 2
    parameters: dict[str, object] = {
        "convNd": f"conv{rank}d",
        "input_shape": inputs.dims,
        "filter_shape": weight.dims,
        "output_shape": result,
    }
    return _Convolution(
        flops=2 * math.prod(result) * math.prod(weight.dims[1:]),
        result=result,
        parameters=parameters,
    )


def _settings(
    operation: Operation, positions: _ConvolutionPositions, rank: int
) -> _Settings:
    """Return the recorded settings of a convolution with `rank` spatial dimensions."""
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
        # The filter can move from its first position by this many elements.
        movable = size - _filter_beyond_padding(weight, settings, dimension)
        stride = max(settings.stride[dimension], 1)
        shape.append(movable // stride + 1)
    return tuple(shape)


def _transposed_result(
    inputs: Tensor, weight: Tensor, settings: _Settings
) -> tuple[int, ...]:
    """Return the shape of the result of a transposed convolution: [N, Cout, …]."""
    shape = [inputs.dims[0], weight.dims[1] * settings.groups]
    for dimension, size in enumerate(inputs.dims[2:]):
        stride = settings.stride[dimension]
        distance_of_last = (size - 1) * stride
        filter_length = _filter_beyond_padding(weight, settings, dimension)
        output_padding = settings.output_padding[dimension]
        shape.append(distance_of_last + filter_length + output_padding)
    return tuple(shape)


def _filter_beyond_padding(weight: Tensor, settings: _Settings, dimension: int) -> int:
    """Return the length that the dilated filter covers, less the padding on both sides.

    A filter of 3 with a dilation of 2 covers 5 elements; with a padding of 1 the result is 3.
    """
    filter_size = weight.dims[2 + dimension]
    covered = settings.dilation[dimension] * (filter_size - 1) + 1
    return covered - 2 * settings.padding[dimension]


def _for_each_dimension(
    operation: Operation, position: int | None, rank: int, default: int
) -> list[int]:
    """Return a setting for each of `rank` dimensions; one recorded number holds for all."""
    value = operation.value(position)
    if type(value) is int:
        return [value] * rank
    if value is None:
        return [default] * rank
    numbers = operation.wholes(position)
    numbers = required(numbers, f"padding {value!r} is not recorded as numbers")
    if len(numbers) == 1:
        return numbers * rank
    # A list that is too short is filled up with the default.
    numbers_and_defaults = numbers + [default] * rank
    return numbers_and_defaults[:rank]


@MODELS.add(*_POSITIONS, tensors=(0, 1))
def forward(operation: Operation, inputs: Tensor, weight: Tensor) -> Cost:
    """Input [N, Cin, …], weight [Cout, Cin / groups, …], bias; the result has the input's type."""
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
    """The gradients of input, weight and bias that `output_mask` selects."""
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


# The operations below are those of PyTorch before 2022: a gradient each, computed by a library.


def _gradient_flops(summed_over: Tensor, weight: Tensor) -> int:
    """Return the operations of one gradient, which are as many as those of the convolution.

    Args:
        summed_over: the tensor whose elements meet all filters: the result of the convolution, or
            the input of a transposed one.
        weight: [Cout, Cin / groups, …]; of a transposed convolution [Cin, Cout / groups, …].
    """
    rank = len(weight.dims) - 2
    require(rank > 0 and len(summed_over.dims) == rank + 2, _NO_CONVOLUTION)
    return 2 * summed_over.elements * math.prod(weight.dims[1:])


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
    """The gradients of input and weight that `output_mask` selects; both if it is not recorded."""
    summed_over = gradient
    if "transpose" in operation.plain_name:
        summed_over = inputs
    wants_input = True
    wants_weight = True
    for position in _OLD_OUTPUT_MASKS[operation.plain_name]:
        mask = operation.value(position)
        if isinstance(mask, list | tuple) and len(mask) > 1:
            wants_input = bool(mask[0])
            wants_weight = bool(mask[1])
            break
    flops_of_gradient = _gradient_flops(summed_over, weight)
    moved = gradient.read
    if wants_input:
        moved += weight.read + inputs.written
    if wants_weight:
        moved += inputs.read + weight.written
    return _old_backward_cost(
        gradient=gradient,
        flops=flops_of_gradient * (wants_input + wants_weight),
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
    """The gradient of the input; the first argument is the size of the input, [N, Cin, …]."""
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
    """The gradient of the weight; the first argument is its size, [Cout, Cin / groups, …]."""
    sizes = required(
        operation.wholes(0) or operation.result_dims,
        "the size of the weight is not recorded as numbers",
    )
    weight = Tensor(dims=tuple(sizes), kind=inputs.kind)
    flops = _gradient_flops(gradient, weight)
    moved = gradient.read + inputs.read + weight.written
    return _old_backward_cost(gradient, flops, moved, dgrad=False, wgrad=True)


def with_known_results(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations; convolutions without recorded settings get the size of their result.

    Profilers before 2022 record no numbers. So a convolution lacks stride and padding, which tell
    the size of its result, and the gradient of a weight lacks the size of the weight. But both have
    the input as an argument, so each one provides what the other lacks: the gradient of the result,
    an argument of the second, has the size of the result; the weight is an argument of the first.
    """
    sizes_by_input = _SizesByInput(operations)
    return [sizes_by_input.with_result(operation) for operation in operations]


class _SizesByInput:
    """The sizes of results and weights of convolutions, by the sizes of their inputs."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        #: sizes of an input → sizes of the results of convolutions of such an input
        self.results: defaultdict[_Sizes, set[_Sizes]] = defaultdict(set)
        #: sizes of an input → sizes of the weights of such convolutions
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
        """Return an operation with the size of its result, if exactly one known size fits."""
        if operation.concrete:
            return operation
        candidates: list[_Sizes] = []
        if _is_weight_gradient(operation):
            gradient = operation.tensor(1)
            inputs = operation.tensor(2)
            if gradient is not None and inputs is not None:
                # Weights [Cout, …] for a gradient [N, Cout, …].
                candidates = [
                    weight
                    for weight in self.weights.get(inputs.dims, ())
                    if len(weight) == len(gradient.dims)
                    and weight[:1] == gradient.dims[1:2]
                ]
        elif _is_plain_forward(operation):
            inputs = operation.tensor(0)
            weight = operation.tensor(1)
            if inputs is not None and weight is not None:
                # Results [N, Cout, …] for a weight [Cout, …].
                candidates = [
                    result
                    for result in self.results.get(inputs.dims, ())
                    if len(result) == len(weight.dims)
                    and result[1:2] == weight.dims[:1]
                ]
        if len(candidates) != 1:
            return operation
        return replace(operation, result_dims=candidates[0])


def _is_weight_gradient(operation: Operation) -> bool:
    return operation.plain_name.endswith("convolution_backward_weight")


def _is_plain_forward(operation: Operation) -> bool:
    name = operation.plain_name
    return name in _POSITIONS and "transpose" not in name
