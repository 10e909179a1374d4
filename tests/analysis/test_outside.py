"""The sentence about the time before and after the GPU's work."""

from __future__ import annotations

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.coverage.outside import time_outside
from tracelens_ext.analysis.coverage.report_tables import recording_lines


def with_work(start: float) -> TraceMaker:
    """Return ten kernels of 1 ms, without gaps from `start` (µs) on."""
    maker = TraceMaker()
    for number in range(10):
        begin = start + 1_000 * number
        maker.launched("gemm", begin, 1_000, correlation=number + 1, at=start - 50)
    return maker


def outside(maker: TraceMaker) -> str:
    return time_outside(TreePerfAnalyzer(maker.document()).gpu_events)


def test_the_call_that_takes_most_of_the_time_before_is_named() -> None:
    maker = with_work(start=20_000)
    maker.call("cudaMalloc", 0, 18_000)
    text = "GPU active for 10.0 ms of 30.0 ms; before it: 20.0 ms, of which cudaMalloc 18.0 ms."
    assert outside(maker) == text
    lines = recording_lines(TreePerfAnalyzer(maker.document()).gpu_events)
    assert lines[0].endswith(text)


def test_the_operation_that_takes_most_of_the_time_after_is_named() -> None:
    maker = with_work(start=100)
    maker.op("save", 10_200, 9_900)
    assert outside(maker) == (
        "GPU active for 10.0 ms of 20.1 ms; after it: 10.0 ms, of which save 9.9 ms."
    )


def test_calls_that_overlap_count_once() -> None:
    maker = with_work(start=20_000)
    maker.call("cudaMalloc", 0, 9_000)
    maker.call("cudaMemcpy", 9_000, 6_000, thread=2)
    maker.call("cudaMemcpy", 9_000, 6_000, thread=3)
    assert outside(maker).endswith("of which cudaMalloc 9.0 ms.")


def test_short_times_before_and_after_are_left_out() -> None:
    assert outside(with_work(start=100)) == ""
