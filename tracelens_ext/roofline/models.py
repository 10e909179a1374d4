"""The built-in performance models: a function of an operation for each name, one file a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.roofline import (
    attention,
    compiled,
    convolution,
    elementwise,
    fourier,
    gemm,
    movement,
    normalization,
    optimizer,
    pooling,
    reduction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.roofline.operation import Cost, Operation

    Model = Callable[[Operation], Cost]

_FAMILIES = (
    *(gemm, convolution, attention, elementwise, normalization, reduction, movement),
    *(pooling, optimizer, fourier),
)


def builtin_models() -> Mapping[str, Model]:
    """Operation → its model; names without a library are PyTorch's own (`aten::`)."""
    found: dict[str, Model] = {}
    for family in _FAMILIES:
        for name, model in family.MODELS.items():
            found[name if "::" in name else f"aten::{name}"] = model
    return found


def model_of(name: str, models: Mapping[str, Model]) -> Model | None:
    """The model of an operation; kernels of `torch.compile` have one for all."""
    if (model := models.get(name)) is not None:
        return model
    return compiled.inductor if name.startswith("triton_") else None
