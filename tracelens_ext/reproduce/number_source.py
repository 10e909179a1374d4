"""Numbers and lists of numbers as source code."""

from __future__ import annotations

from math import isfinite
from typing import Final

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.element_types import (
    LAYOUTS_BY_NUMBER,
    MEMORY_FORMATS_BY_NUMBER,
    TYPES_BY_NUMBER,
)
from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    Number,
    RecordedNumber,
    RecordedNumbers,
)
from tracelens_ext.reproduce.schemas import Parameter

#: The members of enumerations, which the profiler records by their numbers.
_MEMBERS: Final = {
    "ScalarType": TYPES_BY_NUMBER,
    "Layout": LAYOUTS_BY_NUMBER,
    "MemoryFormat": MEMORY_FORMATS_BY_NUMBER,
}
_DEFAULT_IS_GUESSED: Final = "guessed: the default; the value was not recorded"
_SCALE_IS_GUESSED: Final = "guessed: a scale, whose value was not recorded"


def number_argument(parameter: Parameter, recorded: RecordedNumber) -> ArgumentSource:
    """Return a number, a boolean, or a member of an enumeration such as `torch.float32`.

    Raises:
        NotReproducibleError: the enumeration has no such member.
    """
    value = recorded.value
    if value is None:
        if parameter.has_default:
            return ArgumentSource(repr(parameter.default), comment=_DEFAULT_IS_GUESSED)
        return ArgumentSource("1.0", comment=_SCALE_IS_GUESSED)
    members = _MEMBERS.get(parameter.base)
    if members is None:
        return ArgumentSource(number_text(value))
    member = members.get(value) if type(value) is int else None
    if member is None:
        raise NotReproducibleError(
            f"PyTorch has no {parameter.base} with the number {value},"
            f" the recorded value of `{parameter.name}`"
        )
    return ArgumentSource(f"torch.{member}")


def numbers_argument(parameter: Parameter, recorded: RecordedNumbers) -> ArgumentSource:
    """Return a list of numbers, by default that of the parameter."""
    if recorded.values is None:
        return ArgumentSource(repr(parameter.default), comment=_DEFAULT_IS_GUESSED)
    return numbers_list(recorded.values)


def numbers_list(values: tuple[Number, ...]) -> ArgumentSource:
    """Return numbers as a Python list."""
    items = [ArgumentSource(number_text(value)) for value in values]
    return ArgumentSource(opening="[", items=tuple(items), closing="]")


def number_text(value: Number) -> str:
    """Return a number as a Python expression."""
    if isinstance(value, complex):
        real = number_text(value.real)
        imaginary = number_text(value.imag)
        return f"complex({real}, {imaginary})"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return repr(value)
