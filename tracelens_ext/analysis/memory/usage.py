"""The contents of the tables about memory: peaks, owners, operations, blocks, levels over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import Iterations, iteration_at
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.analysis.memory.blocks import (
    BEFORE,
    LOST,
    blocks_of,
    by_owner,
    text_column,
)
from tracelens_ext.analysis.memory.events import (
    HOST,
    MemoryEvents,
    read_memory_events,
)
from tracelens_ext.analysis.memory.owners import Owners, find_owners
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import maxima, percent, sums, texts

#: Largest number of points over time, for each device.
_MOST_POINTS = 1000
#: Largest number of iterations that are marked on the time axis.
_MOST_MARKS = 100


@dataclass(frozen=True, eq=False)
class Memory:
    """The k memory events of a trace, with their owners and iterations.

    Attributes:
        events: the events.
        owners: operation, phase, module and Python frame around each event; see `find_owners`.
        outer_end: when the outermost operation around each event ended, ns since the trace's first
            event, `NONE` outside of all operations, (k,).
        iterations: the iterations of the trace.
        labels: the name of each iteration.
        iteration: index of the iteration of each event, `NONE` outside of all iterations, (k,).
        process: the process of each event, as in `Trace.process_of_thread`, (k,).
    """

    events: MemoryEvents
    owners: Owners
    outer_end: Int64Array
    iterations: Iterations
    labels: list[str]
    iteration: Int64Array
    process: Int64Array

    def labels_of(self, events: Int64Array) -> pd.api.extensions.ExtensionArray:
        """Return the name of the iteration of each event; empty outside of all iterations."""
        # `NONE` is -1, the index of the last label.
        labels = self.labels + [""]
        return text_column(texts(self.iteration[events], labels))


@cached_per_object
def find_memory(tree: CallTree, annotation: Expression | None = None) -> Memory:
    """Read the memory events of a trace, and find the owners and the iteration of each event.

    Args:
        tree: the call tree.
        annotation: pattern that is searched in the names of annotations to find iterations;
            `ProfilerStep#N` by default.
    """
    events = read_memory_events(tree.trace)
    owners, outer_end = find_owners(tree, events)
    iterations, labels, _ = named_iterations(tree, annotation)
    process = tree.trace.process_of_thread[events.thread].astype(np.int64)
    ranges = (iterations.process, iterations.start, iterations.end)
    return Memory(
        events=events,
        owners=owners,
        outer_end=outer_end,
        iterations=iterations,
        labels=labels,
        iteration=iteration_at(ranges, process, events.time),
        process=process,
    )


def memory_peaks(memory: Memory) -> pd.DataFrame:
    """Return a row per device, as the table `memory_peaks`; `tables.py` describes its columns."""
    events = memory.events
    device_index = events.device_index
    device_count = len(events.devices)

    def count(chosen: IntArray | BoolArray) -> Int64Array:
        """Return the number of chosen events of each device."""
        return np.bincount(device_index[chosen], minlength=device_count)

    def total_size(chosen: IntArray | BoolArray) -> Int64Array:
        """Return the total size of the chosen events of each device, bytes."""
        return sums(
            group_index=device_index[chosen],
            values=events.size[chosen],
            group_count=device_count,
        )

    is_allocation = events.size > 0
    is_free = events.size < 0
    alive_at_end = events.blocks.birth[events.alive_after(events.last)]
    peak_level = np.where(events.has_totals, events.level[events.peak], NONE)
    end_level = np.where(events.has_totals, events.level[events.last], NONE)
    reserved = _reserved_bytes(events)
    return pd.DataFrame(
        {
            "device": events.devices,
            "events": np.bincount(device_index, minlength=device_count),
            "allocations": count(is_allocation),
            "frees": count(is_free),
            "allocated_bytes": total_size(is_allocation),
            "freed_bytes": -total_size(is_free),
            "peak_allocated_bytes": _nullable(peak_level),
            "peak_at_ms": events.time[events.peak] / NS_PER_MS,
            "peak_iteration": memory.labels_of(events.peak),
            "peak_reserved_bytes": _nullable(reserved.most),
            "unused_at_peak_bytes": _nullable(reserved.unused_at_peak),
            "most_unused_bytes": _nullable(reserved.most_unused),
            "end_total_bytes": _nullable(end_level),
            "alive_at_end": count(alive_at_end),
            "alive_at_end_bytes": total_size(alive_at_end),
            "older_frees": count(events.blocks.older_frees),
            "change_per_iteration_bytes": _change_per_iteration(memory),
            "breaks": events.breaks,
        }
    )


class _ReservedBytes(NamedTuple):
    """The memory that allocators hold on d devices, bytes; negative where it is not recorded."""

    most: Int64Array  #: the most that is held at any time, (d,)
    #: held but not allocated at the peak of allocated memory, (d,)
    unused_at_peak: Int64Array
    #: the most that is held but not allocated at any time, (d,)
    most_unused: Int64Array


def _reserved_bytes(events: MemoryEvents) -> _ReservedBytes:
    """Return the memory that the allocator of each device holds."""
    device_count = len(events.devices)
    most = maxima(events.device_index, events.reserved, device_count)
    has_reserved = most > 0
    unused = np.where(events.reserved > 0, events.reserved - events.level, 0)
    most_unused = maxima(events.device_index, unused, device_count)
    return _ReservedBytes(
        most=most,
        unused_at_peak=np.where(has_reserved, unused[events.peak], NONE),
        most_unused=np.where(has_reserved, most_unused, NONE),
    )


def _nullable(values: Int64Array) -> pd.api.extensions.ExtensionArray:
    """Return numbers as a column in which `NONE` is missing."""
    return pd.arrays.IntegerArray(values, values < 0)


def _change_per_iteration(memory: Memory) -> pd.api.extensions.ExtensionArray:
    """Return by how much the level of each device changes per finished iteration, on average.

    The iterations of a device are those of the process of its first event: each device is assumed
    to be used by a single process. The level at the end of an iteration is that after the last
    event before its end. With fewer than two such levels, the change of a device is missing.
    """
    events = memory.events
    iterations = memory.iterations
    changes: list[int | None] = []
    for first, last in zip(events.first, events.last, strict=True):
        is_of_process = iterations.process == memory.process[first]
        ends = iterations.end[iterations.finished & is_of_process]
        times = events.time[first : last + 1]
        last_by_end = np.searchsorted(times, ends, side="right") - 1
        last_by_end = last_by_end[last_by_end >= 0] + first
        levels = events.level[last_by_end]
        if len(levels) < 2:
            changes.append(None)
        else:
            change = int(levels[-1] - levels[0])
            changes.append(round(Fraction(change, len(levels) - 1)))
    return pd.array(changes, dtype="Int64")


def memory_at_peak(memory: Memory) -> pd.DataFrame:
    """Return the memory in use at the peak of each device by owner, as table `memory_at_peak`.

    The bytes of a device add up to its peak. Memory from before the recording has a row of its own
    (`BEFORE`), and so has memory whose allocation the profiler lost (`LOST`).
    """
    events = memory.events
    peak_bytes = events.level[events.peak]
    blocks = blocks_of(
        events=events, owners=memory.owners, chosen=events.alive_after(events.peak)
    )
    recorded_bytes = sums(
        group_index=blocks["device_index"].to_numpy(),
        values=blocks["bytes"].to_numpy(),
        group_count=len(events.devices),
    )
    older_bytes = events.older_bytes_after(events.peak)
    lost_bytes = peak_bytes - older_bytes - recorded_bytes
    parts = [
        by_owner(memory.owners, blocks),
        _unrecorded_rows(events, BEFORE, older_bytes),
        _unrecorded_rows(events, LOST, lost_bytes),
    ]
    frame = pd.concat(parts)
    frame = frame.sort_values(
        ["device_index", "bytes"], ascending=[True, False], ignore_index=True
    )
    device_index = frame.pop("device_index").to_numpy()
    frame.insert(0, "device", events.devices[device_index])
    frame["% of peak"] = percent(frame["bytes"].to_numpy(), peak_bytes[device_index])
    for name in memory.owners:
        frame[name] = frame[name].fillna("")
    return frame.astype({"blocks": "Int64", "largest_bytes": "Int64"})


def _unrecorded_rows(
    events: MemoryEvents, operation: str, bytes_of_device: Int64Array
) -> pd.DataFrame:
    """Return a row for each device that has bytes without a recorded allocation.

    Args:
        events: the memory events.
        operation: `BEFORE` or `LOST`, in place of an operation.
        bytes_of_device: the bytes of each device, (d,).
    """
    has_bytes = events.has_totals & (bytes_of_device != 0)
    device_index = np.flatnonzero(has_bytes)
    return pd.DataFrame(
        {
            "device_index": device_index,
            "bytes": bytes_of_device[device_index],
            "operation": text_column([operation] * len(device_index)),
        }
    )


def memory_by_operation(memory: Memory) -> pd.DataFrame:
    """Return a row per operation that allocates, as the table `memory_by_operation`.

    `tables.py` describes its columns.
    """
    events = memory.events
    birth = events.blocks.birth
    death = events.blocks.death
    is_freed = _is_freed(memory)
    is_kept = _is_kept(memory)
    is_alive_at_peak = np.zeros(len(birth), dtype=bool)
    is_alive_at_peak[events.alive_after(events.peak)] = True
    # Blocks without a death get the time of the last event here; `is_freed` excludes them below.
    ends_within_operation = events.time[death] <= memory.outer_end[birth]
    lifetime_ns = np.where(is_freed, events.time[death] - events.time[birth], 0)
    owners = {
        name: memory.owners[name] for name in ("phase", "operation", "outer_operation")
    }
    blocks = blocks_of(events, owners)
    # Columns of the blocks that are summed over each operation.
    summed: dict[str, Any] = {
        "frees": is_freed.astype(np.int64),
        "frees_within_operation": is_freed & ends_within_operation,
        "lifetime_ns": lifetime_ns,
        "alive_at_peak_bytes": blocks["bytes"] * is_alive_at_peak,
        "kept": is_kept.astype(np.int64),
        "kept_bytes": blocks["bytes"] * is_kept,
    }
    iteration_if_kept = pd.Series(memory.iteration[birth]).where(is_kept)
    blocks = blocks.assign(**summed, iteration=iteration_if_kept)
    aggregations: dict[str, tuple[str, str]] = {
        "allocations": ("bytes", "size"),
        "allocated_bytes": ("bytes", "sum"),
        "largest_bytes": ("bytes", "max"),
    }
    for name in summed:
        # The sum of lifetimes becomes their mean below, in the same place.
        column = "mean_lifetime_us" if name == "lifetime_ns" else name
        aggregations[column] = (name, "sum")
    aggregations["kept_from_iterations"] = ("iteration", "nunique")
    # Operations that allocate the same number of bytes stay in the order of their first blocks.
    frame = by_owner(owners, blocks, aggregations, sort=False)
    total_lifetime_us = frame["mean_lifetime_us"] / NS_PER_US
    frees = frame["frees"].where(frame["frees"] > 0)
    frame["mean_lifetime_us"] = total_lifetime_us / frees
    frame = frame.sort_values(
        ["device_index", "allocated_bytes"], ascending=[True, False], ignore_index=True
    )
    frame.insert(0, "device", events.devices[frame.pop("device_index")])
    return frame


def _is_freed(memory: Memory) -> BoolArray:
    """Return a mask of the blocks that were freed within the trace, (b,).

    A block also ends when another one is allocated at its address, because its free was lost.
    """
    death = memory.events.blocks.death
    is_freed: BoolArray = (death != NONE) & (memory.events.size[death] < 0)
    return is_freed


def _is_kept(memory: Memory) -> BoolArray:
    """Return a mask of the blocks that survive the iteration after the one that allocated them.

    The shape is (b,). An iteration that the recording cut off does not count.
    """
    events = memory.events
    iterations = memory.iterations
    next_iteration = memory.iteration[events.blocks.birth] + 1
    has_next = (next_iteration > 0) & (next_iteration < len(iterations))
    candidates = np.flatnonzero(has_next)
    next_iteration = next_iteration[candidates]
    birth = events.blocks.birth[candidates]
    death = events.blocks.death[candidates]
    is_same_process = iterations.process[next_iteration] == memory.process[birth]
    is_recorded = iterations.finished[next_iteration] & is_same_process
    end = iterations.end[next_iteration]
    # A block without a death is alive at the last event of its device.
    last_time = events.time[events.last][events.device_index[birth]]
    outlives = np.where(death == NONE, last_time >= end, events.time[death] > end)
    is_kept: BoolArray = np.zeros(len(events.blocks.birth), dtype=bool)
    is_kept[candidates] = is_recorded & outlives
    return is_kept


def memory_blocks(memory: Memory, largest: int | None = None) -> pd.DataFrame:
    """Return a row per block that was allocated in the trace, by device, the largest first.

    `lifetime_us` is missing if the block was not freed. `iteration` is the one that allocated it.

    Args:
        memory: the memory events.
        largest: number of blocks to return of each device; all by default.
    """
    events = memory.events
    blocks = memory.events.blocks
    device_index = events.device_index[blocks.birth]
    order = np.lexsort((-events.size[blocks.birth], device_index))
    if largest is not None:
        sorted_devices = device_index[order]
        first_of_device = np.searchsorted(sorted_devices, sorted_devices)
        rank_in_device = np.arange(len(order)) - first_of_device
        order = order[rank_in_device < largest]
    birth = blocks.birth[order]
    death = blocks.death[order]
    lifetime_us = (events.time[death] - events.time[birth]) / NS_PER_US
    columns: dict[str, object] = {
        "device": events.devices[events.device_index[birth]],
        "bytes": events.size[birth],
        "allocated_at_ms": events.time[birth] / NS_PER_MS,
        "lifetime_us": np.where(_is_freed(memory)[order], lifetime_us, np.nan),
        "iteration": memory.labels_of(birth),
    }
    for name, owner in memory.owners.items():
        columns[name] = text_column(texts(owner.codes[birth], owner.labels))
    return pd.DataFrame(columns)


def memory_over_time(memory: Memory) -> pd.DataFrame:
    """Return the highest level of each device in up to a thousand intervals of equal length.

    The columns are `device`, `at_ms` (of the first event with the highest level of the interval,
    since the trace's first event), `allocated_bytes` (that level) and `reserved_bytes` (the largest
    of the interval, missing if not recorded).
    """
    events = memory.events
    device_index = memory.events.device_index
    start = events.time[events.first]
    duration = events.time[events.last] - start + 1
    time_on_device = events.time - start[device_index]
    interval = time_on_device * _MOST_POINTS // duration[device_index]
    levels = pd.DataFrame({"level": events.level, "reserved": events.reserved})
    groups = levels.groupby([device_index, interval])
    highest = groups["level"].idxmax().to_numpy()
    most_reserved = maxima(
        group_index=device_index,
        values=events.reserved,
        group_count=len(events.devices),
    )
    device_of_point = device_index[highest]
    is_unknown = most_reserved[device_of_point] <= 0
    reserved = groups["reserved"].max().to_numpy()
    return pd.DataFrame(
        {
            "device": events.devices[device_of_point],
            "at_ms": events.time[highest] / NS_PER_MS,
            "allocated_bytes": events.level[highest],
            "reserved_bytes": pd.arrays.IntegerArray(reserved, is_unknown),
        }
    )


def memory_iterations(memory: Memory) -> pd.DataFrame:
    """Return name and start (ms since the trace's first event) of the first hundred iterations."""
    starts = memory.iterations.start[:_MOST_MARKS] / NS_PER_MS
    return pd.DataFrame({"iteration": memory.labels[: len(starts)], "start_ms": starts})


def memory_notes(memory: Memory) -> Iterator[str]:
    """Yield sentences about memory events that are missing or cannot be used."""
    events = memory.events
    if events.unusable_count:
        yield (
            f"{events.unusable_count:,} memory events without a valid size or address are "
            "ignored."
        )
    for index, device in enumerate(events.devices.tolist()):
        where = "the host" if device == HOST else f"device {device}"
        breaks = int(events.breaks[index])
        if breaks:
            yield (
                f"The recorded totals of {where} are inconsistent at {breaks:,} "
                "memory events: the profiler lost events before them, so some owners "
                "are unknown."
            )
        if not events.has_totals[index]:
            yield (
                f"The trace has no totals for {where}: memory allocated before the "
                "recording is unknown, and the peak is where recorded allocations "
                "minus frees are highest."
            )
