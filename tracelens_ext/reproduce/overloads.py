"""Finds the overload of an operation that was called, and the parameter of each argument."""

from __future__ import annotations

import re
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

#: Parameters that only scale a result. If they were not recorded, a script may use any value.
_SCALES: Final = ("alpha", "beta", "scale", "eps", "negative_slope", "lambd", "value")
_NUMBERS: Final = ("Scalar", "int", "float", "bool")
_ENUMERATIONS: Final = ("ScalarType", "Layout", "MemoryFormat")
#: Types about which the profiler records nothing.
_UNRECORDED: Final = ("str", "Device", "Generator", "Storage", "Stream")

#: The misfit of a value that a parameter takes as it is.
_EXACT: Final = 0
#: The misfit of a value that a parameter takes only after a conversion.
_LOOSE: Final = 1
#: Python's operators in place: `__iand__` is `__and__` in place.
_OPERATOR_IN_PLACE: Final = re.compile(r"__i(and|or|xor|lshift|rshift)__")


class Argument(NamedTuple):
    """A parameter and its recorded value."""

    parameter: Parameter
    value: RecordedValue | None  #: None if the trace has fewer arguments


@dataclass(frozen=True)
class BoundCall:
    """A call of an overload."""

    schema: Schema
    arguments: tuple[Argument, ...]  #: in the order of the parameters

    @property
    def short_name(self) -> str:
        """The name without the library and without the mark of operations in place.

        This is `add` for `aten::add_`, and `__and__` for `aten::__iand__`.
        """
        name = self.schema.name.removeprefix("aten::")
        operator = _OPERATOR_IN_PLACE.fullmatch(name)
        if operator is not None:
            return f"__{operator[1]}__"
        if name.endswith("__"):
            return name
        return name.removesuffix("_")

    @property
    def is_in_place(self) -> bool:
        """True if it writes to its first argument, by the naming conventions of PyTorch."""
        return self.schema.name != f"aten::{self.short_name}"

    def value(self, name: str) -> RecordedValue | None:
        """Return the recorded value of a parameter, or None if there is none."""
        for argument in self.arguments:
            if argument.parameter.name == name:
                return argument.value
        return None

    def tensor(self, name: str) -> RecordedTensor | None:
        """Return the recorded tensor of a parameter, or None if it is not a tensor."""
        value = self.value(name)
        if isinstance(value, RecordedTensor):
            return value
        return None

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
        """Return a size of the tensor of a parameter, or None without such a dimension.

        A tensor without dimensions has the size 1.
        """
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
    """Return the call of the overload that fits the recorded arguments best.

    The best overload has the fewest parameters beyond the recorded ones; among these it takes the
    most values without conversion; among these it is the first.

    Raises:
        NotReproducibleError: no overload accepts the arguments, or a number was not recorded.
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
    """Return how many values an overload has to convert, or None if it cannot accept them."""
    if len(values) > len(schema.parameters):
        return None
    total = 0
    for parameter, value in zip(schema.parameters, values, strict=False):
        misfit = _misfit_of(parameter, value)
        if misfit is None:
            return None
        total += misfit
    for parameter in schema.parameters[len(values) :]:
        if not parameter.has_default and not parameter.is_optional:
            return None
    return total


def _misfit_of(parameter: Parameter, value: RecordedValue) -> int | None:
    """Return the misfit of a value and a parameter, or None if the parameter cannot take it."""
    if isinstance(value, RecordedTensor):
        return _exact_if(parameter.is_tensor and not parameter.is_list)
    if isinstance(value, RecordedTensors):
        return _exact_if(parameter.is_tensor and parameter.is_list)
    if isinstance(value, RecordedNumber):
        if parameter.is_list:
            return None
        return _misfit_of_number(parameter, value)
    if isinstance(value, RecordedNumbers):
        return _misfit_of_numbers(parameter, value)
    return _misfit_of_nothing(parameter)


def _exact_if(condition: bool) -> int | None:
    """Return the misfit of a value that a parameter takes either as it is or not at all."""
    if condition:
        return _EXACT
    return None


def _misfit_of_number(parameter: Parameter, recorded: RecordedNumber) -> int | None:
    """Return the misfit of a number or truth value, or None if the parameter cannot take it."""
    value = recorded.value
    base = parameter.base
    if value is None:
        return _exact_if(base in _NUMBERS or base in _ENUMERATIONS)
    if base == "Scalar":
        return _EXACT
    if isinstance(value, bool):
        return _exact_if(base == "bool")
    if isinstance(value, int):
        if base == "float":
            return _LOOSE
        return _exact_if(base == "int" or base in _ENUMERATIONS)
    if isinstance(value, float):
        return _exact_if(base == "float")
    return None


def _misfit_of_numbers(parameter: Parameter, recorded: RecordedNumbers) -> int | None:
    """Return the sum of the misfits of numbers, or None if the parameter cannot take them."""
    if recorded.values == () and parameter.is_list and parameter.is_tensor:
        return _LOOSE  # an empty list has no type
    if not parameter.is_list or parameter.base not in _NUMBERS:
        return None
    item = Parameter(name=parameter.name, base=parameter.base)
    total = 0
    for value in recorded.values or ():
        misfit = _misfit_of_number(item, RecordedNumber(value))
        if misfit is None:
            return None
        total += misfit
    return total


def _misfit_of_nothing(parameter: Parameter) -> int | None:
    """Return the misfit of an argument about which nothing was recorded.

    The profiler records nothing for None and for values of some types.
    """
    if parameter.is_optional:
        return _EXACT
    if parameter.base in _UNRECORDED or parameter.has_optional_items:
        return _EXACT
    # Tensors may be undefined, and old traces lack lists.
    if parameter.is_list or parameter.is_tensor:
        return _LOOSE
    return None


def _check_numbers(call: BoundCall) -> None:
    """Check that the call's numbers are known: padding, stride or dim are never guessed.

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
