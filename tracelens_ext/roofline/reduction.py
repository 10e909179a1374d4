"""Reductions, scans and sorting. Inputs are read once, results written once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.element_types import is_whole
from tracelens_ext.roofline.elementwise import elementwise
from tracelens_ext.roofline.movement import length_along
from tracelens_ext.roofline.operation import Models, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
_INDEX_BYTES: Final = 8
_SUMS: Final = ("sum", "prod", "nansum")


def _reduced_dimensions(operation: Operation, rank: int) -> set[int]:
    """Return the dimensions that a reduction reduces, without negative numbers."""
    name = operation.plain_name
    position = 2 if "norm" in name else 1
    dimension = None
    if operation.types[position : position + 1] in (("Scalar",), ("ScalarList",)):
        dimension = operation.value(position)
    # A single number is the dimension, but in `std` and `var` it is the correction.
    is_correction = name.removesuffix("_mean") in ("std", "var")
    if type(dimension) is int and not is_correction:
        dimension = [dimension]
    if not isinstance(dimension, list | tuple) or not dimension:
        return set(range(rank))
    return {number % max(1, rank) for number in dimension if type(number) is int}


@MODELS.add(
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "any",
    "all",
    "nansum",
    "nanmean",
    "logsumexp",
    "std",
    "var",
    "std_mean",
    "var_mean",
    "norm",
    "linalg_norm",
    "linalg_vector_norm",
    "count_nonzero",
    tensors=(0,),
)
def reduction(operation: Operation, inputs: Tensor) -> Cost:
    """`sum` and similar operations: reduces the given dimensions, or all without any."""
    name = operation.plain_name
    reduced = _reduced_dimensions(operation, len(inputs.dims))
    results = 1
    for dimension, size in enumerate(inputs.dims):
        if dimension not in reduced:
            results *= size
    has_dimensions = (
        operation.types[1:2] == ("ScalarList",) or type(operation.value(1)) is int
    )
    names_dimensions = has_dimensions or len(reduced) < len(inputs.dims)
    result_type = _result_type(
        operation, inputs.kind, names_dimensions=names_dimensions
    )
    flops = inputs.elements
    if "norm" in name or name.startswith(("std", "var")):
        flops = 2 * inputs.elements
    written = inputs.bytes_of(results, result_type)
    if name.endswith("_mean"):
        written = 2 * written  # the mean is a second result
    return vector_cost(
        "Reduce_fwd",
        inputs,
        flops,
        written,
        inputs,
        num_input_elems=inputs.elements,
        num_output_elems=results,
        dtype_in_out=(inputs.kind, result_type),
        reduce_type=name.removeprefix("_"),
        op_shape=inputs.dims,
        dims=tuple(sorted(reduced)),
    )


def _result_type(operation: Operation, kind: str, *, names_dimensions: bool) -> str:
    """Return the type of the result.

    Args:
        operation: the reduction.
        kind: the type of its input.
        names_dimensions: True if the dimensions are an argument, even if it lists all of them.
    """
    name = operation.plain_name
    if name in ("any", "all"):
        return "bool"
    if name.startswith("arg") or name == "count_nonzero":
        return "long int"
    chosen_type = _chosen_type(operation, names_dimensions=names_dimensions)
    if chosen_type is not None:
        return chosen_type
    if not is_whole(kind) or name == "linalg_vector_norm":
        return kind
    if name in _SUMS:
        return "long int"
    return "float" if name == "logsumexp" else kind


def _chosen_type(operation: Operation, *, names_dimensions: bool) -> str | None:
    """Return the type of the result that a `dtype` argument names; None without one."""
    name = operation.plain_name
    if name == "linalg_vector_norm":
        return operation.scalar_type(4)
    if name in _SUMS or name == "mean":
        position = 3 if names_dimensions else 1
        return operation.scalar_type(position)
    return None


@MODELS.add("max", "min")
def extreme(operation: Operation) -> Cost:
    """`max`, `min`: of all elements, along a dimension (with indices), or of two tensors."""
    has_second = operation.tensor(1) is not None
    is_last = len(operation.dims) == 2
    second_is_empty = is_last and operation.dims[1] == (0,)
    if has_second and not second_is_empty:
        inputs = operation.leading(2)
        return elementwise(operation, inputs)
    return with_indices(operation)


@MODELS.add("median")
def with_indices(operation: Operation) -> Cost:
    """`median`, `max`, `min`: along a dimension they also write the indices of their results."""
    cost = reduction(operation)
    results = cost.parameters["num_output_elems"]
    dimension = operation.value(1)
    is_scalar = operation.types[1:2] == ("Scalar",)
    is_along_dimension = is_scalar and type(dimension) is int
    if not is_along_dimension or not isinstance(results, int):
        return cost
    indices = _INDEX_BYTES * results
    return replace(cost, bytes=cost.bytes + indices)


@MODELS.add(
    "cumsum", "cumprod", "cumsum_", "logcumsumexp", "cummax", "cummin", tensors=(0,)
)
def scan(operation: Operation, inputs: Tensor) -> Cost:
    """`cumsum` and similar operations: a result for each element.

    Whole numbers become 64-bit numbers.
    """
    result_type = "long int" if inputs.is_whole else operation.scalar_type(2)
    written = inputs.bytes_of(inputs.elements, result_type)
    return vector_cost(
        "Reduce_fwd", inputs, inputs.elements, written, inputs, shape=inputs.dims
    )


@MODELS.add("sort", "argsort", "topk", tensors=(0,))
def ordering(operation: Operation, inputs: Tensor) -> Cost:
    """`sort`, `topk`: reads at least the input, writes values and indices of the result."""
    results = inputs.elements
    if operation.plain_name == "topk" and inputs.dims:
        length = length_along(inputs, operation.whole(2, -1))
        results_of_row = min(operation.whole(1, length), length)
        rows = inputs.elements // length
        results = rows * results_of_row
    last_size = inputs.dims[-1] if inputs.dims else 1
    comparisons_of_element = math.ceil(math.log2(max(2, last_size)))
    flops = inputs.elements * comparisons_of_element
    bytes_of_result = inputs.element_bytes + _INDEX_BYTES
    written = results * bytes_of_result
    cost = vector_cost(
        "Sort", inputs, flops, written, inputs, shape=inputs.dims, k=results
    )
    return replace(cost, bound_only=True)


@MODELS.add("equal", tensors=(0, 1))
def equal(_: Operation, first: Tensor, second: Tensor) -> Cost:
    """`equal`: reads two tensors, writes one truth value."""
    return vector_cost("Reduce_fwd", first, first.elements, 1, first, second)
