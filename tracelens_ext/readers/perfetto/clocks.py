"""Converts the times of packets to one clock: the time since boot.

A snapshot of the clocks (`ClockSnapshot`) gives the time of several clocks at the same moment, from
which follows how each one relates to the time since boot.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.perfetto.message import (
    MOST,
    Message,
    number_in,
    parts_of,
)
from tracelens_ext.trace import Int64Array

#: Number of the field of `ClockSnapshot` with its clocks.
_CLOCK_ENTRIES: Final = 1
#: Numbers of fields of `Clock`.
_NUMBER: Final = 1
_TIME: Final = 2
_IS_INCREMENTAL: Final = 3
_UNIT: Final = 4
#: Number of the clock that counts the time since boot.
_BOOT_TIME: Final = 6
#: Numbers of clocks that each sequence defines for itself.
_CLOCKS_OF_SEQUENCE: Final = range(64, 128)
_MOST_NS_PER_TICK: Final = 10**9
#: Stands for a clock that all sequences share.
_ALL_SEQUENCES: Final = 0


class _Clock(NamedTuple):
    """A clock. A time of the clock is `offset` + time * `unit` ns since boot.

    A time of an incremental clock counts from the previous time of that clock.
    """

    offset: int  #: ns; for an incremental clock, the previous time
    unit: int  #: ns
    is_incremental: bool


class Clocks:
    """The clocks of a file, as far as snapshots have described them."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        #: sequence, or `_ALL_SEQUENCES`, and number of the clock → the clock
        self._clocks: dict[tuple[int, int], _Clock] = {}

    def add_snapshot(self, snapshot: Message, sequence: int) -> None:
        """Learn how the clocks in a snapshot relate to the time since boot.

        Of a clock in several snapshots, the first one counts; an incremental clock counts from the
        latest snapshot.

        Args:
            snapshot: the `ClockSnapshot`.
            sequence: the sequence of its packet.
        """
        entries = {}
        for entry in parts_of(self._data, snapshot, _CLOCK_ENTRIES):
            entries[number_in(entry, _NUMBER)] = entry
        if _BOOT_TIME not in entries:
            return
        boot_time = number_in(entries[_BOOT_TIME], _TIME)
        for number, entry in entries.items():
            unit = min(number_in(entry, _UNIT), _MOST_NS_PER_TICK) or 1
            is_incremental = number_in(entry, _IS_INCREMENTAL) != 0
            offset = boot_time
            if not is_incremental:
                offset -= number_in(entry, _TIME) * unit
            key = (_ALL_SEQUENCES, number)
            if number in _CLOCKS_OF_SEQUENCE:
                key = (sequence, number)
            counts = is_incremental or key not in self._clocks
            if counts and abs(offset) < MOST:
                self._clocks[key] = _Clock(offset, unit, is_incremental)

    def convert(
        self, time: Int64Array, clock: Int64Array, sequence: Int64Array
    ) -> None:
        """Convert the times of m successive packets, in place, to ns since boot.

        Times of unknown clocks stay as they are.

        Args:
            time: the time of each packet, 0 if it has none, (m,).
            clock: the number of the clock of each time, (m,).
            sequence: the sequence of each packet, (m,).
        """
        if not len(time):
            return
        for key, known_clock in self._clocks.items():
            clock_sequence, number = key
            has_clock = (clock == number) & (time != 0)
            if clock_sequence != _ALL_SEQUENCES:
                has_clock &= sequence == clock_sequence
            if number == _BOOT_TIME or not has_clock.any():
                continue
            ticks_ns = time[has_clock] * known_clock.unit
            if known_clock.is_incremental:
                ticks_ns = np.cumsum(ticks_ns)
            converted = known_clock.offset + ticks_ns
            time[has_clock] = converted
            if known_clock.is_incremental:
                previous_time = int(converted[-1])
                self._clocks[key] = known_clock._replace(offset=previous_time)
