"""What a file has before the first and after the last GPU event, where that is much of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, EventKind
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations

#: The time before or after the GPU's work is reported from this share of the file's duration on.
_LEAST_SHARE: Final = 0.05
#: What fills the time before or after is named from this share of it on.
_NAMED_SHARE: Final = 0.2
_NAME_LENGTH: Final = 60
#: An iteration goes on around everything.
_STEP: Final = re.compile(r"ProfilerStep#")
#: The first kind of which something takes long enough is named.
_NAMED_KINDS: Final[tuple[Sequence[EventKind], ...]] = (
    LAUNCH_KINDS,
    (EventKind.CPU_OP,),
    (EventKind.USER_ANNOTATION,),
)


class _Edge(NamedTuple):
    """The time of a file before or after the GPU's work."""

    name: str  #: `before it` or `after it`
    start: int  #: ns since the trace's first event
    end: int  #: likewise


def time_outside(work: GpuEvents) -> str:
    """Return how long the GPU is active of the whole file, and what is before and after; or "".

    `GPU active for 342.0 of 618.0 ms; before it: 276.0 ms, of which cudaMalloc 240.0 ms.`
    """
    recording = recording_of(work)
    whole_ns = work.trace.span_ns
    edges = (
        _Edge("before it", 0, recording.wall_start),
        _Edge("after it", recording.wall_end, whole_ns),
    )
    least_ns = _LEAST_SHARE * whole_ns
    parts = [
        _edge_text(work, edge) for edge in edges if edge.end - edge.start > least_ns
    ]
    if not parts:
        return ""
    active = ms_text(recording.wall_ns / NS_PER_MS)
    whole = ms_text(whole_ns / NS_PER_MS)
    return f"GPU active for {active} of {whole}; {'; '.join(parts)}."


def _edge_text(work: GpuEvents, edge: _Edge) -> str:
    text = f"{edge.name}: {ms_text((edge.end - edge.start) / NS_PER_MS)}"
    for longest in _longest_within(work, edge):
        return f"{text}, of which {longest}"
    return text


def _longest_within(work: GpuEvents, edge: _Edge) -> Iterator[str]:
    """Yield what takes most of an edge, of the kinds that tell most first."""
    trace = work.trace
    for kinds in _NAMED_KINDS:
        rows = trace.rows_of(*kinds)
        is_step = trace.named(trace.name[rows], _STEP.match)
        rows = rows[~is_step]
        start = np.maximum(trace.ts[rows], edge.start)
        end = np.minimum(trace.end_of(rows), edge.end)
        rows = rows[end > start]
        length = (end - start)[end > start]
        if not len(rows):
            continue
        groups = group_durations([trace.name[rows]], length)
        longest_ns = int(groups.total[0])
        if longest_ns >= _NAMED_SHARE * (edge.end - edge.start):
            name = cut_middle(trace.names[int(groups.keys[0][0])], _NAME_LENGTH)
            yield f"{name} {ms_text(longest_ns / NS_PER_MS)}"
