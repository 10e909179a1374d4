"""Operations that memory bounds: reductions, scans, norms, and what moves elements.

Inputs are read once, results written once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens_ext.roofline.elementwise import elementwise
from tracelens_ext.roofline.operation import Models, broadcast, is_whole, known, named, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
_of = MODELS.of("movement")
_of_pooling = MODELS.of("pooling")
_of_reductions = MODELS.of("reduction")
_of_norms = MODELS.of("normalization")
_INDEX_BYTES = 8


@_of("cat stack _cat concat concatenate")
def join(op: Operation) -> Cost:
    """`cat` and `stack`: all parts read, and written one behind the other."""
    parts = op.tensor_list(0)
    moved = sum(part.written for part in parts)
    return vector_cost("Concatenation", parts[0], 0, moved, *parts, parts=len(parts))


def _length_along(x: Tensor, dim: int) -> int:
    """How long a dimension is; 1 for one that a tensor has not, and where it is empty."""
    return max(1, x.dims[dim]) if -len(x.dims) <= dim < len(x.dims) else 1


def _picked(
    x: Tensor, elements: int, *read: Tensor | None, passes: int = 2, flops: int = 0
) -> Cost:
    """Indices and values read, and passes over the elements that are picked."""
    moved = passes * elements * x.item
    return vector_cost("Indexing", x, flops, moved, *read, shape=x.dims, picked=elements)


@_of("index_select", 0, 2)
def pick_rows(op: Operation, x: Tensor, index: Tensor) -> Cost:
    """`index_select`: the index, and each picked element read and written."""
    rows = x.elements // _length_along(x, op.whole(1))
    return _picked(x, rows * index.elements, index)


@_of("gather", 0, 2)
def gather(_: Operation, x: Tensor, index: Tensor) -> Cost:
    """`gather`: an element for each element of the index."""
    return _picked(x, index.elements, index)


@_of("embedding", 0, 1)
def embedding(_: Operation, table: Tensor, index: Tensor) -> Cost:
    """`embedding`: a row of the table for each index; the table as a whole is not read."""
    known(bool(table.dims), "the recorded table is no matrix")
    return _picked(table, index.elements * table.dims[-1], index)


def _chosen(x: Tensor, indices: list[Tensor]) -> int:
    """How many elements a list of indices chooses."""
    positions = broadcast([i.dims for i in indices])
    return math.prod(positions) * math.prod(x.dims[len(indices) :])


@_of("index", 0)
def index_by_list(op: Operation, x: Tensor) -> Cost:
    """`index`: the indices are a list of tensors, which only newer profilers record."""
    indices = op.tensor_list(1, "long int")
    return _picked(x, _chosen(x, indices), *indices)


@_of("index_put_ _index_put_impl_", 0)
def put_by_list(op: Operation, x: Tensor) -> Cost:
    """`index_put_`: indices and values read, places written; with `accumulate` read before."""
    read = *(indices := op.tensor_list(1, "long int")), op.need(2)
    elements = _chosen(x, indices)
    adds = op.value(3) is True
    return _picked(x, elements, *read, passes=1 + adds, flops=elements * adds)


@_of(
    "scatter scatter_ scatter_add scatter_add_ scatter_reduce_ index_add_ index_add index_copy_"
    " index_fill_",
    *(0, 2),
)
def scatter(op: Operation, x: Tensor, index: Tensor) -> Cost:
    """`scatter_` and its kind: index and source read, places written; adding reads them before."""
    source = op.tensor(3)
    adds = "add" in op.plain_name or "reduce" in op.plain_name
    touched = source.elements if source is not None and source.dims else index.elements
    moved = min(source.read, touched * source.item) if source is not None else 0
    moved += (1 + adds) * touched * x.item
    if not op.in_place and not adds:  # the rest is copied
        moved += x.read + x.written - touched * x.item
    return vector_cost("Indexing", x, touched * adds, moved, index, shape=x.dims)


@_of("embedding_dense_backward", 0, 1)
def embedding_backward(op: Operation, grad: Tensor, index: Tensor) -> Cost:
    """`embedding_dense_backward`: gradient and index read, the table's gradient written."""
    fits = bool(grad.dims) and op.value(2) is not None
    known(fits, "the size of the table is not recorded")
    table = op.whole(2) * grad.dims[-1] * grad.item
    return vector_cost("Indexing", grad, grad.elements, table, grad, index)


@_of("masked_scatter_ channel_shuffle pixel_shuffle", 0)
def two_passes(_: Operation, x: Tensor) -> Cost:
    """The whole input read and as much written."""
    return vector_cost("Concatenation", x, 0, x.written, x, shape=x.dims)


@_of("repeat", 0)
def repeated(op: Operation, x: Tensor) -> Cost:
    """`repeat`: the input read, the result written."""
    times = known(op.wholes(1), "how often it is repeated is not recorded")
    return vector_cost("Concatenation", x, 0, x.written * math.prod(times), x, shape=x.dims)


def _pooled(
    x: Tensor, flops: int, moved: int, *read: Tensor | None, family: str = "Pooling"
) -> Cost:
    return vector_cost(family, x, flops, moved, *read, shape=x.dims)


def _pool(op: Operation, dilation_at: int | None, ceil_at: int) -> Cost:
    """Input read; a result for each place of the window, with its index if the name says so."""
    x = op.need(0)
    kernel = known(op.wholes(1) or None, "the window is not recorded")
    n = len(kernel)
    told = (op.wholes(2) or kernel, op.wholes(3) or [0], op.wholes(dilation_at) or [1])
    stride, padding, dilation = (each * n if len(each) == 1 else each for each in told)
    up = op.value(ceil_at) is True
    elements = math.prod(x.dims[: len(x.dims) - n])
    for i, size in enumerate(x.dims[len(x.dims) - n :]):
        room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        elements *= (room + (stride[i] - 1 if up else 0)) // max(1, stride[i]) + 1
    item = x.item + (_INDEX_BYTES if "indices" in op.name else 0)
    return _pooled(x, elements * math.prod(kernel), elements * item, x)


@_of_pooling("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(op: Operation) -> Cost:
    """Input read; values written, and their indices where the operation gives them."""
    return _pool(op, 4, 5)


@_of_pooling("avg_pool1d avg_pool2d avg_pool3d")
def average_pool(op: Operation) -> Cost:
    """Input read, means written."""
    return _pool(op, None, 4)


_SIZED = "nearest1d nearest2d nearest3d linear1d bilinear2d bicubic2d trilinear3d"


@_of_pooling(
    " ".join(f"upsample_{kind}" for kind in _SIZED.split())
    + " _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d"
    " adaptive_max_pool2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    *(0,),
)
def to_size(op: Operation, x: Tensor) -> Cost:
    """Adaptive pooling and resampling to a size: input read, result written."""
    size = known(op.wholes(1) or None, "the size of the result is not recorded")
    elements = math.prod(x.dims[: len(x.dims) - len(size)]) * math.prod(size)
    return _pooled(x, max(elements, x.elements), elements * x.item, x)


@_of_pooling(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward"
    " avg_pool3d_backward _adaptive_avg_pool2d_backward adaptive_max_pool2d_backward",
    *(0, 1),
)
def pool_backward(op: Operation, grad: Tensor, x: Tensor) -> Cost:
    """Gradient read (and indices, where there are any), gradient of the input written."""
    indices = [t for t in op.tensors[2:] if t.kind in ("long int", "long", "int")]
    return _pooled(x, grad.elements, x.written, grad, *indices)


@_of_pooling(" ".join(f"upsample_{kind}_backward" for kind in _SIZED.split()), 0)
def resample_backward(op: Operation, grad: Tensor) -> Cost:
    """Gradient read, gradient of the input written."""
    size = known(op.wholes(2) or None, "the size of the input is not recorded")
    return _pooled(grad, grad.elements, math.prod(size) * grad.item, grad)


@_of_pooling("nll_loss_forward nll_loss2d_forward nll_loss", 0, 1)
def nll_loss(op: Operation, x: Tensor, target: Tensor) -> Cost:
    """One element a target is read; reduced to one result unless told otherwise."""
    results = target.elements if op.whole(3, 1) == 0 else 1
    moved = (target.elements + results + 1) * x.item
    return _pooled(x, target.elements, moved, target, family="Loss")


@_of_pooling("nll_loss_backward nll_loss2d_backward", 0, 1, 2)
def nll_loss_backward(_: Operation, grad: Tensor, x: Tensor, target: Tensor) -> Cost:
    """Targets read, one element a target written; another operation zeroes the rest."""
    moved = target.elements * x.item
    return _pooled(x, target.elements, moved, grad, target, family="Loss")


_PAIRS = "mse_loss smooth_l1_loss huber_loss l1_loss binary_cross_entropy"


@_of_pooling(_PAIRS, 0, 1)
def pair_loss(op: Operation, x: Tensor, target: Tensor) -> Cost:
    """Input and target read; a result, or one for each element."""
    results = x.elements if op.whole(2, 1) == 0 else 1
    return _pooled(x, 3 * x.elements, results * x.item, x, target, family="Loss")


@_of_pooling(" ".join(f"{name}_backward" for name in _PAIRS.split()), 0, 1, 2)
def pair_loss_backward(_: Operation, grad: Tensor, x: Tensor, target: Tensor) -> Cost:
    """Gradient, input and target read, the gradient of the input written."""
    return _pooled(x, 3 * x.elements, x.written, grad, x, target, family="Loss")


@MODELS.of("fourier")("_fft_c2c _fft_r2c _fft_c2r", 0)
def transform(op: Operation, x: Tensor) -> Cost:
    """Over the given dimensions: 5·N·log2 N operations for N points (the usual count)."""
    dims = op.wholes(1) or [len(x.dims) - 1]
    name = op.plain_name
    points = math.prod(x.dims[d] for d in dims if -len(x.dims) <= d < len(x.dims))
    flops = 5 * x.elements * math.log2(max(points, 2))
    result = x.elements
    item = x.item
    if name != "_fft_c2c":
        flops = flops / 2
        last = x.dims[dims[-1]]
        rows = x.elements // max(1, last)
        if name == "_fft_r2c":
            result = rows * (last // 2 + 1) if op.value(3) is True else result
            item = 2 * item
        else:
            result = rows * (op.whole(3) or 2 * (last - 1))
            item = item // 2
    return vector_cost("FFT", x, math.ceil(flops), result * item, x, shape=x.dims)


def _over(op: Operation, rank: int) -> set[int]:
    """The dimensions that go."""
    name = op.plain_name
    at = 2 if "norm" in name else 1
    dim = op.value(at) if op.types[at : at + 1] in (("Scalar",), ("ScalarList",)) else None
    if type(dim) is int and name.removesuffix("_mean") not in ("std", "var"):  # `correction` there
        dim = [dim]
    dims = dim if isinstance(dim, list | tuple) and dim else range(rank)
    return {d % max(1, rank) for d in dims if type(d) is int}


@_of_reductions(
    "sum mean prod amax amin argmax argmin any all nansum nanmean logsumexp std var std_mean"
    " var_mean norm linalg_norm linalg_vector_norm count_nonzero",
    *(0,),
)
def reduction(op: Operation, x: Tensor) -> Cost:
    """`sum` and its kind: over all dimensions unless some are named."""
    name = op.plain_name
    over = _over(op, len(x.dims))
    results = math.prod(n for i, n in enumerate(x.dims) if i not in over)
    asked = op.types[1:2] == ("ScalarList",) or type(op.value(1)) is int
    kind = _result_type(op, x.kind, named=asked or len(over) < len(x.dims))
    flops = x.elements * (2 if "norm" in name or name.startswith(("std", "var")) else 1)
    moved = x.as_many(results, kind) * (2 if name.endswith("_mean") else 1)
    names = "num_input_elems num_output_elems dtype_in_out reduce_type op_shape dims"
    about = (x.kind, kind), name.removeprefix("_"), x.dims, tuple(sorted(over))
    shown = named(names, x.elements, results, *about)
    return vector_cost("Reduce_fwd", x, flops, moved, x, **shown)


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


@_of_reductions("max min")
def extreme(op: Operation) -> Cost:
    """`max` and `min`: of all, along a dimension (with indices), or of two tensors."""
    if op.tensor(1) is not None and not (len(op.dims) == 2 and op.dims[1] == (0,)):
        return elementwise(op, op.leading(2))
    return with_indices(op)


@_of_reductions("median")
def with_indices(op: Operation) -> Cost:
    """`median`, `max`, `min`: along a dimension they give the places of their results as well."""
    cost = reduction(op)
    if type(op.value(1)) is not int or op.types[1:2] != ("Scalar",):
        return cost
    indices = _INDEX_BYTES * cost.parameters["num_output_elems"]  # type: ignore[operator]  # a number here
    return replace(cost, bytes=cost.bytes + indices)


@_of_reductions("cumsum cumprod cumsum_ logcumsumexp cummax cummin", 0)
def scan(op: Operation, x: Tensor) -> Cost:
    """`cumsum` and its kind: as many results as elements; whole numbers become 64-bit."""
    moved = x.as_many(x.elements, "long int" if x.is_whole else op.scalar_type(2))
    return vector_cost("Reduce_fwd", x, x.elements, moved, x, shape=x.dims)


@_of_reductions("sort argsort topk", 0)
def ordering(op: Operation, x: Tensor) -> Cost:
    """`sort` and `topk`: at least the input, and values and indices of the result."""
    kept = x.elements
    if op.plain_name == "topk" and x.dims:
        length = _length_along(x, op.whole(2, -1))
        kept = x.elements // length * min(op.whole(1, length), length)
    compared = x.elements * max(1, math.ceil(math.log2(max(2, x.dims[-1] if x.dims else 1))))
    moved = kept * (x.item + _INDEX_BYTES)
    cost = vector_cost("Sort", x, compared, moved, x, shape=x.dims, k=kept)
    return replace(cost, bound_only=True)


@_of_reductions("equal", 0, 1)
def equal(_: Operation, a: Tensor, b: Tensor) -> Cost:
    """`equal`: two tensors read, one answer."""
    return vector_cost("Reduce_fwd", a, a.elements, 1, a, b)


#: Operations for each element, a convention: maximum, difference, exponential (8), sum, quotient.
_SOFTMAX_FLOPS = 12
_SOFTMAX_BACKWARD_FLOPS = 4
#: Sum, sum of squares (2), difference, product, scale, shift.
_NORM_FLOPS = 7
_NORM_BACKWARD_FLOPS = 11
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


def _normed(
    family: str, x: Tensor, flops: int, moved: int, *read: Tensor | None, **more: object
) -> Cost:
    """`flops`: for each element of `x`."""
    shown = {"op_shape": x.dims, "dtype_in": x.kind, "stride_input": x.strides, **more}
    return vector_cost(family, x, flops * x.elements, moved, *read, **shown)


@_of_norms("_softmax _log_softmax softmax log_softmax", 0)
def softmax(op: Operation, x: Tensor) -> Cost:
    """Reads the input, writes as much, in single precision where it is asked for."""
    if op.plain_name.startswith("_"):  # argument 3 says whether half becomes single precision
        item = max(x.item, 4) if op.value(2) is True else x.item
    else:
        item = x.as_many(1, op.scalar_type(2))
    return _normed("Softmax", x, _SOFTMAX_FLOPS, x.elements * item, x)


@_of_norms("_softmax_backward_data _log_softmax_backward_data", 0, 1)
def softmax_backward(op: Operation, grad: Tensor, result: Tensor) -> Cost:
    """Reads gradient and result, writes the gradient of the input."""
    moved = result.as_many(result.elements, op.scalar_type(3))
    return _normed("Softmax", result, _SOFTMAX_BACKWARD_FLOPS, moved, grad, result)


@_of_norms(" ".join(_FORWARD), 0)
def norm(op: Operation, x: Tensor) -> Cost:
    """Reads input, weight and bias, writes the result; statistics do not count."""
    weight, bias = _FORWARD[op.plain_name]
    scale = op.tensor(weight)
    shift = op.tensor(bias) if bias is not None else None
    more = {"has_bias": shift is not None, "is_affine": scale is not None}
    return _normed("Normalization", x, _NORM_FLOPS, x.written, x, scale, shift, **more)


@_of_norms(" ".join(_BACKWARD), 0, 1)
def norm_backward(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """Reads gradient, input and weight, writes the gradients that are wanted."""
    at, mask = _BACKWARD[op.plain_name]
    weight = op.tensor(at)
    wanted = op.value(mask)
    if not isinstance(wanted, list | tuple) or len(wanted) != 3:
        wanted = (True, True, True)
    moved = a.written if wanted[0] else 0
    if affine := weight is not None:
        moved += weight.read + (bool(wanted[1]) + bool(wanted[2])) * weight.written
    return _normed("Normalization", b, _NORM_BACKWARD_FLOPS, moved, a, b, is_affine=affine)


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
    result = known(matrices or None, "the recorded shapes are not those of a norm")[0]
    adds = "add" in op.plain_name
    same = [t for t in matrices if t.dims == result.dims]
    x = same[1] if len(same) > 1 + adds else result
    weights = [t for t in op.tensors if len(t.dims) == 1]
    moved = result.written + (2 * x.written if adds else 0)
    return _normed("Normalization", x, _NORM_FLOPS + adds, moved, x, *weights)
