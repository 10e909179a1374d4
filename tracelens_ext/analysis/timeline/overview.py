"""What was analysed, and how far the tables can be trusted: the facts of the first sheet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.trace import NONE, WHOLE_GRAPH, Trace, distributed_info
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

_LONGEST_NAME = 300
#: Of fewer events, any may set most of the duration.
_FEW_EVENTS = 10
#: Unlinked GPU time above this share deserves a word of advice, percent.
_MANY_UNLINKED = 5.0


def overview(work: GpuEvents, covered: CategoryCoverage) -> list[tuple[str, object]]:
    """The facts, label and value: percentages 0 to 100, times in the unit that the label names."""
    trace = work.trace
    made = work.trace.provenance
    facts: list[tuple[str, object]] = [
        ("Trace", made.path),
        ("Format", made.format),
        ("Duration (ms)", trace.span_ns / 1e6),
        ("Devices", devices(trace)),
    ]
    if alone := lone_event(trace):
        facts.append(("Set by one event", alone))
    info = distributed_info(trace.metadata)
    if "rank" in info:
        world = info.get("world_size")
        facts.append(("Rank", f"{info['rank']}" + (f" of {world}" if world is not None else "")))
    if len(steps := find_iterations(work.tree)):
        facts.append(("Steps", steps.label(steps.whole) or "none whole"))
    facts += [
        ("Events", made.present),
        ("Events dropped", made.dropped_text or "none"),
        ("CPU operations", trace.count_of(*trace.operation_kinds)),
        ("GPU events", covered.events),
        ("GPU events unlinked", covered.unlinked_events),
        ("GPU time unlinked (%)", covered.unlinked_percent),
    ]
    if covered.uncategorized_percent is not None:
        names = f"{covered.uncategorized_names} of {covered.names}"
        facts.append(("GPU time uncategorized (%)", covered.uncategorized_percent))
        facts.append(("Kernel names uncategorized", names))
        for name, share in covered.largest_uncategorized[:1]:
            facts.append(("Largest uncategorized", f"{_shown(name)} ({share:.2f} % of GPU time)"))
    return facts


def lone_event(trace: Trace) -> str:
    """The event without which the trace would last less than half as long; empty for none."""
    if len(trace) < _FEW_EVENTS:
        return ""
    end = trace.end
    span = trace.span_ns
    for row in (int(trace.ts.argmin()), int(end.argmax())):
        rest = int(np.delete(end, row).max() - np.delete(trace.ts, row).min())
        if 2 * rest < span:
            name = _shown(trace.name_of(row))
            return f"{name}: without it {rest / 1e6:,.3f} of {span / 1e6:,.3f} ms"
    return ""


def advice(work: GpuEvents, covered: CategoryCoverage) -> list[str]:
    """What the reader should know before trusting the tables, a sentence each."""
    trace = work.trace
    notes = list(trace.provenance.notes)
    if not covered.events:
        notes.append("The trace holds no GPU events: the tables are of CPU operations.")
    elif not trace.count_of(*trace.operation_kinds):
        notes.append("The trace holds no CPU operations: kernels are filed under their launches.")
    if covered.unlinked_percent >= _MANY_UNLINKED:
        counted = "count" if work.include_unlinked else "do not count"
        notes.append(
            f"{covered.unlinked_events:,} of {covered.events:,} GPU events"
            f" ({covered.unlinked_percent:.1f} % of GPU time) have no launch in the trace, as when"
            f" the profiler starts after the launch; they {counted} in the timeline."
        )
    graphs = whole_graphs(trace)  # the notes of the trace say what to do about them
    for name, share in covered.largest_uncategorized:
        if share >= 1.0 and name not in graphs:
            notes.append(f"No rule knows {_shown(name)}: {share:.1f} % of GPU time.")
    return notes


def _shown(name: str) -> str:
    """A kernel's name within a sentence: traces hold empty ones, and ones of a megabyte."""
    if not name:
        return "(a kernel without a name)"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def devices(trace: Trace) -> str:
    """The GPUs that did the work, by the names in the trace."""
    known = [(n, trace.described(n)) for n in np.unique(trace.device).tolist() if n != NONE]
    shown = [f"{n}: {device.name}" if device and device.name else f"GPU {n}" for n, device in known]
    names = dict.fromkeys(device.name for device in trace.devices if device.name)
    return ", ".join(shown or names) or "none"


@dataclass(frozen=True)
class CategoryCoverage:
    """What the tables leave unexplained, of all GPU events; percent of their time, 0 to 100."""

    events: int  #: GPU events
    total_ns: int  #: sum of their durations
    unlinked_events: int  #: those whose launch is not in the trace
    unlinked_percent: float
    uncategorized_percent: float | None  #: of what no rule knows; None without categories
    uncategorized_names: int  #: distinct names that no rule knows
    names: int  #: distinct names
    #: up to five of them by time: (name, percent of GPU time)
    largest_uncategorized: tuple[tuple[str, float], ...]


def whole_graphs(trace: Trace) -> set[str]:
    """Names of CUDA graphs recorded as one GPU event each; no rule tells what they hold."""
    rows = trace.gpu_rows
    codes = [i for i, of in enumerate(trace.categories) if of == WHOLE_GRAPH]
    rows = rows[np.isin(trace.category[rows], codes)]
    return {trace.names[name] for name in np.unique(trace.name[rows]).tolist()}


def coverage(work: GpuEvents) -> CategoryCoverage:
    """Measure what the tables leave unexplained."""
    total = int(work.duration.sum())
    unlinked = ~work.tree.linked

    def share(part: np.ndarray | int) -> float:
        return 100.0 * float(part) / total if total else 0.0

    known = work.categories is None or work.categories.known
    unknown = np.flatnonzero(~np.broadcast_to(known, len(work)))
    groups = group_durations([work.name[unknown]], work.duration[unknown])
    largest = zip(groups.keys[0][:5].tolist(), groups.total.tolist(), strict=False)
    return CategoryCoverage(
        events=len(work),
        total_ns=total,
        unlinked_events=int(unlinked.sum()),
        unlinked_percent=share(work.duration[unlinked].sum()),
        uncategorized_percent=None if work.categories is None else share(groups.total.sum()),
        uncategorized_names=len(groups),
        names=len(np.unique(work.name)),
        largest_uncategorized=tuple((work.trace.names[n], share(time)) for n, time in largest),
    )
