"""What moves elements and computes nothing: lists joined, rows picked, scattered, embedded."""

from __future__ import annotations

import math

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    broadcast,
    bytes_read,
    short_type,
)

_INDEX_BYTES = ELEMENT_BYTES["long int"]


def _moved(family: str, moved: int, kind: str, flops: int = 0, **parameters: object) -> Cost:
    return Cost(family, flops, moved, short_type(kind), parameters=parameters)


def join(op: Operation) -> Cost:
    """`cat` and `stack`: all parts read, and written one behind the other."""
    parts = op.tensor_list(0)
    moved = bytes_read(*parts) + sum(part.written for part in parts)
    return _moved("Concatenation", moved, parts[0].kind, parts=len(parts))


def pick_rows(op: Operation) -> Cost:
    """`index_select`: the index, and each picked element read and written."""
    x, index = op.need(0), op.need(2)
    dim = op.whole(1)
    length = x.dims[dim] if -len(x.dims) <= dim < len(x.dims) else 1
    return _picked(x, index, x.elements // max(1, length) * index.elements)


def gather(op: Operation) -> Cost:
    """`gather`: an element for each element of the index."""
    x, index = op.need(0), op.need(2)
    return _picked(x, index, index.elements)


def embedding(op: Operation) -> Cost:
    """`embedding`: a row of the table for each index; the table as a whole is not read."""
    table, index = op.need(0), op.need(1)
    if not table.dims:
        raise NoModelError("the recorded table is no matrix")
    return _picked(table, index, index.elements * table.dims[-1])


def _picked(x: Tensor, index: Tensor, elements: int) -> Cost:
    moved = index.read + 2 * elements * x.item
    return _moved("Indexing", moved, x.kind, shape=x.dims, picked=elements)


def index_by_list(op: Operation) -> Cost:
    """`index`: the indices are a list of tensors, which only newer profilers record."""
    x, indices = op.need(0), op.tensor_list(1, "long int")
    positions = broadcast([i.dims for i in indices])
    elements = math.prod(positions) * math.prod(x.dims[len(indices) :])
    moved = bytes_read(*indices) + 2 * elements * x.item
    return _moved("Indexing", moved, x.kind, shape=x.dims, picked=elements)


def put_by_list(op: Operation) -> Cost:
    """`index_put_`: indices and values read, places written; with `accumulate` read before."""
    x, indices, values = op.need(0), op.tensor_list(1, "long int"), op.need(2)
    positions = broadcast([i.dims for i in indices])
    elements = math.prod(positions) * math.prod(x.dims[len(indices) :])
    passes = 2 if op.value(3) is True else 1
    moved = bytes_read(*indices, values) + passes * elements * x.item
    flops = elements if passes == 2 else 0
    return _moved("Indexing", moved, x.kind, flops, shape=x.dims, picked=elements)


def scatter(op: Operation) -> Cost:
    """`scatter_` and its kind: index and source read, places written; adding reads them before."""
    x, index, source = op.need(0), op.need(2), op.tensor(3)
    adds = "add" in op.plain_name or "reduce" in op.plain_name
    touched = source.elements if source is not None and source.dims else index.elements
    read = min(bytes_read(source), touched * source.item) if source is not None else 0
    moved = index.read + read + (2 if adds else 1) * touched * x.item
    if not op.in_place and not adds:  # the rest is copied
        moved += x.read + x.written - touched * x.item
    return _moved("Indexing", moved, x.kind, touched if adds else 0, shape=x.dims)


def embedding_backward(op: Operation) -> Cost:
    """`embedding_dense_backward`: gradient and index read, the table's gradient written."""
    grad, index = op.need(0), op.need(1)
    if not grad.dims or op.value(2) is None:
        raise NoModelError("the size of the table is not recorded")
    table = op.whole(2) * grad.dims[-1] * grad.item
    return _moved("Indexing", bytes_read(grad, index) + table, grad.kind, grad.elements)


def two_passes(op: Operation) -> Cost:
    """The whole input read and as much written."""
    x = op.need(0)
    return _moved("Concatenation", x.read + x.written, x.kind, shape=x.dims)


def repeated(op: Operation) -> Cost:
    """`repeat`: the input read, the result written."""
    x, times = op.need(0), op.wholes(1)
    if times is None:
        raise NoModelError("how often it is repeated is not recorded")
    return _moved("Concatenation", x.read + x.written * math.prod(times), x.kind, shape=x.dims)


MODELS = {
    **dict.fromkeys(("cat", "stack", "_cat", "concat", "concatenate"), join),
    "index_select": pick_rows,
    "gather": gather,
    "embedding": embedding,
    "embedding_dense_backward": embedding_backward,
    "index": index_by_list,
    **dict.fromkeys(("index_put_", "_index_put_impl_"), put_by_list),
    **dict.fromkeys(
        (
            *("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce_"),
            *("index_add_", "index_add", "index_copy_", "index_fill_"),
        ),
        scatter,
    ),
    **dict.fromkeys(("masked_scatter_", "channel_shuffle", "pixel_shuffle"), two_passes),
    "repeat": repeated,
}
