"""The sentence about idle time: its subject, its times and the shares of the causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gap_helpers import TRACES, Kernel, recorded
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.answer import idle_time_answer, observed_time
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.iterations.selection import EventFilter

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents, Scope


def answer_of(maker: TraceMaker, scope: Scope = "device", **filters: int | str) -> str:
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    selection = EventFilter(**filters)  # type: ignore[arg-type]
    classified = classify_gaps(analyzer.gpu_events, scope, selection)
    return idle_time_answer(analyzer.gpu_events, classified, selection)


def kernels(*spans: tuple[float, float], **track: int) -> TraceMaker:
    """Make a trace of kernels with these starts and durations, µs."""
    maker = TraceMaker()
    for start, duration in spans:
        maker.kernel("gemm", start, duration, **track)
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
def test_times_have_a_unit_that_shows_their_digits(gap: float, words: str) -> None:
    assert answer_of(kernels((0, 10), (10 + gap, 10))) == words


def test_the_answer_for_a_trace_without_gpu_work_says_so() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    assert answer_of(maker).startswith("The trace contains no GPU work. ")


def test_the_answer_for_an_empty_selection_names_the_selection() -> None:
    maker = kernels((0, 10))
    maker.annotation("ProfilerStep#1", 0, 50)
    maker.launched("k", 20, 5, correlation=1, at=5, stream=9)
    assert answer_of(maker, "stream", step=1, stream=7) == (
        "No GPU event matches ProfilerStep#1 (by launch), stream 7."
    )


@pytest.mark.parametrize(
    ("scope", "filters", "beginning"),
    [
        ("device", {}, "The 2 GPUs were together idle for 40.000 μs of 80.000 μs"),
        ("device", {"device": 1}, "Device 1 was idle for 30.000 μs of 50.000 μs"),
        (
            "stream",
            {"stream": 7},
            "The 2 streams 7 were together idle for 40.000 μs of 80.000 μs",
        ),
        (
            "stream",
            {"stream": 7, "device": 0},
            "Stream 7 of device 0 was idle for 10.000 μs of 30.000 μs",
        ),
    ],
)
def test_the_subject_is_the_selected_devices_or_streams(
    scope: Scope, filters: dict[str, int], beginning: str
) -> None:
    maker = kernels((0, 10), (20, 10))
    maker.events += kernels((0, 10), (40, 10), device=1).events
    assert answer_of(maker, scope, **filters).startswith(beginning)


def test_the_subject_of_a_trace_with_one_stream_is_the_stream() -> None:
    answer = answer_of(kernels((0, 1), (2, 1)), "stream")
    assert answer.startswith("The stream was idle for 1.000 μs")


def test_a_device_without_gaps_was_never_idle() -> None:
    answer = answer_of(kernels((0, 1), (1, 1)), device=0)
    assert answer.startswith("Device 0 was never idle")


def test_a_selection_begins_with_the_gap_before_it() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 200)
    maker.launched("first", 10, 10, correlation=1, at=5)
    maker.launched("second", 120, 10, correlation=2, at=110)
    maker.launched("ncclDevKernel_AllReduce", 150, 10, correlation=3, at=140)
    times = "idle for 120.000 μs of 140.000 μs (85.7 %): host 85.0 %, launch overhead 15.0 %."
    assert answer_of(maker, step=2) == f"In ProfilerStep#2 the GPU was {times}"
    assert answer_of(maker, step=1) == (
        "In ProfilerStep#1 the GPU was never idle between the first and the last event."
    )
    assert answer_of(maker, step=2, device=0, category="communication") == (
        "In ProfilerStep#2 device 0 was idle before work of the category communication"
        " for 20.000 μs of 30.000 μs (66.7 %): host 55.0 %, launch overhead 45.0 %."
    )


KERNELS = st.lists(
    st.builds(
        Kernel,
        st.integers(0, 1),
        st.integers(1, 3),
        st.integers(0, 99),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=20,
)


def gpu_events_of(generated: list[Kernel]) -> GpuEvents:
    maker = TraceMaker()
    for kernel in generated:
        maker.kernel(
            "k",
            kernel.start,
            kernel.duration,
            device=kernel.device,
            stream=kernel.stream,
        )
    return TreePerfAnalyzer(maker.document()).gpu_events


@given(KERNELS, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, 0, 1]))
def test_idle_time_is_at_most_the_observed_time(
    generated: list[Kernel], stream: int | None, device: int | None
) -> None:
    # A selection must match something.
    if stream not in {kernel.stream for kernel in generated}:
        stream = None
    if device not in {kernel.device for kernel in generated}:
        device = None
    gpu_events = gpu_events_of(generated)
    selection = EventFilter(stream=stream, device=device)
    scopes: list[Scope] = ["stream", "device"]
    for scope in scopes:
        classified = classify_gaps(gpu_events, scope, selection)
        idle_ns = classified.gaps.duration.sum()
        assert idle_ns <= observed_time(gpu_events, classified)
        assert idle_time_answer(gpu_events, classified, selection).endswith(".")


@given(KERNELS)
def test_the_observed_time_of_devices_is_from_first_start_to_last_end(
    generated: list[Kernel],
) -> None:
    expected_us = 0
    for device in (0, 1):
        starts = [kernel.start for kernel in generated if kernel.device == device]
        ends = [
            kernel.start + kernel.duration
            for kernel in generated
            if kernel.device == device
        ]
        if starts:
            expected_us += max(ends) - min(starts)
    gpu_events = gpu_events_of(generated)
    classified = classify_gaps(gpu_events, "device", EventFilter())
    assert observed_time(gpu_events, classified) == 1000 * expected_us


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_the_observed_time_is_the_total_of_the_timeline(name: str) -> None:
    analyzer = recorded(name)
    timeline = analyzer.get_df_gpu_timeline()
    total_ms = timeline.loc[timeline["type"] == "total_time", "time ms"].sum()
    classified = classify_gaps(analyzer.gpu_events, "device")
    observed_ns = observed_time(analyzer.gpu_events, classified)
    assert observed_ns == round(total_ms * 1e6)
