"""Finds the packets of a Perfetto trace, and keeps what later packets refer to.

A packet belongs to a sequence. It may give names by number, and leave out its clock and its track:
what they are was written earlier on that sequence. A packet with a certain flag makes its sequence
forget all that; between two such packets a sequence is in one state.
Format: `trace_packet.proto`, `interned_data.proto` and `clock_snapshot.proto` of google/perfetto.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.builder import Interner, map_distinct_rows
from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.many_messages import Bytes, Fields
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.lookup import values_at

#: Times, sizes and ids beyond this are no such numbers.
MOST: Final = 2**62
_WINDOW: Final = 1 << 21
_PACKET: Final = 0x0A  # field 1, a message
#: Fields of `TracePacket`.
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
#: Fields of `TracePacketDefaults`, of its `TrackEventDefaults`, of `ClockSnapshot`, of `Clock`, of
#: an entry of `InternedData`, of `GpuCounterDescriptor`, and of one counter in it.
_EVENT_DEFAULTS: Final = 11
_USUAL_TRACK: Final = 11
_CLOCK_ENTRIES: Final = 1
_CLOCK_NUMBER: Final = 1
_CLOCK_TIME: Final = 2
_CLOCK_IS_INCREMENTAL: Final = 3
_CLOCK_UNIT: Final = 4
_ENTRY_NUMBER: Final = 1
_COUNTER_SPECS: Final = 1
_COUNTER_ID: Final = 1
_COUNTER_NAME: Final = 2
#: Where a message may have a `GpuCounterDescriptor`, and the number of its GPU.
_COUNTER_DESCRIPTORS: Final = (1, 2, 3)
_GPU: Final = 3
#: Clocks: the time since boot, and those of a sequence alone.
_BOOT_TIME = 6
_CLOCKS_OF_SEQUENCE = range(64, 128)
_MOST_NS_OF_A_TICK: Final = 10**9


class CounterNames(NamedTuple):
    """The names of the counters of a GPU, by id."""

    gpu: int
    names: dict[int, str]


NO_COUNTERS: Final = CounterNames(0, {})


class _TraceClock(NamedTuple):
    """How times of a clock become times since boot: times `unit`, plus `offset`, ns."""

    offset: int
    unit: int
    is_incremental: bool  #: a time counts from the last one; `offset` is that


class _PacketPlace(NamedTuple):
    """Where something is written in the bytes of the file, and by a sequence in which state."""

    state: int
    start: int
    end: int


def windows(data: Bytes, size: int) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield where the packets of a file begin and end, some megabytes at a time.

    Raises:
        DamagedError: no packet begins where the last one ends.
    """
    place = 0
    while place < size:
        stop = min(place + _WINDOW, size)
        start, end = _packets_between(data=data, first=place, stop=stop, size=size)
        if not len(start):
            remaining = memoryview(data.data)[place:size]
            for _ in islice(wire.fields(remaining), 2):
                pass  # an error says more of a packet that is cut, or the one after it
            raise wire.DamagedError(place, is_cut=False)
        yield start, end
        place = int(end[-1])


def _packets_between(
    data: Bytes, first: int, stop: int, size: int
) -> tuple[Int64Array, Int64Array]:
    """Return where the packets that begin in a window have their content: starts, and ends.

    Each byte that may begin a packet is taken for one, if another may begin where it ends. Then the
    chain is followed that leads from one packet to the next.
    """
    place = first + np.flatnonzero(data[first:stop] == _PACKET)
    length, start = wire.varints(data, place + 1)
    is_within_file = (start > 0) & (length >= 0) & (length <= size - start)
    place = place[is_within_file]
    start = start[is_within_file]
    end = start + length[is_within_file]
    leads_on = (end == size) | (data[end] == _PACKET)
    place = place[leads_on]
    start = start[leads_on]
    end = end[leads_on]
    candidate = np.searchsorted(place, end)
    is_packet = values_at(place, candidate) == end
    successor = np.where(is_packet, candidate, NONE).tolist()
    packets = []
    number = NONE
    if len(place) and place[0] == first:
        number = 0
    while number != NONE:
        packets.append(number)
        number = successor[number]
    return start[packets], end[packets]


class Interned(dict[tuple[int, int], int]):
    """(state, number) → the code of the text that the number stands for."""

    def find(self, state: Int64Array, number: Int64Array) -> Int64Array:
        """Return the codes of numbers, `NONE` for an unknown one, each of shape (k,)."""
        return map_distinct_rows(self._code_of, state, number)

    def _code_of(self, state: int, number: int) -> int:
        return self.get((state, number), NONE)


class Sequences:
    """The states of the sequences of a file, and what was written in them.

    Attributes:
        texts: the distinct texts as bytes, and their codes.
        interned: codes of texts, by the field of `InternedData`.
        counters: (state, number) → the counters of a GPU.
        track: state → the track of events that name none.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._raw = memoryview(data.data)
        self.texts: Interner[bytes] = Interner()
        self.interned = {number: Interned() for number in _TEXTS}
        self.counters: dict[tuple[int, int], CounterNames] = {}
        self.track: dict[int, int] = {}
        self._default_clock: dict[int, int] = {}
        self._states: Interner[tuple[int, int]] = Interner()
        self._times_cleared: dict[int, int] = {}
        #: (sequence or 0, number of the clock) → the clock
        self._clocks: dict[tuple[int, int], _TraceClock] = {}

    def slices(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return the codes of the texts at some places, (k,)."""
        starts = start.tolist()
        ends = end.tolist()
        texts = map(self._bytes_at, starts, ends)
        codes = self.texts.codes(texts, len(starts))
        return codes.astype(np.int64)

    def _bytes_at(self, start: int, end: int) -> bytes:
        return bytes(self._raw[start:end])

    def text(self, fields: Fields, number: int, count: int) -> Int64Array:
        """Return the code of a text of each of `count` messages, `NONE` without, (count,)."""
        result = np.full(count, NONE, dtype=np.int64)
        message, start, end = fields.contents(number)
        result[message] = self.slices(start, end)
        return result

    def take(self, packets: Fields, count: int) -> tuple[Int64Array, Int64Array]:
        """Keep what the packets of a window define; return their states, and times in ns, (count,).

        Args:
            packets: the fields of the packets.
            count: of the packets.
        """
        sequence = packets.numbers(SEQUENCE, count)
        is_cleared = packets.numbers(FLAGS, count) & _CLEARED != 0
        state = self._find_states(sequence, is_cleared)
        self._intern(packets.contents(INTERNED), state)
        for packet, defaults in messages(self._raw, packets, DEFAULTS):
            state_of_packet = int(state[packet])
            self._default_clock[state_of_packet] = number_in(defaults, CLOCK)
            for event in parts_of(self._raw, defaults, _EVENT_DEFAULTS):
                self.track[state_of_packet] = number_in(event, _USUAL_TRACK)
        return state, self._times(
            packets=packets, count=count, sequence=sequence, state=state
        )

    def _find_states(self, sequence: Int64Array, is_cleared: BoolArray) -> Int64Array:
        """Number each packet's sequence, and how often that was cleared so far."""
        times_cleared = np.empty(len(sequence), dtype=np.int64)
        for number in np.unique(sequence).tolist():
            packets = np.flatnonzero(sequence == number)
            cleared_before = self._times_cleared.get(number, 0)
            cleared_so_far = cleared_before + np.cumsum(is_cleared[packets])
            times_cleared[packets] = cleared_so_far
            self._times_cleared[number] = int(cleared_so_far[-1])

        def number_of(sequence: int, times_cleared: int) -> int:
            return self._states[sequence, times_cleared]

        return map_distinct_rows(number_of, sequence, times_cleared)

    def _intern(self, contents: tuple[Int64Array, ...], state: Int64Array) -> None:
        """Keep the texts and the counters that packets define, given where these messages are."""
        places = self._interned_places(contents, state)
        for number, text_field in _TEXTS.items():
            if not places.get(number):
                continue
            states, start, end = np.array(places[number], dtype=np.int64).T
            count = len(start)
            entries = wire.fields_of(self._data, start, end)
            codes = self.text(entries, text_field, count).tolist()
            text_numbers = entries.numbers(_ENTRY_NUMBER, count).tolist()
            interned = self.interned[number]
            for key_and_code in zip(states.tolist(), text_numbers, codes, strict=True):
                state_of_text, text_number, code = key_and_code
                interned[state_of_text, text_number] = code
        for place in places.get(COUNTERS, []):
            descriptor = message_at(data=self._raw, start=place.start, end=place.end)
            key = (place.state, number_in(descriptor, _ENTRY_NUMBER))
            self.counters[key] = counter_names(self._raw, descriptor)

    def _interned_places(
        self, contents: tuple[Int64Array, ...], state: Int64Array
    ) -> dict[int, list[_PacketPlace]]:
        """Return where the entries of each field of `InternedData` are."""
        packet, start, end = contents
        places: dict[int, list[_PacketPlace]] = {}
        messages = zip(
            state[packet].tolist(), start.tolist(), end.tolist(), strict=True
        )
        for state_of_packet, first, last in messages:
            # One may hold thousands of texts, too many for `fields_of`.
            for number, values in message_at(self._raw, first, last).items():
                places_of_number = places.setdefault(number, [])
                for value in values:
                    if not isinstance(value, int):
                        places_of_number.append(_PacketPlace(state_of_packet, *value))
        return places

    def _times(
        self, packets: Fields, count: int, sequence: Int64Array, state: Int64Array
    ) -> Int64Array:
        """Return when each packet was written, in the clock of the time since boot."""
        time = packets.numbers(TIME, count)
        clock = packets.numbers(CLOCK, count)
        if self._default_clock:
            defaults = [
                self._default_clock.get(number, 0)
                for number in range(len(self._states))
            ]
            clock = np.where(clock == 0, np.array(defaults)[state], clock)
        first = 0
        for packet, snapshot in islice(
            messages(self._raw, packets, CLOCKS), _MOST_SNAPSHOTS
        ):
            since_last = slice(first, packet)
            self._convert(
                time=time[since_last],
                clock=clock[since_last],
                sequence=sequence[since_last],
            )
            self._take_snapshot(snapshot, int(sequence[packet]))
            first = packet
        self._convert(time=time[first:], clock=clock[first:], sequence=sequence[first:])
        return time

    def _take_snapshot(self, snapshot: Message, sequence: int) -> None:
        """Keep how the clocks of a `ClockSnapshot` relate to the time since boot."""
        clocks = {}
        for clock in parts_of(self._raw, snapshot, _CLOCK_ENTRIES):
            number = number_in(clock, _CLOCK_NUMBER)
            clocks[number] = clock
        if _BOOT_TIME not in clocks:
            return
        boot_time = number_in(clocks[_BOOT_TIME], _CLOCK_TIME)
        for number, clock in clocks.items():
            unit = min(number_in(clock, _CLOCK_UNIT), _MOST_NS_OF_A_TICK) or 1
            is_incremental = number_in(clock, _CLOCK_IS_INCREMENTAL) != 0
            offset = boot_time
            if not is_incremental:
                ticks = number_in(clock, _CLOCK_TIME)
                offset -= ticks * unit
            key = (0, number)
            if number in _CLOCKS_OF_SEQUENCE:
                key = (sequence, number)
            is_new = is_incremental or key not in self._clocks
            if is_new and abs(offset) < MOST:
                self._clocks[key] = _TraceClock(
                    offset=offset, unit=unit, is_incremental=is_incremental
                )

    def _convert(
        self, time: Int64Array, clock: Int64Array, sequence: Int64Array
    ) -> None:
        """Convert times in place to those since boot; 0 stands for no time."""
        if not len(time):
            return
        for key, known_clock in self._clocks.items():
            clock_sequence, number = key
            has_clock = (clock == number) & (time != 0)
            if clock_sequence != 0:
                has_clock &= sequence == clock_sequence
            if number == _BOOT_TIME or not has_clock.any():
                continue
            times = time[has_clock] * known_clock.unit
            if known_clock.is_incremental:
                times = np.cumsum(times)
            time[has_clock] = known_clock.offset + times
            if known_clock.is_incremental:
                converted = time[has_clock]
                last_time = int(converted[-1])
                self._clocks[key] = known_clock._replace(offset=last_time)


def messages(
    data: memoryview, fields: Fields, number: int
) -> Iterator[tuple[int, Message]]:
    """Yield the messages of a field, each with the message that has it; where there are few."""
    message, start, end = fields.contents(number)
    holders = message.tolist()
    starts = start.tolist()
    ends = end.tolist()
    for holder, first, last in zip(holders, starts, ends, strict=True):
        yield holder, message_at(data, first, last)


def counter_names(data: memoryview, holder: Message) -> CounterNames:
    """Return the counters of a message that holds a `GpuCounterDescriptor`."""
    names: dict[int, str] = {}
    for number in _COUNTER_DESCRIPTORS:
        for descriptor in parts_of(data, holder, number):
            for counter in parts_of(data, descriptor, _COUNTER_SPECS):
                counter_id = number_in(counter, _COUNTER_ID)
                names[counter_id] = text_in(data, counter, _COUNTER_NAME)
    return CounterNames(number_in(holder, _GPU), names)


#: The fields of one message: number → whole numbers, and places of others.
Message = dict[int, list[int | tuple[int, int]]]


def message_at(data: memoryview, start: int, end: int) -> Message:
    """Return the fields of one message; for messages of which there are few.

    Raises:
        MessageError: these bytes are no message.
    """
    result: Message = {}
    try:
        for field in wire.fields(data[start:end]):
            key, _ = wire.varint(data, start + field.start)
            value: int | tuple[int, int] = (start + field.content, start + field.end)
            if key & wire.WIRE_TYPE == wire.VARINT:
                value, _ = wire.varint(data, start + field.content)
            result.setdefault(key >> wire.FIELD_SHIFT, []).append(value)
    except (wire.DamagedError, IndexError, ValueError):
        raise wire.MessageError from None
    return result


def number_in(message: Message, number: int) -> int:
    """Return the whole number of a field, the last one; 0 without."""
    value = message.get(number, [0])[-1]
    if isinstance(value, int) and value < MOST:
        return value
    return 0


def text_in(data: memoryview, message: Message, number: int) -> str:
    """Return the text of a field, the last one; empty without."""
    value = message.get(number, [0])[-1]
    if isinstance(value, int):
        return ""
    start, end = value
    return bytes(data[start:end]).decode("utf-8", "replace")


def parts_of(data: memoryview, message: Message, number: int) -> Iterator[Message]:
    """Yield the messages of a field."""
    for value in message.get(number, []):
        if not isinstance(value, int):
            start, end = value
            yield message_at(data, start, end)
