"""Operations on lists of tensors: `_foreach_*`, and the steps of fused optimizers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.elementwise import FLOPS_PER_ELEMENT
from tracelens_ext.roofline.operation import Models, require, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
#: Floating point operations for each parameter in a step of an optimizer, by convention.
_STEP_FLOPS: Final = {"adam": 18, "adamw": 20, "sgd": 4, "adagrad": 8}
_FOREACH: Final = (
    "add",
    "sub",
    "mul",
    "div",
    "addcmul",
    "addcdiv",
    "lerp",
    "sqrt",
    "rsqrt",
    "neg",
    "exp",
    "log",
    "abs",
    "reciprocal",
    "pow",
    "maximum",
    "minimum",
    "clamp_min",
    "clamp_max",
    "sign",
    "zero",
    "copy",
    "norm",
    "sigmoid",
    "tanh",
)


def _tensor_lists(operation: Operation) -> list[list[Tensor]]:
    """Return the arguments that are lists of tensors.

    A step of an optimizer has the lists of parameters, gradients, and states.

    Raises:
        NoModelError: no list is recorded.
    """
    lists = []
    for position, kind in enumerate(operation.types):
        is_recorded = position < len(operation.dims) and operation.dims[position]
        if kind == "TensorList" and is_recorded:
            lists.append(operation.tensor_list(position))
    require(lists, "the tensors of a list are not recorded")
    return lists


def _cost_of_lists(
    first: list[Tensor], flops_of_element: int, moved: int, *read: Tensor
) -> Cost:
    """Return the cost of an operation on lists.

    Args:
        first: the first list.
        flops_of_element: floating point operations for each element of the first list.
        moved: bytes that cross the memory, besides those of `read`.
        read: tensors that are read once.
    """
    elements = sum(tensor.elements for tensor in first)
    return vector_cost(
        "Optimizer",
        first[0],
        elements * flops_of_element,
        moved,
        *read,
        tensors=len(first),
        elements=elements,
    )


@MODELS.add(
    *(f"_foreach_{name}" for name in _FOREACH),
    *(f"_foreach_{name}_" for name in _FOREACH),
)
def foreach(operation: Operation) -> Cost:
    """`_foreach_*`: reads all lists and writes as many elements as the first list has.

    `zero` reads nothing, `copy` does not read its target, and `norm` writes a number per tensor.
    """
    lists = _tensor_lists(operation)
    all_are_recorded = len(lists) >= operation.types.count("TensorList")
    require(all_are_recorded, "the tensors of a list are not recorded")
    first = lists[0]
    name = operation.plain_name.removeprefix("_foreach_").rstrip("_")
    read_lists = lists
    flops_of_element = FLOPS_PER_ELEMENT.get(name, 1)
    if name == "zero":
        read_lists = []
        flops_of_element = 0
    elif name == "copy":
        read_lists = lists[1:]
        flops_of_element = 0
    if name == "norm":
        bytes_of_number = first[0].element_bytes
        written = len(first) * bytes_of_number
    else:
        written = sum(tensor.written for tensor in first)
    read_tensors = chain.from_iterable(read_lists)
    return _cost_of_lists(first, flops_of_element, written, *read_tensors)


@MODELS.add("_amp_foreach_non_finite_check_and_unscale_")
def unscale(operation: Operation) -> Cost:
    """`_amp_foreach_non_finite_check_and_unscale_`: reads and writes the gradients."""
    gradients = _tensor_lists(operation)[0]
    elements = sum(tensor.elements for tensor in gradients)
    written = sum(tensor.written for tensor in gradients)
    flops = 2 * elements
    return vector_cost("Optimizer", gradients[0], flops, written, *gradients)


@MODELS.add("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
def fused_step(operation: Operation) -> Cost:
    """`_fused_adam_` and similar steps: reads all lists, writes parameters and states.

    The second list has the gradients, which are only read.
    """
    lists = _tensor_lists(operation)
    parameters = lists[0]
    states = lists[2:]
    written = 0
    for tensor in chain(parameters, *states):
        is_step_counter = not tensor.dims
        if not is_step_counter:
            written += tensor.written
    flops = _STEP_FLOPS[operation.plain_name.removeprefix("_fused_").rstrip("_")]
    return _cost_of_lists(parameters, flops, written, *chain(*lists))
