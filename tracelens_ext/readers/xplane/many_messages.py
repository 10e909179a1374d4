"""Decodes the fields of Protocol Buffers messages, of many messages at once or of a single one.

A profile has millions of events, and each event has statistics. `fields_of` decodes the first
fields of all messages together, then all second fields, and so on. The number of numpy passes is
therefore the number of fields of the longest message.

Format: "Encoding" in the documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import Int64Array

Bytes = npt.NDArray[np.uint8]

#: A field begins with its key: the field number, shifted by this many bits, and the wire type.
FIELD_SHIFT: Final = 3
#: The bits of a key that are the wire type.
WIRE_TYPE: Final = 7
#: Wire types.
VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
#: A byte of a varint has seven bits of the number; its highest bit says that more bytes follow.
_PAYLOAD: Final = 0x7F
_MORE_FOLLOW: Final = 0x80
_LONGEST_VARINT: Final = 10
_BYTES_OF_WORD: Final = 8
#: Bytes that must follow the messages: a damaged field may begin at the last byte, and its key and
#: value are read before its end is checked.
PADDING: Final = bytes(2 * _LONGEST_VARINT + _BYTES_OF_WORD)
_HIGHEST_BITS: Final = np.uint64(0x8080808080808080)
#: Wire type → whether it is a valid one.
_IS_WIRE_TYPE: Final = np.isin(np.arange(8), (VARINT, LENGTH, FIXED64, FIXED32))
#: Masks of the payload of the lower halves that `_joined_halves` moves together: 7 bits of every
#: other byte, 14 bits of every other pair of bytes, 28 bits of every other four bytes.
_OF_BYTES: Final = np.uint64(0x007F007F007F007F)
_OF_PAIRS: Final = np.uint64(0x00003FFF00003FFF)
_OF_FOURS: Final = np.uint64(0x000000000FFFFFFF)
#: A message with more fields is damaged: no profiler records as many statistics with an event.
_MOST_FIELDS: Final = 512


class MessageError(ValueError):
    """Bytes that are not a message, or a message with more fields than any profiler writes."""


class Contents(NamedTuple):
    """The values of a field with texts or messages: k byte ranges of the joined messages."""

    message: Int64Array  #: index of the message that has the field, ascending, (k,)
    start: Int64Array  #: first byte of the value, (k,)
    end: Int64Array  #: byte after the value, (k,)


class Fields(NamedTuple):
    """The fields of many messages, k of them. Those of one message keep their order."""

    message: Int64Array  #: index of the message that has the field, (k,)
    key: Int64Array  #: number of the field times 8, plus its wire type, (k,)
    value: Int64Array  #: the value of a varint; the number of bytes of any other value, (k,)
    start: Int64Array  #: first byte of the value, (k,)

    def numbers(self, number: int, count: int) -> Int64Array:
        """Return the value of a varint field of each message, (count,); 0 if it is missing.

        Args:
            number: the number of the field.
            count: the number of messages.
        """
        values = np.zeros(count, dtype=np.int64)
        is_wanted = self.key == number << FIELD_SHIFT | VARINT
        values[self.message[is_wanted]] = self.value[is_wanted]
        return values

    def contents(self, number: int) -> Contents:
        """Return the texts or nested messages of a field; it may occur several times in a message.

        Args:
            number: the number of the field.
        """
        key = number << FIELD_SHIFT | LENGTH
        fields = np.flatnonzero(self.key == key)
        by_message = np.argsort(self.message[fields], kind="stable")
        fields = fields[by_message]
        start = self.start[fields]
        return Contents(
            message=self.message[fields], start=start, end=start + self.value[fields]
        )


_NO_FIELDS: Final = Fields(
    message=np.empty(0, dtype=np.int64),
    key=np.empty(0, dtype=np.int64),
    value=np.empty(0, dtype=np.int64),
    start=np.empty(0, dtype=np.int64),
)


class JoinedMessages(NamedTuple):
    """Messages in one array of bytes."""

    data: Bytes  #: the messages, followed by `PADDING`
    start: Int64Array  #: first byte of each message, (m,)
    end: Int64Array  #: byte after each message, (m,)


def join_messages(messages: Sequence[bytes]) -> JoinedMessages:
    """Return m encoded messages in one array."""
    lengths = [len(message) for message in messages]
    length = np.array(lengths, dtype=np.int64)
    end = np.cumsum(length)
    content = b"".join(messages) + PADDING
    data = np.frombuffer(content, dtype=np.uint8)
    return JoinedMessages(data, start=end - length, end=end)


def fields_of(data: Bytes, start: Int64Array, end: Int64Array) -> Fields:
    """Return all fields of m encoded messages.

    Args:
        data: the bytes that contain the messages, followed by `PADDING`.
        start: first byte of each message, (m,).
        end: byte after each message, (m,).

    Raises:
        MessageError: the bytes of a message are not one.
    """
    position = start.copy()  # of the next field of each message
    passes: list[Fields] = []
    unfinished = np.flatnonzero(position < end)
    while len(unfinished):
        if len(passes) == _MOST_FIELDS:
            raise MessageError
        key, after_key = varints(data, position[unfinished])
        wire_type = key & WIRE_TYPE
        value, content = varints(data, after_key)
        is_fixed = (wire_type == FIXED64) | (wire_type == FIXED32)
        fixed = np.flatnonzero(is_fixed)
        content[fixed] = after_key[fixed]
        value[fixed] = np.where(wire_type[fixed] == FIXED64, 8, 4)
        size = np.where(wire_type == VARINT, 0, value)
        is_known = _IS_WIRE_TYPE[wire_type] & (content > 0)
        is_within = (size >= 0) & (size <= end[unfinished] - content)
        if not (is_known & is_within).all():
            raise MessageError
        passes.append(Fields(message=unfinished, key=key, value=value, start=content))
        position[unfinished] = content + size
        unfinished = unfinished[position[unfinished] < end[unfinished]]
    if not passes:
        return _NO_FIELDS
    return Fields(
        message=np.concatenate([fields.message for fields in passes]),
        key=np.concatenate([fields.key for fields in passes]),
        value=np.concatenate([fields.value for fields in passes]),
        start=np.concatenate([fields.start for fields in passes]),
    )


class Varints(NamedTuple):
    """Decoded varints."""

    value: Int64Array  #: (k,)
    end: Int64Array  #: byte after each varint, (k,); -1 if it is longer than any valid one


def varints(data: Bytes, start: Int64Array) -> Varints:
    """Decode k varints.

    Eight bytes of each are taken as one word, in which the payloads are moved together.
    Example: the bytes `AC 02` have the payloads 0x2C and 2, which are 0x2C + 2 × 128 = 300.

    Args:
        data: the bytes that contain the varints, followed by `PADDING`.
        start: first byte of each varint, (k,).
    """
    byte = data[start].astype(np.int64)
    if not len(start) or int(byte.max()) < _MORE_FOLLOW:
        return Varints(byte, start + 1)  # every varint is a single byte
    # Overlapping views: `words[i]` is the eight bytes from byte i on, without a copy.
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    word = words[start]
    # The last byte of a varint is the first one whose highest bit is not set.
    last_bits = ~word & _HIGHEST_BITS
    # x & -x isolates the lowest bit that is set.
    last_bit = last_bits & (~last_bits + np.uint64(1))
    word &= last_bit - np.uint64(1)  # clears all bytes after the varint
    pairs = _joined_halves(word, _OF_BYTES, bits_of_half=8)
    fours = _joined_halves(pairs, _OF_PAIRS, bits_of_half=16)
    eights = _joined_halves(fours, _OF_FOURS, bits_of_half=32)
    value = eights.view(np.int64)
    # The exponent of `last_bit` is 8 times the number of bytes: `frexp(2**7)` gives 8.
    _, exponent = np.frexp(last_bit.astype(np.float64))
    end = start + (exponent >> 3)
    is_longer = last_bit == 0
    if is_longer.any():
        longer = np.flatnonzero(is_longer)
        _add_last_bytes(
            data=data, start=start[longer], longer=longer, value=value, end=end
        )
    return Varints(value, end)


def _joined_halves(
    words: npt.NDArray[np.uint64], lower_halves: np.uint64, bits_of_half: int
) -> npt.NDArray[np.uint64]:
    """Move the payloads of neighboring halves together.

    A half of 8, 16 or 32 bits has 1, 2 or 4 unused bits at its upper end. The payload of the upper
    half is moved down over the unused bits of the lower half.

    Args:
        words: the words, each of one or more pairs of halves.
        lower_halves: mask of the payload of all lower halves.
        bits_of_half: the size of a half.
    """
    unused_bits = bits_of_half // 8
    upper_halves = lower_halves << np.uint64(bits_of_half)
    lower = words & lower_halves
    upper = (words & upper_halves) >> np.uint64(unused_bits)
    return lower | upper


def _add_last_bytes(
    data: Bytes,
    start: Int64Array,
    longer: Int64Array,
    value: Int64Array,
    end: Int64Array,
) -> None:
    """Complete the varints that have more than eight bytes, of which there are l.

    Args:
        data: the bytes that contain the varints.
        start: first byte of each of these varints, (l,).
        longer: index of each of these varints in `value` and `end`, (l,).
        value: values of all varints; the ninth and the tenth byte are added.
        end: ends of all varints; those of the long ones are set.
    """
    ninth = data[start + 8].astype(np.int64)
    tenth = data[start + 9].astype(np.int64)
    has_nine = ninth < _MORE_FOLLOW
    bits_of_ninth = (ninth & _PAYLOAD) << 56
    bits_of_tenth = np.where(has_nine, 0, tenth << 63)
    value[longer] |= bits_of_ninth | bits_of_tenth
    has_ten = tenth < _MORE_FOLLOW
    does_end = has_nine | has_ten
    size = np.where(has_nine, 9, 10)
    end[longer] = np.where(does_end, start + size, -1)


class DamagedError(Exception):
    """A message is damaged.

    Attributes:
        place: the byte from which on it cannot be decoded.
        is_cut: True if the message merely ends too early.
    """

    def __init__(self, place: int, *, is_cut: bool) -> None:
        super().__init__(place)
        self.place = place
        self.is_cut = is_cut


class Field(NamedTuple):
    """The position of a field in the bytes of a message."""

    number: int  #: number of the field; 0 if its value is neither a text nor a message
    start: int  #: first byte of the field
    content: int  #: first byte of its value
    end: int  #: byte after the field


#: Wire type → the size of its values, for types with a fixed size.
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the positions of the fields of a single message.

    Raises:
        DamagedError: the bytes are not a field, or end within a field.
    """
    end = 0
    size = len(data)
    while end < size:
        start = end
        number = 0
        try:
            key, content = varint(data, start)
            wire_type = key & WIRE_TYPE
            if wire_type == LENGTH:
                number = key >> FIELD_SHIFT
                length, content = varint(data, content)
                end = content + length
            elif wire_type == VARINT:
                _, end = varint(data, content)
            else:
                end = content + _FIXED_SIZES[wire_type]
        except IndexError:
            raise DamagedError(start, is_cut=True) from None
        except (KeyError, ValueError):
            raise DamagedError(start, is_cut=False) from None
        if end > size:
            raise DamagedError(start, is_cut=True)
        yield Field(number=number, start=start, content=content, end=end)


def varint(data: memoryview, start: int) -> tuple[int, int]:
    """Decode the varint that begins at the byte `start`; return its value and the byte after it.

    Raises:
        IndexError: the bytes end within the varint.
        ValueError: it is longer than any valid one.
    """
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[start + index]
        value |= (byte & _PAYLOAD) << (7 * index)
        if byte < _MORE_FOLLOW:
            return value, start + index + 1
    raise ValueError
