"""Each detector on a trace that follows its advice, and on one that records too little to tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.findings.test_kernels import H100, IMAGE, Kernels, tensor
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.order import DETECTORS

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding

MS = 1_000
Document = dict[str, Any]


class Case(NamedTuple):
    """A trace, and the words that its finding must not have; if empty, there must be no finding."""

    make: Callable[[], Document]
    must_not_say: str = ""


FOLLOWED: dict[str, Case] = {}
TOO_LITTLE: dict[str, Case] = {}


def followed(
    ident: str, must_not_say: str = ""
) -> Callable[[Callable[[], Document]], Callable[[], Document]]:
    def add(make: Callable[[], Document]) -> Callable[[], Document]:
        FOLLOWED[ident] = Case(make, must_not_say)
        return make

    return add


def too_little(
    *idents: str,
) -> Callable[[Callable[[], Document]], Callable[[], Document]]:
    def add(make: Callable[[], Document]) -> Callable[[], Document]:
        for ident in idents:
            TOO_LITTLE[ident] = Case(make)
        return make

    return add


def document(maker: TraceMaker) -> Document:
    return maker.document(deviceProperties=H100)


def busy(maker: TraceMaker, start: int = 0, count: int = 30) -> TraceMaker:
    """Kernels of 1 ms back to back, launched early."""
    for number in range(count):
        maker.launched(
            "gemm",
            start + number * MS,
            1 * MS,
            correlation=500 + number,
            at=start - 900 + number * 10,
        )
    return maker


def gap(before_ms: int = 30) -> TraceMaker:
    """Busy for 30 ms, idle for 10 ms, busy for 30 ms; the launch that ends the gap is late."""
    maker = TraceMaker()
    busy(maker)
    end = (before_ms + 10) * MS
    maker.launched("late", end, 1 * MS, correlation=1, at=end - 10)
    for number in range(29):
        maker.launched(
            "gemm",
            end + (1 + number) * MS,
            1 * MS,
            correlation=600 + number,
            at=end - 5 + number,
        )
    return maker


def no_launches(name: str, category: str = "kernel") -> Document:
    """GPU events with gaps, and nothing of the CPU."""
    maker = TraceMaker()
    for number in range(40):
        maker.gpu(category, name, number * 2 * MS, 1 * MS)
    return document(maker)


def slow_products(*tensors: Any, kernel: str = "nvjet_hsh_64x8") -> Document:
    kernels = Kernels().rest()
    for _ in range(30):
        kernels.run("aten::mm", 1_000, *tensors, kernel=kernel)
    return document(kernels)


# The CPU.


@followed("host-bound", "(?i)cuda graph as|as a CUDA graph|reduce-overhead|compile the")
def _graphs_between_which_the_cpu_works() -> Document:
    maker = TraceMaker()
    for number in range(30):
        start = number * 2 * MS
        maker.op("aten::add", start - 950, 900)
        maker.launched(
            "decode_kernel",
            start,
            1 * MS,
            correlation=number + 1,
            at=start - 20,
            api="cudaGraphLaunch",
        )
    return document(maker)


@followed("synchronization")
def _a_wait_after_everything() -> Document:
    maker = busy(TraceMaker())
    maker.call("cudaDeviceSynchronize", 1 * MS, 29 * MS + 5)
    return document(maker)


@followed("dataloader", "num_workers=8|Give the data loader")
def _workers() -> Document:
    maker = gap()
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    maker.annotation(name, 29 * MS, 10 * MS)
    return document(maker)


@followed("allocator", "expandable_segments:True")
def _expandable_segments() -> Document:
    maker = gap()
    maker.op("aten::empty", 30 * MS, 9 * MS)
    for number in range(4):
        maker.call("cuMemMap", 31 * MS + number * 2 * MS, 2 * MS)
    return document(maker)


@followed("cpu-operation")
def _a_cpu_operation_beside_the_gpu() -> Document:
    maker = busy(TraceMaker())
    maker.op("aten::randn", 1 * MS, 20 * MS)
    return document(maker)


@followed("recompilation")
def _one_compilation_before_everything() -> Document:
    maker = busy(TraceMaker(), start=200 * MS)
    maker.op("Torch-Compiled Region: 0/0", 1 * MS, 100 * MS)
    return document(maker)


@followed("graph-recapture")
def _one_capture_and_many_launches() -> Document:
    maker = TraceMaker()
    maker.call("cudaStreamBeginCapture", 0, 5)
    maker.call("cudaStreamEndCapture", 900, 5)
    for number in range(30):
        maker.launched(
            "k",
            1 * MS + number * MS,
            1 * MS,
            correlation=number + 1,
            at=950 + number,
            api="cudaGraphLaunch",
        )
    return document(maker)


@followed("profiler-overhead")
def _no_frames() -> Document:
    return document(gap())


@followed("full-launch-queue")
def _short_launches() -> Document:
    return document(busy(TraceMaker()))


@followed("slow-iterations")
def _equal_iterations() -> Document:
    maker = busy(TraceMaker())
    for number in range(6):
        maker.annotation(f"ProfilerStep#{number}", number * 5 * MS, 5 * MS)
    return document(maker)


too_little(
    "host-bound",
    "synchronization",
    "dataloader",
    "allocator",
    "cpu-operation",
    "recompilation",
    "graph-recapture",
    "profiler-overhead",
    "full-launch-queue",
    "slow-iterations",
)(lambda: no_launches("gemm"))


# Copies and communication.


def copies(name: str, stream: int = 20, **args: Any) -> TraceMaker:
    """Copies of 1 ms between kernels of 1 ms."""
    maker = TraceMaker()
    for number in range(20):
        start = number * 2 * MS
        maker.launched(
            "gemm", start, 1 * MS, correlation=2 * number + 1, at=start - 300
        )
        maker.call("cudaMemcpyAsync", start - 200, 5, correlation=2 * number + 2)
        maker.gpu(
            "gpu_memcpy",
            name,
            start + 1 * MS,
            1 * MS,
            correlation=2 * number + 2,
            stream=stream,
            args=args,
        )
    return maker


@followed("exposed-copy", "pin_memory|from pinned memory")
def _pinned_on_a_stream_of_their_own() -> Document:
    return document(copies("Memcpy HtoD (Pinned -> Device)"))


@followed("pageable-copies")
def _pinned() -> Document:
    return document(copies("Memcpy HtoD (Pinned -> Device)"))


@followed("small-copies")
def _a_few_large_copies() -> Document:
    return document(copies("Memcpy DtoD (Device -> Device)", bytes=10**9))


@followed("slow-link")
def _copies_at_the_rate_of_the_link() -> Document:
    return document(copies("Memcpy HtoD (Pinned -> Device)", bytes=50_000_000))


@too_little("pageable-copies", "slow-link")
def _copies_of_unknown_memory_and_size() -> Document:
    return document(copies("Memcpy HtoD"))


@too_little("small-copies")
def _a_handful_of_copies_of_unknown_size() -> Document:
    return document(copies("Memcpy DtoD"))


too_little("exposed-copy", "exposed-communication", "straggler")(
    lambda: no_launches("gemm")
)


@followed("exposed-communication", "Start collectives earlier")
def _communication_of_which_most_is_hidden() -> Document:
    maker = TraceMaker()
    for number in range(20):
        start = number * 4 * MS
        maker.op("autograd::engine::evaluate_function: X", start - 500, 400)
        maker.launched(
            "gemm", start, 3 * MS, correlation=2 * number + 1, at=start - 400
        )
        maker.launched(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            start,
            4 * MS,
            correlation=2 * number + 2,
            at=start - 390,
            stream=30,
        )
    return document(maker)


@followed("straggler")
def _devices_that_arrive_together() -> Document:
    maker = TraceMaker()
    for device in range(2):
        for number in range(10):
            start = number * 4 * MS
            correlation = 100 * device + number + 1
            maker.launched(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                start,
                2 * MS,
                correlation=correlation,
                at=start - 100,
                device=device,
            )
    return document(maker)


# Kernels.


@followed("launch-geometry")
def _blocks_for_every_multiprocessor() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("", 100, kernel="mine", blocks=10_000)
    return document(kernels)


@followed("double-precision")
def _a_program_in_double_precision() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("", 100, kernel="void mine<double>(double*)")
    return document(kernels)


@followed("fallback-kernels")
def _kernels_of_a_library() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("", 100, kernel="sm90_xmma_fprop_implicit_gemm_bf16")
    return document(kernels)


@followed("no-tensor-cores", "set_float32_matmul_precision")
def _tf32_in_most_products() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("", 100, kernel="ampere_sgemm_128x64_tn")
        kernels.run("", 900, kernel="sm90_xmma_gemm_f32f32_tf32f32_f32_tn")
    return document(kernels)


@followed("layout-conversion")
def _channels_last() -> Document:
    kernels = Kernels().rest()
    kernels.run("aten::cudnn_convolution", 900, kernel="sm80_xmma_fprop_nhwc_kernel")
    return document(kernels)


@followed("dtype-casts")
def _products_in_the_type_of_the_weights() -> Document:
    return document(Kernels().rest())


@followed("unfused-attention")
def _fused_attention() -> Document:
    kernels = Kernels().rest()
    heads = tensor(16, 512, 16, 64)
    kernels.run("aten::_flash_attention_forward", 114, heads, kernel="flash_fwd_kernel")
    return document(kernels)


@followed("memory-bound-chain", r"torch\.compile\(model\)")
def _a_compiled_model_that_left_passes_apart() -> Document:
    kernels = Kernels().rest()
    for _ in range(10):
        kernels.run("CompiledFxGraph", 50, kernel="triton_poi_fused_add_0")
        for name in ("aten::mul", "aten::add", "aten::gelu"):
            kernels.run(name, 100, IMAGE, IMAGE)
    return document(kernels)


@followed("unfused-optimizer")
def _a_fused_step() -> Document:
    maker = busy(TraceMaker())
    maker.annotation("Optimizer.step#AdamW.step", 31 * MS, 5 * MS)
    name = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
    for number in range(25):
        start = 31 * MS + number * 150
        maker.launched(name, start + 50, 90, correlation=number + 1, at=start + 20)
    return document(maker)


@followed("small-kernels", r"torch\.compile\(model\)")
def _short_kernels_of_a_compiler() -> Document:
    kernels = Kernels()
    for _ in range(400):
        kernels.run("", 3, kernel="triton_poi_fused_add_0")
    return document(kernels)


@followed("slow-attention", "CUDNN_ATTENTION")
def _attention_of_cudnn() -> Document:
    kernels = Kernels().rest()
    heads = tensor(1, 132, 4096, 64)
    name = "aten::_scaled_dot_product_flash_attention"
    kernels.run(name, 5_000, heads, heads, heads, kernel="cudnn_native_sdpa")
    for event in kernels.events:
        if event["name"] == name:
            event["args"]["Concrete Inputs"] = ["", "", "", "0.", "False"]
    return document(kernels)


@followed("old-kernels")
def _kernels_of_this_generation() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("", 100, kernel="cutlass3x_sm90_tensorop_gemm_128x128x64")
    return document(kernels)


@followed("flash-attention-2")
def _flash_attention_3() -> Document:
    kernels = Kernels().rest()
    name = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90>>"
    kernels.run("flash_attn_3::fwd", 500, kernel=name)
    return document(kernels)


@followed("zero-gradients")
def _gradients_set_to_none() -> Document:
    maker = gap()
    maker.annotation("Optimizer.zero_grad#AdamW.zero_grad", 30 * MS, 9 * MS)
    return document(maker)


@followed("slow-moe")
def _experts_at_full_speed() -> Document:
    kernels = Kernels().rest()
    kernels.run("aten::_grouped_mm", 300, tensor(4096, 4096), tensor(8, 4096, 4096))
    return document(kernels)


@followed("uneven-gemm")
def _products_alike() -> Document:
    size = tensor(4096, 4096)
    return slow_products(size, size, kernel="nvjet_hsh_128x256_64x4")


@followed("slow-gemm")
def _products_at_full_speed() -> Document:
    kernels = Kernels()
    for _ in range(20):
        kernels.rest()
    return document(kernels)


@followed("recompute")
def _no_checkpointing() -> Document:
    return document(Kernels().rest())


@followed("memory-peak")
def _no_allocation() -> Document:
    return document(Kernels().rest())


@followed("imbalance")
def _experts_alike() -> Document:
    kernels = Kernels().rest()
    kernels.frame("nn.Module: MixtralExperts_0", 0, 10)
    for _ in range(8):
        kernels.run("aten::mm", 50, tensor(512, 1024), tensor(1024, 4096))
    return document(kernels)


@followed("dominant-kernel")
def _many_kernels() -> Document:
    kernels = Kernels()
    for number in range(30):
        kernels.run("", 100, kernel=f"kernel_{number}")
    return document(kernels)


@too_little(
    "launch-geometry",
    "old-kernels",
    "slow-attention",
    "slow-moe",
    "uneven-gemm",
    "slow-gemm",
    "memory-bound-chain",
    "unfused-attention",
    "layout-conversion",
    "dtype-casts",
    "double-precision",
    "fallback-kernels",
    "no-tensor-cores",
    "unfused-optimizer",
    "small-kernels",
    "recompute",
    "memory-peak",
    "imbalance",
    "dominant-kernel",
    "flash-attention-2",
    "zero-gradients",
)
def _kernels_without_shapes_grids_and_a_device() -> Document:
    kernels = Kernels()
    for _ in range(30):
        kernels.run("aten::mm", 900, kernel="my_product")
        kernels.run("aten::softmax", 100, kernel="my_softmax")
        kernels.run("aten::mm", 900, kernel="my_other_product")
    return kernels.document()


def finding_of(case: Case, ident: str) -> Finding | None:
    findings = TreePerfAnalyzer(case.make()).findings().findings
    return next((finding for finding in findings if finding.id == ident), None)


@pytest.mark.parametrize("ident", [detector.id for detector in DETECTORS])
def test_advice_that_is_followed_is_not_given(ident: str) -> None:
    case = FOLLOWED[ident]
    finding = finding_of(case, ident)
    if not case.must_not_say:
        assert finding is None
        return
    assert finding is not None, "or nothing is tested"
    assert not re.search(case.must_not_say, f"{finding.advice} {finding.snippet}")
    assert "Already in use: " in finding.advice


@pytest.mark.parametrize("ident", [detector.id for detector in DETECTORS])
def test_too_little_is_no_finding(ident: str) -> None:
    assert finding_of(TOO_LITTLE[ident], ident) is None
