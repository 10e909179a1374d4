"""Reads the instructions of an HLO program: their operands, results and windows.

Shapes are written as XLA writes them: `bf16[1,5120,34,31,53]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from tracelens_ext.readers.xplane.messages import Message

#: Names of the values of `PrimitiveType`, from 1 on; `-` stands for a type that arrays cannot have.
_ALL_NAMES: Final = (
    "pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 - - c64 bf16 - c128 f8e5m2 f8e4m3fn s4 u4"
    " f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu"
)
#: Number of an element type → its name; numbers of other types, such as tuples, are missing.
_NAMES: Final = {
    number: name
    for number, name in enumerate(_ALL_NAMES.split(), start=1)
    if name != "-"
}
_TUPLE: Final = 13
#: Arrays with more dimensions are ignored: only a damaged file has them.
MOST_DIMENSIONS: Final = 64
_BITS_OF_BYTE: Final = 8


def _bits_of(type_name: str) -> int:
    """Return the bits of an element of a type, which are in its name; a `pred` takes a byte."""
    if type_name == "pred":
        return _BITS_OF_BYTE
    digits = type_name.lstrip("abcdefghijklmnopqrstuvwxyz").split("e")[0]
    return int(digits)


#: Name of a type → bits of an element.
TYPE_BITS: Final = {name: _bits_of(name) for name in _NAMES.values()}


class Shape(NamedTuple):
    """The shape of an array."""

    kind: str  #: name of the element type
    dims: tuple[int, ...]  #: size of each dimension

    @property
    def elements(self) -> int:
        """The number of elements of the array."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The number of bytes that the array takes, rounded up."""
        bits = self.elements * TYPE_BITS[self.kind]
        return -(-bits // _BITS_OF_BYTE)

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.dims))
        return f"{self.kind}[{sizes}]"


def arrays_of(shape: Message) -> list[Shape]:
    """Return the arrays that a shape consists of: several for a tuple, none for a token.

    A size that is known only when the program runs counts as 0.
    """
    if shape.element_type == _TUPLE:
        arrays = []
        for part in shape.tuple_shapes:
            arrays += arrays_of(part)
        return arrays
    type_name = _NAMES.get(shape.element_type)
    if type_name is None:
        return []
    if len(shape.dimensions) > MOST_DIMENSIONS:
        return []
    sizes = tuple(max(size, 0) for size in shape.dimensions)
    return [Shape(type_name, sizes)]


def instructions_of(module: Message) -> list[Message]:
    """Return the instructions of all computations of a program."""
    instructions: list[Message] = []
    for computation in module.computations:
        instructions += computation.instructions
    return instructions


def operands_of(instruction: Message, by_id: Mapping[int, Message]) -> list[Shape]:
    """Return the arrays that an instruction takes.

    Args:
        instruction: the instruction.
        by_id: all instructions of the program by id.
    """
    arrays = []
    for operand_id in instruction.operand_ids:
        operand = by_id.get(operand_id)
        if operand is not None:
            arrays += arrays_of(operand.shape)
    return arrays


def results_of(instruction: Message) -> list[Shape]:
    """Return the arrays that an instruction makes.

    A call of cuDNN or cuBLAS also returns its workspace, an array of `u8`, which is left out.
    """
    results = arrays_of(instruction.shape)
    if not instruction.custom_call_target.startswith((b"__cudnn", b"__cublas")):
        return results
    without_workspace = [array for array in results[1:] if array.kind != "u8"]
    return results[:1] + without_workspace


def windows_of(instruction: Message) -> dict[str, tuple[int, ...]]:
    """Return stride, padding and dilation of an instruction; empty if it has no window."""
    windows = instruction.window.dimensions
    if not windows:
        return {}
    return {
        "stride": tuple(window.stride for window in windows),
        "padding": tuple(window.padding_low for window in windows),
        "dilation": tuple(window.window_dilation for window in windows),
    }
