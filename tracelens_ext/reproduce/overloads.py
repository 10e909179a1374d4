"""Which overload of an operation was called, and which argument is which of its parameters."""

from __future__ import annotations

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

#: Numbers that only scale a result. Where none were recorded, they are left at their defaults.
_SCALES: Final = ("alpha", "beta", "scale", "eps", "negative_slope", "lambd", "value")
_ENUMERATIONS: Final = ("ScalarType", "Layout", "MemoryFormat")
#: Types that the profiler records nothing of.
_UNRECORDED: Final = ("str", "Device", "Generator", "Storage", "Stream")

#: How well a value fits a parameter: `_NO_FIT`, else the less the better.
_NO_FIT: Final = None
_EXACT: Final = 0
_LOOSE: Final = 1


class Argument(NamedTuple):
    """A parameter, and what was recorded for it."""

    parameter: Parameter
    value: RecordedValue | None  #: None where the trace has fewer arguments


@dataclass(frozen=True)
class BoundCall:
    """A call of an overload."""

    schema: Schema
    arguments: tuple[Argument, ...]  #: in the order of the parameters

    @property
    def short_name(self) -> str:
        """Its name without the library, and without the `_` of an operation in place."""
        name = self.schema.name.removeprefix("aten::")
        return name.removesuffix("_")

    @property
    def is_in_place(self) -> bool:
        """True if it writes its first argument, as PyTorch's names say."""
        name = self.schema.name
        return name.endswith("_") and not name.endswith("__")

    def value(self, name: str) -> RecordedValue | None:
        """Return what was recorded for a parameter, by its name; None for nothing."""
        for argument in self.arguments:
            if argument.parameter.name == name:
                return argument.value
        return None

    def tensor(self, name: str) -> RecordedTensor | None:
        """Return the tensor that was recorded for a parameter; None where it is none."""
        value = self.value(name)
        return value if isinstance(value, RecordedTensor) else None

    def whole(self, name: str) -> int | None:
        """Return the whole number that was recorded for a parameter; None where it is none."""
        value = self.value(name)
        if isinstance(value, RecordedNumber) and type(value.value) is int:
            return value.value
        return None

    def wholes(self, name: str) -> list[int]:
        """Return the list of numbers that was recorded for a parameter; empty without one."""
        value = self.value(name)
        if not isinstance(value, RecordedNumbers):
            return []
        return [number for number in value.values or () if type(number) is int]

    def size(self, name: str, dimension: int | None) -> int | None:
        """Return a size of the tensor of a parameter; None where there is no such dimension."""
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
    """Return the call of the overload that recorded arguments fit best.

    That is the one with the fewest parameters beyond what was recorded, then the one that takes
    the values as they are, then the first.

    Raises:
        NotReproducibleError: no overload takes them, or an argument without a default is missing.
    """
    overloads = table.overloads(name)
    if not overloads:
        raise NotReproducibleError(f"PyTorch {table.version} has no {name}")
    best: tuple[int, int] | None = None
    chosen: Schema | None = None
    for schema in overloads:
        misfit = _misfit(schema, values)
        if misfit is None:
            continue
        rank = (len(schema.parameters) - len(values), misfit)
        if best is None or rank < best:
            best = rank
            chosen = schema
    if chosen is None:
        raise NotReproducibleError(
            f"no overload of {name} in PyTorch {table.version} takes"
            f" the {len(values)} recorded arguments"
        )
    padded: list[RecordedValue | None] = list(values)
    padded += [None] * (len(chosen.parameters) - len(values))
    arguments = [
        Argument(parameter, value)
        for parameter, value in zip(chosen.parameters, padded, strict=True)
    ]
    call = BoundCall(chosen, tuple(arguments))
    _check_numbers(call)
    return call


def _misfit(schema: Schema, values: list[RecordedValue]) -> int | None:
    """Return how badly recorded values fit an overload; None where it cannot take them."""
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
    """Return how badly a recorded value fits a parameter; None where it cannot be its value."""
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
        is_number = base in ("Scalar", "int", "float", "bool", *_ENUMERATIONS)
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
    if not parameter.is_list or parameter.base not in (
        "int",
        "float",
        "bool",
        "Scalar",
    ):
        return _NO_FIT
    item = Parameter(parameter.name, parameter.base)
    misfits = [
        _misfit_of_number(item, RecordedNumber(value))
        for value in recorded.values or ()
    ]
    total = 0
    for misfit in misfits:
        if misfit is None:
            return _NO_FIT
        total += misfit
    return total


def _misfit_of_nothing(parameter: Parameter) -> int | None:
    """Nothing stands for None, and for what the profiler does not record."""
    if parameter.is_optional:
        return _EXACT
    if parameter.base in _UNRECORDED or parameter.has_optional_items:
        return _EXACT
    # A tensor may be undefined; lists were not recorded in old traces.
    if parameter.is_list or parameter.is_tensor:
        return _LOOSE
    return _NO_FIT


def _check_numbers(call: BoundCall) -> None:
    """Refuse a call whose numbers are not known: padding, stride and dim are never made up.

    Raises:
        NotReproducibleError: a number without a default was not recorded.
    """
    for parameter, value in call.arguments:
        is_unknown_number = isinstance(value, RecordedNumber) and value.value is None
        is_unknown_list = isinstance(value, RecordedNumbers) and value.values is None
        is_missing_list = (
            isinstance(value, RecordedNothing)
            and parameter.is_list
            and not parameter.is_optional
            and not parameter.is_tensor
        )
        if not (is_unknown_number or is_unknown_list or is_missing_list):
            continue
        if parameter.default is not None or parameter.name in _SCALES:
            continue
        raise NotReproducibleError(
            f"the value of `{parameter.name}` was not recorded (PyTorch records"
            " `Concrete Inputs` since version 2.0)"
        )
