"""Models of serving engines: attention by lengths, quantized products, experts; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SHARED
from tests.roofline.test_models import (
    BF16,
    F32,
    MODELS,
    NOTHING,
    cost,
    operation,
    tensor,
    value,
)
from tests.support.make_trace import TraceMaker
from tests.support.serving_helpers import Engine, sums, tensors, vllm
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.serving.annotations import parse_annotation
from tracelens_ext.roofline.models import model_of
from tracelens_ext.roofline.operation import Cost, NoModelError

if TYPE_CHECKING:
    import pandas as pd

FP8 = "c10::Float8_e4m3fn"
BYTE = "unsigned char"
INT = "int"
INT8 = "signed char"
Q = tensor(32, 64, 64)
KV = tensor(32, 8, 64)


def in_step(annotation: str, name: str, *arguments: dict[str, Any]) -> Cost:
    op = replace(operation(name, *arguments), batch=parse_annotation(annotation))
    model = model_of(op.name, MODELS)
    assert model is not None
    return model.item(op)


def test_attention_of_the_recorded_decode_step() -> None:
    """FLOPs and bytes of `InferenceAttention_fwd.csv` beside that trace."""
    name = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"
    found = in_step(name, "vllm::unified_attention_with_output", Q, KV, KV, Q)
    assert found.flops == 902_529_024
    assert found.bytes == 108.08984375 * 2**20


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, int]:
    """The numbers of queries and keys of a request whose prompt is computed."""
    queries = draw(st.integers(1, 99))
    cached = draw(st.integers(0, 999))
    return queries, queries + cached


@given(
    context=st.lists(prompts(), max_size=3),
    keys=st.lists(st.integers(1, 999), max_size=3),
)
def test_attention_is_the_sum_over_requests(
    context: list[tuple[int, int]], keys: list[int]
) -> None:
    generation = [(1, key_count) for key_count in keys]
    if not context and not generation:
        return
    cache = tensor(100, 16, 8, 64)
    found = in_step(vllm(context, generation), "_vllm_fa3_C::fwd", Q, cache, cache)
    pairs_twice = sum(
        2 * queries * all_keys - queries**2 for queries, all_keys in context
    )
    pairs_twice += 2 * sum(keys)
    assert found.flops == 64 * (64 + 64) * pairs_twice
    tokens = sums(context)[0] + sums(generation)[0]
    all_keys_of_step = sums(context)[1] + sums(generation)[1]
    query_and_result_bytes = 2 * (64 + 64) * 64
    key_and_value_bytes = 2 * (64 + 64) * 8
    moved = tokens * (query_and_result_bytes + key_and_value_bytes)
    moved += (all_keys_of_step - tokens) * key_and_value_bytes
    assert found.bytes == moved


#: Of two requests with 8 heads of 128 elements, and a cache with 4 heads in pages of 16.
TWO_QUERIES = tensor(2, 8, 128)
PAGES = tensor(10, 16, 4, 128)
TWO_REQUESTS = vllm([], [(1, 500), (1, 12)])


def test_attention_with_a_paged_cache_of_bytes() -> None:
    keys = tensor(10, 4, 16, 16, 8, kind=BYTE)
    values = tensor(10, 4, 128, 16, kind=BYTE)
    name = "_C::paged_attention_v1"
    found = in_step(TWO_REQUESTS, name, TWO_QUERIES, TWO_QUERIES, keys, values)
    assert found.flops == 2 * 8 * 256 * 512
    assert found.parameters["H_KV"] == 4
    cached = 510 * 256 * 4
    new = 2 * 2 * 256 * (8 + 4)
    assert found.bytes == cached + new  # a byte an element in the cache, two elsewhere


def test_attention_with_buffers_before_its_queries() -> None:
    buffers = [tensor(10, kind=BYTE), tensor(10, kind=BYTE), value([1], "ScalarList")]
    name = "flashinfer::batch_decode_with_paged_kv_cache_run"
    found = in_step(TWO_REQUESTS, name, *buffers, TWO_QUERIES, PAGES, PAGES)
    assert found.flops == 2 * 8 * 256 * 512


def test_each_speculated_token_attends_to_the_keys() -> None:
    step = "decode[bs=1 tok=4 d=1 spec=3 sqsq=16 sqsk=400 sk=100]"
    found = in_step(step, "sgl_kernel::fwd", TWO_QUERIES, PAGES, PAGES)
    assert found.flops == 2 * 8 * 256 * 400


def test_latent_attention() -> None:
    q = tensor(7, 16, 192)
    latent = tensor(7, 512)
    rotary = tensor(7, 1, 64)
    out = tensor(7, 16 * 128)
    name = "vllm::unified_mla_attention_with_output"
    found = in_step(vllm([(5, 5)], [(1, 30), (1, 40)]), name, q, latent, rotary, out)
    assert found.flops == 16 * (192 + 128) * (2 * 25 - 25) + 2 * 16 * (576 + 512) * 70
    assert found.bytes == 2 * (7 * (16 * 320 + 576) + (75 - 7) * 576)


def test_without_lengths_there_is_no_model() -> None:
    name = "vllm::unified_attention"
    with pytest.raises(NoModelError, match="no annotation of a serving engine"):
        cost(name, Q, KV, KV)
    with pytest.raises(NoModelError, match="the engine's annotation lacks them"):
        in_step("step[DECODE bs=4]", name, Q, KV, KV)
    with pytest.raises(NoModelError, match="do not match attention"):
        in_step(vllm([], [(1, 5)]), name, tensor(4, 8), KV, KV)


A = tensor(4, 64, kind=FP8)
B = tensor(16, 64, kind=FP8)
B_TRANSPOSED = tensor(64, 16, kind=FP8)


#: Bytes of the two factors, 4 × 64 and 64 × 16, by the bits of their elements.
BYTES_8_8 = 4 * 64 + 64 * 16
BYTES_4_4 = (4 * 64 + 64 * 16) // 2
BYTES_16_4 = 2 * 4 * 64 + 64 * 16 // 2


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "stored"),
    [
        ("_C::cutlass_scaled_mm", [tensor(4, 16), A, B_TRANSPOSED], "fp8", BYTES_8_8),
        ("sgl_kernel::fp8_scaled_mm", [A, B_TRANSPOSED], "fp8", BYTES_8_8),
        (
            "sgl_kernel::int8_scaled_mm",
            [tensor(4, 64, kind=INT8), tensor(64, 16, kind=INT8)],
            "int8",
            BYTES_8_8,
        ),
        ("vllm::w8a8_triton_block_scaled_mm_func", [A, B], "fp8", BYTES_8_8),
        ("aiter::gemm_a8w8_bpreshuffle", [A, B], "fp8", BYTES_8_8),
        (
            "aiter::gemm_a4w4",
            [tensor(4, 32, kind=BYTE), tensor(16, 32, kind=BYTE)],
            "fp4",
            BYTES_4_4,
        ),
        (
            "vllm::gemm_with_dynamic_quant",
            [tensor(4, 64), tensor(16, 32, kind=BYTE)],
            "bf16",
            BYTES_16_4,
        ),
        (
            "_C::awq_gemm",
            [tensor(4, 64), tensor(64, 2, kind=INT)],
            "bf16",
            BYTES_16_4,
        ),
        (
            "_C::gptq_gemm",
            [tensor(4, 64), tensor(8, 16, kind=INT)],
            "bf16",
            BYTES_16_4,
        ),
        (
            "_C::gptq_marlin_gemm",
            [tensor(4, 64), NOTHING, tensor(4, 32, kind=INT)],
            "bf16",
            BYTES_16_4,
        ),
        (
            "flashinfer::mm_fp4",
            [tensor(4, 32, kind=BYTE), tensor(32, 16, kind=BYTE)],
            "fp4",
            BYTES_4_4,
        ),
    ],
)
def test_quantised_products(
    name: str, arguments: list[dict[str, Any]], kind: str, stored: int
) -> None:
    """All of 4 rows, 64 in, 16 out, with a scale for each of 16 columns."""
    found = cost(name, *arguments, tensor(16, 1, kind=F32))
    assert (found.family, found.data_type) == ("GEMM", kind)
    assert [found.parameters[key] for key in "MNK"] == [4, 16, 64]
    assert found.flops == 2 * 4 * 16 * 64
    scales = 16 * 4
    result = 4 * 16 * 2
    assert found.bytes == stored + scales + result


def test_skinny_products_name_the_weights_first() -> None:
    found = cost(
        "_rocm_C::wvSplitK", tensor(16, 64), tensor(4, 64), tensor(16), value(304)
    )
    assert (found.flops, found.parameters["M"]) == (2 * 4 * 16 * 64 + 64, 4)


EXPERTS = [tensor(8, 32, 64), tensor(8, 64, 16)]
CHOICE = [tensor(4, 2, kind=F32), tensor(4, 2, kind=INT)]


#: Of 4 tokens for 2 experts each, with the weights of `EXPERTS`.
EXPERTS_FLOPS = 2 * 4 * 2 * 64 * (32 + 16)


def test_fused_experts_read_the_weights_of_those_expected_to_be_chosen() -> None:
    found = cost("vllm::outplace_fused_experts", tensor(4, 64), *EXPERTS, *CHOICE)
    assert (found.family, found.flops) == ("MoE_fused_fwd", EXPERTS_FLOPS)
    active = 8 * (1 - (6 / 8) ** 4)
    assert found.bytes == round(512 + active * 64 * 48 * 2) + 512
    assert found.parameters["gated"] is True


def test_fused_experts_with_packed_weights() -> None:
    packed = [tensor(8, 4, 64, kind=INT), tensor(8, 1, 128, kind=INT)]
    scales = [tensor(8, 1, 32), tensor(8, 1, 64), tensor(4, 8)]
    found = cost("vllm::fused_marlin_moe", tensor(4, 64), *packed, *scales, *CHOICE)
    assert found.flops == EXPERTS_FLOPS
    assert found.parameters["topk"] == 2


def test_fused_experts_that_are_given_their_number_of_choices() -> None:
    arguments = [
        tensor(4, 64),
        tensor(4, 64, kind=FP8),
        tensor(8, 32, 64, kind=FP8),
        tensor(8, 64, 16, kind=FP8),
        *[NOTHING] * 4,
        value(2),
    ]
    found = cost("aiter::fmoe_fp8_blockscale_g1u1", *arguments)
    assert found.flops == EXPERTS_FLOPS


@pytest.mark.parametrize(
    "arguments",
    [[tensor(4, 64)], [tensor(4, 64), *EXPERTS], [*EXPERTS, *CHOICE]],
    ids=["no experts", "no choice", "no tokens"],
)
def test_fused_experts_without_an_argument_have_no_model(arguments: list[Any]) -> None:
    with pytest.raises(NoModelError):
        cost("vllm::outplace_fused_experts", *arguments)


VIEWED_CHOICE = [tensor(4, 2), tensor(4, 2, kind="short int")]
PACKED = [tensor(8, 32, 32, kind=BYTE), tensor(8, 8, 64, kind=BYTE)]


def moe_forward(*below: list[dict[str, Any]]) -> pd.Series[Any]:
    """The row of an engine's operation with views of the given arguments below it."""
    maker = TraceMaker()

    def add(
        name: str, at: float, duration: float, arguments: list[dict[str, Any]]
    ) -> None:
        recorded = {
            "Input Dims": [each["dims"] for each in arguments],
            "Input type": [each["type"] for each in arguments],
        }
        maker.op(name, at, duration, args=recorded)

    router = tensor(4, 8)
    add("vllm::moe_forward", 0, 90, [tensor(4, 64), router, NOTHING])
    for number, arguments in enumerate(below, start=1):
        add("aten::view", number, 0.5, arguments)
    maker.call("cudaLaunchKernel", 50, 5, correlation=1)
    maker.gpu("kernel", "_matmul_ogs", 60, 20, correlation=1)
    return TreePerfAnalyzer(maker.document()).get_df_roofline().iloc[0]


def test_experts_whose_weights_show_below_the_engines_operation() -> None:
    """Packed weights are in views, and the choice is beside the sorting."""
    bits = [tensor(4, 1, kind="unsigned int")]
    sorting = [*VIEWED_CHOICE, value(0)]
    other = [tensor(1, 8, 16)]
    found = moe_forward(bits, [PACKED[0]], sorting, [PACKED[1]], other)
    assert (found["family"], found["flops"]) == ("MoE_fused_fwd", EXPERTS_FLOPS)
    active = 8 * (1 - (6 / 8) ** 4)
    assert found["bytes"] == round(512 + active * (32 * 32 + 8 * 64)) + 512


@pytest.mark.parametrize(
    "below",
    [[PACKED], [VIEWED_CHOICE], [[PACKED[0]], VIEWED_CHOICE]],
    ids=["no choice", "no weights", "one weight"],
)
def test_experts_without_weights_or_choice_below_have_no_model(
    below: list[list[dict[str, Any]]],
) -> None:
    assert "not recorded" in moe_forward(*below)["why_no_model"]


def test_each_step_has_its_own_lengths() -> None:
    engine = Engine(layers=2)
    steps = [([], [(1, 100)]), ([], [(1, 101)]), ([(7, 9)], [])]
    recorded = tensors([1, 64, 64], [1, 8, 64], [1, 8, 64])
    for context, generation in steps:
        engine.step(vllm(context, generation), attention=recorded)
    engine.step("step[DECODE bs=1]", attention=recorded)
    analyzer = TreePerfAnalyzer(engine.document())
    frame = analyzer.get_df_roofline()
    frame = frame[frame["op_name"] == "vllm::unified_attention_with_output"]
    known = frame[frame["family"] == "InferenceAttention_fwd"]
    per_pair = 64 * (64 + 64)
    assert sorted(known["flops"]) == [
        per_pair * n for n in (2 * 63 - 49, 2 * 100, 2 * 101)
    ]
    assert known["count"].tolist() == [2] * 3  # layers
    (missing,) = frame[frame["family"].isna()]["why_no_model"]
    assert "lacks them" in missing
    table = analyzer.get_df_performance_model("InferenceAttention_fwd")
    assert sorted(table["param: g_sk"]) == [0, 100, 101]
    assert BF16 in set(table["param: dtype_Q"])


@pytest.mark.real_data
def test_attention_within_a_graph_has_the_lengths_of_the_step_that_launched_it() -> (
    None
):
    folder = SHARED / "inference" / "vllm_decode_full"
    analyzer = TreePerfAnalyzer(
        folder / "graph_execution.json.gz", capture=folder / "capture_traces"
    )
    (found,) = analyzer.get_df_performance_model("InferenceAttention_fwd").to_dict(
        "records"
    )
    assert (found["name_count"], found["GFLOPS_first"]) == (24, 0.902529024)
    assert found["Data Moved (MB)_first"] == 113.340416
    assert found["Kernel Time (µs)_sum"] == pytest.approx(724.36)
    (experts,) = analyzer.get_df_performance_model("MoE_fused_fwd").to_dict("records")
    flops = 2 * 32 * 4 * 3072 * (5888 + 2944)  # of 32 tokens, four experts each, padded
    assert experts["GFLOPS_first"] == pytest.approx(flops / 1e9)
