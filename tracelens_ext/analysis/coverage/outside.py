"""A sentence about the time before the first and after the last GPU event, if that is long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NS_PER_MS,
    EventKind,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations
from tracelens_ext.trace.intervals import union

#: The time before or after the GPU's work is reported if it exceeds this share of the file's
#: duration.
_LEAST_SHARE: Final = 0.05
#: The name whose events run for the longest part of that time is given if it is at least this
#: share.
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


class _NamedTime(NamedTuple):
    """The time during which events of a name ran."""

    name: int  #: an index into the names of the trace
    time_ns: int


def _longest_name(names: IntArray, start: Int64Array, end: Int64Array) -> _NamedTime:
    """Return the name whose events ran for the longest time; events that overlap count once."""
    groups = group_durations([names], end - start)
    longest = _NamedTime(name=int(groups.keys[0][0]), time_ns=0)
    # The sums of durations descend, and no name ran for longer than its sum.
    for group, sum_ns in enumerate(groups.total.tolist()):
        if sum_ns <= longest.time_ns:
            break
        of_name = groups.group_index == group
        runs = union(start[of_name], end[of_name])
        time_ns = int((runs.end - runs.start).sum())
        if time_ns > longest.time_ns:
            longest = _NamedTime(name=int(groups.keys[0][group]), time_ns=time_ns)
    return longest


def _longest_within(gpu_events: GpuEvents, edge: _Edge) -> str:
    """Return the name whose events run longest in an edge, and how long; "" if none run long."""
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
        longest = _longest_name(trace.name[rows], start[is_inside], end[is_inside])
        if longest.time_ns >= _NAMED_SHARE * (edge.end - edge.start):
            name = cut_middle(trace.names[longest.name], _NAME_LENGTH)
            return f"{name} {ms_text(longest.time_ns / NS_PER_MS)}"
    return ""
