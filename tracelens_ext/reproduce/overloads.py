"""Which overload of an operation was called, and which argument is which of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    RecordedNothing,
    RecordedNumber,
    RecordedNumbers,
    RecordedTensor,
    RecordedTensors,
    RecordedValue,
)
from tracelens_ext.reproduce.schemas import Parameter, Schema, SchemaTable

#: Numbers that only scale a result: they have their defaults if they were not recorded.
_SCALES: Final = ("alpha", "beta", "scale", "eps", "negative_slope", "lambd", "value")
_NUMBERS: Final = ("Scalar", "int", "float", "bool")
_ENUMERATIONS: Final = ("ScalarType", "Layout", "MemoryFormat")
#: Types about which the profiler records nothing.
_UNRECORDED: Final = ("str", "Device", "Generator", "Storage", "Stream")

#: How badly a value fits a parameter; `_NO_FIT` if it cannot be its value.
_NO_FIT: Final = None
_EXACT: Final = 0
_LOOSE: Final = 1


class Argument(NamedTuple):
    """A parameter and its recorded value."""

    parameter: Parameter
    value: RecordedValue | None  #: None where the trace has fewer arguments


@dataclass(frozen=True)
class BoundCall:
    """A call of an overload."""

    schema: Schema
    arguments: tuple[Argument, ...]  #: in the order of the parameters

    @property
    def short_name(self) -> str:
        """Its name without the library and without the `_` of in-place operations."""
        name = self.schema.name.removeprefix("aten::")
        return name.removesuffix("_")

    @property
    def is_in_place(self) -> bool:
        """True if it writes to its first argument, by PyTorch's naming convention."""
        name = self.schema.name
        return name.endswith("_") and not name.endswith("__")

    def value(self, name: str) -> RecordedValue | None:
        """Return the recorded value of a parameter, or None if there is none."""
        for argument in self.arguments:
            if argument.parameter.name == name:
                return argument.value
        return None

    def tensor(self, name: str) -> RecordedTensor | None:
        """Return the recorded tensor of a parameter, or None if it is not a tensor."""
        value = self.value(name)
        return value if isinstance(value, RecordedTensor) else None

    def whole(self, name: str) -> int | None:
        """Return the recorded integer of a parameter, or None if it is not an integer."""
        value = self.value(name)
        if isinstance(value, RecordedNumber) and type(value.value) is int:
            return value.value
        return None

    def wholes(self, name: str) -> list[int]:
        """Return the recorded integers of a parameter; empty if it is not a list."""
        value = self.value(name)
        if not isinstance(value, RecordedNumbers):
            return []
        return [number for number in value.values or () if type(number) is int]

    def size(self, name: str, dimension: int | None) -> int | None:
        """Return a size of the tensor of a parameter, or None without such a dimension."""
        tensor = self.tensor(name)
        if tensor is None or dimension is None:
            return None
        rank = len(tensor.sizes)
        if rank == 0:
            return 1
        if not -rank <= dimension < rank:
            return None
        return tensor.sizes[dimension]


def bind(name: str, values: list[RecordedValue], table: SchemaTable) -> BoundCall:
    """Return the call of the overload that the recorded arguments fit best.

    That is the one with the fewest parameters beyond the recorded ones, then the one that accepts
    the values without conversion, then the first.

    Raises:
        NotReproducibleError: no overload accepts them, or a number was not recorded.
    """
    overloads = table.overloads(name)
    if not overloads:
        raise NotReproducibleError(f"PyTorch {table.version} has no {name}")
    schema = _best_overload(overloads, values)
    if schema is None:
        raise NotReproducibleError(
            f"no overload of {name} in PyTorch {table.version} accepts"
            f" the {len(values)} recorded arguments"
        )
    call = BoundCall(schema, _arguments(schema, values))
    _check_numbers(call)
    return call


def _best_overload(
    overloads: Sequence[Schema], values: Sequence[RecordedValue]
) -> Schema | None:
    """Return the overload that recorded values fit best, or None if they fit none."""
    best: Schema | None = None
    best_rank = (0, 0)
    for schema in overloads:
        misfit = _misfit(schema, values)
        if misfit is None:
            continue
        unrecorded = len(schema.parameters) - len(values)
        rank = (unrecorded, misfit)
        if best is None or rank < best_rank:
            best = schema
            best_rank = rank
    return best


def _arguments(schema: Schema, values: Sequence[RecordedValue]) -> tuple[Argument, ...]:
    """Return each parameter with its recorded value."""
    arguments = []
    for position, parameter in enumerate(schema.parameters):
        value = values[position] if position < len(values) else None
        arguments.append(Argument(parameter, value))
    return tuple(arguments)


def _misfit(schema: Schema, values: Sequence[RecordedValue]) -> int | None:
    """Return how badly values fit an overload, or None if it cannot accept them."""
    if len(values) > len(schema.parameters):
        return _NO_FIT
    total = 0
    for parameter, value in zip(schema.parameters, values, strict=False):
        misfit = _misfit_of(parameter, value)
        if misfit is None:
            return _NO_FIT
        total += misfit
    for parameter in schema.parameters[len(values) :]:
        if not parameter.has_default and not parameter.is_optional:
            return _NO_FIT
    return total


def _misfit_of(parameter: Parameter, value: RecordedValue) -> int | None:
    """Return how badly a value fits a parameter, or None if it cannot be its value."""
    if isinstance(value, RecordedTensor):
        fits = parameter.is_tensor and not parameter.is_list
        return _EXACT if fits else _NO_FIT
    if isinstance(value, RecordedTensors):
        fits = parameter.is_tensor and parameter.is_list
        return _EXACT if fits else _NO_FIT
    if isinstance(value, RecordedNumber):
        return _NO_FIT if parameter.is_list else _misfit_of_number(parameter, value)
    if isinstance(value, RecordedNumbers):
        return _misfit_of_numbers(parameter, value)
    return _misfit_of_nothing(parameter)


def _misfit_of_number(parameter: Parameter, recorded: RecordedNumber) -> int | None:
    value = recorded.value
    base = parameter.base
    if value is None:
        is_number = base in _NUMBERS or base in _ENUMERATIONS
        return _EXACT if is_number else _NO_FIT
    if base == "Scalar":
        return _EXACT
    if isinstance(value, bool):
        return _EXACT if base == "bool" else _NO_FIT
    if isinstance(value, int):
        if base == "int" or base in _ENUMERATIONS:
            return _EXACT
        return _LOOSE if base == "float" else _NO_FIT
    if isinstance(value, float):
        return _EXACT if base == "float" else _NO_FIT
    return _NO_FIT


def _misfit_of_numbers(parameter: Parameter, recorded: RecordedNumbers) -> int | None:
    if recorded.values == () and parameter.is_list and parameter.is_tensor:
        return _LOOSE  # an empty list has no type
    if not parameter.is_list or parameter.base not in _NUMBERS:
        return _NO_FIT
    item = Parameter(name=parameter.name, base=parameter.base)
    total = 0
    for value in recorded.values or ():
        misfit = _misfit_of_number(item, RecordedNumber(value))
        if misfit is None:
            return _NO_FIT
        total += misfit
    return total


def _misfit_of_nothing(parameter: Parameter) -> int | None:
    """Nothing is recorded for None and for types that the profiler does not record."""
    if parameter.is_optional:
        return _EXACT
    if parameter.base in _UNRECORDED or parameter.has_optional_items:
        return _EXACT
    # Tensors may be undefined, and old traces lack lists.
    if parameter.is_list or parameter.is_tensor:
        return _LOOSE
    return _NO_FIT


def _check_numbers(call: BoundCall) -> None:
    """Refuse a call whose numbers are unknown: padding, stride and dim are never made up.

    Raises:
        NotReproducibleError: a number without a default was not recorded.
    """
    for parameter, value in call.arguments:
        if parameter.default is not None or parameter.name in _SCALES:
            continue
        if _is_unknown_number(parameter, value):
            raise NotReproducibleError(
                f"the value of `{parameter.name}` was not recorded (PyTorch records"
                " numbers since version 2.0, and lists of at most 30 of them)"
            )


def _is_unknown_number(parameter: Parameter, value: RecordedValue | None) -> bool:
    """Return whether a number, or a list of them, was passed but not recorded."""
    if isinstance(value, RecordedNumber):
        return value.value is None
    if isinstance(value, RecordedNumbers):
        return value.values is None
    if not isinstance(value, RecordedNothing):
        return False
    is_list = parameter.is_list and not parameter.is_tensor
    return is_list and not parameter.is_optional
