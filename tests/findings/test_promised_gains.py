"""What a fix wins lies in the range that the finding promises: jobs before and after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.test_kernels import Kernels, tensor
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
