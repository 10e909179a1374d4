"""Declares the Protocol Buffers messages of a JAX profile, and of the HLO in it.

Only the fields that are read are declared. A parser skips all others, so older and newer files are
read as well. Texts are declared as bytes, because those of a file need not be UTF-8.

Format: `xplane.proto` (tsl/profiler/protobuf), `hlo.proto` (xla/service) and `xla_data.proto` of
openxla/xla.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

_PACKAGE: Final = "tracelens_ext"
#: Message → its fields, each with name, number and type; `*` marks a repeated field.
#: `XPlane` has no lines here, and the events of `XLine` stay encoded: `many_messages.py` decodes
#: them, so that only one line at a time is in memory, and millions of events are decoded quickly.
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

#: A message of one of these types. Their classes are made at run time, so no checker knows them.
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
