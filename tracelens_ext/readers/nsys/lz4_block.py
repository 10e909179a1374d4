"""Raw LZ4 blocks, without a frame: by the library `lz4`, by compiled code, or by Python.

Format: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tracelens_ext.readers.nsys.native import compiled_decoder

#: No block shrinks more than this: each byte of a length stands for at most 255.
MOST_TIMES = 255
_MINIMUM_MATCH = 4
_LONG_LENGTH = 15


class DamagedBlockError(ValueError):
    """A block is damaged, or is not as long as was said."""


def unpack(packed: bytes, size: int) -> bytes:
    """Unpack a block that must become `size` bytes long.

    Raises DamagedBlockError; memory is allocated only for a size that the block can have.
    """
    if size > MOST_TIMES * len(packed):
        raise DamagedBlockError
    unpack_block = _unpacker()
    unpacked = unpack_block(packed, size)
    if unpacked is None or len(unpacked) != size:
        raise DamagedBlockError
    return unpacked


def _unpacker() -> Callable[[bytes, int], bytes | None]:
    """The fastest unpacker that there is here."""
    try:
        library = import_module("lz4.block")
    except ImportError:
        native = compiled_decoder()
        return native.unpack if native is not None else unpack_in_python

    def by_library(packed: bytes, size: int) -> bytes | None:
        try:
            unpacked: bytes = library.decompress(packed, uncompressed_size=size)
        except library.LZ4BlockError:
            return None
        return unpacked

    return by_library


def unpack_in_python(packed: bytes, size: int) -> bytes | None:
    """Unpack a block as the compiled code does; None if it is damaged or has another size."""
    try:
        unpacked = _unpack_sequences(packed, size)
    except IndexError:  # it ends within a sequence
        return None
    return bytes(unpacked) if len(unpacked) == size else None


def _unpack_sequences(packed: bytes, size: int) -> bytearray:
    """The bytes of all sequences; raises IndexError where one is damaged."""
    unpacked = bytearray()
    position = 0
    end = len(packed)
    while position < end:
        token = packed[position]
        position += 1
        literals = token >> 4
        if literals == _LONG_LENGTH:
            literals, position = _long_length(packed, position)
        if literals:
            if literals > end - position or literals > size - len(unpacked):
                raise IndexError
            unpacked += packed[position : position + literals]
            position += literals
        if position == end:  # the last sequence has no match
            break
        offset = packed[position] | packed[position + 1] << 8
        position += 2
        length = token & 15
        if length == _LONG_LENGTH:
            length, position = _long_length(packed, position)
        length += _MINIMUM_MATCH
        start = len(unpacked) - offset
        if not offset or start < 0 or length > size - len(unpacked):
            raise IndexError
        if offset >= length:
            unpacked += unpacked[start : start + length]
        else:  # the match overlaps itself: what it begins with is repeated
            unpacked += (unpacked[start:] * (length // offset + 1))[:length]
    return unpacked


def _long_length(packed: bytes, position: int) -> tuple[int, int]:
    """A length that goes on in the next bytes, and where it ends."""
    length = _LONG_LENGTH
    while packed[position] == 255:
        length += 255
        position += 1
    return length + packed[position], position + 1
