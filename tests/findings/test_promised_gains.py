"""What a fix wins lies in the range that the finding promises: jobs before and after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.test_kernels import Kernels, tensor
from tests.findings.test_launch_bound import ADD, STEPS, Training
from tests.support.idle_programs import Program
from tests.support.simulated_job import build_demo_trace
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.findings.summary import saving_phrase

SHARED = Path(__file__).resolve().parents[3] / "shared"
GENERATED = SHARED / "ranks" / "generated"
ANNOTATED = SHARED / "formats" / "annotations"
REPLAYED = Path("own") / "step_000000000014" / "000000.4711.pt.trace.json.gz"


def finding_of(findings: Findings, ident: str) -> Finding:
    (found,) = (finding for finding in findings if finding.id == ident)
    return found


def assert_promised(before: Findings, after: Findings, ident: str) -> None:
    finding = finding_of(before, ident)
    gain_ms = before.total_ms - after.total_ms
    low_ms = finding.saving_low_ms
    assert low_ms is not None
    assert low_ms <= gain_ms <= max(finding.saving_ms, finding.saving_high_ms or 0.0)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("before", "after", "ident"),
    [
        pytest.param(
            GENERATED / "slow_link-2.4" / "rank3.json.gz",
            GENERATED / "clean-2.4" / "rank3.json.gz",
            "slow-link",
            id="links of full bandwidth",
        ),
        pytest.param(
            GENERATED / "slow_link-2.12" / "rank7.json.gz",
            GENERATED / "clean-2.12" / "rank7.json.gz",
            "slow-link",
            id="links of full bandwidth, with stages",
        ),
        pytest.param(
            GENERATED / "slow_loader-2.12" / "rank0.json.gz",
            GENERATED / "clean-2.4" / "rank0.json.gz",
            "dataloader",
            id="a data loader as fast as the others",
        ),
        pytest.param(
            ANNOTATED / "eager.json.gz",
            ANNOTATED / REPLAYED,
            "host-bound",
            id="one CUDA graph for each step",
        ),
    ],
)
def test_the_gain_of_a_known_change_is_promised(
    before: Path, after: Path, ident: str
) -> None:
    assert_promised(
        TreePerfAnalyzer(before).findings(), TreePerfAnalyzer(after).findings(), ident
    )


def test_the_gain_of_a_fixed_data_loader_is_promised() -> None:
    before = TreePerfAnalyzer(build_demo_trace(steps=2, problems={"dataloader": 30.0}))
    after = TreePerfAnalyzer(build_demo_trace(steps=2, problems={"dataloader": 4.0}))
    assert_promised(before.findings(), after.findings(), "dataloader")


def with_waits(*, waits: bool) -> Program:
    """Layers whose CPU is faster than the GPU, but for a wait in each of them."""
    program = Program()
    for _ in range(12):
        if waits:
            program.copy_and_wait()
        for length in [12] * 40 + [200] * 40:
            program.launch(length, cost=50)
    return program


def with_optimizer(*, launches: int) -> Program:
    """A training loop of a busy GPU, with some launches in each step of the optimizer."""
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        for _ in range(60):
            program.launch(300, cost=20)
        step = program.cpu
        for _ in range(launches):
            program.launch(6, cost=20, name=ADD, op="aten::add_")
        program.maker.annotation("Optimizer.step#AdamW.step", step, program.cpu - step)
        program.step(number, begin)
    return program


def with_loader(*, us: float) -> Program:
    """A training loop that waits for each batch, after it has read the loss."""
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        program.maker.annotation(name, begin, us)
        program.pause(us)
        for _ in range(50):
            program.launch(300, cost=20)
        program.item()
        program.step(number, begin)
    return program


def with_zero_gradients(*, fills: int) -> Program:
    """A training loop that is too slow on the CPU, with some fills in each zero_grad()."""
    program = Training()
    for number in range(STEPS):
        begin = program.cpu
        for _ in range(fills):
            program.launch(3, cost=15, name="FillFunctor<float>", op="aten::zero_")
        name = "Optimizer.zero_grad#AdamW.zero_grad"
        program.maker.annotation(name, begin, program.cpu - begin)
        program.forward(60)
        program.backward(60)
        program.step(number, begin)
    return program


def with_phases(*, us: float) -> Program:
    """Bursts of GPU work, between which the CPU does something else."""
    program = Program()
    for _ in range(6):
        for _ in range(30):
            program.launch(500, cost=20)
        program.cpu = max(program.cpu, program.gpu)
        program.pause(us, "evaluate.py(3): log")
    program.launch(500, cost=20)
    return program


@pytest.mark.parametrize(
    ("before", "after", "ident"),
    [
        (with_waits(waits=True), with_waits(waits=False), "synchronization"),
        (
            with_optimizer(launches=200),
            with_optimizer(launches=4),
            "unfused-optimizer",
        ),
        (with_loader(us=10_000), with_loader(us=1_000), "dataloader"),
        (
            with_zero_gradients(fills=100),
            with_zero_gradients(fills=0),
            "zero-gradients",
        ),
        (with_phases(us=20_000), with_phases(us=0), "host-bound"),
    ],
)
def test_the_gain_in_a_simulated_program_is_promised(
    before: Program, after: Program, ident: str
) -> None:
    findings_before = TreePerfAnalyzer(before.maker.document()).findings()
    findings_after = TreePerfAnalyzer(after.maker.document()).findings()
    assert_promised(findings_before, findings_after, ident)


def test_a_saving_that_rests_on_an_assumed_speed_is_a_range() -> None:
    kernels = Kernels().rest()
    for _ in range(10):
        kernels.run(
            "aten::_flash_attention_forward",
            300,
            tensor(16, 512, 16, 64),
            kernel="flash_fwd_kernel",
        )
    finding = finding_of(kernels.findings(), "flash-attention-2")
    assert finding.saving_ms == pytest.approx(1.0)
    assert finding.saving_low_ms == pytest.approx(0.5)
    assert finding.saving_high_ms == pytest.approx(1.5)
    assert saving_phrase(finding).startswith("saves 0.5 to 1.5 ms ")
