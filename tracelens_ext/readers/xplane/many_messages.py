"""Fields of many messages at once: a profile has millions of events, and each has statistics.

The first fields of all messages are decoded together, then the second ones, and so on: as many
passes of numpy as the longest message has fields.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.readers.xplane.wire import FIXED32, FIXED64, LENGTH, VARINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array

    Bytes = npt.NDArray[np.uint8]

_LONGEST_VARINT: Final = 10
#: A field is a number and a value of at most so many bytes, which may begin at the last byte.
_PADDING: Final = bytes(2 * _LONGEST_VARINT)
#: No profiler records so many statistics with an event.
_MOST_FIELDS: Final = 512


class MessageError(ValueError):
    """Bytes that are no message, or one of more fields than any profiler writes."""


class Fields(NamedTuple):
    """Fields of messages, k of them; those of one message are in their order.

    Attributes:
        message: which message has it, (k,).
        key: its number times 8, and its wire type, (k,).
        value: the whole number; of others how many bytes, (k,).
        start: where the bytes begin, (k,).
    """

    message: Int64Array
    key: Int64Array
    value: Int64Array
    start: Int64Array

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
    data = np.frombuffer(b"".join(chain(messages, (_PADDING,))), dtype=np.uint8)
    return data, end - length, end


def fields_of(data: Bytes, start: Int64Array, end: Int64Array) -> Fields:
    """All fields of messages.

    Args:
        data: the bytes, from `joined`.
        start: where each message begins, shape (m,).
        end: where it ends, (m,).

    Raises:
        MessageError: one is no message.
    """
    at = start.copy()
    passes: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
    going = np.flatnonzero(at < end)
    while len(going):
        if len(passes) == _MOST_FIELDS:
            raise MessageError
        key, after = _varints(data, at[going])
        wire = key & 7
        value, content = _varints(data, after)
        content = np.where((wire == FIXED64) | (wire == FIXED32), after, content)
        value = np.where(wire == FIXED64, 8, np.where(wire == FIXED32, 4, value))
        size = np.where(wire == VARINT, 0, value)
        known = (wire == VARINT) | (wire == LENGTH) | (wire == FIXED64) | (wire == FIXED32)
        if not (known & (size >= 0) & (size <= end[going] - content)).all():
            raise MessageError
        passes.append((going, key, value, content))
        at[going] = content + size
        going = going[at[going] < end[going]]
    empty = np.empty(0, dtype=np.int64)
    columns = zip(*(passes or [(empty,) * 4]), strict=True)
    return Fields(*map(np.concatenate, columns))


def _varints(data: Bytes, at: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The varints that begin at some bytes, as int64, and where they end.

    Raises:
        MessageError: one has too many bytes.
    """
    value, end = np.zeros(len(at), dtype=np.int64), at.copy()
    going = np.arange(len(at))
    for shift in range(_LONGEST_VARINT):
        byte = data[end[going]].astype(np.int64)
        value[going] |= (byte & 0x7F) << 7 * shift
        end[going] += 1
        going = going[byte >= 0x80]
        if not len(going):
            return value, end
    raise MessageError
