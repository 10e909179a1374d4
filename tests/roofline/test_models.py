"""Performance models: FLOPs and bytes of each family, worked out by hand; hostile arguments."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.analysis.operations.arguments import parsed
from tracelens_ext.hooks import default_registry
from tracelens_ext.roofline.analysis import _apply_model
from tracelens_ext.roofline.convolution import with_known_results
from tracelens_ext.roofline.element_types import ELEMENT_BYTES
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.roofline.operation import Cost, NoModelError, Operation

BF16 = "c10::BFloat16"
F32 = "float"
I64 = "long int"
BOOL = "bool"
MODELS = offered_models(default_registry(plugins=False))

Argument = tuple[Any, str, str]


def tensor(
    *dims: int, kind: str = BF16, strides: list[int] | None = None
) -> dict[str, Any]:
    """A tensor argument, contiguous unless strides are given."""
    contiguous = [math.prod(dims[index + 1 :]) for index in range(len(dims))]
    return {
        "dims": list(dims),
        "type": kind,
        "strides": strides or contiguous,
        "concrete": "",
    }


def value(content: object, kind: str = "Scalar") -> dict[str, Any]:
    """A number, a flag or a list of them."""
    return {"dims": [], "type": kind, "strides": [], "concrete": str(content)}


NOTHING = {"dims": [], "type": "", "strides": [], "concrete": ""}


def of_texts(name: str, kernels: tuple[str, ...], *texts: str) -> Operation:
    return Operation.of_arguments(name, kernels, [parsed(text)[0] for text in texts])


def operation(
    name: str, *arguments: dict[str, Any], kernels: tuple[str, ...] = ()
) -> Operation:
    name = name if "::" in name or name.startswith("triton_") else f"aten::{name}"
    keys = ("dims", "type", "strides", "concrete")
    texts = [json.dumps([argument[key] for argument in arguments]) for key in keys]
    return of_texts(name, kernels, *texts)


def cost(name: str, *arguments: dict[str, Any], kernels: tuple[str, ...] = ()) -> Cost:
    op = operation(name, *arguments, kernels=kernels)
    model = model_of(op.name, MODELS)
    assert model is not None, name
    return model.item(op)


def figures(name: str, *arguments: dict[str, Any]) -> tuple[str, int, int]:
    """Return family, FLOPs and bytes of an operation."""
    found = cost(name, *arguments)
    return found.family, found.flops, found.bytes


#: Factors with M = 4, K = 8 and N = 16, and the figures of their product.
LEFT = tensor(4, 8)
RIGHT = tensor(8, 16)
PRODUCT_FLOPS = 2 * 4 * 16 * 8
PRODUCT_ELEMENTS = 4 * 8 + 8 * 16 + 4 * 16


def test_a_product_reads_two_factors_and_writes_the_result() -> None:
    assert figures("mm", LEFT, RIGHT) == ("GEMM", PRODUCT_FLOPS, 2 * PRODUCT_ELEMENTS)
    with pytest.raises(NoModelError, match="do not match a matrix product"):
        cost("mm", LEFT, LEFT)


def test_a_bias_is_read_and_added_unless_beta_is_0() -> None:
    bias = tensor(16)
    added = cost("addmm", bias, LEFT, RIGHT, value(1), value(1))
    assert added.flops == PRODUCT_FLOPS + 4 * 16
    assert added.bytes == 2 * (PRODUCT_ELEMENTS + 16)
    not_added = cost("addmm", bias, LEFT, RIGHT, value(0), value(1))
    assert not_added.flops == PRODUCT_FLOPS
    assert not_added.bytes == 2 * PRODUCT_ELEMENTS


def test_a_batch_of_products_reads_an_expanded_factor_once() -> None:
    batched = cost("bmm", tensor(3, 4, 8), tensor(3, 8, 16))
    assert batched.flops == 3 * PRODUCT_FLOPS
    assert [batched.parameters[key] for key in "BMNK"] == [3, 4, 16, 8]
    expanded = tensor(3, 8, 16, strides=[0, 16, 1])
    elements = 3 * 4 * 8 + 8 * 16 + 3 * 4 * 16
    assert cost("bmm", tensor(3, 4, 8), expanded).bytes == 2 * elements


def test_a_scaled_product_has_the_result_type_of_its_argument() -> None:
    kind = "c10::Float8_e4m3fn"
    bf16 = value(15)
    scale = tensor(1, kind=F32)
    left = tensor(4, 8, kind=kind)
    right = tensor(8, 16, kind=kind)
    scaled = cost("_scaled_mm", left, right, scale, scale, NOTHING, NOTHING, bf16)
    assert scaled.flops == PRODUCT_FLOPS
    assert scaled.bytes == 4 * 8 + 8 * 16 + 2 * 4 * 16
    assert scaled.data_type == "fp8"


def convolution(
    *inputs: dict[str, Any], transposed: bool = False
) -> tuple[str, int, int]:
    pair = value([1, 1], "ScalarList")
    rest = (pair, value([0, 0], "ScalarList"), pair, value(transposed))
    return figures("convolution", *inputs, *rest, value([0, 0], "ScalarList"), value(1))


IMAGES = tensor(2, 3, 8, 8)
FILTERS = tensor(5, 3, 3, 3)
IMAGE_ELEMENTS = 2 * 3 * 8 * 8
FILTER_ELEMENTS = 5 * 3 * 3 * 3
CONVOLVED_ELEMENTS = 2 * 5 * 6 * 6
CONVOLUTION_FLOPS = 2 * CONVOLVED_ELEMENTS * 3 * 9


def test_convolution() -> None:
    moved = 2 * (IMAGE_ELEMENTS + FILTER_ELEMENTS + CONVOLVED_ELEMENTS)
    found = convolution(IMAGES, FILTERS, NOTHING)
    assert found == ("CONV_fwd", CONVOLUTION_FLOPS, moved)
    with_bias = convolution(IMAGES, FILTERS, tensor(5))
    flops = CONVOLUTION_FLOPS + CONVOLVED_ELEMENTS
    assert with_bias == ("CONV_fwd", flops, moved + 2 * 5)


def test_transposed_convolution() -> None:
    filters = tensor(3, 5, 3, 3)
    _, flops, _ = convolution(IMAGES, filters, NOTHING, transposed=True)
    assert flops == 2 * IMAGE_ELEMENTS * 5 * 9


def test_gradients_of_a_convolution_by_its_output_mask() -> None:
    gradient = tensor(2, 5, 6, 6)
    lists = [value(v, "ScalarList") for v in ([5], [1, 1], [0, 0], [1, 1])]
    rest = (value(False), value([0, 0], "ScalarList"), value(1))
    mask = value([False, True, True], "ScalarList")
    found = figures(
        "convolution_backward", gradient, IMAGES, FILTERS, *lists, *rest, mask
    )
    flops = CONVOLUTION_FLOPS + CONVOLVED_ELEMENTS
    moved = 2 * (CONVOLVED_ELEMENTS + IMAGE_ELEMENTS + FILTER_ELEMENTS + 5)
    assert found == ("CONV_bwd", flops, moved)


@pytest.mark.parametrize("library", ["cudnn", "miopen"])
def test_gradients_of_convolutions_by_an_operation_each(library: str) -> None:
    """As PyTorch before 2022 computes them."""
    x = tensor(2, 3, 8, 8)
    w = tensor(5, 3, 3, 3)
    grad = tensor(2, 5, 6, 6)
    flops = 2 * (2 * 5 * 6 * 6) * 3 * 9
    x_size = value([2, 3, 8, 8], "ScalarList")
    w_size = value([5, 3, 3, 3], "ScalarList")
    name = f"{library}_convolution_backward"
    moved_bytes = 2 * (2 * 5 * 36 + 2 * 3 * 64 + 5 * 27)
    assert figures(f"{name}_input", x_size, grad, w)[:2] == ("CONV_bwd", flops)
    assert figures(f"{name}_weight", w_size, grad, x) == (
        "CONV_bwd",
        flops,
        moved_bytes,
    )
    assert figures(name, x, grad, w)[1] == 2 * flops
    with pytest.raises(NoModelError, match="size of the weight is not recorded"):
        cost(f"{name}_weight", NOTHING, grad, x)


def test_transposed_convolutions_have_gradients_too() -> None:
    """As many operations as forward: each element of the input meets its filters."""
    x = tensor(2, 3, 8, 8)
    w = tensor(3, 5, 3, 3)
    grad = tensor(2, 5, 10, 10)
    found = figures("cudnn_convolution_transpose_backward", x, grad, w)
    assert found[1] == 2 * 2 * (2 * 3 * 64) * 5 * 9


def test_a_convolution_and_its_gradient_give_each_other_missing_sizes() -> None:
    """Without concrete inputs; where several results fit, nothing is assumed."""
    x = tensor(2, 3, 8, 8)
    w = tensor(5, 3, 3, 3)
    grad = tensor(2, 5, 4, 4)
    forward = replace(operation("aten::cudnn_convolution", x, w), concrete=())
    name = "aten::cudnn_convolution_backward_weight"
    gradient = replace(operation(name, NOTHING, grad, x), concrete=())
    both = with_known_results([forward, gradient])
    assert [each.result_dims for each in both] == [(2, 5, 4, 4), (5, 3, 3, 3)]
    other = tensor(2, 5, 2, 2)
    ambiguous = replace(operation(name, NOTHING, other, x), concrete=())
    assert with_known_results([forward, gradient, ambiguous])[0].result_dims is None


@pytest.mark.parametrize(
    ("causal", "pairs_twice"), [("False", 2 * 16 * 16), ("True", 16 * 16)]
)
def test_attention(causal: str, pairs_twice: int) -> None:
    q = tensor(2, 8, 16, 32)
    kv = tensor(2, 4, 16, 32)
    found = figures(
        "_scaled_dot_product_flash_attention",
        q,
        kv,
        kv,
        value(0.0),
        value(causal),
        value("False"),
    )
    size = 2 * 8 * 16 * 32
    assert found == (
        "SDPA_fwd",
        2 * 8 * pairs_twice * 64,
        2 * (size + size // 2 * 2 + size),
    )
    lengths = tensor(3, kind="int")
    several = [q, kv, kv, lengths, lengths, *[NOTHING] * 3, value("False")]
    with pytest.raises(NoModelError, match="different lengths"):
        cost("_flash_attention_forward", *several)


@pytest.mark.parametrize(
    ("name", "arguments", "moved"),
    [
        ("add", [tensor(4, 8), tensor(8)], 2 * (32 + 8 + 32)),
        ("add", [tensor(4, 8), tensor(4, 8, kind=F32)], 2 * 32 + 4 * 32 + 4 * 32),
        ("mul_", [tensor(4, 8), tensor(4, 8, kind=F32)], 2 * 32 + 4 * 32 + 2 * 32),
        ("eq", [tensor(4, 8), value(0)], 2 * 32 + 32),
        ("div", [tensor(4, kind=I64), tensor(4, kind=I64)], 8 * 4 * 2 + 4 * 4),
        (
            "where",
            [tensor(4, kind=BOOL), tensor(4, kind=F32), tensor(4, kind=F32)],
            4 + 3 * 16,
        ),
        (
            "masked_fill_",
            [tensor(4, kind=F32), tensor(4, kind=BOOL), value(0)],
            16 + 4 + 16,
        ),
        ("copy_", [tensor(4, kind=F32), tensor(4), value("False")], 16 + 8),
        ("fill_", [tensor(4, kind=F32), value(0)], 16),
        ("_softmax", [tensor(4, 8), value(-1), value("False")], 2 * 2 * 32),
        (
            "native_layer_norm",
            [tensor(4, 8), value([8], "ScalarList"), tensor(8), tensor(8)],
            160,
        ),
        (
            "sum",
            [tensor(4, 8), value([1], "ScalarList"), value("False"), NOTHING],
            2 * 32 + 2 * 4,
        ),
        ("argmax", [tensor(4, 8), value(1), value("False")], 2 * 32 + 8 * 4),
        ("max", [tensor(4, 8), value(1), value("False")], 2 * 32 + (2 + 8) * 4),
        (
            "index_select",
            [tensor(9, 8), value(0), tensor(4, kind=I64)],
            8 * 4 + 2 * 2 * 32,
        ),
        ("embedding", [tensor(99, 8), tensor(4, kind=I64)], 8 * 4 + 2 * 2 * 32),
    ],
)
def test_bytes_of_operations_bound_by_memory(
    name: str, arguments: list[dict[str, Any]], moved: int
) -> None:
    found = cost(name, *arguments)
    assert found.bytes == moved
    assert found.engine == "vector"


def test_lists_take_their_type_from_the_kernel() -> None:
    several = {
        "dims": [[4, 8], [4, 8]],
        "type": "TensorList",
        "strides": [[8, 1], [8, 1]],
    }
    arguments = [several | {"concrete": ""}, value(0)]
    kernel = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<4u>, unsigned int, 2>"
    assert cost("cat", *arguments, kernels=(kernel,)).bytes == 4 * 64 * 2
    with pytest.raises(NoModelError, match="element type"):
        cost("cat", *arguments, kernels=("some_copy",))


def test_kernels_of_torch_compile_have_a_bound() -> None:
    found = cost("triton_poi_fused_add_mul_3", tensor(4, 8), tensor(4, 8))
    assert (found.family, found.flops, found.bytes, found.bound_only) == (
        "Triton",
        64,
        128,
        True,
    )


@pytest.mark.parametrize(
    ("dims", "kind", "why"),
    [
        ([[4, -8], [8, 4]], BF16, "not a tensor with a recorded shape"),
        ([[4, 8], [8, 4]], "c10::Unheard", "unknown element type 'c10::Unheard'"),
        ([["4", 8], [8, 4]], BF16, "not a tensor"),
        ([[10**400, 8], [8, 4]], BF16, "sizes are impossible"),
        ([[2**40, 8], [8, 2**40]], BF16, "sizes are impossible"),
        ([[[[[4]]]], [8, 4]], BF16, "not a tensor"),
        ([None, {}], BF16, "not a tensor"),
        ([], BF16, "not a tensor"),
    ],
)
def test_hostile_sizes_have_no_model(dims: object, kind: str, why: str) -> None:
    op = of_texts("aten::mm", (), json.dumps(dims), json.dumps([kind, kind]), "", "")
    found, reason = _apply_model(MODELS["aten::mm"].item, op)
    assert found is None
    assert why in str(reason)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", "5", "null", '["a', "NaN", "\ud800"]
)
def test_malformed_arguments_have_no_dims(text: str) -> None:
    op = of_texts("aten::add", (), text, text, text, text)
    assert op.dims == ()


SIZES = st.integers(-2, 70) | st.just(2**70)
JUNK = st.recursive(
    st.none() | SIZES | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
DIMS = st.lists(SIZES, max_size=5) | JUNK
KINDS = st.sampled_from(
    [*ELEMENT_BYTES, "Scalar", "ScalarList", "TensorList", "", "None", "?"]
)
TEXTS = st.sampled_from(
    ["", "None", "True", "0", "-1", "[0]", "[1, -1]", "inf", "[[", "9" * 30]
)


@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(st.tuples(DIMS, KINDS, DIMS, TEXTS), max_size=14),
    st.sampled_from(["", "void f<c10::Half, 4>()", "OpaqueType<16u>"]),
)
def test_costs_are_integers_of_at_least_0_for_any_arguments(
    name: str, arguments: list[tuple[object, str, object, str]], kernel: str
) -> None:
    columns = [json.dumps([argument[i] for argument in arguments]) for i in range(4)]
    op = of_texts(name.replace("*", "poi_fused_add_0"), (kernel,), *columns)
    found, reason = _apply_model(MODELS[name].item, op)
    assert bool(reason) == (found is None)
    if found is not None:
        assert found.bytes >= 0
        assert found.flops >= 0
        assert isinstance(found.bytes, int)
        assert isinstance(found.flops, int)


def test_a_product_of_8_bit_numbers_has_a_32_bit_result() -> None:
    kind = "signed char"
    found = cost("_int_mm", tensor(4, 8, kind=kind), tensor(8, 16, kind=kind))
    assert found.flops == PRODUCT_FLOPS
    assert found.bytes == 4 * 8 + 8 * 16 + 4 * 4 * 16
    assert found.data_type == "int8"


def test_packed_elements_hold_two_numbers_along_k() -> None:
    kind = "c10::Float4_e2m1fn_x2"
    bf16 = value(15)
    scale = tensor(64, kind=F32)
    left = tensor(4, 8, kind=kind)
    right = tensor(8, 16, kind=kind)
    packed = cost("_scaled_mm", left, right, scale, scale, NOTHING, NOTHING, bf16)
    assert packed.flops == 2 * PRODUCT_FLOPS
    assert packed.bytes == 4 * 8 + 8 * 16 + 2 * 4 * 16
    assert packed.data_type == "fp4"
    assert packed.parameters["K"] == 16


def test_a_product_of_complex_numbers_takes_four_times_the_operations() -> None:
    kind = "c10::complex<float>"
    found = cost("mm", tensor(4, 8, kind=kind), tensor(8, 16, kind=kind))
    assert found.flops == 4 * PRODUCT_FLOPS
    assert found.bytes == 8 * PRODUCT_ELEMENTS


def test_grouped_products() -> None:
    """Each row, or column, meets one group; scaled ones give bf16."""
    kind = "c10::Float8_e4m3fn"
    a = tensor(64, 8, kind=kind)
    b = tensor(3, 8, 16, kind=kind)
    scale = tensor(64, kind=F32)
    offsets = tensor(3, kind="int")
    scaled = cost("_scaled_grouped_mm", a, b, scale, scale, offsets)
    assert (scaled.flops, scaled.bytes) == (
        2 * 64 * 16 * 8,
        64 * 8 + 3 * 8 * 16 + 2 * 64 * 16,
    )
    assert (
        figures("_grouped_mm", tensor(3, 4, 8), tensor(8, 64), offsets)[1]
        == 2 * 4 * 64 * 8
    )


@pytest.mark.parametrize(("nq", "nkv"), [(64, 64), (16, 96), (96, 16)])
@pytest.mark.parametrize("window", [None, -1, 0, 8, 40, 200])
def test_pairs_of_causal_attention(nq: int, nkv: int, window: int | None) -> None:
    """The pairs are those counted on a fine grid.

    The operation without a window puts the first query at the first key, the other one the last
    query at the last key.
    """
    if window is None:
        heads_first = [tensor(1, 2, length, 8) for length in (nq, nkv, nkv)]
        flags = [NOTHING, value(False), value(0.0), value(True)]
        found = cost("_scaled_dot_product_efficient_attention", *heads_first, *flags)
        offset = 0
    else:
        tensors = [tensor(1, length, 2, 8) for length in (nq, nkv, nkv)]
        flags = [value(0.0), value(1.0), value(True), value(window), value(-1)]
        found = cost("flash_attn::_flash_attn_forward", *tensors, *flags)
        offset = nkv - nq
    points_per_position = 8
    pairs = 0.0
    for point in range(nq * points_per_position):
        position = (point + 0.5) / points_per_position + offset
        first_key = 0.0
        if window is not None and window >= 0:
            first_key = max(position - window, 0)
        visible_keys = max(min(position, nkv) - first_key, 0)
        pairs += visible_keys / points_per_position
    assert found.flops == pytest.approx(2 * 2 * pairs * 16, abs=4)


def test_aiters_attention() -> None:
    q = tensor(2, 64, 4, 16)
    window = [value(True), value(-1), value(-1)]
    forward = cost("aiter::mha_fwd", q, q, q, value(0.0), value(1.0), *window)
    lse = tensor(2, 4, 64, kind=F32)
    backward = cost(
        "aiter::mha_bwd", q, q, q, q, q, lse, value(0.0), value(1.0), *window
    )
    assert (forward.family, forward.flops) == ("SDPA_fwd", 2 * 4 * 64 * 64 * 32)
    assert (backward.family, backward.flops) == ("SDPA_bwd", forward.flops * 5 // 2)


def test_fused_norms_gates_and_rotations() -> None:
    x = tensor(6, 32)
    weight = tensor(32)
    one = 2 * 6 * 32
    assert figures("_C::rms_norm", x, x, weight)[1:] == (7 * 192, 2 * one + 64)
    assert figures("aiter::rmsnorm2d_fwd", x, weight)[1:] == (7 * 192, 2 * one + 64)
    four = (8 * 192, 4 * one + 64)
    assert figures("_C::fused_add_rms_norm", x, x, weight)[1:] == four
    assert figures("aiter::rmsnorm2d_fwd_with_add", x, x, x, x, weight)[1:] == four
    quantised = tensor(6, 32, kind="c10::Float8_e4m3fn")
    moved = figures(
        "_C::rms_norm_static_fp8_quant", quantised, x, weight, tensor(1, kind=F32)
    )[2]
    assert moved == one + 192 + 64 + 4
    gate = ("UnaryElementwise", 12 * 192, 3 * one)
    assert figures("_C::silu_and_mul", x, tensor(6, 64)) == gate
    positions = tensor(6, kind=I64)
    q = tensor(6, 8 * 16)
    k = tensor(6, 2 * 16)
    turn = figures("_C::rotary_embedding", positions, q, k, value(16), tensor(99, 8))
    assert turn[1:] == (3 * 480, 6 * 8 + 6 * 8 * 2 + 2 * 480 * 2)  # half of each head


def test_rotations_of_aiter() -> None:
    """All of each head by whole angles; half of it by a cache of half as many, at positions."""
    q = tensor(6, 2, 4, 16)
    k = tensor(6, 2, 1, 16)
    freqs = tensor(6, 1, 1, 16, kind=F32)
    flags = [value(0), value(False), value(False)]
    whole = figures("aiter::rope_fwd_impl", q, q, freqs, *flags)[1:]
    assert whole == (3 * 768, 2 * 2 * 768 + 4 * 96)
    cache = tensor(99, 1, 1, 4)
    positions = tensor(6, 2, kind=I64)
    tables = [cache, cache, positions, value(0), value(True), value(False)]
    cached = figures("aiter::rope_cached_positions_2c_fwd_impl", q, k, q, k, *tables)[
        1:
    ]
    assert cached == (3 * 60 * 8, 2 * 2 * 960 + 2 * 12 * 4 * 2 + 12 * 8)
    image = tensor(1, 8, 1, 4, 4), tensor(1, 1, 8, 4, 4)
    tables = [image[0], image[0], image[1], image[1], value(8), value(8), value(True)]
    patches = tensor(1, 64, 4, 16)
    assert (
        figures("aiter::rope_2d_fwd_impl", patches, patches, *tables)[1]
        == 3 * 64 * 4 * 16
    )
    with pytest.raises(NoModelError, match="do not match a rotary"):
        cost("aiter::rope_fwd_impl", q, q, positions)
