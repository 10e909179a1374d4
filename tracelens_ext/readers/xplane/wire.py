"""Messages of Protocol Buffers taken apart into their fields, without decoding what is in them.

Format: "Encoding" in the documentation of Protocol Buffers: a field is a varint of its number and
its wire type, then a varint, 4 or 8 bytes, or a length and so many bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class DamagedError(Exception):
    """A message that cannot be taken apart further.

    Attributes:
        place: the byte where the field that is damaged begins.
        is_cut: whether the message only ends too early.
    """

    def __init__(self, place: int, *, is_cut: bool) -> None:
        super().__init__(place)
        self.place, self.is_cut = place, is_cut


def fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message, in file order.

    Yields:
        The field's number; where it begins, where its content begins, and where it ends. The
        number is 0 for content that is no text, no bytes and no message.

    Raises:
        DamagedError: the bytes are no field, or end within one.
    """
    at, size = 0, len(data)
    while at < size:
        start = at
        try:
            key, at = varint(data, at)
            number, kind = key >> 3, key & 7
            if kind == LENGTH:
                length, at = varint(data, at)
            elif kind == VARINT:
                length, number = varint(data, at)[1] - at, 0
            else:
                length, number = {FIXED64: 8, FIXED32: 4}[kind], 0
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
