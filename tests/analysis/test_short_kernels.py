"""Short kernels: where launch overhead may cost more than the work."""

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


def work_of(maker: TraceMaker) -> GpuEvents:
    return TreePerfAnalyzer(maker.document()).work


def trace() -> TraceMaker:
    """Kernels of 2, 4, 6, 10 and 50 µs; a copy of 1 µs, which is no kernel."""
    maker = TraceMaker()
    shapes = {
        "Input Dims": [[4, 3], []],
        "Input Strides": [[3, 1], []],
        "Concrete Inputs": ["", "1"],
    }
    for number, (op, args, duration) in enumerate(
        [
            ("aten::add", shapes, 2),
            ("aten::add", shapes, 4),
            ("aten::add", {}, 6),
            ("aten::add", shapes, 50),
        ],
        start=1,
    ):
        maker.op(op, 10 * number, 5, args=args)
        maker.launched(
            "k", 100 * number, duration, correlation=number, at=10 * number + 1
        )
    maker.launched("k", 600, 10, correlation=10, at=90)
    maker.gpu("gpu_memcpy", "Memcpy", 700, 1)
    maker.kernel("lost", 800, 3)
    return maker


def test_histogram() -> None:
    frame = short_kernel_histogram(work_of(trace()), short_kernel_histogram_bins=4)
    assert list(frame.columns) == ["bin_start", "bin_end", "count"]
    assert frame["bin_start"].tolist() == [2, 3, 4, 5]
    assert frame["bin_end"].tolist() == [3, 4, 5, 6]
    assert frame["count"].tolist() == [1, 1, 1, 1]


def test_a_kernel_of_the_threshold_is_not_short() -> None:
    for threshold, count in ((10, 4), (10.001, 5), (1000, 6), (2, 0), (2.5, 1)):
        frame = short_kernel_histogram(
            work_of(trace()), short_kernel_threshold_us=threshold
        )
        assert frame["count"].sum() == count


def test_no_short_kernels() -> None:
    work = work_of(trace())
    histogram = short_kernel_histogram(work, short_kernel_threshold_us=1)
    assert list(histogram.columns) == ["bin_start", "bin_end", "count"]
    assert histogram.empty
    assert short_kernels_summary(work, 1).empty
    maker = TraceMaker()
    maker.op("no GPU at all", 0, 1)
    assert short_kernels_summary(work_of(maker), 10).empty
    assert short_kernel_histogram(work_of(maker)).empty


def test_summary() -> None:
    work = work_of(trace())
    frame = short_kernels_summary(work, 10)
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
    six, three = (100 * ns / total_time_ns(work) for ns in (6000, 3000))
    shapes = ("((4, 3), ())", "((3, 1), ())", "('', '1')")
    assert list(frame.itertuples(index=False, name=None)) == [
        ("aten::add", *shapes, "k", 6, 2, 3, six),
        ("aten::add", "", "", "", "k", 6, 1, 6, six),
        ("", "", "", "", "lost", 3, 1, 3, three),
    ]


@pytest.mark.parametrize(("topk", "rows"), [(None, 3), (2, 2), (1, 1), (0, 0), (99, 3)])
def test_the_longest_only(topk: int | None, rows: int) -> None:
    frame = short_kernels_summary(work_of(trace()), 10, topk)
    whole = short_kernels_summary(work_of(trace()), 10)
    assert frame.equals(whole.head(rows))


@pytest.mark.parametrize(
    ("dims", "shown"),
    [
        ([], "()"),
        ([[1], [[2, 3], [4]]], "((1,), ((2, 3), (4,)))"),
        ([1.5, None, True, "é"], "(1.5, None, True, 'é')"),
        ("text", "'text'"),
    ],
)
def test_how_arguments_are_shown(dims: Any, shown: str) -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5, args={"Input Dims": dims})
    maker.launched("k", 10, 1, correlation=1, at=1)
    assert short_kernels_summary(work_of(maker), 10)["Input dims"].tolist() == [shown]


def test_equal_arguments_are_one_row_however_they_are_spaced() -> None:
    """The text of an argument depends on who wrote the file, and on its event being usual."""
    maker = TraceMaker()
    for number in (1, 2, 3):
        args = {"Input Dims": [[4, 3]]}
        maker.op("aten::add", 10 * number, 5, args=args)
        maker.launched("k", 100 * number, 2, correlation=number, at=10 * number + 1)
    text = json.dumps(maker.document())
    assert text.count("[[4, 3]]") == 3
    text = text.replace("[[4, 3]]", "[[4,3]]", 1).replace("[[4, 3]]", "[ [4, 3]]", 1)
    work = TreePerfAnalyzer(io.BytesIO(text.encode())).work
    frame = short_kernels_summary(work, 10)
    assert frame[["Input dims", COUNT]].values.tolist() == [["((4, 3),)", 3]]
