"""Each nanosecond of wall time is claimed once at most, by what runs alone, or by idle time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from make_trace import Document, TraceMaker
from strategies import traces

from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.trace import LAUNCH_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Start and end of an event, µs.
Span = tuple[int, int]


def wall_of(document: Document) -> WallTime:
    return WallTime(TreePerfAnalyzer(document).work)


def on_streams(spans: Sequence[tuple[Span, int]]) -> WallTime:
    """The wall time of kernels on streams."""
    maker = TraceMaker()
    for (start, end), stream in spans:
        maker.kernel("k", start, end - start, stream=stream)
    return wall_of(maker.document())


def late_launch(*, calls: Sequence[tuple[str, Span]], second: int = 400) -> TraceMaker:
    """Two kernels with a gap from 100 to `second`, because the host launches too late."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    for name, (start, end) in calls:
        maker.call(name, start, end - start)
    maker.launched("second", second, 50, correlation=2, at=second - 10)
    return maker


@given(traces(), st.data())
@settings(deadline=None)
def test_claims_never_overlap(document: Document, data: st.DataObject) -> None:
    """Whatever is claimed in whatever order, the sum is the wall time at most."""
    wall = wall_of(document)
    size, gaps = len(wall.work), len(wall.classified)
    rows = wall.work.trace.rows_of(*LAUNCH_KINDS)
    saved = 0.0
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["events", "during", "up to"]))
        if kind == "events":
            which = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
            share = data.draw(st.floats(0, 1))
            claim = wall.claim_events(np.array(which, dtype=bool), share)
        elif kind == "during":
            which = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
            claim = wall.claim_idle_during(rows[np.array(which, dtype=bool)])
        else:
            limit = data.draw(st.lists(st.integers(0, 10**6), min_size=gaps, max_size=gaps))
            claim = wall.claim_idle_up_to(np.array(limit, dtype=np.int64))
        assert (claim.gap_ns >= 0).all()
        assert (claim.event_ns >= 0).all()
        saved += claim.saving_ns
        assert (wall.claimed_of_gap <= wall.classified.gaps.duration).all()
        assert (wall.claimed_of_event <= wall.work.duration).all()
    assert saved <= wall.total_ns * (1 + 1e-9)
    assert saved == np.float64(wall.claimed_ns)
    left = wall.left_of_gaps().sum()
    assert left + wall.claimed_of_gap.sum() == wall_of(document).left_of_gaps().sum()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 3)), min_size=1))
@settings(deadline=None)
def test_busy_time_alone_is_counted_microsecond_by_microsecond(
    drawn: list[tuple[int, int, int]],
) -> None:
    wall = on_streams([((start, start + length), stream) for start, length, stream in drawn])
    start, end = wall.work.start // 1000, wall.work.end // 1000
    which = wall.work.trace.stream == 1
    running = [(start <= at) & (at < end) for at in range(30)]
    alone = sum(bool((now & which).any() and not (now & ~which).any()) for now in running)
    assert wall.alone(which).sum() == 1000 * alone
    assert wall.claim_events(which).saving_ns == 1000 * alone


def test_work_beside_other_work_saves_nothing() -> None:
    wall = on_streams([((0, 100), 1), ((20, 60), 2)])
    assert wall.claim_events(wall.work.trace.stream == 2).saving_ns == 0
    assert wall.claim_events(wall.work.trace.stream == 1).saving_ns == 60_000


def test_an_event_is_claimed_once() -> None:
    wall = on_streams([((0, 100), 1), ((100, 150), 1)])
    first, both = np.array([True, False]), np.array([True, True])
    assert wall.claim_events(first, 0.25).saving_ns == 25_000
    assert wall.claim_events(both).saving_ns == 50_000


def test_a_gap_is_shared_by_those_who_caused_its_parts() -> None:
    """From 100 to 400 the host is in cudaMalloc for 80 and 50 µs; the rest is its own slowness."""
    calls = [("cudaMalloc", (90, 180)), ("cudaMalloc", (200, 250)), ("cudaFree", (240, 300))]
    wall = wall_of(late_launch(calls=calls).document())
    trace = wall.work.trace
    names = np.array([trace.name_of(row) for row in range(len(trace))])
    claim = wall.claim_idle_during(np.flatnonzero(names == "cudaMalloc"))
    assert claim.gap_ns.tolist() == [130_000]
    assert wall.claim_idle_during(np.flatnonzero(names == "cudaFree")).gap_ns.tolist() == [50_000]
    limit = np.full(len(wall.classified), 100_000)
    assert wall.claim_idle_up_to(limit).saving_ns == 100_000
    assert wall.left_of_gaps().sum() == 20_000


def test_another_thread_does_not_make_the_gpu_wait() -> None:
    maker = late_launch(calls=[])
    row = maker.call("cudaMalloc", 120, 100, thread=9)
    wall = wall_of(maker.document())
    assert wall.claim_idle_during(np.array([row])).saving_ns == 0


def test_a_copy_of_the_claims_is_its_own() -> None:
    wall = on_streams([((0, 100), 1), ((100, 150), 1)])
    other = wall.copy()
    other.claim_events(np.array([True, True]))
    assert (other.claimed_ns, wall.claimed_ns) == (150_000, 0)
    assert wall.claim_events(np.array([True, True])).saving_ns == 150_000


def test_time_before_a_late_launch_does_not_limit() -> None:
    """The first kernel is followed by a gap of the host's, which would only grow."""
    maker = late_launch(calls=[])
    maker.launched("third", 450, 50, correlation=3, at=395)
    assert wall_of(maker.document()).gpu_limited.tolist() == [False, True, True]
