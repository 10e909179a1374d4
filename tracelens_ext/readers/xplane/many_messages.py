"""Fields of many messages at once: a profile has millions of events, and each has statistics.

The first fields of all messages are decoded together, then the second ones, and so on: as many
passes of numpy as the longest message has fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import Int64Array

Bytes = npt.NDArray[np.uint8]


VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5
_LONGEST_VARINT: Final = 10
#: A field is a number and a value of at most so many bytes, which may begin at the last byte.
PADDING: Final = bytes(2 * _LONGEST_VARINT + 8)
_HIGHEST_BITS: Final = np.uint64(0x8080808080808080)
#: Which numbers are wire types that are still used.
_WIRE_TYPES: Final = np.isin(np.arange(8), (VARINT, LENGTH, FIXED64, FIXED32))
#: The payload of every other byte; of every other two bytes, joined; of the lower four.
_SEVEN_BITS: Final = tuple(map(np.uint64, (0x007F007F007F007F, 0x00003FFF00003FFF, 0xFFFFFFF)))
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
        """A whole number of each of `count` messages; 0 where one has none."""
        result = np.zeros(count, dtype=np.int64)
        those = self.key == number << 3 | VARINT
        result[self.message[those]] = self.value[those]
        return result

    def contents(self, number: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The texts or messages of a number, by message: whose, where they begin, and end."""
        those = np.flatnonzero(self.key == number << 3 | LENGTH)
        those = those[np.argsort(self.message[those], kind="stable")]
        start = self.start[those]
        return self.message[those], start, start + self.value[those]


def joined(messages: Sequence[bytes]) -> tuple[Bytes, Int64Array, Int64Array]:
    """Messages in one array of bytes, and where each begins and ends."""
    length = np.fromiter(map(len, messages), np.int64, len(messages))
    end = np.cumsum(length)
    return np.frombuffer(b"".join((*messages, PADDING)), dtype=np.uint8), end - length, end


def fields_of(data: Bytes, start: Int64Array, end: Int64Array) -> Fields:
    """All fields of messages, in padded bytes; MessageError where one is none."""
    at = start.copy()
    passes: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
    going = np.flatnonzero(at < end)
    while len(going):
        if len(passes) == _MOST_FIELDS:
            raise MessageError
        key, after = varints(data, at[going])
        wire = key & 7
        value, content = varints(data, after)
        fixed = np.flatnonzero((wire == FIXED64) | (wire == FIXED32))
        content[fixed] = after[fixed]
        value[fixed] = np.where(wire[fixed] == FIXED64, 8, 4)
        size = np.where(wire == VARINT, 0, value)
        known = _WIRE_TYPES[wire] & (content > 0)
        if not (known & (size >= 0) & (size <= end[going] - content)).all():
            raise MessageError
        passes.append((going, key, value, content))
        at[going] = content + size
        going = going[at[going] < end[going]]
    none = (np.empty(0, dtype=np.int64),) * 4
    return Fields(*map(np.concatenate, zip(*(passes or [none]), strict=True)))


def varints(data: Bytes, at: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The varints that begin at some bytes, as int64, and where they end; `-1` if one does not.

    Eight bytes are taken at once: 7 bits of each, up to the first whose highest bit is not set.
    """
    byte = data[at].astype(np.int64)
    if not len(at) or int(byte.max()) < 0x80:
        return byte, at + 1
    word = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))[at]  # there is one at each byte
    last = ~word & _HIGHEST_BITS
    last &= ~last + np.uint64(1)  # only the lowest
    word &= last - np.uint64(1)
    value = (word & _SEVEN_BITS[0]) | (word & _SEVEN_BITS[0] << np.uint64(8)) >> np.uint64(1)
    value = (value & _SEVEN_BITS[1]) | (value & _SEVEN_BITS[1] << np.uint64(16)) >> np.uint64(2)
    value = (value & _SEVEN_BITS[2]) | (value & _SEVEN_BITS[2] << np.uint64(32)) >> np.uint64(4)
    result = value.view(np.int64)
    end = at + (np.frexp(last.astype(np.float64))[1] >> 3)
    if len(long := np.flatnonzero(last == 0)):
        ninth, tenth = (data[at[long] + place].astype(np.int64) for place in (8, 9))
        ends = np.where(ninth < 0x80, 9, 10)
        result[long] |= (ninth & 0x7F) << 56 | np.where(ends == 9, 0, tenth << 63)
        end[long] = np.where((ninth < 0x80) | (tenth < 0x80), at[long] + ends, -1)
    return result, end


class DamagedError(Exception):
    """A message that cannot be taken apart from the byte `place` on, or only ends too early."""

    def __init__(self, place: int, *, is_cut: bool) -> None:
        super().__init__(place)
        self.place = place
        self.is_cut = is_cut


def fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number (0 of what is no bytes), begin, begin of the content, end.

    Raises DamagedError where the bytes are no field, or end within one.
    """
    at = 0
    size = len(data)
    while at < size:
        start = at
        try:
            key, at = varint(data, at)
            number = key >> 3
            kind = key & 7
            if kind == LENGTH:
                length, at = varint(data, at)
            elif kind == VARINT:
                length = varint(data, at)[1] - at
                number = 0
            else:
                length = {FIXED64: 8, FIXED32: 4}[kind]
                number = 0
        except IndexError:
            raise DamagedError(start, is_cut=True) from None
        except (KeyError, ValueError):
            raise DamagedError(start, is_cut=False) from None
        if length > size - at:
            raise DamagedError(start, is_cut=True)
        yield number, start, at, at + length
        at += length


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(_LONGEST_VARINT):
        byte = data[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError
