"""Tensors without data: shape, type and strides, and how a profiler writes them as arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BF16 = "c10::BFloat16"
FP8 = "c10::Float8_e4m3fn"
FLOAT = "float"
LONG = "long int"

_ITEM_BYTES = {BF16: 2, FP8: 1, FLOAT: 4, LONG: 8, "c10::complex<float>": 8, "unsigned char": 1}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's description.

    Attributes:
        shape: its sizes.
        dtype: its type as the profiler spells it.
        strides: in elements; contiguous when empty.
    """

    shape: tuple[int, ...]
    dtype: str = BF16
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.elements * _ITEM_BYTES[self.dtype]

    @property
    def stride(self) -> tuple[int, ...]:
        """Its strides, those of a contiguous tensor unless given."""
        if self.strides:
            return self.strides
        steps: list[int] = []
        step = 1
        for size in reversed(self.shape):
            steps.append(step)
            step *= size
        return tuple(reversed(steps))

    def like(self, *shape: int, dtype: str = "") -> Tensor:
        """A contiguous tensor of another shape (or, without one, type)."""
        return Tensor(shape or self.shape, dtype or self.dtype)

    def flat(self) -> Tensor:
        """The same elements as a matrix: all but the last dimension folded."""
        return Tensor((self.elements // self.shape[-1], self.shape[-1]), self.dtype)

    def transposed(self) -> Tensor:
        """The same memory with the last two dimensions exchanged."""
        *rest, rows, columns = self.shape
        *steps, row_step, column_step = self.stride
        return Tensor((*rest, columns, rows), self.dtype, (*steps, column_step, row_step))


Argument = Tensor | Sequence["Tensor"] | Sequence[int] | int | float | bool | None


def input_arguments(inputs: Sequence[Argument]) -> dict[str, object]:
    """An operation's arguments as ``record_shapes=True`` writes them.

    Returns:
        ``Concrete Inputs``, ``Input type``, ``Input Strides`` and ``Input Dims``, each a list
        with an entry for each argument; empty where nothing is recorded.
    """
    if not inputs:
        return {}
    rows = [_describe(argument) for argument in inputs]
    concrete, types, strides, dims = (list(column) for column in zip(*rows, strict=True))
    return {
        "Concrete Inputs": concrete,
        "Input type": types,
        "Input Strides": strides,
        "Input Dims": dims,
    }


def _describe(argument: Argument) -> tuple[str, str, list[object], list[object]]:
    """One argument: its concrete value, type, strides and dimensions."""
    if isinstance(argument, Tensor):
        return "", argument.dtype, list(argument.stride), list(argument.shape)
    if argument is None:
        return "", "", [], []
    if isinstance(argument, Sequence):
        tensors = [item for item in argument if isinstance(item, Tensor)]
        if tensors:
            strides: list[object] = [list(item.stride) for item in tensors]
            return "", "TensorList", strides, [list(item.shape) for item in tensors]
        return str(list(argument)), "ScalarList", [], []
    return str(argument), "Scalar", [], []
