"""Elementwise operations: each input read once with broadcasting, the result written once.

Also such work over lists of tensors (`_foreach_*`, fused optimizers), and Triton kernels of
`torch.compile`: a bound from the tensors they were given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import Models, broadcast, is_whole, known, named, vector_cost

#: Operations for each element of the result, a convention: 1 for what one instruction does, about
#: as many as an approximation by a polynomial takes for the others. 1 for those not listed.
_FLOPS: Final = {
    3: "sigmoid_backward tanh_backward lerp addcmul addcdiv",
    4: "hardswish hardsigmoid hypot rms",
    8: "exp exp2 expm1 log log2 log10 log1p sin cos",
    10: "tan asin acos atan sinh cosh tanh atan2 sigmoid silu softplus logit elu selu celu mish",
    12: "gelu erf erfc erfinv pow float_power",
    16: "gelu_backward silu_backward",
}
FLOPS_PER_ELEMENT: Final = {name: n for n, names in _FLOPS.items() for name in names.split()}

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()
_of = MODELS.of("elementwise")
_of_lists = MODELS.of("optimizer")


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
    kind = kind or op.promoted_type(inputs)
    with_sizes = [t for t in inputs if t.dims]
    family = family or ("UnaryElementwise" if len(with_sizes) <= 1 else "BinaryElementwise")
    elements = math.prod(shape)
    flops = elements * FLOPS_PER_ELEMENT.get(op.plain_name.rstrip("_"), 1)
    moved = inputs[0].as_many(elements, kind)
    shown = _parameters(shape, with_sizes or inputs, kind)
    return vector_cost(family, inputs[0], flops, moved, *inputs, **shown)


def _parameters(shape: tuple[int, ...], inputs: list[Tensor], kind: str) -> dict[str, object]:
    """What experts read; of operations with several inputs each of the first two."""
    (a, *_), names = inputs, "shape_in1 shape_in2 dtype_in1_in2_out stride_input1 stride_input2"
    if len(inputs) < 2:
        return named("op_shape dtype_in_out stride_input", shape, (a.kind, kind), a.strides)
    b = inputs[1]
    return named(names, a.dims, b.dims, (a.kind, b.kind, kind), a.strides, b.strides)


def _of_inputs(
    name: str,
    operations: str,
    most: int,
    kind: Callable[[Operation, list[Tensor]], str | None] | str | None = None,
) -> None:
    """A model of operations, also in place, by how many inputs they have and the type they give."""

    def model(op: Operation) -> Cost:
        inputs = op.leading(most)
        return elementwise(op, inputs, kind(op, inputs) if callable(kind) else kind)

    model.__name__ = name
    _of(" ".join(f"{each} {each}_" for each in operations.split()))(model)


def _quotient(op: Operation, inputs: list[Tensor]) -> str:
    """Whole numbers become floating point, unless they are rounded."""
    kind = op.promoted_type(inputs)
    return "float" if is_whole(kind) and not op.value(2) else kind


_REAL = {"c10::complex<float>": "float", "c10::complex<double>": "double"}
_of_inputs(
    "floating",
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh"
    " asinh acosh atanh sigmoid erf erfc erfinv reciprocal logit lgamma digamma i0 sinc",
    1,
    lambda _, inputs: "float" if is_whole(inputs[0].kind) else None,
)
_of_inputs(
    "keeping",
    "neg relu gelu silu elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus mish"
    " sign sgn floor ceil round trunc frac square bitwise_not nan_to_num threshold tril triu"
    " relu6 log_sigmoid_forward softshrink hardshrink conj_physical flip roll",
    1,
    lambda _, inputs: inputs[0].kind,
)
_of_inputs("absolute", "abs", 1, lambda _, x: _REAL.get(x[0].kind, x[0].kind))
_of_inputs("truth", "isnan isinf isfinite isneginf isposinf logical_not signbit", 1, "bool")
_of_inputs("limits", "clamp", 3)
_of_inputs("limits", "clamp_min clamp_max", 2)
_of_inputs("arithmetic", "lerp addcmul addcdiv softplus_backward", 3)
_of_inputs(
    "arithmetic",
    "add sub rsub mul maximum minimum fmin fmax remainder fmod floor_divide bitwise_and bitwise_or"
    " bitwise_xor copysign hypot pow threshold_backward sigmoid_backward tanh_backward"
    " gelu_backward silu_backward hardtanh_backward leaky_relu_backward elu_backward"
    " hardswish_backward hardsigmoid_backward mish_backward bitwise_left_shift bitwise_right_shift"
    " __lshift__ __rshift__ __and__ __or__ __xor__ xlogy native_dropout_backward",
    2,
)
_of_inputs("quotient", "div true_divide atan2", 2, _quotient)
_of_inputs("comparison", "eq ne lt le gt ge logical_and logical_or logical_xor isclose", 2, "bool")


@_of("where")
def where(op: Operation) -> Cost:
    """`where`: a condition and two choices."""
    choices = [t for i in (1, 2) if (t := op.tensor(i)) is not None]
    known(choices or None, "the size of the result depends on the data")
    return elementwise(op, op.leading(3), op.promoted_type(choices), family="BinaryElementwise")


@_of("masked_fill masked_fill_", 0, 1)
def masked_fill(op: Operation, x: Tensor, mask: Tensor) -> Cost:
    """`masked_fill`: reads itself and the mask."""
    return elementwise(op, [x, mask], x.kind)


def _copied(source: Tensor, dims: tuple[int, ...], kind: str, **more: object) -> Cost:
    moved = source.as_many(math.prod(dims), kind)
    shown = _parameters(dims, [source], kind)
    return vector_cost("UnaryElementwise", source, 0, moved, source, **shown, **more)


@_of("copy_", 0, 1)
def copy(_: Operation, target: Tensor, source: Tensor) -> Cost:
    """`copy_`: reads the source, writes the target, each in its own type."""
    return _copied(source, target.dims, target.kind, stride_output=target.strides)


@_of("clone contiguous", 0)
def clone(_: Operation, x: Tensor) -> Cost:
    """`clone` and its kind: as much is written as there is."""
    return _copied(x, x.dims, x.kind)


@_of("_to_copy to", 0)
def cast(op: Operation, x: Tensor) -> Cost:
    """`_to_copy` and `to`: written in the type that is asked for."""
    return _copied(x, x.dims, op.scalar_type(1) or x.kind)


@_of("fill_ zero_", 0)
def fill(_: Operation, target: Tensor) -> Cost:
    """Writes only."""
    return vector_cost("Fill", target, 0, target.written)


@_of("arange linspace range eye full randperm")
def filled_result(op: Operation) -> Cost:
    """`arange` and its kind, which write the tensor given as `out=`."""
    written = [t for t in op.tensors[-1:] if t.elements]
    (out,) = known(written or None, "the size of the result is not recorded")
    return vector_cost("Fill", out, 0, out.written)


@_of("normal_ uniform_ random_ exponential_ bernoulli_ cauchy_ log_normal_ geometric_", 0)
def random(_: Operation, target: Tensor) -> Cost:
    """Random numbers in place: written only; some 10 operations each (Philox rounds)."""
    return vector_cost("RNG", target, 10 * target.elements, target.written)


@_of("native_dropout", 0)
def dropout(_: Operation, x: Tensor) -> Cost:
    """`native_dropout`: input, result, and a mask of truth values."""
    return vector_cost("RNG", x, 12 * x.elements, x.written + x.elements, x, shape=x.dims)


@_of("glu")
@_of("silu_and_mul* gelu_and_mul* gelu_tanh_and_mul*", engines=True)
def gated(op: Operation) -> Cost:
    """`glu`, `silu_and_mul` (with its result first): the halves of the input are multiplied."""
    x = max(op.leading(2), key=lambda tensor: tensor.elements)
    half = x.elements // 2
    out = next((t.item for t in op.leading(2) if t.elements == half), x.item)
    return vector_cost("UnaryElementwise", x, 12 * half, half * out, x)


@_of("rotary_embedding* batched_rotary_embedding*", 0, 1, 4, engines=True)
def rotary(op: Operation, positions: Tensor, q: Tensor, cache: Tensor) -> Cost:
    """`rotary_embedding`: positions, Q, perhaps K, the size of a head, a cache of angles; in place.

    3 operations an element; only the first elements of a head are turned where angles are fewer.
    """
    head = op.whole(3)
    known(bool(cache.dims) and head > 0, "the size of a head is not recorded")
    both = q.elements + (op.need(2).elements if op.tensor(2) else 0)
    turned = both * min(cache.dims[-1], head) // head
    angles = min(positions.elements * cache.dims[-1], cache.elements) * cache.item
    moved = angles + 2 * turned * q.item
    return vector_cost("BinaryElementwise", q, 3 * turned, moved, positions)


@_of("aiter::rope_*")
def aiters_rotary(op: Operation) -> Cost:
    """`rope_*_impl` of aiter: one result or two (`2c`), as many inputs, then angles.

    These are halves of what they turn if the first flag says so; as cosine and sine there are two
    tables of them, for an image four. What is not turned is copied.
    """
    count = 1 + ("_2c_" in op.name)
    inputs = [op.need(i) for i in range(count, 2 * count)]
    others = [t for i in range(2 * count, len(op.types)) if (t := op.tensor(i)) and t.dims]
    indices, tables = ([t for t in others if t.is_whole is is_it] for is_it in (True, False))
    fits = bool(tables) and all(len(t.dims) > 2 for t in inputs)
    known(fits, "the recorded shapes are not those of a rotary embedding")
    flags = [op.value(i) for i in range(2 * count, len(op.concrete))]
    halves = next((flag for flag in flags if isinstance(flag, bool)), True)
    angles = sum(t.dims[-1] for t in tables) << halves
    angles >>= "_cached_" in op.name or "_2d_" in op.name
    rows = indices[0].elements if "_positions_" in op.name and indices else math.inf
    read = sum(int(min(t.elements, rows * t.dims[-1])) * t.item for t in tables)
    turned = sum(t.elements * min(angles, t.dims[-1]) // max(t.dims[-1], 1) for t in inputs)
    moved = sum(t.written for t in inputs) + read
    return vector_cost("BinaryElementwise", inputs[0], 3 * turned, moved, *inputs, *indices)


#: Operations for each parameter of a step of an optimizer, a convention.
_STEP_FLOPS = {"adam": 18, "adamw": 20, "sgd": 4, "adagrad": 8}
_FOREACH = (
    "add sub mul div addcmul addcdiv lerp sqrt rsqrt neg exp log abs reciprocal pow maximum"
    " minimum clamp_min clamp_max sign zero copy norm sigmoid tanh"
)


def _lists(op: Operation) -> list[list[Tensor]]:
    """The lists of tensors: parameters or what is first, gradients, states …."""
    found = [
        op.tensor_list(i)
        for i, kind in enumerate(op.types)
        if kind == "TensorList" and i < len(op.dims) and op.dims[i]
    ]
    return known(found or None, "the tensors of a list are not recorded")


def _cost_of_lists(first: list[Tensor], flops: int, moved: int, *read: Tensor) -> Cost:
    """`flops`: for each element of the first list."""
    shown = {"tensors": len(first), "elements": sum(t.elements for t in first)}
    return vector_cost("Optimizer", first[0], shown["elements"] * flops, moved, *read, **shown)


@_of_lists(" ".join(f"_foreach_{each} _foreach_{each}_" for each in _FOREACH.split()))
def foreach(op: Operation) -> Cost:
    """`_foreach_*`: all lists read; the first written in place, or as many results made."""
    lists = _lists(op)
    everything = len(lists) >= op.types.count("TensorList")
    known(everything, "the tensors of a list are not recorded")
    first = lists[0]
    word = op.plain_name.removeprefix("_foreach_").rstrip("_")
    # `zero` reads nothing, and the first list of `copy` is the target.
    read = [t for tensors in lists[word == "copy" :] for t in tensors if word != "zero"]
    results = len(first) * first[0].item if word == "norm" else sum(t.written for t in first)
    flops = 0 if word in ("zero", "copy") else FLOPS_PER_ELEMENT.get(word, 1)
    return _cost_of_lists(first, flops, results, *read)


@_of_lists("_amp_foreach_non_finite_check_and_unscale_")
def unscale(op: Operation) -> Cost:
    """`_amp_foreach_non_finite_check_and_unscale_`: gradients read and written."""
    (gradients, *_) = _lists(op)
    elements = sum(t.elements for t in gradients)
    moved = sum(t.written for t in gradients)
    return vector_cost("Optimizer", gradients[0], 2 * elements, moved, *gradients)


@_of_lists("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_")
def fused_step(op: Operation) -> Cost:
    """`_fused_adam_` and its kind: gradients read; parameters and their states read and written."""
    lists = _lists(op)
    # Lists of step counters have a single element a tensor.
    moved = sum(t.written for tensors in (lists[0], *lists[2:]) for t in tensors if t.dims)
    flops = _STEP_FLOPS[op.plain_name.removeprefix("_fused_").rstrip("_")]
    return _cost_of_lists(lists[0], flops, moved, *chain(*lists))


#: What Inductor calls its kernels: kind (pointwise, reduction, persistent …), fused operations.
_INDUCTOR = re.compile(r"triton_(?:poi|red|per|tem|for|spl|mm|unk)_fused_(?P<words>\w+?)_?\d*$")
_NO_WORK = re.compile(
    r"(view|unsafe|clone|copy|to|cat|t|transpose|permute|expand|slice|select|as|strided|empty"
    r"|unsqueeze|squeeze|split|stack|constant|pad|nd|embedding|index|detach|lift|fresh)?"
)


@MODELS.of("compiled")("triton_*")
def inductor(op: Operation) -> Cost:
    """Every recorded tensor crosses memory once; each fused operation works on the largest."""
    tensors = known(op.tensors or None, "no argument is a tensor with a recorded shape")
    match = _INDUCTOR.match(op.plain_name)
    words = match["words"].split("_") if match else []
    x = max(tensors, key=lambda t: t.elements)
    each = sum(FLOPS_PER_ELEMENT.get(word, 1) for word in words if not _NO_WORK.fullmatch(word))
    shown = {"fused": " ".join(words), "shape": x.dims}
    cost = vector_cost("Triton", x, each * x.elements, 0, *tensors, **shown)
    return replace(cost, bound_only=True)
