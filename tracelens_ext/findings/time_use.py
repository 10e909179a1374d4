"""Sentences about how the analyzed time is spent, for traces in which nothing is worth fixing."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS, BoolArray, IntArray
from tracelens_ext.trace.intervals import covered

#: How many categories, kernels and gaps a sentence names.
_MOST_NAMED: Final = 3
_NAME_LENGTH: Final = 48
#: Shorter hidden time is not mentioned, ms.
_LEAST_HIDDEN_MS: Final = 0.001
_NOT_ANALYZED: Final = (Cause.NOT_RECORDED.code, Cause.WARM_UP.code)


def time_use(inspection: Inspection) -> list[str]:
    """Return sentences about busy time, the largest categories and kernels, and hidden work."""
    sentences = [_busy_sentence(inspection)]
    categories = inspection.gpu_events.categories
    if categories is not None:
        largest = _largest(inspection, categories.code, categories.labels)
        sentences.append(f"Largest categories of GPU time: {largest}.")
    kernels = _largest(
        inspection, inspection.gpu_events.name, inspection.gpu_events.trace.names
    )
    sentences.append(f"Largest kernels: {kernels}.")
    hidden = _hidden_sentence(inspection)
    if hidden:
        sentences.append(hidden)
    return sentences


def idle_of_unknown_cause(inspection: Inspection, least_ns: float) -> str:
    """Return a sentence about idle time of unknown cause, and how to record the cause.

    Args:
        inspection: the inspection of the trace.
        least_ns: the sentence is empty for less idle time than this.
    """
    wall = inspection.wall
    idle = wall.classified.intervals
    is_unknown = idle.cause == Cause.UNKNOWN.code
    length = (idle.end - idle.start)[is_unknown]
    idle_ns = wall.mean_ms(length) * NS_PER_MS
    if idle_ns < least_ns or not len(length):
        return ""
    percent = 100 * idle_ns / inspection.analyzed_ns
    sentence = (
        f"The GPU is idle for {percent:.1f} % of the analyzed time, for an unknown "
        "reason"
    )
    _, gap = np.unique(idle.gap[is_unknown], return_inverse=True)
    gap_ns = np.sort(np.bincount(gap, length))[::-1]
    count = f"{len(gap_ns):,} gaps, the longest"
    if len(gap_ns) == 1:
        count = "1 gap of"
    longest = [ms_text(float(ns) / NS_PER_MS) for ns in gap_ns[:_MOST_NAMED]]
    sentence += f" ({count} {', '.join(longest)})"
    how = inspection.missing.get("API calls") or inspection.missing.get("stacks")
    if how:
        sentence += f"; record the cause with {how}"
    return f"{sentence}."


def _busy_sentence(inspection: Inspection) -> str:
    """Return a sentence about the busy time."""
    wall = inspection.wall
    idle = wall.classified.intervals
    is_analyzed = ~np.isin(idle.cause, _NOT_ANALYZED)
    idle_ms = wall.mean_ms((idle.end - idle.start)[is_analyzed])
    analyzed_ms = inspection.analyzed_ns / NS_PER_MS
    busy_ms = max(analyzed_ms - idle_ms, 0.0)
    percent = 100 * busy_ms / analyzed_ms
    return (
        f"The GPU is busy for {percent:.1f} % of the analyzed time "
        f"({ms_text(busy_ms)})."
    )


def _largest(inspection: Inspection, code: IntArray, labels: list[str]) -> str:
    """Return the labels with the most GPU time: `GEMM 45 %, Attention 20 %`."""
    is_set_aside = coverage_of(inspection.gpu_events).is_set_aside(
        inspection.gpu_events
    )
    duration = np.where(is_set_aside, 0, inspection.gpu_events.duration)
    total_ns = np.bincount(code, duration, minlength=len(labels))
    largest = np.argsort(-total_ns, kind="stable")[:_MOST_NAMED]
    all_ns = max(float(total_ns.sum()), 1.0)
    texts = []
    for number in largest.tolist():
        if not total_ns[number]:
            continue
        label = labels[number]
        name = simple_name(label) or label
        shown_name = cut_middle(name, _NAME_LENGTH)
        percent = 100 * total_ns[number] / all_ns
        texts.append(f"{shown_name} {percent:.0f} %")
    return ", ".join(texts)


def _hidden_sentence(inspection: Inspection) -> str:
    """Return a sentence about communication and copies that computation hides; empty for none."""
    gpu_events = inspection.gpu_events
    is_analyzed = ~coverage_of(gpu_events).is_set_aside(gpu_events)
    computes = is_analyzed & ~(gpu_events.is_communication | gpu_events.is_copy)
    parts = []
    for name, is_part in (
        ("communication", is_analyzed & gpu_events.is_communication),
        ("copies", is_analyzed & gpu_events.is_copy),
    ):
        hidden_ns = _covered_ns(inspection, is_part, computes)
        hidden_ms = inspection.wall.mean_ms(hidden_ns)
        if hidden_ms >= _LEAST_HIDDEN_MS:
            parts.append(f"{ms_text(hidden_ms)} of {name}")
    if not parts:
        return ""
    return f"Hidden behind computation: {' and '.join(parts)}."


def _covered_ns(
    inspection: Inspection, is_part: BoolArray, computes: BoolArray
) -> IntArray:
    """Return for how long each of some GPU events overlaps computation on its device, ns, (g,)."""
    gpu_events = inspection.gpu_events
    tracks = inspection.wall.tracks
    covered_ns = np.zeros(len(gpu_events), dtype=np.int64)
    for device_index in range(len(tracks)):
        is_on_device = tracks.of_gpu == device_index
        chosen = np.flatnonzero(is_part & is_on_device)
        others = computes & is_on_device
        covered_ns[chosen] = covered(
            gpu_events.start[others],
            gpu_events.end[others],
            gpu_events.start[chosen],
            gpu_events.end[chosen],
        )
    return covered_ns
