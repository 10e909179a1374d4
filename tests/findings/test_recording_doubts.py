"""Doubts about a recording come before any advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Findings
from tracelens_ext.findings.summary import first_sentences

SHARED = Path(__file__).resolve().parents[3] / "shared"


def late_kernels(count: int, length: float, names: int = 1) -> Findings:
    """Kernels that the GPU waits for, as long as each runs."""
    maker = TraceMaker()
    for number in range(count):
        begin = 2 * length * number
        maker.launched(
            f"kernel_{number % names}",
            begin + 10,
            length,
            correlation=number + 1,
            at=begin,
        )
    return TreePerfAnalyzer(maker.document()).findings()


@pytest.mark.too_little
@pytest.mark.parametrize(
    ("count", "length", "names"),
    [
        pytest.param(19, 1_000, 1, id="few events"),
        pytest.param(40, 100, 10, id="little work, no kernel five times"),
    ],
)
def test_a_too_short_recording_replaces_the_advice(
    count: int, length: float, names: int
) -> None:
    findings = late_kernels(count, length, names)
    assert not [each for each in findings.findings if not each.informs_only]
    first = first_sentences(findings)[0]
    assert first.startswith(f"Too little is recorded for advice: {count} GPU events")
    assert "torch.profiler.schedule" in first
    assert any("Largest kernels" in each for each in first_sentences(findings))


@pytest.mark.too_little
@pytest.mark.parametrize(("count", "length"), [(20, 1_000), (40, 100)])
def test_enough_is_analyzed(count: int, length: float) -> None:
    findings = late_kernels(count, length)
    assert [each.id for each in findings.findings][:1] == ["host-bound"]


@pytest.mark.real_data
def test_a_suspect_recording_comes_before_all_else() -> None:
    path = SHARED / "field" / "38_one_malformed_kernel.json"
    findings = TreePerfAnalyzer(path).findings()
    first = first_sentences(findings)[0]
    assert first.startswith("The recording is suspect: 1 of 801 GPU events")
    assert "97.5 % of GPU time" in first
    assert "30 launches have no GPU work" in first
    assert "exposed-communication" not in [each.id for each in findings.findings]
