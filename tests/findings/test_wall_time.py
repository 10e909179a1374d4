"""Each nanosecond of wall time is claimed at most once: busy time of events, and idle time."""

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

    from tracelens_ext.trace import BoolArray

#: Start and end of an event, µs.
Span = tuple[int, int]


def wall_of(document: Document) -> WallTime:
    return WallTime(TreePerfAnalyzer(document).gpu_events)


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
    """Check that intervals of a device do not overlap, and lie within the wall time."""
    by_device: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        by_device[span["device"]].append((span["start_ns"], span["end_ns"]))
    for spans_of_device in by_device.values():
        ordered = sorted(spans_of_device)
        limits = [limit for span in ordered for limit in span]
        assert limits == sorted(limits)
        assert limits[0] >= 0
        assert limits[-1] <= total


def length_ns(spans: Sequence[dict[str, Any]]) -> int:
    return sum(span["end_ns"] - span["start_ns"] for span in spans)


@given(traces())
@settings(deadline=None)
def test_findings_and_gaps_agree_on_the_idle_time_of_each_device(
    document: Document,
) -> None:
    analyzer = TreePerfAnalyzer(document)
    findings: Any = analyzer.findings().as_dict()
    gpu_events = analyzer.gpu_events
    tracks = find_tracks(gpu_events, "device")
    by_cause = classify_gaps(gpu_events, "device").idle_by_cause_ms()
    assert findings["idle_by_cause_ms"] == by_cause
    summary = analyzer.get_df_gap_summary()
    of_devices = summary[summary["scope"] == "device"]
    for cause, ms in of_devices.set_index("cause")["idle_time_ms"].items():
        ms_of_devices = [times[str(cause)] for times in by_cause.values()]
        assert ms == pytest.approx(sum(ms_of_devices))
    for track, device in enumerate(tracks.device_labels):
        is_on_device = tracks.of_gpu == track
        busy_ns = union_length(
            gpu_events.start[is_on_device], gpu_events.end[is_on_device]
        )
        idle_ms = findings["total_ms"] - busy_ns / 1e6
        assert sum(by_cause[device].values()) == pytest.approx(idle_ms)


@given(traces())
@settings(deadline=None)
def test_findings_and_parts_of_the_recording_have_no_moment_in_common(
    document: Document,
) -> None:
    analyzer = TreePerfAnalyzer(document)
    findings: Any = analyzer.findings().as_dict(intervals=True)
    device_count = len(find_tracks(analyzer.gpu_events, "device"))
    parts = findings["recording"]["parts"]
    spans = []
    for owner in findings["findings"] + parts:
        spans += owner["intervals"]
    check_apart(spans, round(findings["total_ms"] * 1e6))
    for finding in findings["findings"]:
        all_ms = sum(device["attributed_ms"] for device in finding["devices"])
        assert all_ms / device_count == pytest.approx(finding["attributed_ms"])
        assert length_ns(finding["intervals"]) == pytest.approx(all_ms * 1e6)
    for part in parts:
        assert length_ns(part["intervals"]) == pytest.approx(part["duration_ms"] * 1e6)


@given(traces(), st.data())
@settings(deadline=None)
def test_claims_never_overlap(document: Document, data: st.DataObject) -> None:
    """Whatever is claimed in whatever order, the sum is at most the wall time."""
    wall = wall_of(document)
    rows = wall.gpu_events.trace.rows_of(*LAUNCH_KINDS)

    def draw_mask(size: int) -> BoolArray:
        flags = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return np.array(flags, dtype=bool)

    attributed_ns = 0.0
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["events", "during", "up to"]))
        if kind == "events":
            events = draw_mask(len(wall.gpu_events))
            share = data.draw(st.floats(0, 1))
            claim = wall.claim_events(events, share)
        elif kind == "during":
            claim = wall.claim_idle_during(rows[draw_mask(len(rows))])
        else:
            gaps = len(wall.classified)
            limits = st.lists(st.integers(0, 10**6), min_size=gaps, max_size=gaps)
            limit = np.array(data.draw(limits), dtype=np.int64)
            claim = wall.claim_idle_up_to(limit)
        attributed_ns += claim.attributed_ns
    assert attributed_ns <= wall.total_ns * (1 + 1e-9)
    assert attributed_ns == pytest.approx(wall.attributed_ns)
    spans = []
    for claim in wall.claims + wall.idle_time_of_parts():
        spans += claim.as_records()
    check_apart(spans, wall.total_ns)
    mean_idle_ns = sum(claim.idle_ns for claim in wall.claims)
    claimed_idle_ns = mean_idle_ns * len(wall.tracks)
    unclaimed_idle_ns = wall.unclaimed_ns_of_gaps().sum()
    all_idle_ns = wall_of(document).unclaimed_ns_of_gaps().sum()
    assert unclaimed_idle_ns + claimed_idle_ns == pytest.approx(all_idle_ns)


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
    start = wall.gpu_events.start // 1000
    end = wall.gpu_events.end // 1000
    is_on_stream = wall.gpu_events.trace.stream == 1
    microseconds_alone = 0
    for microsecond in range(30):
        runs = (start <= microsecond) & (microsecond < end)
        stream_runs = (runs & is_on_stream).any()
        other_stream_runs = (runs & ~is_on_stream).any()
        if stream_runs and not other_stream_runs:
            microseconds_alone += 1
    assert wall.about(is_on_stream).attributed_ns == 1000 * microseconds_alone
    assert wall.claim_events(is_on_stream).attributed_ns == 1000 * microseconds_alone


def test_work_beside_other_work_saves_nothing() -> None:
    wall = on_streams([((0, 100), 1), ((20, 60), 2)])
    assert wall.claim_events(wall.gpu_events.trace.stream == 2).attributed_ns == 0
    assert wall.claim_events(wall.gpu_events.trace.stream == 1).attributed_ns == 60_000


def test_an_event_is_claimed_once() -> None:
    wall = on_streams([((0, 100), 1), ((100, 150), 1)])
    first = np.array([True, False])
    both = np.array([True, True])
    assert wall.claim_events(first, 0.25).attributed_ns == 25_000
    assert wall.claim_events(both).attributed_ns == 50_000


def test_a_gap_is_divided_among_the_causes_of_its_parts() -> None:
    """From 100 to 400 µs the CPU is in cudaMalloc for 80 and 50 µs, and 50 µs only in cudaFree."""
    calls = [
        ("cudaMalloc", (90, 180)),
        ("cudaMalloc", (200, 250)),
        ("cudaFree", (240, 300)),
    ]
    wall = wall_of(late_launch(calls=calls).document())
    trace = wall.gpu_events.trace
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


def test_work_is_hidden_only_by_work_on_its_own_device() -> None:
    """The attributed time of the claim is the mean over both devices."""
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


def test_gaps_after_a_call_together_claim_no_more_than_its_duration() -> None:
    """Two gaps come after a wait of 100 µs."""
    maker = late_launch(calls=[("cudaStreamSynchronize", (60, 160))], second=220)
    wall = wall_of(maker.document())
    (row,) = np.flatnonzero(
        wall.gpu_events.trace.names_matching(lambda n: "Synchronize" in n)[
            wall.gpu_events.trace.name
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
