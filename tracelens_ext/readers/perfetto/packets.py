"""Finds the packets of a Perfetto trace, and keeps the definitions that later packets refer to.

Each packet belongs to a sequence. An earlier packet of the sequence may define texts by number, a
default clock and a default track; later packets then refer to these texts by number, and leave out
clock and track. A packet with a certain flag clears all definitions of its sequence. From one such
packet to the next, a sequence is in the same *state*.
Format: `trace_packet.proto`, `interned_data.proto` and `clock_snapshot.proto` of google/perfetto.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.builder import Interner, map_distinct_rows
from tracelens_ext.readers.perfetto.clocks import Clocks
from tracelens_ext.readers.perfetto.message import (
    Message,
    message_at,
    nested_messages,
    number_in,
    parts_of,
    text_in,
)
from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.many_messages import Bytes, Contents, Fields
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.lookup import values_at

#: Bytes of packets that are decoded together.
_WINDOW: Final = 1 << 21
#: The first byte of a packet: field 1, a message.
_PACKET: Final = 0x0A
#: Numbers of fields of `TracePacket`.
CLOCKS = 6
TIME = 8
SEQUENCE = 10
INTERNED = 12
FLAGS = 13
CLOCK = 58
DEFAULTS = 59
#: The flag of a packet that clears the definitions of its sequence.
_CLEARED: Final = 1
#: Numbers of fields of `InternedData`, which defines texts.
CATEGORY = 1
NAME = 2
ARGUMENT = 3
TEXT = 29
STAGE = 24
KERNEL = 1000
COUNTERS: Final = 47
#: Field of `InternedData` → number of the field with the text in its entries.
_TEXT_FIELD_OF: Final = {
    CATEGORY: 2,
    NAME: 2,
    ARGUMENT: 2,
    TEXT: 2,
    STAGE: 2,
    KERNEL: 3,
}
#: Number of the field with the number of an entry of `InternedData`.
_ENTRY_NUMBER: Final = 1
#: Snapshots of clocks that are read in a window; a damaged file could have millions.
_MOST_SNAPSHOTS: Final = 1000
#: Number of the field of `TracePacketDefaults` with the `TrackEventDefaults`, and of the field of
#: these with the default track.
_EVENT_DEFAULTS: Final = 11
_DEFAULT_TRACK: Final = 11
#: Numbers of fields of messages with a `GpuCounterDescriptor`: those that may contain it, and that
#: with the number of its GPU.
_COUNTER_DESCRIPTORS: Final = (1, 2, 3)
_GPU: Final = 3
#: Number of the field of `GpuCounterDescriptor` with its counters, and of fields of a counter.
_COUNTER_SPECS: Final = 1
_COUNTER_ID: Final = 1
_COUNTER_NAME: Final = 2


class CounterNames(NamedTuple):
    """The names of the counters of a GPU, by id."""

    gpu: int
    names: dict[int, str]


NO_COUNTERS: Final = CounterNames(0, {})


class PacketContext(NamedTuple):
    """The context of m packets."""

    state: Int64Array  #: number of the state of the sequence, (m,)
    time: Int64Array  #: ns since boot; 0 if the packet has no time, (m,)


class _DefinitionPlace(NamedTuple):
    """The bytes of a definition, and the state of the sequence that it belongs to."""

    state: int
    start: int
    end: int


class PacketBounds(NamedTuple):
    """The content of k packets in the bytes of the file."""

    start: Int64Array  #: first byte of the content, (k,)
    end: Int64Array  #: byte after the packet, (k,)


def windows(data: Bytes, size: int) -> Iterator[PacketBounds]:
    """Yield the packets of a file, some megabytes at a time.

    Args:
        data: the bytes of the file, followed by `PADDING`.
        size: the size of the file.

    Raises:
        DamagedError: no packet begins where the previous one ends.
    """
    position = 0
    while position < size:
        stop = min(position + _WINDOW, size)
        packets = _packets_between(data=data, first=position, stop=stop, size=size)
        if not len(packets.start):
            # Decoding the next two fields raises an error that says whether the file is cut off.
            remaining = memoryview(data.data)[position:size]
            for _ in islice(wire.fields(remaining), 2):
                pass
            raise wire.DamagedError(position, is_cut=False)
        yield packets
        position = int(packets.end[-1])


def _packets_between(data: Bytes, first: int, stop: int, size: int) -> PacketBounds:
    """Return the packets that begin in a range of bytes, of which the first begins at `first`.

    The length of a packet is all that tells where the next one begins, but a loop over millions of
    packets would be slow. So every byte that looks like the beginning of a packet is a candidate,
    provided that another one, or the end of the file, follows it. The loop then only follows the
    chain of candidates, each of which begins where the previous one ends.
    """
    candidate = first + np.flatnonzero(data[first:stop] == _PACKET)
    length, start = wire.varints(data, candidate + 1)
    is_within_file = (start > 0) & (length >= 0) & (length <= size - start)
    candidate = candidate[is_within_file]
    start = start[is_within_file]
    end = start + length[is_within_file]
    has_successor = (end == size) | (data[end] == _PACKET)
    candidate = candidate[has_successor]
    start = start[has_successor]
    end = end[has_successor]
    next_index = np.searchsorted(candidate, end)
    is_candidate = values_at(candidate, next_index) == end
    successor = np.where(is_candidate, next_index, NONE).tolist()
    packets = []
    index = NONE
    if len(candidate) and candidate[0] == first:
        index = 0
    while index != NONE:
        packets.append(index)
        index = successor[index]
    return PacketBounds(start=start[packets], end=end[packets])


class Interned(dict[tuple[int, int], int]):
    """State and number of a text → the code of the text."""

    def find(self, state: Int64Array, number: Int64Array) -> Int64Array:
        """Return the code of each text, (k,), by state and number; `NONE` if it is unknown."""
        return map_distinct_rows(self._code_of, state, number)

    def _code_of(self, state: int, number: int) -> int:
        return self.get((state, number), NONE)


class Sequences:
    """The states of the sequences of a file, and the definitions in each state.

    Attributes:
        texts: the distinct texts, as bytes → their codes.
        interned: field of `InternedData` → the codes of the texts that it defines.
        counters: state and number → the counters of a GPU.
        default_track: state → the track of events that do not name their track.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._raw = memoryview(data.data)
        self.texts: Interner[bytes] = Interner()
        self.interned = {number: Interned() for number in _TEXT_FIELD_OF}
        self.counters: dict[tuple[int, int], CounterNames] = {}
        self.default_track: dict[int, int] = {}
        self._default_clock: dict[int, int] = {}
        self._states: Interner[tuple[int, int]] = Interner()
        self._times_cleared: dict[int, int] = {}  # by sequence
        self._clocks = Clocks(self._raw)

    def text_codes(self, start: Int64Array, end: Int64Array) -> Int64Array:
        """Return the codes of the texts in k ranges of bytes, (k,)."""
        starts = start.tolist()
        ends = end.tolist()
        texts = map(self._bytes_at, starts, ends)
        codes = self.texts.codes(texts, len(starts))
        return codes.astype(np.int64)

    def _bytes_at(self, start: int, end: int) -> bytes:
        return bytes(self._raw[start:end])

    def text(self, fields: Fields, number: int, count: int) -> Int64Array:
        """Return the code of the text in a field of each message, (count,); `NONE` if it has none.

        Args:
            fields: the fields of the messages.
            number: the number of the field.
            count: the number of messages.
        """
        codes = np.full(count, NONE, dtype=np.int64)
        message, start, end = fields.contents(number)
        codes[message] = self.text_codes(start, end)
        return codes

    def read_definitions(self, packets: Fields, count: int) -> PacketContext:
        """Keep the definitions in the packets of a window, and return the context of each packet.

        Args:
            packets: the fields of the packets.
            count: the number of packets.
        """
        sequence = packets.numbers(SEQUENCE, count)
        is_cleared = packets.numbers(FLAGS, count) & _CLEARED != 0
        state = self._find_states(sequence, is_cleared)
        self._intern(packets.contents(INTERNED), state)
        for packet, defaults in nested_messages(self._raw, packets, DEFAULTS):
            state_of_packet = int(state[packet])
            self._default_clock[state_of_packet] = number_in(defaults, CLOCK)
            for event in parts_of(self._raw, defaults, _EVENT_DEFAULTS):
                self.default_track[state_of_packet] = number_in(event, _DEFAULT_TRACK)
        time = self._times(packets, count, sequence, state)
        return PacketContext(state=state, time=time)

    def _find_states(self, sequence: Int64Array, is_cleared: BoolArray) -> Int64Array:
        """Return the number of the state of each packet, (m,).

        A state is identified by its sequence and the number of times that it was cleared so far.
        """
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

    def _intern(self, contents: Contents, state: Int64Array) -> None:
        """Keep the texts and the counters that packets define.

        Args:
            contents: the positions of `InternedData` messages.
            state: the state of each packet.
        """
        places = self._interned_places(contents, state)
        for number, text_field in _TEXT_FIELD_OF.items():
            if not places.get(number):
                continue
            states, start, end = np.array(places[number], dtype=np.int64).T
            count = len(start)
            entries = wire.fields_of(self._data, start, end)
            codes = self.text(entries, text_field, count).tolist()
            text_numbers = entries.numbers(_ENTRY_NUMBER, count).tolist()
            interned = self.interned[number]
            for state_of_text, text_number, code in zip(
                states.tolist(), text_numbers, codes, strict=True
            ):
                interned[state_of_text, text_number] = code
        for place in places.get(COUNTERS, []):
            descriptor = message_at(self._raw, place.start, place.end)
            key = (place.state, number_in(descriptor, _ENTRY_NUMBER))
            self.counters[key] = counter_names(self._raw, descriptor)

    def _interned_places(
        self, contents: Contents, state: Int64Array
    ) -> dict[int, list[_DefinitionPlace]]:
        """Return the places of all entries, by the field of `InternedData` that they are in."""
        places: dict[int, list[_DefinitionPlace]] = {}
        states = state[contents.message].tolist()
        starts = contents.start.tolist()
        ends = contents.end.tolist()
        for state_of_packet, start, end in zip(states, starts, ends, strict=True):
            # A message may define thousands of texts, which are too many fields for `fields_of`.
            for number, values in message_at(self._raw, start, end).items():
                places_of_number = places.setdefault(number, [])
                for value in values:
                    if not isinstance(value, int):
                        place = _DefinitionPlace(state_of_packet, *value)
                        places_of_number.append(place)
        return places

    def _times(
        self, packets: Fields, count: int, sequence: Int64Array, state: Int64Array
    ) -> Int64Array:
        """Return the time of each packet in ns since boot, (count,); 0 if it has no time."""
        time = packets.numbers(TIME, count)
        clock = packets.numbers(CLOCK, count)
        if self._default_clock:
            defaults = [
                self._default_clock.get(number, 0)
                for number in range(len(self._states))
            ]
            clock = np.where(clock == 0, np.array(defaults)[state], clock)
        # The packets before a snapshot are converted without it.
        first = 0
        snapshots = nested_messages(self._raw, packets, CLOCKS)
        for packet, snapshot in islice(snapshots, _MOST_SNAPSHOTS):
            before = slice(first, packet)
            self._clocks.convert(time[before], clock[before], sequence[before])
            self._clocks.add_snapshot(snapshot, int(sequence[packet]))
            first = packet
        after = slice(first, None)
        self._clocks.convert(time[after], clock[after], sequence[after])
        return time


def counter_names(data: memoryview, holder: Message) -> CounterNames:
    """Return the counters that a message with a `GpuCounterDescriptor` describes."""
    names: dict[int, str] = {}
    for number in _COUNTER_DESCRIPTORS:
        for descriptor in parts_of(data, holder, number):
            for counter in parts_of(data, descriptor, _COUNTER_SPECS):
                counter_id = number_in(counter, _COUNTER_ID)
                names[counter_id] = text_in(data, counter, _COUNTER_NAME)
    return CounterNames(number_in(holder, _GPU), names)
