"""Reads the compiled programs in a profile: operands of operations, and where they were written.

The plane `/host:metadata` has an `HloProto` for each program: its instructions with their shapes,
after fusion. Nothing else is needed, and nothing is written.

Format: `xplane.proto` (tsl/profiler/protobuf), `hlo.proto` (xla/service) and `xla_data.proto` of
openxla/xla. Only the fields that are read are declared; a parser skips all others, so older and
newer files are read as well. Texts are declared as bytes: those of a file need not be UTF-8.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from tracelens_ext.trace import PROGRAM_SHIFT

_PACKAGE: Final = "tracelens_ext"
#: Message → its fields: name, number, type; `*` says that it is repeated. Planes, and the lines of
#: a plane, are taken apart by `fields` of `many_messages.py`, to have one line at a time in memory;
#: events, which are many, by `many_messages.py`.
_MESSAGES: Final = {
    "XPlane": "name 2 bytes, event_metadata 4 EventMetadataEntry*,"
    " stat_metadata 5 StatMetadataEntry*, stats 6 XStat*",
    "EventMetadataEntry": "key 1 int64, value 2 XEventMetadata",
    "StatMetadataEntry": "key 1 int64, value 2 XStatMetadata",
    "XLine": "id 1 int64, name 2 bytes, timestamp_ns 3 int64, events 4 bytes*,"
    " display_name 11 bytes",
    "XEvent": "metadata_id 1 int64, offset_ps 2 int64, duration_ps 3 int64, stats 4 XStat*,"
    " num_occurrences 5 int64",
    "XStat": "metadata_id 1 int64, uint64_value 3 uint64, int64_value 4 int64, str_value 5 bytes,"
    " bytes_value 6 bytes, ref_value 7 uint64",
    "XEventMetadata": "name 2 bytes, stats 5 XStat*",
    "XStatMetadata": "name 2 bytes",
    "HloProto": "hlo_module 1 HloModule",
    "HloModule": "name 1 bytes, computations 3 HloComputation*, stack_frames 17 StackFrameIndex",
    "HloComputation": "instructions 2 HloInstruction*, id 5 int64, root_id 6 int64",
    "HloInstruction": "name 1 bytes, opcode 2 bytes, shape 3 Shape, metadata 7 OpMetadata,"
    " window 15 Window, convolution 16 ConvolutionDimensions, custom_call_target 28 bytes,"
    " dot 30 DotDimensions, id 35 int64, operand_ids 36 int64*, called_computation_ids 38 int64*,"
    " backend_config 43 bytes, parameter_number 9 int64",
    "Shape": "element_type 2 int32, dimensions 3 int64*, tuple_shapes 4 Shape*",
    "OpMetadata": "source_file 3 bytes, source_line 4 int32, stack_frame_id 15 int32",
    "Window": "dimensions 1 WindowDimension*",
    "WindowDimension": "size 1 int64, stride 2 int64, padding_low 3 int64, padding_high 4 int64,"
    " window_dilation 5 int64, base_dilation 6 int64",
    "ConvolutionDimensions": "kernel_output_feature 4 int64",
    "DotDimensions": "lhs_contracting 1 int64*, lhs_batch 3 int64*",
    "StackFrameIndex": "file_names 1 bytes*, file_locations 3 FileLocation*,"
    " stack_frames 4 StackFrame*",
    "FileLocation": "file_name_id 1 int32, line 3 int32",
    "StackFrame": "file_location_id 1 int32",
}

#: A message whose class is made when the program runs.
Message = Any


@cache
def message_class(name: str) -> Message:
    """Return the class of a message, with `FromString` and `SerializeToString`."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(
        _pool().FindMessageTypeByName(f"{_PACKAGE}.{name}")
    )


@cache
def _pool() -> Any:  # noqa: ANN401  # a `DescriptorPool`
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(package=_PACKAGE, syntax="proto3")
    file.name = "xplane_as_read.proto"
    for name, declarations in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for declaration in declarations.split(","):
            _declare_field(message, declaration)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _declare_field(message: Any, declaration: str) -> None:  # noqa: ANN401  # a `DescriptorProto`
    """Add a field to a message, given a text such as `events 4 bytes*`."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name, number, declared_type = declaration.split()
    field = message.field.add(name=name, number=int(number))
    field.label = FieldDescriptorProto.LABEL_OPTIONAL
    if declared_type.endswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    type_name = declared_type.rstrip("*")
    if type_name.islower():
        type_constant = f"TYPE_{type_name.upper()}"
        field.type = FieldDescriptorProto.Type.Value(type_constant)
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


_LABEL: Final = re.compile(r"(.*)\((\d{1,18})\)$", re.DOTALL)
_DAMAGED_PROGRAMS_NAMED: Final = 3


class Arguments(NamedTuple):
    """The arguments of an operation, the first three as the JSON of a list."""

    dims: bytes  #: sizes of each operand
    types: bytes  #: type of each operand
    #: texts `name=value`: `opcode`, `target` of a library call, `result`, of a window `stride`,
    #: `padding` and `dilation`, and `source`, the file and the line
    concrete: bytes
    instruction: int  #: as `Trace.instructions` has it


class _EncodedProgram(NamedTuple):
    """A program that was not decoded yet."""

    label: str
    content: bytes


class Programs:
    """The programs of a profile, which are decoded when they are needed.

    Attributes:
        used: the content of those that were needed, as `Trace.programs`.
    """

    def __init__(self) -> None:
        self.used: list[bytes] = []
        self._by_id: dict[int, _EncodedProgram] = {}
        self._ids_by_name: dict[str, set[int]] = {}
        self._damaged: list[str] = []
        self._decode = cache(self._decode_program)

    def add(self, label: str, content: bytes) -> None:
        """Add a program: its label, such as `jit_f(15)`, and its HLO."""
        name = label
        number = -2 - len(self._by_id)
        parts = _LABEL.match(label)
        if parts:
            name = parts[1]
            number = int(parts[2])
        self._by_id[number] = _EncodedProgram(label, content)
        self._ids_by_name.setdefault(name, set()).add(number)

    def arguments(self, program: int, module: str, operation: str) -> Arguments | None:
        """Return the arguments of an operation; None if they are not known.

        Args:
            program: its id; with an unknown one the only program of the module is taken.
            module: the name of the program.
            operation: the name of the instruction.
        """
        if program not in self._by_id:
            ids_of_module = self._ids_by_name.get(module, set())
            if len(ids_of_module) != 1:
                return None
            (program,) = ids_of_module
        decoded = self._decode(program)
        if decoded is None:
            return None
        return decoded.arguments(operation)

    def notes(self) -> list[str]:
        """Return a sentence about the programs that could not be decoded, if there are any."""
        if not self._damaged:
            return []
        names = ", ".join(self._damaged[:_DAMAGED_PROGRAMS_NAMED])
        if len(self._damaged) > _DAMAGED_PROGRAMS_NAMED:
            names += " …"
        return [
            f"The HLO of {names} is damaged, so their operations have no arguments."
        ]

    def _decode_program(self, number: int) -> _Program | None:
        from google.protobuf.message import DecodeError

        program = self._by_id[number]
        try:
            module = message_class("HloProto").FromString(program.content).hlo_module
        except DecodeError:
            self._damaged.append(program.label)
            return None
        self.used.append(program.content)
        return _Program(module, len(self.used) - 1)


class _Program:
    """A decoded program."""

    def __init__(self, module: Message, number: int) -> None:
        self._number = number
        self._frames = module.stack_frames
        self._instructions = instructions_of(module)
        self._place_of_name: dict[bytes, int] = {}
        self._by_id: dict[int, Message] = {}
        for place, instruction in enumerate(self._instructions):
            self._place_of_name[instruction.name] = place
            self._by_id[instruction.id] = instruction
        self.arguments = cache(self._find_arguments)

    def _find_arguments(self, operation: str) -> Arguments | None:
        encoded_name = operation.encode("utf-8", "replace")
        place = self._place_of_name.get(encoded_name)
        if place is None:
            return None
        instruction = self._instructions[place]
        operands = operands_of(instruction, self._by_id)
        return Arguments(
            dims=_json([array.dims for array in operands]),
            types=_json([array.kind for array in operands]),
            concrete=_json(self._description(instruction)),
            instruction=self._number << PROGRAM_SHIFT | place,
        )

    def _description(self, instruction: Message) -> list[str]:
        """Return texts `name=value` for what is known besides the operands."""
        texts = [f"opcode={_text(instruction.opcode)}"]
        target = _text(instruction.custom_call_target)
        if target:
            texts.append(f"target={target}")
        texts += [f"result={array}" for array in results_of(instruction)]
        for name, sizes in windows_of(instruction).items():
            shown_sizes = "x".join(map(str, sizes))
            texts.append(f"{name}={shown_sizes}")
        source = self._source(instruction.metadata)
        if source:
            texts.append(f"source={source}")
        return texts

    def _source(self, metadata: Message) -> str:
        """Return file and line of an instruction, or of the innermost frame of its stack."""
        if metadata.source_file:
            return f"{_text(metadata.source_file)}:{metadata.source_line}"
        frames = self._frames
        frame = _numbered_item(frames.stack_frames, metadata.stack_frame_id)
        if not frame:
            return ""
        location = _numbered_item(frames.file_locations, frame.file_location_id)
        if location is None:
            return ""
        file = _numbered_item(frames.file_names, location.file_name_id)
        if not file:
            return ""
        return f"{_text(file)}:{location.line}"


def _json(items: list[Any]) -> bytes:
    return json.dumps(items).encode()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _numbered_item(items: Message, number: int) -> Message | None:
    """Return an item by its number, which counts from 1; None for a number without an item."""
    if 0 < number <= len(items):
        return items[number - 1]
    return None


# Shapes of arrays as XLA has them: `bf16[1,5120,34,31,53]`.

_ALL_NAMES: Final = (
    "pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 - - c64 bf16 - c128 f8e5m2 f8e4m3fn s4 u4"
    " f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu"
)
#: Number of a type → its name; types without arrays have none.
_NAMES: Final = {
    number: name
    for number, name in enumerate(_ALL_NAMES.split(), start=1)
    if name != "-"
}
_TUPLE: Final = 13
#: No program has arrays of more dimensions; a damaged file could make their product any number.
MOST_DIMENSIONS: Final = 64
_BITS_OF_BYTE: Final = 8


def _bits_of(type_name: str) -> int:
    """Return the bits of an element: the number in the name of the type; `pred` takes a byte."""
    if type_name == "pred":
        return _BITS_OF_BYTE
    digits = type_name.lstrip("abcdefghijklmnopqrstuvwxyz").split("e")[0]
    return int(digits)


#: Name of a type → bits of an element.
TYPE_BITS: Final = {name: _bits_of(name) for name in _NAMES.values()}


class Shape(NamedTuple):
    """The shape of an array: the name of its type, and its sizes."""

    kind: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The bytes that they take, rounded up."""
        bits = self.elements * TYPE_BITS[self.kind]
        return -(-bits // _BITS_OF_BYTE)

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.dims))
        return f"{self.kind}[{sizes}]"


def arrays_of(shape: Message) -> list[Shape]:
    """Return the arrays of a shape: one, or those of a tuple; an unknown size counts as 0."""
    if shape.element_type == _TUPLE:
        arrays = []
        for part in shape.tuple_shapes:
            arrays += arrays_of(part)
        return arrays
    type_name = _NAMES.get(shape.element_type)
    if type_name is None:
        return []
    if len(shape.dimensions) > MOST_DIMENSIONS:
        return []
    sizes = tuple(max(size, 0) for size in shape.dimensions)
    return [Shape(type_name, sizes)]


def instructions_of(module: Message) -> list[Message]:
    """Return the instructions of all computations of a program."""
    instructions: list[Message] = []
    for computation in module.computations:
        instructions += computation.instructions
    return instructions


def operands_of(instruction: Message, by_id: Mapping[int, Message]) -> list[Shape]:
    """Return the arrays that an instruction takes, given all instructions by id."""
    arrays = []
    for number in instruction.operand_ids:
        operand = by_id.get(number)
        if operand is not None:
            arrays += arrays_of(operand.shape)
    return arrays


def results_of(instruction: Message) -> list[Shape]:
    """Return the arrays that an instruction makes, without the workspace of a library's call."""
    results = arrays_of(instruction.shape)
    if not instruction.custom_call_target.startswith((b"__cudnn", b"__cublas")):
        return results
    without_workspace = [array for array in results[1:] if array.kind != "u8"]
    return results[:1] + without_workspace


def windows_of(instruction: Message) -> dict[str, tuple[int, ...]]:
    """Return stride, padding and dilation of an instruction that has a window, else nothing."""
    windows = instruction.window.dimensions
    if not windows:
        return {}
    return {
        "stride": tuple(window.stride for window in windows),
        "padding": tuple(window.padding_low for window in windows),
        "dilation": tuple(window.window_dilation for window in windows),
    }
