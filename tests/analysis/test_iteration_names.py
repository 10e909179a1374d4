"""Ranges that are suggested as iterations: they launch GPU work evenly, outermost first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.iterations.candidates import likely_iterations

SHARED = Path(__file__).resolve().parents[3] / "shared"


def launches(maker: TraceMaker, start: int, count: int, thread: int = 1) -> None:
    """Add launches with their kernels, one per microsecond."""
    for time in range(start, start + count):
        correlation = len(maker.events) + 1
        maker.call(
            "cudaLaunchKernel", time, 0.5, correlation=correlation, thread=thread
        )
        maker.kernel("k", time + 3, 0.5, correlation=correlation)


def suggested(maker: TraceMaker, most: int = 5) -> list[str]:
    """Return the suggested expressions for a trace."""
    return likely_iterations(TreePerfAnalyzer(maker.document()).tree, most)


def steps(count: int = 4) -> TraceMaker:
    """Return steps of 100 µs with a forward pass of 10 launches, 10 launches, and empty ranges."""
    maker = TraceMaker()
    for number in range(count):
        start = 100 * number
        maker.annotation(f"step {number} (train)", start, 90)
        maker.annotation("forward", start + 5, 30)
        launches(maker, start + 10, 10)
        launches(maker, start + 50, 10)
        for call in range(9):
            maker.annotation("ncclSend", start + 70 + call, 0.5)
    return maker


def test_names_that_differ_only_in_numbers_are_one_suggestion() -> None:
    assert suggested(steps()) == [r"^step [0-9]+ \(train\)$", "^forward$"]
    assert suggested(steps(), most=1) == [r"^step [0-9]+ \(train\)$"]


def test_ranges_without_launches_are_left_out() -> None:
    maker = TraceMaker()
    maker.annotation("ncclSend", 500, 1)
    launches(maker, 0, 3)
    assert suggested(maker) == []
    for maker in (TraceMaker(), TraceMaker()):
        maker.kernel("unlinked", 0, 10)
        assert suggested(maker) == []
        maker.annotation("nothing in it", 0, 10)
        assert suggested(maker) == []


def test_of_two_ranges_around_the_same_work_the_outer_one_comes_first() -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.annotation("inner", 100 * number + 5, 30)
        maker.annotation("outer", 100 * number, 50)
        launches(maker, 100 * number + 10, 6)
    assert suggested(maker) == ["^outer$", "^inner$"]


def test_ranges_with_even_work_come_before_uneven_and_single_ones() -> None:
    maker = TraceMaker()
    maker.annotation("everything", 0, 1000)
    for number, uneven_count in enumerate((1, 2, 3, 26)):
        maker.annotation("even", 100 * number + 10, 30)
        maker.annotation("uneven", 100 * number + 50, 40)
        launches(maker, 100 * number + 11, 8)
        launches(maker, 100 * number + 51, uneven_count)
    assert suggested(maker) == ["^everything$", "^even$", "^uneven$"]
    maker.annotation("even", 990, 1)
    only = [name for name in suggested(maker) if name != "^everything$"]
    assert only == ["^even$", "^uneven$"]


def test_ranges_on_threads_that_launch_nothing_do_not_count() -> None:
    maker = steps()
    for number in range(4):
        maker.annotation("load", 100 * number, 95, thread=9)
    assert "^load$" not in suggested(maker)


def test_launches_of_another_thread_count() -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.annotation("backward", 100 * number, 50)
        launches(maker, 100 * number + 10, 8, thread=2)
        launches(maker, 100 * number + 60, 1)
    assert suggested(maker) == ["^backward$"]


def test_ops_are_suggested_only_if_no_annotation_is_likelier() -> None:
    maker = TraceMaker()
    for number in range(3):
        maker.op(f"block {number}", 100 * number, 50)
        maker.op("inside", 100 * number + 5, 40)
        launches(maker, 100 * number + 10, 8)
        maker.op("aten::mm", 100 * number + 60, 10)
        launches(maker, 100 * number + 61, 2)
    assert suggested(maker) == ["^block [0-9]+$"]
    for number in range(3):
        maker.annotation("step", 100 * number - 1, 90)
    assert suggested(maker) == ["^step$"]


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4))
def test_each_name_is_matched_by_an_expression(names: list[str]) -> None:
    maker = TraceMaker()
    for number, name in enumerate(names):
        maker.annotation(name, 100 * number, 50)
        launches(maker, 100 * number + 10, 5)
    analyzer = TreePerfAnalyzer(maker.document())
    expressions = likely_iterations(analyzer.tree, 9)
    names_in_tree = {analyzer.trace.name_of(row) for row in analyzer.tree.rows.tolist()}
    for name in names_in_tree - {"cudaLaunchKernel"}:
        is_matched = any(re.search(expression, name) for expression in expressions)
        assert is_matched, (name, expressions)


@pytest.mark.real_data
def test_iterations_of_a_real_trace_without_steps_are_found() -> None:
    path = SHARED / "nsys" / "two_gpu_training.sqlite"
    analyzer = TreePerfAnalyzer(path)
    (name,) = likely_iterations(analyzer.tree, 5)
    assert "FSDP::pre_forward" in name
    assert analyzer.get_df_iterations(name)["whole"].all()
