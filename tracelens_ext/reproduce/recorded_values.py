"""The recorded arguments of an operation as values: tensors, numbers, lists, or nothing.

PyTorch writes four lists for each operation (`torch/csrc/profiler/collection.cpp` and `util.cpp`):
`Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs`, with an entry for each argument.
Texts, devices, generators and None all have the type ``, and lists with more than 30 entries have
no entries.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

from tracelens_ext.reproduce.element_types import TORCH_TYPES
from tracelens_ext.reproduce.specification import RecordedCall

#: Types of arguments that are single numbers. The last three are from old traces.
_NUMBER_TYPES: Final = ("Scalar", "Int", "Double", "Bool")
_NOTHING_TYPES: Final = ("", "None", "GenericList")
_COMPLEX: Final = re.compile(r"\(([^,()]+),([^,()]+)\)")
_SIZE_LIMIT: Final = 2**63  # sizes and strides are signed integers of 64 bits

Number = bool | int | float | complex


class NotReproducibleError(Exception):
    """A script cannot call an operation as it was called. The message gives the reason."""


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor."""

    sizes: tuple[int, ...]
    element_type: str | None  #: a key of `TORCH_TYPES`; None for a tensor of a list
    strides: tuple[int, ...] | None  #: None: not recorded

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are in order and without gaps, or if strides are not known."""
        if self.strides is None:
            return True
        step = 1
        for size, stride in zip(
            reversed(self.sizes), reversed(self.strides), strict=True
        ):
            if stride != step:
                return False
            step *= max(size, 1)
        return True


@dataclass(frozen=True)
class RecordedTensors:
    """A list of tensors."""

    tensors: tuple[RecordedTensor, ...]


@dataclass(frozen=True)
class RecordedNumber:
    """A number or truth value."""

    value: Number | None  #: None: not recorded


@dataclass(frozen=True)
class RecordedNumbers:
    """A list of numbers or truth values."""

    values: tuple[Number, ...] | None  #: None: not recorded


@dataclass(frozen=True)
class RecordedNothing:
    """None, or a value that the profiler does not record."""


RecordedValue = (
    RecordedTensor
    | RecordedTensors
    | RecordedNumber
    | RecordedNumbers
    | RecordedNothing
)


def recorded_values(call: RecordedCall) -> list[RecordedValue]:
    """Return the arguments of a call, in order.

    Raises:
        NotReproducibleError: they were not recorded, or contradict each other.
    """
    count = len(call.types)
    if not count or not call.dims:
        missing = "types" if call.dims else "shapes and types"
        raise NotReproducibleError(
            f"the {missing} of the arguments were not recorded; record them with"
            " torch.profiler.profile(record_shapes=True)"
        )
    strides = call.strides or ((),) * count
    concrete: tuple[str | None, ...] = call.concrete or (None,) * count
    if not len(call.dims) == len(strides) == len(concrete) == count:
        raise NotReproducibleError("its recorded arguments contradict each other")
    has_strides = call.strides is not None
    values = []
    for position in range(count):
        strides_of_argument = strides[position] if has_strides else None
        value = _value(
            call.types[position],
            call.dims[position],
            strides_of_argument,
            concrete[position],
        )
        values.append(value)
    return values


def _value(
    type_name: str, dims: object, strides: object, text: str | None
) -> RecordedValue:
    """Return the value of an argument.

    Args:
        type_name: its entry in `Input type`.
        dims: its entry in `Input Dims`.
        strides: its entry in `Input Strides`; None without this list.
        text: its entry in `Concrete Inputs`; None without this list.

    Raises:
        NotReproducibleError: the entries are invalid.
    """
    if type_name in TORCH_TYPES:
        return _tensor(dims, strides, type_name)
    if type_name == "TensorList":
        return _tensors(dims, strides)
    if type_name in _NUMBER_TYPES:
        return RecordedNumber(None if text is None else number_of(text))
    if type_name == "ScalarList":
        return RecordedNumbers(None if text is None else numbers_of(text))
    if type_name in _NOTHING_TYPES:
        if isinstance(dims, tuple) and dims:
            return _tensors(dims, strides)
        return RecordedNothing()
    raise NotReproducibleError(f"PyTorch has no type {type_name!r}")


def _tensor(dims: object, strides: object, element_type: str | None) -> RecordedTensor:
    """Return a tensor; raise `NotReproducibleError` if its sizes or strides are invalid."""
    sizes = sizes_of(dims)
    if sizes is None:
        raise NotReproducibleError("the recorded sizes of a tensor are invalid")
    if strides is None:
        return RecordedTensor(sizes, element_type, None)
    steps = sizes_of(strides)
    if sizes and steps == ():
        raise NotReproducibleError(
            "a tensor was recorded without strides, as sparse tensors are"
        )
    if steps is None or len(steps) != len(sizes):
        raise NotReproducibleError(
            "the recorded strides of a tensor do not match its sizes"
        )
    return RecordedTensor(sizes, element_type, steps)


def _tensors(dims: object, strides: object) -> RecordedTensors:
    """Return a list of tensors, whose types are not recorded."""
    if not isinstance(dims, tuple):
        raise NotReproducibleError(
            "the recorded sizes of a list of tensors are not a list"
        )
    strides_of_tensors: tuple[object, ...] = (None,) * len(dims)
    if isinstance(strides, tuple) and len(strides) == len(dims):
        strides_of_tensors = strides
    tensors = [
        _tensor(sizes, steps, None)
        for sizes, steps in zip(dims, strides_of_tensors, strict=True)
    ]
    return RecordedTensors(tuple(tensors))


def sizes_of(value: object) -> tuple[int, ...] | None:
    """Return sizes or strides; None for a value that cannot be either."""
    if not isinstance(value, tuple | list):
        return None
    sizes = []
    for item in value:
        if type(item) is not int or not 0 <= item < _SIZE_LIMIT:
            return None
        sizes.append(item)
    return tuple(sizes)


def number_of(text: str) -> Number:
    """Return the number in a text: `1` is an int, `1.` a float, `True` a bool.

    Raises:
        NotReproducibleError: the text is not a number.
    """
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return _unusual_number(text)
    if isinstance(value, Number):
        return value
    return _unusual_number(text)


def _unusual_number(text: str) -> Number:
    """Return a number that Python writes differently: `inf`, `nan`, or `(1,2)` if it is complex."""
    match = _COMPLEX.fullmatch(text.strip())
    try:
        if match is not None:
            return complex(float(match[1]), float(match[2]))
        return float(text)
    except ValueError:
        raise NotReproducibleError(f"{text[:40]!r} is not a number") from None


def numbers_of(text: str) -> tuple[Number, ...]:
    """Return the numbers of a list such as `[1, 2]`.

    Raises:
        NotReproducibleError: the text is not such a list.
    """
    stripped = text.strip()
    is_list = stripped.startswith("[") and stripped.endswith("]")
    if not is_list:
        raise NotReproducibleError(f"{text[:40]!r} is not a list of numbers")
    items = stripped[1:-1].strip()
    if not items:
        return ()
    numbers = map(number_of, items.split(","))
    return tuple(numbers)
