"""The call of an operation in a script: its overload and the source of each argument."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.element_types import TORCH_TYPES
from tracelens_ext.reproduce.indexing import index_argument, is_indexing
from tracelens_ext.reproduce.input_rules import (
    Filling,
    filling_of,
    is_index,
    list_filling_of,
)
from tracelens_ext.reproduce.number_source import (
    number_argument,
    number_text,
    numbers_argument,
    numbers_list,
)
from tracelens_ext.reproduce.overloads import Argument, BoundCall, bind
from tracelens_ext.reproduce.packages import package_of
from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    RecordedNothing,
    RecordedNumber,
    RecordedNumbers,
    RecordedTensor,
    RecordedTensors,
    RecordedValue,
    recorded_values,
)
from tracelens_ext.reproduce.schemas import Parameter, schema_table
from tracelens_ext.reproduce.specification import RecordedOperation
from tracelens_ext.reproduce.tensor_source import (
    HALF,
    tensor_argument,
    tensor_list_argument,
    type_in_lists,
)
from tracelens_ext.reproduce.unrecorded_texts import text_argument
from tracelens_ext.roofline.element_types import short_type

_ATEN: Final = "aten::"
_NAME: Final = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
_COLLECTIVE: Final = re.compile(
    r"(c10d|_c10d_functional|nccl|record_param_comms|gloo)\b"
)
#: PyTorch turns a Python number into a tensor without dimensions. These are the values that scripts
#: use for such tensors, by the type of the tensor.
_NUMBER_TENSORS: Final = {"double": "1.5", "long int": "2", "long": "2", "__int64": "2"}
#: Operations that accept a Python number in place of a tensor (`python_arg_parser.cpp`).
_ACCEPT_NUMBERS: Final = frozenset(
    [
        "add",
        "sub",
        "subtract",
        "mul",
        "multiply",
        "div",
        "divide",
        "true_divide",
        "floor_divide",
    ]
)
#: Operations in which a tensor without dimensions never comes from a Python number.
_WITHOUT_NUMBERS: Final = frozenset(
    ["copy", "_local_scalar_dense", "nonzero", "fill", "zero"]
)
_NUMBER_IS_GUESSED: Final = "guessed: a Python number"
_HOST_TO_DEVICE: Final = "HtoD"
_DEVICE_TO_HOST: Final = "DtoH"
_LONGEST_SUMMARY: Final = 60
#: The width of the indentation of the arguments of a call in the script.
_INDENT: Final = 8


@dataclass(frozen=True)
class ScriptCall:
    """A call in the script."""

    opening: str  #: the end of the first line, such as `Call(`
    lines: tuple[str, ...]  #: the lines between the brackets, not indented
    summary: str  #: a summary of the arguments


def script_call(operation: RecordedOperation, half_type: str = HALF) -> ScriptCall:
    """Return the call of an operation.

    Args:
        operation: what was recorded about it.
        half_type: the assumed type of 16-bit floats in lists.

    Raises:
        NotReproducibleError: a script cannot call it in the same way.
    """
    name = operation.call.name
    if _COLLECTIVE.match(name):
        raise NotReproducibleError(
            "a collective operation needs the other ranks of the job"
        )
    if not _NAME.fullmatch(name):
        raise NotReproducibleError(
            "not an operation of PyTorch's dispatcher, so a script cannot call it"
        )
    values = recorded_values(operation.call)
    if name.startswith(_ATEN):
        call = bind(name, values, schema_table())
        list_type = type_in_lists(operation, half_type)
        opening = "Call("
        lines = [f"{_function(call)},"]
        arguments = list(_CallArguments(operation, call, list_type).sources())
    else:
        list_type = type_in_lists(operation, half_type)
        opening = "package_call("
        lines = [f'"{name}",', f'"{package_of(name)}",']
        arguments = [_unnamed_argument(value, list_type) for value in values]
    for argument in arguments:
        lines += argument.lines(_INDENT)
    return ScriptCall(opening, tuple(lines), _summary(values))


def _function(call: BoundCall) -> str:
    """Return the overload that is called: `torch.ops.aten.mm.default`."""
    packet = f"torch.ops.aten.{call.schema.name.removeprefix(_ATEN)}"
    overload = call.schema.overload
    if keyword.iskeyword(overload):
        return f'getattr({packet}, "{overload}")'
    return f"{packet}.{overload}"


def _unnamed_argument(value: RecordedValue, list_type: str) -> ArgumentSource:
    """Return an argument of an operation whose schema is unknown.

    Raises:
        NotReproducibleError: the argument is a number that was not recorded.
    """
    if isinstance(value, RecordedTensor):
        torch_type = TORCH_TYPES[value.element_type or "float"]
        return tensor_argument(value, torch_type, _plain_filling(torch_type))
    if isinstance(value, RecordedTensors):
        return tensor_list_argument(value, list_type, Filling("normal"))
    if isinstance(value, RecordedNumber) and value.value is not None:
        return ArgumentSource(number_text(value.value))
    if isinstance(value, RecordedNumbers) and value.values is not None:
        return numbers_list(value.values)
    if isinstance(value, RecordedNothing):
        return ArgumentSource("None", comment="guessed: nothing was recorded")
    raise NotReproducibleError("the values of numbers were not recorded")


def _plain_filling(torch_type: str) -> Filling:
    """Return how to create a tensor whose meaning is unknown."""
    if torch_type == "bool":
        return Filling("mask")
    if "float" in torch_type or "complex" in torch_type:
        return Filling("normal")
    return Filling("integers")


class _CallArguments:
    """The arguments of a call of one of PyTorch's own operations as source code."""

    def __init__(
        self, operation: RecordedOperation, call: BoundCall, list_type: str
    ) -> None:
        self._operation = operation
        self._call = call
        self._list_type = list_type
        self._tensors: list[RecordedTensor] = []
        for argument in call.arguments:
            if isinstance(argument.value, RecordedTensor):
                self._tensors.append(argument.value)

    def sources(self) -> Iterator[ArgumentSource]:
        """Yield the source of each argument that has to be passed.

        Raises:
            NotReproducibleError: an argument was not recorded and cannot be guessed.
        """
        positional_count = self._positional_count()
        for position, argument in enumerate(self._call.arguments):
            parameter = argument.parameter
            if parameter.is_keyword:
                if self._can_be_omitted(argument):
                    continue
                yield self._argument(argument).named(parameter.name)
            elif position < positional_count:
                yield self._positional(argument)

    def _positional(self, argument: Argument) -> ArgumentSource:
        """Return a positional argument; a comment names its parameter unless it is a tensor."""
        parameter = argument.parameter
        source = self._argument(argument)
        is_tensor = parameter.is_tensor and source.opening != "None"
        if is_tensor:
            return source
        return source.labeled(parameter.name)

    def _positional_count(self) -> int:
        """Return how many positional arguments are passed: up to the last needed one."""
        count = 0
        for position, argument in enumerate(self._call.arguments):
            if argument.parameter.is_keyword:
                break
            if not self._can_be_omitted(argument):
                count = position + 1
        return count

    def _can_be_omitted(self, argument: Argument) -> bool:
        """Return whether the call may omit an argument, so that its default applies."""
        parameter, value = argument
        if parameter.base == "Device" and not self._tensors:
            return False
        if not parameter.has_default:
            return False
        if parameter.base == "str":
            # If it was passed, the script shows a guess with a comment.
            return value is None
        if isinstance(value, RecordedNothing):
            return parameter.default is None
        if isinstance(value, RecordedNumber):
            return value.value is None
        if isinstance(value, RecordedNumbers):
            return value.values is None
        return value is None

    def _argument(self, argument: Argument) -> ArgumentSource:
        parameter = argument.parameter
        value = argument.value
        if isinstance(value, RecordedTensor):
            return self._tensor(parameter, value)
        if isinstance(value, RecordedTensors):
            return self._tensor_list(parameter, value)
        if isinstance(value, RecordedNumber):
            return number_argument(parameter, value)
        if isinstance(value, RecordedNumbers):
            return numbers_argument(parameter, value)
        return self._unrecorded(parameter)

    def _tensor(self, parameter: Parameter, tensor: RecordedTensor) -> ArgumentSource:
        torch_type = TORCH_TYPES[tensor.element_type or "float"]
        if self._is_number(parameter, tensor):
            value = _NUMBER_TENSORS[tensor.element_type or ""]
            name = self._call.short_name
            if name not in _ACCEPT_NUMBERS or parameter.name == "self":
                value = f"inputs.number({value}, torch.{torch_type})"
            return ArgumentSource(value, comment=_NUMBER_IS_GUESSED)
        filling = filling_of(self._call, parameter.name, tensor, torch_type)
        source = tensor_argument(tensor, torch_type, filling)
        if self._is_on_host(parameter):
            return source.with_items(self._host_options())
        return source

    def _is_number(self, parameter: Parameter, tensor: RecordedTensor) -> bool:
        """Return whether a tensor is probably what a Python number became."""
        call = self._call
        if tensor.sizes or tensor.element_type not in _NUMBER_TENSORS:
            return False
        if parameter.is_keyword or call.short_name in _WITHOUT_NUMBERS:
            return False
        if is_index(call, parameter.name):
            return False
        is_written = call.is_in_place and parameter.name == "self"
        if is_written:
            return False
        return any(other.sizes for other in self._tensors)

    def _is_on_host(self, parameter: Parameter) -> bool:
        """Return whether a tensor of a copy is in host memory."""
        if self._call.short_name != "copy":
            return False
        kernels = " ".join(self._operation.kernels)
        if parameter.name == "src":
            return _HOST_TO_DEVICE in kernels
        if parameter.name == "self":
            return _DEVICE_TO_HOST in kernels
        return False

    def _host_options(self) -> list[str]:
        options = ["on_host=True"]
        if any("Pinned" in kernel for kernel in self._operation.kernels):
            options.append("pinned=True")
        return options

    def _tensor_list(
        self, parameter: Parameter, value: RecordedTensors
    ) -> ArgumentSource:
        if not value.tensors and self._is_first_list(parameter):
            raise NotReproducibleError(
                "a list of tensors was recorded empty, as PyTorch does for lists of"
                " more than 30 tensors"
            )
        filling = list_filling_of(self._call, parameter.name, value)
        torch_type = self._list_type
        if filling.method == "constant":
            torch_type = "float32"
        return tensor_list_argument(value, torch_type, filling)

    def _is_first_list(self, parameter: Parameter) -> bool:
        """Return whether a parameter is the first list of tensors, which cannot be empty."""
        for argument in self._call.arguments:
            if isinstance(argument.value, RecordedTensors):
                return argument.parameter.name == parameter.name
        return False

    def _unrecorded(self, parameter: Parameter) -> ArgumentSource:
        """Return an argument about which nothing was recorded."""
        if parameter.has_optional_items and is_indexing(self._call):
            return index_argument(self._operation, self._call)
        if parameter.base == "Device" and not (parameter.is_optional and self._tensors):
            return ArgumentSource("inputs.device")
        if parameter.base == "str":
            return text_argument(self._operation, self._call, parameter)
        if parameter.is_optional:
            return ArgumentSource("None")
        if parameter.is_tensor and not parameter.is_list:
            return ArgumentSource("None")
        if parameter.is_list and parameter.is_tensor:
            raise NotReproducibleError(
                f"the tensors of the list `{parameter.name}` were not recorded"
            )
        raise NotReproducibleError(f"the value of `{parameter.name}` was not recorded")


def _summary(values: list[RecordedValue]) -> str:
    """Return a summary of arguments: `bf16[4096,256] fp32[256] 1`."""
    texts = [_short(value) for value in values]
    text = " ".join(filter(None, texts))
    if len(text) <= _LONGEST_SUMMARY:
        return text
    return text[: _LONGEST_SUMMARY - 3] + "..."


def _short(value: RecordedValue) -> str:
    """Return a value as short text for the summary of a call."""
    if isinstance(value, RecordedTensor):
        sizes = ",".join(map(str, value.sizes))
        return f"{short_type(value.element_type or '')}[{sizes}]"
    if isinstance(value, RecordedTensors):
        return f"{len(value.tensors)} tensors"
    if isinstance(value, RecordedNumber) and value.value is not None:
        return str(value.value)
    if isinstance(value, RecordedNumbers):
        numbers = ",".join(map(str, value.values or ()))
        return f"[{numbers}]"
    return ""
