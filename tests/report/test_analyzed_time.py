"""All screens of a trace of which not everything is analyzed agree on busy and idle shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.timeline.timeline import timeline_rows_shown
from tracelens_ext.findings.summary import first_sentences
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.html_headline import _timeline_cards
from tracelens_ext.report.html_timeline import timeline_figure

SHARED = Path(__file__).resolve().parents[3] / "shared"


def mostly_lost() -> TreePerfAnalyzer:
    """Kernels for 2 ms, 50 ms of lost ones, kernels for 2 ms with as much idle time."""
    maker = TraceMaker()
    for number in range(20):
        maker.launched(
            "gemm", 10 + 100 * number, 100, correlation=number + 1, at=number
        )
    for number in range(400):
        maker.call(
            "cudaLaunchKernel", 2_100 + 120 * number, 5, correlation=1_000 + number
        )
    for number in range(20):
        begin = 52_000 + 200 * number
        maker.launched("gemm", begin, 100, correlation=500 + number, at=begin - 10)
    return TreePerfAnalyzer(maker.document())


def timeline(analyzer: TreePerfAnalyzer) -> dict[str, tuple[float, float]]:
    frame = analyzer.get_df_gpu_timeline()
    return {
        kind: (ms, percent)
        for kind, ms, percent in zip(
            frame["type"], frame["time ms"], frame["percent"], strict=True
        )
    }


def test_the_timeline_keeps_its_rows_and_explains_the_difference() -> None:
    analyzer = mostly_lost()
    rows = timeline(analyzer)
    findings = analyzer.findings()
    assert rows["busy_time"][0] == pytest.approx(4.0)
    assert rows["total_time"][0] == pytest.approx(
        rows["busy_time"][0] + rows["idle_time"][0]
    )
    assert rows["analyzed_time"][0] == pytest.approx(findings.analyzed_ms)
    assert rows["not_recorded_time"][0] + rows["analyzed_time"][0] == pytest.approx(
        findings.total_ms
    )
    parts = rows["analyzed_busy_time"][1] + rows["analyzed_idle_time"][1]
    assert parts == pytest.approx(100.0)


def test_cards_figure_sentences_and_first_rows_have_one_base() -> None:
    analyzer = mostly_lost()
    rows = timeline(analyzer)
    busy = rows["analyzed_busy_time"][1]
    frame = analyzer.get_df_gpu_timeline()
    shown = timeline_rows_shown(frame)["type"].tolist()
    assert "idle_time" not in shown
    cards = {card.label: card for card in _timeline_cards(frame)}
    assert cards["GPU busy"].value.startswith(f"{busy:.1f}")
    assert "not recorded" in cards["Not analyzed"].detail
    words = timeline_figure(frame).summary
    assert "not recorded" in words.lower()
    report = build_perf_report(analyzer)
    answer = next(each for each in report.answers if each.sheet == "gpu_timeline")
    assert report.answer_table(answer).iloc[:, 0].tolist() == shown


def test_a_trace_that_is_analyzed_as_a_whole_has_no_further_rows() -> None:
    maker = TraceMaker()
    for number in range(20):
        maker.launched(
            "gemm", 10 + 150 * number, 100, correlation=number + 1, at=150 * number
        )
    rows = timeline(TreePerfAnalyzer(maker.document()))
    assert not [kind for kind in rows if kind.startswith("analyzed")]
    assert "not_recorded_time" not in rows


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "recording/wild/ao_vit_bf16.json.gz",
        "recording/dropped/falconsai_half.json.gz",
        "field/42_user_triton_autotune.json",
        "field/38_one_malformed_kernel.json",
    ],
)
def test_busy_shares_of_shared_traces_agree(name: str) -> None:
    analyzer = TreePerfAnalyzer(SHARED / name)
    rows = timeline(analyzer)
    findings = analyzer.findings()
    assert rows["analyzed_time"][0] == pytest.approx(findings.analyzed_ms, abs=1e-3)
    sentence = next(
        each for each in findings.time_use if each.startswith("The GPU is busy")
    )
    assert f"{rows['analyzed_busy_time'][1]:.1f} %" in sentence
    assert first_sentences(findings)
