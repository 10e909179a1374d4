"""Softmax and norms: a pass over the input and one over the result, however they are computed."""

from __future__ import annotations

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    of_libraries,
    short_type,
)

#: Operations for each element, a convention: maximum, difference, exponential (8), sum, quotient.
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS = 12, 4
#: Sum, sum of squares (2), difference, product, scale, shift.
_NORM_FLOPS, _NORM_BACKWARD_FLOPS = 7, 11
#: Where weight and bias of a norm are; None: it has none.
_FORWARD: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("native_layer_norm", "layer_norm", "group_norm"), (2, 3)),
    "native_group_norm": (1, 2),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), (2, None)),
    **dict.fromkeys(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_impl_index",
            "_batch_norm_with_update",
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "batch_norm",
            "instance_norm",
        ),
        (1, 2),
    ),
}
#: Where the weight of a backward pass is, and which gradients are wanted.
_BACKWARD: dict[str, tuple[int, int | None]] = {
    "native_layer_norm_backward": (5, 7),
    "native_group_norm_backward": (4, 9),
    "_fused_rms_norm_backward": (4, 5),
    "native_batch_norm_backward": (2, 9),
    **dict.fromkeys(("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), (2, None)),
}


def softmax(op: Operation) -> Cost:
    """Reads the input, writes as much, in single precision where it is asked for."""
    x = op.need(0)
    if op.plain_name.startswith("_"):  # argument 3 says whether half becomes single precision
        item = max(x.item, 4) if op.value(2) is True else x.item
    else:
        item = ELEMENT_BYTES[op.scalar_type(2) or x.kind]
    moved = x.read + x.elements * item
    return _cost("Softmax", _SOFTMAX_FLOPS, moved, x)


def softmax_backward(op: Operation) -> Cost:
    """Reads gradient and result, writes the gradient of the input."""
    grad, result = op.need(0), op.need(1)
    kind = op.scalar_type(3) or result.kind
    moved = grad.read + result.read + result.elements * ELEMENT_BYTES[kind]
    return _cost("Softmax", _SOFTMAX_BACKWARD_FLOPS, moved, result)


def norm(op: Operation) -> Cost:
    """Reads input, weight and bias, writes the result; statistics do not count."""
    weight, bias = _FORWARD[op.plain_name]
    x = op.need(0)
    scale, shift = op.tensor(weight), op.tensor(bias) if bias is not None else None
    moved = bytes_read(x, scale, shift) + x.written
    more = {"has_bias": shift is not None, "is_affine": scale is not None}
    return _cost("Normalization", _NORM_FLOPS, moved, x, **more)


def norm_backward(op: Operation) -> Cost:
    """Reads gradient, input and weight, writes the gradients that are wanted."""
    at, mask = _BACKWARD[op.plain_name]
    a, b, weight = op.need(0), op.need(1), op.tensor(at)
    wanted = op.value(mask)
    if not isinstance(wanted, list | tuple) or len(wanted) != 3:
        wanted = (True, True, True)
    written = a.written if wanted[0] else 0
    if weight is not None:
        written += (bool(wanted[1]) + bool(wanted[2])) * weight.written
    moved = bytes_read(a, b, weight) + written
    return _cost("Normalization", _NORM_BACKWARD_FLOPS, moved, b, is_affine=weight is not None)


def fused_norm(op: Operation) -> Cost:
    """Norms of serving engines and aiter; with `add` they read a residual and write the sum, too.

    What is written comes first (`out`), or is the input itself, or is no argument and as the input.
    """
    matrices = [t for t in op.tensors if len(t.dims) > 1]
    if not matrices:
        op.need(0)
        raise NoModelError("the recorded shapes are not those of a norm")
    result, adds = matrices[0], "add" in op.plain_name
    same = [t for t in matrices if t.dims == result.dims]
    x = same[1] if len(same) > 1 + adds else result
    weights = bytes_read(*(t for t in op.tensors if len(t.dims) == 1))
    moved = x.read + weights + result.written + (2 * x.written if adds else 0)
    return _cost("Normalization", _NORM_FLOPS + adds, moved, x)


def _cost(family: str, flops: int, moved: int, x: Tensor, **parameters: object) -> Cost:
    shown = {"op_shape": x.dims, "dtype_in": x.kind, "stride_input": x.strides, **parameters}
    return Cost(family, flops * x.elements, moved, short_type(x.kind), parameters=shown)


MODELS = {
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax"), softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), softmax_backward),
    **dict.fromkeys(_FORWARD, norm),
    **dict.fromkeys(_BACKWARD, norm_backward),
    **of_libraries(
        "rms_norm* rmsnorm* fused_add_rms* gemma_rms* gemma_fused_add* layer_norm* layernorm2d*"
        " rocm_aiter_rms* add_rmsnorm*",
        fused_norm,
    ),
}
