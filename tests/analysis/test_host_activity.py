"""The innermost events of host threads, compared with loops over all events of the thread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_during,
    innermost_segments,
)
from tracelens_ext.trace import NONE, EventKind, Trace

#: The start and the end of each event of a thread, µs.
Spans = list[tuple[int, int]]
#: The start and the length of each interval, µs. They may overlap, like the gaps of two devices.
INTERVALS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), max_size=6)
KINDS = st.sampled_from([EventKind.CPU_OP, EventKind.PYTHON_FUNCTION])


@st.composite
def nested_spans(draw: st.DrawFn) -> Spans:
    """Draw events of one thread, each within another one or apart from it."""
    spans: Spans = []

    def fill(start: int, end: int, depth: int) -> None:
        while depth and start < end and draw(st.booleans()):
            first = draw(st.integers(start, end - 1))
            last = draw(st.integers(first + 1, end))
            spans.append((first, last))
            fill(first, last, depth - 1)
            start = last

    fill(0, 100, 4)
    return sorted(set(spans))


def trace_of(spans: Spans, kind: EventKind) -> Trace:
    """Make a trace with an event `op N` for each span; times begin 1 µs earlier."""
    maker = TraceMaker()
    maker.op("first", -1, 1, thread=99)
    for number, (start, end) in enumerate(spans):
        name = f"op {number}"
        if kind == EventKind.CPU_OP:
            maker.op(name, start, end - start)
        else:
            maker.frame(name, start, end - start)
    return TreePerfAnalyzer(maker.document()).trace


def rows_of_events(trace: Trace) -> list[int]:
    return [row for row in range(len(trace)) if trace.name_of(row).startswith("op ")]


def intervals_on_thread(
    trace: Trace, intervals: list[tuple[int, int]]
) -> HostIntervals:
    """Return the intervals on the thread of the events, ns since the trace's first event."""
    thread = 0
    rows = rows_of_events(trace)
    if rows:
        thread = int(trace.thread[rows[0]])
    start = np.array([1000 * (start + 1) for start, _ in intervals], dtype=np.int64)
    length = np.array([1000 * length for _, length in intervals], dtype=np.int64)
    return HostIntervals(
        thread=np.full(len(intervals), thread), start=start, end=start + length
    )


def on_unknown_thread(intervals: HostIntervals) -> HostIntervals:
    return intervals._replace(thread=np.full(len(intervals.thread), NONE))


@given(nested_spans(), INTERVALS, KINDS)
def test_the_innermost_event_during_an_interval_covers_half_of_it(
    spans: Spans, intervals: list[tuple[int, int]], kind: EventKind
) -> None:
    trace = trace_of(spans, kind)
    on_thread = intervals_on_thread(trace, intervals)
    innermost = innermost_during(trace, (kind,), on_thread).tolist()
    bounds = zip(on_thread.start.tolist(), on_thread.end.tolist(), strict=True)
    for row, (start, end) in zip(innermost, bounds, strict=True):
        covering = []
        for event in rows_of_events(trace):
            overlap = min(trace.end[event], end) - max(trace.ts[event], start)
            if 2 * overlap >= end - start:
                covering.append(event)
        if row == NONE:
            # An event that covers exactly the first half has ended by the middle.
            middle = start + (end - start) // 2
            assert all(trace.end[event] <= middle for event in covering)
            continue
        assert row in covering
        inner = [event for event in covering if trace.ts[event] >= trace.ts[row]]
        assert trace.dur[row] == min(trace.dur[event] for event in inner)


@given(nested_spans(), INTERVALS, KINDS)
def test_events_that_are_ignored_or_on_other_threads_cover_nothing(
    spans: Spans, intervals: list[tuple[int, int]], kind: EventKind
) -> None:
    trace = trace_of(spans, kind)
    on_thread = intervals_on_thread(trace, intervals)
    elsewhere = innermost_during(trace, (kind,), on_unknown_thread(on_thread))
    assert (elsewhere == NONE).all()
    without_events = innermost_during(trace, (kind,), on_thread, ignored=("op ",))
    assert (without_events == NONE).all()


@given(nested_spans(), INTERVALS)
def test_segments_have_the_innermost_event_of_each_microsecond(
    spans: Spans, intervals: list[tuple[int, int]]
) -> None:
    trace = trace_of(spans, EventKind.CPU_OP)
    events = rows_of_events(trace)
    on_thread = intervals_on_thread(trace, intervals)
    segments = innermost_segments(trace, (EventKind.CPU_OP,), on_thread)
    assert len(segments.row) <= 2 * len(spans)
    covered_ns = [0] * len(intervals)
    time_of_event = dict.fromkeys(events, 0)
    for index, (thread, start, end) in enumerate(zip(*on_thread, strict=True)):
        for time in range(int(start), int(end), 1000):
            running = [
                event for event in events if trace.ts[event] <= time < trace.end[event]
            ]
            overlap = segments.during(
                np.array([thread]), np.array([time]), np.array([time + 1])
            )
            assert overlap.of_interval.tolist() == [bool(running)]
            if running:
                innermost = min(
                    running, key=lambda event: (int(trace.dur[event]), -event)
                )
                assert segments.row[overlap.first].tolist() == [innermost]
                covered_ns[index] += 1000
                time_of_event[innermost] += 1000
    overlap = segments.during(*on_thread)
    assert overlap.of_interval.tolist() == covered_ns
    has_segments = overlap.past > overlap.first
    assert has_segments.tolist() == [ns > 0 for ns in covered_ns]
    covered_of_event = np.bincount(segments.row, overlap.of_segment, len(trace))
    assert {event: covered_of_event[event] for event in events} == time_of_event
    assert not segments.during(*on_unknown_thread(on_thread)).of_interval.any()
