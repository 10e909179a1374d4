"""Types of tensor elements: their size, their class, and their names in tables and peaks."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tracelens_ext.readers.xplane.hlo import TYPE_BITS

BFLOAT16: Final = "c10::BFloat16"
PACKED_FP4: Final = "c10::Float4_e2m1fn_x2"
"""The type whose elements hold two numbers of 4 bits each."""


class TypeClass(IntEnum):
    """Classes of types. PyTorch promotes a type of a lower class to one of a higher class."""

    BOOLEAN = 0
    WHOLE = 1
    FLOATING = 2
    COMPLEX = 3


_PYTORCH_TYPES_BY_BYTES: Final = {
    1: (
        "bool",
        "unsigned char",
        "signed char",
        "char",
        "uint8_t",
        "int8_t",
        "c10::qint8",
        "c10::quint8",
        "c10::Float4_e2m1fn_x2",
        "c10::Float8_e4m3fn",
        "c10::Float8_e5m2",
        "c10::Float8_e4m3fnuz",
        "c10::Float8_e5m2fnuz",
        "c10::Float8_e8m0fnu",
    ),
    2: ("short", "short int", "unsigned short", "c10::Half", "c10::BFloat16"),
    4: ("int", "unsigned int", "float", "c10::qint32", "c10::complex<c10::Half>"),
    8: (
        "long",
        "long int",
        "long long",
        "unsigned long",
        "__int64",
        "double",
        "c10::complex<float>",
    ),
    16: ("c10::complex<double>",),
}


def _element_bytes() -> dict[str, int]:
    sizes = {}
    for size, names in _PYTORCH_TYPES_BY_BYTES.items():
        for name in names:
            sizes[name] = size
    for name, bits in TYPE_BITS.items():
        sizes[name] = max(bits // 8, 1)
    return sizes


#: The size of an element in bytes, by the name of the type in PyTorch's traces or XLA's programs.
ELEMENT_BYTES: Final = _element_bytes()

#: Element types by PyTorch's numbers for them (c10/core/ScalarType.h). `Concrete Inputs` contain
#: these numbers for a `dtype` argument.
SCALAR_TYPES: Final = {
    0: "unsigned char",
    1: "signed char",
    2: "short int",
    3: "int",
    4: "long int",
    5: "c10::Half",
    6: "float",
    7: "double",
    8: "c10::complex<c10::Half>",
    9: "c10::complex<float>",
    10: "c10::complex<double>",
    11: "bool",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
}

_SHORT_TYPES: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "f16": "fp16",
    "float": "fp32",
    "f32": "fp32",
    "double": "fp64",
    "f64": "fp64",
    "c10::Float4_e2m1fn_x2": "fp4",
    "f4e2m1fn": "fp4",
    "c10::complex<float>": "complex64",
    "c64": "complex64",
    "c10::complex<double>": "complex128",
    "c128": "complex128",
    "signed char": "int8",
    "char": "int8",
    "int8_t": "int8",
    "c10::qint8": "int8",
    "short": "int16",
    "short int": "int16",
    "unsigned char": "uint8",
    "uint8_t": "uint8",
    "c10::quint8": "uint8",
    "int": "int32",
    "c10::qint32": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "__int64": "int64",
}
_FLOATING_BEGINNINGS: Final = ("float", "double", "c10::Half", "c10::BF", "c10::Float")


def short_type(element_type: str) -> str:
    """Return the name of a type in tables and device peaks: `bf16` for `c10::BFloat16`."""
    if "Float8" in element_type or element_type.startswith("f8"):
        return "fp8"
    return _SHORT_TYPES.get(element_type, element_type)


def type_class(element_type: str) -> TypeClass:
    """Return the class of a type."""
    if "complex" in element_type:
        return TypeClass.COMPLEX
    if element_type.startswith(_FLOATING_BEGINNINGS):
        return TypeClass.FLOATING
    if element_type == "bool":
        return TypeClass.BOOLEAN
    return TypeClass.WHOLE


def is_whole(element_type: str) -> bool:
    """Return whether a type holds truth values or whole numbers."""
    return type_class(element_type) <= TypeClass.WHOLE


def wider_type(first: str, second: str) -> str:
    """Return the type that PyTorch promotes two types to."""
    first_class = type_class(first)
    second_class = type_class(second)
    if first_class > second_class:
        return first
    if first_class < second_class:
        return second
    types = {first, second}
    if types == {"c10::Half", "c10::BFloat16"}:
        return "float"
    if types == {"unsigned char", "signed char"}:
        return "short int"
    if ELEMENT_BYTES[first] >= ELEMENT_BYTES[second]:
        return first
    return second
