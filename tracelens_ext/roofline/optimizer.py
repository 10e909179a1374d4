"""Operations over lists of tensors: `_foreach_*` and fused optimizers."""

from __future__ import annotations

from tracelens_ext.roofline.elementwise import FLOPS_PER_ELEMENT
from tracelens_ext.roofline.operation import (
    Cost,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    short_type,
    words,
)

#: Operations for each parameter, a convention: moments, bias correction, root, quotient, update.
_STEP_FLOPS = {"adam": 18, "adamw": 20, "sgd": 4, "adagrad": 8}


def _lists(op: Operation) -> list[list[Tensor]]:
    found = [
        op.tensor_list(i)
        for i, kind in enumerate(op.types)
        if kind == "TensorList" and i < len(op.dims) and op.dims[i]
    ]
    if not found:
        raise NoModelError("the tensors of a list are not recorded")
    return found


def foreach(op: Operation) -> Cost:
    """`_foreach_*`: all lists read; the first written in place, or as many results made."""
    lists = _lists(op)
    if len(lists) < sum(kind == "TensorList" for kind in op.types):
        raise NoModelError("the tensors of a list are not recorded")
    first = lists[0]
    word = op.plain_name.removeprefix("_foreach_").rstrip("_")
    only_written = word == "zero"
    read = 0 if only_written else bytes_read(*(t for tensors in lists for t in tensors))
    if word == "copy":  # the first list is the target
        read -= bytes_read(*first)
    results = len(first) * first[0].item if word == "norm" else sum(t.written for t in first)
    elements = sum(t.elements for t in first)
    moves = word in ("zero", "copy")
    return Cost(
        "Optimizer",
        0 if moves else elements * FLOPS_PER_ELEMENT.get(word, 1),
        read + results,
        short_type(first[0].kind),
        parameters={"tensors": len(first), "elements": elements},
    )


def unscale(op: Operation) -> Cost:
    """`_amp_foreach_non_finite_check_and_unscale_`: gradients read and written."""
    (gradients, *_) = _lists(op)
    elements = sum(t.elements for t in gradients)
    moved = bytes_read(*gradients) + sum(t.written for t in gradients)
    return Cost("Optimizer", 2 * elements, moved, short_type(gradients[0].kind))


def fused_step(op: Operation) -> Cost:
    """`_fused_adam_` and its kind: gradients read; parameters and their states read and written."""
    lists = _lists(op)
    word = op.plain_name.removeprefix("_fused_").rstrip("_")
    elements = sum(t.elements for t in lists[0])
    # parameters, gradients, states …; lists of step counters have a single element a tensor
    moved = sum(t.read for tensors in lists for t in tensors)
    written = [tensors for i, tensors in enumerate(lists) if i != 1]
    moved += sum(t.written for tensors in written for t in tensors if t.dims)
    flops = elements * _STEP_FLOPS.get(word, 10)
    parameters: dict[str, object] = {"tensors": len(lists[0]), "elements": elements}
    return Cost("Optimizer", flops, moved, short_type(lists[0][0].kind), parameters=parameters)


_WORDS = words(
    "add sub mul div addcmul addcdiv lerp sqrt rsqrt neg exp log abs reciprocal pow maximum "
    "minimum clamp_min clamp_max sign zero copy norm sigmoid tanh"
)

MODELS = {
    **dict.fromkeys([f"_foreach_{w}{tail}" for w in _WORDS for tail in ("", "_")], foreach),
    "_amp_foreach_non_finite_check_and_unscale_": unscale,
    **dict.fromkeys([f"_fused_{w}_" for w in ("adam", "adamw", "sgd", "adagrad")], fused_step),
}
