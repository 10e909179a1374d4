"""The messages of an xplane file, declared from the published field numbers.

Format: `xplane.proto` (tsl/profiler/protobuf), `hlo.proto` (xla/service) and `xla_data.proto` of
openxla/xla. Only the fields that are read are declared; a parser skips all others, so older and
newer files are read as well. Texts are declared as bytes: those of a file need not be UTF-8.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "tracelens_ext"
#: Message → its fields: name, number, type; `*` says that it is repeated. Planes, and the lines of
#: a plane, are taken apart by `wire.py`, to have one line at a time in memory;
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
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
}

#: A message whose class is made when the program runs.
Message = Any


@cache
def message_class(name: str) -> Message:
    """The class of a message, with `FromString` and `SerializeToString`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="xplane_as_read.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for text in fields.split(","):
            name, number, kind = text.split()
            field = declared.field.add(name=name, number=int(number))
            field.label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
