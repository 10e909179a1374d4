"""Makes small Perfetto traces: messages as lists of (number, value), which is all that they are."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A message: its fields. Whole numbers become varints, doubles eight bytes.
Message = list[tuple[int, "int | float | str | bytes | Message"]]


def varint(value: int) -> bytes:
    """Return a varint: 7 bits per byte, the lowest first."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def encoded(message: Message) -> bytes:
    """Return an encoded message."""
    out = b""
    for number, value in message:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            data = encoded(value) if isinstance(value, list) else value
            data = data.encode() if isinstance(data, str) else data
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def trace(*packets: Message) -> bytes:
    """Return a file of packets."""
    return b"".join(encoded([(1, packet)]) for packet in packets)


def thread_track(uuid: int, pid: int, tid: int, name: str) -> Message:
    """Return the descriptor of a track of a thread."""
    return [(60, [(1, uuid), (4, [(1, pid), (2, tid), (5, name)])])]


def child_track(uuid: int, parent: int, name: str) -> Message:
    """Return the descriptor of a track within another track."""
    return [(60, [(1, uuid), (5, parent), (2, name)])]


def arguments(args: Mapping[str, int | float | str]) -> Message:
    """Return the arguments of a track event, with their names inline."""
    field = {int: 4, float: 5, str: 6}
    return [
        (4, [(10, name), (field[type(value)], value)]) for name, value in args.items()
    ]


def begin(
    time: int,
    track: int,
    name: str,
    category: str = "",
    /,
    *,
    sequence: int = 1,
    args: Mapping[str, int | float | str] | None = None,
    more: Message | None = None,
) -> Message:
    """Return a packet that begins a slice, with names inline."""
    event: Message = [(9, 1), (11, track), (23, name)]
    event += [(22, category)] if category else []
    return [
        (8, time),
        (10, sequence),
        (11, event + arguments(args or {}) + (more or [])),
    ]


def end(time: int, track: int, sequence: int = 1) -> Message:
    """Return a packet that ends a slice."""
    return [(8, time), (10, sequence), (11, [(9, 2), (11, track)])]
