"""Matrix products: 2·B·M·N·K operations, and B·M·N more when something is added.

A product of complex numbers takes four times as many, an addition of them twice. An element of
`Float4_e2m1fn_x2` holds two numbers along K.

Also products with quantised weights, and experts, of serving engines (vLLM, SGLang, aiter, …).
Their weights are packed in many ways (two 4-bit numbers a byte, eight in an int32, in tiles), but
the number of their elements is always N·K, and K is known from the activations.
"""

from __future__ import annotations

import math
from typing import Final

from tracelens_ext.operations.launchers import is_of_experts
from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    Models,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    is_whole,
    short_type,
)

MODELS = Models()
_of = MODELS.of("gemm")
_of_engines = MODELS.of("quantized")


def matrix_product(
    a: Tensor, b: Tensor, added: Tensor | None = None, result: str | None = None
) -> Cost:
    """`a` [B, M, K] times `b` [B, K, N], or without B; a result in the type of `a` unless given."""
    if len(a.dims) < 2 or len(b.dims) < 2 or a.dims[-1] != b.dims[-2]:
        raise NoModelError("the recorded shapes are not those of a matrix product")
    sizes = math.prod(a.dims[:-2]), a.dims[-2], b.dims[-1], a.dims[-1]
    return product(sizes, a, b, added, result)


def product(
    sizes: tuple[int, int, int, int],
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    result: str | None = None,
) -> Cost:
    """As `matrix_product`, by B, M, N and K."""
    batch, m, n, k = sizes
    elements, bias = batch * m * n, added is not None
    k *= 2 if a.kind == b.kind == "c10::Float4_e2m1fn_x2" else 1
    complex_ = "complex" in a.kind
    flops = (8 if complex_ else 2) * elements * k + (1 + complex_) * elements * bias
    moved = bytes_read(a, b, added) + elements * ELEMENT_BYTES[result or a.kind]
    parameters = _parameters((batch, m, n, k), a, b, bias=bias)
    parameters["transpose"] = (_by_columns(b), _by_columns(a))
    return Cost("GEMM", flops, moved, short_type(a.kind), "matrix", parameters)


def _parameters(
    sizes: tuple[int, int, int, int], a: Tensor, b: Tensor, *, bias: bool
) -> dict[str, object]:
    more = {"bias": bias, "stride_A": a.strides, "stride_B": b.strides}
    kinds = {"dtype_A_B": (a.kind, b.kind)}
    return dict(zip("BMNK", sizes, strict=True)) | more | kinds


def product_sizes(cost: Cost | None) -> tuple[int, int, int, int]:
    """B, M, N and K of a matrix product; 0 where there are none, or a plugin tells none."""
    known = cost.parameters if cost is not None and cost.family == "GEMM" else {}
    sizes = (known.get(name) for name in ("B", "M", "N", "K"))
    b, m, n, k = (size if isinstance(size, int) else 0 for size in sizes)
    return b, m, n, k


def _by_columns(tensor: Tensor) -> bool:
    """Whether a matrix lies in memory column by column: what BLAS, which swaps A and B, calls T."""
    return len(tensor.strides) > 1 and tensor.strides[-1] != 1 and tensor.strides[-2] == 1


@_of("mm bmm")
def mm(op: Operation) -> Cost:
    """`mm`, `bmm`: A, B, and newer ones a type of the result."""
    return matrix_product(op.need(0), op.need(1), result=op.scalar_type(2))


@_of("addmm addmm_ _addmm_activation baddbmm baddbmm_")
def addmm(op: Operation) -> Cost:
    """`addmm`, `baddbmm`: what is added, A, B, beta, alpha; with a beta of 0 nothing is added."""
    return matrix_product(op.need(1), op.need(2), op.need(0) if op.value(3) != 0 else None)


@_of("_scaled_mm")
def scaled_mm(op: Operation) -> Cost:
    """`_scaled_mm`: before PyTorch 2.5 A, B, bias, type, scales; since then scales first."""
    old = op.tensor(3) is None
    bias, result = (op.tensor(2), op.scalar_type(3)) if old else (op.tensor(4), op.scalar_type(6))
    return matrix_product(op.need(0), op.need(1), bias, result or "c10::BFloat16")


@_of("_int_mm")
def int_mm(op: Operation) -> Cost:
    """`_int_mm`: the result of 8-bit numbers has 32 bits."""
    return matrix_product(op.need(0), op.need(1), result="int")


@_of("linear _C::linear te_linear vllm::rocm_unquantized_gemm")
def linear(op: Operation) -> Cost:
    """`linear`: input […, K], weight [N, K], bias."""
    return _linear(op.need(0), op.need(1), op.tensor(2))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, result: str | None = None) -> Cost:
    if not x.dims or len(weight.dims) != 2 or x.dims[-1] != weight.dims[1]:
        raise NoModelError("the recorded shapes are not those of a linear layer")
    sizes = 1, math.prod(x.dims[:-1]), *weight.dims
    return product(sizes, x, weight, bias, result)


@_of("matmul")
def matmul(op: Operation) -> Cost:
    """`matmul`: batches broadcast; vectors gain a dimension."""
    a, b = op.need(0), op.need(1)
    if len(a.dims) <= 2 and len(b.dims) == 1:
        return mv(op)
    row = len(a.dims) == 1
    if not a.dims or len(b.dims) < 2 or a.dims[-1] != b.dims[-2] or (row and len(b.dims) > 2):
        raise NoModelError("the recorded shapes are not those of a matrix product")
    batch = max(math.prod(a.dims[:-2]), math.prod(b.dims[:-2]))
    return product((batch, 1 if row else a.dims[-2], b.dims[-1], a.dims[-1]), a, b)


@_of("mv addmv addmv_ dot vdot")
def mv(op: Operation) -> Cost:
    """`mv`, `addmv`, `dot`: a matrix, or a row, times a vector."""
    adds = "addmv" in op.name
    a, v = op.need(int(adds)), op.need(int(adds) + 1)
    if not v.dims or not a.dims or a.dims[-1] != v.dims[0]:
        raise NoModelError("the recorded shapes are not those of a product with a vector")
    rows = a.dims[0] if len(a.dims) == 2 else 1
    added = op.need(0) if adds and op.value(3) != 0 else None
    return product((1, rows, 1, v.dims[0]), a, v, added)


@_of("_grouped_mm _scaled_grouped_mm")
def grouped_mm(op: Operation) -> Cost:
    """`_grouped_mm`, `_scaled_grouped_mm`: rows of A [M, K] meet one of G matrices [G, K, N].

    By offsets; or the columns of B [K, N] one of [G, M, K]; or both are 3-D. Scaled ones are added
    nothing to, and their result is bf16 unless a type says otherwise.
    """
    a, b = op.need(0), op.need(1)
    result = op.scalar_type(7) or "c10::BFloat16" if "scaled" in op.name else op.scalar_type(4)
    if len(a.dims) == 3 == len(b.dims):
        return matrix_product(a, b, result=result)
    if sorted((len(a.dims), len(b.dims))) == [2, 3] and a.dims[-1] == b.dims[-2]:
        return product((1, a.dims[-2], b.dims[-1], a.dims[-1]), a, b, result=result)
    raise NoModelError("the sizes of the groups are not recorded")


_BYTE: Final = ("unsigned char", "uint8_t", "c10::Float4_e2m1fn_x2")
_INT32: Final = ("int", "unsigned int")
_PER_INT32 = 8  # 4-bit numbers
_FMOE_TOPK: Final = 8  # the argument of aiter's kernels with the number of experts a token
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


@_of_engines(
    "_C::cutlass_scaled_mm* _C::cutlass_scaled_fp4_mm* _C::gptq_marlin_gemm _C::marlin_gemm"
    " _C::gptq_gemm _C::awq_gemm _C::machete_mm _C::awq_marlin_gemm vllm::rocm_aiter_gemm*"
    " vllm::gemm_with_dynamic_quant vllm::w8a8* vllm::padded_cutlass vllm::flashinfer_mm_fp4"
    " vllm::rocm_per_tensor_float_w8a8* aiter::gemm_a* aiter::_gemm_a* aiter::hipb_mm"
    " sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm sgl_kernel::fp8_blockwise_scaled_mm"
    " sgl_kernel::cutlass_scaled_fp4_mm sgl_kernel::gptq_marlin_gemm sglang::w8a8*"
    " flashinfer::mm_fp4* flashinfer::gemm_fp8*"
)
def quantized_gemm(op: Operation) -> Cost:
    """2·M·N·K for activations A [M, K] (after the result, where that comes first) and weights.

    Bytes: A, weights, scales and zeros as they are stored, and the result.
    """
    tensors = [t for t in op.tensors if t.dims]
    matrices = [t for t in tensors if len(t.dims) >= 2]
    first_is_result = False
    if list(map(_is_small, matrices[:3])) == [False, True, True]:  # [M, N], A and the weights
        result, a, b = matrices[:3]
        first_is_result = result.dims[0] == a.dims[0] and result.dims[-1] in b.dims
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
    written = (t for t in rest[1:] if t.dims == (m, n) and not _is_small(t))
    out = matrices[0] if first_is_result else next(written, None)
    others = [t for t in tensors if t is not a and t is not b and t is not out]
    kind = out.kind if out is not None else (_HALF if _is_small(a) else a.kind)
    bias = any(t.dims == (n,) and not _is_small(t) for t in others)
    return Cost(
        "GEMM",
        2 * m * n * k,
        bytes_read(a, b, *others) + m * n * ELEMENT_BYTES[kind],
        "fp4" if both_packed else short_type(a.kind),
        "matrix",
        _parameters((1, m, n, k), a, b, bias=bias),
    )


@_of_engines("_rocm_C::wvSplitK _rocm_C::LLMM1 _rocm_C::wvSplitKQ")
def weights_first(op: Operation) -> Cost:
    """Skinny products of vLLM for ROCm: weights [N, K], activations [M, K], bias."""
    weights, x = op.need(0), op.need(1)
    bias = next((t for t in op.tensors[2:] if t.dims == weights.dims[:1]), None)
    return _linear(x, weights, bias, _HALF if _is_small(x) else x.kind)


@_of_engines(
    "vllm::inplace_fused_experts vllm::outplace_fused_experts vllm::fused_marlin_moe"
    " vllm::rocm_aiter_fused_moe vllm::flashinfer_fused_moe* vllm::moe_forward*"
    " sglang::inplace_fused_experts sglang::outplace_fused_experts aiter::fused_moe_ aiter::fmoe*"
)
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
    # The last matrix before the weights, or of engines the first, holds the tokens.
    matrices = [t for i in range(places[0]) if (t := op.tensor(i)) and len(t.dims) == 2]
    if not matrices:
        raise NoModelError("the tokens are not recorded")
    x = matrices[0 if is_of_experts(op.name) else -1]
    tokens = x.dims[0]
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
    parameters = {
        "num_tokens": tokens,
        "hidden_dim": k,
        "inter_dim": int(n2),
        "num_experts": experts,
        "topk": topk,
        "gated": n1 == 2 * n2,
        "input_dtype": x.kind,
        "weight_dtype": w1.kind,
    }
    flops = 2 * tokens * topk * k * int(n1 + n2)
    moved = round(x.read + weights) + tokens * k * ELEMENT_BYTES[_HALF]
    kind = short_type(w1.kind if small else x.kind)
    return Cost("MoE_fused_fwd", flops, moved, kind, "matrix", parameters)


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
