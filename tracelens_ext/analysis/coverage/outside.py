"""A sentence about the time before the first and after the last GPU event, if that is long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, EventKind
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

#: The time before or after the GPU's work is reported if it exceeds this share of the file's
#: duration.
_LEAST_SHARE: Final = 0.05
#: The events that take most of that time are named if they take at least this share of it.
_NAMED_SHARE: Final = 0.2
_NAME_LENGTH: Final = 60
#: An iteration is never named: it contains everything that happens in it.
_STEP: Final = re.compile(r"ProfilerStep#")
#: Kinds of events that may be named. The first kind whose events take long enough is used.
_NAMED_KINDS: Final[tuple[Sequence[EventKind], ...]] = (
    LAUNCH_KINDS,
    (EventKind.CPU_OP,),
    (EventKind.USER_ANNOTATION,),
)


class _Edge(NamedTuple):
    """The time of a file before or after the GPU's work."""

    name: str  #: `before it` or `after it`
    start: int  #: ns since the trace's first event
    end: int  #: ns since the trace's first event


def time_outside(gpu_events: GpuEvents) -> str:
    """Return a sentence about the time without GPU work at the beginning and end of a file.

    An example: `GPU active for 342.0 ms of 618.0 ms; before it: 276.0 ms, of which cudaMalloc
    240.0 ms.` The text is empty if the GPU is active almost from beginning to end.
    """
    recording = coverage_of(gpu_events)
    whole_ns = gpu_events.trace.span_ns
    edges = (
        _Edge("before it", 0, recording.wall_start),
        _Edge("after it", recording.wall_end, whole_ns),
    )
    least_ns = _LEAST_SHARE * whole_ns
    parts = [
        _edge_text(gpu_events, edge)
        for edge in edges
        if edge.end - edge.start > least_ns
    ]
    if not parts:
        return ""
    active = ms_text(recording.wall_ns / NS_PER_MS)
    whole = ms_text(whole_ns / NS_PER_MS)
    return f"GPU active for {active} of {whole}; {'; '.join(parts)}."


def _edge_text(gpu_events: GpuEvents, edge: _Edge) -> str:
    text = f"{edge.name}: {ms_text((edge.end - edge.start) / NS_PER_MS)}"
    longest = _longest_within(gpu_events, edge)
    if longest:
        return f"{text}, of which {longest}"
    return text


def _longest_within(gpu_events: GpuEvents, edge: _Edge) -> str:
    """Return the name and time of the events that take most of an edge; "" if none take much."""
    trace = gpu_events.trace
    for kinds in _NAMED_KINDS:
        rows = trace.rows_of(*kinds)
        is_step = trace.named(trace.name[rows], _STEP.match)
        rows = rows[~is_step]
        start = np.maximum(trace.ts[rows], edge.start)
        end = np.minimum(trace.end_of(rows), edge.end)
        is_inside = end > start
        rows = rows[is_inside]
        if not len(rows):
            continue
        time_inside = (end - start)[is_inside]
        groups = group_durations([trace.name[rows]], time_inside)
        longest_ns = int(groups.total[0])
        if longest_ns >= _NAMED_SHARE * (edge.end - edge.start):
            name = cut_middle(trace.names[int(groups.keys[0][0])], _NAME_LENGTH)
            return f"{name} {ms_text(longest_ns / NS_PER_MS)}"
    return ""
