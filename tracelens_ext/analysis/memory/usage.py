"""The tables about memory: peaks, what was alive at them, operations, blocks, levels over time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.iterations.selection import (
    Iterations,
    iteration_at,
    named_iterations,
)
from tracelens_ext.analysis.memory import events as recorded
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table, Tables
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

BEFORE = "(before the recording)"
LOST = "(events lost)"
#: Points of a line over time, for each device.
_MOST_POINTS = 1000
#: Iterations that are marked on the time axis.
_MOST_MARKS = 100
#: Column of a table: the column of the blocks that is aggregated, and how.
Aggregations = Mapping[str, tuple[str, str]]
_HELD: Aggregations = {
    "blocks": ("bytes", "size"),
    "bytes": ("bytes", "sum"),
    "largest_bytes": ("bytes", "max"),
}
#: Who was at work at each event, by column: codes, (k,), and labels.
Owners = Mapping[str, recorded.CodesAndLabels]


@dataclass(frozen=True, eq=False)
class Memory:
    """What the k memory events of a trace say.

    Attributes:
        events: the events.
        owners: who was at work at each event; see `find_owners`.
        outer_end: when the outermost operation around each event ended, (k,).
        iterations: the iterations of the trace.
        labels: what each iteration is called.
        iteration: the iteration of each event, `NONE` outside of all, (k,).
        process: the process of each event, as in `Trace.process_of_thread`, (k,).
    """

    events: recorded.MemoryEvents
    owners: Owners
    outer_end: Int64Array
    iterations: Iterations
    labels: list[str]
    iteration: Int64Array
    process: Int64Array

    def labels_of(self, events: Int64Array) -> pd.api.extensions.ExtensionArray:
        """Return what the iterations of some events are called; empty outside of all."""
        labels_and_none = self.labels + [""]  # `NONE` is the last index
        iterations = self.iteration[events].tolist()
        return _text_column([labels_and_none[iteration] for iteration in iterations])


@cached_per_object
def find_memory(tree: CallTree, annotation: Expression | None = None) -> Memory:
    """Return what the memory events of a trace say; `annotation` chooses its iterations."""
    events = recorded.read_memory_events(tree.trace)
    owners, outer_end = recorded.find_owners(tree, events)
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
    """Return a row per device; columns as the table `memory_peaks`."""
    events = memory.events
    place = events.place
    device_count = len(events.devices)

    def count(chosen: IntArray | BoolArray) -> Int64Array:
        return np.bincount(place[chosen], minlength=device_count)

    def total_size(chosen: IntArray | BoolArray) -> Int64Array:
        return sums(
            group_index=place[chosen],
            values=events.size[chosen],
            group_count=device_count,
        )

    is_allocation = events.size > 0
    is_free = events.size < 0
    alive_at_end = events.blocks.birth[events.alive_at(events.last)]
    peak_level = np.where(events.has_totals, events.level[events.peak], NONE)
    end_level = np.where(events.has_totals, events.level[events.last], NONE)
    most_reserved = maxima(place, events.reserved, device_count)
    knows_reserved = most_reserved > 0
    unused = np.where(events.reserved > 0, events.reserved - events.level, 0)
    unused_at_peak = np.where(knows_reserved, unused[events.peak], NONE)
    most_unused = np.where(knows_reserved, maxima(place, unused, device_count), NONE)
    return pd.DataFrame(
        {
            "device": events.devices,
            "events": np.bincount(place, minlength=device_count),
            "allocations": count(is_allocation),
            "frees": count(is_free),
            "allocated_bytes": total_size(is_allocation),
            "freed_bytes": -total_size(is_free),
            "peak_allocated_bytes": _known(peak_level),
            "peak_at_ms": events.time[events.peak] / NS_PER_MS,
            "peak_iteration": memory.labels_of(events.peak),
            "peak_reserved_bytes": _known(most_reserved),
            "unused_at_peak_bytes": _known(unused_at_peak),
            "most_unused_bytes": _known(most_unused),
            "end_total_bytes": _known(end_level),
            "alive_at_end": count(alive_at_end),
            "alive_at_end_bytes": total_size(alive_at_end),
            "older_frees": count(events.blocks.older_freed),
            "change_per_iteration_bytes": _change_per_iteration(memory),
            "breaks": events.breaks,
        }
    )


def _known(values: Int64Array) -> pd.api.extensions.ExtensionArray:
    """Return the numbers as a column, missing where they are `NONE`."""
    return pd.arrays.IntegerArray(values, values < 0)


def _change_per_iteration(memory: Memory) -> pd.api.extensions.ExtensionArray:
    """Return how much more is allocated after each finished iteration, on average, (d,)."""
    events = memory.events
    iterations = memory.iterations
    changes: list[int | None] = []
    for first, last in zip(events.first, events.last, strict=True):
        is_of_process = iterations.process == memory.process[first]
        ends = iterations.end[iterations.finished & is_of_process]
        times = events.time[first : last + 1]
        last_before_end = np.searchsorted(times, ends, side="right") - 1
        last_before_end = last_before_end[last_before_end >= 0] + first
        levels = events.level[last_before_end]
        if len(levels) < 2:
            changes.append(None)
        else:
            changes.append(int(levels[-1] - levels[0]) // (len(levels) - 1))
    return pd.array(changes, dtype="Int64")


def memory_at_peak(memory: Memory) -> pd.DataFrame:
    """Return what was alive at the peak of each device; columns as the table `memory_at_peak`.

    The bytes of a device add up to its peak: what the trace did not see allocated has a row of its
    own, and so has what events that the profiler lost would explain.
    """
    events = memory.events
    peak_bytes = events.level[events.peak]
    blocks = blocks_of(
        events=events, owners=memory.owners, chosen=events.alive_at(events.peak)
    )
    seen_bytes = sums(
        group_index=blocks["place"].to_numpy(),
        values=blocks["bytes"].to_numpy(),
        group_count=len(events.devices),
    )
    older_bytes = events.older_bytes_at(events.peak)
    lost_bytes = peak_bytes - older_bytes - seen_bytes
    rows = [
        by_owner(memory.owners, blocks),
        _unseen_rows(events, BEFORE, older_bytes),
        _unseen_rows(events, LOST, lost_bytes),
    ]
    frame = pd.concat(rows)
    frame = frame.sort_values(
        ["place", "bytes"], ascending=[True, False], ignore_index=True
    )
    place = frame.pop("place").to_numpy()
    frame.insert(0, "device", events.devices[place])
    frame["% of peak"] = percent(frame["bytes"].to_numpy(), peak_bytes[place])
    for name in memory.owners:
        frame[name] = frame[name].fillna("")
    return frame.astype({"blocks": "Int64", "largest_bytes": "Int64"})


def _unseen_rows(
    events: recorded.MemoryEvents, operation: str, bytes_of_device: Int64Array
) -> pd.DataFrame:
    """Return a row for each device with bytes that no block of the trace accounts for."""
    has_bytes = events.has_totals & (bytes_of_device != 0)
    place = np.flatnonzero(has_bytes)
    return pd.DataFrame(
        {
            "place": place,
            "bytes": bytes_of_device[place],
            "operation": _text_column([operation] * len(place)),
        }
    )


def memory_by_operation(memory: Memory) -> pd.DataFrame:
    """Return a row per operation that allocates; columns as the table `memory_by_operation`."""
    events = memory.events
    birth = events.blocks.birth
    death = events.blocks.death
    is_freed = _is_freed(memory)
    is_kept = _is_kept(memory)
    is_alive_at_peak = np.isin(np.arange(len(birth)), events.alive_at(events.peak))
    is_freed_within_operation = is_freed & (
        events.time[death] <= memory.outer_end[birth]
    )
    owners = {
        name: memory.owners[name] for name in ("phase", "operation", "outer_operation")
    }
    blocks = blocks_of(events, owners)
    summed: dict[str, Any] = {
        "frees": is_freed.astype(np.int64),
        "frees_within_operation": is_freed_within_operation,
        "mean_lifetime_us": np.where(
            is_freed, events.time[death] - events.time[birth], 0
        ),
        "alive_at_peak_bytes": blocks["bytes"] * is_alive_at_peak,
        "kept": is_kept.astype(np.int64),
        "kept_bytes": blocks["bytes"] * is_kept,
    }
    iteration_if_kept = pd.Series(memory.iteration[birth]).where(is_kept)
    blocks = blocks.assign(**summed, iteration=iteration_if_kept)
    aggregations = {
        "allocations": ("bytes", "size"),
        "allocated_bytes": ("bytes", "sum"),
        "largest_bytes": ("bytes", "max"),
    }
    for name in summed:
        aggregations[name] = (name, "sum")
    aggregations["kept_from_iterations"] = ("iteration", "nunique")
    # in order of their first block
    frame = by_owner(owners, blocks, aggregations, sort=False)
    frees = frame["frees"].where(frame["frees"] > 0)
    frame["mean_lifetime_us"] /= NS_PER_US
    frame["mean_lifetime_us"] /= frees
    frame = frame.sort_values(
        ["place", "allocated_bytes"], ascending=[True, False], ignore_index=True
    )
    frame.insert(0, "device", events.devices[frame.pop("place")])
    return frame


def _is_freed(memory: Memory) -> BoolArray:
    """Tell which blocks were freed in the trace, (b,)."""
    death = memory.events.blocks.death
    is_freed: BoolArray = (death != NONE) & (memory.events.size[death] < 0)
    return is_freed


def _is_kept(memory: Memory) -> BoolArray:
    """Tell which blocks were alive when the iteration after their allocation's had ended, (b,)."""
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
    last_time = events.time[events.last][events.place[birth]]
    outlives = np.where(death == NONE, last_time >= end, events.time[death] > end)
    is_kept: BoolArray = np.zeros(len(events.blocks.birth), dtype=bool)
    is_kept[candidates] = is_recorded & outlives
    return is_kept


def memory_blocks(memory: Memory, largest: int | None = None) -> pd.DataFrame:
    """Return a row per block that the trace saw allocated, by device, the largest first.

    `lifetime_us` is missing where it was not freed, `iteration` is that of the allocation.

    Args:
        memory: what the memory events say.
        largest: how many blocks of each device; all by default.
    """
    events = memory.events
    blocks = memory.events.blocks
    place = events.place[blocks.birth]
    order = np.lexsort((-events.size[blocks.birth], place))
    if largest is not None:
        sorted_place = place[order]
        rank_in_device = np.arange(len(order)) - np.searchsorted(
            sorted_place, sorted_place
        )
        order = order[rank_in_device < largest]
    birth = blocks.birth[order]
    death = blocks.death[order]
    lifetime_us = (events.time[death] - events.time[birth]) / NS_PER_US
    columns: dict[str, object] = {
        "device": events.devices[events.place[birth]],
        "bytes": events.size[birth],
        "allocated_at_ms": events.time[birth] / NS_PER_MS,
        "lifetime_us": np.where(_is_freed(memory)[order], lifetime_us, np.nan),
        "iteration": memory.labels_of(birth),
    }
    for name, (codes, labels) in memory.owners.items():
        columns[name] = _text_column(texts(codes[birth], labels))
    return pd.DataFrame(columns)


def blocks_of(
    events: recorded.MemoryEvents,
    owners: Owners,
    chosen: Int64Array | slice = slice(None),
) -> pd.DataFrame:
    """Return a row per block: its device, the codes of who allocated it, and its bytes.

    Args:
        events: the memory events.
        owners: who was at work at each of them.
        chosen: which blocks; all by default.
    """
    birth = events.blocks.birth[chosen]
    columns: dict[str, object] = {"place": events.place[birth]}
    for name, (codes, _) in owners.items():
        columns[name] = codes[birth]
    columns["bytes"] = events.size[birth]
    return pd.DataFrame(columns)


def by_owner(
    owners: Owners,
    blocks: pd.DataFrame,
    aggregations: Aggregations = _HELD,
    *,
    sort: bool = True,
) -> pd.DataFrame:
    """Aggregate the rows of `blocks_of` by device and owners; owners become texts."""
    groups = blocks.groupby(["place"] + list(owners), sort=sort)
    frame = groups.agg(**aggregations).reset_index()
    for name, (_, labels) in owners.items():
        frame[name] = _text_column(texts(frame[name].to_numpy(), labels))
    return frame


def _text_column(values: list[str]) -> pd.api.extensions.ExtensionArray:
    return pd.array(values, dtype="str")


def memory_over_time(memory: Memory) -> pd.DataFrame:
    """Return the levels of each device in at most a thousand points, none of its highest left out.

    Columns are `device`, `at_ms` since the trace's first event, `allocated_bytes` and
    `reserved_bytes`, the largest of each interval; `reserved_bytes` is missing where it is not
    recorded.
    """
    events = memory.events
    place = memory.events.place
    begin = events.time[events.first]
    duration = events.time[events.last] - begin + 1
    interval = (events.time - begin[place]) * _MOST_POINTS // duration[place]
    levels = pd.DataFrame({"level": events.level, "reserved": events.reserved})
    groups = levels.groupby([place, interval])
    highest = groups["level"].idxmax().to_numpy()  # the first of each interval
    most_reserved = maxima(
        group_index=place, values=events.reserved, group_count=len(events.devices)
    )
    place_of_point = place[highest]
    is_unknown = most_reserved[place_of_point] <= 0
    reserved = groups["reserved"].max().to_numpy()
    return pd.DataFrame(
        {
            "device": events.devices[place_of_point],
            "at_ms": events.time[highest] / NS_PER_MS,
            "allocated_bytes": events.level[highest],
            "reserved_bytes": pd.arrays.IntegerArray(reserved, is_unknown),
        }
    )


def memory_iterations(memory: Memory) -> pd.DataFrame:
    """Return the names of the first hundred iterations, and when they begin (ms)."""
    starts = memory.iterations.start[:_MOST_MARKS] / NS_PER_MS
    return pd.DataFrame({"iteration": memory.labels[: len(starts)], "start_ms": starts})


def memory_notes(memory: Memory) -> Iterator[str]:
    """Yield what the reader of the tables should know, a sentence each."""
    events = memory.events
    if events.unusable:
        yield (
            f"{events.unusable:,} memory events without a valid size or address are "
            "ignored."
        )
    for place, device in enumerate(events.devices.tolist()):
        where = "the host" if device == recorded.HOST else f"device {device}"
        breaks = int(events.breaks[place])
        if breaks:
            yield (
                f"The recorded totals of {where} are inconsistent at {breaks:,} "
                "memory events: the profiler lost events before them, so some owners "
                "are unknown."
            )
        if not events.has_totals[place]:
            yield (
                f"The trace has no totals for {where}: memory allocated before the "
                "recording is unknown, and the peak is where recorded allocations "
                "minus frees are highest."
            )


class MemoryContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and what its memory events say."""

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """Return what the memory events say; `annotation` chooses the iterations."""


def _has_memory_events(context: AnalysisContext, _options: ReportOptions) -> bool:
    return recorded.has_memory_events(context.trace)


_HAS_MEMORY = Condition(
    "the trace has memory events (`profile_memory=True`)", _has_memory_events
)


def _of_memory(
    make_table: Callable[[Memory], pd.DataFrame],
) -> Callable[..., pd.DataFrame]:
    """Return the function of a table that takes what the memory events say."""

    def table(
        context: MemoryContext, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        return make_table(context.memory(annotation))

    return table


def _largest(context: MemoryContext, largest: int = 10) -> pd.DataFrame:
    """Return the largest blocks of each device."""
    return memory_blocks(context.memory(), largest)


def _notes(
    context: MemoryContext, options: ReportOptions, tables: Tables
) -> Iterable[str]:
    if "memory_peaks" not in tables:
        return ()
    return memory_notes(context.memory(options.annotation))


_PHASE = Column(
    "phase", "`forward`, `backward` or `optimizer`; empty outside of all operations"
)
_OPERATION = Column(
    "operation", "the innermost CPU op on the thread at that time, or `(no operation)`"
)
_OUTER_OPERATION = Column("outer_operation", "the outermost CPU op around it")

MEMORY_PEAKS = Table(
    name="memory_peaks",
    shows="Peak memory of each device, and when it occurred",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("events", "all memory of the device", unit="memory events"),
        Column("allocations", "how many", unit="memory events"),
        Column("frees", "how many", unit="memory events"),
        Column("allocated_bytes", "sum of the allocations", unit="bytes"),
        Column("freed_bytes", "sum of the frees", unit="bytes"),
        Column(
            "peak_allocated_bytes",
            "most memory allocated at any time, including what was there before the "
            "recording",
            unit="bytes",
        ),
        Column(
            "peak_at_ms", "first time of the peak, since the first event of the trace"
        ),
        Column(
            "peak_iteration", "iteration of the peak; empty outside of all iterations"
        ),
        Column(
            "peak_reserved_bytes",
            "most memory reserved by the caching allocator, 0 on the CPU",
            unit="bytes",
        ),
        Column(
            "unused_at_peak_bytes",
            "reserved but not allocated at the peak: fragmentation",
            unit="bytes",
        ),
        Column("most_unused_bytes", "maximum at any time", unit="bytes"),
        Column("end_total_bytes", "allocated after the last event", unit="bytes"),
        Column(
            "alive_at_end", "allocated and not freed within the trace", unit="blocks"
        ),
        Column("alive_at_end_bytes", "of those", unit="bytes"),
        Column(
            "older_frees",
            "frees of memory whose allocation was not recorded",
            unit="memory events",
        ),
        Column(
            "change_per_iteration_bytes",
            "mean growth of the allocated memory from the end of one iteration to the "
            "end of the next",
            unit="bytes",
        ),
        Column(
            "breaks",
            "number of times the recorded totals are inconsistent because the "
            "profiler lost events",
            unit="memory events",
        ),
    ],
    table=_of_memory(memory_peaks),
    options=["annotation"],
    when=[_HAS_MEMORY],
    notes=_notes,
)
MEMORY_AT_PEAK = Table(
    name="memory_at_peak",
    shows="What used memory at the peak, and what allocated it",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column(
            "module",
            "the `nn.Module`s around it, as `path` of `nn_modules`; in the backward "
            "pass, those of the forward operation",
        ),
        Column(
            "python_frame",
            (
                "the innermost Python frame outside of PyTorch; in the backward pass, "
                "that of the forward operation"
            ),
        ),
        Column("blocks", "how many", unit="blocks"),
        Column(
            "bytes",
            "sum of the blocks; those of a device add up to its peak",
            unit="bytes",
        ),
        Column("largest_bytes", "size of the largest block", unit="bytes"),
        Column("% of peak", "of the device's peak", unit="%"),
    ],
    table=_of_memory(memory_at_peak),
    options=["annotation"],
    when=[_HAS_MEMORY],
    charts=[
        Chart(
            title="Memory",
            sheet="memory_at_peak",
            label_column="operation",
            value_column="bytes",
            kind="memory",
            on="page",
        )
    ],
)
MEMORY_BY_OPERATION = Table(
    name="memory_by_operation",
    shows="What each operation allocated, and for how long",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("allocations", "how many", unit="blocks"),
        Column("allocated_bytes", "their sum", unit="bytes"),
        Column("largest_bytes", "the largest", unit="bytes"),
        Column("frees", "allocations that were freed within the trace", unit="blocks"),
        Column(
            "frees_within_operation",
            "freed before the outermost operation ended (churn)",
            unit="blocks",
        ),
        Column("mean_lifetime_us", "lifetime of those that were freed"),
        Column(
            "alive_at_peak_bytes",
            "lifetime of those that were in use at the peak",
            unit="bytes",
        ),
        Column(
            "kept",
            "not freed by the end of the iteration after the one of the allocation",
            unit="blocks",
        ),
        Column("kept_bytes", "of those", unit="bytes"),
        Column(
            "kept_from_iterations",
            "number of iterations that leave such memory; if all do, it is a leak",
            unit="iterations",
        ),
    ],
    table=_of_memory(memory_by_operation),
    options=["annotation"],
    when=[_HAS_MEMORY],
    screen=ScreenView(
        title="Most memory allocated in total",
        columns=[
            "outer_operation",
            "operation",
            "allocations",
            "allocated_bytes",
            "kept_bytes",
            "mean_lifetime_us",
            "frees_within_operation",
        ],
    ),
)
MEMORY_LARGEST = Table(
    name="memory_largest",
    shows="Largest blocks of each device",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("bytes", "size of the block", unit="bytes"),
        Column("allocated_at_ms", "since the first event of the trace"),
        Column("lifetime_us", "empty if it was not freed"),
        Column(
            "iteration", "iteration of the allocation; empty outside of all iterations"
        ),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("module", "as in `memory_at_peak`"),
        Column("python_frame", "as in `memory_at_peak`"),
    ],
    table=_largest,
    when=[_HAS_MEMORY],
    screen=ScreenView(
        title="Largest blocks",
        columns=[
            "outer_operation",
            "bytes",
            "allocated_at_ms",
            "lifetime_us",
            "module",
            "python_frame",
        ],
    ),
    asked_by="tables",
)
MEMORY_OVER_TIME = Table(
    name="memory_over_time",
    shows="Allocated and reserved memory over time, at most a thousand points",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("at_ms", "since the first event of the trace"),
        Column("allocated_bytes", "maximum in the time bin", unit="bytes"),
        Column(
            "reserved_bytes",
            "maximum in the time bin; empty if not recorded",
            unit="bytes",
        ),
    ],
    table=_of_memory(memory_over_time),
    options=["annotation"],
    when=[_HAS_MEMORY],
    asked_by="tables",
    on_every_page=True,
)
MEMORY_ITERATIONS = Table(
    name="memory_iterations",
    shows="Start of the first hundred iterations",
    columns=[
        Column("iteration", "its name"),
        Column("start_ms", "since the first event of the trace"),
    ],
    table=_of_memory(memory_iterations),
    options=["annotation"],
    when=[_HAS_MEMORY],
    asked_by="tables",
    on_every_page=True,
)
