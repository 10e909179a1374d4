"""Reductions and scans: the input read once, one result for each place that is left."""

from __future__ import annotations

import math
from dataclasses import replace

from tracelens_ext.roofline.elementwise import elementwise
from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    Operation,
    bytes_read,
    is_whole,
    short_type,
    words,
)

_INDEX_BYTES = ELEMENT_BYTES["long int"]
_REDUCTIONS = words(
    "sum mean prod amax amin argmax argmin any all nansum nanmean logsumexp std var std_mean "
    "var_mean norm linalg_norm linalg_vector_norm median count_nonzero"
)
#: Where a `dtype` of the result is: with and without dimensions.
_TYPE_AT = {"sum": (3, 1), "mean": (3, 1), "nansum": (3, 1), "prod": (3, 1)}


def _over(op: Operation, rank: int) -> set[int]:
    """The dimensions that go."""
    name = op.plain_name
    at = 2 if "norm" in name else 1
    said = at < len(op.types) and op.types[at] in ("Scalar", "ScalarList")
    dim = op.value(at) if said else None
    if isinstance(dim, bool) or (
        name in ("std", "var", "std_mean", "var_mean") and type(dim) is int
    ):
        dim = None  # `unbiased`, or `correction`
    if type(dim) is int:
        dim = [dim]
    dims = dim if isinstance(dim, list | tuple) and dim else range(rank)
    return {d % max(1, rank) for d in dims if type(d) is int}


def reduction(op: Operation) -> Cost:
    """`sum` and its kind: over all dimensions unless some are named."""
    name, x = op.plain_name, op.need(0)
    over = _over(op, len(x.dims))
    results = math.prod(n for i, n in enumerate(x.dims) if i not in over)
    kind = _result_type(op, name, x.kind, named=len(over) < len(x.dims) or _names_dims(op))
    written = results * ELEMENT_BYTES[kind] * (2 if name.endswith("_mean") else 1)
    return Cost(
        family="Reduce_fwd",
        flops=x.elements * (2 if "norm" in name or name.startswith(("std", "var")) else 1),
        bytes=x.read + written,
        data_type=short_type(x.kind),
        parameters={
            "num_input_elems": x.elements,
            "num_output_elems": results,
            "dtype_in_out": (x.kind, kind),
            "reduce_type": name.removeprefix("_"),
            "op_shape": x.dims,
            "dims": tuple(sorted(over)),
        },
    )


def _names_dims(op: Operation) -> bool:
    """Whether dimensions are an argument of the operation, all of them though they be."""
    return (len(op.types) > 1 and op.types[1] == "ScalarList") or type(op.value(1)) is int


def _result_type(op: Operation, name: str, kind: str, *, named: bool) -> str:
    if name in ("any", "all"):
        return "bool"
    if name.startswith("arg") or name == "count_nonzero":
        return "long int"
    if name == "linalg_vector_norm":
        return op.scalar_type(4) or kind
    if name in _TYPE_AT and (asked := op.scalar_type(_TYPE_AT[name][0 if named else 1])):
        return asked
    if is_whole(kind):
        return {"sum": "long int", "prod": "long int", "nansum": "long int"}.get(
            name, "float" if name == "logsumexp" else kind
        )
    return kind


def extreme(op: Operation) -> Cost:
    """`max` and `min`: of all, along a dimension (with indices), or of two tensors."""
    if op.tensor(1) is not None and not (len(op.dims) == 2 and op.dims[1] == (0,)):
        return elementwise(op, op.leading(2))
    return with_indices(op)


def with_indices(op: Operation) -> Cost:
    """`median`, `max`, `min`: along a dimension they give the places of their results as well."""
    cost = reduction(op)
    if type(op.value(1)) is not int or op.types[1:2] != ("Scalar",):
        return cost
    indices = _INDEX_BYTES * cost.parameters["num_output_elems"]  # type: ignore[operator]  # a number here
    return replace(cost, bytes=cost.bytes + indices)


def scan(op: Operation) -> Cost:
    """`cumsum` and its kind: as many results as elements; whole numbers become 64-bit."""
    x = op.need(0)
    item = _INDEX_BYTES if is_whole(x.kind) else ELEMENT_BYTES[op.scalar_type(2) or x.kind]
    return Cost(
        "Reduce_fwd",
        x.elements,
        x.read + x.elements * item,
        short_type(x.kind),
        parameters={"shape": x.dims},
    )


def ordering(op: Operation) -> Cost:
    """`sort` and `topk`: at least the input, and values and indices of the result."""
    x = op.need(0)
    kept = x.elements
    if op.plain_name == "topk" and x.dims:
        dim = op.whole(2, -1)
        length = x.dims[dim] if -len(x.dims) <= dim < len(x.dims) else 1
        kept = x.elements // max(1, length) * min(op.whole(1, length), length)
    compared = x.elements * max(1, math.ceil(math.log2(max(2, x.dims[-1] if x.dims else 1))))
    return Cost(
        "Sort",
        compared,
        x.read + kept * (x.item + _INDEX_BYTES),
        short_type(x.kind),
        parameters={"shape": x.dims, "k": kept},
        bound_only=True,
    )


def equal(op: Operation) -> Cost:
    """`equal`: two tensors read, one answer."""
    a, b = op.need(0), op.need(1)
    return Cost("Reduce_fwd", a.elements, bytes_read(a, b) + 1, short_type(a.kind))


MODELS = {
    **dict.fromkeys(_REDUCTIONS, reduction),
    **dict.fromkeys(("max", "min"), extreme),
    "median": with_indices,
    **dict.fromkeys(("cumsum", "cumprod", "cumsum_", "logcumsumexp", "cummax", "cummin"), scan),
    **dict.fromkeys(("sort", "argsort", "topk"), ordering),
    "equal": equal,
}
