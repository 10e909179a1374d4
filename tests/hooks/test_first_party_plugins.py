"""The plugins this distribution brings: the JAX key lists and the engine/model maps."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tracelens_ext.categorize import KernelCategorizer, categorize_kernels
from tracelens_ext.categorize.check import check_packs
from tracelens_ext.categorize.choices import offered_packs
from tracelens_ext.categorize.matcher import BoundPack
from tracelens_ext.hooks import load_registry

SHARED = Path(__file__).resolve().parents[3] / "shared"
ENGINES = ("vllm", "sglang", "tensorrt-llm")
MODELS = ("llama", "deepseek", "gpt-oss", "qwen")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "GEMM"),
        ("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", "GEMM"),
        ("cublasLt_epilogue", "GEMM"),
        ("_ZN7ck_tile6kentryI13FmhaBwdKernelEEv", "FA BWD"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_bprop_wmma_f16", "FA BWD"),
        ("ck_fused_attn::dk_dv_reduce_thd", "FA BWD"),
        ("_ZN5aiter25fmha_bwd_hd128_dq_shuffleE", "FA BWD"),
        ("_ZN7ck_tile6kentryI13FmhaFwdKernelEEv", "FA FWD"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "FA FWD"),
        ("aiter::fmha_fwd_hd128_bf16_rtz", "FA FWD"),
        ("kernel_func", "FA V3"),
        ("__amd_rocclr_FillBufferAligned", "Conv"),
        ("miopen_conv_fwd", "Conv"),
        ("conv.1", "Conv"),
        ("conv-bias", "Conv"),
        ("transformer_engine::rmsnorm", "TE"),
        ("te_fused_attn_fwd", "TE"),
        ("rcclGenericKernel", "Communication rccl/nccl"),
        ("ncclDevKernel_AllReduce", "Communication rccl/nccl"),
        # Upper and lower case matter, and the order of the lists does.
        ("Gemm", "Uncategorized Events"),
        ("gemm_nccl_flash_fprop", "GEMM"),
        ("conv_nccl", "Conv"),
        ("loop_add_fusion", "Uncategorized Events"),
    ],
)
def test_jax_key_lists(name: str, category: str) -> None:
    assert categorize_kernels([name], categorizer="jax")[
        "kernel_category"
    ].tolist() == [category]


def test_what_jax_lists_do_not_know_counts_as_unknown() -> None:
    decisions = KernelCategorizer.create(categorizer="jax").categorize(
        ["loop_add_fusion", "gemm"]
    )
    assert decisions.known == [False, True]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_engine_maps(engine: str, model: str) -> None:
    names = [
        "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, __nv_bfloat162>",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "triton_poi_fused_add_0",
        "[CUDA memcpy Host-to-Device]",
        "entirely_unheard_of",
    ]
    decisions = KernelCategorizer.create(categorizer=f"{engine}:{model}").categorize(
        names
    )
    assert decisions.category == [
        "gemm",
        "nccl_and_custom_ar",
        "attn",
        "norm",
        "activation",
        "rope",
        "triton_kernel",
        "non-gpu-H_D_memops",
        "misc",
    ]
    assert decisions.known == [True] * 8 + [False]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["deepseek", "gpt-oss", "qwen"])
def test_mixture_of_experts_models_tell_expert_gemms_apart(
    engine: str, model: str
) -> None:
    names = [
        "fused_moe_kernel",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "nvjet_tst_1x2",
    ]
    answer = categorize_kernels(names, categorizer=f"{engine}:{model}")
    assert answer["kernel_category"].tolist() == ["moe_gemm", "moe_gemm", "gemm"]


@pytest.mark.parametrize("name", ["vllm:ds", "trtllm:llama", "trtllm:ds", "sglang:ds"])
def test_short_names(name: str) -> None:
    assert categorize_kernels(["nvjet_x"], categorizer=name)[
        "kernel_category"
    ].tolist() == ["gemm"]


def test_maps_and_lists_take_no_part_unless_chosen() -> None:
    packs = {bound.pack.name for bound in KernelCategorizer.create().packs}
    assert "jax" not in packs
    assert not any(":" in name for name in packs)


@pytest.mark.slow
def test_the_first_party_packs_are_sound() -> None:
    packs = [
        BoundPack(offered.item, "categorizer")
        for offered in offered_packs(load_registry(plugins=False))
        if offered.item.selectable
    ]
    assert len(packs) >= len(ENGINES) * len(MODELS) + 1
    assert [f for f in check_packs(packs) if f.severity == "error"] == []


@pytest.mark.real_data
def test_a_real_vllm_trace_is_explained() -> None:
    path = SHARED / "traces" / "graphs" / "vllm_decode_hip_graph.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            times[event["name"]] += event["dur"]
    decisions = KernelCategorizer.create(categorizer="vllm:gpt-oss").categorize(
        list(times)
    )
    known = sum(
        t for t, known in zip(times.values(), decisions.known, strict=True) if known
    )
    assert known / times.total() >= 0.9
