"""Operations that move elements: concatenation, indexing, scattering. Inputs are read once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracelens_ext.roofline.operation import (
    Models,
    broadcast,
    require,
    required,
    vector_cost,
)

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()


@MODELS.add("cat", "stack", "_cat", "concat", "concatenate")
def join(operation: Operation) -> Cost:
    """`cat`, `stack`: reads all parts and writes them one behind the other."""
    parts = operation.tensor_list(0)
    written = sum(part.written for part in parts)
    return vector_cost("Concatenation", parts[0], 0, written, *parts, parts=len(parts))


def length_along(tensor: Tensor, dimension: int) -> int:
    """Return the size of a dimension; 1 if the tensor lacks the dimension or it is empty."""
    if -len(tensor.dims) <= dimension < len(tensor.dims):
        return max(1, tensor.dims[dimension])
    return 1


def _picked(
    source: Tensor, elements: int, *read: Tensor | None, passes: int = 2, flops: int = 0
) -> Cost:
    """Return the cost of selecting elements of a tensor.

    Args:
        source: the tensor whose elements are selected.
        elements: how many are selected.
        read: tensors that are read once, such as the indices.
        passes: how often each selected element crosses the memory: read and written are 2.
        flops: floating point operations.
    """
    moved = passes * elements * source.element_bytes
    return vector_cost(
        "Indexing", source, flops, moved, *read, shape=source.dims, picked=elements
    )


@MODELS.add("index_select", tensors=(0, 2))
def pick_rows(operation: Operation, source: Tensor, index: Tensor) -> Cost:
    """`index_select`: reads the indices, and reads and writes each selected element."""
    row_elements = source.elements // length_along(source, operation.whole(1))
    return _picked(source, row_elements * index.elements, index)


@MODELS.add("gather", tensors=(0, 2))
def gather(_: Operation, source: Tensor, index: Tensor) -> Cost:
    """`gather`: selects an element for each index."""
    return _picked(source, index.elements, index)


@MODELS.add("embedding", tensors=(0, 1))
def embedding(_: Operation, table: Tensor, index: Tensor) -> Cost:
    """`embedding`: selects a row of the table for each index; other rows are not read."""
    require(table.dims, "the recorded table is not a matrix")
    return _picked(table, index.elements * table.dims[-1], index)


def _elements_chosen(source: Tensor, indices: list[Tensor]) -> int:
    """Return how many elements a list of index tensors selects.

    The n index tensors broadcast to positions in the first n dimensions; the other dimensions are
    selected as a whole.
    """
    positions = broadcast([index.dims for index in indices])
    elements_of_position = math.prod(source.dims[len(indices) :])
    return math.prod(positions) * elements_of_position


@MODELS.add("index", tensors=(0,))
def index_by_list(operation: Operation, source: Tensor) -> Cost:
    """`index`: selects by a list of index tensors, which only newer profilers record."""
    indices = operation.tensor_list(1, "long int")
    return _picked(source, _elements_chosen(source, indices), *indices)


@MODELS.add("index_put_", "_index_put_impl_", tensors=(0,))
def put_by_list(operation: Operation, target: Tensor) -> Cost:
    """`index_put_`: reads indices and values, writes the selected elements.

    With `accumulate`, the selected elements are read and added to, too.
    """
    indices = operation.tensor_list(1, "long int")
    values = operation.need(2)
    elements = _elements_chosen(target, indices)
    accumulates = operation.value(3) is True
    if accumulates:
        return _picked(target, elements, *indices, values, passes=2, flops=elements)
    return _picked(target, elements, *indices, values, passes=1)


@MODELS.add(
    "scatter",
    "scatter_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce_",
    "index_add_",
    "index_add",
    "index_copy_",
    "index_fill_",
    tensors=(0, 2),
)
def scatter(operation: Operation, target: Tensor, index: Tensor) -> Cost:
    """`scatter_` and similar operations: reads indices and source, writes selected elements.

    An operation that adds or reduces also reads the selected elements. One that is not in place
    also copies the elements that are not selected.
    """
    source = operation.tensor(3)
    adds = "add" in operation.plain_name or "reduce" in operation.plain_name
    touched = index.elements
    if source is not None and source.dims:
        touched = source.elements
    moved = touched * target.element_bytes
    if source is not None:
        moved += min(source.read, touched * source.element_bytes)
    if adds:
        moved += touched * target.element_bytes
    elif not operation.in_place:
        moved += target.read + target.written - touched * target.element_bytes
    flops = touched if adds else 0
    return vector_cost("Indexing", target, flops, moved, index, shape=target.dims)


@MODELS.add("embedding_dense_backward", tensors=(0, 1))
def embedding_backward(operation: Operation, gradient: Tensor, index: Tensor) -> Cost:
    """`embedding_dense_backward`: reads gradient and indices, writes the table's gradient."""
    has_rows = operation.value(2) is not None
    require(has_rows and gradient.dims, "the size of the table is not recorded")
    rows = operation.whole(2)
    row_size = gradient.dims[-1]
    table_bytes = gradient.bytes_of(rows * row_size)
    flops = gradient.elements
    return vector_cost("Indexing", gradient, flops, table_bytes, gradient, index)


@MODELS.add("masked_scatter_", "channel_shuffle", "pixel_shuffle", tensors=(0,))
def two_passes(_: Operation, tensor: Tensor) -> Cost:
    """`pixel_shuffle` and similar operations: reads the input, writes as many elements."""
    return vector_cost(
        "Concatenation", tensor, 0, tensor.written, tensor, shape=tensor.dims
    )


@MODELS.add("repeat", tensors=(0,))
def repeated(operation: Operation, tensor: Tensor) -> Cost:
    """`repeat`: reads the input once, writes it as often as the arguments say."""
    times = required(operation.wholes(1), "the number of repetitions is not recorded")
    written = tensor.written * math.prod(times)
    return vector_cost("Concatenation", tensor, 0, written, tensor, shape=tensor.dims)
