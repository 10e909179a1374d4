"""The `[memory]` events of a trace, and the blocks that they allocate and free.

With `profile_memory=True`, PyTorch's profiler records one event for each allocation (`Bytes` above
0) and each free (`Bytes` below 0). An event has the address of the block, the device, and the
totals that are allocated and reserved on the device after it. Format:
`reportMemoryUsageToProfiler` and the allocation events of `torch/csrc/profiler/collection.cpp`.

Addresses are reused. A block lives from its allocation to the next event at its address. Normally,
that event is its free; if it is another allocation, the profiler lost the free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
    grouping,
    sorted_groups,
)

#: The device number of the CPU's memory. GPUs have their own numbers, from 0 on.
HOST = -1
#: Sizes and totals of 256 TB or more cannot be right. Sums of smaller ones fit in 64 bits.
_MOST_BYTES = 2**48
_EVENT_NAME = "[memory]"
#: Stands for an argument that is missing or not a number.
_NO_NUMBER = np.iinfo(np.int64).min
#: The device type of the CPU; CUDA is 1 and ROCm is 6.
_CPU_TYPE = 0


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """The k memory events of a trace on d devices, sorted by device (the CPU first), time and row.

    Attributes:
        row: row of each event in the trace, (k,).
        time: ns since the trace's first event, (k,).
        thread: index into `Trace.threads`, (k,).
        size: bytes that are allocated (above 0) or freed (below 0), (k,).
        address: address of the block, (k,).
        total: bytes allocated on the device after the event; `NONE` if not recorded, (k,).
        reserved: bytes that the allocator holds after the event; `NONE` if not recorded, (k,).
        device_index: index of the device of each event in `devices`, (k,).
        devices: number of each device, `HOST` for the CPU, (d,).
        unusable_count: number of memory events that were left out, because they lack a valid size
            or address.
    """

    row: Int64Array
    time: Int64Array
    thread: IntArray
    size: Int64Array
    address: Int64Array
    total: Int64Array
    reserved: Int64Array
    device_index: Int64Array
    devices: Int64Array
    unusable_count: int

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def first(self) -> Int64Array:
        """Index of the first event of each device, (d,)."""
        return np.searchsorted(self.device_index, np.arange(len(self.devices)))

    @cached_property
    def last(self) -> Int64Array:
        """Index of the last event of each device, (d,)."""
        end = np.searchsorted(
            self.device_index, np.arange(len(self.devices)), side="right"
        )
        return end - 1

    @cached_property
    def has_totals(self) -> BoolArray:
        """Mask of the devices with at least one recorded total, (d,)."""
        largest_total = grouping.maxima(
            group_index=self.device_index,
            values=self.total,
            group_count=len(self.devices),
        )
        has_totals: BoolArray = largest_total >= 0
        return has_totals

    @cached_property
    def _offset(self) -> Int64Array:
        """The recorded total less the sum of all sizes up to each event, bytes, (k,).

        The offset of a device stays the same as long as no event is lost: it is the memory that was
        allocated before the first event. Of the events below, one of 7 bytes was lost:

            size 10 20 -5, total 110 130 132, sum of sizes 10 30 25, offset 100 100 107

        An event without a recorded total has the offset of the event before it, or of the first
        event of its device that has one. A device without any total gets the offset with which its
        level begins at 0.
        """
        sum_of_sizes = np.cumsum(self.size)
        recorded = pd.Series(
            pd.arrays.IntegerArray(self.total - sum_of_sizes, self.total == NONE)
        )
        filled_forward = recorded.groupby(self.device_index).ffill()
        filled = filled_forward.groupby(self.device_index).bfill()
        # The running sum includes the devices before, so it does not begin at 0.
        sum_before_device = (sum_of_sizes - self.size)[self.first]
        without_total = pd.Series(-sum_before_device[self.device_index], dtype="Int64")
        return filled.fillna(without_total).to_numpy(np.int64)

    @cached_property
    def level(self) -> Int64Array:
        """Bytes allocated on the device after each event, (k,).

        This is the recorded total. Where none is recorded, the sizes since the last total are
        added to it. On a device without any total, levels begin at 0.
        """
        return np.cumsum(self.size) + self._offset

    @cached_property
    def breaks(self) -> Int64Array:
        """Number of events of each device before which, by their total, events were lost, (d,)."""
        is_same_device = np.diff(self.device_index) == 0
        is_break = (np.diff(self._offset) != 0) & is_same_device
        return np.bincount(self.device_index[1:][is_break], minlength=len(self.devices))

    @cached_property
    def peak(self) -> Int64Array:
        """Index of the first event of each device at which its level is highest, (d,)."""
        highest = grouping.maxima(
            group_index=self.device_index,
            values=self.level,
            group_count=len(self.devices),
        )
        highest_of_device = highest[self.device_index]
        at_peak = np.flatnonzero(self.level == highest_of_device)
        return grouping.minima(
            group_index=self.device_index[at_peak],
            values=at_peak,
            group_count=len(self.devices),
        )

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks that were allocated in the trace."""
        event = pd.Series(np.flatnonzero(self.size))
        same_address = [self.device_index[event], self.address[event]]
        is_allocation = self.size[event] > 0
        allocations = pd.Series(is_allocation).groupby(same_address)
        follows_allocation = allocations.shift(1, fill_value=False)
        events_of_address = event.groupby(same_address)
        next_event = events_of_address.shift(-1, fill_value=NONE)
        frees_older = ~is_allocation & ~follows_allocation
        return Blocks(
            birth=event[is_allocation].to_numpy(),
            death=next_event[is_allocation].to_numpy(),
            older_frees=event[frees_older].to_numpy(),
        )

    def alive_after(self, event_of_device: Int64Array) -> Int64Array:
        """Return the blocks that are alive right after an event, ascending indices.

        Args:
            event_of_device: index of an event of each device, (d,).
        """
        birth = self.blocks.birth
        death = self.blocks.death
        event = event_of_device[self.device_index[birth]]
        is_born = birth <= event
        is_not_dead = (death == NONE) | (death > event)
        return np.flatnonzero(is_born & is_not_dead)

    def older_bytes_after(self, event_of_device: Int64Array) -> Int64Array:
        """Return the bytes from before the trace that are allocated right after an event, (d,).

        Args:
            event_of_device: index of an event of each device, (d,).
        """
        frees = self.blocks.older_frees
        frees = frees[frees <= event_of_device[self.device_index[frees]]]
        freed_bytes = -grouping.sums(
            group_index=self.device_index[frees],
            values=self.size[frees],
            group_count=len(self.devices),
        )
        level_at_start = (self.level - self.size)[self.first]
        return level_at_start - freed_bytes


@dataclass(frozen=True, eq=False)
class Blocks:
    """The b blocks that were allocated in the trace, as indices of memory events.

    Attributes:
        birth: the allocation of each block, ascending, (b,).
        death: the next event at the address of the block, `NONE` if none follows, (b,).
        older_frees: the frees of blocks that were allocated before the trace, ascending.
    """

    birth: Int64Array
    death: Int64Array
    older_frees: Int64Array


def has_memory_events(trace: Trace) -> bool:
    """Return True if the profiler recorded memory events."""
    return "Addr" in trace.args and _EVENT_NAME in trace.names


def read_memory_events(trace: Trace) -> MemoryEvents:
    """Return the memory events of a trace, of which there may be none."""
    rows = np.empty(0, dtype=np.int64)
    if has_memory_events(trace):
        rows = trace.rows_of(EventKind.INSTANT)
        name = trace.names.index(_EVENT_NAME)
        rows = rows[trace.name[rows] == name]
    size = trace.arg("Bytes").at(rows, _NO_NUMBER)
    address = trace.arg("Addr").at(rows, _NO_NUMBER)
    is_usable = np.abs(size) < _MOST_BYTES
    is_usable &= size != _NO_NUMBER
    is_usable &= address != _NO_NUMBER
    rows = rows[is_usable]
    device_number = trace.arg("Device Id").at(rows)
    device_type = trace.arg("Device Type").at(rows)
    is_host = device_type == _CPU_TYPE
    device_number = np.where(is_host, HOST, device_number)
    first, device_index = grouping.number_groups([device_number])
    order = sorted_groups.by_group_and_time(device_index, trace.ts[rows])
    rows = rows[order]
    return MemoryEvents(
        row=rows,
        time=trace.ts[rows],
        thread=trace.thread[rows],
        size=size[is_usable][order],
        address=address[is_usable][order],
        total=_recorded_bytes(trace, "Total Allocated", rows),
        reserved=_recorded_bytes(trace, "Total Reserved", rows),
        device_index=device_index[order],
        devices=device_number[first],
        unusable_count=int((~is_usable).sum()),
    )


def _recorded_bytes(trace: Trace, argument: str, rows: Int64Array) -> Int64Array:
    """Return an argument of each event as a number of bytes.

    The number is `NONE` where the argument is missing or cannot be right.
    """
    values = trace.arg(argument).at(rows)
    return np.where((values < 0) | (values >= _MOST_BYTES), NONE, values)
