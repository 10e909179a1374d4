"""Softmax and norms. Inputs are read once, results written once; statistics do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import Models, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
# Floating point operations for each element, by convention.
#: Maximum, difference, exponential (8), sum, quotient.
_SOFTMAX_FLOPS: Final = 12
_SOFTMAX_BACKWARD_FLOPS: Final = 4
#: Sum, sum of squares (2), difference, product, scale, shift.
_NORM_FLOPS: Final = 7
_NORM_BACKWARD_FLOPS: Final = 11
_SINGLE_PRECISION_BYTES: Final = 4


class _ForwardPositions(NamedTuple):
    """The positions of the arguments of a norm."""

    weight: int
    bias: int | None  #: None: the operation has no bias


class _BackwardPositions(NamedTuple):
    """The positions of the arguments of the backward pass of a norm."""

    weight: int
    #: the flags for the wanted gradients; None: all gradients are computed
    mask: int | None


_FORWARD: Final = {
    "native_layer_norm": _ForwardPositions(weight=2, bias=3),
    "layer_norm": _ForwardPositions(weight=2, bias=3),
    "group_norm": _ForwardPositions(weight=2, bias=3),
    "_fused_rms_norm": _ForwardPositions(weight=2, bias=None),
    "rms_norm": _ForwardPositions(weight=2, bias=None),
    "native_group_norm": _ForwardPositions(weight=1, bias=2),
    "native_batch_norm": _ForwardPositions(weight=1, bias=2),
    "_native_batch_norm_legit": _ForwardPositions(weight=1, bias=2),
    "_batch_norm_impl_index": _ForwardPositions(weight=1, bias=2),
    "_batch_norm_with_update": _ForwardPositions(weight=1, bias=2),
    "cudnn_batch_norm": _ForwardPositions(weight=1, bias=2),
    "miopen_batch_norm": _ForwardPositions(weight=1, bias=2),
    "batch_norm": _ForwardPositions(weight=1, bias=2),
    "instance_norm": _ForwardPositions(weight=1, bias=2),
}
_BACKWARD: Final = {
    "native_layer_norm_backward": _BackwardPositions(weight=5, mask=7),
    "native_group_norm_backward": _BackwardPositions(weight=4, mask=9),
    "_fused_rms_norm_backward": _BackwardPositions(weight=4, mask=5),
    "native_batch_norm_backward": _BackwardPositions(weight=2, mask=9),
    "cudnn_batch_norm_backward": _BackwardPositions(weight=2, mask=None),
    "miopen_batch_norm_backward": _BackwardPositions(weight=2, mask=None),
}


def _normalized(
    family: str,
    inputs: Tensor,
    flops_of_element: int,
    moved: int,
    *read: Tensor | None,
    **parameters: object,
) -> Cost:
    """Return the cost of a norm.

    Args:
        family: the group of operations that tables show it with.
        inputs: the tensor that is normalized.
        flops_of_element: floating point operations for each element of `inputs`.
        moved: bytes that cross the memory, besides those of `read`.
        read: tensors that are read once; None is skipped.
        parameters: more parameters for the tables.
    """
    shown_parameters: dict[str, object] = {
        "op_shape": inputs.dims,
        "dtype_in": inputs.kind,
        "stride_input": inputs.strides,
    }
    shown_parameters.update(parameters)
    return vector_cost(
        family,
        inputs,
        flops_of_element * inputs.elements,
        moved,
        *read,
        **shown_parameters,
    )


@MODELS.add("_softmax", "_log_softmax", "softmax", "log_softmax", tensors=(0,))
def softmax(operation: Operation, inputs: Tensor) -> Cost:
    """Reads the input and writes as many elements.

    The third argument of `softmax` is the type of the result. The third argument of `_softmax` is a
    flag that turns half precision into single precision.
    """
    bytes_of_result_element = inputs.element_bytes
    if not operation.plain_name.startswith("_"):
        bytes_of_result_element = inputs.bytes_of(1, operation.scalar_type(2))
    elif operation.value(2) is True:
        bytes_of_result_element = max(inputs.element_bytes, _SINGLE_PRECISION_BYTES)
    written = inputs.elements * bytes_of_result_element
    return _normalized("Softmax", inputs, _SOFTMAX_FLOPS, written, inputs)


@MODELS.add("_softmax_backward_data", "_log_softmax_backward_data", tensors=(0, 1))
def softmax_backward(operation: Operation, gradient: Tensor, result: Tensor) -> Cost:
    """Reads the gradient and the result, writes the gradient of the input."""
    written = result.bytes_of(result.elements, operation.scalar_type(3))
    return _normalized(
        "Softmax", result, _SOFTMAX_BACKWARD_FLOPS, written, gradient, result
    )


@MODELS.add(*_FORWARD, tensors=(0,))
def norm(operation: Operation, inputs: Tensor) -> Cost:
    """Reads input, weight and bias, writes the result; mean and variance do not count."""
    positions = _FORWARD[operation.plain_name]
    weight = operation.tensor(positions.weight)
    bias = operation.tensor(positions.bias) if positions.bias is not None else None
    return _normalized(
        "Normalization",
        inputs,
        _NORM_FLOPS,
        inputs.written,
        inputs,
        weight,
        bias,
        has_bias=bias is not None,
        is_affine=weight is not None,
    )


@MODELS.add(*_BACKWARD, tensors=(0, 1))
def norm_backward(operation: Operation, first: Tensor, second: Tensor) -> Cost:
    """Reads gradient, input and weight, writes the gradients that are wanted."""
    positions = _BACKWARD[operation.plain_name]
    weight = operation.tensor(positions.weight)
    mask = operation.value(positions.mask)
    if not isinstance(mask, list | tuple) or len(mask) != 3:
        mask = (True, True, True)
    wants_input, wants_weight, wants_bias = (bool(wanted) for wanted in mask)
    moved = first.written if wants_input else 0
    if weight is not None:
        moved += weight.read + (wants_weight + wants_bias) * weight.written
    return _normalized(
        "Normalization",
        second,
        _NORM_BACKWARD_FLOPS,
        moved,
        first,
        second,
        is_affine=weight is not None,
    )


@MODELS.add(
    "rms_norm*",
    "rmsnorm*",
    "fused_add_rms*",
    "gemma_rms*",
    "gemma_fused_add*",
    "layer_norm*",
    "layernorm2d*",
    "rocm_aiter_rms*",
    "add_rmsnorm*",
    engines=True,
)
def fused_norm(operation: Operation) -> Cost:
    """Norms of serving engines and aiter. With `add` they also add a residual and write the sum.

    The result is the first matrix if that is an argument (`out`). Otherwise the first matrix is the
    input, and the result is the input itself or a new tensor of the same size.
    """
    matrices = [tensor for tensor in operation.tensors if len(tensor.dims) > 1]
    operation.require_arguments(
        matrices, "the recorded shapes do not match a normalization"
    )
    result = matrices[0]
    matrices_of_same_shape = [
        tensor for tensor in matrices if tensor.dims == result.dims
    ]
    weights = [tensor for tensor in operation.tensors if len(tensor.dims) == 1]
    adds_residual = "add" in operation.plain_name
    inputs_count = 2 if adds_residual else 1
    inputs = result
    result_is_argument = len(matrices_of_same_shape) > inputs_count
    if result_is_argument:
        inputs = matrices_of_same_shape[1]
    flops_of_element = _NORM_FLOPS
    moved = result.written
    if adds_residual:
        flops_of_element += 1
        moved += 2 * inputs.written  # the residual is read, the sum is written
    return _normalized(
        "Normalization", inputs, flops_of_element, moved, inputs, *weights
    )
