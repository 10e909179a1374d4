"""Elementwise operations: each input read once with broadcasting, the result written once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.element_types import is_whole
from tracelens_ext.roofline.operation import Models, broadcast, require, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()

#: Floating point operations for each element of the result, by convention: 1 for what a single
#: instruction computes, else about as many as an approximation by a polynomial takes.
_NAMES_BY_FLOPS: Final = {
    3: ("sigmoid_backward", "tanh_backward", "lerp", "addcmul", "addcdiv"),
    4: ("hardswish", "hardsigmoid", "hypot", "rms"),
    8: ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"),
    10: (
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "atan2",
        "sigmoid",
        "silu",
        "softplus",
        "logit",
        "elu",
        "selu",
        "celu",
        "mish",
    ),
    12: ("gelu", "erf", "erfc", "erfinv", "pow", "float_power"),
    16: ("gelu_backward", "silu_backward"),
}


def _flops_of_names() -> dict[str, int]:
    flops_of_names = {}
    for flops, names in _NAMES_BY_FLOPS.items():
        for name in names:
            flops_of_names[name] = flops
    return flops_of_names


#: Floating point operations for each element of the result, by the name of the operation; 1 for
#: operations that are not listed.
FLOPS_PER_ELEMENT: Final = _flops_of_names()

#: Floating point operations for each element.
_RANDOM_FLOPS: Final = 10  # the rounds of the generator Philox
_DROPOUT_FLOPS: Final = 12
_GATED_FLOPS: Final = 12


def elementwise(
    operation: Operation,
    inputs: list[Tensor],
    result_type: str | None = None,
    family: str | None = None,
) -> Cost:
    """Return the cost of reading some inputs and writing a result.

    Args:
        operation: the operation.
        inputs: the tensors that it reads.
        result_type: the type of the result; None: by promotion. An operation in place and one with
            a tensor behind its inputs (`out=`) ignore this and use the type of what they write.
        family: the group of operations that tables show it with; None: by the number of inputs
            with dimensions.
    """
    shape = broadcast([tensor.dims for tensor in inputs])
    if operation.in_place:
        result_type = inputs[0].kind
    elif len(operation.tensors) > len(inputs):
        result_type = operation.tensors[-1].kind
    result_type = result_type or operation.promoted_type(inputs)
    with_dims = [tensor for tensor in inputs if tensor.dims]
    if family is None:
        family = "UnaryElementwise" if len(with_dims) <= 1 else "BinaryElementwise"
    elements = math.prod(shape)
    flops = elements * FLOPS_PER_ELEMENT.get(operation.plain_name.rstrip("_"), 1)
    written = inputs[0].bytes_of(elements, result_type)
    parameters = _parameters_of_shapes(shape, with_dims or inputs, result_type)
    return vector_cost(family, inputs[0], flops, written, *inputs, **parameters)


def _parameters_of_shapes(
    shape: tuple[int, ...], inputs: list[Tensor], result_type: str
) -> dict[str, object]:
    """Return the parameters for the tables: of the only input, or of the first two."""
    first = inputs[0]
    if len(inputs) < 2:
        return {
            "op_shape": shape,
            "dtype_in_out": (first.kind, result_type),
            "stride_input": first.strides,
        }
    second = inputs[1]
    return {
        "shape_in1": first.dims,
        "shape_in2": second.dims,
        "dtype_in1_in2_out": (first.kind, second.kind, result_type),
        "stride_input1": first.strides,
        "stride_input2": second.strides,
    }


ResultType = Callable[["Operation", "list[Tensor]"], "str | None"]
"""A function that returns the type of the result of an operation; None: by promotion."""


def _type_by_promotion(_operation: Operation, _inputs: list[Tensor]) -> str | None:
    return None


def _floating_point_type(_operation: Operation, inputs: list[Tensor]) -> str | None:
    """Return `float` for whole numbers, else no type."""
    return "float" if is_whole(inputs[0].kind) else None


def _type_of_input(_operation: Operation, inputs: list[Tensor]) -> str | None:
    return inputs[0].kind


def _type_of_magnitude(_operation: Operation, inputs: list[Tensor]) -> str | None:
    """Return the type of the input, or the real type for complex numbers."""
    kind = inputs[0].kind
    real_types = {"c10::complex<float>": "float", "c10::complex<double>": "double"}
    return real_types.get(kind, kind)


def _truth_value_type(_operation: Operation, _inputs: list[Tensor]) -> str | None:
    return "bool"


def _type_of_quotient(operation: Operation, inputs: list[Tensor]) -> str | None:
    """Return `float` for a quotient of whole numbers that is not rounded, else promote types."""
    kind = operation.promoted_type(inputs)
    rounding_mode = operation.value(2)
    if is_whole(kind) and not rounding_mode:
        return "float"
    return kind


def _add_model(
    model_name: str, inputs_count: int, result_type: ResultType, names: tuple[str, ...]
) -> None:
    """Add a model for operations and for their variants in place.

    Args:
        model_name: the name that tables show.
        inputs_count: the most inputs that an operation has; arguments behind them are not read.
        result_type: returns the type of the result.
        names: the operations.
    """

    def model(operation: Operation) -> Cost:
        inputs = operation.leading(inputs_count)
        type_of_result = result_type(operation, inputs)
        return elementwise(operation, inputs, type_of_result)

    model.__name__ = model_name
    in_place = [f"{name}_" for name in names]
    add_model = MODELS.add(*names, *in_place)
    add_model(model)


_add_model(
    model_name="floating",
    inputs_count=1,
    result_type=_floating_point_type,
    names=(
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "sigmoid",
        "erf",
        "erfc",
        "erfinv",
        "reciprocal",
        "logit",
        "lgamma",
        "digamma",
        "i0",
        "sinc",
    ),
)
_add_model(
    model_name="keeping",
    inputs_count=1,
    result_type=_type_of_input,
    names=(
        "neg",
        "relu",
        "gelu",
        "silu",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "softplus",
        "mish",
        "sign",
        "sgn",
        "floor",
        "ceil",
        "round",
        "trunc",
        "frac",
        "square",
        "bitwise_not",
        "nan_to_num",
        "threshold",
        "tril",
        "triu",
        "relu6",
        "log_sigmoid_forward",
        "softshrink",
        "hardshrink",
        "conj_physical",
        "flip",
        "roll",
    ),
)
_add_model(
    model_name="absolute",
    inputs_count=1,
    result_type=_type_of_magnitude,
    names=("abs",),
)
_add_model(
    model_name="truth",
    inputs_count=1,
    result_type=_truth_value_type,
    names=(
        "isnan",
        "isinf",
        "isfinite",
        "isneginf",
        "isposinf",
        "logical_not",
        "signbit",
    ),
)
_add_model(
    model_name="limits",
    inputs_count=3,
    result_type=_type_by_promotion,
    names=("clamp",),
)
_add_model(
    model_name="limits",
    inputs_count=2,
    result_type=_type_by_promotion,
    names=("clamp_min", "clamp_max"),
)
_add_model(
    model_name="arithmetic",
    inputs_count=3,
    result_type=_type_by_promotion,
    names=("lerp", "addcmul", "addcdiv", "softplus_backward"),
)
_add_model(
    model_name="arithmetic",
    inputs_count=2,
    result_type=_type_by_promotion,
    names=(
        "add",
        "sub",
        "rsub",
        "mul",
        "maximum",
        "minimum",
        "fmin",
        "fmax",
        "remainder",
        "fmod",
        "floor_divide",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "copysign",
        "hypot",
        "pow",
        "threshold_backward",
        "sigmoid_backward",
        "tanh_backward",
        "gelu_backward",
        "silu_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "elu_backward",
        "hardswish_backward",
        "hardsigmoid_backward",
        "mish_backward",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "__lshift__",
        "__rshift__",
        "__and__",
        "__or__",
        "__xor__",
        "xlogy",
        "native_dropout_backward",
    ),
)
_add_model(
    model_name="quotient",
    inputs_count=2,
    result_type=_type_of_quotient,
    names=("div", "true_divide", "atan2"),
)
_add_model(
    model_name="comparison",
    inputs_count=2,
    result_type=_truth_value_type,
    names=(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "isclose",
    ),
)


@MODELS.add("where")
def where(operation: Operation) -> Cost:
    """`where`: reads a condition and two choices."""
    candidates = [operation.tensor(1), operation.tensor(2)]
    choices = [tensor for tensor in candidates if tensor is not None]
    require(choices, "the size of the result depends on the data")
    result_type = operation.promoted_type(choices)
    return elementwise(
        operation=operation,
        inputs=operation.leading(3),
        result_type=result_type,
        family="BinaryElementwise",
    )


@MODELS.add("masked_fill", "masked_fill_", tensors=(0, 1))
def masked_fill(operation: Operation, target: Tensor, mask: Tensor) -> Cost:
    """`masked_fill`: reads the tensor and the mask."""
    return elementwise(
        operation=operation, inputs=[target, mask], result_type=target.kind
    )


def _copied(
    source: Tensor, dims: tuple[int, ...], result_type: str, **more_parameters: object
) -> Cost:
    """Return the cost of reading a tensor and writing it with other sizes and another type."""
    elements = math.prod(dims)
    written = source.bytes_of(elements, result_type)
    parameters = _parameters_of_shapes(dims, [source], result_type)
    parameters.update(more_parameters)
    return vector_cost("UnaryElementwise", source, 0, written, source, **parameters)


@MODELS.add("copy_", tensors=(0, 1))
def copy(_: Operation, target: Tensor, source: Tensor) -> Cost:
    """`copy_`: reads the source, writes the target, each in its own type."""
    return _copied(
        source=source,
        dims=target.dims,
        result_type=target.kind,
        stride_output=target.strides,
    )


@MODELS.add("clone", "contiguous", tensors=(0,))
def clone(_: Operation, source: Tensor) -> Cost:
    """`clone`, `contiguous`: reads the tensor and writes as many elements."""
    return _copied(source=source, dims=source.dims, result_type=source.kind)


@MODELS.add("_to_copy", "to", tensors=(0,))
def cast(operation: Operation, source: Tensor) -> Cost:
    """`_to_copy`, `to`: writes the tensor in the type that an argument names."""
    return _copied(
        source=source,
        dims=source.dims,
        result_type=operation.scalar_type(1) or source.kind,
    )


@MODELS.add("fill_", "zero_", tensors=(0,))
def fill(_: Operation, target: Tensor) -> Cost:
    """`fill_`, `zero_`: writes the tensor and reads nothing."""
    return vector_cost("Fill", target, 0, target.written)


@MODELS.add("arange", "linspace", "range", "eye", "full", "randperm")
def filled_result(operation: Operation) -> Cost:
    """`arange` and similar operations: writes the tensor given as `out=`."""
    reason = "the size of the result is not recorded"
    require(operation.tensors, reason)
    result = operation.tensors[-1]
    require(result.elements, reason)
    return vector_cost("Fill", result, 0, result.written)


@MODELS.add(
    "normal_",
    "uniform_",
    "random_",
    "exponential_",
    "bernoulli_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    tensors=(0,),
)
def random(_: Operation, target: Tensor) -> Cost:
    """Random numbers in place: written only; about 10 operations each (the rounds of Philox)."""
    return vector_cost("RNG", target, _RANDOM_FLOPS * target.elements, target.written)


@MODELS.add("native_dropout", tensors=(0,))
def dropout(_: Operation, inputs: Tensor) -> Cost:
    """`native_dropout`: reads the input, writes the result and a mask of truth values."""
    mask_bytes = inputs.elements
    flops = _DROPOUT_FLOPS * inputs.elements
    written = inputs.written + mask_bytes
    return vector_cost("RNG", inputs, flops, written, inputs, shape=inputs.dims)


@MODELS.add("glu")
@MODELS.add("silu_and_mul*", "gelu_and_mul*", "gelu_tanh_and_mul*", engines=True)
def gated(operation: Operation) -> Cost:
    """`glu`, `silu_and_mul`: applies a function to half of the input, times the other half.

    `silu_and_mul` and similar operations have the result as their first argument. The input is the
    larger tensor.
    """
    candidates = operation.leading(2)
    inputs = max(candidates, key=lambda tensor: tensor.elements)
    half = inputs.elements // 2
    bytes_of_result = inputs.element_bytes
    for tensor in candidates:
        if tensor.elements == half:
            bytes_of_result = tensor.element_bytes
            break
    written = half * bytes_of_result
    return vector_cost("UnaryElementwise", inputs, _GATED_FLOPS * half, written, inputs)
