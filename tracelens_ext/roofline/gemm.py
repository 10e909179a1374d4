"""Matrix products and convolutions, which the matrix units compute.

A product takes 2·B·M·N·K operations, and B·M·N more when something is added. One of complex numbers
takes four times as many, an addition of them twice. An element of `Float4_e2m1fn_x2` holds two
numbers along K.

Also products with quantised weights, and experts, of serving engines (vLLM, SGLang, aiter, …).
Their weights are packed in many ways (two 4-bit numbers a byte, eight in an int32, in tiles), but
the number of their elements is always N·K, and K is known from the activations.

Of a convolution each element of the result is a sum over input channels and the kernel's places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.analysis.operations.experts import is_of_experts
from tracelens_ext.roofline.operation import Cost, Models, bytes_read, known, named

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

Sizes = tuple[int, int, int, int]
MODELS = Models()
_of = MODELS.of("gemm")
_of_engines = MODELS.of("quantized")
_of_convolutions = MODELS.of("convolution")
_NO_PRODUCT: Final = "the recorded shapes are not those of a matrix product"


def matrix_product(
    a: Tensor, b: Tensor, added: Tensor | None = None, result: str | None = None
) -> Cost:
    """`a` [B, M, K] times `b` [B, K, N], or without B; a result in the type of `a` unless given."""
    known(len(a.dims) > 1 < len(b.dims) and a.dims[-1] == b.dims[-2], _NO_PRODUCT)
    sizes = math.prod(a.dims[:-2]), a.dims[-2], b.dims[-1], a.dims[-1]
    return product(sizes, a, b, added, result)


def product(
    sizes: Sizes, a: Tensor, b: Tensor, added: Tensor | None = None, result: str | None = None
) -> Cost:
    """As `matrix_product`, by B, M, N and K."""
    batch, m, n, k = sizes
    elements = batch * m * n
    bias = added is not None
    k *= 2 if a.kind == b.kind == "c10::Float4_e2m1fn_x2" else 1
    complex_ = "complex" in a.kind
    flops = (8 if complex_ else 2) * elements * k + (1 + complex_) * elements * bias
    moved = bytes_read(a, b, added) + a.as_many(elements, result)
    parameters = _parameters((batch, m, n, k), a, b, bias=bias)
    parameters["transpose"] = (_by_columns(b), _by_columns(a))
    return Cost("GEMM", flops, moved, a.short, "matrix", parameters)


def _parameters(sizes: Sizes, a: Tensor, b: Tensor, *, bias: bool) -> dict[str, object]:
    about = bias, a.strides, b.strides, (a.kind, b.kind)
    return named("B M N K bias stride_A stride_B dtype_A_B", *sizes, *about)


def product_sizes(cost: Cost | None) -> Sizes:
    """B, M, N and K of a matrix product; 0 where there are none, or a plugin tells none."""
    told = cost.parameters if cost is not None and cost.family == "GEMM" else {}
    b, m, n, k = (size if isinstance(size := told.get(name), int) else 0 for name in "BMNK")
    return b, m, n, k


def _by_columns(tensor: Tensor) -> bool:
    """Whether a matrix lies in memory column by column: what BLAS, which swaps A and B, calls T."""
    return len(tensor.strides) > 1 and tensor.strides[-1] != 1 and tensor.strides[-2] == 1


@_of("mm bmm", 0, 1)
def mm(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """`mm`, `bmm`: A, B, and newer ones a type of the result."""
    return matrix_product(a, b, result=op.scalar_type(2))


@_of("addmm addmm_ _addmm_activation baddbmm baddbmm_", 1, 2)
def addmm(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """`addmm`, `baddbmm`: what is added, A, B, beta, alpha; with a beta of 0 nothing is added."""
    return matrix_product(a, b, op.need(0) if op.value(3) != 0 else None)


@_of("_scaled_mm", 0, 1)
def scaled_mm(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """`_scaled_mm`: before PyTorch 2.5 A, B, bias, type, scales; since then scales first."""
    bias, kind = (2, 3) if op.tensor(3) is None else (4, 6)
    return matrix_product(a, b, op.tensor(bias), op.scalar_type(kind) or "c10::BFloat16")


@_of("_int_mm", 0, 1)
def int_mm(_: Operation, a: Tensor, b: Tensor) -> Cost:
    """`_int_mm`: the result of 8-bit numbers has 32 bits."""
    return matrix_product(a, b, result="int")


@_of("linear _C::linear te_linear vllm::rocm_unquantized_gemm", 0, 1)
def linear(op: Operation, x: Tensor, weight: Tensor) -> Cost:
    """`linear`: input […, K], weight [N, K], bias."""
    return _linear(x, weight, op.tensor(2))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, result: str | None = None) -> Cost:
    fits = len(weight.dims) == 2 and x.dims[-1:] == weight.dims[1:]
    known(fits, "the recorded shapes are not those of a linear layer")
    n, k = weight.dims
    return product((1, math.prod(x.dims[:-1]), n, k), x, weight, bias, result)


@_of("matmul", 0, 1)
def matmul(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """`matmul`: batches broadcast; vectors gain a dimension."""
    if len(a.dims) <= 2 and len(b.dims) == 1:
        return mv(op)
    row = len(a.dims) == 1
    fits = a.dims and len(b.dims) > 1 and a.dims[-1] == b.dims[-2]
    known(bool(fits) and not (row and len(b.dims) > 2), _NO_PRODUCT)
    batch = max(math.prod(a.dims[:-2]), math.prod(b.dims[:-2]))
    return product((batch, 1 if row else a.dims[-2], b.dims[-1], a.dims[-1]), a, b)


@_of("mv addmv addmv_ dot vdot")
def mv(op: Operation) -> Cost:
    """`mv`, `addmv`, `dot`: a matrix, or a row, times a vector."""
    adds = "addmv" in op.name
    a = op.need(int(adds))
    v = op.need(int(adds) + 1)
    fits = v.dims and a.dims and a.dims[-1] == v.dims[0]
    known(bool(fits), "the recorded shapes are not those of a product with a vector")
    rows = a.dims[0] if len(a.dims) == 2 else 1
    return product((1, rows, 1, v.dims[0]), a, v, op.need(0) if adds and op.value(3) != 0 else None)


@_of("_grouped_mm _scaled_grouped_mm", 0, 1)
def grouped_mm(op: Operation, a: Tensor, b: Tensor) -> Cost:
    """`_grouped_mm`, `_scaled_grouped_mm`: rows of A [M, K] meet one of G matrices [G, K, N].

    By offsets; or the columns of B [K, N] one of [G, M, K]; or both are 3-D. Scaled ones are added
    nothing to, and their result is bf16 unless a type says otherwise.
    """
    result = op.scalar_type(7) or "c10::BFloat16" if "scaled" in op.name else op.scalar_type(4)
    if len(a.dims) == 3 == len(b.dims):
        return matrix_product(a, b, result=result)
    fits = {len(a.dims), len(b.dims)} == {2, 3} and a.dims[-1] == b.dims[-2]
    known(fits, "the sizes of the groups are not recorded")
    return product((1, a.dims[-2], b.dims[-1], a.dims[-1]), a, b, result=result)


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
    inner = weights.dims[-1]
    outer = weights.dims[-2]
    return 2 if weights.kind in _BYTE and inner != k and k in (2 * inner, 2 * outer) else 1


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
    known(len(rest) >= 2, _NO_PRODUCT)
    a = rest[0]
    b = next((t for t in rest[1:] if _is_small(t) or t.kind in _INT32), rest[1])
    both_packed = a.kind in _BYTE and b.kind in _BYTE
    m = a.elements // max(1, a.dims[-1])
    k = a.dims[-1] * (2 if both_packed else 1)
    numbers = b.elements * (2 if both_packed else _packed(b, k))
    known(k > 0 and numbers % k == 0, _NO_PRODUCT)
    n = numbers // k
    written = (t for t in rest[1:] if t.dims == (m, n) and not _is_small(t))
    out = matrices[0] if first_is_result else next(written, None)
    others = [t for t in tensors if t is not a and t is not b and t is not out]
    kind = out.kind if out is not None else (_HALF if _is_small(a) else a.kind)
    moved = bytes_read(a, b, *others) + a.as_many(m * n, kind)
    bias = any(t.dims == (n,) and not _is_small(t) for t in others)
    parameters = _parameters((1, m, n, k), a, b, bias=bias)
    short = "fp4" if both_packed else a.short
    return Cost("GEMM", 2 * m * n * k, moved, short, "matrix", parameters)


@_of_engines("_rocm_C::wvSplitK _rocm_C::LLMM1 _rocm_C::wvSplitKQ", 0, 1)
def weights_first(op: Operation, weights: Tensor, x: Tensor) -> Cost:
    """Skinny products of vLLM for ROCm: weights [N, K], activations [M, K], bias."""
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
    known(len(places) >= 2 and places[0] > 0, "the weights of the experts are not recorded")
    w1, w2 = (op.need(i) for i in places[:2])
    # The last matrix before the weights, or of engines the first, holds the tokens.
    matrices = [t for i in range(places[0]) if (t := op.tensor(i)) and len(t.dims) == 2]
    x = known(matrices or None, "the tokens are not recorded")[0 if is_of_experts(op.name) else -1]
    tokens = x.dims[0]
    topk = _topk(op, places[1], tokens)
    experts = w1.dims[0]
    k = x.dims[-1] * (2 if x.kind in _BYTE else 1)
    packed = _packed(w1, k)
    n1, n2 = (t.elements * packed / max(1, experts * k) for t in (w1, w2))
    fits = n1.is_integer() and n2.is_integer() and 0 < topk <= experts
    known(fits, "the recorded shapes are not those of experts")
    active = experts * (1 - (1 - topk / experts) ** tokens)
    names = "num_tokens hidden_dim inter_dim num_experts topk gated input_dtype weight_dtype"
    gated = n1 == 2 * n2
    shown = named(names, tokens, k, int(n2), experts, topk, gated, x.kind, w1.kind)
    flops = 2 * tokens * topk * k * int(n1 + n2)
    moved = round(x.read + (w1.read + w2.read) * active / experts) + x.as_many(tokens * k, _HALF)
    judged = w1 if w1.kind not in _BYTE and _is_small(w1) else x
    return Cost("MoE_fused_fwd", flops, moved, judged.short, "matrix", shown)


def _topk(op: Operation, after: int, tokens: int) -> int:
    """How many experts a token has, by [T, topk] after the weights, else by an argument."""
    later = (op.tensor(i) for i in range(after + 1, len(op.types)))
    found = [t for t in later if t is not None and len(t.dims) == 2 and t.dims[0] == tokens]
    chosen = [t for t in found if t.is_whole and not _is_small(t)] or found
    if chosen:  # their numbers, else their weights; those of all experts may stand before
        return min(t.dims[1] for t in chosen)
    topk = op.whole(_FMOE_TOPK) if op.name.startswith("aiter::fmoe") else 0
    return known(topk or None, "how many experts a token has is not recorded")


class _Places(NamedTuple):
    """Where the arguments of a convolution are; None: it has no such argument."""

    bias: int | None
    stride: int
    padding: int
    dilation: int
    transposed: int | bool
    output_padding: int | None
    groups: int | None


_GENERAL = _Places(2, 3, 4, 5, 6, 7, 8)
_MIOPEN = _Places(2, 4, 3, 5, False, None, 6)
_FORWARD = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _GENERAL),
    **dict.fromkeys(("miopen_convolution", "miopen_depthwise_convolution"), _MIOPEN),
    "miopen_convolution_transpose": _Places(2, 5, 3, 6, True, 4, 7),
    "cudnn_convolution": _Places(None, 3, 2, 4, False, None, 5),
    "cudnn_convolution_transpose": _Places(None, 4, 2, 5, True, 3, 6),
    "cudnn_convolution_relu": _Places(2, 3, 4, 5, False, None, 6),
    "_conv_depthwise2d": _Places(3, 4, 5, 6, False, None, None),
}


_SHOWN: Final = (
    "convNd input_shape filter_shape output_shape dtype_input_weight input_stride weight_stride"
    " stride padding dilation transposed_conv output_padding groups"
)


def _shape(
    op: Operation, x: Tensor, weight: Tensor, at: _Places
) -> tuple[int, int, dict[str, object]]:
    """Operations without a bias, elements of the result, and what experts read."""
    n = len(weight.dims) - 2
    fits = n > 0 and len(x.dims) == n + 2
    known(fits, "the recorded shapes are not those of a convolution with a batch")
    known(bool(op.concrete), "stride and padding are not recorded")
    stride = _each(op, at.stride, n, 1)
    dilation = _each(op, at.dilation, n, 1)
    padding = _each(op, at.padding, n, 0)
    extra = _each(op, at.output_padding, n, 0)
    groups = op.whole(at.groups, 1) or 1
    transposed = at.transposed if isinstance(at.transposed, bool) else bool(op.value(at.transposed))
    kernel = weight.dims[2:]
    reach = [dilation[i] * (kernel[i] - 1) - 2 * padding[i] + 1 for i in range(n)]
    if transposed:  # each element of the input meets all elements of its filters
        channels = weight.dims[1] * groups
        spatial = [(x.dims[2 + i] - 1) * stride[i] + reach[i] + extra[i] for i in range(n)]
        flops = 2 * x.elements * math.prod(weight.dims[1:])
    else:
        channels = weight.dims[0]
        spatial = [(x.dims[2 + i] - reach[i]) // max(stride[i], 1) + 1 for i in range(n)]
        flops = 2 * x.dims[0] * channels * math.prod(spatial)
        flops *= (x.dims[1] // groups) * math.prod(kernel)
    result = (x.dims[0], channels, *spatial)
    tensors = f"conv{n}d", x.dims, weight.dims, result, (x.kind, weight.kind), x.strides
    settings = weight.strides, *map(tuple, (stride, padding, dilation)), transposed, tuple(extra)
    return flops, math.prod(result), named(_SHOWN, *tensors, *settings, groups)


def _each(op: Operation, i: int | None, n: int, default: int) -> list[int]:
    """A setting for each of n dimensions, which may be one number for all."""
    value = op.value(i)
    numbers = [value] if type(value) is int else [] if value is None else op.wholes(i)
    numbers = known(numbers, f"padding {value!r} is not recorded as numbers")
    return numbers * n if len(numbers) == 1 else (numbers + [default] * n)[:n]


@_of_convolutions(" ".join(_FORWARD), 0, 1)
def forward(op: Operation, x: Tensor, weight: Tensor) -> Cost:
    """Input [N, Cin, …], weight [Cout, Cin / groups, …], bias; the result in the input's type."""
    at = _FORWARD[op.plain_name]
    bias = op.tensor(at.bias) if at.bias is not None else None
    flops, elements, parameters = _shape(op, x, weight, at)
    moved = bytes_read(x, weight, bias) + x.as_many(elements)
    parameters["bias"] = bias is not None
    flops += elements * (bias is not None)
    return Cost("CONV_fwd", flops, moved, x.short, "matrix", parameters)


@_of_convolutions("convolution_backward", 0, 1, 2)
def backward(op: Operation, grad: Tensor, x: Tensor, weight: Tensor) -> Cost:
    """Gradients of input, weight and bias, as far as `output_mask` asks for them."""
    mask = op.value(10)
    if not isinstance(mask, list | tuple) or len(mask) != 3:
        mask = known(None, "which gradients are wanted is not recorded")
    flops, _, parameters = _shape(op, x, weight, _Places(None, 4, 5, 6, 7, 8, 9))
    of_input, of_weight, of_bias = map(bool, mask)
    moved = grad.read + (x.read + weight.written) * of_weight + (weight.read + x.written) * of_input
    if of_bias and len(grad.dims) > 1:
        moved += grad.dims[1] * weight.item
    flops = flops * (of_input + of_weight) + grad.elements * of_bias
    parameters |= {"dgrad": of_input, "wgrad": of_weight}
    return Cost("CONV_bwd", flops, moved, x.short, "matrix", parameters)
