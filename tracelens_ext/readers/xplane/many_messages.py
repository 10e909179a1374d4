"""Decodes the fields of many messages of Protocol Buffers at once, or of a single one.

A profile has millions of events, and each has statistics. The first fields of all messages are
decoded together, then the second ones, and so on: as many passes of numpy as the longest message
has fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import Int64Array

Bytes = npt.NDArray[np.uint8]

#: A field begins with its key: its number, shifted by this, and its wire type.
FIELD_SHIFT: Final = 3
WIRE_TYPE: Final = 7
#: Wire types.
VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
#: A byte of a varint has seven bits of it; the highest bit tells that more bytes follow.
_PAYLOAD: Final = 0x7F
_GOES_ON: Final = 0x80
_LONGEST_VARINT: Final = 10
_BYTES_OF_WORD: Final = 8
#: A field is a number and a value of at most so many bytes, which may begin at the last byte.
PADDING: Final = bytes(2 * _LONGEST_VARINT + _BYTES_OF_WORD)
_HIGHEST_BITS: Final = np.uint64(0x8080808080808080)
#: Wire type → a flag that says if it is still used.
_IS_WIRE_TYPE: Final = np.isin(np.arange(8), (VARINT, LENGTH, FIXED64, FIXED32))
#: The payload of every other byte; of every other two bytes, joined; of the lower four.
_OF_BYTES: Final = np.uint64(0x007F007F007F007F)
_OF_PAIRS: Final = np.uint64(0x00003FFF00003FFF)
_OF_FOURS: Final = np.uint64(0x000000000FFFFFFF)
#: No profiler records so many statistics with an event.
_MOST_FIELDS: Final = 512


class MessageError(ValueError):
    """Bytes that are no message, or one of more fields than any profiler writes."""


class Fields(NamedTuple):
    """Fields of messages, k of them; those of one message are in their order."""

    message: Int64Array  #: which message has it, (k,)
    key: Int64Array  #: its number times 8, and its wire type, (k,)
    value: Int64Array  #: the whole number; of others how many bytes, (k,)
    start: Int64Array  #: where the bytes begin, (k,)

    def numbers(self, number: int, count: int) -> Int64Array:
        """Return a whole number of each of `count` messages; 0 where one has none."""
        result = np.zeros(count, dtype=np.int64)
        is_wanted = self.key == number << FIELD_SHIFT | VARINT
        result[self.message[is_wanted]] = self.value[is_wanted]
        return result

    def contents(self, number: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the texts or messages of a field: which message has each, its start and end."""
        key = number << FIELD_SHIFT | LENGTH
        fields = np.flatnonzero(self.key == key)
        by_message = np.argsort(self.message[fields], kind="stable")
        fields = fields[by_message]
        message = self.message[fields]
        start = self.start[fields]
        end = start + self.value[fields]
        return message, start, end


_NO_FIELDS: Final = Fields(
    message=np.empty(0, dtype=np.int64),
    key=np.empty(0, dtype=np.int64),
    value=np.empty(0, dtype=np.int64),
    start=np.empty(0, dtype=np.int64),
)


def joined(messages: Sequence[bytes]) -> tuple[Bytes, Int64Array, Int64Array]:
    """Return messages in one padded array of bytes, and where each begins and ends."""
    lengths = [len(message) for message in messages]
    length = np.array(lengths, dtype=np.int64)
    end = np.cumsum(length)
    start = end - length
    content = b"".join(messages) + PADDING
    data = np.frombuffer(content, dtype=np.uint8)
    return data, start, end


def fields_of(data: Bytes, start: Int64Array, end: Int64Array) -> Fields:
    """Return all fields of messages, given where these begin and end in padded bytes.

    Raises:
        MessageError: one is no message.
    """
    place = start.copy()
    passes: list[Fields] = []
    unfinished = np.flatnonzero(place < end)
    while len(unfinished):
        if len(passes) == _MOST_FIELDS:
            raise MessageError
        key, after_key = varints(data, place[unfinished])
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
        place[unfinished] = content + size
        unfinished = unfinished[place[unfinished] < end[unfinished]]
    if not passes:
        return _NO_FIELDS
    return Fields(
        message=np.concatenate([fields.message for fields in passes]),
        key=np.concatenate([fields.key for fields in passes]),
        value=np.concatenate([fields.value for fields in passes]),
        start=np.concatenate([fields.start for fields in passes]),
    )


def varints(data: Bytes, place: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the varints that begin at some bytes, as int64, and where they end.

    Eight bytes are taken at once: 7 bits of each, up to the first whose highest bit is not set. The
    bytes `AC 02` are 0x2C and 2 × 128: joined, 300. The end of a varint that does not end is -1.
    """
    byte = data[place].astype(np.int64)
    if not len(place) or int(byte.max()) < _GOES_ON:
        return byte, place + 1
    # An array that has the eight bytes from each byte on, without a copy.
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    word = words[place]
    last_bits = ~word & _HIGHEST_BITS
    last_bit = last_bits & (~last_bits + np.uint64(1))  # only the lowest
    word &= last_bit - np.uint64(1)
    pairs = _joined_halves(word, _OF_BYTES, bits_of_half=8)
    fours = _joined_halves(pairs, _OF_PAIRS, bits_of_half=16)
    eights = _joined_halves(fours, _OF_FOURS, bits_of_half=32)
    value = eights.view(np.int64)
    # The exponent of 2**7, of a varint of one byte, is 8.
    _, exponent = np.frexp(last_bit.astype(np.float64))
    end = place + (exponent >> 3)
    is_longer = last_bit == 0
    if is_longer.any():
        longer = np.flatnonzero(is_longer)
        _add_last_bytes(
            data=data, place=place[longer], longer=longer, value=value, end=end
        )
    return value, end


def _joined_halves(
    words: npt.NDArray[np.uint64], lower_halves: np.uint64, bits_of_half: int
) -> npt.NDArray[np.uint64]:
    """Move the payloads of neighbors together; each leaves one bit in eight of its half unused."""
    unused_bits = bits_of_half // 8
    upper_halves = lower_halves << np.uint64(bits_of_half)
    lower = words & lower_halves
    upper = (words & upper_halves) >> np.uint64(unused_bits)
    return lower | upper


def _add_last_bytes(
    data: Bytes,
    place: Int64Array,
    longer: Int64Array,
    value: Int64Array,
    end: Int64Array,
) -> None:
    """Add the ninth and the tenth byte of varints, which begin at `place` and are at `longer`."""
    ninth = data[place + 8].astype(np.int64)
    tenth = data[place + 9].astype(np.int64)
    has_nine = ninth < _GOES_ON
    bits_of_ninth = (ninth & _PAYLOAD) << 56
    bits_of_tenth = np.where(has_nine, 0, tenth << 63)
    value[longer] |= bits_of_ninth | bits_of_tenth
    has_ten = tenth < _GOES_ON
    does_end = has_nine | has_ten
    size = np.where(has_nine, 9, 10)
    end[longer] = np.where(does_end, place + size, -1)


class DamagedError(Exception):
    """A message that cannot be taken apart from the byte `place` on.

    Attributes:
        place: the first byte that is wrong.
        is_cut: the bytes are right so far, but end too early.
    """

    def __init__(self, place: int, *, is_cut: bool) -> None:
        super().__init__(place)
        self.place = place
        self.is_cut = is_cut


class Field(NamedTuple):
    """A field of a message, by its place in the bytes of the message."""

    number: int  #: 0 of what is neither a text nor a message
    start: int
    content: int  #: where its value begins
    end: int


#: Wire type → the size of a value, where the type alone tells it.
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        DamagedError: the bytes are no field, or end within one.
    """
    place = 0
    size = len(data)
    while place < size:
        start = place
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
        place = end


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the lowest first, and where it ends.

    Raises:
        IndexError: the bytes end within it.
        ValueError: it is longer than any.
    """
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[place + index]
        value |= (byte & _PAYLOAD) << (7 * index)
        if byte < _GOES_ON:
            return value, place + index + 1
    raise ValueError
