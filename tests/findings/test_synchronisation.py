"""The finding about waits names the call, the operation, the copy, and how often that recurs."""

from __future__ import annotations

from tests.support.idle_programs import Program, wait_per_layer
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.trace import NONE


def findings_of(document: dict[str, object]) -> Findings:
    return TreePerfAnalyzer(document).findings()


def evidence(finding: Finding) -> dict[str, float]:
    return {each.what: each.value for each in finding.evidence}


def test_a_wait_in_each_layer_comes_first() -> None:
    findings = findings_of(wait_per_layer().document())
    first = findings.findings[0]
    assert first.id == "synchronization"
    assert first.title.startswith(
        "CPU-GPU synchronization in aten::to, 24 times, every "
    )
    awaited = "(cudaStreamSynchronize for 8-byte copies from pageable memory): "
    assert awaited in first.title
    assert first.where["operations"][0].name == "aten::to"
    numbers = evidence(first)
    assert numbers["calls that waited before the GPU went idle"] == 24
    assert numbers["size of most of these copies"] == 8
    assert "pin them" in first.advice


def test_a_program_without_waits_is_not_told_to_avoid_them() -> None:
    program = Program()
    for _ in range(400):
        program.launch(20, cost=50)
    ids = [finding.id for finding in findings_of(program.maker.document()).findings]
    assert "synchronization" not in ids


def test_idle_time_claimed_here_is_synchronization_in_the_gaps() -> None:
    findings = findings_of(wait_per_layer().document())
    (finding,) = (each for each in findings.findings if each.id == "synchronization")
    by_cause = findings.idle_by_cause_ms.values()
    of_waits = sum(each["synchronization"] for each in by_cause) / len(by_cause)
    assert finding.claim is not None
    assert (finding.claim.intervals.gap != NONE).all()
    assert finding.attributed_ms <= of_waits + 1e-6
