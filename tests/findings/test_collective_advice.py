"""The advice about exposed communication fits the kind of collective, and saves what is exposed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding

SHARED = Path(__file__).resolve().parents[3] / "shared"
MS = 1_000


def exposed(
    kernel: str, collective: str = "", operation: str = "autograd::engine::X"
) -> Finding:
    """Kernels of 1 ms, each followed by a collective that nothing hides."""
    maker = TraceMaker()
    args = {"Collective name": collective} if collective else {}
    for number in range(20):
        start = number * 2 * MS
        maker.op(operation, start - 500, 200)
        maker.launched(
            "gemm", start, 1 * MS, correlation=2 * number + 1, at=start - 400
        )
        maker.call("cudaLaunchKernel", start - 350, 5, correlation=2 * number + 2)
        maker.gpu(
            "kernel",
            kernel,
            start + 1 * MS,
            1 * MS,
            correlation=2 * number + 2,
            stream=20,
            args=args,
        )
    findings = TreePerfAnalyzer(maker.document()).findings().findings
    (found,) = (each for each in findings if each.id == "exposed-communication")
    return found


@pytest.mark.parametrize(
    ("kernel", "collective", "words"),
    [
        ("ncclDevKernel_SendRecv()", "all_to_all", "Exchange the data"),
        ("ncclDevKernel_SendRecv()", "", "stages of the pipeline"),
        ("ncclDevKernel_AllGather_RING_LL()", "", "Start gathering"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", "", "Start gathering"),
        ("ncclDevKernel_Broadcast_RING_LL()", "broadcast", "Send the data once"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "allreduce", "Start collectives"),
    ],
)
def test_advice_is_for_the_kind_of_collective(
    kernel: str, collective: str, words: str
) -> None:
    assert words in exposed(kernel, collective).advice


def test_advice_prefetches_sharded_parameters() -> None:
    gathered = exposed(
        "ncclDevKernel_AllGather_RING_LL()", operation="FSDP::all_gather"
    )
    assert "forward_prefetch=True" in gathered.snippet


@pytest.mark.real_data
@pytest.mark.parametrize("job", ["slow_link-2.4", "slow_link-2.12", "slow_rank-2.4"])
def test_communication_saves_no_more_than_is_exposed(job: str) -> None:
    """The rest of the same kernels belongs to slow links, which come first here."""
    path = SHARED / "ranks" / "generated" / job / "rank3.json.gz"
    findings = TreePerfAnalyzer(path).findings().findings
    found = {finding.id: finding for finding in findings}
    communication = found["exposed-communication"]
    assert communication.saving_ms <= communication.attributed_ms * (1 + 1e-6)
    if job.startswith("slow_link"):
        assert findings[0].id == "slow-link"
