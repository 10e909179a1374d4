"""Unpacks raw LZ4 blocks (blocks without a frame).

The library `lz4` does the work if it is installed, else the project's compiled code, else Python.

Format: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tracelens_ext.readers.nsys.native import compiled_decoder

#: A block unpacks to at most this many times its size: a byte of a length stands for at most 255.
MOST_EXPANSION = 255
_SHORTEST_MATCH = 4
#: A length in a token that continues in the following bytes.
_LONG_LENGTH = 15


class DamagedBlockError(ValueError):
    """A block is damaged, or does not have the stated size."""


def unpack(packed: bytes, size: int) -> bytes:
    """Return the `size` bytes that a block unpacks to.

    Raises:
        DamagedBlockError: the block is damaged, or has another size. An impossible size is refused
            before memory is allocated for it.
    """
    if size > MOST_EXPANSION * len(packed):
        raise DamagedBlockError
    unpack_block = _fastest_unpacker()
    unpacked = unpack_block(packed, size)
    if unpacked is None or len(unpacked) != size:
        raise DamagedBlockError
    return unpacked


def _fastest_unpacker() -> Callable[[bytes, int], bytes | None]:
    """Return the fastest available function that unpacks a block, or returns None if it cannot."""
    try:
        library = import_module("lz4.block")
    except ImportError:
        native = compiled_decoder()
        return native.unpack if native is not None else unpack_in_python

    def unpack_with_library(packed: bytes, size: int) -> bytes | None:
        try:
            unpacked: bytes = library.decompress(packed, uncompressed_size=size)
        except library.LZ4BlockError:
            return None
        return unpacked

    return unpack_with_library


def unpack_in_python(packed: bytes, size: int) -> bytes | None:
    """Return what a block unpacks to; None if it is damaged or has another size than `size`."""
    try:
        unpacked = _unpack_sequences(packed, size)
    except IndexError:
        return None
    return bytes(unpacked) if len(unpacked) == size else None


def _unpack_sequences(packed: bytes, size: int) -> bytearray:
    """Unpack all sequences of a block.

    A sequence is a token with two lengths, literal bytes, and a match: a copy of bytes that were
    unpacked before, from `offset` bytes back.

    Raises:
        IndexError: a sequence is damaged, or the block ends within it.
    """
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
        length += _SHORTEST_MATCH
        start = len(unpacked) - offset
        if not offset or start < 0 or length > size - len(unpacked):
            raise IndexError
        if offset >= length:
            unpacked += unpacked[start : start + length]
        else:  # the match includes bytes that it produces itself: its beginning repeats
            unpacked += (unpacked[start:] * (length // offset + 1))[:length]
    return unpacked


def _long_length(packed: bytes, position: int) -> tuple[int, int]:
    """Return a length that continues in the bytes from `position` on, and the byte after it."""
    length = _LONG_LENGTH
    while packed[position] == 255:
        length += 255
        position += 1
    return length + packed[position], position + 1
