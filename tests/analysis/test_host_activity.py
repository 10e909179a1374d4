"""What the host was in: against a loop over all events of the thread."""

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
from tracelens_ext.trace import NONE, EventKind

Nested = list[tuple[int, int]]


@st.composite
def nested(draw: st.DrawFn) -> Nested:
    """Intervals of one thread, each within another or beside it."""
    found: Nested = []

    def fill(start: int, end: int, depth: int) -> None:
        while depth and start < end and draw(st.booleans()):
            first = draw(st.integers(start, end - 1))
            last = draw(st.integers(first + 1, end))
            found.append((first, last))
            fill(first, last, depth - 1)
            start = last

    fill(0, 100, 4)
    return sorted(set(found))


@given(
    nested(),
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), max_size=6),
    st.sampled_from([EventKind.CPU_OP, EventKind.PYTHON_FUNCTION]),
    st.booleans(),
)
def test_against_a_plain_loop(
    events: Nested, stretches: list[tuple[int, int]], kind: EventKind, frames: bool
) -> None:
    maker = TraceMaker()
    maker.op("first", -1, 1, thread=99)  # times count from here
    for number, (start, end) in enumerate(events):
        make = maker.op if kind == EventKind.CPU_OP else maker.frame
        make(f"op {number}", start, end - start)
    tree = TreePerfAnalyzer(maker.document(), add_python_func=frames).tree
    trace = tree.trace
    row_of = {trace.name_of(row): row for row in range(len(trace))}
    rows = [row_of[f"op {number}"] for number in range(len(events))]
    thread = np.full(len(stretches), trace.thread[rows[0]] if rows else 0)
    begins = np.array([1000 * (at + 1) for at, _ in stretches], dtype=np.int64)
    ends = begins + np.array([1000 * length for _, length in stretches], dtype=np.int64)
    found = innermost_during(tree.trace, (kind,), HostIntervals(thread, begins, ends))
    if not rows:
        return
    for at, row in enumerate(found.tolist()):
        covering = [
            (int(trace.dur[each]), each)
            for each in rows
            if 2 * (min(trace.end[each], ends[at]) - max(trace.ts[each], begins[at]))
            >= ends[at] - begins[at]
        ]
        # of two that cover half each, the first may have ended by the middle
        if row == NONE:
            middle = begins[at] + (ends[at] - begins[at]) // 2
            assert all(trace.end[each] <= middle for _, each in covering)
        else:
            chosen = (int(trace.dur[row]), row)
            assert chosen in covering
            inside = [c for c in covering if trace.ts[c[1]] >= trace.ts[row]]
            assert all(duration >= chosen[0] for duration, _ in inside)
    nobody = innermost_during(
        tree.trace, (kind,), HostIntervals(thread * 0 + NONE, begins, ends)
    )
    assert (nobody == NONE).all()
    ignored = innermost_during(
        tree.trace, (kind,), HostIntervals(thread, begins, ends), ("op ",)
    )
    assert (ignored == NONE).all()


@given(
    nested(), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), max_size=6)
)
def test_moments_against_each_moment(
    events: Nested, stretches: list[tuple[int, int]]
) -> None:
    """Stretches may overlap, as the gaps of several devices do; no pairs of them are made."""
    maker = TraceMaker()
    maker.op("first", -1, 1, thread=99)
    for number, (start, end) in enumerate(events):
        maker.op(f"op {number}", start, end - start)
    trace = TreePerfAnalyzer(maker.document()).trace
    mine = [row for row in range(len(trace)) if trace.name_of(row).startswith("op ")]
    thread = np.full(len(stretches), trace.thread[mine[0]] if mine else 0)
    begins = np.array([1000 * (at + 1) for at, _ in stretches], dtype=np.int64)
    ends = begins + np.array([1000 * length for _, length in stretches], dtype=np.int64)
    moments = innermost_segments(
        trace, (EventKind.CPU_OP,), HostIntervals(thread, begins, ends)
    )
    assert len(moments.row) <= 2 * len(events)
    covered = [0] * len(stretches)
    of_row = dict.fromkeys(mine, 0)
    for number, (begin, end) in enumerate(
        zip(begins.tolist(), ends.tolist(), strict=True)
    ):
        for moment in range(begin, end, 1000):
            around = [row for row in mine if trace.ts[row] <= moment < trace.end[row]]
            now = moments.during(thread[:1], np.array([moment]), np.array([moment + 1]))
            assert now.of_interval.tolist() == [bool(around)]
            if around:
                innermost = min(around, key=lambda row: (int(trace.dur[row]), -row))
                assert moments.row[now.first].tolist() == [innermost]
                covered[number] += 1000
                of_row[innermost] += 1000
    its = moments.during(thread, begins, ends)
    assert its.of_interval.tolist() == covered
    assert [bool(count) for count in its.past - its.first] == [
        bool(ns) for ns in covered
    ]
    time = np.bincount(moments.row, its.of_segment, len(trace))
    assert {row: time[row] for row in mine} == of_row
    assert not moments.during(thread * 0 + NONE, begins, ends).of_interval.any()
