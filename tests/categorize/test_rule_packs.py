"""The built-in rule packs: examples, traps they must not fall into, real names and traces."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import regex

from tracelens_ext.categorize import (
    CATEGORIES,
    UNCATEGORIZED,
    KernelCategorizer,
    RulePack,
    builtin_categorizer,
    categorize_kernels,
    load_pack,
)
from tracelens_ext.categorize.check import check_packs
from tracelens_ext.categorize.matcher import BoundPack

FOLDER = Path(__file__).resolve().parents[2] / "categorizers"
SHARED = Path(__file__).resolve().parents[3] / "shared"
CORPUS = SHARED / "corpus" / "kernels.jsonl"
FIRST_SIX = frozenset(CATEGORIES[:6])
LAUNCHER = "void at::native::vectorized_elementwise_kernel"
TRACES = (
    "graphs/vllm_decode_hip_graph",
    "amd/gpu_only_trace",
    "nvidia/torch_compile_triton",
    "nvidia/nccl",
)

OPERATION_WORDS = {
    "GEMM",
    "CONV_fwd",
    "CONV_bwd",
    "NORM_fwd",
    "NORM_bwd",
    "SDPA_fwd",
    "SDPA_bwd",
    "RMSNorm",
    "RoPE_fwd",
    "RoPE_bwd",
    "GroupedGEMM_fwd",
    "GroupedGEMM_bwd",
    "MoE_fused",
    "MoE_unfused",
    "MoE_aux",
    "SSM_fwd",
    "SSM_bwd",
    "InferenceAttention",
    "CrossEntropy_fwd",
    "CrossEntropy_bwd",
    "elementwise",
    "reduce",
    "triton",
    "multi_tensor_apply",
    "fusion",
    "record_param_comms",
    "other",
    "graph",
    "runtime",
}


@pytest.fixture(scope="module")
def packs() -> list[RulePack]:
    return [load_pack(path) for path in sorted(FOLDER.glob("*.toml"))]


@pytest.fixture(scope="module")
def builtin() -> KernelCategorizer:
    return builtin_categorizer()


def categories(
    builtin: KernelCategorizer, names: list[str], ops: Any = None
) -> list[str]:
    return list(categorize_kernels(names, ops, builtin)["kernel_category"])


def kernel_examples(packs: list[RulePack]) -> list[tuple[str, str]]:
    """Name and category of every example that needs no operation."""
    return [
        (example.name, rule.category)
        for pack in packs
        if pack.kind == "kernel"
        for rule in pack.rules
        if rule.cpu_op is None
        for example in rule.examples
    ]


def test_every_rule_is_proved_by_its_examples(packs: list[RulePack]) -> None:
    bound = [BoundPack(pack, "builtin") for pack in packs]
    bound.sort(key=lambda one: (-one.priority, one.name))
    assert check_packs(bound) == []


def test_packs_use_known_categories_vendors_and_libraries(
    packs: list[RulePack],
) -> None:
    kernel = {
        rule.category for pack in packs if pack.kind == "kernel" for rule in pack.rules
    }
    assert kernel == set(CATEGORIES) - {UNCATEGORIZED}
    operations = {
        rule.category for pack in packs if pack.kind == "op" for rule in pack.rules
    }
    assert operations == OPERATION_WORDS


def test_every_rule_has_an_example(packs: list[RulePack]) -> None:
    assert [
        pack.where(rule) for pack in packs for rule in pack.rules if not rule.examples
    ] == []


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("kernel_mha", "Flash Attention Forward"),
        ("void tensorrt_llm::common::scaleMatrix<...>", "Memory Ops"),
        ("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", "GEMM"),
        # the prefix a compiler gives wins over the words that follow
        ("triton_poi_fused_convolution_0", "Fused Elementwise (compiler-generated)"),
        ("triton_poi_fused_add_all_reduce_0", "Fused Elementwise (compiler-generated)"),
        ("triton_red_fused_native_layer_norm_3", "Normalization"),
        ("triton_red_fused_sum_1", "Reduction"),
        ("triton_tem_fused_mm_5", "GEMM"),
        # "gemm"
        (
            "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128",
            "Convolution",
        ),
        (
            "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)",
            "Embedding & Gather/Scatter",
        ),
        ("_gemma_rmsnorm_kernel", "Normalization"),
        # "conv"
        ("void flash::flash_bwd_convert_dq_kernel<T>(P)", "Flash Attention Backward"),
        ("wrapped_convert_5", "Memory Ops"),
        # "flash", "attention"
        ("void vllm::reshape_and_cache_flash_kernel<T>(T*)", "Memory Ops"),
        ("_linear_attn_decode_kernel", "Recurrent & State Space"),
        # "softmax"
        ("void vllm::moe::topkGatingSoftmax<4, 64, 4, 16>(float*)", "MoE Routing"),
        ("void cunn_SoftMaxXEntropyForward<4, float>(float*)", "Loss"),
        # "reduce"
        (
            "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)",
            "GEMM",
        ),
        ("_reduce_scatter_kernel", "Communication"),
        # "transpose", "copy"
        # layout copies around a convolution, on both vendors; im2col is the convolution itself
        ("transpose_NCHW2CNHW_V2_2D_WG_off64", "Memory Ops"),
        ("batched_transpose_64x16_pack_4x1_ediv_2x1_half", "Memory Ops"),
        ("SubTensorOpWithScalar1d", "Memory Ops"),
        (
            "_ZN5cudnn3ops16nchwToNhwcKernelIfffLb0ELb1EL21cudnnKernelDataType_t2EEEvv",
            "Memory Ops",
        ),
        (
            "void cudnn::engines_precompiled::nhwcToNchwKernel<float>(float)",
            "Memory Ops",
        ),
        ("void cutlass::nhwc_to_nchw_kernel<float>(float*)", "Memory Ops"),
        ("Im2d2Col_v2", "Convolution"),
        (
            "void at::native::col2im_kernel<float, float>(long, float const*)",
            "Convolution",
        ),
        # "moe", "topk"
        ("fused_moe_kernel", "GEMM"),
        ("moe_align_block_size_kernel", "MoE Routing"),
        # a functor inside a general launcher
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda()>",
            "Loss",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>",
            "Memory Ops",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<int>>",
            "Elementwise",
        ),
        # collectives fused with a norm
        (
            "void lamport_style_one_shot_all_reduce_norm_kernel<half>(P)",
            "Communication",
        ),
        # words in the arguments do not count
        (
            "void lib::transpose_kernel<lib::LayerNormParams>(lib::SoftmaxTraits)",
            "Memory Ops",
        ),
    ],
)
def test_traps(builtin: KernelCategorizer, name: str, category: str) -> None:
    assert categories(builtin, [name]) == [category]


@pytest.mark.parametrize(
    "name",
    [
        "kernel",
        "main_kernel",
        "void foo::run<int>(int)",
        "_Z3barPf",
        "fusion_kernel_x7",
        "",
    ],
)
def test_unknown_names_stay_uncategorized(
    builtin: KernelCategorizer, name: str
) -> None:
    assert categories(builtin, [name]) == [UNCATEGORIZED]


def nsight(name: str) -> str:
    """How Nsight Systems spells a name that Kineto demangled."""
    name = name.replace("(anonymous namespace)", "<unnamed>")
    name = re.sub(r"\{lambda\(([^)]*)\)#(\d+)\}", r"[lambda(\1) (instance \2)]", name)
    return re.sub(r"\b(\d+)ul\b", r"(unsigned long)\1", name)


def test_nsight_spelling_changes_nothing(
    builtin: KernelCategorizer, packs: list[RulePack]
) -> None:
    examples = kernel_examples(packs)
    assert categories(builtin, [nsight(name) for name, _ in examples]) == [
        c for _, c in examples
    ]


@pytest.mark.parametrize("suffix", [".kd", " [clone .kd]"])
def test_rocm_suffixes_change_nothing(
    builtin: KernelCategorizer, packs: list[RulePack], suffix: str
) -> None:
    amd = [
        (example.name, rule.category)
        for pack in packs
        for rule in pack.rules
        if rule.vendor == "amd"
        for example in rule.examples
        if not example.name.endswith((".kd", "]"))
    ]
    assert categories(builtin, [name + suffix for name, _ in amd]) == [
        c for _, c in amd
    ]


def test_an_operation_decides_only_what_the_name_leaves_open(
    builtin: KernelCategorizer, packs: list[RulePack]
) -> None:
    examples = kernel_examples(packs)
    names = [name for name, _ in examples]
    assert categories(builtin, names, ["aten::mm"] * len(names)) == [
        c for _, c in examples
    ]
    assert categories(builtin, ["kernel", "kernel"], ["aten::mm", None]) == [
        "GEMM",
        UNCATEGORIZED,
    ]


def test_layout_copies_stay_memory_ops_whatever_launches_them(
    builtin: KernelCategorizer,
) -> None:
    ops = [
        "aten::convolution_backward",
        "aten::miopen_convolution",
        "aten::cudnn_convolution",
    ]
    assert (
        categories(builtin, ["batched_transpose_16x32_half"] * 3, ops)
        == ["Memory Ops"] * 3
    )


@pytest.mark.real_data
def test_real_names(builtin: KernelCategorizer) -> None:
    rows = [
        json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()
    ]
    rows = [row for row in rows if row["confidence"] == "high"]
    names = [row["name"] for row in rows]
    ops = [row.get("cpu_op") for row in rows]

    right = 0
    wrong = 0
    right_first = []
    for row, got in zip(rows, categories(builtin, names, ops), strict=True):
        good = got in (row["category"], row.get("alt_category"))
        right += good
        wrong += not good and got != UNCATEGORIZED
        if row["category"] in FIRST_SIX:
            right_first.append(good)
    alone = sum(
        got in (row["category"], row.get("alt_category"))
        for row, got in zip(rows, categories(builtin, names), strict=True)
    )

    assert right >= 0.99 * len(rows)
    assert wrong <= 0.005 * len(rows)
    assert sum(right_first) >= 0.995 * len(right_first)
    assert alone >= 0.97 * len(rows)


@pytest.mark.real_data
@pytest.mark.parametrize("trace", TRACES)
def test_nearly_all_gpu_time_of_a_real_trace_is_known(
    builtin: KernelCategorizer, trace: str
) -> None:
    path = SHARED / "traces" / f"{trace}.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    time: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            time[event["name"]] += event["dur"]
    got = categories(builtin, list(time))
    known = sum(
        t for t, c in zip(time.values(), got, strict=True) if c != UNCATEGORIZED
    )
    assert known >= 0.99 * sum(time.values())


@pytest.mark.slow
def test_both_engines_read_the_patterns_alike(packs: list[RulePack]) -> None:
    """Names of common length are searched with `re`, very long ones with `regex`."""
    names = [name for name, _ in kernel_examples(packs)]
    for pack in packs:
        for rule in pack.rules:
            quick = re.compile(rule.pattern)
            bounded = regex.compile(rule.pattern)
            differ = [
                n for n in names if bool(quick.search(n)) != bool(bounded.search(n))
            ]
            assert not differ, (pack.name, rule.number, differ[:3])


def test_no_pattern_is_too_long_to_read_and_long_ones_say_what_they_are_for() -> None:
    for path in sorted(FOLDER.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["rule"]
        for number, (table, rule) in enumerate(
            zip(tables, load_pack(path).rules, strict=True), 1
        ):
            for key in ("pattern", "unless", "cpu_op"):
                given = table.get(key, "")
                parts = given if isinstance(given, list) else [given]
                assert max(map(len, parts)) <= 200, (path.name, number, key)
            if max(len(rule.pattern), len(rule.cpu_op or "")) > 80:
                assert rule.about, (path.name, number)
                assert len(rule.about) <= 60
