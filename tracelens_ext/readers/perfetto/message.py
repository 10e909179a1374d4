"""Reads single messages of a Perfetto trace, of which there are only a few.

Packets and events, of which there are millions, are decoded by `many_messages.py` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.many_messages import Fields

#: Times, sizes and ids from this value on are damaged.
MOST: Final = 2**62

#: The fields of a message: number of the field → its values, in order. A value is a whole number,
#: or the first byte of a text or message and the byte after it.
Message = dict[int, list[int | tuple[int, int]]]


def message_at(data: memoryview, start: int, end: int) -> Message:
    """Return the fields of the message in a range of bytes.

    Raises:
        MessageError: the bytes are not a message.
    """
    message: Message = {}
    try:
        for field in wire.fields(data[start:end]):
            key, _ = wire.varint(data, start + field.start)
            value: int | tuple[int, int] = (start + field.content, start + field.end)
            if key & wire.WIRE_TYPE == wire.VARINT:
                value, _ = wire.varint(data, start + field.content)
            message.setdefault(key >> wire.FIELD_SHIFT, []).append(value)
    except (wire.DamagedError, IndexError, ValueError):
        raise wire.MessageError from None
    return message


def number_in(message: Message, number: int) -> int:
    """Return the last value of a field with whole numbers; 0 if it is missing or implausible."""
    value = message.get(number, [0])[-1]
    if isinstance(value, int) and value < MOST:
        return value
    return 0


def text_in(data: memoryview, message: Message, number: int) -> str:
    """Return the last value of a field with texts; an empty text if it is missing."""
    value = message.get(number, [0])[-1]
    if isinstance(value, int):
        return ""
    start, end = value
    return bytes(data[start:end]).decode("utf-8", "replace")


def parts_of(data: memoryview, message: Message, number: int) -> Iterator[Message]:
    """Yield the nested messages of a field."""
    for value in message.get(number, []):
        if not isinstance(value, int):
            start, end = value
            yield message_at(data, start, end)


def nested_messages(
    data: memoryview, fields: Fields, number: int
) -> Iterator[tuple[int, Message]]:
    """Yield the messages that many messages have in a field.

    Each is yielded with the index of the message that it is nested in.
    """
    contents = fields.contents(number)
    indices = contents.message.tolist()
    starts = contents.start.tolist()
    ends = contents.end.tolist()
    for index, start, end in zip(indices, starts, ends, strict=True):
        yield index, message_at(data, start, end)
