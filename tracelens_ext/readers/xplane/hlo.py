"""The compiled programs in a profile: what an operation was given, and where it was written.

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

from tracelens_ext.trace import NONE, PROGRAM_SHIFT

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
    """The class of a message, with `FromString` and `SerializeToString`."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:  # noqa: ANN401  # a `DescriptorPool`
    from google.protobuf import descriptor_pb2, descriptor_pool

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(package=_PACKAGE, syntax="proto3")
    file.name = "xplane_as_read.proto"
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for text in fields.split(","):
            name, number, kind = text.split()
            field = declared.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            if (kind := kind.rstrip("*")).islower():
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            else:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_PROGRAM: Final = re.compile(r"(.*)\((\d{1,18})\)$", re.DOTALL)


class Arguments(NamedTuple):
    """The arguments of an operation, the first three as the JSON of a list."""

    dims: bytes  #: sizes of each operand
    types: bytes  #: type of each operand
    #: texts `name=value`: `opcode`, `target` of a library call, `result`, of a window `stride`,
    #: `padding` and `dilation`, and `source`, the file and the line
    concrete: bytes
    instruction: int  #: as `Trace.instructions` has it


class Programs:
    """The programs of a profile, decoded when asked for; `used` are those, as `Trace.programs`."""

    def __init__(self) -> None:
        self.used: list[bytes] = []
        self._by_id: dict[int, tuple[str, bytes]] = {}
        self._by_name: dict[str, set[int]] = {}
        self._damaged: list[str] = []
        self._decode = cache(self._decoded)

    def add(self, label: str, content: bytes) -> None:
        """Add a program: its label, such as `jit_f(15)`, and its HLO."""
        found = _PROGRAM.match(label)
        name, number = (found[1], int(found[2])) if found else (label, -2 - len(self._by_id))
        self._by_id[number] = label, content
        self._by_name.setdefault(name, set()).add(number)

    def arguments(self, program: int, module: str, operation: str) -> Arguments | None:
        """The arguments of an operation; a program of unknown id is found by its module's name."""
        if program not in self._by_id:
            if len(same := self._by_name.get(module, set())) != 1:
                return None
            (program,) = same
        decoded = self._decode(program)
        return decoded.arguments(operation) if decoded is not None else None

    def notes(self) -> list[str]:
        """What could not be read, a sentence."""
        names = ", ".join(self._damaged[:3]) + (" …" if len(self._damaged) > 3 else "")
        note = f"The HLO of {names} is damaged: their operations have no arguments."
        return [note] if self._damaged else []

    def _decoded(self, program: int) -> _Program | None:
        from google.protobuf.message import DecodeError

        label, content = self._by_id[program]
        try:
            module = message_class("HloProto").FromString(content).hlo_module
        except DecodeError:
            self._damaged.append(label)
            return None
        self.used.append(content)
        return _Program(module, len(self.used) - 1)


class _Program:
    def __init__(self, module: Message, number: int) -> None:
        instructions = instructions_of(module)
        self._number = number
        self._frames = module.stack_frames
        self._by_name = {each.name: (place, each) for place, each in enumerate(instructions)}
        self._by_id = {each.id: each for each in instructions}
        self.arguments = cache(self._arguments)

    def _arguments(self, operation: str) -> Arguments | None:
        place, each = self._by_name.get(operation.encode("utf-8", "replace"), (NONE, None))
        if each is None:
            return None
        operands = operands_of(each, self._by_id)
        texts = [f"opcode={each.opcode.decode('utf-8', 'replace')}"]
        if target := each.custom_call_target.decode("utf-8", "replace"):
            texts.append(f"target={target}")
        texts += [f"result={array}" for array in results_of(each)]
        texts += [f"{n}={'x'.join(map(str, sizes))}" for n, sizes in windows_of(each).items()]
        if source := self._source(each.metadata):
            texts.append(f"source={source}")
        columns = [array.dims for array in operands], [array.kind for array in operands], texts
        dims, types, concrete = (json.dumps(column).encode() for column in columns)
        return Arguments(dims, types, concrete, self._number << PROGRAM_SHIFT | place)

    def _source(self, metadata: Message) -> str:
        """File and line: those of the instruction, or of the innermost frame of its stack."""
        file = metadata.source_file
        line = metadata.source_line
        if not file:
            frames = self._frames
            frame = _at(frames.stack_frames, metadata.stack_frame_id)
            place = _at(frames.file_locations, frame.file_location_id) if frame else None
            if place is None:
                return ""
            file = _at(frames.file_names, place.file_name_id) or b""
            line = place.line
        return f"{file.decode('utf-8', 'replace')}:{line}" if file else ""


def _at(items: Message, number: int) -> Message | None:
    """An item by its number, which counts from 1; 0 is none."""
    return items[number - 1] if 0 < number <= len(items) else None


# Shapes of arrays as XLA has them: `bf16[1,5120,34,31,53]`.

_ALL_NAMES: Final = (
    "pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 - - c64 bf16 - c128 f8e5m2 f8e4m3fn s4 u4"
    " f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu"
)
_NAMES: Final = {at: name for at, name in enumerate(_ALL_NAMES.split(), start=1) if name != "-"}
_TUPLE: Final = 13
#: No program has arrays of more; their product would take a damaged file's word for any number.
MOST_DIMENSIONS: Final = 64
#: Name of a type → bits of an element: the number in it; complex numbers and `pred` are odd.
TYPE_BITS: Final = {
    name: 8 if name == "pred" else int(name.lstrip("abcdefghijklmnopqrstuvwxyz").split("e")[0])
    for name in _NAMES.values()
}


class Shape(NamedTuple):
    """The shape of an array: the name of its type, and its sizes."""

    kind: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return -(-self.elements * TYPE_BITS[self.kind] // 8)

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.dims))}]"


def arrays_of(shape: Message) -> list[Shape]:
    """The arrays of a shape: one, or those of a tuple; sizes that are not known count as 0."""
    if shape.element_type == _TUPLE:
        return [array for part in shape.tuple_shapes for array in arrays_of(part)]
    if (kind := _NAMES.get(shape.element_type)) is None or len(shape.dimensions) > MOST_DIMENSIONS:
        return []
    return [Shape(kind, tuple(max(n, 0) for n in shape.dimensions))]


def instructions_of(module: Message) -> list[Message]:
    """The instructions of all computations of a program."""
    return [each for part in module.computations for each in part.instructions]


def operands_of(instruction: Message, by_id: Mapping[int, Message]) -> list[Shape]:
    """The arrays that an instruction takes."""
    found = (by_id.get(number) for number in instruction.operand_ids)
    return [array for each in found if each is not None for array in arrays_of(each.shape)]


def results_of(instruction: Message) -> list[Shape]:
    """The arrays that an instruction makes, without the workspace of a library's call."""
    results = arrays_of(instruction.shape)
    if instruction.custom_call_target.startswith((b"__cudnn", b"__cublas")):
        return [array for i, array in enumerate(results) if not i or array.kind != "u8"]
    return results


def windows_of(instruction: Message) -> dict[str, tuple[int, ...]]:
    """Stride, padding and dilation of an instruction that has a window."""
    windows = instruction.window.dimensions
    fields = {"stride": "stride", "padding": "padding_low", "dilation": "window_dilation"}
    return {n: tuple(getattr(w, f) for w in windows) for n, f in fields.items() if windows}
