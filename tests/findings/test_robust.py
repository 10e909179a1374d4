"""Small inputs that findings and the simulation once answered wrongly, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.counterfactual_problems import PROBLEMS
from tests.support.counterfactuals import places, read, with_problem
from tracelens_ext import TreePerfAnalyzer

pytestmark = pytest.mark.real_data

SHARED = Path(__file__).resolve().parents[3] / "shared"
ROBUST = sorted((SHARED / "robust").glob("*.json"))
ROUNDING_MS = 1e-6


@pytest.mark.parametrize("path", ROBUST, ids=lambda path: path.stem)
def test_robust_inputs(path: Path) -> None:
    """Each has findings; no moment is attributed twice, and no saving is negative."""
    analyzer = TreePerfAnalyzer(path, use_kernel_name_categories=True)
    findings = analyzer.findings()
    assert findings.explained_ms <= findings.analyzed_ms + ROUNDING_MS
    for finding in findings.findings:
        assert finding.saving_ms >= 0
        assert (finding.saving_together_ms or 0) >= 0
    if len(analyzer.gpu_events):
        simulation = analyzer.simulation()
        assert (simulation.what_if()["saved_ms"] >= 0).all()
        assert len(simulation.critical_path_table)


def of(name: str) -> TreePerfAnalyzer:
    path = SHARED / "robust" / f"{name}.json"
    if not path.exists():
        pytest.skip("the folder of shared data is not there")
    return TreePerfAnalyzer(path, use_kernel_name_categories=True)


def test_blocked_launches_are_counted_on_each_device() -> None:
    found = {each.id: each for each in of("two_gpus_blocked").findings().findings}
    assert found["full-launch-queue"].evidence[0].value == 58


def test_waits_are_kept_though_the_clock_of_the_gpu_is_ahead() -> None:
    simulation = of("gpu_clock_ahead").simulation()
    assert simulation.program.edges["sync"] == 20
    assert simulation.program.contradicted == 0
    assert simulation.error_percent == pytest.approx(0, abs=0.01)


def test_overlapping_copies_of_a_stream_count_once() -> None:
    """Copies of one stream overlap: beside the rest they need the time of their union."""
    (finding,) = of("overlap_on_stream_copies").findings().findings
    assert finding.id == "exposed-copy"
    assert 0 <= finding.saving_ms < finding.attributed_ms


@pytest.mark.parametrize(
    "trace",
    [
        "traces/amd/Falconsai_nsfw_image_detection__1016002.json.gz",
        "traces/nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
    ],
)
def test_a_wait_put_into_a_trace_changes_no_other_saving(trace: str) -> None:
    """The awaited work is unknown, so the simulated wait takes as long as the recorded one."""
    document = read(SHARED / trace)
    before = {
        each.id: each.saving_ms
        for each in TreePerfAnalyzer(document, use_kernel_name_categories=True)
        .findings()
        .findings
    }
    inserted = [place for place in places(document) if not place.after_wait]
    place = inserted[len(inserted) // 2]
    for problem in PROBLEMS["synchronization"]:
        changed = with_problem(document, place, 2_000, problem)
        findings = TreePerfAnalyzer(changed, use_kernel_name_categories=True).findings()
        savings = {each.id: each.saving_ms for each in findings.findings}
        assert findings.model["state"] == "ok"
        assert savings["synchronization"] == pytest.approx(2, rel=0.1)
        assert (
            savings.get("launch-geometry", 0) <= before.get("launch-geometry", 0) + 0.01
        )
