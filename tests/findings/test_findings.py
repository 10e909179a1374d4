"""Findings of plugins and of our own detectors, their table and their evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.categorize_helpers import FakeEntryPoint, plugin
from tests.support.gap_helpers import TRACES
from tests.support.make_trace import Document, TraceMaker
from tests.support.strategies import traces
from tracelens_ext import TreePerfAnalyzer, hookimpl
from tracelens_ext.cli.app import offered_commands
from tracelens_ext.findings import builtin
from tracelens_ext.findings.engine import find_findings, offered_detectors
from tracelens_ext.findings.finding import Evidence, Finding, Findings, Place
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.summary import findings_table, summary_sentence
from tracelens_ext.hooks import PluginRegistry
from tracelens_ext.hooks.registry import SECONDS_VARIABLE
from tracelens_ext.report.tables.registry import offered_tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


FINDING = Finding(
    id="mine",
    title="Mine takes 5.0 ms",
    saving_ms=5.0,
    share_percent=50.0,
    confidence="high",
    confidence_reason="I know it",
    where={
        "kernels": [Place("k", 5.0, 2)],
        "python_frames": [Place("", 1.5, 1), Place("b", 0.05, 1)],
    },
    evidence=[Evidence("kernels", 2, "GPU events", "gpu_timeline")],
    advice="Do less.",
    documentation="mine.md",
)


def slow_host() -> Document:
    """Kernels of 1 ms, each launched 1 ms after the one before has ended."""
    maker = TraceMaker()
    for at in range(5):
        start = 2000 * at + 1000
        maker.op("aten::mm", start - 900, 910)
        maker.launched("gemm", start, 1000, correlation=at + 1, at=start - 5)
    return maker.document()


def found_by(plugins: PluginRegistry, document: Document | None = None) -> Findings:
    analyzer = TreePerfAnalyzer(document or slow_host())
    return find_findings(
        analyzer.gpu_events,
        lambda: pytest.fail("not asked"),
        analyzer.roofline,
        plugins,
    )


def with_detector(
    detect: Callable[[Inspection], Any], name: str = "mine"
) -> tuple[PluginRegistry, Detector]:
    """Our own detectors, and one of a plugin."""
    detector = Detector(name, detect)

    @hookimpl
    def tracelens_findings() -> list[Detector]:
        return [detector]

    stranger = plugin(tracelens_findings=tracelens_findings)
    found = [
        FakeEntryPoint("builtin", builtin, own=True),
        FakeEntryPoint("stranger", stranger),
    ]
    return PluginRegistry(found), detector


def claim_first_half(inspection: Inspection) -> Finding | None:
    """Claim the first half of every gap."""
    limit = inspection.wall.unclaimed_ns_of_gaps() // 2
    return inspection.finding(
        "mine",
        inspection.wall.claim_idle_up_to(limit),
        title="{saving}",
        advice="",
        confidence="high",
        reason="",
    )


def test_a_plugin_is_asked_before_our_own_detectors() -> None:
    plugins, detector = with_detector(claim_first_half)
    assert offered_detectors(plugins)[0].item is detector
    found = found_by(plugins)
    savings = {each.id: each.attributed_ms for each in found.findings}
    assert savings == {"mine": pytest.approx(2.0), "host-bound": pytest.approx(2.0)}
    assert plugins.problems == []


def test_a_plugin_takes_the_place_of_our_detector_of_the_same_id() -> None:
    plugins, detector = with_detector(lambda _: None, name="host-bound")
    offered = [
        each.item for each in offered_detectors(plugins) if each.item.id == "host-bound"
    ]
    assert offered == [detector]
    assert found_by(plugins).findings == []


def _claim_and_fail(inspection: Inspection) -> None:
    inspection.wall.claim_idle_up_to(inspection.wall.unclaimed_ns_of_gaps())
    inspection.note("never said")
    raise ValueError("no\nluck")


@pytest.mark.parametrize(
    ("detect", "problem"),
    [
        (_claim_and_fail, "ValueError: no luck"),
        (lambda _: 5, "detector 'mine': expected a Finding of this id"),
        (
            lambda _: replace(FINDING, id="other"),
            "detector 'mine': expected a Finding of this id",
        ),
        (
            lambda _: FINDING,
            "detector 'mine': saves 5.000 ms, of which it claimed 0.000 ms",
        ),
        *(
            (
                lambda _, field=field, value=value: replace(FINDING, **{field: value}),
                field,
            )
            for field, value in {
                "saving_ms": float("nan"),
                "share_percent": "much",
                "confidence": "sure",
                "title": None,
                "where": {"kernels": ["k"]},
                "evidence": 3,
                "saving_low_ms": -1.0,
            }.items()
        ),
    ],
)
def test_a_plugin_that_fails_is_a_problem_and_claims_nothing(
    detect: Callable[[Inspection], Any], problem: str
) -> None:
    plugins, _ = with_detector(detect)
    found = found_by(plugins)
    (host_bound,) = found.findings
    assert (host_bound.id, round(host_bound.attributed_ms, 6)) == ("host-bound", 4.0)
    (said,) = plugins.problems
    assert said.startswith("stranger: ")
    assert problem in said


def test_a_plugin_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    monkeypatch.setenv(SECONDS_VARIABLE, "0.1")
    plugins, _ = with_detector(lambda _: time.sleep(0.5))
    assert [each.id for each in found_by(plugins).findings] == ["host-bound"]
    assert "no answer within 0.1 s" in plugins.problems[0]


@pytest.mark.slow
@given(traces())
@settings(deadline=None)
def test_savings_never_exceed_the_wall_time(document: Document) -> None:
    found = TreePerfAnalyzer(document).findings()
    assert found.explained_ms <= found.total_ms * (1 + 1e-9)
    assert found.explained_ms + found.left_ms == pytest.approx(
        found.analyzed_ms, abs=1e-6
    )
    savings = [each.saving_ms for each in found.findings]
    assert savings == sorted(savings, reverse=True)
    assert len({each.id for each in found.findings}) == len(savings)
    assert all(each.informs_only or each.share_percent >= 1 for each in found.findings)


def test_a_busy_trace_has_no_findings() -> None:
    maker = TraceMaker()
    maker.launched("gemm", 100, 900, correlation=1, at=10)
    maker.launched("gemm", 1000, 900, correlation=2, at=20)
    found = TreePerfAnalyzer(maker.document()).findings()
    assert found.findings == []
    assert not found.all_clear  # nothing in it was compared with anything
    assert summary_sentence(found).startswith("No shapes were recorded")
    assert len(findings_table(found)) == 0
    assert findings_table(found)["saving_ms"].dtype == np.float64


def test_a_trace_without_gpu_work_says_so() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    found = TreePerfAnalyzer(maker.document()).findings()
    assert (found.total_ms, found.all_clear, found.recording["wall_ms"]) == (
        0.0,
        False,
        None,
    )
    (line,) = found.recording_lines
    assert line == (
        "The trace contains no GPU work. "
        "If the program uses a GPU, record it with ProfilerActivity.CUDA."
    )
    assert summary_sentence(found) == ""


@pytest.mark.parametrize("launches", [0, 3])
def test_gpu_work_of_a_file_that_is_cut_off_may_be_behind_the_cut(
    tmp_path: Path, launches: int
) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    for number in range(launches):
        maker.call("cudaLaunchKernel", 1 + number, 0.5, correlation=number + 1)
    path = tmp_path / "cut.json"
    path.write_text(
        json.dumps(maker.document()).removesuffix("]}") + ', {"ph": "X", "cat": "ker'
    )
    found = TreePerfAnalyzer(path, allow_truncated=True).findings()
    (line,) = found.recording_lines
    but = "3 launches but " if launches else ""
    assert line.startswith(
        f"The readable part of the file contains {but}no GPU work, which may be in the "
        "lost part. Salvaged "
    )
    assert "the last 23 bytes" in line
    assert line.endswith("everything after it is lost.")


def test_the_table_has_places_and_evidence() -> None:
    (row,) = findings_table(Findings(10.0, [FINDING])).to_dict("records")
    assert (
        row["where"] == "kernels: k 5.0 ms (×2) | python frames: (no name) 1.5 ms (×1)"
    )
    assert row["evidence"] == "kernels: 2 GPU events (gpu_timeline)"
    # The frame has less than a third.
    assert (row["largest_place"], row["see"]) == ("k (100 %)", "gpu_timeline")
    assert np.isnan(row["saving_low_ms"])


def test_findings_are_found_once_for_each_choice_of_peaks() -> None:
    analyzer = TreePerfAnalyzer(slow_host())
    assert analyzer.findings() is analyzer.findings()
    assert analyzer.findings("H100 SXM") is analyzer.findings("H100 SXM")


@cache
def found_in(name: str) -> Findings:
    return TreePerfAnalyzer(TRACES[name], use_kernel_name_categories=True).findings()


@pytest.mark.real_data
@pytest.mark.parametrize("name", sorted(TRACES))
def test_savings_of_real_traces_add_up(name: str) -> None:
    found = found_in(name)
    assert found.explained_ms <= found.total_ms * (1 + 1e-9)
    for finding in found.findings:
        assert 0 <= (finding.saving_low_ms or 0) <= finding.saving_ms * (1 + 1e-9)
        assert all(places for places in finding.where.values())


@pytest.mark.real_data
@pytest.mark.parametrize("name", sorted(TRACES))
def test_all_evidence_names_a_sheet_or_a_command(name: str) -> None:
    """All sheets and commands that the evidence cites exist."""
    known = {offered.item.name for offered in offered_tables()} | set(
        offered_commands()
    )
    assert {
        each.see for finding in found_in(name).findings for each in finding.evidence
    } <= known


def test_findings_are_iterated_and_counted() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    findings = TreePerfAnalyzer(maker.document()).findings()
    assert list(findings) == list(findings.findings)
    assert len(findings) == len(findings.findings)
    assert findings
