"""What moves elements and computes little: joining, picking, scattering, pooling, losses, Fourier.

Inputs are read once, results written once.
"""

from __future__ import annotations

import math

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    Models,
    NoModelError,
    Operation,
    Tensor,
    broadcast,
    bytes_read,
    vector_cost,
)

MODELS = Models()
_of = MODELS.of("movement")
_of_pooling = MODELS.of("pooling")
_INDEX_BYTES = ELEMENT_BYTES["long int"]


@_of("cat stack _cat concat concatenate")
def join(op: Operation) -> Cost:
    """`cat` and `stack`: all parts read, and written one behind the other."""
    parts = op.tensor_list(0)
    moved = bytes_read(*parts) + sum(part.written for part in parts)
    return vector_cost("Concatenation", parts[0], 0, moved, parts=len(parts))


def length_along(x: Tensor, dim: int) -> int:
    """How long a dimension is; 1 for one that a tensor has not, and where it is empty."""
    return max(1, x.dims[dim]) if -len(x.dims) <= dim < len(x.dims) else 1


def _picked(x: Tensor, read: int, elements: int, passes: int = 2, flops: int = 0) -> Cost:
    """So many bytes of indices and values, and passes over the elements that are picked."""
    moved = read + passes * elements * x.item
    return vector_cost("Indexing", x, flops, moved, shape=x.dims, picked=elements)


@_of("index_select")
def pick_rows(op: Operation) -> Cost:
    """`index_select`: the index, and each picked element read and written."""
    x, index = op.need(0), op.need(2)
    rows = x.elements // length_along(x, op.whole(1))
    return _picked(x, index.read, rows * index.elements)


@_of("gather")
def gather(op: Operation) -> Cost:
    """`gather`: an element for each element of the index."""
    x, index = op.need(0), op.need(2)
    return _picked(x, index.read, index.elements)


@_of("embedding")
def embedding(op: Operation) -> Cost:
    """`embedding`: a row of the table for each index; the table as a whole is not read."""
    table, index = op.need(0), op.need(1)
    if not table.dims:
        raise NoModelError("the recorded table is no matrix")
    return _picked(table, index.read, index.elements * table.dims[-1])


def _chosen(x: Tensor, indices: list[Tensor]) -> int:
    """How many elements a list of indices chooses."""
    positions = broadcast([i.dims for i in indices])
    return math.prod(positions) * math.prod(x.dims[len(indices) :])


@_of("index")
def index_by_list(op: Operation) -> Cost:
    """`index`: the indices are a list of tensors, which only newer profilers record."""
    x, indices = op.need(0), op.tensor_list(1, "long int")
    return _picked(x, bytes_read(*indices), _chosen(x, indices))


@_of("index_put_ _index_put_impl_")
def put_by_list(op: Operation) -> Cost:
    """`index_put_`: indices and values read, places written; with `accumulate` read before."""
    x, indices, values = op.need(0), op.tensor_list(1, "long int"), op.need(2)
    elements, adds = _chosen(x, indices), op.value(3) is True
    return _picked(x, bytes_read(*indices, values), elements, 1 + adds, elements * adds)


@_of(
    "scatter scatter_ scatter_add scatter_add_ scatter_reduce_ index_add_ index_add index_copy_"
    " index_fill_"
)
def scatter(op: Operation) -> Cost:
    """`scatter_` and its kind: index and source read, places written; adding reads them before."""
    x, index, source = op.need(0), op.need(2), op.tensor(3)
    adds = "add" in op.plain_name or "reduce" in op.plain_name
    touched = source.elements if source is not None and source.dims else index.elements
    read = min(source.read, touched * source.item) if source is not None else 0
    moved = index.read + read + (1 + adds) * touched * x.item
    if not op.in_place and not adds:  # the rest is copied
        moved += x.read + x.written - touched * x.item
    return vector_cost("Indexing", x, touched * adds, moved, shape=x.dims)


@_of("embedding_dense_backward")
def embedding_backward(op: Operation) -> Cost:
    """`embedding_dense_backward`: gradient and index read, the table's gradient written."""
    grad, index = op.need(0), op.need(1)
    if not grad.dims or op.value(2) is None:
        raise NoModelError("the size of the table is not recorded")
    table = op.whole(2) * grad.dims[-1] * grad.item
    return vector_cost("Indexing", grad, grad.elements, bytes_read(grad, index) + table)


@_of("masked_scatter_ channel_shuffle pixel_shuffle")
def two_passes(op: Operation) -> Cost:
    """The whole input read and as much written."""
    x = op.need(0)
    return vector_cost("Concatenation", x, 0, x.read + x.written, shape=x.dims)


@_of("repeat")
def repeated(op: Operation) -> Cost:
    """`repeat`: the input read, the result written."""
    x, times = op.need(0), op.wholes(1)
    if times is None:
        raise NoModelError("how often it is repeated is not recorded")
    return vector_cost("Concatenation", x, 0, x.read + x.written * math.prod(times), shape=x.dims)


def _pooled(x: Tensor, flops: int, moved: int, family: str = "Pooling") -> Cost:
    return vector_cost(family, x, flops, moved, shape=x.dims)


def _pool(op: Operation, dilation_at: int | None, ceil_at: int) -> Cost:
    """Input read; a result for each place of the window, with its index if the name says so."""
    x = op.need(0)
    kernel = op.wholes(1)
    if not kernel:
        raise NoModelError("the window is not recorded")
    n = len(kernel)
    told = (op.wholes(2) or kernel, op.wholes(3) or [0], op.wholes(dilation_at) or [1])
    stride, padding, dilation = (each * n if len(each) == 1 else each for each in told)
    up = op.value(ceil_at) is True
    elements = math.prod(x.dims[: len(x.dims) - n])
    for i, size in enumerate(x.dims[len(x.dims) - n :]):
        room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        elements *= (room + (stride[i] - 1 if up else 0)) // max(1, stride[i]) + 1
    item = x.item + (_INDEX_BYTES if "indices" in op.name else 0)
    return _pooled(x, elements * math.prod(kernel), x.read + elements * item)


@_of_pooling("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(op: Operation) -> Cost:
    """Input read; values written, and their indices where the operation gives them."""
    return _pool(op, 4, 5)


@_of_pooling("avg_pool1d avg_pool2d avg_pool3d")
def average_pool(op: Operation) -> Cost:
    """Input read, means written."""
    return _pool(op, None, 4)


_SIZED = "nearest1d nearest2d nearest3d linear1d bilinear2d bicubic2d trilinear3d"


@_of_pooling(" ".join(f"upsample_{kind}" for kind in _SIZED.split()))
@_of_pooling(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d"
    " adaptive_max_pool2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
def to_size(op: Operation) -> Cost:
    """Adaptive pooling and resampling to a size: input read, result written."""
    x, size = op.need(0), op.wholes(1)
    if not size:
        raise NoModelError("the size of the result is not recorded")
    elements = math.prod(x.dims[: len(x.dims) - len(size)]) * math.prod(size)
    return _pooled(x, max(elements, x.elements), x.read + elements * x.item)


@_of_pooling(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward"
    " avg_pool3d_backward _adaptive_avg_pool2d_backward adaptive_max_pool2d_backward"
)
def pool_backward(op: Operation) -> Cost:
    """Gradient read (and indices, where there are any), gradient of the input written."""
    grad, x = op.need(0), op.need(1)
    indices = [t for t in op.tensors[2:] if t.kind in ("long int", "long", "int")]
    return _pooled(x, grad.elements, bytes_read(grad, *indices) + x.written)


@_of_pooling(" ".join(f"upsample_{kind}_backward" for kind in _SIZED.split()))
def resample_backward(op: Operation) -> Cost:
    """Gradient read, gradient of the input written."""
    grad, size = op.need(0), op.wholes(2)
    if not size:
        raise NoModelError("the size of the input is not recorded")
    return _pooled(grad, grad.elements, grad.read + math.prod(size) * grad.item)


@_of_pooling("nll_loss_forward nll_loss2d_forward nll_loss")
def nll_loss(op: Operation) -> Cost:
    """One element a target is read; reduced to one result unless told otherwise."""
    x, target = op.need(0), op.need(1)
    results = target.elements if op.whole(3, 1) == 0 else 1
    moved = target.read + (target.elements + results + 1) * x.item
    return _pooled(x, target.elements, moved, "Loss")


@_of_pooling("nll_loss_backward nll_loss2d_backward")
def nll_loss_backward(op: Operation) -> Cost:
    """Targets read, one element a target written; another operation zeroes the rest."""
    grad, x, target = op.need(0), op.need(1), op.need(2)
    moved = bytes_read(grad, target) + target.elements * x.item
    return _pooled(x, target.elements, moved, "Loss")


_PAIRS = "mse_loss smooth_l1_loss huber_loss l1_loss binary_cross_entropy"


@_of_pooling(_PAIRS)
def pair_loss(op: Operation) -> Cost:
    """Input and target read; a result, or one for each element."""
    x, target = op.need(0), op.need(1)
    results = x.elements if op.whole(2, 1) == 0 else 1
    return _pooled(x, 3 * x.elements, bytes_read(x, target) + results * x.item, "Loss")


@_of_pooling(" ".join(f"{name}_backward" for name in _PAIRS.split()))
def pair_loss_backward(op: Operation) -> Cost:
    """Gradient, input and target read, the gradient of the input written."""
    grad, x, target = op.need(0), op.need(1), op.need(2)
    return _pooled(x, 3 * x.elements, bytes_read(grad, x, target) + x.written, "Loss")


@MODELS.of("fourier")("_fft_c2c _fft_r2c _fft_c2r")
def transform(op: Operation) -> Cost:
    """Over the given dimensions: 5·N·log2 N operations for N points (the usual count)."""
    x = op.need(0)
    dims = op.wholes(1) or [len(x.dims) - 1]
    points = math.prod(x.dims[d] for d in dims if -len(x.dims) <= d < len(x.dims))
    real = op.plain_name != "_fft_c2c"
    flops = math.ceil(5 * x.elements * math.log2(max(points, 2)) / (2 if real else 1))
    result, item = x.elements, x.item
    if real:
        last = x.dims[dims[-1]]
        rows = x.elements // max(1, last)
        if op.plain_name == "_fft_r2c":
            result, item = rows * (last // 2 + 1) if op.value(3) is True else result, 2 * item
        else:
            result, item = rows * (op.whole(3) or 2 * (last - 1)), item // 2
    return vector_cost("FFT", x, flops, x.read + result * item, shape=x.dims)
