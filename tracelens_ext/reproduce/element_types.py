"""The element types of tensors: their names in traces and in PyTorch."""

from __future__ import annotations

from typing import Final

#: Names of types after `torch.`, by their names in traces (`caffe2::TypeMeta`). The latter depend
#: on the compiler of PyTorch.
TORCH_TYPES: Final = {
    "bool": "bool",
    "unsigned char": "uint8",
    "uint8_t": "uint8",
    "signed char": "int8",
    "char": "int8",
    "int8_t": "int8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "__int64": "int64",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    "unsigned long long": "uint64",
    "unsigned __int64": "uint64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
    "c10::qint32": "qint32",
}

#: Names of types after `torch.`, by the number of a `dtype` argument (c10/core/ScalarType.h).
TYPES_BY_NUMBER: Final = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    12: "qint8",
    13: "quint8",
    14: "qint32",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
    44: "float8_e8m0fnu",
    45: "float4_e2m1fn_x2",
}
LAYOUTS_BY_NUMBER: Final = {0: "strided", 1: "sparse_coo", 2: "sparse_csr"}
MEMORY_FORMATS_BY_NUMBER: Final = {
    0: "contiguous_format",
    1: "preserve_format",
    2: "channels_last",
    3: "channels_last_3d",
}
_WHOLE_TYPES: Final = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
)


def is_whole(torch_type: str) -> bool:
    """Return whether a type holds whole numbers."""
    return torch_type in _WHOLE_TYPES


def is_quantized(torch_type: str) -> bool:
    """Return whether tensors of a type have a scale and a zero point."""
    return torch_type.startswith(("qint", "quint"))
