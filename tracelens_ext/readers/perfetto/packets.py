"""Packets of a Perfetto trace: where they are, and what is said of them by others before them.

A packet belongs to a sequence; names that it gives by number, its clock and its track may have been
said earlier on that sequence, since the sequence last forgot everything: its state.
Format: `trace_packet.proto`, `interned_data.proto` and `clock_snapshot.proto` of google/perfetto.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import numpy as np

from tracelens_ext.readers.builder import Interner, of_rows
from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.many_messages import Bytes, Fields
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: Times, sizes and ids beyond this are no such numbers.
MOST: Final = 2**62
_WINDOW: Final = 1 << 21
_PACKET: Final = 0x0A  # field 1, a message
#: Of `TracePacket`.
CLOCKS = 6
TIME = 8
SEQUENCE = 10
INTERNED = 12
FLAGS = 13
CLOCK = 58
DEFAULTS = 59
_CLEARED: Final = 1  # the flag of a packet before which its sequence forgets everything
#: Interned texts: the number in `InternedData`, and that of the text within.
CATEGORY = 1
NAME = 2
ARGUMENT = 3
TEXT = 29
STAGE = 24
KERNEL = 1000
_TEXTS: Final = {CATEGORY: 2, NAME: 2, ARGUMENT: 2, TEXT: 2, STAGE: 2, KERNEL: 3}
COUNTERS: Final = 47
_MOST_SNAPSHOTS: Final = 1000  # in a window
#: Clocks: since boot, and those of a sequence alone.
_BOOT_TIME = 6
_OF_SEQUENCE = range(64, 128)


def windows(data: Bytes, size: int) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Where the packets of a file begin and end, some megabytes at a time."""
    at = 0
    while at < size:
        start, end = _chain(data, at, min(at + _WINDOW, size), size)
        if not len(start):
            list(zip(wire.fields(memoryview(data.data)[at:size]), range(1), strict=False))
            raise wire.DamagedError(at, is_cut=False)
        yield start, end
        at = int(end[-1])


def _chain(data: Bytes, at: int, stop: int, size: int) -> tuple[Int64Array, Int64Array]:
    """The packets that begin in a window: what looks like one, and another one leads to it."""
    place = at + np.flatnonzero(data[at:stop] == _PACKET)
    length, start = wire.varints(data, place + 1)
    fits = (start > 0) & (length >= 0) & (length <= size - start)
    end = (start + length)[fits]
    start = start[fits]
    place = place[fits]
    fits = (end == size) | (data[end] == _PACKET)
    place = place[fits]
    start = start[fits]
    end = end[fits]
    after = np.searchsorted(place, end)
    follows = np.where(np.append(place, NONE)[after] == end, after, NONE).tolist()
    chain = []
    number = 0 if len(place) and place[0] == at else NONE
    while number != NONE:
        chain.append(number)
        number = follows[number]
    return start[chain], end[chain]


class Interned(dict[tuple[int, int], int]):
    """(state, number) → the code of the text that the number stands for."""

    def find(self, state: Int64Array, number: Int64Array) -> Int64Array:
        """The codes of numbers, `NONE` of one that was never said, each shape (k,)."""
        return of_rows(lambda *said: self.get(said, NONE), state, number)


class Sequences:
    """The states of the sequences of a file, and what was said in them.

    Attributes: `texts`, as bytes; `interned`, by number in `InternedData`, codes; `counters`:
    (state, number) → a GPU, and the names of its counters; `track`: state → that of other events.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._raw = memoryview(data.data)
        self.texts: Interner[bytes] = Interner()
        self.interned = {number: Interned() for number in _TEXTS}
        self.counters: dict[tuple[int, int], tuple[int, dict[int, str]]] = {}
        self.track: dict[int, int] = {}
        self._clock: dict[int, int] = {}

        self._states: Interner[tuple[int, int]] = Interner()
        self._cleared: dict[int, int] = {}
        #: (sequence or 0, clock) → what is added to its times, what they are multiplied with, and
        #: whether they count from the last one
        self._clocks: dict[tuple[int, int], tuple[int, int, bool]] = {}

    def slices(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Codes of the texts at some places, (k,)."""
        raw = self._raw
        places = zip(start.tolist(), end.tolist(), strict=True)
        return self.texts.codes((bytes(raw[a:b]) for a, b in places), len(start)).astype(np.int64)

    def text(self, fields: Fields, number: int, count: int) -> Int64Array:
        """The code of a text of each of `count` messages, `NONE` without, (count,)."""
        result = np.full(count, NONE, dtype=np.int64)
        message, start, end = fields.contents(number)
        result[message] = self.slices(start, end)
        return result

    def take(self, packets: Fields, count: int) -> tuple[Int64Array, Int64Array]:
        """Learn what the packets of a window say; their states, and times in ns, (count,) each."""
        sequence = packets.numbers(SEQUENCE, count)
        state = self._state(sequence, packets.numbers(FLAGS, count) & _CLEARED != 0)
        self._intern(packets.contents(INTERNED), state)
        for packet, said in messages(self._raw, packets, DEFAULTS):
            here = int(state[packet])
            self._clock[here] = number_in(said, CLOCK)
            for event in parts_of(self._raw, said, 11):
                self.track[here] = number_in(event, 11)
        return state, self._time(packets, count, sequence, state)

    def _state(self, sequence: Int64Array, cleared: BoolArray) -> Int64Array:
        """A number for each packet's sequence, since that was last cleared."""
        times = np.empty(len(sequence), dtype=np.int64)
        for number in np.unique(sequence).tolist():
            rows = np.flatnonzero(sequence == number)
            times[rows] = np.cumsum(cleared[rows]) + self._cleared.get(number, 0)
            self._cleared[number] = int(times[rows[-1]])
        return of_rows(lambda *which: self._states[which], sequence, times)

    def _intern(self, contents: tuple[Int64Array, ...], state: Int64Array) -> None:
        packet, start, end = contents
        places: dict[int, list[tuple[int, int, int]]] = {}
        for each, a, b in zip(state[packet].tolist(), start.tolist(), end.tolist(), strict=True):
            # One may hold thousands of texts, too many for `fields_of`.
            for number, values in message_at(self._raw, a, b).items():
                places.setdefault(number, []).extend(
                    (each, *value) for value in values if not isinstance(value, int)
                )
        for number, text in _TEXTS.items():
            if not places.get(number):
                continue
            states, begin, stop = np.array(places[number], dtype=np.int64).T
            entries = wire.fields_of(self._data, begin, stop)
            code = self.text(entries, text, len(begin))
            iid = entries.numbers(1, len(begin))
            pairs = zip(states.tolist(), iid.tolist(), strict=True)
            self.interned[number].update(zip(pairs, code.tolist(), strict=True))
        for each, a, b in places.get(COUNTERS, []):
            said = message_at(self._raw, a, b)
            self.counters[each, number_in(said, 1)] = counter_names(self._raw, said)

    def _time(
        self, packets: Fields, count: int, sequence: Int64Array, state: Int64Array
    ) -> Int64Array:
        """When each packet was written, in the clock of the time since boot."""
        time = packets.numbers(TIME, count)
        clock = packets.numbers(CLOCK, count)
        if self._clock:
            usual = np.array([self._clock.get(each, 0) for each in range(len(self._states))])
            clock = np.where(clock == 0, usual[state], clock)
        at = 0
        snapshots = islice(messages(self._raw, packets, CLOCKS), _MOST_SNAPSHOTS)
        for packet, said in chain(snapshots, [(count, {})]):
            self._convert(time[at:packet], clock[at:packet], sequence[at:packet])
            at = packet
            clocks = {number_in(each, 1): each for each in parts_of(self._raw, said, 1)}
            for number, each in clocks.items() if _BOOT_TIME in clocks else ():
                unit = min(number_in(each, 4), 10**9) or 1
                counts_on = number_in(each, 3) != 0
                key = int(sequence[packet]) if number in _OF_SEQUENCE else 0, number
                then = 0 if counts_on else number_in(each, 2) * unit
                offset = number_in(clocks[_BOOT_TIME], 2) - then
                if abs(offset) < MOST and (counts_on or key not in self._clocks):
                    self._clocks[key] = offset, unit, counts_on
        return time

    def _convert(self, time: Int64Array, clock: Int64Array, sequence: Int64Array) -> None:
        """Convert times in place; those of a clock that counts on are since the last one."""
        for whose, number in self._clocks if len(time) else ():
            of = (clock == number) & (time != 0) & ((sequence == whose) | (whose == 0))
            if number == _BOOT_TIME or not of.any():
                continue
            offset, unit, counts_on = self._clocks[whose, number]
            times = time[of] * unit
            time[of] = offset + (np.cumsum(times) if counts_on else times)
            if counts_on:
                self._clocks[whose, number] = int(time[of][-1]), unit, True


def messages(data: memoryview, fields: Fields, number: int) -> Iterator[tuple[int, Message]]:
    """The messages of a number, and which message has each; where there are few."""
    parts = (part.tolist() for part in fields.contents(number))
    for message, start, end in zip(*parts, strict=True):
        yield message, message_at(data, start, end)


def counter_names(data: memoryview, holder: Message) -> tuple[int, dict[int, str]]:
    """The GPU, and id → name of its counters, of a message that holds a `GpuCounterDescriptor`."""
    found: dict[int, str] = {}
    for number in (1, 2, 3):
        for descriptor in parts_of(data, holder, number):
            for spec in parts_of(data, descriptor, 1):
                found[number_in(spec, 1)] = text_in(data, spec, 2)
    return number_in(holder, 3), found


#: The fields of one message: number → whole numbers, and places of others.
Message = dict[int, list[int | tuple[int, int]]]


def message_at(data: memoryview, start: int, end: int) -> Message:
    """The fields of one message; for messages of which there are few."""
    result: Message = {}
    try:
        for _, first, a, b in wire.fields(data[start:end]):
            key, _ = wire.varint(data, start + first)
            number = key & 7 == wire.VARINT
            value = wire.varint(data, start + a)[0] if number else (start + a, start + b)
            result.setdefault(key >> 3, []).append(value)
    except (wire.DamagedError, IndexError, ValueError):
        raise wire.MessageError from None
    return result


def number_in(message: Message, number: int) -> int:
    """A whole number; 0 if there is none."""
    value = message.get(number, [0])[-1]
    return value if isinstance(value, int) and value < MOST else 0


def text_in(data: memoryview, message: Message, number: int) -> str:
    """A text; empty if there is none."""
    value = message.get(number, [0])[-1]
    return "" if isinstance(value, int) else bytes(data[slice(*value)]).decode("utf-8", "replace")


def parts_of(data: memoryview, message: Message, number: int) -> Iterator[Message]:
    """The messages of a number."""
    for value in message.get(number, []):
        if not isinstance(value, int):
            yield message_at(data, *value)
