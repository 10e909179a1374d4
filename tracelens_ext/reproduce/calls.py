"""The call of an operation, as a script has it: a line of source for each argument."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from tracelens_ext.reproduce.element_types import (
    LAYOUTS_BY_NUMBER,
    MEMORY_FORMATS_BY_NUMBER,
    TORCH_TYPES,
    TYPES_BY_NUMBER,
)
from tracelens_ext.reproduce.indexing import index_lines, is_indexing
from tracelens_ext.reproduce.input_rules import Filling, filling_of, list_filling_of
from tracelens_ext.reproduce.overloads import Argument, BoundCall, bind
from tracelens_ext.reproduce.packages import package_of
from tracelens_ext.reproduce.recorded_values import (
    NotReproducibleError,
    Number,
    RecordedNothing,
    RecordedNumber,
    RecordedNumbers,
    RecordedTensor,
    RecordedTensors,
    RecordedValue,
    recorded_values,
)
from tracelens_ext.reproduce.schemas import Parameter, schema_table
from tracelens_ext.reproduce.source_lines import SourceLine
from tracelens_ext.reproduce.specification import RecordedOperation
from tracelens_ext.reproduce.unrecorded_texts import text_of
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.roofline.operation import Operation

_ATEN: Final = "aten::"
_HALF: Final = "c10::Half"
_BFLOAT16: Final = "c10::BFloat16"
_NAME: Final = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
_COLLECTIVE: Final = re.compile(
    r"^(c10d|_c10d_functional|nccl|record_param_comms|gloo)\b"
)
#: Types of tensors without dimensions that Python numbers become.
_NUMBER_TENSORS: Final = {"double": "1.5", "long int": "2", "long": "2", "__int64": "2"}
#: Operations that take a Python number where they have a tensor (`python_arg_parser.cpp`).
_TAKE_NUMBERS: Final = (
    "add",
    "sub",
    "subtract",
    "mul",
    "multiply",
    "div",
    "divide",
    "true_divide",
    "floor_divide",
)
#: What is drawn by chance, copied to or read takes no number from the CPU.
_NO_NUMBERS: Final = ("copy", "_local_scalar_dense", "nonzero", "fill", "zero")
_HOST_TO_DEVICE: Final = "HtoD"
_DEVICE_TO_HOST: Final = "DtoH"
_LONGEST_SUMMARY: Final = 60


@dataclass(frozen=True)
class ScriptCall:
    """A call, as a script has it."""

    opening: str  #: what its first line ends with, such as `Call(`
    lines: tuple[str, ...]  #: what is called, and the arguments, a line each
    summary: str  #: the arguments, in short


def usual_half_type(operations: Sequence[RecordedOperation]) -> str:
    """Return the type of two bytes that most operations have: a list of tensors may have it."""
    counts = Counter[str]()
    for operation in operations:
        counts.update(set(operation.call.types) & {_BFLOAT16, _HALF})
    return _HALF if counts[_HALF] > counts[_BFLOAT16] else _BFLOAT16


def script_call(operation: RecordedOperation, half_type: str = _HALF) -> ScriptCall:
    """Return the call of an operation.

    Args:
        operation: what was recorded of it.
        half_type: the type of two bytes that tensors of unknown type have.

    Raises:
        NotReproducibleError: it cannot be called as it was.
    """
    name = operation.call.name
    if _COLLECTIVE.match(name):
        raise NotReproducibleError(
            "it is communication, which needs the other ranks of the job"
        )
    if not _NAME.fullmatch(name):
        raise NotReproducibleError(
            "it is not a PyTorch operation, so it cannot be called"
        )
    values = recorded_values(operation.call)
    summary = _summary(values)
    if not name.startswith(_ATEN):
        list_type = _list_type(operation, half_type)
        return _package_call(name, values, list_type, summary)
    call = bind(name, values, schema_table())
    list_type = _list_type(operation, half_type)
    writer = _CallWriter(operation, call, list_type)
    lines = [f"{_function(call)},", *(line.text for line in writer.lines())]
    return ScriptCall("Call(", tuple(lines), summary)


def _function(call: BoundCall) -> str:
    """Return what is called: `torch.ops.aten.mm.default`."""
    packet = f"torch.ops.aten.{call.schema.name.removeprefix(_ATEN)}"
    overload = call.schema.overload
    if keyword.iskeyword(overload):
        return f'getattr({packet}, "{overload}")'
    return f"{packet}.{overload}"


def _package_call(
    name: str, values: list[RecordedValue], list_type: str, summary: str
) -> ScriptCall:
    """Return the call of an operation that a package adds to PyTorch.

    Its schema is not known here, so the arguments are in recorded order.
    """
    lines = [f'"{name}",', f'"{package_of(name)}",']
    lines += [_unnamed_argument(value, list_type).text for value in values]
    return ScriptCall("package_call(", tuple(lines), summary)


def _unnamed_argument(value: RecordedValue, list_type: str) -> SourceLine:
    if isinstance(value, RecordedTensor):
        torch_type = TORCH_TYPES[value.element_type or "float"]
        if torch_type == "bool":
            return tensor_line(value, torch_type, Filling("mask"))
        is_float = "float" in torch_type or "complex" in torch_type
        filling = Filling("normal" if is_float else "integers")
        return tensor_line(value, torch_type, filling)
    if isinstance(value, RecordedTensors):
        return list_line(value, list_type, Filling("normal"))
    if isinstance(value, RecordedNumber):
        if value.value is None:
            raise NotReproducibleError("the values of its numbers were not recorded")
        return SourceLine(number_text(value.value))
    if isinstance(value, RecordedNumbers):
        if value.values is None:
            raise NotReproducibleError("the values of its numbers were not recorded")
        return SourceLine(numbers_text(value.values))
    return SourceLine("None", "guessed: not recorded")


class _CallWriter:
    """Writes the arguments of a call of one of PyTorch's operations."""

    def __init__(
        self, operation: RecordedOperation, call: BoundCall, list_type: str
    ) -> None:
        self._operation = operation
        self._call = call
        self._list_type = list_type
        tensors = [
            argument.value
            for argument in call.arguments
            if isinstance(argument.value, RecordedTensor)
        ]
        self._tensors: list[RecordedTensor] = tensors

    def lines(self) -> Iterator[SourceLine]:
        """Yield a line for each argument that has to be passed."""
        needed = self._needed_positions()
        for position, argument in enumerate(self._call.arguments):
            parameter = argument.parameter
            if parameter.is_keyword:
                line = self._keyword(argument)
            elif position < needed:
                line = self._argument(argument)
            else:
                line = None
            if line is None:
                continue
            if parameter.is_keyword:
                line = line.named(parameter.name)
            yield line

    def _needed_positions(self) -> int:
        """Return how many positional arguments are passed: up to the last that is recorded."""
        needed = 0
        for position, (parameter, value) in enumerate(self._call.arguments):
            if parameter.is_keyword:
                break
            is_left_out = parameter.has_default and _is_default(parameter, value)
            if not is_left_out:
                needed = position + 1
        return needed

    def _keyword(self, argument: Argument) -> SourceLine | None:
        """Return an argument that is passed by its name; None where its default says the same."""
        parameter = argument.parameter
        if parameter.base == "Device" and not self._tensors:
            return SourceLine("inputs.device")
        if parameter.has_default and _is_default(parameter, argument.value):
            return None
        return self._argument(argument)

    def _argument(self, argument: Argument) -> SourceLine:
        parameter = argument.parameter
        value = argument.value
        if isinstance(value, RecordedTensor):
            return self._tensor(parameter, value)
        if isinstance(value, RecordedTensors):
            return self._tensor_list(parameter, value)
        if isinstance(value, RecordedNumber):
            return _number(parameter, value)
        if isinstance(value, RecordedNumbers):
            return _numbers(parameter, value)
        return self._unrecorded(parameter)

    def _tensor(self, parameter: Parameter, tensor: RecordedTensor) -> SourceLine:
        torch_type = TORCH_TYPES[tensor.element_type or "float"]
        if self._is_number(parameter, tensor):
            value = _NUMBER_TENSORS[tensor.element_type or ""]
            if self._call.short_name not in _TAKE_NUMBERS or parameter.name == "self":
                value = f"torch.tensor({value}, dtype=torch.{torch_type})"
            return SourceLine(value, "guessed: a number")
        filling = filling_of(self._call, parameter.name, tensor, torch_type)
        line = tensor_line(tensor, torch_type, filling)
        if self._is_on_host(parameter):
            line = line.with_options(self._host_options())
        return line

    def _is_number(self, parameter: Parameter, tensor: RecordedTensor) -> bool:
        """Return whether a tensor without dimensions was probably a Python number."""
        if tensor.sizes or tensor.element_type not in _NUMBER_TENSORS:
            return False
        if parameter.is_keyword or self._call.short_name in _NO_NUMBERS:
            return False
        if self._call.is_in_place and parameter.name == "self":
            return False
        return any(other.sizes for other in self._tensors)

    def _is_on_host(self, parameter: Parameter) -> bool:
        """Return whether a tensor of a copy is in the memory of the host."""
        if self._call.short_name != "copy":
            return False
        kernels = " ".join(self._operation.kernels)
        if parameter.name == "src":
            return _HOST_TO_DEVICE in kernels
        return parameter.name == "self" and _DEVICE_TO_HOST in kernels

    def _host_options(self) -> dict[str, object]:
        options: dict[str, object] = {"on_host": True}
        if any("Pinned" in kernel for kernel in self._operation.kernels):
            options["pinned"] = True
        return options

    def _tensor_list(self, parameter: Parameter, value: RecordedTensors) -> SourceLine:
        if not value.tensors and self._is_first_list(parameter):
            raise NotReproducibleError(
                "its list of tensors was recorded as empty, as PyTorch does for more "
                "than 30 tensors"
            )
        filling = list_filling_of(self._call, parameter.name, value)
        torch_type = self._list_type
        if filling.method == "constant":
            torch_type = "float32"
        return list_line(value, torch_type, filling)

    def _is_first_list(self, parameter: Parameter) -> bool:
        lists = [
            argument.parameter.name
            for argument in self._call.arguments
            if isinstance(argument.value, RecordedTensors)
        ]
        return lists[:1] == [parameter.name]

    def _unrecorded(self, parameter: Parameter) -> SourceLine:
        """Return an argument of which nothing was recorded."""
        if parameter.has_optional_items and is_indexing(self._call):
            return index_lines(self._operation, self._call)
        if parameter.base == "Device" and not self._tensors:
            return SourceLine("inputs.device")
        if parameter.is_optional and parameter.base != "str":
            return SourceLine("None")
        if parameter.base == "str":
            return text_of(self._operation, self._call, parameter)
        if parameter.is_tensor and not parameter.is_list:
            return SourceLine("None")
        if parameter.is_list and parameter.is_tensor:
            raise NotReproducibleError(
                f"the tensors of the list `{parameter.name}` were not recorded"
            )
        raise NotReproducibleError(f"the value of `{parameter.name}` was not recorded")


def _is_default(parameter: Parameter, value: RecordedValue | None) -> bool:
    """Return whether an argument says what its default says, or nothing."""
    if value is None:
        return True
    if isinstance(value, RecordedNothing):
        return parameter.default is None or parameter.base == "str"
    if isinstance(value, RecordedNumber):
        return value.value is None
    if isinstance(value, RecordedNumbers):
        return value.values is None
    return False


def _number(parameter: Parameter, recorded: RecordedNumber) -> SourceLine:
    value = recorded.value
    if value is None:
        if parameter.has_default:
            return SourceLine(_default_text(parameter), "guessed: the default")
        return SourceLine("1.0", "guessed: a scale, not recorded")
    names = {
        "ScalarType": TYPES_BY_NUMBER,
        "Layout": LAYOUTS_BY_NUMBER,
        "MemoryFormat": MEMORY_FORMATS_BY_NUMBER,
    }.get(parameter.base)
    if names is None:
        return SourceLine(number_text(value))
    name = names.get(value) if type(value) is int else None
    if name is None:
        raise NotReproducibleError(
            f"`{parameter.name}` is {value}, which is not a {parameter.base} of PyTorch"
        )
    return SourceLine(f"torch.{name}")


def _default_text(parameter: Parameter) -> str:
    return repr(parameter.default)


def _numbers(parameter: Parameter, recorded: RecordedNumbers) -> SourceLine:
    if recorded.values is None:
        return SourceLine(_default_text(parameter), "guessed: the default")
    return SourceLine(numbers_text(recorded.values))


def number_text(value: Number) -> str:
    """Return a number as Python writes it."""
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    return repr(value)


def numbers_text(values: tuple[Number, ...]) -> str:
    """Return a list of numbers as Python writes it."""
    return f"[{', '.join(map(number_text, values))}]"


def tensor_line(
    tensor: RecordedTensor, torch_type: str, filling: Filling
) -> SourceLine:
    """Return what makes a tensor: `inputs.normal((4, 8), torch.float32)`."""
    options = dict(filling.options)
    arguments = [repr(tensor.sizes)]
    if filling.method == "constant":
        arguments.insert(0, repr(filling.value))
    if filling.method != "mask":
        arguments.append(f"torch.{torch_type}")
    if tensor.strides is not None and not tensor.is_contiguous:
        options = {"strides": tensor.strides, **options}
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    return SourceLine(f"inputs.{filling.method}({', '.join(arguments)})")


def list_line(value: RecordedTensors, torch_type: str, filling: Filling) -> SourceLine:
    """Return what makes a list of tensors."""
    if not value.tensors:
        return SourceLine("[]")
    items = [tensor_line(tensor, torch_type, filling).code for tensor in value.tensors]
    comment = f"guessed: {torch_type}, because types in lists are not recorded"
    return SourceLine.of_list(items, comment)


def _list_type(operation: RecordedOperation, half_type: str) -> str:
    """Return the probable type of the tensors of a list: that in the names of the kernels."""
    recorded = Operation(operation.call.name, kernels=operation.kernels)
    element_type = recorded.kind_in_kernels
    if element_type is None:
        return "float32"
    is_named = any(element_type in kernel for kernel in operation.kernels)
    if element_type == _HALF and not is_named:
        element_type = half_type  # the kernel knows their size only
    return TORCH_TYPES[element_type]


def _summary(values: list[RecordedValue]) -> str:
    """Return arguments in short: `bf16[4096,256] fp32[256] 1`."""
    text = " ".join(filter(None, map(_short, values)))
    if len(text) <= _LONGEST_SUMMARY:
        return text
    return text[: _LONGEST_SUMMARY - 3] + "..."


def _short(value: RecordedValue) -> str:
    if isinstance(value, RecordedTensor):
        sizes = ",".join(map(str, value.sizes))
        return f"{short_type(value.element_type or '')}[{sizes}]"
    if isinstance(value, RecordedTensors):
        return f"{len(value.tensors)} tensors"
    if isinstance(value, RecordedNumber):
        return "" if value.value is None else str(value.value)
    if isinstance(value, RecordedNumbers):
        numbers = ",".join(map(str, value.values or ()))
        return f"[{numbers}]"
    return ""
