"""Products with quantized weights, and experts, of serving engines (vLLM, SGLang, aiter, …).

Their weights are packed in many ways (two 4-bit numbers a byte, eight in an int32, in tiles), but
the number of their elements is always N·K, and K is known from the activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.analysis.operations.experts import is_of_experts
from tracelens_ext.roofline.element_types import BFLOAT16, PACKED_FP4
from tracelens_ext.roofline.gemm import (
    NO_PRODUCT,
    ProductSizes,
    linear_layer,
    product_parameters,
)
from tracelens_ext.roofline.operation import (
    Cost,
    Engine,
    Models,
    bytes_read,
    require,
    required,
)

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()
#: Types whose elements may hold two numbers of 4 bits.
_BYTE_TYPES: Final = ("unsigned char", "uint8_t", PACKED_FP4)
_INT32_TYPES: Final = ("int", "unsigned int")
_NUMBERS_IN_INT32: Final = 8  # of 4 bits each
#: The argument of aiter's kernels with the number of experts that a token has.
_TOPK_OF_FMOE: Final = 8
#: What results are where no argument says so; fp16 is as large.
_RESULT_TYPE: Final = BFLOAT16


def _is_small(tensor: Tensor) -> bool:
    """Return whether the elements are of 8 bits, or packed."""
    return tensor.element_bytes == 1


def _numbers_in_element(weights: Tensor, k: int) -> int:
    """Return how many numbers an element of the weights holds, given K."""
    if weights.kind in _INT32_TYPES:
        return _NUMBERS_IN_INT32
    inner = weights.dims[-1]
    outer = weights.dims[-2]
    if weights.kind in _BYTE_TYPES and inner != k and k in (2 * inner, 2 * outer):
        return 2
    return 1


class _QuantizedMatrices(NamedTuple):
    """The matrices of a quantized product."""

    activations: Tensor
    weights: Tensor
    #: the other matrices behind the activations
    others: list[Tensor]
    result: Tensor | None  #: where it is the first argument


def _matrices_of(operation: Operation) -> _QuantizedMatrices:
    """Tell the matrices apart: the result may come first, then activations, then weights."""
    matrices = [tensor for tensor in operation.tensors if len(tensor.dims) >= 2]
    result = None
    are_small = [_is_small(matrix) for matrix in matrices[:3]]
    if are_small == [False, True, True]:
        first, activations, weights = matrices[:3]
        if first.dims[0] == activations.dims[0] and first.dims[-1] in weights.dims:
            result = first
            matrices = matrices[1:]
    if len(matrices) < 2:
        operation.need(0)
    require(len(matrices) >= 2, NO_PRODUCT)
    behind_activations = matrices[1:]
    weights = behind_activations[0]
    for matrix in behind_activations:
        if _is_small(matrix) or matrix.kind in _INT32_TYPES:
            weights = matrix
            break
    return _QuantizedMatrices(
        activations=matrices[0],
        weights=weights,
        others=behind_activations,
        result=result,
    )


@MODELS.add(
    "_C::cutlass_scaled_mm*",
    "_C::cutlass_scaled_fp4_mm*",
    "_C::gptq_marlin_gemm",
    "_C::marlin_gemm",
    "_C::gptq_gemm",
    "_C::awq_gemm",
    "_C::machete_mm",
    "_C::awq_marlin_gemm",
    "vllm::rocm_aiter_gemm*",
    "vllm::gemm_with_dynamic_quant",
    "vllm::w8a8*",
    "vllm::padded_cutlass",
    "vllm::flashinfer_mm_fp4",
    "vllm::rocm_per_tensor_float_w8a8*",
    "aiter::gemm_a*",
    "aiter::_gemm_a*",
    "aiter::hipb_mm",
    "sgl_kernel::fp8_scaled_mm",
    "sgl_kernel::int8_scaled_mm",
    "sgl_kernel::fp8_blockwise_scaled_mm",
    "sgl_kernel::cutlass_scaled_fp4_mm",
    "sgl_kernel::gptq_marlin_gemm",
    "sglang::w8a8*",
    "flashinfer::mm_fp4*",
    "flashinfer::gemm_fp8*",
)
def quantized_gemm(operation: Operation) -> Cost:
    """2·M·N·K for activations A [M, K] (after the result, where that comes first) and weights.

    Bytes: A, weights, scales and zeros as they are stored, and the result.
    """
    activations, weights, other_matrices, result = _matrices_of(operation)
    both_packed = activations.kind in _BYTE_TYPES and weights.kind in _BYTE_TYPES
    m = activations.elements // max(1, activations.dims[-1])
    k = activations.dims[-1]
    if both_packed:
        k = 2 * k
        numbers = 2 * weights.elements
    else:
        numbers = weights.elements * _numbers_in_element(weights, k)
    require(k > 0 and numbers % k == 0, NO_PRODUCT)
    n = numbers // k
    if result is None:
        result = _written_matrix(other_matrices, (m, n))
    not_others = (activations, weights, result)
    others = [
        tensor
        for tensor in operation.tensors
        if tensor.dims and not any(tensor is matrix for matrix in not_others)
    ]
    if result is not None:
        result_type = result.kind
    elif _is_small(activations):
        result_type = _RESULT_TYPE
    else:
        result_type = activations.kind
    has_bias = any(tensor.dims == (n,) and not _is_small(tensor) for tensor in others)
    sizes = ProductSizes(batch=1, m=m, n=n, k=k)
    return Cost(
        family="GEMM",
        flops=2 * m * n * k,
        bytes=bytes_read(activations, weights, *others)
        + activations.bytes_of(m * n, result_type),
        data_type="fp4" if both_packed else activations.short_type,
        engine=Engine.MATRIX.value,
        parameters=product_parameters(sizes, activations, weights, has_bias=has_bias),
    )


def _written_matrix(matrices: list[Tensor], shape: tuple[int, int]) -> Tensor | None:
    """Return the first matrix of the shape of the result."""
    for matrix in matrices:
        if matrix.dims != shape:
            continue
        if not _is_small(matrix):
            return matrix
    return None


@MODELS.add("_rocm_C::wvSplitK", "_rocm_C::LLMM1", "_rocm_C::wvSplitKQ", tensors=(0, 1))
def weights_first(operation: Operation, weights: Tensor, activations: Tensor) -> Cost:
    """Skinny products of vLLM for ROCm: weights [N, K], activations [M, K], bias."""
    bias = None
    for tensor in operation.tensors[2:]:
        if tensor.dims == weights.dims[:1]:
            bias = tensor
            break
    result_type = activations.kind
    if _is_small(activations):
        result_type = _RESULT_TYPE
    return linear_layer(
        inputs=activations, weight=weights, bias=bias, result_type=result_type
    )


@MODELS.add(
    "vllm::inplace_fused_experts",
    "vllm::outplace_fused_experts",
    "vllm::fused_marlin_moe",
    "vllm::rocm_aiter_fused_moe",
    "vllm::flashinfer_fused_moe*",
    "vllm::moe_forward*",
    "sglang::inplace_fused_experts",
    "sglang::outplace_fused_experts",
    "aiter::fused_moe_",
    "aiter::fmoe*",
)
def fused_experts(operation: Operation) -> Cost:
    """Experts of a mixture: 2·T·topk·K·(N1 + N2) for T tokens, each with `topk` experts.

    Arguments are tokens [T, K] (after the result, where that comes first), the weights of all E
    experts [E, N1, K] and [E, K, N2], N1 being 2·N2 of gated experts, and the weights of the chosen
    ones [T, topk]. Bytes: tokens, result, and the weights of those experts that are chosen when all
    are equally likely: E·(1 - (1 - topk/E)^T).
    """
    positions = _positions_of_rank(operation, 3)
    if len(positions) < 2 or positions[0] == 0:
        operation.need(0)
    require(
        len(positions) >= 2 and positions[0] > 0,
        "the weights of the experts are not recorded",
    )
    first_weights = operation.need(positions[0])
    second_weights = operation.need(positions[1])
    tokens = _tokens_of_experts(operation, positions[0])
    token_count = tokens.dims[0]
    topk = _experts_of_a_token(operation, positions[1], token_count)
    experts = first_weights.dims[0]
    hidden = tokens.dims[-1] * (2 if tokens.kind in _BYTE_TYPES else 1)
    packing = _numbers_in_element(first_weights, hidden)
    outputs = first_weights.elements * packing / max(1, experts * hidden)
    inner = second_weights.elements * packing / max(1, experts * hidden)
    are_whole = outputs.is_integer() and inner.is_integer()
    require(
        are_whole and 0 < topk <= experts,
        "the recorded shapes do not match experts",
    )
    weight_bytes = _active_bytes(
        first_weights=first_weights,
        second_weights=second_weights,
        experts=experts,
        topk=topk,
        token_count=token_count,
    )
    moved = round(tokens.read + weight_bytes)
    moved += tokens.bytes_of(token_count * hidden, _RESULT_TYPE)
    weights_are_8_bit = first_weights.kind not in _BYTE_TYPES and _is_small(
        first_weights
    )
    judged = first_weights if weights_are_8_bit else tokens
    return Cost(
        family="MoE_fused_fwd",
        flops=2 * token_count * topk * hidden * int(outputs + inner),
        bytes=moved,
        data_type=judged.short_type,
        engine=Engine.MATRIX.value,
        parameters={
            "num_tokens": token_count,
            "hidden_dim": hidden,
            "inter_dim": int(inner),
            "num_experts": experts,
            "topk": topk,
            "gated": outputs == 2 * inner,
            "input_dtype": tokens.kind,
            "weight_dtype": first_weights.kind,
        },
    )


def _active_bytes(
    first_weights: Tensor,
    second_weights: Tensor,
    experts: int,
    topk: int,
    token_count: int,
) -> float:
    """Return the bytes of the weights of the experts that are chosen on average."""
    active_experts = experts * (1 - (1 - topk / experts) ** token_count)
    return (first_weights.read + second_weights.read) * active_experts / experts


def _positions_of_rank(operation: Operation, rank: int) -> list[int]:
    """Return the positions of the arguments that are tensors of so many dimensions."""
    positions = []
    for position in range(len(operation.types)):
        tensor = operation.tensor(position)
        if tensor is None:
            continue
        if len(tensor.dims) == rank:
            positions.append(position)
    return positions


def _tokens_of_experts(operation: Operation, first_weights: int) -> Tensor:
    """Return the tokens: the last matrix before the weights, or of engines the first."""
    before_weights = [
        position
        for position in _positions_of_rank(operation, 2)
        if position < first_weights
    ]
    require(before_weights, "the tokens are not recorded")
    if is_of_experts(operation.name):
        return operation.need(before_weights[0])
    return operation.need(before_weights[-1])


def _experts_of_a_token(
    operation: Operation, last_weights: int, token_count: int
) -> int:
    """Return how many experts a token has, by [T, topk] after the weights, else by an argument."""
    tensors = []
    for position in _positions_of_rank(operation, 2):
        tensor = operation.need(position)
        if position > last_weights and tensor.dims[0] == token_count:
            tensors.append(tensor)
    numbers_of_experts = [
        tensor for tensor in tensors if tensor.is_whole and not _is_small(tensor)
    ]
    chosen = numbers_of_experts or tensors  # their numbers, else their weights
    if chosen:  # those of all experts may stand before
        return min(tensor.dims[1] for tensor in chosen)
    topk = None
    if operation.name.startswith("aiter::fmoe"):
        topk = operation.whole(_TOPK_OF_FMOE) or None
    return required(topk, "the number of experts per token is not recorded")
