"""Why the GPU was idle, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gap_helpers import TRACES, recorded
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.answer import idle_time_answer, observed_time
from tracelens_ext.analysis.idle_time.causes import classify_gaps
from tracelens_ext.analysis.iterations.selection import EventFilter

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import Scope


def said(maker: TraceMaker, scope: Scope = "device", **chosen: int | str) -> str:
    work = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True).work
    selection = EventFilter(**chosen)  # type: ignore[arg-type]
    return idle_time_answer(work, classify_gaps(work, scope, selection), selection)


def kernels(*spans: tuple[float, float], **where: int) -> TraceMaker:
    maker = TraceMaker()
    for start, duration in spans:
        maker.kernel("gemm", start, duration, **where)
    return maker


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (
            100,
            "The GPU was idle for 100.000 μs of 120.000 μs (83.3 %): unknown 100.0 %.",
        ),
        (0.007, "The GPU was idle for 7 ns of 20.007 μs (<0.1 %): unknown 100.0 %."),
        (
            1234567,
            "The GPU was idle for 1,234.567 ms of 1,234.587 ms (100.0 %): unknown 100.0 %.",
        ),
        (0, "The GPU was never idle between the first and the last event."),
    ],
)
def test_times_are_in_a_unit_that_shows_digits(gap: float, words: str) -> None:
    assert said(kernels((0, 10), (10 + gap, 10))) == words


def test_no_work_and_nothing_selected() -> None:
    idle = TraceMaker()
    idle.op("aten::mm", 0, 10)
    assert said(idle).startswith("The trace contains no GPU work. ")
    maker = kernels((0, 10))
    maker.annotation("ProfilerStep#1", 0, 50)
    maker.launched("k", 20, 5, correlation=1, at=5, stream=9)
    assert said(maker, "stream", step=1, stream=7) == (
        "No GPU event matches ProfilerStep#1 (by launch), stream 7."
    )


def test_who_was_idle() -> None:
    maker = kernels((0, 10), (20, 10))
    maker.events += kernels((0, 10), (40, 10), device=1).events
    times = "idle for 40.000 μs of 80.000 μs (50.0 %): unknown 100.0 %."
    assert said(maker) == f"The 2 GPUs were together {times}"
    assert said(maker, device=1).startswith(
        "Device 1 was idle for 30.000 μs of 50.000 μs (60.0 %)"
    )
    assert said(maker, "stream", stream=7) == f"The 2 streams 7 were together {times}"
    one = said(maker, "stream", stream=7, device=0)
    assert one.startswith(
        "Stream 7 of device 0 was idle for 10.000 μs of 30.000 μs (33.3 %)"
    )
    assert said(kernels((0, 1), (2, 1)), "stream").startswith(
        "The stream was idle for 1.000 μs"
    )
    assert said(kernels((0, 1), (1, 1)), device=0).startswith("Device 0 was never idle")


def test_a_selection_begins_with_the_gap_before_it() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 200)
    maker.launched("first", 10, 10, correlation=1, at=5)
    maker.launched("second", 120, 10, correlation=2, at=110)
    maker.launched("ncclDevKernel_AllReduce", 150, 10, correlation=3, at=140)
    times = "idle for 120.000 μs of 140.000 μs (85.7 %): host 85.0 %, launch overhead 15.0 %."
    assert said(maker, step=2) == f"In ProfilerStep#2 the GPU was {times}"
    assert said(maker, step=1) == (
        "In ProfilerStep#1 the GPU was never idle between the first and the last event."
    )
    assert said(maker, step=2, device=0, category="communication") == (
        "In ProfilerStep#2 device 0 was idle before work of the category communication"
        " for 20.000 μs of 30.000 μs (66.7 %): host 55.0 %, launch overhead 45.0 %."
    )


drawn = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(1, 3), st.integers(0, 99), st.integers(0, 20)
    ),
    min_size=1,
    max_size=20,
)


@given(drawn, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, 0, 1]))
def test_no_more_is_idle_than_was_watched(
    events: list[tuple[int, int, int, int]], stream: int | None, device: int | None
) -> None:
    maker = TraceMaker()
    for on, of, start, duration in events:
        maker.kernel("k", start, duration, device=on, stream=of)
    if stream not in {None, *(event[1] for event in events)}:
        stream = None
    if device not in {None, *(event[0] for event in events)}:
        device = None
    work = TreePerfAnalyzer(maker.document()).work
    selection = EventFilter(stream=stream, device=device)
    scopes: list[Scope] = ["stream", "device"]
    for scope in scopes:
        judged = classify_gaps(work, scope, selection)
        watched = observed_time(work, judged)
        assert judged.gaps.duration.sum() <= watched
        assert idle_time_answer(work, judged, selection).endswith(".")
        if scope == "device" and device is None:
            of_device = [[e for e in events if e[0] == on] for on in (0, 1)]
            spans = [
                max(e[2] + e[3] for e in mine) - min(e[2] for e in mine)
                for mine in of_device
                if mine
            ]
            assert watched == 1000 * sum(spans)


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_what_was_watched_is_the_total_of_the_timeline(name: str) -> None:
    analyzer = recorded(name)
    timeline = analyzer.get_df_gpu_timeline().set_index("type")["time ms"]
    classified = classify_gaps(analyzer.work, "device")
    total = round(timeline.loc[["total_time"]].sum() * 1e6) if len(analyzer.work) else 0
    assert observed_time(analyzer.work, classified) == total
