"""Comparisons of random jobs, and parts of a comparison that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.comparison_helpers import training
from tests.support.random_traces import job_shapes, trace_of
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.comparison import compare
from tracelens_ext.compare.report import comparison_report, measured_for_comparison
from tracelens_ext.isolation import DEBUG_VARIABLE

if TYPE_CHECKING:
    from tests.support.make_trace import Document
    from tests.support.random_traces import JobShape
    from tracelens_ext.compare.comparison import Measurement

#: Jobs with events; a trace without any is refused.
JOBS = job_shapes().filter(lambda shape: shape.launches > 0)


def measured(document: Document) -> Measurement:
    analyzer = TreePerfAnalyzer(document, use_kernel_name_categories=True)
    return measured_for_comparison(analyzer)


@given(JOBS, JOBS)
@settings(max_examples=10)
def test_random_jobs_are_compared_and_every_event_is_in_a_row(
    first: JobShape, second: JobShape
) -> None:
    measurements = [measured(trace_of(shape)) for shape in (first, second)]
    if not any(each.events for each in measurements):
        return
    comparison = compare(measurements, total=True)
    report = comparison_report(comparison)
    assert not any("could not be computed" in note for note in report.notes)
    for name in ("categories", "operations", "kernels", "places"):
        table = report.sheets[name]
        for letter, each in zip("AB", measurements, strict=True):
            assert table[f"{letter}_count"].sum() == each.events, name
            assert np.isclose(
                table[f"{letter}_time_ms"].sum() * 1e6, each.total.whole("ns") or 0
            ), name


@pytest.mark.parametrize(
    ("function", "part", "sheet"),
    [
        ("measurement.places", "The table places of the comparison", "places"),
        ("measurement.find_period", "The period of kernel names", ""),
        ("comparison.verdict", "The verdict of the comparison", ""),
        ("report.compare_findings", "The table findings of the comparison", "findings"),
        ("report.place_tree", "The tree of the comparison", ""),
    ],
)
def test_a_part_that_fails_is_left_out_and_named(
    function: str, part: str, sheet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("no such row")

    documents = [training(2).document(), training(3, gemm_us=30).document()]
    whole = comparison_report(compare([measured(document) for document in documents]))
    monkeypatch.delenv(DEBUG_VARIABLE)
    monkeypatch.setattr(f"tracelens_ext.compare.{function}", broken)
    report = comparison_report(compare([measured(document) for document in documents]))
    message = (
        f"{part} could not be computed: IndexError: no such row; please report this"
    )
    assert any(message in note for note in report.notes)
    expected = [name for name in whole.sheets if name != sheet]
    assert list(report.sheets) == expected
    for name in expected:
        if name not in ("verdict", "places"):
            assert report.sheets[name].equals(whole.sheets[name]), name
