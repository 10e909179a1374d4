"""The wall time leads a comparison."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.comparison import Comparison, compare
from tracelens_ext.compare.measurement import measure
from tracelens_ext.compare.report import comparison_report
from tracelens_ext.report.tables.charts import chart_table


def trace_with_gap(gap_us: int, kernel_us: int = 100) -> dict[str, Any]:
    """Return two kernels with a gap between them."""
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.launched("gemm", 60, kernel_us, correlation=1, at=10)
    maker.launched("gemm", 60 + kernel_us + gap_us, kernel_us, correlation=2, at=20)
    return maker.document()


def compared(*documents: dict[str, Any]) -> Comparison:
    analyzers = [
        TreePerfAnalyzer(document, use_kernel_name_categories=True)
        for document in documents
    ]
    return compare([measure(analyzer.gpu_events) for analyzer in analyzers])


def test_shorter_gaps_shorten_the_wall_time_even_if_the_gpu_works_longer() -> None:
    comparison = compared(trace_with_gap(300), trace_with_gap(100, kernel_us=110))
    sentence = str(dict(comparison.facts)["Verdict"])
    assert sentence.startswith(
        "B takes 36.0 % less time than A: wall time 0.500 ms → 0.320 ms (-0.180 ms)."
    )


def test_the_parts_of_the_wall_time_add_up_to_it() -> None:
    report = comparison_report(compared(trace_with_gap(300), trace_with_gap(100)))
    table = report.sheets["wall_time"].set_index("part")
    parts = ["computation", "exposed communication", "exposed copies", "idle"]
    for column in ("A_time_ms", "B_time_ms"):
        assert table.loc[parts, column].sum() == pytest.approx(
            table.loc["wall time", column]
        )


def test_the_chart_of_the_wall_time_has_a_bar_for_each_trace() -> None:
    report = comparison_report(
        compared(trace_with_gap(300), trace_with_gap(100), trace_with_gap(50))
    )
    chart = report.charts[0]
    assert chart.title == "Wall time of each trace"
    drawn = chart_table(report.sheets["wall_time"], chart)
    assert sorted(drawn.index) == ["A", "B", "C"]
    assert set(drawn.columns) == {"computation", "idle"}


def test_equal_traces_take_equally_long() -> None:
    comparison = compared(trace_with_gap(300), trace_with_gap(300))
    sentence = str(dict(comparison.facts)["Verdict"])
    assert sentence.startswith("B takes as long as A: 0.500 ms of wall time.")


def steps_called(name: str, step_us: int) -> dict[str, Any]:
    """Return five annotated steps with a kernel each."""
    maker = TraceMaker()
    for number in range(5):
        start = number * step_us
        maker.annotation(f"{name} {number}", start, step_us - 1)
        maker.launched("gemm", start + 10, 50, correlation=number + 1, at=start + 5)
    return maker.document()


def test_steps_are_compared_by_any_annotation_that_both_traces_have() -> None:
    comparison = compared(
        steps_called("train step", 200), steps_called("train step", 100)
    )
    assert comparison.unit.kind == "iteration"
    assert comparison.unit.counts == [5, 5]
    sentence = str(dict(comparison.facts)["Verdict"])
    assert sentence.startswith("B is 50.0 % faster than A: wall time per iteration")


def test_steps_of_other_names_are_not_compared_with_each_other() -> None:
    comparison = compared(steps_called("train step", 200), steps_called("batch", 100))
    assert comparison.unit.kind != "iteration"
