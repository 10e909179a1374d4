"""The facts of the report's first sheet: what was analyzed, and how complete the tables are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.analysis.recording_cost import recording_cost_note
from tracelens_ext.trace import NONE, NS_PER_MS, WHOLE_GRAPH, Trace, distributed_info
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

_MAX_NAME_LENGTH = 300
_MAX_UNCATEGORIZED_LISTED = 5
#: In a trace with fewer events, it is normal that a single event determines most of the duration.
_MIN_EVENTS = 10
#: The least share of unlinked GPU time that the notes mention, percent.
_MIN_UNLINKED_PERCENT = 5.0
#: The least share of an uncategorized kernel that the notes mention, percent of GPU time.
_MIN_UNCATEGORIZED_PERCENT = 1.0


@dataclass(frozen=True)
class CategoryCoverage:
    """The GPU events that have no launch or no category; shares are percent of GPU time, 0 to 100.

    Attributes:
        events: the number of GPU events.
        total_ns: the sum of their durations.
        unlinked_events: the number of GPU events whose launch is not in the trace.
        unlinked_percent: the share of the unlinked GPU events.
        uncategorized_percent: the share of kernels that no rule matches; None without categories.
        uncategorized_names: the number of distinct names that no rule matches.
        names: the number of distinct names.
        largest_uncategorized: up to five names that no rule matches, with their shares, the largest
            first.
    """

    events: int
    total_ns: int
    unlinked_events: int
    unlinked_percent: float
    uncategorized_percent: float | None
    uncategorized_names: int
    names: int
    largest_uncategorized: tuple[tuple[str, float], ...]


def measure_coverage(gpu_events: GpuEvents) -> CategoryCoverage:
    """Measure how much GPU time has a launch and a category."""
    total_ns = int(gpu_events.duration.sum())
    unlinked = np.flatnonzero(~gpu_events.tree.linked)
    uncategorized = _uncategorized_events(gpu_events)
    kernels = group_durations(
        [gpu_events.name[uncategorized]], gpu_events.duration[uncategorized]
    )
    name_codes = kernels.keys[0][:_MAX_UNCATEGORIZED_LISTED].tolist()
    times = kernels.total[:_MAX_UNCATEGORIZED_LISTED].tolist()
    largest = [
        (gpu_events.trace.names[code], _percent_of(time, total_ns))
        for code, time in zip(name_codes, times, strict=True)
    ]
    uncategorized_percent = None
    if gpu_events.categories is not None:
        uncategorized_percent = _percent_of(int(kernels.total.sum()), total_ns)
    return CategoryCoverage(
        events=len(gpu_events),
        total_ns=total_ns,
        unlinked_events=len(unlinked),
        unlinked_percent=_percent_of(
            int(gpu_events.duration[unlinked].sum()), total_ns
        ),
        uncategorized_percent=uncategorized_percent,
        uncategorized_names=len(kernels),
        names=len(np.unique(gpu_events.name)),
        largest_uncategorized=tuple(largest),
    )


def _uncategorized_events(gpu_events: GpuEvents) -> np.ndarray:
    """Return the GPU events whose name no rule matches; an empty array without categories."""
    if gpu_events.categories is None:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~gpu_events.categories.known)


def _percent_of(part: int, total: int) -> float:
    return 100.0 * float(part) / total if total else 0.0


def overview(
    gpu_events: GpuEvents,
    covered: CategoryCoverage,
    products: Mapping[int, str] | None = None,
) -> list[tuple[str, object]]:
    """Return the facts about a trace, each as a label and a value.

    Percentages are 0 to 100; times have the unit in their label.

    Args:
        gpu_events: the GPU events.
        covered: the share of them that has a launch and a category.
        products: device number → product name, for devices whose name in the trace is worse.
    """
    trace = gpu_events.trace
    provenance = trace.provenance
    facts: list[tuple[str, object]] = [
        ("Trace", provenance.path),
        ("Format", provenance.format),
        ("Duration (ms)", trace.span_ns / NS_PER_MS),
        ("Devices", device_names(trace, products)),
    ]
    duration_note = dominant_event(trace)
    if duration_note:
        facts.append(("Set by one event", duration_note))
    rank = _rank(trace)
    if rank:
        facts.append(("Rank", rank))
    steps = find_iterations(gpu_events.tree)
    if len(steps):
        is_complete = steps.whole if len(gpu_events) else steps.finished
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
    """Return the rank of the trace in its job, such as `3 of 8`; empty if it was not recorded."""
    info = distributed_info(trace.metadata)
    if "rank" not in info:
        return ""
    world_size = info.get("world_size")
    if world_size is None:
        return f"{info['rank']}"
    return f"{info['rank']} of {world_size}"


def _category_facts(covered: CategoryCoverage) -> list[tuple[str, object]]:
    """Return the facts about categories; an empty list if categories are off."""
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


def dominant_event(trace: Trace) -> str:
    """Describe a single event without which the trace would be less than half as long.

    Its time is probably wrong. The text is empty if there is no such event.
    """
    if len(trace) < _MIN_EVENTS:
        return ""
    end = trace.end
    span_ns = trace.span_ns
    first_row = int(trace.ts.argmin())
    last_row = int(end.argmax())
    for row in (first_row, last_row):
        first_start = np.delete(trace.ts, row).min()
        last_end = np.delete(end, row).max()
        remaining_ns = int(last_end - first_start)
        if 2 * remaining_ns < span_ns:
            name = _shown(trace.name_of(row))
            remaining_ms = remaining_ns / NS_PER_MS
            span_ms = span_ns / NS_PER_MS
            return f"{name}: without it {remaining_ms:,.3f} of {span_ms:,.3f} ms"
    return ""


def advice(gpu_events: GpuEvents, covered: CategoryCoverage) -> list[str]:
    """Return sentences about the limits of the tables, for example about unlinked GPU time."""
    trace = gpu_events.trace
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
    if covered.unlinked_percent >= _MIN_UNLINKED_PERCENT:
        counted = "count" if gpu_events.include_unlinked else "do not count"
        notes.append(
            f"{covered.unlinked_events:,} of {covered.events:,} GPU events "
            f"({covered.unlinked_percent:.1f} % of GPU time) have no launch in the "
            "trace, for example because the profiler started after the launch; they "
            f"{counted} in the timeline."
        )
    graphs = whole_graphs(trace)  # the notes of the trace say what to do about them
    for name, share in covered.largest_uncategorized:
        if share >= _MIN_UNCATEGORIZED_PERCENT and name not in graphs:
            notes.append(
                f"No rule matches {_shown(name)}, which takes {share:.1f} % of GPU "
                "time."
            )
    return notes


def _shown(name: str) -> str:
    """Return a kernel name as a sentence can show it; in traces, it may be empty or a megabyte."""
    if not name:
        return "(a kernel without a name)"
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return f"{name[: _MAX_NAME_LENGTH - 1]}…"


def device_names(trace: Trace, products: Mapping[int, str] | None = None) -> str:
    """Return the GPUs with GPU events as one text, by product or by the name in the trace.

    Args:
        trace: the trace.
        products: device number → product name; it takes precedence over the name in the trace.
    """
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
    """Return the names of CUDA graphs that were recorded as a single GPU event each.

    No rule can match them, because their kernels are unknown.
    """
    rows = trace.gpu_rows
    categories = [
        code for code, name in enumerate(trace.categories) if name == WHOLE_GRAPH
    ]
    rows = rows[np.isin(trace.category[rows], categories)]
    return {trace.names[code] for code in np.unique(trace.name[rows]).tolist()}
