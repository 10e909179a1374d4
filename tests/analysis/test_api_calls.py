"""Calls of the GPU's runtime and driver, which the first screen shows of native programs."""

from __future__ import annotations

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.operations.api_calls import api_calls
from tracelens_ext.perf_report import build_perf_report


def with_calls(kernel: str) -> TreePerfAnalyzer:
    """Return a trace with one call that allocates memory, and 30 launches of a kernel."""
    maker = TraceMaker()
    maker.call("cudaMalloc", 0, 900)
    for number in range(30):
        begin = 1_000 + 100 * number
        maker.call("cudaLaunchKernel", begin, 5, correlation=number + 1)
        maker.kernel(kernel, begin + 10, 80, correlation=number + 1)
    return TreePerfAnalyzer(maker.document())


def test_calls_are_summed_by_name_the_longest_first() -> None:
    table = api_calls(with_calls("scan").gpu_events)
    assert table["call"].tolist() == ["cudaMalloc", "cudaLaunchKernel"]
    assert table["count"].tolist() == [1, 30]
    assert table["total_time_ms"].tolist() == [0.9, 0.15]
    assert table["% of call time"].sum() == pytest.approx(100.0)


def test_the_first_screen_shows_no_api_calls_of_a_program_with_a_framework() -> None:
    # A trace that PyTorch's profiler recorded is of a program with a framework.
    answers = [answer.sheet for answer in build_perf_report(with_calls("scan")).answers]
    assert "api_calls" not in answers
    table = with_calls("scan").table("api_calls")
    assert table is not None
    assert len(table) == 2
