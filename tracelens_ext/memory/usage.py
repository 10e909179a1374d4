"""The tables about memory: peaks, what was alive at them, operations, blocks, levels over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracelens_ext.iterations.iterations import Iterations, iteration_at, named_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.memory.events import HOST, MemoryEvents, find_owners, read_memory_events
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, BoolArray, Int64Array
from tracelens_ext.tree import CallTree
from tracelens_ext.work.grouping import maxima, percent, sums, texts
from tracelens_ext.work.memoize import once_for_each
from tracelens_ext.work.patterns import Expression

BEFORE = "(before the recording)"
LOST = "(events lost)"
_MOST_POINTS, _MOST_MARKS = 1000, 100  # of a line over time, a device; iterations on it
_HELD = {"blocks": ("bytes", "size"), "bytes": ("bytes", "sum"), "largest_bytes": ("bytes", "max")}
#: Who was at work at each event, by column: codes, (k,), and labels.
Owners = Mapping[str, tuple[Int64Array, list[str]]]


@dataclass(frozen=True, eq=False)
class Memory:
    """What the memory events of a trace tell."""

    events: MemoryEvents
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


@once_for_each
def find_memory(tree: CallTree, annotation: Expression | None = None) -> Memory:
    """What the memory events of a trace tell; `annotation` chooses its iterations."""
    events = read_memory_events(tree.trace)
    iterations, labels, _ = named_iterations(tree, annotation)
    process = tree.trace.process_of_thread[events.thread].astype(np.int64)
    ranges = (iterations.process, iterations.start, iterations.end)
    at = iteration_at(ranges, process, events.time)
    return Memory(events, *find_owners(tree, events), iterations, labels, at, process)


def memory_peaks(memory: Memory) -> pd.DataFrame:
    """A row a device; columns as the sheet `memory_peaks`."""
    events = memory.events
    place, count = events.place, len(events.devices)
    allocates, frees = events.size > 0, events.size < 0
    at, end = events.peak, events.last
    unused = np.where(events.reserved > 0, events.reserved - events.level, 0)
    reserved = maxima(place, events.reserved, count)
    left = events.alive_at(end)
    birth = events.blocks.birth[left]
    of_left = place[birth]
    levels = np.where(events.has_totals, [events.level[at], events.level[end]], NONE)
    return pd.DataFrame(
        {
            "device": events.devices,
            "events": np.bincount(place, minlength=count),
            "allocations": np.bincount(place[allocates], minlength=count),
            "frees": np.bincount(place[frees], minlength=count),
            "allocated_bytes": sums(place[allocates], events.size[allocates], count),
            "freed_bytes": -sums(place[frees], events.size[frees], count),
            "peak_allocated_bytes": _known(levels[0]),
            "peak_at_ms": events.time[at] / NS_PER_MS,
            "peak_iteration": memory.labels_of(at),
            "peak_reserved_bytes": _known(reserved),
            "unused_at_peak_bytes": _known(np.where(reserved > 0, unused[at], NONE)),
            "most_unused_bytes": _known(np.where(reserved > 0, maxima(place, unused, count), NONE)),
            "end_total_bytes": _known(levels[1]),
            "alive_at_end": np.bincount(of_left, minlength=count),
            "alive_at_end_bytes": sums(of_left, events.size[birth], count),
            "older_frees": np.bincount(place[events.blocks.older_freed], minlength=count),
            "change_per_iteration_bytes": _change_per_iteration(memory),
            "breaks": events.breaks,
        }
    )


def _known(values: Int64Array) -> pd.api.extensions.ExtensionArray:
    """Numbers, missing where they are `NONE`."""
    return pd.arrays.IntegerArray(values, values < 0)


def _change_per_iteration(memory: Memory) -> pd.api.extensions.ExtensionArray:
    """How much more is allocated at the end of each finished iteration, on average, (d,)."""
    events, iterations = memory.events, memory.iterations
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
    events, count = memory.events, len(memory.events.devices)
    peak, older = events.level[events.peak], events.older_bytes_at(events.peak)
    blocks = blocks_of(events, memory.owners, events.alive_at(events.peak))
    lost = peak - older - sums(blocks["place"].to_numpy(), blocks["bytes"].to_numpy(), count)
    unseen = pd.DataFrame(
        {
            "place": np.tile(np.arange(count), 2),
            "operation": _text_column([BEFORE] * count + [LOST] * count),
            "bytes": np.concatenate((older, lost)),
        }
    )[np.tile(events.has_totals, 2)]
    frame = pd.concat([by_owner(memory.owners, blocks), unseen[unseen["bytes"] != 0]])
    frame = frame.sort_values(["place", "bytes"], ascending=[True, False], ignore_index=True)
    place = frame.pop("place").to_numpy()
    frame.insert(0, "device", events.devices[place])
    frame["% of peak"] = percent(frame["bytes"].to_numpy(), peak[place])
    owners = {name: frame[name].fillna("") for name in memory.owners}
    return frame.assign(**owners).astype({"blocks": "Int64", "largest_bytes": "Int64"})


def memory_by_operation(memory: Memory) -> pd.DataFrame:
    """A row an operation that allocates; columns as the sheet `memory_by_operation`."""
    events, death = memory.events, memory.events.blocks.death
    birth = events.blocks.birth
    freed, kept = _freed(memory), _kept(memory)
    at_peak = np.zeros(len(birth), dtype=bool)
    at_peak[events.alive_at(events.peak)] = True
    owners = dict(list(memory.owners.items())[:3])
    blocks = blocks_of(events, owners)
    size = blocks["bytes"].to_numpy()
    blocks["freed"] = freed.astype(np.int64)
    blocks["within"] = freed & (events.time[death] <= memory.outer_end[birth])
    blocks["lifetime"] = np.where(freed, events.time[death] - events.time[birth], 0)
    blocks["at_peak"], blocks["kept_bytes"] = size * at_peak, size * kept
    blocks["kept"] = kept.astype(np.int64)
    blocks["iteration"] = pd.Series(memory.iteration[birth]).where(kept)
    told = {
        "allocations": ("bytes", "size"),
        "allocated_bytes": ("bytes", "sum"),
        "largest_bytes": ("bytes", "max"),
        "frees": ("freed", "sum"),
        "frees_within_operation": ("within", "sum"),
        "mean_lifetime_us": ("lifetime", "sum"),
        "alive_at_peak_bytes": ("at_peak", "sum"),
        "kept": ("kept", "sum"),
        "kept_bytes": ("kept_bytes", "sum"),
        "kept_from_iterations": ("iteration", "nunique"),
    }
    frame = by_owner(owners, blocks, told, sort=False)  # in order of their first block
    frame["mean_lifetime_us"] /= NS_PER_US
    frame["mean_lifetime_us"] /= frame["frees"].where(frame["frees"] > 0)
    frame = frame.sort_values(
        ["place", "allocated_bytes"], ascending=[True, False], ignore_index=True
    )
    frame.insert(0, "device", events.devices[frame.pop("place")])
    return frame


def _freed(memory: Memory) -> BoolArray:
    """Which blocks were freed in the trace, (b,)."""
    death = memory.events.blocks.death
    freed: BoolArray = (death != NONE) & (memory.events.size[death] < 0)
    return freed


def _kept(memory: Memory) -> BoolArray:
    """Which blocks were alive when the iteration after that of their allocation had ended, (b,)."""
    events, iterations = memory.events, memory.iterations
    birth, death = events.blocks.birth, events.blocks.death
    if not len(iterations):
        return np.zeros(len(birth), dtype=bool)
    following = memory.iteration[birth] + 1
    there = (following > 0) & (following < len(iterations))
    following[~there] = 0
    there &= iterations.process[following] == memory.process[birth]
    there &= iterations.finished[following]
    until = iterations.end[following]
    last = events.time[events.last][events.place[birth]]
    kept: BoolArray = np.where(death == NONE, last >= until, events.time[death] > until)
    return kept & there


def memory_blocks(memory: Memory, largest: int | None = None) -> pd.DataFrame:
    """A row a block that the trace saw allocated, by device, the largest first.

    `lifetime_us` is missing where it was not freed, `iteration` is that of the allocation.
    """
    events, blocks = memory.events, memory.events.blocks
    place = events.place[blocks.birth]
    order = np.lexsort((-events.size[blocks.birth], place))
    if largest is not None:
        place = place[order]  # ascending
        order = order[np.arange(len(order)) - np.searchsorted(place, place) < largest]
    birth, death = blocks.birth[order], blocks.death[order]
    lifetime = (events.time[death] - events.time[birth]) / NS_PER_US
    return pd.DataFrame(
        {
            "device": events.devices[events.place[birth]],
            "bytes": events.size[birth],
            "allocated_at_ms": events.time[birth] / NS_PER_MS,
            "lifetime_us": np.where(_freed(memory)[order], lifetime, np.nan),
            "iteration": memory.labels_of(birth),
            **{name: _text_column(texts(c[birth], t)) for name, (c, t) in memory.owners.items()},
        }
    )


def blocks_of(
    events: MemoryEvents, owners: Owners, chosen: Int64Array | slice = slice(None)
) -> pd.DataFrame:
    """Some blocks: their device, who allocated them as codes, and their bytes."""
    birth = events.blocks.birth[chosen]
    codes = {name: own[birth] for name, (own, _) in owners.items()}
    return pd.DataFrame({"place": events.place[birth], **codes, "bytes": events.size[birth]})


def by_owner(
    owners: Owners,
    blocks: pd.DataFrame,
    told: Mapping[str, tuple[str, str]] = _HELD,
    *,
    sort: bool = True,
) -> pd.DataFrame:
    """What is told of `blocks_of` by device and owners, as texts."""
    frame = blocks.groupby(["place", *owners], sort=sort).agg(**told).reset_index()
    named = {
        name: _text_column(texts(frame[name].to_numpy(), labels))
        for name, (_, labels) in owners.items()
    }
    return frame.assign(**named)


def _text_column(told: list[str]) -> pd.api.extensions.ExtensionArray:
    return pd.array(told, dtype="str")


def memory_over_time(memory: Memory) -> pd.DataFrame:
    """The levels of each device in at most a thousand points, none of its highest left out.

    `device`, `at_ms` since the trace's first event, `allocated_bytes` and `reserved_bytes`, the
    largest of each stretch of time; `reserved_bytes` is missing where it is not recorded.
    """
    events, place = memory.events, memory.events.place
    begin, end = events.time[events.first], events.time[events.last]
    stretch = (events.time - begin[place]) * _MOST_POINTS // (end - begin + 1)[place]
    levels = pd.DataFrame({"level": events.level, "reserved": events.reserved})
    groups = levels.groupby([place, stretch])
    at = groups["level"].idxmax().to_numpy()  # the first of each stretch
    reserved = groups["reserved"].max().to_numpy()
    unknown = maxima(place, events.reserved, len(events.devices)) <= 0
    return pd.DataFrame(
        {
            "device": events.devices[place[at]],
            "at_ms": events.time[at] / NS_PER_MS,
            "allocated_bytes": events.level[at],
            "reserved_bytes": pd.arrays.IntegerArray(reserved, unknown[place[at]]),
        }
    )


def memory_iterations(memory: Memory) -> pd.DataFrame:
    """What the first hundred iterations are called, and their begin, ms since the first event."""
    starts = memory.iterations.start[:_MOST_MARKS] / NS_PER_MS
    return pd.DataFrame({"iteration": memory.labels[: len(starts)], "start_ms": starts})


def memory_notes(memory: Memory) -> Iterator[str]:
    """What the reader of the tables should know, a sentence each."""
    events = memory.events
    if events.unusable:
        yield f"{events.unusable:,} memory events without a usable size or address do not count."
    for device, breaks, total in zip(
        events.devices.tolist(), events.breaks.tolist(), events.has_totals.tolist(), strict=True
    ):
        where = "the host" if device == HOST else f"device {device}"
        if breaks:
            yield (
                f"The recorded totals of {where} do not add up at {breaks:,} memory events: the"
                " profiler lost events there, so who holds what is not all known."
            )
        if not total:
            yield (
                f"The trace has no totals of {where}: how much was allocated before it is not"
                " known, and its peak is where allocations less frees are highest."
            )
