"""The tables about memory: peaks, what was alive at them, operations, blocks, levels over time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.iterations.selection import Iterations, iteration_at, named_iterations
from tracelens_ext.analysis.memory import events as recorded
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table, Tables
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, BoolArray, Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import maxima, percent, sums, texts

BEFORE = "(before the recording)"
LOST = "(events lost)"
# of a line over time, a device; iterations on it
_MOST_POINTS = 1000
_MOST_MARKS = 100
Told = Mapping[str, tuple[str, str]]  #: column → the column that is summed up, and how
_HELD = {"blocks": ("bytes", "size"), "bytes": ("bytes", "sum"), "largest_bytes": ("bytes", "max")}
#: Who was at work at each event, by column: codes, (k,), and labels.
Owners = Mapping[str, tuple[Int64Array, list[str]]]


@dataclass(frozen=True, eq=False)
class Memory:
    """What the memory events of a trace tell."""

    events: recorded.MemoryEvents
    owners: Owners  #: see `find_owners`
    outer_end: Int64Array  #: when the outermost operation around each event ended, (k,)
    iterations: Iterations
    labels: list[str]  #: what each iteration is called
    iteration: Int64Array  #: that of each event, `NONE` outside of all, (k,)
    process: Int64Array  #: of each event, as in `Trace.process_of_thread`, (k,)

    def labels_of(self, at: Int64Array) -> pd.api.extensions.ExtensionArray:
        """What the iterations of some events are called; empty outside of all."""
        found = [*self.labels, ""]  # the last is what `NONE` picks
        return _text_column([found[iteration] for iteration in self.iteration[at].tolist()])


@cached_per_object
def find_memory(tree: CallTree, annotation: Expression | None = None) -> Memory:
    """What the memory events of a trace tell; `annotation` chooses its iterations."""
    events = recorded.read_memory_events(tree.trace)
    iterations, labels, _ = named_iterations(tree, annotation)
    process = tree.trace.process_of_thread[events.thread].astype(np.int64)
    ranges = (iterations.process, iterations.start, iterations.end)
    at = iteration_at(ranges, process, events.time)
    return Memory(events, *recorded.find_owners(tree, events), iterations, labels, at, process)


def memory_peaks(memory: Memory) -> pd.DataFrame:
    """A row a device; columns as the sheet `memory_peaks`."""
    events = memory.events
    at = memory.events.peak
    end = memory.events.last
    place = events.place
    size = events.size
    count = len(events.devices)
    unused = np.where(events.reserved > 0, events.reserved - events.level, 0)
    reserved = maxima(place, events.reserved, count)
    left = events.blocks.birth[events.alive_at(end)]
    levels = np.where(events.has_totals, [events.level[at], events.level[end]], NONE)
    chosen = size > 0, size < 0, left, events.blocks.older_freed
    allocations, frees, alive, older = (np.bincount(place[c], minlength=count) for c in chosen)
    allocated, freed, of_alive = (sums(place[c], size[c], count) for c in chosen[:3])
    found: dict[str, object] = {"device": events.devices}
    found |= {"events": np.bincount(place, minlength=count), "allocations": allocations}
    found |= {"frees": frees, "allocated_bytes": allocated, "freed_bytes": -freed}
    found |= {"peak_allocated_bytes": _known(levels[0]), "peak_at_ms": events.time[at] / NS_PER_MS}
    found |= {"peak_iteration": memory.labels_of(at), "peak_reserved_bytes": _known(reserved)}
    both = {"unused_at_peak_bytes": unused[at], "most_unused_bytes": maxima(place, unused, count)}
    found |= {name: _known(np.where(reserved > 0, each, NONE)) for name, each in both.items()}
    found |= {"end_total_bytes": _known(levels[1]), "alive_at_end": alive}
    found |= {"alive_at_end_bytes": of_alive, "older_frees": older}
    found["change_per_iteration_bytes"] = _change_per_iteration(memory)
    return pd.DataFrame({**found, "breaks": events.breaks})


def _known(values: Int64Array) -> pd.api.extensions.ExtensionArray:
    """Numbers, missing where they are `NONE`."""
    return pd.arrays.IntegerArray(values, values < 0)


def _change_per_iteration(memory: Memory) -> pd.api.extensions.ExtensionArray:
    """How much more is allocated at the end of each finished iteration, on average, (d,)."""
    events = memory.events
    iterations = memory.iterations
    changes: list[int | None] = []
    for first, last in zip(events.first, events.last, strict=True):
        of_process = iterations.process == memory.process[first]
        ends = iterations.end[iterations.finished & of_process]
        at = np.searchsorted(events.time[first : last + 1], ends, side="right") - 1
        level = events.level[at[at >= 0] + first]
        more = len(level) - 1
        changes.append(int(level[-1] - level[0]) // more if more > 0 else None)
    return pd.array(changes, dtype="Int64")


def memory_at_peak(memory: Memory) -> pd.DataFrame:
    """What was alive at the peak of each device; columns as the sheet `memory_at_peak`.

    The bytes of a device add up to its peak: what the trace did not see allocated has a row of its
    own, and so has what events that the profiler lost would explain.
    """
    events = memory.events
    count = len(memory.events.devices)
    peak = events.level[events.peak]
    older = events.older_bytes_at(events.peak)
    blocks = blocks_of(events, memory.owners, events.alive_at(events.peak))
    lost = peak - older - sums(blocks["place"].to_numpy(), blocks["bytes"].to_numpy(), count)
    unseen = pd.DataFrame({"place": np.tile(np.arange(count), 2)})
    unseen["bytes"] = np.concatenate((older, lost))  # whole numbers without devices too
    unseen["operation"] = _text_column([BEFORE] * count + [LOST] * count)
    unseen = unseen[np.tile(events.has_totals, 2) & (unseen["bytes"] != 0)]
    frame = pd.concat([by_owner(memory.owners, blocks), unseen])
    frame = frame.sort_values(["place", "bytes"], ascending=[True, False], ignore_index=True)
    place = frame.pop("place").to_numpy()
    frame.insert(0, "device", events.devices[place])
    frame["% of peak"] = percent(frame["bytes"].to_numpy(), peak[place])
    owners = {name: frame[name].fillna("") for name in memory.owners}
    return frame.assign(**owners).astype({"blocks": "Int64", "largest_bytes": "Int64"})


def memory_by_operation(memory: Memory) -> pd.DataFrame:
    """A row an operation that allocates; columns as the sheet `memory_by_operation`."""
    events = memory.events
    death = memory.events.blocks.death
    birth = events.blocks.birth
    freed = _freed(memory)
    kept = _kept(memory)
    at_peak = np.isin(np.arange(len(birth)), events.alive_at(events.peak))
    owners = dict(list(memory.owners.items())[:3])
    blocks = blocks_of(events, owners)
    summed: dict[str, Any] = {
        "frees": freed.astype(np.int64),
        "frees_within_operation": freed & (events.time[death] <= memory.outer_end[birth]),
        "mean_lifetime_us": np.where(freed, events.time[death] - events.time[birth], 0),
        "alive_at_peak_bytes": blocks["bytes"] * at_peak,
        "kept": kept.astype(np.int64),
        "kept_bytes": blocks["bytes"] * kept,
    }
    blocks = blocks.assign(**summed, iteration=pd.Series(memory.iteration[birth]).where(kept))
    told = {"allocations": ("bytes", "size"), "allocated_bytes": ("bytes", "sum")}
    told |= {"largest_bytes": ("bytes", "max")} | {name: (name, "sum") for name in summed}
    told["kept_from_iterations"] = "iteration", "nunique"
    frame = by_owner(owners, blocks, told, sort=False)  # in order of their first block
    frame["mean_lifetime_us"] /= NS_PER_US
    frame["mean_lifetime_us"] /= frame["frees"].where(frame["frees"] > 0)
    keys = ["place", "allocated_bytes"]
    frame = frame.sort_values(keys, ascending=[True, False], ignore_index=True)
    frame.insert(0, "device", events.devices[frame.pop("place")])
    return frame


def _freed(memory: Memory) -> BoolArray:
    """Which blocks were freed in the trace, (b,)."""
    death = memory.events.blocks.death
    freed: BoolArray = (death != NONE) & (memory.events.size[death] < 0)
    return freed


def _kept(memory: Memory) -> BoolArray:
    """Which blocks were alive when the iteration after that of their allocation had ended, (b,)."""
    events = memory.events
    iterations = memory.iterations
    birth = events.blocks.birth
    death = events.blocks.death
    following = memory.iteration[birth] + 1
    at = np.flatnonzero((following > 0) & (following < len(iterations)))
    following = following[at]
    birth = birth[at]
    death = death[at]
    there = iterations.finished[following] & (
        iterations.process[following] == memory.process[birth]
    )
    until = iterations.end[following]
    last = events.time[events.last][events.place[birth]]
    kept = np.zeros(len(events.blocks.birth), dtype=bool)
    kept[at] = there & np.where(death == NONE, last >= until, events.time[death] > until)
    return kept


def memory_blocks(memory: Memory, largest: int | None = None) -> pd.DataFrame:
    """A row a block that the trace saw allocated, by device, the largest first.

    `lifetime_us` is missing where it was not freed, `iteration` is that of the allocation.
    """
    events = memory.events
    blocks = memory.events.blocks
    place = events.place[blocks.birth]
    order = np.lexsort((-events.size[blocks.birth], place))
    if largest is not None:
        place = place[order]  # ascending
        order = order[np.arange(len(order)) - np.searchsorted(place, place) < largest]
    birth = blocks.birth[order]
    death = blocks.death[order]
    lifetime = (events.time[death] - events.time[birth]) / NS_PER_US
    found: dict[str, object] = {"device": events.devices[events.place[birth]]}
    found |= {"bytes": events.size[birth], "allocated_at_ms": events.time[birth] / NS_PER_MS}
    found["lifetime_us"] = np.where(_freed(memory)[order], lifetime, np.nan)
    found["iteration"] = memory.labels_of(birth)
    owners = ((name, texts(c[birth], labels)) for name, (c, labels) in memory.owners.items())
    return pd.DataFrame({**found, **{name: _text_column(told) for name, told in owners}})


def blocks_of(
    events: recorded.MemoryEvents, owners: Owners, chosen: Int64Array | slice = slice(None)
) -> pd.DataFrame:
    """Some blocks: their device, who allocated them as codes, and their bytes."""
    birth = events.blocks.birth[chosen]
    codes = {name: own[birth] for name, (own, _) in owners.items()}
    return pd.DataFrame({"place": events.place[birth], **codes, "bytes": events.size[birth]})


def by_owner(
    owners: Owners, blocks: pd.DataFrame, told: Told = _HELD, *, sort: bool = True
) -> pd.DataFrame:
    """What is told of `blocks_of` by device and owners, as texts."""
    frame = blocks.groupby(["place", *owners], sort=sort).agg(**told).reset_index()
    for name, (_, labels) in owners.items():
        frame[name] = _text_column(texts(frame[name].to_numpy(), labels))
    return frame


def _text_column(told: list[str]) -> pd.api.extensions.ExtensionArray:
    return pd.array(told, dtype="str")


def memory_over_time(memory: Memory) -> pd.DataFrame:
    """The levels of each device in at most a thousand points, none of its highest left out.

    `device`, `at_ms` since the trace's first event, `allocated_bytes` and `reserved_bytes`, the
    largest of each stretch of time; `reserved_bytes` is missing where it is not recorded.
    """
    events = memory.events
    place = memory.events.place
    begin = events.time[events.first]
    end = events.time[events.last]
    stretch = (events.time - begin[place]) * _MOST_POINTS // (end - begin + 1)[place]
    levels = pd.DataFrame({"level": events.level, "reserved": events.reserved})
    groups = levels.groupby([place, stretch])
    at = groups["level"].idxmax().to_numpy()  # the first of each stretch
    unknown = maxima(place, events.reserved, len(events.devices))[place[at]] <= 0
    reserved = pd.arrays.IntegerArray(groups["reserved"].max().to_numpy(), unknown)
    found = {"device": events.devices[place[at]], "at_ms": events.time[at] / NS_PER_MS}
    return pd.DataFrame({**found, "allocated_bytes": events.level[at], "reserved_bytes": reserved})


def memory_iterations(memory: Memory) -> pd.DataFrame:
    """What the first hundred iterations are called, and their begin, ms since the first event."""
    starts = memory.iterations.start[:_MOST_MARKS] / NS_PER_MS
    return pd.DataFrame({"iteration": memory.labels[: len(starts)], "start_ms": starts})


def memory_notes(memory: Memory) -> Iterator[str]:
    """What the reader of the tables should know, a sentence each."""
    events = memory.events
    if events.unusable:
        yield f"{events.unusable:,} memory events without a usable size or address do not count."
    columns = (each.tolist() for each in (events.devices, events.breaks, events.has_totals))
    for device, breaks, total in zip(*columns, strict=True):
        where = "the host" if device == recorded.HOST else f"device {device}"
        if breaks:
            told = f"The recorded totals of {where} do not add up at {breaks:,} memory events: the"
            yield f"{told} profiler lost events there, so who holds what is not all known."
        if not total:
            told = f"The trace has no totals of {where}: how much was allocated before it is not"
            yield f"{told} known, and its peak is where allocations less frees are highest."


class MemoryContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and what its memory events say."""

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """Return what the memory events say; `annotation` chooses the iterations."""


def _has_memory_events(context: AnalysisContext, _options: ReportOptions) -> bool:
    return recorded.has_memory_events(context.trace)


_HAS_MEMORY = Condition("the trace has memory events (`profile_memory=True`)", _has_memory_events)


def _of(make: Callable[[Memory], pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """A table of what the memory events tell; `annotation` chooses the iterations."""

    def table(
        context: MemoryContext, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        return make(context.memory(annotation))

    return table


def _largest(context: MemoryContext, largest: int = 10) -> pd.DataFrame:
    """The largest blocks of each device."""
    return memory_blocks(context.memory(), largest)


def _notes(context: MemoryContext, options: ReportOptions, tables: Tables) -> Iterable[str]:
    if "memory_peaks" not in tables:
        return ()
    return memory_notes(context.memory(options.annotation))


_PHASE = Column("phase", "`forward`, `backward` or `optimizer`; empty outside of all operations")
_OPERATION = Column(
    "operation", "the innermost CPU op on the thread at that time; or `(no operation)`"
)
_OUTER_OPERATION = Column("outer_operation", "the outermost CPU op around it")

MEMORY_PEAKS = Table(
    name="memory_peaks",
    shows="The most memory that each device had allocated, and when",
    columns=[
        Column("device", "its number; -1 is the host"),
        Column("events", "all of the device", unit="memory events"),
        Column("allocations", "how many", unit="memory events"),
        Column("frees", "how many", unit="memory events"),
        Column("allocated_bytes", "sum of the allocations", unit="bytes"),
        Column("freed_bytes", "sum of the frees", unit="bytes"),
        Column(
            "peak_allocated_bytes",
            "the most that was allocated at once, with what was there before the recording",
            unit="bytes",
        ),
        Column("peak_at_ms", "when that was first so, since the trace's first event"),
        Column("peak_iteration", "in which iteration; empty outside of all"),
        Column(
            "peak_reserved_bytes",
            "the most that the caching allocator held, 0 on the host",
            unit="bytes",
        ),
        Column(
            "unused_at_peak_bytes",
            "reserved, but not allocated, at the peak: fragmentation",
            unit="bytes",
        ),
        Column("most_unused_bytes", "the most at any time", unit="bytes"),
        Column("end_total_bytes", "allocated after the last event", unit="bytes"),
        Column("alive_at_end", "allocated in the trace, and not freed in it", unit="blocks"),
        Column("alive_at_end_bytes", "of those", unit="bytes"),
        Column(
            "older_frees",
            "frees of what the trace did not see allocated",
            unit="memory events",
        ),
        Column(
            "change_per_iteration_bytes",
            "how much more was allocated at the end of an iteration than at the end of the "
            "one before, on average",
            unit="bytes",
        ),
        Column(
            "breaks",
            "where the recorded totals do not add up: events before it were lost by the profiler",
            unit="memory events",
        ),
    ],
    table=_of(memory_peaks),
    options=["annotation"],
    when=[_HAS_MEMORY],
    notes=_notes,
)
MEMORY_AT_PEAK = Table(
    name="memory_at_peak",
    shows="What was alive when the most memory was allocated, and who allocated it",
    columns=[
        Column("device", "its number; -1 is the host"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column(
            "module",
            "the `nn.Module`s around it, as `path` of `nn_modules`; in the backward pass "
            "those of the forward operation",
        ),
        Column("python_frame", "the innermost Python frame that is not PyTorch's; likewise"),
        Column("blocks", "how many", unit="blocks"),
        Column("bytes", "their sum; those of a device add up to its peak", unit="bytes"),
        Column("largest_bytes", "the largest block", unit="bytes"),
        Column("% of peak", "of the device", unit="%"),
    ],
    table=_of(memory_at_peak),
    options=["annotation"],
    when=[_HAS_MEMORY],
    charts=[Chart("Memory", "memory_at_peak", "operation", "bytes", kind="memory", on="page")],
)
MEMORY_BY_OPERATION = Table(
    name="memory_by_operation",
    shows="What each operation allocated, and for how long",
    columns=[
        Column("device", "its number; -1 is the host"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("allocations", "how many", unit="blocks"),
        Column("allocated_bytes", "their sum", unit="bytes"),
        Column("largest_bytes", "the largest", unit="bytes"),
        Column("frees", "of those, how many were freed in the trace", unit="blocks"),
        Column(
            "frees_within_operation",
            "freed before the outermost operation ended: churn",
            unit="blocks",
        ),
        Column("mean_lifetime_us", "of those that were freed"),
        Column("alive_at_peak_bytes", "of those that were alive at the peak", unit="bytes"),
        Column(
            "kept",
            "still alive when the iteration after that of the allocation had ended",
            unit="blocks",
        ),
        Column("kept_bytes", "of those", unit="bytes"),
        Column(
            "kept_from_iterations",
            "from how many; from every one is a leak",
            unit="iterations",
        ),
    ],
    table=_of(memory_by_operation),
    options=["annotation"],
    when=[_HAS_MEMORY],
    screen=ScreenView(
        "Allocated most in all",
        [
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
    shows="The largest blocks of each device",
    columns=[
        Column("device", "its number; -1 is the host"),
        Column("bytes", "of the block", unit="bytes"),
        Column("allocated_at_ms", "since the trace's first event"),
        Column("lifetime_us", "empty where it was not freed"),
        Column("iteration", "of the allocation; empty outside of all"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("module", "as in `memory_at_peak`"),
        Column("python_frame", "as in `memory_at_peak`"),
    ],
    table=_largest,
    when=[_HAS_MEMORY],
    screen=ScreenView(
        "Largest blocks",
        [
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
    shows="How much memory was allocated and reserved, in at most a thousand points",
    columns=[
        Column("device", "its number; -1 is the host"),
        Column("at_ms", "since the trace's first event"),
        Column("allocated_bytes", "the most in a stretch of time", unit="bytes"),
        Column("reserved_bytes", "likewise; empty where it is not recorded", unit="bytes"),
    ],
    table=_of(memory_over_time),
    options=["annotation"],
    when=[_HAS_MEMORY],
    asked_by="tables",
    on_every_page=True,
)
MEMORY_ITERATIONS = Table(
    name="memory_iterations",
    shows="When the first hundred iterations begin",
    columns=[
        Column("iteration", "its name"),
        Column("start_ms", "since the trace's first event"),
    ],
    table=_of(memory_iterations),
    options=["annotation"],
    when=[_HAS_MEMORY],
    asked_by="tables",
    on_every_page=True,
)
