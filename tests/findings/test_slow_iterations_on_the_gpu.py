"""Slow iterations are found by the GPU time of their work, where the CPU runs ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.idle_programs import Program
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding

SHARED = Path(__file__).resolve().parents[3] / "shared"


def slow_iterations(program: Program) -> Finding | None:
    findings = TreePerfAnalyzer(program.maker.document()).findings().findings
    return next((each for each in findings if each.id == "slow-iterations"), None)


def steps(
    kernels: dict[int, int], lengths: dict[int, float], *, cost: float = 10
) -> Program:
    """Eight steps of 100 kernels of 50 µs, but for some steps. The CPU never waits."""
    program = Program()
    for step in range(8):
        begin = program.cpu
        for _ in range(kernels.get(step, 100)):
            program.launch(lengths.get(step, 50), cost=cost)
        program.maker.annotation(f"ProfilerStep#{step}", begin, program.cpu - begin)
    return program


def test_a_step_whose_kernels_take_longer_is_slow() -> None:
    finding = slow_iterations(steps({}, {3: 250}))
    assert finding is not None
    assert finding.title.startswith("1 of 8 iterations slow (ProfilerStep#3)")
    assert finding.attributed_ms == pytest.approx(20.0, rel=0.05)
    assert finding.saving_ms == pytest.approx(20.0, rel=0.05)
    assert finding.where["iterations"][0].name == "ProfilerStep#3"


def test_equal_steps_are_not_slow() -> None:
    assert slow_iterations(steps({}, {})) is None


def test_without_a_step_its_extra_launches_are_saved() -> None:
    """The CPU limits here: 400 launches more cost it 24 ms, and the GPU 4."""
    finding = slow_iterations(steps({4: 500}, dict.fromkeys(range(8), 10), cost=60))
    assert finding is not None
    assert finding.saving_ms > 15


@pytest.mark.real_data
def test_one_slow_step_of_a_shared_trace() -> None:
    path = SHARED / "field" / "46b_one_slow_step_ahead.json"
    first = TreePerfAnalyzer(path).findings().findings[0]
    assert first.id == "slow-iterations"
    assert first.saving_ms == pytest.approx(9.0, rel=0.02)
