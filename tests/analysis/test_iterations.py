"""Iterations: which `ProfilerStep#N` are whole, and which GPU work belongs to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparison_helpers import GEMM, training
from tests.support.make_trace import TraceMaker
from tracelens_ext.analysis.iterations.iterations import Iterations, find_iterations
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import NONE
from tracelens_ext.trace.call_tree import CallTree

SHARED = Path(__file__).resolve().parents[3] / "shared"


def iterations_of(maker: TraceMaker) -> Iterations:
    return find_iterations(CallTree(read_trace(maker.document())))


def instant(maker: TraceMaker, name: str, at: int) -> None:
    """Add an event without length."""
    maker.add({"ph": "i", "s": "g", "name": name, "pid": "", "tid": "", "ts": at})


def test_gpu_events_belong_to_the_step_that_launched_them() -> None:
    iterations = iterations_of(training(3))
    assert iterations.number == [5, 6, 7]
    assert iterations.of_gpu.tolist() == [0, 0, 1, 1, 2, 2]
    assert iterations.whole.tolist() == [True] * 3
    assert iterations.whole_count == 3
    assert iterations.run.tolist() == [0, 0, 0]
    assert iterations.label(iterations.whole) == "ProfilerStep#5 to #7"


def test_a_gpu_event_may_run_long_after_its_step() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    # The backward pass launches on a thread of its own.
    maker.call("cudaLaunchKernel", 50, correlation=1, thread=2)
    maker.kernel(GEMM, 500, 10, correlation=1)
    iterations = iterations_of(maker)
    assert iterations.of_gpu.tolist() == [0]
    assert iterations.whole.tolist() == [True, False], "the second launched nothing"


@pytest.mark.parametrize(
    ("launched_at", "owner"), [(99, NONE), (100, 0), (299, 0), (300, NONE), (301, NONE)]
)
def test_work_launched_outside_of_all_steps_belongs_to_none(
    launched_at: int, owner: int
) -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 100, 200)
    maker.call("cudaLaunchKernel", launched_at, correlation=1)
    maker.kernel(GEMM, 400, 10, correlation=1)
    maker.kernel("late_to_the_party", 420, 10, correlation=99)
    assert iterations_of(maker).of_gpu.tolist() == [owner, NONE]


def test_a_step_still_open_at_the_end_is_not_whole() -> None:
    without_length = training(2)
    ends_with_recording = training(2)
    ends_before = training(2)
    without_length.annotation("ProfilerStep#7", 1410, 0)
    ends_with_recording.annotation("ProfilerStep#7", 1410, 90)
    ends_before.annotation("ProfilerStep#7", 1410, 90)
    for maker in (without_length, ends_with_recording, ends_before):
        maker.call("cudaLaunchKernel", 1420, correlation=77)
        maker.kernel(GEMM, 1430, 10, correlation=77)
    instant(ends_with_recording, "Record Window End", 1500)
    instant(ends_before, "Record Window End", 1501)
    assert iterations_of(without_length).whole.tolist() == [True, True, False]
    assert iterations_of(ends_with_recording).whole.tolist() == [True, True, False]
    assert iterations_of(ends_before).whole.tolist() == [True, True, True]


def test_a_step_recorded_twice_is_one() -> None:
    maker = training(2)
    maker.op("ProfilerStep#5", 1000, 190)  # as old profilers record it
    maker.annotation("ProfilerStep#6", 1201, 150)
    assert iterations_of(maker).number == [5, 6]


def test_a_step_without_length_does_not_hide_another_one() -> None:
    maker = training(1)
    maker.annotation("ProfilerStep#4", 1000, 0)
    iterations = iterations_of(maker)
    assert iterations.number == [4, 5]
    assert iterations.whole.tolist() == [False, True]


def test_numbers_may_repeat_and_be_huge() -> None:
    maker = training(2)
    maker.annotation("ProfilerStep#5", 5000, 100)
    maker.annotation("ProfilerStep#99999999999999999999", 6000, 100)
    maker.annotation(f"ProfilerStep#{'9' * 5000}", 7000, 100)  # too long for a step
    maker.annotation("ProfilerStep*", 8000, 100)
    assert iterations_of(maker).number == [5, 6, 5, 99999999999999999999]


def test_skipped_steps_begin_a_new_run() -> None:
    iterations = iterations_of(training(4, skip_after=2))
    assert iterations.number == [5, 6, 12, 13]
    assert iterations.run.tolist() == [0, 0, 1, 1]
    assert iterations.label(iterations.whole) == "4 between ProfilerStep#5 and #13"
    assert iterations.label(np.zeros(4, dtype=bool)) == ""


def test_steps_of_two_processes_are_counted_separately() -> None:
    maker = TraceMaker()
    for process, first in ((100, 1), (200, 2)):
        maker.process = process
        for step in (1, 2):
            maker.annotation(f"ProfilerStep#{step}", step * 100, 90)
            correlation = first * 10 + step
            maker.call("cudaLaunchKernel", step * 100 + 5, correlation=correlation)
            maker.kernel(GEMM, step * 100 + 50, 10, correlation=correlation)
    iterations = iterations_of(maker)
    assert iterations.number == [1, 2, 1, 2]
    assert iterations.whole_count == 2
    assert sorted(iterations.of_gpu.tolist()) == [0, 1, 2, 3]


def test_a_trace_without_steps_has_no_iterations() -> None:
    iterations = iterations_of(training(2, annotated=False))
    assert len(iterations) == 0
    assert iterations.whole_count == 0
    assert iterations.of_gpu.tolist() == [NONE] * 4


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=6),
    st.lists(st.integers(0, 120), min_size=1, max_size=12),
)
def test_every_launch_belongs_to_the_step_around_it(
    gaps_and_lengths: list[tuple[int, int]], launches: list[int]
) -> None:
    maker = TraceMaker()
    spans = []
    end = 0
    for number, (gap, length) in enumerate(gaps_and_lengths):
        start = end + gap
        end = start + length
        maker.annotation(f"ProfilerStep#{number}", start, length)
        spans.append((start, end))
    for correlation, launched_at in enumerate(launches, start=1):
        maker.call("cudaLaunchKernel", launched_at, correlation=correlation)
        maker.kernel(GEMM, 1000 + correlation, 1, correlation=correlation)
    iterations = iterations_of(maker)
    for launched_at, index in zip(launches, iterations.of_gpu.tolist(), strict=True):
        steps_around = []
        for number, (start, end) in enumerate(spans):
            if start <= launched_at < end:
                steps_around.append(number)
        step = [] if index == NONE else [iterations.number[index]]
        assert step == steps_around


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "whole", "label"),
    [
        ("nvidia/nccl", 3, "ProfilerStep#4 to #6"),
        ("nvidia/training_large", 5, "ProfilerStep#2 to #6"),
        # A second step was opened, and stopped at once.
        ("edge/amd_mi250", 1, "ProfilerStep#1"),
        ("edge/one_triton_kernel", 0, ""),  # the step had not ended with the recording
        ("graphs/vllm_decode_hip_graph", 0, ""),
    ],
)
def test_whole_iterations_of_real_traces(name: str, whole: int, label: str) -> None:
    path = SHARED / "traces" / f"{name}.json.gz"
    iterations: Any = find_iterations(CallTree(read_trace(path)))
    assert iterations.whole_count == whole
    assert iterations.label(iterations.whole) == label
