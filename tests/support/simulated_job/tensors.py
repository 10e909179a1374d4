"""Tensors without data: shape, type and strides, and how a profiler writes them as arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: How the data files spell a type, how the profiler does, its bytes, and PyTorch's number for it.
_TYPES = {
    "bf16": ("c10::BFloat16", 2, 15),
    "f32": ("float", 4, 6),
    "fp8": ("c10::Float8_e4m3fn", 1, 24),
    "c64": ("c10::complex<float>", 8, 9),
    "i64": ("long int", 8, 4),
    "i32": ("int", 4, 3),
    "u64": ("unsigned long", 8, 28),
    "u8": ("unsigned char", 1, 0),
    "bool": ("bool", 1, 11),
}
_TENSOR = re.compile(r"(\w+)\[(.*)\]")
_SIZE = re.compile(r"[A-Z0-9*/]+")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's description."""

    shape: tuple[int, ...]  #: its sizes
    dtype: str = "bf16"  #: its type as the data files spell it, such as ``bf16``
    #: in elements; those of a contiguous tensor unless given
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.strides:
            steps = tuple(
                math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))
            )
            object.__setattr__(self, "strides", steps)

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.elements * _TYPES[self.dtype][1]

    @property
    def type_number(self) -> int:
        """What PyTorch passes as ``dtype`` to an operation."""
        return _TYPES[self.dtype][2]

    def flat(self) -> Tensor:
        """The same elements as a matrix: all but the last dimension folded."""
        return Tensor((self.elements // self.shape[-1], self.shape[-1]), self.dtype)

    def exchanged(self, one: int, other: int) -> Tensor:
        """The same memory with two dimensions exchanged."""
        shape = list(self.shape)
        strides = list(self.strides)
        shape[one], shape[other] = shape[other], shape[one]
        strides[one], strides[other] = strides[other], strides[one]
        return replace(self, shape=tuple(shape), strides=tuple(strides))


Argument = Tensor | Sequence["Argument"] | float | bool | str | None
Inputs = Sequence[Argument]
Names = Mapping[str, Argument]


def number(text: str, names: Names) -> int:
    """The product that a text such as ``3*W`` or ``PARAMETERS/8`` stands for."""
    above, _, below = text.partition("/")
    known = [names.get(word, word) for word in (*above.split("*"), below or "1")]
    *factors, divisor = (int(size) for size in known if isinstance(size, int | str))
    return math.prod(factors) // divisor


def value(said: Argument, names: Names) -> Argument:
    """An argument as a data file says it.

    ``bf16[L,3*W]`` is a tensor, ``3*W`` a number, and ``x`` what `names` say. After a tensor,
    ``.flat`` folds all dimensions but the last, ``.T`` exchanges the last two and ``.swap`` the
    second and third; ``.shape`` gives the sizes. Anything that is not a text means itself.
    """
    if isinstance(said, list):
        return [value(item, names) for item in said]
    if not isinstance(said, str):
        return said
    if _SIZE.fullmatch(said):
        return number(said, names)
    name, *changes = said.split(".")
    if literal := _TENSOR.fullmatch(name):
        sizes = [number(size, names) for size in literal[2].split(",") if size]
        found: Argument = Tensor(tuple(sizes), literal[1])
    else:
        found = names[name]
    for change in changes:
        (tensor,) = tensors_in(found)
        if change == "shape":
            found = list(tensor.shape)
        elif change == "flat":
            found = tensor.flat()
        else:
            found = tensor.exchanged(*{"T": (-1, -2), "swap": (1, 2)}[change])
    return found


def tensors_in(argument: Argument) -> list[Tensor]:
    """All tensors of an argument, those in lists too."""
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return [tensor for item in argument for tensor in tensors_in(item)]
    return [argument] if isinstance(argument, Tensor) else []


def input_arguments(inputs: Inputs, fp8: str = "") -> dict[str, object]:
    """An operation's arguments as ``record_shapes=True`` writes them, nothing if it has none.

    `fp8` is what the machine calls 8-bit floating point, if not as usual.
    """
    if not inputs:
        return {}
    rows = [_describe(argument, fp8) for argument in inputs]
    keys = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")
    return {
        key: list(column)
        for key, column in zip(keys, zip(*rows, strict=True), strict=True)
    }


def _describe(
    argument: Argument, fp8: str
) -> tuple[str, str, list[object], list[object]]:
    """One argument: its concrete value, type, strides and dimensions."""
    if isinstance(argument, Tensor):
        dtype = fp8 if fp8 and argument.dtype == "fp8" else _TYPES[argument.dtype][0]
        return "", dtype, list(argument.strides), list(argument.shape)
    if argument is None:
        return "", "", [], []
    if tensors := tensors_in(argument):
        strides: list[object] = [list(item.strides) for item in tensors]
        return "", "TensorList", strides, [list(item.shape) for item in tensors]
    return (
        str(argument),
        "ScalarList" if isinstance(argument, list) else "Scalar",
        [],
        [],
    )
