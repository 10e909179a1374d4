"""Says which arguments of events a trace keeps, and decodes the values of annotations."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.kineto.schema import ARGUMENT_PLANS, FLOW_ID
from tracelens_ext.readers.perfetto.message import message_at, text_in
from tracelens_ext.text import encodable
from tracelens_ext.trace import BoolArray

#: Annotations that are nested more deeply are not decoded.
_DEEPEST: Final = 40
_BYTES_OF_DOUBLE: Final = 8


class WantedArgument(NamedTuple):
    """An argument that a trace keeps."""

    is_text: bool
    of_kind: BoolArray  #: `EventKind` → whether events of this kind keep the argument


def _wanted_arguments(*, is_text: bool) -> dict[str, WantedArgument]:
    """Return the arguments that traces keep as texts, or as numbers, by name."""
    kinds_by_name: dict[str, list[BoolArray]] = {}
    for plan in ARGUMENT_PLANS:
        names = set(plan.numbers)
        if is_text:
            names = set().union(*plan.texts)
        names.discard(FLOW_ID)
        for name in names:
            kinds = kinds_by_name.setdefault(name, [])
            kinds.append(plan.includes_kind)
    wanted = {}
    for name, kinds in sorted(kinds_by_name.items()):
        of_kind = np.any(kinds, axis=0)
        wanted[name] = WantedArgument(is_text=is_text, of_kind=of_kind)
    return wanted


#: Name of an argument → what is kept of it.
WANTED_ARGUMENTS: Final = _wanted_arguments(is_text=False) | _wanted_arguments(
    is_text=True
)
#: The names of all arguments that are read: those that are kept, and those that only help to find
#: out what an event is.
ARGUMENT_NAMES: Final = tuple(dict.fromkeys(list(WANTED_ARGUMENTS) + ["grid", "cbid"]))
_ALIASES: Final = {
    "corr_id": "correlation",
    "metadata": "annotation",
    "grid_size": "grid",
}
#: Name or alias of an argument → its index in `ARGUMENT_NAMES`.
INDEX_OF_ARGUMENT: Final = {name: index for index, name in enumerate(ARGUMENT_NAMES)}
for _alias, _name in _ALIASES.items():
    if _name in INDEX_OF_ARGUMENT:
        INDEX_OF_ARGUMENT[_alias] = INDEX_OF_ARGUMENT[_name]
#: Indices of arguments that are numbers, but which extra data of GPU work has as texts.
NUMBERS_AS_TEXT: Final = [
    index
    for index, name in enumerate(ARGUMENT_NAMES)
    if name.endswith(("nelems", "Group size"))
]


class ValueForm(IntEnum):
    """What the number that is stored for the value of an argument means."""

    WHOLE = 0  #: it is the value
    TOKEN = 1  #: it is the code of a text that is JSON
    TEXT = 2  #: it is the code of the text that is the value
    LOOSE = 3  #: it is the code of a text; if that is the text of a number, the number is the value
    #: it is the code of the end of an encoded annotation, from its value on
    MESSAGE = 4


class _AnnotationField(IntEnum):
    """The fields of `DebugAnnotation` that contain its name or its value."""

    BOOL = 2
    UINT = 3
    INT = 4
    DOUBLE = 5
    STRING = 6
    LEGACY_JSON = 9
    NAME = 10
    DICT_ENTRIES = 11
    ARRAY_VALUES = 12


def annotation_value(data: memoryview, depth: int = 0) -> object:
    """Return the value of a `DebugAnnotation` as JSON would have it.

    Args:
        data: the encoded annotation.
        depth: the number of annotations around it. The value is None if there are too many.

    Raises:
        MessageError: the annotation is damaged.
    """
    result: object = None
    if depth and not len(data):
        result = []  # an empty array has no fields; such is the shape of a scalar
    for number, values in message_at(data, 0, len(data)).items():
        value = values[-1]
        if isinstance(value, int):
            if number == _AnnotationField.BOOL:
                result = bool(value)
            elif number in (_AnnotationField.UINT, _AnnotationField.INT):
                result = _signed(value)
            continue
        start, end = value
        if number == _AnnotationField.DOUBLE and end - start == _BYTES_OF_DOUBLE:
            (result,) = struct.unpack_from("<d", data, start)
        elif number in (_AnnotationField.STRING, _AnnotationField.LEGACY_JSON):
            result = encodable(bytes(data[start:end]).decode("utf-8", "replace"))
        elif depth < _DEEPEST:
            parts = [
                data[slice(*bounds)] for bounds in values if not isinstance(bounds, int)
            ]
            if number == _AnnotationField.ARRAY_VALUES:
                result = [annotation_value(part, depth + 1) for part in parts]
            elif number == _AnnotationField.DICT_ENTRIES:
                result = _dictionary_members(parts, depth + 1)
    return result


def _signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed number with the same bits."""
    sign = value >> 63
    return value - (sign << 64)


def _dictionary_members(parts: Sequence[memoryview], depth: int) -> dict[str, object]:
    """Return the members of a dictionary; each is an encoded annotation with a name."""
    members: dict[str, object] = {}
    for part in parts:
        message = message_at(part, 0, len(part))
        name = text_in(part, message, _AnnotationField.NAME)
        members[encodable(name)] = annotation_value(part, depth)
    return members
