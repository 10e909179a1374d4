"""What the detectors of idle time, optimizers, iterations and communication claim, on small traces.

A kernel of 10 ms stands for the rest of the trace, so that findings are large enough to be listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import TraceMaker
from tests.support.nsys_export_maker import ExportMaker
from tests.support.nsys_export_maker import read as read_export
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding

MS = 1_000


def findings_of(maker: TraceMaker) -> dict[str, Finding]:
    findings = TreePerfAnalyzer(maker.document()).findings()
    assert findings.explained_ms <= findings.total_ms * (1 + 1e-9)
    return {finding.id: finding for finding in findings.findings}


def savings(maker: TraceMaker) -> dict[str, float]:
    return {
        name: round(finding.attributed_ms, 6)
        for name, finding in findings_of(maker).items()
    }


def idle_for(start: int, end: int) -> TraceMaker:
    """A kernel that ends at `start`, and one that starts at `end`, launched 10 µs before (µs)."""
    maker = TraceMaker()
    maker.launched("first", start - 10 * MS, 10 * MS, correlation=1, at=start - 11 * MS)
    maker.launched("second", end, 10 * MS, correlation=2, at=end - 10)
    return maker


def test_nothing_is_found_where_the_gpu_only_computes() -> None:
    maker = TraceMaker()
    maker.launched("first", 100, 10 * MS, correlation=1, at=10)
    maker.launched("second", 100 + 10 * MS, 10 * MS, correlation=2, at=30)
    assert savings(maker) == {}


def test_a_data_loader_claims_the_idle_time_within_it() -> None:
    """The rest of the gap is the host's; the `item` of the loader is no synchronization."""
    maker = idle_for(20 * MS, 30 * MS)
    maker.annotation(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 15 * MS, 12 * MS
    )
    maker.op("aten::item", 16 * MS, 1 * MS)
    maker.frame("transforms.py(12): zoom_shift", 15 * MS + 1, 12 * MS - 2)
    maker.frame("<built-in function interpolate>", 15 * MS + 2, 12 * MS - 4)
    found = findings_of(maker)
    assert found["dataloader"].attributed_ms == pytest.approx(7)
    assert found["host-bound"].attributed_ms == pytest.approx(3)
    assert (
        found["dataloader"].where["python_frames"][0].name
        == "transforms.py(12): zoom_shift"
    )
    assert "num_workers" in found["dataloader"].snippet
    assert found["dataloader"].share_percent == pytest.approx(100 * 7 / 30)


def test_several_allocations_share_a_gap() -> None:
    maker = idle_for(20 * MS, 30 * MS)
    for start in (21 * MS, 24 * MS):
        maker.call("cudaMalloc", start, 2 * MS)
    maker.call("cudaFree", 27 * MS, 1 * MS)
    maker.call("cudaMallocAsync", 12 * MS, 3 * MS)  # under a busy GPU: costs nothing
    assert savings(maker) == {"allocator": 5.0, "host-bound": 5.0}


def test_a_wait_claims_no_more_of_the_next_cpu_phase_than_its_duration() -> None:
    """Without the wait of 4 ms the phase of 10 ms would have begun 4 ms earlier."""
    maker = idle_for(20 * MS, 30 * MS)
    maker.frame("train.py(40): step", 10 * MS, 20 * MS)
    maker.op("aten::item", 16 * MS, 4 * MS + 20)
    maker.call("cudaStreamSynchronize", 16 * MS + 10, 4 * MS)
    found = findings_of(maker)
    assert found["synchronization"].attributed_ms == pytest.approx(4, rel=0.01)
    assert found["host-bound"].attributed_ms == pytest.approx(6, rel=0.01)


def test_a_data_loader_does_not_claim_idle_time_of_another_thread() -> None:
    maker = idle_for(20 * MS, 30 * MS)
    maker.process = 100
    maker.thread = 2
    maker.annotation(
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        15 * MS,
        12 * MS,
    )
    assert savings(maker) == {"host-bound": 10.0}


def test_only_exposed_copies_and_collectives_are_findings() -> None:
    maker = TraceMaker()
    maker.launched("compute", 10 * MS, 10 * MS, correlation=1, at=9 * MS)
    for number, (category, name, start, duration) in enumerate(
        [
            ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 15 * MS, 6 * MS),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32", 19 * MS, 5 * MS),
            ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 24 * MS, 3 * MS),
        ]
    ):
        maker.call(
            "cudaMemcpyAsync", 9 * MS + 100 * number + 50, 10, correlation=2 + number
        )
        maker.gpu(
            category, name, start, duration, correlation=2 + number, stream=20 + number
        )
    found = savings(maker)
    assert found["exposed-communication"] == 4.0  # from 20 to 24 ms
    assert "exposed-copy" not in found  # its last millisecond is under the collective


@pytest.mark.parametrize(
    ("copied", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", {"pageable-copies": 10.0}),
        ("Memcpy HtoD (Pinned -> Device)", {"exposed-copy": 10.0}),
        (
            "Memcpy DtoH (Device -> Pageable)",
            {"pageable-copies": 3.0, "synchronization": 6.0, "host-bound": 1.0},
        ),
    ],
)
def test_the_finding_that_gets_the_wait_for_a_copy(
    copied: str, expected: dict[str, float]
) -> None:
    """That of a batch goes with pinned memory; values are waited for wherever they arrive."""
    maker = idle_for(20 * MS, 30 * MS)
    maker.call("cudaMemcpyAsync", 20 * MS, 9 * MS, correlation=3)
    maker.gpu("gpu_memcpy", copied, 24 * MS, 3 * MS, correlation=3)
    assert savings(maker) == expected


@pytest.mark.parametrize("call", ["", "cudaMalloc"])
def test_a_stream_that_was_told_to_wait_does_not_explain_an_idle_device(
    call: str,
) -> None:
    """What it waits for is done. The CPU has the gap only if it is seen to work in it."""
    maker = TraceMaker()
    # The first ten waits of a trace may be for work before it.
    for number in range(10):
        maker.launched(
            "earlier", number * 10 - 100, 10, correlation=10 + number, at=-900
        )
    maker.launched("first", 0, 10 * MS, correlation=1, at=-100)
    maker.call("cudaStreamWaitEvent", 5 * MS, 5)
    maker.launched("second", 20 * MS, 10 * MS, correlation=2, at=5 * MS + 10)
    if call:
        for start in (11 * MS, 15 * MS):  # a longer one would be warm-up
            maker.call(call, start, 4 * MS)
    expected = {"allocator": 8.0, "host-bound": 2.0} if call else {}
    assert savings(maker) == expected


def optimizer(names: list[str], count: int) -> TraceMaker:
    maker = TraceMaker()
    maker.launched("model", 1 * MS, 10 * MS, correlation=1, at=500)
    maker.annotation("Optimizer.step#AdamW.step", 12 * MS, count * 100 + 50)
    for i in range(count):
        at = 12 * MS + i * 100
        maker.launched(
            names[i % len(names)], at + 50, 10, correlation=2 + i, at=at + 40
        )
    return maker


def test_an_optimizer_with_a_kernel_for_each_parameter() -> None:
    """The finding has its idle time and the time of its kernels beyond a fused step."""
    found = findings_of(optimizer(["void vectorized_elementwise_kernel<4>(int)"], 40))
    finding = found["unfused-optimizer"]
    # The host is inside the step from 12 ms to the last kernel: 40 gaps of 90 µs, less 40 before
    # the first launch, and 65 % of what each kernel takes beyond 2.5 µs.
    assert finding.attributed_ms == pytest.approx(
        3.55 + 40 * (10 - 0.35 * 7.5) / 1000, abs=0.02
    )
    assert finding.snippet == "torch.optim.AdamW(model.parameters(), fused=True)"
    assert "host-bound" in found  # idle time before the step


def test_an_optimizer_of_few_kernels_is_no_finding() -> None:
    names = ["void multi_tensor_apply_kernel<Adam>(int)"]
    assert "unfused-optimizer" not in savings(optimizer(names, 40))
    assert "unfused-optimizer" not in savings(optimizer(["elementwise"], 10))


def zero_grad(fills: int, name: str) -> TraceMaker:
    """Gradients are filled in 10 ms, while nothing else runs."""
    maker = idle_for(20 * MS, 30 * MS)
    maker.annotation("Optimizer.zero_grad#SGD.zero_grad", 20 * MS, 9 * MS)
    maker.frame("torch/optim/optimizer.py(962): zero_grad", 20 * MS - 1, 9 * MS + 2)
    for number in range(fills):
        start = 20 * MS + number * 100
        maker.launched(name, start + 20, 10, correlation=10 + number, at=start)
    maker.annotation("Optimizer.step#SGD.step", 40 * MS, 1 * MS)
    return maker


FILL = "void vectorized_elementwise_kernel<4, FillFunctor<float>>(int)"


def test_gradients_that_are_set_to_zero_one_by_one() -> None:
    finding = findings_of(zero_grad(50, FILL))["zero-gradients"]
    # The idle time within the call, and the fills; not the latency of each launch.
    assert finding.attributed_ms == pytest.approx(9 - 50 * 0.019, abs=0.05)
    assert finding.snippet == "optimizer.zero_grad(set_to_none=True)"


@pytest.mark.parametrize(
    ("fills", "name"), [(10, FILL), (50, "multi_tensor_apply_kernel"), (0, FILL)]
)
def test_few_fills_are_no_finding(fills: int, name: str) -> None:
    assert "zero-gradients" not in savings(zero_grad(fills, name))


def iterations(slow: int) -> TraceMaker:
    maker = TraceMaker()
    start = 0
    for number in range(8):
        length = 30 * MS if number == slow else 10 * MS
        maker.annotation(f"ProfilerStep#{number}", start, length)
        maker.launched(
            "conv", start + 100, length - 100, correlation=number, at=start + 50
        )
        start += length
    return maker


def test_slow_iterations_claim_their_time_beyond_the_others() -> None:
    finding = findings_of(iterations(slow=3))["slow-iterations"]
    assert finding.attributed_ms == pytest.approx(20, rel=0.01)
    assert [place.name for place in finding.where["iterations"]] == ["ProfilerStep#3"]
    assert "computation time" in finding.title


def test_a_slow_iteration_is_no_finding_if_another_finding_explains_it() -> None:
    maker = TraceMaker()
    start = 0
    for number in range(8):
        length = 30 * MS if number == 3 else 10 * MS
        maker.annotation(f"ProfilerStep#{number}", start, length)
        if number == 3:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            maker.annotation(name, start + 10, 20 * MS)
        begin = start + length - 9 * MS
        maker.launched("conv", begin, 9 * MS, correlation=number, at=begin - 100)
        start += length
    found = savings(maker)
    assert found["dataloader"] == pytest.approx(20, rel=0.01)
    assert "slow-iterations" not in found


def checkpointed() -> TraceMaker:
    """A forward, and a backward that runs it again below the node of the checkpoint."""
    maker = TraceMaker()
    dims = {"Input Dims": [[64, 64], [64, 64]]}
    maker.op(
        "aten::mm", 10, 20, args={**dims, "Sequence number": 7, "Fwd thread id": 0}
    )
    maker.launched("gemm", 1 * MS, 1 * MS, correlation=1, at=15)
    maker.thread = 2
    maker.op("autograd::engine::evaluate_function: MmBackward0", 5 * MS, 2 * MS)
    maker.op(
        "MmBackward0",
        5 * MS + 1,
        2 * MS - 2,
        args={"Sequence number": 7, "Fwd thread id": 1},
    )
    again = {**dims, "Sequence number": 8, "Fwd thread id": 0}
    maker.op("aten::mm", 5 * MS + 10, 100, args=again)
    maker.launched("gemm", 6 * MS, 1 * MS, correlation=2, at=5 * MS + 20)
    maker.op("aten::mm", 5 * MS + 200, 100, args=dims)  # of the node's own formula
    maker.launched("gemm_t", 7 * MS, 1 * MS, correlation=3, at=5 * MS + 220)
    return maker


def test_recomputation_informs_and_claims_nothing() -> None:
    found = findings_of(checkpointed())
    finding = found["recompute"]
    assert (finding.attributed_ms, finding.informs_only) == (0, True)
    assert "1.0 ms" in finding.title
    assert list(found)[-1] == "recompute"


def test_tables_have_a_column_of_recomputation() -> None:
    analyzer = TreePerfAnalyzer(checkpointed().document())
    kernels = analyzer.get_df_kernels()
    assert kernels["is_recompute"].tolist() == [False, True, False]
    assert analyzer.get_df_kernel_summary().groupby("is_recompute")[
        "count"
    ].sum().to_dict() == {
        False: 2,
        True: 1,
    }
    ops = analyzer.get_df_kernel_launchers_unique_args()
    assert sorted(ops["is_recompute"]) == [False, True]


def test_tables_without_recomputation_have_no_such_column() -> None:
    analyzer = TreePerfAnalyzer(idle_for(20 * MS, 30 * MS).document())
    assert "is_recompute" not in analyzer.get_df_kernels()
    assert "is_recompute" not in analyzer.get_df_kernel_launchers()


@pytest.mark.parametrize(
    ("kind", "is_pageable"), [(0, True), (1, False), (None, False)]
)
def test_copies_of_nsight_know_pageable_memory_and_their_rate(
    kind: int | None, *, is_pageable: bool
) -> None:
    """`srcKind` 0 is pageable, 1 pinned; if it is not recorded, the memory is unknown."""
    maker = ExportMaker()
    maker.call("cudaMemcpyAsync", 0, 10, correlation=1)
    memory: dict[str, Any] = {"srcKind": kind, "dstKind": None if kind is None else 2}
    maker.gpu(
        "MEMCPY", 100, 10_000_000, correlation=1, copyKind=1, bytes=50_000_000, **memory
    )
    maker.launched("k", 10_000_200, 5_000_000, at=50, correlation=2)
    found = TreePerfAnalyzer(read_export(maker)).findings().findings
    ident = "pageable-copies" if is_pageable else "exposed-copy"
    (finding,) = [each for each in found if each.id.endswith(("copy", "copies"))]
    evidence = {each.what: each.value for each in finding.evidence}
    assert finding.id == ident
    assert evidence["rate to the device"] == pytest.approx(5.0)
    assert finding.confidence == ("high" if is_pageable else "medium")


def test_times_of_a_short_trace_are_in_microseconds() -> None:
    maker = TraceMaker()
    maker.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 5, 30)
    maker.launched("k", 40, 8, correlation=2, at=2)
    title = findings_of(maker)["pageable-copies"].title
    assert ": 30.0 µs" in title


def ranks(late: int) -> TraceMaker:
    """Three ranks on a device each that reduce eight times; one comes 4 ms later each time."""
    maker = TraceMaker()
    for device in range(3):
        for number in range(8):
            begin = number * 10 * MS
            id_ = 100 * device + 2 * number + 1
            arrives = begin + (6 if device == late else 2) * MS
            maker.thread = device + 1
            maker.frame("train.py(7): loop", begin, arrives - begin)
            maker.launched(
                "gemm", begin, 1 * MS, correlation=id_, at=begin - 20, device=device
            )
            maker.call("cudaLaunchKernel", arrives - 10, 5, correlation=id_ + 1)
            args = {"Collective name": "allreduce", "Group size": 3, "device": device}
            maker.gpu(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_f32",
                arrives,
                begin + 8 * MS - arrives,
                correlation=id_ + 1,
                device=device,
                args=args,
            )
    return maker


def test_the_rank_that_the_others_wait_for() -> None:
    """Two of three devices wait 4 ms in each of 8 calls; 2 ms a call are the transfer."""
    found = findings_of(ranks(late=1))
    finding = found["straggler"]
    assert finding.attributed_ms == pytest.approx(2 * 8 * 4 / 3)
    assert finding.claim
    assert (finding.claim.ns_of_devices / 1e6).tolist() == [32, 0, 32]
    assert "device 1" in finding.title
    assert finding.where["python_frames"][0].name == "train.py(7): loop"
    assert found["exposed-communication"].attributed_ms == pytest.approx(8 * 2)


def test_there_is_no_straggler_where_none_is_late() -> None:
    assert "straggler" not in findings_of(ranks(late=-1))
