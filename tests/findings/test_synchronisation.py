"""The finding about waits names the call, the operation, the copy, and how often that recurs."""

from __future__ import annotations

import pytest

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


def test_a_program_without_waits_has_no_finding_of_waits() -> None:
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


def first_of(program: Program, ident: str = "synchronization") -> Finding:
    findings = findings_of(program.maker.document()).findings
    (found,) = (finding for finding in findings if finding.id == ident)
    return found


def read(program: Program, *, op: str = "", size: int = 4) -> None:
    """Copy a value to the CPU, and wait for that."""
    correlation = len(program.maker.events) + 1
    begin = program.cpu
    start = max(program.gpu + 1, begin + 10)
    program.maker.gpu(
        "gpu_memcpy",
        "Memcpy DtoH (Device -> Pageable)",
        start,
        2,
        correlation=correlation,
        args={"bytes": size},
    )
    program.gpu = start + 2
    length = program.gpu + 5 - begin
    program.maker.call("cudaMemcpy", begin, length, correlation=correlation)
    if op:
        program.maker.op(op, begin - 1, length + 2)
    program.cpu = begin + length + 5


def test_waits_that_no_operation_needs_are_calls_of_the_program() -> None:
    program = Program()
    for _ in range(30):
        for _ in range(5):
            program.launch(300, cost=20)
        begin = program.cpu
        program.maker.call("cudaDeviceSynchronize", begin, program.gpu + 5 - begin)
        program.cpu = program.gpu + 60
    assert first_of(program).advice.startswith("Stop calling torch.cuda.synchronize()")


def test_values_that_operations_read_are_no_calls_of_the_program() -> None:
    program = Program()
    for _ in range(30):
        for _ in range(5):
            program.launch(300, cost=20)
        read(program, op="aten::item")
        program.cpu += 50
    assert first_of(program).advice.startswith("Avoid reading GPU values in the loop")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("mul_mat_q<ggml_type>", "Read these values less often"),
        ("void Kokkos::parallel_for", "fence once"),
    ],
)
def test_advice_reads_values_of_a_native_program_less_often(
    kernel: str, words: str
) -> None:
    program = Program()
    for _ in range(30):
        for _ in range(5):
            program.launch(300, cost=20, op="", name=kernel)
        read(program)
        program.cpu += 50
    assert words in first_of(program).advice
