"""Elementwise operations: each input read once with broadcasting, the result written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    broadcast,
    bytes_read,
    is_whole,
    of_libraries,
    promoted_type,
    short_type,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Operations for each element of the result, a convention: 1 for what one instruction does, about
#: as many as an approximation by a polynomial takes for the others. 1 for those not listed.
FLOPS_PER_ELEMENT: Final = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"), 8),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "atan2"), 10),
    **dict.fromkeys(("sigmoid", "silu", "softplus", "logit", "elu", "selu", "celu", "mish"), 10),
    **dict.fromkeys(("gelu", "erf", "erfc", "erfinv", "pow", "float_power"), 12),
    **dict.fromkeys(("gelu_backward", "silu_backward"), 16),
    **dict.fromkeys(("sigmoid_backward", "tanh_backward", "lerp", "addcmul", "addcdiv"), 3),
    **dict.fromkeys(("hardswish", "hardsigmoid", "hypot", "rms"), 4),
    **dict.fromkeys(("sqrt", "rsqrt", "reciprocal", "div", "remainder", "fmod"), 1),
}
_FLOATING = words(
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sigmoid erf erfc erfinv reciprocal logit lgamma digamma i0 sinc"
)
_KEEPING = words(
    "neg relu gelu silu elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus mish "
    "sign sgn floor ceil round trunc frac square bitwise_not nan_to_num threshold tril triu "
    "relu6 log_sigmoid_forward softshrink hardshrink conj_physical flip roll"
)
_TESTS = words("isnan isinf isfinite isneginf isposinf logical_not signbit")
_LIMITS = ["clamp", "clamp_min", "clamp_max"]
_ARITHMETIC = words(
    "add sub rsub mul maximum minimum fmin fmax remainder fmod floor_divide bitwise_and "
    "bitwise_or bitwise_xor copysign hypot pow lerp addcmul addcdiv threshold_backward "
    "sigmoid_backward tanh_backward gelu_backward silu_backward hardtanh_backward "
    "leaky_relu_backward elu_backward softplus_backward hardswish_backward "
    "hardsigmoid_backward mish_backward bitwise_left_shift bitwise_right_shift __lshift__ "
    "__rshift__ __and__ __or__ __xor__ xlogy"
)
_QUOTIENTS = ["div", "true_divide", "atan2"]
_COMPARISONS = words("eq ne lt le gt ge logical_and logical_or logical_xor isclose")
_THREE_INPUTS = ("lerp", "addcmul", "addcdiv", "softplus_backward")
_FILLS = ("fill_", "zero_")
_RANDOM = words("normal_ uniform_ random_ exponential_ bernoulli_ cauchy_ log_normal_ geometric_")


def elementwise(
    op: Operation, inputs: list[Tensor], kind: str | None = None, family: str | None = None
) -> Cost:
    """Read some inputs and write a result.

    `op`: the operation; in place, or with a tensor more than its inputs (`out=`), that tells the
    type of the result. `kind`: otherwise the type of the result; None: by promotion. `family`: what
    it is shown with; None: by the number of inputs with dimensions.
    """
    shape = broadcast([t.dims for t in inputs])
    if op.in_place:
        kind = inputs[0].kind
    elif len(op.tensors) > len(inputs):
        kind = op.tensors[-1].kind
    kind = kind or promoted_type(op, inputs)
    with_sizes = [t for t in inputs if t.dims]
    family = family or ("UnaryElementwise" if len(with_sizes) <= 1 else "BinaryElementwise")
    elements = math.prod(shape)
    return Cost(
        family=family,
        flops=elements * FLOPS_PER_ELEMENT.get(op.plain_name.rstrip("_"), 1),
        bytes=bytes_read(*inputs) + elements * ELEMENT_BYTES[kind],
        data_type=short_type(inputs[0].kind),
        parameters=_parameters(shape, with_sizes or inputs, kind),
    )


def _parameters(shape: tuple[int, ...], inputs: list[Tensor], kind: str) -> dict[str, object]:
    """What experts read; of operations with several inputs each of the first two."""
    if len(inputs) < 2:
        kinds, strides = (inputs[0].kind, kind), inputs[0].strides
        return {"op_shape": shape, "dtype_in_out": kinds, "stride_input": strides}
    a, b = inputs[:2]
    return {
        "shape_in1": a.dims,
        "shape_in2": b.dims,
        "dtype_in1_in2_out": (a.kind, b.kind, kind),
        "stride_input1": a.strides,
        "stride_input2": b.strides,
    }


def floating(op: Operation) -> Cost:
    """Functions whose result is floating point also for whole numbers."""
    inputs = op.leading(1)
    return elementwise(op, inputs, "float" if is_whole(inputs[0].kind) else None)


def keeping(op: Operation) -> Cost:
    """Functions that keep the type."""
    inputs = op.leading(1)
    return elementwise(op, inputs, inputs[0].kind)


def absolute(op: Operation) -> Cost:
    """`abs`: complex numbers become real."""
    inputs = op.leading(1)
    real = {"c10::complex<float>": "float", "c10::complex<double>": "double"}
    return elementwise(op, inputs, real.get(inputs[0].kind, inputs[0].kind))


def limits(op: Operation) -> Cost:
    """`clamp` and its kind: the limits may be tensors."""
    return elementwise(op, op.leading(3 if op.plain_name.rstrip("_") == "clamp" else 2))


def truth(op: Operation) -> Cost:
    """Tests of one input."""
    return elementwise(op, op.leading(1), "bool")


def comparison(op: Operation) -> Cost:
    """Tests of two inputs."""
    return elementwise(op, op.leading(2), "bool")


def arithmetic(op: Operation) -> Cost:
    """Two or three inputs; the type by promotion."""
    three = op.plain_name.rstrip("_") in _THREE_INPUTS
    return elementwise(op, op.leading(3 if three else 2))


def quotient(op: Operation) -> Cost:
    """Divisions: whole numbers become floating point, unless they are rounded."""
    inputs = op.leading(2)
    kind = promoted_type(op, inputs)
    return elementwise(op, inputs, "float" if is_whole(kind) and not op.value(2) else kind)


def where(op: Operation) -> Cost:
    """`where`: a condition and two choices."""
    choices = [t for i in (1, 2) if (t := op.tensor(i)) is not None]
    if not choices:
        raise NoModelError("the size of the result depends on the data")
    return elementwise(op, op.leading(3), promoted_type(op, choices), family="BinaryElementwise")


def masked_fill(op: Operation) -> Cost:
    """`masked_fill`: reads itself and the mask."""
    return elementwise(op, [op.need(0), op.need(1)], op.need(0).kind)


def copy(op: Operation) -> Cost:
    """`copy_`: reads the source, writes the target, each in its own type."""
    target, source = op.need(0), op.need(1)
    return Cost(
        family="UnaryElementwise",
        flops=0,
        bytes=target.written + source.read,
        data_type=short_type(source.kind),
        parameters=_parameters(target.dims, [source], target.kind)
        | {"stride_output": target.strides},
    )


def clone(op: Operation) -> Cost:
    """`clone` and its kind: as much is written as there is."""
    return _moved(op.need(0), op.need(0).kind)


def cast(op: Operation) -> Cost:
    """`_to_copy` and `to`: written in the type that is asked for."""
    return _moved(op.need(0), op.scalar_type(1) or op.need(0).kind)


def _moved(source: Tensor, kind: str) -> Cost:
    return Cost(
        family="UnaryElementwise",
        flops=0,
        bytes=source.read + source.elements * ELEMENT_BYTES[kind],
        data_type=short_type(source.kind),
        parameters=_parameters(source.dims, [source], kind),
    )


def fill(op: Operation) -> Cost:
    """Writes only."""
    target = op.need(0)
    return Cost("Fill", 0, target.written, short_type(target.kind))


def filled_result(op: Operation) -> Cost:
    """`arange` and its kind, which write the tensor given as `out=`."""
    if not op.tensors or not op.tensors[-1].elements:
        raise NoModelError("the size of the result is not recorded")
    target = op.tensors[-1]
    return Cost("Fill", 0, target.written, short_type(target.kind))


def random(op: Operation) -> Cost:
    """Random numbers in place: written only; some 10 operations each (Philox rounds)."""
    target = op.need(0)
    return Cost("RNG", 10 * target.elements, target.written, short_type(target.kind))


def dropout(op: Operation) -> Cost:
    """`native_dropout`: input, result, and a mask of truth values."""
    x = op.need(0)
    moved = x.read + x.written + x.elements
    return Cost("RNG", 12 * x.elements, moved, short_type(x.kind), parameters={"shape": x.dims})


def gated(op: Operation) -> Cost:
    """`glu`, `silu_and_mul` (with its result first): the halves of the input are multiplied."""
    x = max(op.leading(2), key=lambda tensor: tensor.elements)
    half = x.elements // 2
    out = next((t.item for t in op.leading(2) if t.elements == half), x.item)
    return Cost("UnaryElementwise", 12 * half, x.read + half * out, short_type(x.kind))


def rotary(op: Operation) -> Cost:
    """`rotary_embedding`: positions, Q, perhaps K, the size of a head, a cache of angles; in place.

    3 operations an element; only the first elements of a head are turned where angles are fewer.
    """
    positions, q, cache, head = op.need(0), op.need(1), op.need(4), op.whole(3)
    if not cache.dims or head <= 0:
        raise NoModelError("the size of a head is not recorded")
    both = q.elements + (op.need(2).elements if op.tensor(2) else 0)
    turned = both * min(cache.dims[-1], head) // head
    angles = min(positions.elements * cache.dims[-1], cache.elements) * cache.item
    moved = positions.read + angles + 2 * turned * q.item
    return Cost("BinaryElementwise", 3 * turned, moved, short_type(q.kind))


def aiters_rotary(op: Operation) -> Cost:
    """`rope_*_impl` of aiter: one result or two (`2c`), as many inputs, then angles.

    These are halves of what they turn if the first flag says so; as cosine and sine there are two
    tables of them, for an image four. What is not turned is copied.
    """
    count = 1 + ("_2c_" in op.name)
    inputs = [op.need(i) for i in range(count, 2 * count)]
    others = [t for i in range(2 * count, len(op.types)) if (t := op.tensor(i)) and t.dims]
    indices, tables = ([t for t in others if is_whole(t.kind) is is_it] for is_it in (True, False))
    if not tables or any(len(t.dims) < 3 for t in inputs):
        raise NoModelError("the recorded shapes are not those of a rotary embedding")
    flags = [op.value(i) for i in range(2 * count, len(op.concrete))]
    halves = next((flag for flag in flags if isinstance(flag, bool)), True)
    angles = sum(t.dims[-1] for t in tables) << halves
    angles >>= "_cached_" in op.name or "_2d_" in op.name
    rows = indices[0].elements if "_positions_" in op.name and indices else math.inf
    read = sum(int(min(t.elements, rows * t.dims[-1])) * t.item for t in tables)
    turned = sum(t.elements * min(angles, t.dims[-1]) // max(t.dims[-1], 1) for t in inputs)
    moved = sum(t.read + t.written for t in inputs) + read + bytes_read(*indices)
    return Cost("BinaryElementwise", 3 * turned, moved, short_type(inputs[0].kind))


def _both(
    names: Iterable[str], function: Callable[[Operation], Cost]
) -> dict[str, Callable[[Operation], Cost]]:
    """Operations and their forms in place."""
    return dict.fromkeys([n + tail for n in names for tail in ("", "_")], function)


MODELS = {
    **_both(_FLOATING, floating),
    **_both(_KEEPING, keeping),
    **_both(["abs"], absolute),
    **_both(_TESTS, truth),
    **_both(_LIMITS, limits),
    **_both(_ARITHMETIC, arithmetic),
    **_both(_QUOTIENTS, quotient),
    **_both(_COMPARISONS, comparison),
    **_both(["masked_fill"], masked_fill),
    "where": where,
    "copy_": copy,
    **dict.fromkeys(("clone", "contiguous"), clone),
    **dict.fromkeys(("_to_copy", "to"), cast),
    **dict.fromkeys(_FILLS, fill),
    **dict.fromkeys(("arange", "linspace", "range", "eye", "full", "randperm"), filled_result),
    **dict.fromkeys(_RANDOM, random),
    "native_dropout": dropout,
    "native_dropout_backward": arithmetic,
    "glu": gated,
    **of_libraries("silu_and_mul* gelu_and_mul* gelu_tanh_and_mul*", gated),
    **of_libraries("rotary_embedding* batched_rotary_embedding*", rotary),
    "aiter::rope_*": aiters_rotary,
}
