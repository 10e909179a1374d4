"""Rotary embeddings: the elements of Q and K are turned by the angles of their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import Models, require, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()

#: Floating point operations for each element that is turned.
_ROTARY_FLOPS: Final = 3


@MODELS.add(
    "rotary_embedding*", "batched_rotary_embedding*", tensors=(0, 1, 4), engines=True
)
def rotary(
    operation: Operation, positions: Tensor, query: Tensor, cache: Tensor
) -> Cost:
    """`rotary_embedding`: turns Q and K in place by the angles of their positions.

    The arguments are positions, Q, K or nothing, the size of a head, and a table of angles. An
    element that is turned takes 3 operations. With fewer angles than elements in a head, only the
    first elements of the head are turned.
    """
    head_size = operation.whole(3)
    require(cache.dims and head_size > 0, "the size of a head is not recorded")
    elements = query.elements
    key = operation.tensor(2)
    if key is not None:
        elements += key.elements
    angles_of_position = cache.dims[-1]
    turned_of_head = min(angles_of_position, head_size)
    turned = elements * turned_of_head // head_size
    angles = min(positions.elements * angles_of_position, cache.elements)
    read_and_written = query.bytes_of(2 * turned)
    moved = cache.bytes_of(angles) + read_and_written
    flops = _ROTARY_FLOPS * turned
    return vector_cost("BinaryElementwise", query, flops, moved, positions)


@MODELS.add("aiter::rope_*")
def aiters_rotary(operation: Operation) -> Cost:
    """`rope_*_impl` of aiter: turns one tensor, or two (`2c` in the name), by tables of angles.

    The arguments are the results, as many inputs, and the tables of angles: one table, or two for
    cosine and sine, or four for an image. Elements that no angle turns are copied.
    """
    name = operation.name
    results_count = 2 if "_2c_" in name else 1
    first_after_inputs = 2 * results_count
    inputs = [
        operation.need(position)
        for position in range(results_count, first_after_inputs)
    ]
    indices, tables = _indices_and_tables(operation, first_after_inputs)
    fits = tables and all(len(tensor.dims) > 2 for tensor in inputs)
    require(fits, "the recorded shapes do not match a rotary embedding")
    turned_of_head = sum(table.dims[-1] for table in tables)
    if _angle_turns_two_elements(operation, first_after_inputs):
        turned_of_head = 2 * turned_of_head
    has_cosine_and_sine = "_cached_" in name or "_2d_" in name
    if has_cosine_and_sine:
        turned_of_head = turned_of_head // 2
    moved = sum(tensor.written for tensor in inputs)
    for table in tables:
        elements = table.elements
        if "_positions_" in name and indices:
            elements = min(elements, indices[0].elements * table.dims[-1])
        moved += elements * table.element_bytes
    turned = 0
    for tensor in inputs:
        size = tensor.dims[-1]
        turned += tensor.elements * min(turned_of_head, size) // max(size, 1)
    flops = _ROTARY_FLOPS * turned
    return vector_cost("BinaryElementwise", inputs[0], flops, moved, *inputs, *indices)


class _RotaryTensors(NamedTuple):
    """The tensors behind the inputs of a rotary embedding."""

    indices: list[Tensor]  #: tensors of whole numbers
    tables: list[Tensor]  #: tensors of angles, or of their cosines and sines


def _indices_and_tables(operation: Operation, first: int) -> _RotaryTensors:
    """Return the tensors with dimensions from the position `first` on."""
    indices = []
    tables = []
    for position in range(first, len(operation.types)):
        tensor = operation.tensor(position)
        if tensor is None or not tensor.dims:
            continue
        if tensor.is_whole:
            indices.append(tensor)
        else:
            tables.append(tensor)
    return _RotaryTensors(indices, tables)


def _angle_turns_two_elements(operation: Operation, first: int) -> bool:
    """Return whether each angle is stored once for the two elements that it turns.

    The first flag from the position `first` on says so; without a flag it is assumed.
    """
    for position in range(first, len(operation.concrete)):
        flag = operation.value(position)
        if isinstance(flag, bool):
            return flag
    return True
