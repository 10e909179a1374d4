"""A process that decodes slices of a large trace, one after the other.

`workers.py` starts it and shares memory with it: slots, each with room for the text of a slice and
for the answer. A request on standard input names the slot and the length of its text. A reply on
standard output names the slot and the length of the answer, 0 if the slice was refused. The process
ends when standard input does. Answers hold numbers and texts, never code. Every slice has codes of
its own, so that neither side has to know what the other saw before.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto.columns import Lane, SliceColumns, SliceReader
from tracelens_ext.readers.lenient_json import mend_bytes

if TYPE_CHECKING:
    from tracelens_ext.readers.kineto.schema import Event

#: A slot, and the bytes of the text or of the answer in it.
MESSAGE = struct.Struct("<IQ")
#: What a worker says first.
READY = MESSAGE.pack(0xFFFFFFFF, 0)

TEXT_ROOM, ANSWER_ROOM, SLOTS = 1 << 21, 1 << 24, 3
SLOT_ROOM = TEXT_ROOM + ANSWER_ROOM


class Answer(msgspec.Struct, array_like=True):
    """The columns of a slice, and the values behind their codes, in order of code."""

    columns: SliceColumns
    names: list[str]
    texts: list[bytes]
    lanes: list[Lane]


def main(memory_file: int) -> None:
    """Serve until standard input ends."""
    memory = memoryview(mmap.mmap(memory_file, SLOTS * SLOT_ROOM))
    requests, replies = sys.stdin.buffer, sys.stdout.fileno()
    os.write(replies, READY)
    while len(request := requests.read(MESSAGE.size)) == MESSAGE.size:
        slot, length = MESSAGE.unpack(request)
        room = memory[slot * SLOT_ROOM : (slot + 1) * SLOT_ROOM]
        os.write(replies, MESSAGE.pack(slot, _answer(room, length)))


def _answer(room: memoryview, length: int) -> int:
    """Decode the slice in a slot; the length of the answer behind it, 0 if there is none."""
    try:
        reader = SliceReader(Interner(), Interner())
        columns = reader.columns(_decoded(reader, room[:length]))
        found = Answer(columns, list(reader.names), list(reader.texts), list(reader.lanes))
        answer = msgspec.msgpack.encode(found, enc_hook=_packed)
        room[TEXT_ROOM : TEXT_ROOM + len(answer)] = answer
        return len(answer)
    except Exception:  # noqa: BLE001  # the main process decodes the slice, and says what is wrong
        return 0


def _decoded(reader: SliceReader, text: memoryview) -> list[Event]:
    try:
        return reader.decode(text)
    except msgspec.DecodeError:
        return reader.decode(mend_bytes(bytes(text)))


def read_answer(room: memoryview, length: int) -> Answer:
    """The answer in a slot, copied out of it."""
    return _DECODER.decode(room[TEXT_ROOM : TEXT_ROOM + length])


def _packed(array: object) -> tuple[str, memoryview]:
    if not isinstance(array, np.ndarray):
        raise TypeError(type(array))
    return array.dtype.str, np.ascontiguousarray(array).data


def _unpacked(_: type, packed: tuple[str, bytes]) -> np.ndarray:
    return np.frombuffer(packed[1], dtype=packed[0])


_DECODER = msgspec.msgpack.Decoder(Answer, dec_hook=_unpacked)
