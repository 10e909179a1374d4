"""Shapes of arrays as XLA has them: `bf16[1,5120,34,31,53]`.

Format: `PrimitiveType` and `ShapeProto` in `xla_data.proto` of openxla/xla.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.readers.xplane.hlo import Message

_NAMES: Final = dict(
    enumerate(
        ["pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"], start=1
    ),
) | {
    **dict(zip((15, 16, 18, 19, 20), ["c64", "bf16", "c128", "f8e5m2", "f8e4m3fn"], strict=True)),
    **dict(zip((21, 22, 26, 27, 30, 31), ["s4", "u4", "s2", "u2", "s1", "u1"], strict=True)),
    **dict(zip((23, 24, 25), ["f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz"], strict=True)),
    **dict(zip((28, 29, 32, 33), ["f8e4m3", "f8e3m4", "f4e2m1fn", "f8e8m0fnu"], strict=True)),
}
_TUPLE: Final = 13
#: No program has arrays of more; their product would take a damaged file's word for any number.
MOST_DIMENSIONS: Final = 64
#: Name of a type → bits of an element: the number in it; complex numbers and `pred` are odd.
TYPE_BITS: Final = {
    name: 8 if name == "pred" else int(name.lstrip("abcdefghijklmnopqrstuvwxyz").split("e")[0])
    for name in _NAMES.values()
}


class Shape(NamedTuple):
    """The shape of an array: the name of its type, and its sizes."""

    kind: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return -(-self.elements * TYPE_BITS[self.kind] // 8)

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.dims))}]"


def arrays_of(shape: Message) -> list[Shape]:
    """The arrays of a shape: one, or those of a tuple; tokens and what is no array are none.

    Sizes that are not known when a program is compiled count as 0.
    """
    if shape.element_type == _TUPLE:
        return [array for part in shape.tuple_shapes for array in arrays_of(part)]
    kind = _NAMES.get(shape.element_type)
    if kind is None or len(shape.dimensions) > MOST_DIMENSIONS:
        return []
    return [Shape(kind, tuple(max(n, 0) for n in shape.dimensions))]


def instructions_of(module: Message) -> list[Message]:
    """The instructions of all computations of a program."""
    return [each for part in module.computations for each in part.instructions]


def operands_of(instruction: Message, by_id: Mapping[int, Message]) -> list[Shape]:
    """The arrays that an instruction takes."""
    found = (by_id.get(number) for number in instruction.operand_ids)
    return [array for each in found if each is not None for array in arrays_of(each.shape)]


def results_of(instruction: Message) -> list[Shape]:
    """The arrays that an instruction makes, without the workspace of a library's call."""
    results = arrays_of(instruction.shape)
    if instruction.custom_call_target.startswith((b"__cudnn", b"__cublas")):
        return [array for i, array in enumerate(results) if not i or array.kind != "u8"]
    return results


def windows_of(instruction: Message) -> dict[str, tuple[int, ...]]:
    """Stride, padding and dilation of an instruction that has a window."""
    windows = instruction.window.dimensions
    fields = {"stride": "stride", "padding": "padding_low", "dilation": "window_dilation"}
    return {n: tuple(getattr(w, f) for w in windows) for n, f in fields.items() if windows}
