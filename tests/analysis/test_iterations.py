"""Iterations are the whole `ProfilerStep#N`; GPU work belongs to the one that launched it."""

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


def found(maker: TraceMaker) -> Iterations:
    return find_iterations(CallTree(read_trace(maker.document())))


def instant(maker: TraceMaker, name: str, at: int) -> None:
    maker.add({"ph": "i", "s": "g", "name": name, "pid": "", "tid": "", "ts": at})


def test_each_step_owns_what_it_launched() -> None:
    iterations = found(training(3))
    assert iterations.number == [5, 6, 7]
    assert iterations.of_gpu.tolist() == [0, 0, 1, 1, 2, 2]
    assert iterations.whole.tolist() == [True] * 3
    assert iterations.whole_count == 3
    assert iterations.run.tolist() == [0, 0, 0]
    assert iterations.label(iterations.whole) == "ProfilerStep#5 to #7"


def test_a_gpu_event_runs_long_after_its_step() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    # as the backward pass does
    maker.call("cudaLaunchKernel", 50, correlation=1, thread=2)
    maker.kernel(GEMM, 500, 10, correlation=1)
    iterations = found(maker)
    assert iterations.of_gpu.tolist() == [0]
    assert iterations.whole.tolist() == [True, False], "the second launched nothing"


@pytest.mark.parametrize(
    ("launched_at", "owner"), [(99, NONE), (100, 0), (299, 0), (300, NONE), (301, NONE)]
)
def test_what_is_launched_outside_belongs_to_none(launched_at: int, owner: int) -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 100, 200)
    maker.call("cudaLaunchKernel", launched_at, correlation=1)
    maker.kernel(GEMM, 400, 10, correlation=1)
    maker.kernel("late_to_the_party", 420, 10, correlation=99)
    assert found(maker).of_gpu.tolist() == [owner, NONE]


def test_a_step_still_open_at_the_end_is_not_whole() -> None:
    of_no_length = training(2)
    drawn_out = training(2)
    ended = training(2)
    of_no_length.annotation("ProfilerStep#7", 1410, 0)
    last = drawn_out.annotation("ProfilerStep#7", 1410, 90)
    ended.annotation("ProfilerStep#7", 1410, 90)
    for maker in (of_no_length, drawn_out, ended):
        maker.call("cudaLaunchKernel", 1420, correlation=77)
        maker.kernel(GEMM, 1430, 10, correlation=77)
    instant(drawn_out, "Record Window End", 1500)  # where the annotation ends
    instant(ended, "Record Window End", 1501)
    assert found(of_no_length).whole.tolist() == [True, True, False]
    assert found(drawn_out).whole.tolist() == [True, True, False]
    assert drawn_out.events[last]["dur"] == 90
    assert found(ended).whole.tolist() == [True, True, True]


def test_a_step_recorded_twice_is_one() -> None:
    maker = training(2)
    maker.op("ProfilerStep#5", 1000, 190)  # as old profilers record it
    maker.annotation("ProfilerStep#6", 1201, 150)
    assert found(maker).number == [5, 6]


def test_a_step_of_no_length_hides_no_other() -> None:
    maker = training(1)
    maker.annotation("ProfilerStep#4", 1000, 0)
    iterations = found(maker)
    assert iterations.number == [4, 5]
    assert iterations.whole.tolist() == [False, True]


def test_numbers_may_come_back_and_be_huge() -> None:
    maker = training(2)
    maker.annotation("ProfilerStep#5", 5000, 100)
    maker.annotation("ProfilerStep#99999999999999999999", 6000, 100)
    maker.annotation(f"ProfilerStep#{'9' * 5000}", 7000, 100)  # no number of a step
    maker.annotation("ProfilerStep*", 8000, 100)
    assert found(maker).number == [5, 6, 5, 99999999999999999999]


def test_skipped_steps_begin_a_new_run() -> None:
    iterations = found(training(4, skip_after=2))
    assert iterations.number == [5, 6, 12, 13]
    assert iterations.run.tolist() == [0, 0, 1, 1]
    assert iterations.label(iterations.whole) == "4 between ProfilerStep#5 and #13"
    assert iterations.label(np.zeros(4, dtype=bool)) == ""


def test_two_processes_count_their_steps_apart() -> None:
    maker = TraceMaker()
    for process, first in ((100, 1), (200, 2)):
        maker.process = process
        for step in (1, 2):
            maker.annotation(f"ProfilerStep#{step}", step * 100, 90)
            correlation = first * 10 + step
            maker.call("cudaLaunchKernel", step * 100 + 5, correlation=correlation)
            maker.kernel(GEMM, step * 100 + 50, 10, correlation=correlation)
    iterations = found(maker)
    assert iterations.number == [1, 2, 1, 2]
    assert iterations.whole_count == 2
    assert sorted(iterations.of_gpu.tolist()) == [0, 1, 2, 3]


def test_a_trace_without_steps() -> None:
    iterations = found(training(2, annotated=False))
    assert len(iterations) == 0
    assert iterations.whole_count == 0
    assert iterations.of_gpu.tolist() == [NONE] * 4


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=6),
    st.lists(st.integers(0, 120), min_size=1, max_size=12),
)
def test_every_launch_is_in_the_step_around_it(
    gaps_and_lengths: list[tuple[int, int]], launches: list[int]
) -> None:
    maker = TraceMaker()
    spans = []
    at = 0
    for number, (gap, length) in enumerate(gaps_and_lengths):
        at += gap
        maker.annotation(f"ProfilerStep#{number}", at, length)
        spans.append((at, at + length))
        at += length
    for correlation, launched_at in enumerate(launches, start=1):
        maker.call("cudaLaunchKernel", launched_at, correlation=correlation)
        maker.kernel(GEMM, 1000 + correlation, 1, correlation=correlation)
    iterations = found(maker)
    expected = [
        {
            number
            for number, (start, end) in enumerate(spans)
            if start <= launched_at < end
        }
        for launched_at in launches
    ]
    got = [
        {iterations.number[i]} if i != NONE else set()
        for i in iterations.of_gpu.tolist()
    ]
    assert got == expected


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "whole", "label"),
    [
        ("nvidia/nccl", 3, "ProfilerStep#4 to #6"),
        ("nvidia/training_large", 5, "ProfilerStep#2 to #6"),
        # a second was opened and stopped at once
        ("edge/amd_mi250", 1, "ProfilerStep#1"),
        ("edge/one_triton_kernel", 0, ""),  # still open when the recording ended
        ("graphs/vllm_decode_hip_graph", 0, ""),
    ],
)
def test_real_traces(name: str, whole: int, label: str) -> None:
    path = SHARED / "traces" / f"{name}.json.gz"
    iterations: Any = find_iterations(CallTree(read_trace(path)))
    assert iterations.whole_count == whole
    assert iterations.label(iterations.whole) == label
