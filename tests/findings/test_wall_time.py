"""Each nanosecond of wall time is claimed once at most, by what runs alone, or by idle time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import Document, TraceMaker
from tests.support.strategies import traces
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.trace import LAUNCH_KINDS
from tracelens_ext.trace.gpu_events import find_tracks
from tracelens_ext.trace.intervals import union_length

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


def check_apart(spans: Sequence[dict[str, Any]], total: int) -> None:
    """No moment of a device is in two of the stretches, and all lie in the wall."""
    by_device: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        by_device[span["device"]].append((span["start_ns"], span["end_ns"]))
    for those in by_device.values():
        moments = [moment for span in sorted(those) for moment in span]
        assert moments == sorted(moments)
        assert 0 <= moments[0] <= moments[-1] <= total


@given(traces())
@settings(deadline=None)
def test_the_wall_of_each_device_is_divided_once(document: Document) -> None:
    """Gaps and findings agree on each device's idle time; findings and parts are apart."""
    analyzer = TreePerfAnalyzer(document)
    told: Any = analyzer.findings().as_dict(intervals=True)
    work = analyzer.work
    tracks = find_tracks(analyzer.work, "device")
    by_cause = classify_gaps(work, "device").idle_by_cause_ms()
    assert told["idle_by_cause_ms"] == by_cause
    summary = analyzer.get_df_gap_summary()
    summed = summary[summary["scope"] == "device"].set_index("cause")["idle_time_ms"]
    for cause, ms in summed.items():
        assert ms == pytest.approx(
            sum(times[str(cause)] for times in by_cause.values())
        )
    for track, device in enumerate(tracks.device_labels):
        mine = tracks.of_gpu == track
        busy = union_length(work.start[mine], work.end[mine]) / 1e6
        assert sum(by_cause[device].values()) == pytest.approx(told["total_ms"] - busy)
    parts = told["recording"]["parts"]
    told_by = [*told["findings"], *parts]
    spans = [span for each in told_by for span in each["intervals"]]
    check_apart(spans, round(told["total_ms"] * 1e6))
    for finding in told["findings"]:
        devices = sum(each["attributed_ms"] for each in finding["devices"])
        assert devices / len(tracks) == pytest.approx(finding["attributed_ms"])
    for each, ms in [
        (f, f["attributed_ms"] * len(tracks)) for f in told["findings"]
    ] + [(part, part["duration_ms"]) for part in parts]:
        assert sum(
            s["end_ns"] - s["start_ns"] for s in each["intervals"]
        ) == pytest.approx(ms * 1e6)


@given(traces(), st.data())
@settings(deadline=None)
def test_claims_never_overlap(document: Document, data: st.DataObject) -> None:
    """Whatever is claimed in whatever order, the sum is the wall time at most."""
    wall = wall_of(document)
    size = len(wall.work)
    gaps = len(wall.classified)
    rows = wall.work.trace.rows_of(*LAUNCH_KINDS)
    saved = 0.0
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["events", "during", "up to"]))
        if kind == "events":
            which = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
            share = data.draw(st.floats(0, 1))
            claim = wall.claim_events(np.array(which, dtype=bool), share)
        elif kind == "during":
            which = data.draw(
                st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
            )
            claim = wall.claim_idle_during(rows[np.array(which, dtype=bool)])
        else:
            limit = data.draw(
                st.lists(st.integers(0, 10**6), min_size=gaps, max_size=gaps)
            )
            claim = wall.claim_idle_up_to(np.array(limit, dtype=np.int64))
        saved += claim.attributed_ns
    assert saved <= wall.total_ns * (1 + 1e-9)
    assert saved == pytest.approx(wall.attributed_ns)
    claims = wall.claims + wall.idle_time_of_parts()
    check_apart(
        [span for claim in claims for span in claim.as_records()], wall.total_ns
    )
    idle = sum(claim.idle_ns for claim in wall.claims) * len(wall.tracks)
    assert wall.unclaimed_ns_of_gaps().sum() + idle == pytest.approx(
        wall_of(document).unclaimed_ns_of_gaps().sum()
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 3)), min_size=1
    )
)
@settings(deadline=None)
def test_busy_time_alone_is_counted_microsecond_by_microsecond(
    drawn: list[tuple[int, int, int]],
) -> None:
    wall = on_streams(
        [((start, start + length), stream) for start, length, stream in drawn]
    )
    start = wall.work.start // 1000
    end = wall.work.end // 1000
    which = wall.work.trace.stream == 1
    running = [(start <= at) & (at < end) for at in range(30)]
    alone = sum(
        bool((now & which).any() and not (now & ~which).any()) for now in running
    )
    assert wall.about(which).attributed_ns == 1000 * alone
    assert wall.claim_events(which).attributed_ns == 1000 * alone


def test_work_beside_other_work_saves_nothing() -> None:
    wall = on_streams([((0, 100), 1), ((20, 60), 2)])
    assert wall.claim_events(wall.work.trace.stream == 2).attributed_ns == 0
    assert wall.claim_events(wall.work.trace.stream == 1).attributed_ns == 60_000


def test_an_event_is_claimed_once() -> None:
    wall = on_streams([((0, 100), 1), ((100, 150), 1)])
    first = np.array([True, False])
    both = np.array([True, True])
    assert wall.claim_events(first, 0.25).attributed_ns == 25_000
    assert wall.claim_events(both).attributed_ns == 50_000


def test_a_gap_is_shared_by_those_who_caused_its_parts() -> None:
    """From 100 to 400 the host is in cudaMalloc for 80 and 50 µs; the rest is its own slowness."""
    calls = [
        ("cudaMalloc", (90, 180)),
        ("cudaMalloc", (200, 250)),
        ("cudaFree", (240, 300)),
    ]
    wall = wall_of(late_launch(calls=calls).document())
    trace = wall.work.trace
    names = np.array([trace.name_of(row) for row in range(len(trace))])
    claim = wall.claim_idle_during(np.flatnonzero(names == "cudaMalloc"))
    assert claim.attributed_ns == 130_000
    assert (
        wall.claim_idle_during(np.flatnonzero(names == "cudaFree")).attributed_ns
        == 50_000
    )
    limit = np.full(len(wall.classified), 100_000)
    assert wall.claim_idle_up_to(limit).attributed_ns == 100_000
    assert wall.unclaimed_ns_of_gaps().sum() == 20_000


def test_another_thread_does_not_make_the_gpu_wait() -> None:
    maker = late_launch(calls=[])
    row = maker.call("cudaMalloc", 120, 100, thread=9)
    wall = wall_of(maker.document())
    assert wall.claim_idle_during(np.array([row])).attributed_ns == 0


def test_a_copy_of_the_claims_is_its_own() -> None:
    wall = on_streams([((0, 100), 1), ((100, 150), 1)])
    other = wall.copy()
    other.claim_events(np.array([True, True]))
    assert (other.attributed_ns, wall.attributed_ns) == (150_000, 0)
    assert wall.claim_events(np.array([True, True])).attributed_ns == 150_000


def test_each_device_has_a_wall_of_its_own() -> None:
    """What hides work is on its own device; what all save is the mean, and each says its part."""
    maker = TraceMaker()
    maker.kernel("k", 0, 100, device=0)
    maker.kernel("k", 40, 20, device=1)
    wall = wall_of(maker.document())
    claim = wall.claim_events(np.array([True, True]))
    assert (claim.attributed_ns, claim.ns_of_devices.tolist()) == (
        60_000,
        [100_000, 20_000],
    )
    edges = [times["edge"] for times in wall.classified.idle_by_cause_ms().values()]
    assert edges == [0.0, 0.08]


def test_a_call_gives_idle_time_as_long_as_it_lasted_once() -> None:
    """Two gaps come after one wait of 100 µs; together they get no more."""
    maker = late_launch(calls=[("cudaStreamSynchronize", (60, 160))], second=220)
    wall = wall_of(maker.document())
    (row,) = np.flatnonzero(
        wall.work.trace.names_matching(lambda n: "Synchronize" in n)[
            wall.work.trace.name
        ]
    )
    both = np.full(len(wall.classified), row)
    no_limit = np.full(len(wall.classified), 1_000_000)
    assert wall.copy().claim_idle_after(both, no_limit).attributed_ns == 100_000
    at_most = np.full(len(wall.classified), 30_000)
    assert wall.claim_idle_after(both, at_most).attributed_ns == 30_000


def test_an_event_may_be_claimed_up_to_a_moment() -> None:
    wall = on_streams([((0, 100), 1)])
    until = np.array([30_000]) + wall.start
    assert wall.claim_events(np.array([True]), until=until).attributed_ns == 30_000
    assert wall.claim_events(np.array([True])).attributed_ns == 70_000
