"""What was analyzed, and how far the tables can be trusted: the facts of the first sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.analysis.recording_cost import recording_cost_note
from tracelens_ext.trace import NONE, NS_PER_MS, WHOLE_GRAPH, Trace, distributed_info
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

_LONGEST_NAME = 300
_UNCATEGORIZED_LISTED = 5
#: Of fewer events, any may set most of the duration.
_FEW_EVENTS = 10
#: Unlinked GPU time above this share deserves a word of advice, percent.
_MANY_UNLINKED = 5.0
#: Uncategorized kernels from this share on deserve a word of advice, percent.
_MUCH_UNCATEGORIZED = 1.0


@dataclass(frozen=True)
class CategoryCoverage:
    """What the tables leave unexplained, of all GPU events; percent of their time, 0 to 100.

    Attributes:
        events: GPU events.
        total_ns: sum of their durations.
        unlinked_events: those whose launch is not in the trace.
        unlinked_percent: their share.
        uncategorized_percent: of what no rule knows; None without categories.
        uncategorized_names: distinct names that no rule knows.
        names: distinct names.
        largest_uncategorized: up to five of them by time: (name, percent of GPU time).
    """

    events: int
    total_ns: int
    unlinked_events: int
    unlinked_percent: float
    uncategorized_percent: float | None
    uncategorized_names: int
    names: int
    largest_uncategorized: tuple[tuple[str, float], ...]


def coverage(work: GpuEvents) -> CategoryCoverage:
    """Measure what the tables leave unexplained."""
    total = int(work.duration.sum())
    unlinked = np.flatnonzero(~work.tree.linked)
    unknown = _uncategorized_events(work)
    kernels = group_durations([work.name[unknown]], work.duration[unknown])
    name_codes = kernels.keys[0][:_UNCATEGORIZED_LISTED].tolist()
    times = kernels.total[:_UNCATEGORIZED_LISTED].tolist()
    largest = [
        (work.trace.names[code], _percent_of(time, total))
        for code, time in zip(name_codes, times, strict=True)
    ]
    uncategorized_percent = None
    if work.categories is not None:
        uncategorized_percent = _percent_of(int(kernels.total.sum()), total)
    return CategoryCoverage(
        events=len(work),
        total_ns=total,
        unlinked_events=len(unlinked),
        unlinked_percent=_percent_of(int(work.duration[unlinked].sum()), total),
        uncategorized_percent=uncategorized_percent,
        uncategorized_names=len(kernels),
        names=len(np.unique(work.name)),
        largest_uncategorized=tuple(largest),
    )


def _uncategorized_events(work: GpuEvents) -> np.ndarray:
    """Return the GPU events that no rule knows; none without categories."""
    if work.categories is None:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~work.categories.known)


def _percent_of(part: int, total: int) -> float:
    return 100.0 * float(part) / total if total else 0.0


def overview(
    work: GpuEvents,
    covered: CategoryCoverage,
    products: Mapping[int, str] | None = None,
) -> list[tuple[str, object]]:
    """Return the facts: label and value, percentages 0 to 100, times in the unit of the label.

    Args:
        work: the GPU events.
        covered: how many of them have a launch and a category.
        products: names of devices, by their numbers, that are better than those in the trace.
    """
    trace = work.trace
    provenance = trace.provenance
    facts: list[tuple[str, object]] = [
        ("Trace", provenance.path),
        ("Format", provenance.format),
        ("Duration (ms)", trace.span_ns / NS_PER_MS),
        ("Devices", devices(trace, products)),
    ]
    event_alone = lone_event(trace)
    if event_alone:
        facts.append(("Set by one event", event_alone))
    rank = _rank(trace)
    if rank:
        facts.append(("Rank", rank))
    steps = find_iterations(work.tree)
    if len(steps):
        is_complete = steps.whole if len(work) else steps.finished
        facts.append(("Steps", steps.label(is_complete) or "none whole"))
    facts += [
        ("Events", provenance.present),
        ("Events dropped", provenance.dropped_text or "none"),
        ("CPU operations", trace.count_of(*trace.operation_kinds)),
        ("GPU events", covered.events),
        ("GPU events unlinked", covered.unlinked_events),
        ("GPU time unlinked (%)", covered.unlinked_percent),
    ]
    facts += _category_facts(covered)
    return facts


def _rank(trace: Trace) -> str:
    """Return the rank of the trace in its job: `3 of 8`; empty where the trace does not say."""
    info = distributed_info(trace.metadata)
    if "rank" not in info:
        return ""
    world_size = info.get("world_size")
    if world_size is None:
        return f"{info['rank']}"
    return f"{info['rank']} of {world_size}"


def _category_facts(covered: CategoryCoverage) -> list[tuple[str, object]]:
    """Return the facts about categories; none where those are off."""
    if covered.uncategorized_percent is None:
        return []
    names = f"{covered.uncategorized_names} of {covered.names}"
    facts: list[tuple[str, object]] = [
        ("GPU time uncategorized (%)", covered.uncategorized_percent),
        ("Kernel names uncategorized", names),
    ]
    for name, share in covered.largest_uncategorized[:1]:
        facts.append(
            ("Largest uncategorized", f"{_shown(name)} ({share:.2f} % of GPU time)")
        )
    return facts


def lone_event(trace: Trace) -> str:
    """Return the event without which the trace would last less than half as long, or empty."""
    if len(trace) < _FEW_EVENTS:
        return ""
    end = trace.end
    span = trace.span_ns
    first_row = int(trace.ts.argmin())
    last_row = int(end.argmax())
    for row in (first_row, last_row):
        span_without = int(np.delete(end, row).max() - np.delete(trace.ts, row).min())
        if 2 * span_without < span:
            name = _shown(trace.name_of(row))
            without = span_without / NS_PER_MS
            return f"{name}: without it {without:,.3f} of {span / NS_PER_MS:,.3f} ms"
    return ""


def advice(work: GpuEvents, covered: CategoryCoverage) -> list[str]:
    """Return what the reader should know before trusting the tables, a sentence each."""
    trace = work.trace
    notes = list(trace.provenance.notes)
    cost = recording_cost_note(trace.metadata)
    if cost:
        notes.append(cost)
    if not covered.events:
        notes.append("The trace has no GPU events, so the tables show CPU operations.")
    elif not trace.count_of(*trace.operation_kinds):
        notes.append(
            "The trace has no CPU operations, so kernels are listed under their "
            "launches."
        )
    if covered.unlinked_percent >= _MANY_UNLINKED:
        counted = "count" if work.include_unlinked else "do not count"
        notes.append(
            f"{covered.unlinked_events:,} of {covered.events:,} GPU events "
            f"({covered.unlinked_percent:.1f} % of GPU time) have no launch in the "
            "trace, for example because the profiler started after the launch; they "
            f"{counted} in the timeline."
        )
    graphs = whole_graphs(trace)  # the notes of the trace say what to do about them
    for name, share in covered.largest_uncategorized:
        if share >= _MUCH_UNCATEGORIZED and name not in graphs:
            notes.append(
                f"No rule matches {_shown(name)}, which takes {share:.1f} % of GPU "
                "time."
            )
    return notes


def _shown(name: str) -> str:
    """Return a kernel's name for a sentence: traces hold empty ones, and ones of a megabyte."""
    if not name:
        return "(a kernel without a name)"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 1]}…"


def devices(trace: Trace, products: Mapping[int, str] | None = None) -> str:
    """Return the GPUs that did the work, by their products or by the names in the trace."""
    product_of_device = products or {}
    labels = []
    for number in np.unique(trace.device).tolist():
        if number == NONE:
            continue
        device = trace.described(number)
        if number in product_of_device:
            labels.append(f"{number}: {product_of_device[number]}")
        elif device is not None and device.name:
            labels.append(f"{number}: {device.name}")
        else:
            labels.append(f"GPU {number}")
    if not labels:
        labels = list(
            dict.fromkeys(device.name for device in trace.devices if device.name)
        )
    return ", ".join(labels) or "none"


def whole_graphs(trace: Trace) -> set[str]:
    """Return the names of CUDA graphs recorded as one GPU event each; no rule knows what is in."""
    rows = trace.gpu_rows
    categories = [
        code for code, name in enumerate(trace.categories) if name == WHOLE_GRAPH
    ]
    rows = rows[np.isin(trace.category[rows], categories)]
    return {trace.names[code] for code in np.unique(trace.name[rows]).tolist()}
