"""Reductions, scans, softmax and norms: the input read once, results written once."""

from __future__ import annotations

import math
from dataclasses import replace

from tracelens_ext.roofline.elementwise import elementwise
from tracelens_ext.roofline.movement import length_along
from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    Models,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    is_whole,
    vector_cost,
)

MODELS = Models()
_of = MODELS.of("reduction")
_of_norms = MODELS.of("normalization")
_INDEX_BYTES = ELEMENT_BYTES["long int"]


def _over(op: Operation, rank: int) -> set[int]:
    """The dimensions that go."""
    name = op.plain_name
    at = 2 if "norm" in name else 1
    dim = op.value(at) if op.types[at : at + 1] in (("Scalar",), ("ScalarList",)) else None
    if type(dim) is int and name.removesuffix("_mean") not in ("std", "var"):  # `correction` there
        dim = [dim]
    dims = dim if isinstance(dim, list | tuple) and dim else range(rank)
    return {d % max(1, rank) for d in dims if type(d) is int}


@_of(
    "sum mean prod amax amin argmax argmin any all nansum nanmean logsumexp std var std_mean"
    " var_mean norm linalg_norm linalg_vector_norm count_nonzero"
)
def reduction(op: Operation) -> Cost:
    """`sum` and its kind: over all dimensions unless some are named."""
    name, x = op.plain_name, op.need(0)
    over = _over(op, len(x.dims))
    results = math.prod(n for i, n in enumerate(x.dims) if i not in over)
    named = op.types[1:2] == ("ScalarList",) or type(op.value(1)) is int
    kind = _result_type(op, x.kind, named=named or len(over) < len(x.dims))
    written = results * ELEMENT_BYTES[kind] * (2 if name.endswith("_mean") else 1)
    flops = x.elements * (2 if "norm" in name or name.startswith(("std", "var")) else 1)
    return vector_cost(
        *("Reduce_fwd", x, flops, x.read + written),
        num_input_elems=x.elements,
        num_output_elems=results,
        dtype_in_out=(x.kind, kind),
        reduce_type=name.removeprefix("_"),
        op_shape=x.dims,
        dims=tuple(sorted(over)),
    )


def _result_type(op: Operation, kind: str, *, named: bool) -> str:
    """`named`: whether dimensions are an argument, all of them though they be."""
    name = op.plain_name
    if name in ("any", "all"):
        return "bool"
    if name.startswith("arg") or name == "count_nonzero":
        return "long int"
    sums = name in ("sum", "prod", "nansum")
    at = 4 if name == "linalg_vector_norm" else 3 if named else 1
    if (sums or name in ("mean", "linalg_vector_norm")) and (asked := op.scalar_type(at)):
        return asked
    if is_whole(kind) and name != "linalg_vector_norm":
        return "long int" if sums else "float" if name == "logsumexp" else kind
    return kind


@_of("max min")
def extreme(op: Operation) -> Cost:
    """`max` and `min`: of all, along a dimension (with indices), or of two tensors."""
    if op.tensor(1) is not None and not (len(op.dims) == 2 and op.dims[1] == (0,)):
        return elementwise(op, op.leading(2))
    return with_indices(op)


@_of("median")
def with_indices(op: Operation) -> Cost:
    """`median`, `max`, `min`: along a dimension they give the places of their results as well."""
    cost = reduction(op)
    if type(op.value(1)) is not int or op.types[1:2] != ("Scalar",):
        return cost
    indices = _INDEX_BYTES * cost.parameters["num_output_elems"]  # type: ignore[operator]  # a number here
    return replace(cost, bytes=cost.bytes + indices)


@_of("cumsum cumprod cumsum_ logcumsumexp cummax cummin")
def scan(op: Operation) -> Cost:
    """`cumsum` and its kind: as many results as elements; whole numbers become 64-bit."""
    x = op.need(0)
    item = _INDEX_BYTES if is_whole(x.kind) else ELEMENT_BYTES[op.scalar_type(2) or x.kind]
    return vector_cost("Reduce_fwd", x, x.elements, x.read + x.elements * item, shape=x.dims)


@_of("sort argsort topk")
def ordering(op: Operation) -> Cost:
    """`sort` and `topk`: at least the input, and values and indices of the result."""
    x = op.need(0)
    kept = x.elements
    if op.plain_name == "topk" and x.dims:
        length = length_along(x, op.whole(2, -1))
        kept = x.elements // length * min(op.whole(1, length), length)
    compared = x.elements * max(1, math.ceil(math.log2(max(2, x.dims[-1] if x.dims else 1))))
    moved = x.read + kept * (x.item + _INDEX_BYTES)
    return replace(vector_cost("Sort", x, compared, moved, shape=x.dims, k=kept), bound_only=True)


@_of("equal")
def equal(op: Operation) -> Cost:
    """`equal`: two tensors read, one answer."""
    a, b = op.need(0), op.need(1)
    return vector_cost("Reduce_fwd", a, a.elements, bytes_read(a, b) + 1)


#: Operations for each element, a convention: maximum, difference, exponential (8), sum, quotient.
_SOFTMAX_FLOPS, _SOFTMAX_BACKWARD_FLOPS = 12, 4
#: Sum, sum of squares (2), difference, product, scale, shift.
_NORM_FLOPS, _NORM_BACKWARD_FLOPS = 7, 11
_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _batch_norm_impl_index _batch_norm_with_update"
    " cudnn_batch_norm miopen_batch_norm batch_norm instance_norm"
)
#: Where weight and bias of a norm are; None: it has none.
_FORWARD: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("native_layer_norm", "layer_norm", "group_norm"), (2, 3)),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), (2, None)),
    **dict.fromkeys(("native_group_norm", *_BATCH_NORMS.split()), (1, 2)),
}
#: Where the weight of a backward pass is, and which gradients are wanted.
_BACKWARD: dict[str, tuple[int, int | None]] = {
    "native_layer_norm_backward": (5, 7),
    "native_group_norm_backward": (4, 9),
    "_fused_rms_norm_backward": (4, 5),
    "native_batch_norm_backward": (2, 9),
    **dict.fromkeys(("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), (2, None)),
}


def _normed(family: str, x: Tensor, flops: int, moved: int, **more: object) -> Cost:
    """`flops`: for each element of `x`."""
    shown = {"op_shape": x.dims, "dtype_in": x.kind, "stride_input": x.strides, **more}
    return vector_cost(family, x, flops * x.elements, moved, **shown)


@_of_norms("_softmax _log_softmax softmax log_softmax")
def softmax(op: Operation) -> Cost:
    """Reads the input, writes as much, in single precision where it is asked for."""
    x = op.need(0)
    if op.plain_name.startswith("_"):  # argument 3 says whether half becomes single precision
        item = max(x.item, 4) if op.value(2) is True else x.item
    else:
        item = ELEMENT_BYTES[op.scalar_type(2) or x.kind]
    return _normed("Softmax", x, _SOFTMAX_FLOPS, x.read + x.elements * item)


@_of_norms("_softmax_backward_data _log_softmax_backward_data")
def softmax_backward(op: Operation) -> Cost:
    """Reads gradient and result, writes the gradient of the input."""
    grad, result = op.need(0), op.need(1)
    item = ELEMENT_BYTES[op.scalar_type(3) or result.kind]
    moved = bytes_read(grad, result) + result.elements * item
    return _normed("Softmax", result, _SOFTMAX_BACKWARD_FLOPS, moved)


@_of_norms(" ".join(_FORWARD))
def norm(op: Operation) -> Cost:
    """Reads input, weight and bias, writes the result; statistics do not count."""
    weight, bias = _FORWARD[op.plain_name]
    x = op.need(0)
    scale, shift = op.tensor(weight), op.tensor(bias) if bias is not None else None
    moved = bytes_read(x, scale, shift) + x.written
    more = {"has_bias": shift is not None, "is_affine": scale is not None}
    return _normed("Normalization", x, _NORM_FLOPS, moved, **more)


@_of_norms(" ".join(_BACKWARD))
def norm_backward(op: Operation) -> Cost:
    """Reads gradient, input and weight, writes the gradients that are wanted."""
    at, mask = _BACKWARD[op.plain_name]
    a, b, weight = op.need(0), op.need(1), op.tensor(at)
    wanted = op.value(mask)
    if not isinstance(wanted, list | tuple) or len(wanted) != 3:
        wanted = (True, True, True)
    moved = bytes_read(a, b, weight) + (a.written if wanted[0] else 0)
    if weight is not None:
        moved += (bool(wanted[1]) + bool(wanted[2])) * weight.written
    affine = weight is not None
    return _normed("Normalization", b, _NORM_BACKWARD_FLOPS, moved, is_affine=affine)


@_of_norms(
    "rms_norm* rmsnorm* fused_add_rms* gemma_rms* gemma_fused_add* layer_norm* layernorm2d*"
    " rocm_aiter_rms* add_rmsnorm*",
    engines=True,
)
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
    return _normed("Normalization", x, _NORM_FLOPS + adds, moved)
