"""Short kernels, whose launch may take longer than their work: histogram and summary."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.kernels.short_kernels import (
    short_kernel_histogram,
    short_kernels_summary,
)
from tracelens_ext.analysis.timeline.timeline import total_time_ns

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents

SUM = "Short Kernel duration (µs) sum"
COUNT = "Short Kernel count"
MEAN = "Short Kernel duration (µs) mean"
SHARE = "Short Kernel duration (µs) percent of total time"


def gpu_events_of(maker: TraceMaker) -> GpuEvents:
    return TreePerfAnalyzer(maker.document()).gpu_events


def trace() -> TraceMaker:
    """Make a trace with kernels of 2, 3, 4, 6, 10 and 50 µs, and a copy of 1 µs."""
    maker = TraceMaker()
    shapes = {
        "Input Dims": [[4, 3], []],
        "Input Strides": [[3, 1], []],
        "Concrete Inputs": ["", "1"],
    }
    operations = [(shapes, 2), (shapes, 4), ({}, 6), (shapes, 50)]
    for number, (args, duration) in enumerate(operations, start=1):
        maker.op("aten::add", 10 * number, 5, args=args)
        maker.launched(
            "k", 100 * number, duration, correlation=number, at=10 * number + 1
        )
    maker.launched("k", 600, 10, correlation=10, at=90)
    maker.gpu("gpu_memcpy", "Memcpy", 700, 1)
    maker.kernel("lost", 800, 3)
    return maker


def test_the_histogram_has_bins_of_equal_width() -> None:
    frame = short_kernel_histogram(
        gpu_events_of(trace()), short_kernel_histogram_bins=4
    )
    assert list(frame.columns) == ["bin_start", "bin_end", "count"]
    assert frame["bin_start"].tolist() == [2, 3, 4, 5]
    assert frame["bin_end"].tolist() == [3, 4, 5, 6]
    assert frame["count"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("threshold", "count"), [(10, 4), (10.001, 5), (1000, 6), (2, 0), (2.5, 1)]
)
def test_a_kernel_as_long_as_the_threshold_is_not_short(
    threshold: float, count: int
) -> None:
    frame = short_kernel_histogram(
        gpu_events_of(trace()), short_kernel_threshold_us=threshold
    )
    assert frame["count"].sum() == count


def test_tables_without_short_kernels_are_empty() -> None:
    gpu_events = gpu_events_of(trace())
    histogram = short_kernel_histogram(gpu_events, short_kernel_threshold_us=1)
    assert list(histogram.columns) == ["bin_start", "bin_end", "count"]
    assert histogram.empty
    assert short_kernels_summary(gpu_events, 1).empty


def test_tables_of_a_trace_without_gpu_events_are_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 1)
    assert short_kernels_summary(gpu_events_of(maker), 10).empty
    assert short_kernel_histogram(gpu_events_of(maker)).empty


def test_the_summary_groups_by_operation_arguments_and_name() -> None:
    gpu_events = gpu_events_of(trace())
    frame = short_kernels_summary(gpu_events, 10)
    assert list(frame.columns) == [
        "Parent cpu_op",
        "Input dims",
        "Input strides",
        "Concrete Inputs",
        "Kernel name",
        SUM,
        COUNT,
        MEAN,
        SHARE,
    ]
    total_us = total_time_ns(gpu_events) / 1000
    share_of_6_us = 100 * 6 / total_us
    share_of_3_us = 100 * 3 / total_us
    shapes = ("((4, 3), ())", "((3, 1), ())", "('', '1')")
    assert list(frame.itertuples(index=False, name=None)) == [
        ("aten::add", *shapes, "k", 6, 2, 3, pytest.approx(share_of_6_us)),
        ("aten::add", "", "", "", "k", 6, 1, 6, pytest.approx(share_of_6_us)),
        ("", "", "", "", "lost", 3, 1, 3, pytest.approx(share_of_3_us)),
    ]


@pytest.mark.parametrize(("topk", "rows"), [(None, 3), (2, 2), (1, 1), (0, 0), (99, 3)])
def test_topk_keeps_the_rows_with_the_longest_total(
    topk: int | None, rows: int
) -> None:
    longest_rows = short_kernels_summary(gpu_events_of(trace()), 10, topk)
    all_rows = short_kernels_summary(gpu_events_of(trace()), 10)
    assert longest_rows.equals(all_rows.head(rows))


@pytest.mark.parametrize(
    ("dims", "shown"),
    [
        ([], "()"),
        ([[1], [[2, 3], [4]]], "((1,), ((2, 3), (4,)))"),
        ([1.5, None, True, "é"], "(1.5, None, True, 'é')"),
        ("text", "'text'"),
    ],
)
def test_arguments_are_shown_as_python_writes_them(dims: Any, shown: str) -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5, args={"Input Dims": dims})
    maker.launched("k", 10, 1, correlation=1, at=1)
    assert short_kernels_summary(gpu_events_of(maker), 10)["Input dims"].tolist() == [
        shown
    ]


def test_equal_arguments_with_different_spaces_are_one_row() -> None:
    """The text of an argument depends on the program that wrote the file."""
    maker = TraceMaker()
    for number in (1, 2, 3):
        args = {"Input Dims": [[4, 3]]}
        maker.op("aten::add", 10 * number, 5, args=args)
        maker.launched("k", 100 * number, 2, correlation=number, at=10 * number + 1)
    text = json.dumps(maker.document())
    assert text.count("[[4, 3]]") == 3
    text = text.replace("[[4, 3]]", "[[4,3]]", 1).replace("[[4, 3]]", "[ [4, 3]]", 1)
    gpu_events = TreePerfAnalyzer(io.BytesIO(text.encode())).gpu_events
    frame = short_kernels_summary(gpu_events, 10)
    assert frame[["Input dims", COUNT]].values.tolist() == [["((4, 3),)", 3]]
