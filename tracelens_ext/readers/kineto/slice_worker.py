"""A process that decodes slices of a large trace, one after the other.

It is started by `workers.py` and shares a piece of memory with it: slots, each with room for a
slice's text and for the columns made of it. A request on standard input says in which slot a text
lies; an answer on standard output says that its columns lie there, or that the slice was refused.
The process ends when standard input does. No code goes either way, only numbers and texts.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto.columns import Lane, SliceColumns, SliceReader, Special
from tracelens_ext.readers.kineto.json_escapes import mend_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.readers.kineto.schema import Event

#: Slot, generation, bytes of text. A new generation means: forget the codes that were given.
REQUEST = struct.Struct("<IIQ")
#: Slot, bytes of the header; 0 for a slice that was refused.
ANSWER = struct.Struct("<IQ")
#: What a worker says first.
READY = ANSWER.pack(0xFFFFFFFF, 0)

TEXT_ROOM, RESULT_ROOM, SLOTS = 1 << 21, 1 << 24, 3
SLOT_ROOM = TEXT_ROOM + RESULT_ROOM
_ALIGNMENT = 8
_HEADER = struct.Struct("<Q")


class Header(msgspec.Struct, array_like=True):
    """What a slice's columns are, and the values behind codes that were not given before.

    Attributes:
        count, special: as in `SliceColumns`.
        names, texts, lanes: new values, in order of code.
        arrays: name, type and length of each array, in the order in which they follow.
        numbers, texts_of: arguments, in order, each with two arrays.
    """

    count: int
    special: list[Special]
    names: list[str]
    texts: list[bytes]
    lanes: list[Lane]
    arrays: list[tuple[str, int]]
    numbers: list[str]
    texts_of: list[str]


class _Given(NamedTuple):
    """How many codes the other side knows."""

    names: int = 0
    texts: int = 0
    lanes: int = 0


class Worker:
    """Decodes the slices in a piece of memory.

    Args:
        memory: the slots.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memoryview(memory)
        self._generation = -1
        self._forget()

    def _forget(self) -> None:
        self._reader = SliceReader(Interner(), Interner())
        self._given = _Given()

    def answer(self, slot: int, generation: int, length: int) -> int:
        """Decode a slice; the bytes of the header that now lies in its slot, 0 if refused."""
        if generation != self._generation:
            self._generation = generation
            self._forget()
        start = slot * SLOT_ROOM
        try:
            text = self._memory[start : start + length]
            columns = self._reader.columns(self._decoded(text))
            return self._write(columns, start + TEXT_ROOM)
        except Exception:  # noqa: BLE001  # whatever is odd: the other side finds out what
            self._generation = -1  # codes may have been given to values that are not told
            return 0

    def _decoded(self, text: memoryview) -> list[Event]:
        try:
            return self._reader.decode(text)
        except msgspec.DecodeError:
            return self._reader.decode(mend_bytes(bytes(text)))

    def _write(self, columns: SliceColumns, start: int) -> int:
        """Write a slice's columns; the bytes of the header before them.

        Raises:
            ValueError: there is no room for them.
        """
        arrays = [columns.lane, columns.name, columns.kind, columns.ts, columns.dur]
        for rows, values in (*columns.numbers.values(), *columns.texts.values()):
            arrays += [rows.astype(np.int32, copy=False), values]
        names, texts, lanes = self._reader.names, self._reader.texts, self._reader.lanes
        header = msgspec.msgpack.encode(
            Header(
                columns.count,
                columns.special,
                list(islice(names, self._given.names, None)),
                list(islice(texts, self._given.texts, None)),
                list(islice(lanes, self._given.lanes, None)),
                [(array.dtype.str, len(array)) for array in arrays],
                list(columns.numbers),
                list(columns.texts),
            )
        )
        place = start + len(header)
        end = start + RESULT_ROOM
        if place > end:
            raise ValueError("no room for the header")
        self._memory[start:place] = header
        for array in arrays:
            place += -place % _ALIGNMENT
            if place + array.nbytes > end:
                raise ValueError("no room for the columns")
            self._memory[place : place + array.nbytes] = np.ascontiguousarray(array).tobytes()
            place += array.nbytes
        self._given = _Given(len(names), len(texts), len(lanes))
        return len(header)


def read_slice(
    memory: memoryview, slot: int, header_length: int
) -> tuple[Header, list[npt.NDArray[np.integer]]]:
    """What a worker has written into a slot; the arrays lie in that slot still."""
    start = slot * SLOT_ROOM + TEXT_ROOM
    place = start + header_length
    header = msgspec.msgpack.decode(memory[start:place], type=Header)
    arrays = []
    for kind, length in header.arrays:
        place += -place % _ALIGNMENT
        array = np.frombuffer(memory, dtype=np.dtype(kind), count=length, offset=place)
        arrays.append(array)
        place += array.nbytes
    return header, arrays


def main(memory_file: int) -> None:
    """Serve until standard input ends.

    Args:
        memory_file: the descriptor of the memory.
    """
    memory = mmap.mmap(memory_file, SLOTS * SLOT_ROOM)
    requests, answers = sys.stdin.buffer, sys.stdout.fileno()
    worker = Worker(memory)
    os.write(answers, READY)
    while len(request := requests.read(REQUEST.size)) == REQUEST.size:
        slot, generation, length = REQUEST.unpack(request)
        os.write(answers, ANSWER.pack(slot, worker.answer(slot, generation, length)))
