"""Advice about small copies, conversions and attention fits the cause in the program."""

from __future__ import annotations

import pytest

from tests.findings.test_kernels import CASTING, H100, Kernels
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding

B200 = [{"id": 0, "name": "NVIDIA B200"}]
TRAITS = (
    "Flash_fwd_kernel_traits<64, 128, 128, 4, bfloat16_t, Flash_kernel_traits<64> >"
)


def finding_of(maker: TraceMaker, ident: str, devices: object = H100) -> Finding:
    document = maker.document(deviceProperties=devices)
    findings = TreePerfAnalyzer(document).findings().findings
    (found,) = (finding for finding in findings if finding.id == ident)
    return found


def copies_within(*names: str, api: str = "cudaLaunchKernel") -> TraceMaker:
    """A training loop in which small copies are launched within some operations in turn."""
    maker = TraceMaker()
    start = 1_000.0
    for number in range(150):
        name = names[number % len(names)]
        maker.op(name, start - 500, 40)
        maker.op("aten::copy_", start - 495, 30)
        maker.call("cudaMemcpyAsync", start - 490, 5, correlation=2 * number + 1)
        copy = "Memcpy DtoD (Device -> Device)"
        maker.gpu("gpu_memcpy", copy, start, 3, correlation=2 * number + 1)
        maker.launched(
            "gemm", start + 4, 40, correlation=2 * number + 2, at=start - 455, api=api
        )
        maker.op("autograd::engine::evaluate_function: X", start - 450, 5)
        start += 50
    return maker


REDUCER = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
FORWARD = "DistributedDataParallel.forward"
WITHOUT_BUFFERS = (
    "DistributedDataParallel(model, gradient_as_bucket_view=True, "
    "broadcast_buffers=False)"
)


@pytest.mark.parametrize(
    ("names", "snippet"),
    [
        ((REDUCER,), "DistributedDataParallel(model, gradient_as_bucket_view=True)"),
        (
            (REDUCER, FORWARD),
            WITHOUT_BUFFERS,
        ),
        (("aten::item",), "torch.stack(values).tolist()"),
    ],
)
def test_small_copies_have_the_advice_for_what_copies(
    names: tuple[str, ...], snippet: str
) -> None:
    assert finding_of(copies_within(*names), "small-copies").snippet == snippet


def test_copies_of_compiled_regions_go_into_graphs_only_if_there_are_graphs() -> None:
    replayed = copies_within("CompiledFunction", api="cudaGraphLaunch")
    advice = finding_of(replayed, "small-copies").advice
    assert advice.startswith("Keep the inputs of compiled regions at fixed addresses")
    launched = copies_within("CompiledFunction")
    assert "graphs" not in finding_of(launched, "small-copies").advice


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("Qwen2RMSNorm_3", "Use a fused norm"),
        ("Qwen2MLP_3", "Keep tensors in the type"),
    ],
)
def test_conversions_in_norms_are_for_fused_norms(module: str, words: str) -> None:
    kernels = Kernels().rest()
    for _ in range(10):
        kernels.run("aten::copy_", 100, kernel=CASTING)
    kernels.frame(f"nn.Module: {module}", 0, 5)
    assert finding_of(kernels, "dtype-casts").advice.startswith(words)


@pytest.mark.parametrize(
    ("dropout", "devices", "words"),
    [
        ("false", H100, "Use cuDNN's attention or FlashAttention 3:"),
        ("true", H100, "FlashAttention 3 without dropout"),
        ("(bool)1", H100, "FlashAttention 3 without dropout"),
        ("(bool)0", H100, "Use cuDNN's attention or FlashAttention 3:"),
        ("false", B200, "FlashAttention 3 is for Hopper only"),
    ],
)
def test_attention_has_kernels_that_the_gpu_and_the_program_can_use(
    dropout: str, devices: object, words: str
) -> None:
    kernels = Kernels().rest()
    for _ in range(10):
        name = f"void pytorch_flash::flash_fwd_kernel<{TRAITS}, {dropout}, true, false>"
        kernels.run("aten::_flash_attention_forward", 300, kernel=name)
    assert words in finding_of(kernels, "flash-attention-2", devices).advice


@pytest.mark.parametrize(
    "kernel",
    [
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>, false>",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob",
    ],
)
def test_other_attention_kernels_are_not_flash_attention_2(kernel: str) -> None:
    kernels = Kernels().rest()
    for _ in range(10):
        kernels.run("aten::_flash_attention_forward", 300, kernel=kernel)
    assert "flash-attention-2" not in kernels.savings()
