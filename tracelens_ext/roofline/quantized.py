"""Products with quantised weights, and experts, of serving engines (vLLM, SGLang, aiter, …).

Weights are packed in many ways (two 4-bit numbers a byte, eight in an int32, in tiles), but the
number of their elements is always N·K, and K is known from the activations.
"""

from __future__ import annotations

from typing import Final

from tracelens_ext.operations.experts import is_of_experts
from tracelens_ext.roofline.gemm import linear, product
from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    is_whole,
    short_type,
)

_BYTE: Final = ("unsigned char", "uint8_t", "c10::Float4_e2m1fn_x2")
_INT32: Final = ("int", "unsigned int")
_PER_INT32 = 8  # 4-bit numbers
_HALF = "c10::BFloat16"  # what results are where no argument says so; fp16 is as large


def _is_small(tensor: Tensor) -> bool:
    """Whether the elements are of 8 bits, or packed."""
    return tensor.item == 1


def _packed(weights: Tensor, k: int) -> int:
    """How many numbers an element of the weights holds, given K."""
    if weights.kind in _INT32:
        return _PER_INT32
    inner, outer = weights.dims[-1], weights.dims[-2]
    half = inner != k and k in (2 * inner, 2 * outer)
    return 2 if weights.kind in _BYTE and half else 1


def quantized_gemm(op: Operation) -> Cost:
    """2·M·N·K for activations A [M, K] (after the result, where that comes first) and weights.

    Bytes: A, weights, scales and zeros as they are stored, and the result.
    """
    tensors = [t for t in op.tensors if t.dims]
    matrices = [t for t in tensors if len(t.dims) >= 2]
    first_is_result = _begins_with_result(matrices)
    rest = matrices[first_is_result:]
    if len(rest) < 2:
        op.need(0)
        raise NoModelError("the recorded shapes are not those of a matrix product")
    a, second = rest[:2]
    b = next((t for t in rest[1:] if _is_small(t) or t.kind in _INT32), second)
    both_packed = a.kind in _BYTE and b.kind in _BYTE
    m, k = a.elements // max(1, a.dims[-1]), a.dims[-1] * (2 if both_packed else 1)
    numbers = b.elements * (2 if both_packed else _packed(b, k))
    if not k or numbers % k:
        raise NoModelError("the recorded shapes are not those of a matrix product")
    n = numbers // k
    result = matrices[0] if first_is_result else _result(rest[1:], m, n)
    others = [t for t in tensors if t is not a and t is not b and t is not result]
    kind = result.kind if result is not None else (_HALF if _is_small(a) else a.kind)
    return Cost(
        family="GEMM",
        flops=2 * m * n * k,
        bytes=bytes_read(a, b, *others) + m * n * ELEMENT_BYTES[kind],
        data_type="fp4" if both_packed else short_type(a.kind),
        engine="matrix",
        parameters={
            "B": 1,
            "M": m,
            "N": n,
            "K": k,
            "bias": any(t.dims == (n,) and not _is_small(t) for t in others),
            "stride_A": a.strides,
            "stride_B": b.strides,
            "dtype_A_B": (a.kind, b.kind),
        },
    )


def _begins_with_result(matrices: list[Tensor]) -> bool:
    """Whether the first is [M, N] of the product of the next two, which are quantised."""
    if len(matrices) < 3:
        return False
    result, a, b = matrices[:3]
    small = not _is_small(result) and _is_small(a) and _is_small(b)
    return small and result.dims[0] == a.dims[0] and result.dims[-1] in b.dims


def _result(tensors: list[Tensor], m: int, n: int) -> Tensor | None:
    """The tensor that the result is written to, where there is one among the arguments."""
    return next((t for t in tensors if t.dims == (m, n) and not _is_small(t)), None)


def weights_first(op: Operation) -> Cost:
    """Skinny products of vLLM for ROCm: weights [N, K], activations [M, K], bias."""
    weights, x = op.need(0), op.need(1)
    bias = next((t for t in op.tensors[2:] if t.dims == weights.dims[:1]), None)
    if not x.dims or len(weights.dims) != 2 or x.dims[-1] != weights.dims[1]:
        raise NoModelError("the recorded shapes are not those of a linear layer")
    (n, k), m = weights.dims, x.elements // max(1, x.dims[-1])
    return product(1, m, n, k, x, weights, bias, _HALF if _is_small(x) else x.kind)


def fused_experts(op: Operation) -> Cost:
    """Experts of a mixture: 2·T·topk·K·(N1 + N2) for T tokens, each with `topk` experts.

    Arguments are tokens [T, K] (after the result, where that comes first), the weights of all E
    experts [E, N1, K] and [E, K, N2], N1 being 2·N2 of gated experts, and the weights of the chosen
    ones [T, topk]. Bytes: tokens, result, and the weights of those experts that are chosen when all
    are equally likely: E·(1 - (1 - topk/E)^T).
    """
    places = [i for i in range(len(op.types)) if (t := op.tensor(i)) and len(t.dims) == 3]
    if len(places) < 2 or places[0] == 0:
        op.need(0)
        raise NoModelError("the weights of the experts are not recorded")
    w1, w2 = (op.need(i) for i in places[:2])
    x, tokens = _tokens(op, places[0])
    topk = _topk(op, places[1], tokens)
    experts, k = w1.dims[0], x.dims[-1]
    if x.kind in _BYTE:
        k *= 2
    packed = _packed(w1, k)
    n1, n2 = (t.elements * packed / max(1, experts * k) for t in (w1, w2))
    if not n1.is_integer() or not n2.is_integer() or not 0 < topk <= experts:
        raise NoModelError("the recorded shapes are not those of experts")
    active = experts * (1 - (1 - topk / experts) ** tokens)
    weights = (w1.read + w2.read) * active / experts
    small = w1.kind not in _BYTE and _is_small(w1)
    return Cost(
        family="MoE_fused_fwd",
        flops=2 * tokens * topk * k * int(n1 + n2),
        bytes=round(x.read + weights) + tokens * k * ELEMENT_BYTES[_HALF],
        data_type=short_type(w1.kind if small else x.kind),
        engine="matrix",
        parameters={
            "num_tokens": tokens,
            "hidden_dim": k,
            "inter_dim": int(n2),
            "num_experts": experts,
            "topk": topk,
            "gated": n1 == 2 * n2,
            "input_dtype": x.kind,
            "weight_dtype": w1.kind,
        },
    )


def _tokens(op: Operation, before: int) -> tuple[Tensor, int]:
    """The last matrix before the weights, or of engines the first, and how many tokens it holds."""
    found = [t for i in range(before) if (t := op.tensor(i)) is not None and len(t.dims) == 2]
    if not found:
        raise NoModelError("the tokens are not recorded")
    x = found[0 if is_of_experts(op.name) else -1]
    return x, x.dims[0]


def _topk(op: Operation, after: int, tokens: int) -> int:
    """How many experts a token has, by [T, topk] after the weights, else by an argument."""
    later = (op.tensor(i) for i in range(after + 1, len(op.types)))
    found = [t for t in later if t is not None and len(t.dims) == 2 and t.dims[0] == tokens]
    chosen = [t for t in found if is_whole(t.kind) and not _is_small(t)] or found
    if chosen:  # their numbers, else their weights; those of all experts may stand before
        return min(t.dims[1] for t in chosen)
    if op.name.startswith("aiter::fmoe") and op.whole(_FMOE_TOPK):
        return op.whole(_FMOE_TOPK)
    raise NoModelError("how many experts a token has is not recorded")


_FMOE_TOPK: Final = 8  # the argument of aiter's kernels with the number of experts a token

MODELS = {
    "vllm::rocm_unquantized_gemm": linear,
    **dict.fromkeys(("_rocm_C::wvSplitK", "_rocm_C::LLMM1", "_rocm_C::wvSplitKQ"), weights_first),
    **dict.fromkeys(
        (
            *("_C::cutlass_scaled_mm*", "_C::cutlass_scaled_fp4_mm*", "_C::gptq_marlin_gemm"),
            *("_C::marlin_gemm", "_C::gptq_gemm", "_C::awq_gemm", "_C::machete_mm"),
            *("_C::awq_marlin_gemm", "vllm::rocm_aiter_gemm*", "vllm::gemm_with_dynamic_quant"),
            *("vllm::w8a8*", "vllm::padded_cutlass", "vllm::rocm_per_tensor_float_w8a8*"),
            *("vllm::flashinfer_mm_fp4", "aiter::gemm_a*", "aiter::_gemm_a*"),
            *("aiter::hipb_mm", "sgl_kernel::fp8_scaled_mm"),
            *("sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm"),
            *("sgl_kernel::cutlass_scaled_fp4_mm", "sgl_kernel::gptq_marlin_gemm"),
            *("sglang::w8a8*", "flashinfer::mm_fp4*", "flashinfer::gemm_fp8*"),
        ),
        quantized_gemm,
    ),
    **dict.fromkeys(
        (
            *("vllm::inplace_fused_experts", "vllm::outplace_fused_experts"),
            *(
                "vllm::fused_marlin_moe",
                "vllm::rocm_aiter_fused_moe",
                "vllm::flashinfer_fused_moe*",
            ),
            *("sglang::inplace_fused_experts", "sglang::outplace_fused_experts"),
            *("aiter::fused_moe_", "aiter::fmoe*", "vllm::moe_forward*"),
        ),
        fused_experts,
    ),
}
