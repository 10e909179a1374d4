"""The `[memory]` events of a trace, and the blocks that they allocate and free.

PyTorch records one for each allocation (`Bytes` above 0) and each free (below 0), with the address,
the device, and what was allocated and reserved on it after the event, when it is told to profile
memory. Format: `reportMemoryUsageToProfiler` and the allocation events of
`torch/csrc/profiler/collection.cpp`.

Addresses are used again and again: a block lives from its allocation to the next event at its
address. That is its free; where it is another allocation, the profiler has lost the free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.group_search import by_group_and_time
from tracelens_ext.work.grouping import maxima, minima, number_groups, sums

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray, Trace

#: The number of the host; GPUs have theirs.
HOST = -1
#: Sizes and totals beyond this, 256 TB, are no such numbers: sums of them fit in 64 bits.
_MOST_BYTES = 2**48
_NAME = "[memory]"
_NO_NUMBER = np.iinfo(np.int64).min
_HOST_TYPE = 0  # `Device Type`; 1 is CUDA, 6 is ROCm


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """The memory events of a trace, k of them, by device, then time, then place in the file.

    Devices are d, the host first.
    """

    row: Int64Array  #: of each event in the trace, (k,)
    time: Int64Array  #: ns since the trace's first event, (k,)
    thread: IntArray  #: index into `Trace.threads`, (k,)
    size: Int64Array  #: bytes; above 0 allocates, below 0 frees, (k,)
    address: Int64Array  #: (k,)
    total: Int64Array  #: allocated on the device after the event, `NONE` where not recorded, (k,)
    reserved: Int64Array  #: likewise, what the allocator holds, (k,)
    place: Int64Array  #: index of each event's device, (k,)
    devices: Int64Array  #: number of each device, `HOST` for the host, (d,)
    unusable: int  #: memory events that lack a size or an address

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def first(self) -> Int64Array:
        """The first event of each device, (d,)."""
        return np.searchsorted(self.place, np.arange(len(self.devices)))

    @cached_property
    def last(self) -> Int64Array:
        """The last event of each device, (d,)."""
        return np.searchsorted(self.place, np.arange(len(self.devices)), side="right") - 1

    @cached_property
    def has_totals(self) -> BoolArray:
        """Whether a total is recorded of each device; else its levels begin at 0, (d,)."""
        known: BoolArray = maxima(self.place, self.total, len(self.devices)) >= 0
        return known

    @cached_property
    def _gap(self) -> Int64Array:
        """What a total has beyond the sum of sizes so far; it changes where events are lost, (k,).

        Where no total is recorded, that of the last one before it, or else of the first after it.
        """
        changes = np.cumsum(self.size)
        known = np.flatnonzero(self.total != NONE)
        if not len(known):
            return (self.size - changes)[self.first][self.place]
        at = np.searchsorted(known, np.arange(len(self)), side="right") - 1
        inside = (at >= 0) & (self.place[known[at]] == self.place)
        at = np.minimum(np.where(inside, at, at + 1), len(known) - 1)
        gap = (self.total - changes)[known[at]]
        without = self.place[known[at]] != self.place
        begins = (self.size - changes)[self.first][self.place]
        return np.where(without, begins, gap)

    @cached_property
    def level(self) -> Int64Array:
        """Bytes allocated on the device after each event, (k,).

        As recorded; where it is not, by the sizes since it was. Of a device without any total,
        what was allocated less what was freed since its first event.
        """
        return np.cumsum(self.size) + self._gap

    @cached_property
    def before(self) -> Int64Array:
        """Bytes that were allocated on each device before its first event, (d,)."""
        result: Int64Array = (self.level - self.size)[self.first]
        return result

    @cached_property
    def breaks(self) -> Int64Array:
        """Events of each device before which others were lost: their totals do not add up, (d,)."""
        changes = (np.diff(self._gap) != 0) & (np.diff(self.place) == 0)
        return np.bincount(self.place[1:][changes], minlength=len(self.devices))

    @cached_property
    def peak(self) -> Int64Array:
        """The first event of each device at which its level is highest, (d,)."""
        highest = maxima(self.place, self.level, len(self.devices))
        at = np.flatnonzero(self.level == highest[self.place])
        return minima(self.place[at], at, len(self.devices))

    @cached_property
    def blocks(self) -> Blocks:
        """What the trace saw allocated."""
        sized = np.flatnonzero(self.size)
        _, chain = number_groups([self.place[sized], self.address[sized]])
        order = np.argsort(chain, kind="stable")
        event, chain = sized[order], chain[order]
        allocates = self.size[event] > 0
        goes_on = np.append(chain[1:] == chain[:-1], False)[: len(event)]
        follower = np.where(goes_on, np.append(event[1:], NONE)[: len(event)], NONE)
        after_block = np.zeros(len(event), dtype=bool)
        after_block[1:] = allocates[:-1] & goes_on[:-1]
        birth, death = event[allocates], follower[allocates]
        order = np.argsort(birth)
        older = np.sort(event[~allocates & ~after_block])
        return Blocks(birth[order], death[order], older)

    def alive_at(self, moments: Int64Array) -> Int64Array:
        """The blocks that are alive after one event of each device.

        Args:
            moments: an event of each device, (d,).

        Returns:
            Indices of blocks, ascending.
        """
        birth, death = self.blocks.birth, self.blocks.death
        moment = moments[self.place[birth]]
        return np.flatnonzero((birth <= moment) & ((death == NONE) | (death > moment)))

    def older_bytes_at(self, moments: Int64Array) -> Int64Array:
        """Bytes older than the trace that are still allocated after an event of each device, (d,).

        They are what was there before, less the frees of blocks that the trace did not see
        allocated.
        """
        freed = self.blocks.older_freed
        freed = freed[freed <= moments[self.place[freed]]]
        return self.before + sums(self.place[freed], self.size[freed], len(self.devices))


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of memory that the trace saw allocated, b of them, in order of their devices' events.

    They are indices of memory events.
    """

    birth: Int64Array  #: the allocation of each, (b,)
    death: Int64Array  #: the next event at its address, `NONE` where none follows, (b,)
    older_freed: Int64Array  #: the frees of blocks that the trace did not see allocated


def has_memory_events(trace: Trace) -> bool:
    """Whether the profiler recorded memory events."""
    return "Addr" in trace.args and _NAME in trace.names


def read_memory_events(trace: Trace) -> MemoryEvents:
    """The memory events of a trace; none of a trace that has none."""
    rows = trace.rows_of(EventKind.INSTANT) if has_memory_events(trace) else np.empty(0, np.int64)
    if len(rows):
        rows = rows[trace.name[rows] == trace.names.index(_NAME)]
    size, address = (trace.arg(name).at(rows, _NO_NUMBER) for name in ("Bytes", "Addr"))
    usable = (np.abs(size) < _MOST_BYTES) & (size != _NO_NUMBER) & (address != _NO_NUMBER)
    unusable = int(np.count_nonzero(~usable))
    rows, size, address = rows[usable], size[usable], address[usable]
    number, kind = (trace.arg(name).at(rows) for name in ("Device Id", "Device Type"))
    number = np.where(kind == _HOST_TYPE, HOST, number)
    first, place = number_groups([number])
    order = by_group_and_time(place, trace.ts[rows])
    rows = rows[order]
    total, reserved = (trace.arg(name).at(rows) for name in ("Total Allocated", "Total Reserved"))
    for column in (total, reserved):
        column[(column < 0) | (column >= _MOST_BYTES)] = NONE
    return MemoryEvents(
        row=rows,
        time=trace.ts[rows],
        thread=trace.thread[rows],
        size=size[order],
        address=address[order],
        total=total,
        reserved=reserved,
        place=place[order],
        devices=number[first],
        unusable=unusable,
    )
