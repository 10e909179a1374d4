"""Quantized matrix products and mixtures of experts in serving engines (vLLM, SGLang, aiter, …).

Quantized weights are packed in many ways: two 4-bit numbers in a byte, eight in an int32, or in
tiles. The number of weights is N·K in every layout, and the activations tell K.
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
#: Element types of 8 bits whose elements may hold two numbers of 4 bits.
_BYTE_TYPES: Final = ("unsigned char", "uint8_t", PACKED_FP4)
_INT32_TYPES: Final = ("int", "unsigned int")
#: How many numbers of 4 bits a 32-bit element holds.
_NUMBERS_IN_INT32: Final = 8
#: Position of the argument "top k" (experts per token) in aiter's calls `fmoe*`.
_POSITION_OF_TOPK_IN_FMOE: Final = 8
#: Element type assumed for a result that is not an argument. fp16 has the same size, so the byte
#: count is right for fp16, too.
_ASSUMED_RESULT_TYPE: Final = BFLOAT16


def _has_byte_elements(tensor: Tensor) -> bool:
    """Return whether an element of a tensor has 8 bits, which may hold packed numbers."""
    return tensor.element_bytes == 1


def _numbers_in_element(weights: Tensor, k: int) -> int:
    """Return how many numbers an element of the weights holds.

    Args:
        weights: their last two dimensions are K and N in either order.
        k: K, counted in numbers. Bytes hold two numbers if a dimension of the weights is K / 2.
    """
    if weights.kind in _INT32_TYPES:
        return _NUMBERS_IN_INT32
    inner = weights.dims[-1]
    outer = weights.dims[-2]
    if weights.kind in _BYTE_TYPES and inner != k and k in (2 * inner, 2 * outer):
        return 2
    return 1


class _QuantizedMatrices(NamedTuple):
    """The matrices among the arguments of a quantized product."""

    activations: Tensor
    weights: Tensor
    #: all matrices behind the activations, the weights among them
    after_activations: list[Tensor]
    result: Tensor | None  #: None unless the result is the first argument


def _matrices_of(operation: Operation) -> _QuantizedMatrices:
    """Find activations and weights: perhaps the result first, then activations, then weights."""
    matrices = [tensor for tensor in operation.tensors if len(tensor.dims) >= 2]
    result = None
    if _result_is_first(matrices):
        result = matrices[0]
        matrices = matrices[1:]
    operation.require_arguments(len(matrices) >= 2, NO_PRODUCT)
    after_activations = matrices[1:]
    weights = after_activations[0]
    for matrix in after_activations:
        if _has_byte_elements(matrix) or matrix.kind in _INT32_TYPES:
            weights = matrix
            break
    return _QuantizedMatrices(
        activations=matrices[0],
        weights=weights,
        after_activations=after_activations,
        result=result,
    )


def _result_is_first(matrices: list[Tensor]) -> bool:
    """Return whether the matrices begin with a result, 8-bit activations and 8-bit weights.

    The elements of such a result are wider than 8 bits. It has a row for each row of the
    activations, and its number of columns is a dimension of the weights.
    """
    if len(matrices) < 3:
        return False
    result, activations, weights = matrices[:3]
    if _has_byte_elements(result):
        return False
    if not _has_byte_elements(activations) or not _has_byte_elements(weights):
        return False
    same_rows = result.dims[0] == activations.dims[0]
    return same_rows and result.dims[-1] in weights.dims


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
    """2·M·N·K for activations [M, K] (behind the result, if that is an argument) and weights.

    Bytes: activations, weights, scales and zero points as they are stored, and the result.
    """
    matrices = _matrices_of(operation)
    activations = matrices.activations
    weights = matrices.weights
    sizes = _product_sizes(activations, weights)
    result = matrices.result
    if result is None:
        result = _matrix_for_result(matrices.after_activations, (sizes.m, sizes.n))
    other_tensors = _tensors_besides(operation, (activations, weights, result))
    bytes_of_inputs = bytes_read(activations, weights, *other_tensors)
    bytes_of_result = activations.bytes_of(
        sizes.m * sizes.n, _result_type(activations, result)
    )
    has_bias = any(
        tensor.dims == (sizes.n,) and not _has_byte_elements(tensor)
        for tensor in other_tensors
    )
    data_type = activations.short_type
    if _are_both_packed(activations, weights):
        data_type = "fp4"
    return Cost(
        family="GEMM",
        flops=2 * sizes.m * sizes.n * sizes.k,
        bytes=bytes_of_inputs + bytes_of_result,
        data_type=data_type,
        engine=Engine.MATRIX.value,
        parameters=product_parameters(sizes, activations, weights, has_bias=has_bias),
    )


def _are_both_packed(activations: Tensor, weights: Tensor) -> bool:
    """Return whether each element of both factors holds two numbers of 4 bits."""
    return activations.kind in _BYTE_TYPES and weights.kind in _BYTE_TYPES


def _product_sizes(activations: Tensor, weights: Tensor) -> ProductSizes:
    """Return M, N and K: N is the number of weights divided by K.

    Raises:
        NoModelError: the number of weights is not a multiple of K.
    """
    m = activations.elements // max(1, activations.dims[-1])
    k = activations.dims[-1]
    if _are_both_packed(activations, weights):
        k = 2 * k
        weight_count = 2 * weights.elements
    else:
        weight_count = weights.elements * _numbers_in_element(weights, k)
    require(k > 0 and weight_count % k == 0, NO_PRODUCT)
    return ProductSizes(batch=1, m=m, n=weight_count // k, k=k)


def _matrix_for_result(matrices: list[Tensor], shape: tuple[int, int]) -> Tensor | None:
    """Return the first matrix that the result may be written to; None without one.

    It has the shape of the result and elements wider than 8 bits.
    """
    for matrix in matrices:
        if matrix.dims == shape and not _has_byte_elements(matrix):
            return matrix
    return None


def _tensors_besides(
    operation: Operation, counted: tuple[Tensor | None, ...]
) -> list[Tensor]:
    """Return the tensor arguments with dimensions, besides those that are counted elsewhere."""
    other_tensors = []
    for tensor in operation.tensors:
        is_counted = any(tensor is matrix for matrix in counted)
        if tensor.dims and not is_counted:
            other_tensors.append(tensor)
    return other_tensors


def _result_type(activations: Tensor, result: Tensor | None) -> str:
    """Return the element type of the result, which 8-bit activations do not tell."""
    if result is not None:
        return result.kind
    if _has_byte_elements(activations):
        return _ASSUMED_RESULT_TYPE
    return activations.kind


@MODELS.add("_rocm_C::wvSplitK", "_rocm_C::LLMM1", "_rocm_C::wvSplitKQ", tensors=(0, 1))
def weights_first(operation: Operation, weights: Tensor, activations: Tensor) -> Cost:
    """Products with few rows in vLLM for ROCm: weights [N, K], activations [M, K], bias [N]."""
    bias = None
    for tensor in operation.tensors[2:]:
        if tensor.dims == weights.dims[:1]:
            bias = tensor
            break
    return linear_layer(
        inputs=activations,
        weight=weights,
        bias=bias,
        result_type=_result_type(activations, None),
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
    """A mixture of experts: 2·T·topk·K·(N1 + N2) for T tokens, each with `topk` experts.

    The arguments are the tokens [T, K] (behind the result, if that is an argument), the weights of
    all E experts [E, N1, K] and [E, K, N2], and the chosen experts or their weights [T, topk].
    N1 is 2·N2 for gated experts. Bytes: the tokens, the result, and the weights of the experts
    that are chosen on average if all are equally likely: E·(1 - (1 - topk/E)^T) experts.
    """
    experts = _experts_of(operation)
    tokens = experts.tokens
    first_weights = experts.first_weights
    bytes_of_result = tokens.bytes_of(
        experts.token_count * experts.hidden_size, _ASSUMED_RESULT_TYPE
    )
    bytes_of_inputs = round(tokens.read + _chosen_weight_bytes(experts))
    size_sum = experts.first_size + experts.second_size
    # Packed weights are unpacked to the type of the tokens before the product.
    computes_in_weight_type = (
        _has_byte_elements(first_weights) and first_weights.kind not in _BYTE_TYPES
    )
    data_type = tokens.short_type
    if computes_in_weight_type:
        data_type = first_weights.short_type
    return Cost(
        family="MoE_fused_fwd",
        flops=2 * experts.token_count * experts.topk * experts.hidden_size * size_sum,
        bytes=bytes_of_inputs + bytes_of_result,
        data_type=data_type,
        engine=Engine.MATRIX.value,
        parameters={
            "num_tokens": experts.token_count,
            "hidden_dim": experts.hidden_size,
            "inter_dim": experts.second_size,
            "num_experts": experts.expert_count,
            "topk": experts.topk,
            "gated": experts.first_size == 2 * experts.second_size,
            "input_dtype": tokens.kind,
            "weight_dtype": first_weights.kind,
        },
    )


class _Experts(NamedTuple):
    """A mixture of experts: its tensors, and its sizes counted in numbers, not in elements."""

    tokens: Tensor  #: [T, K]
    first_weights: Tensor  #: [E, N1, K]
    second_weights: Tensor  #: [E, K, N2]
    token_count: int  #: T
    topk: int  #: experts per token
    expert_count: int  #: E
    hidden_size: int  #: K
    first_size: int  #: N1
    second_size: int  #: N2


def _experts_of(operation: Operation) -> _Experts:
    """Find the tensors and the sizes of a mixture of experts.

    Raises:
        NoModelError: the arguments do not tell them.
    """
    weight_positions = _positions_of_rank(operation, 3)
    operation.require_arguments(
        len(weight_positions) >= 2 and weight_positions[0] > 0,
        "the weights of the experts are not recorded",
    )
    first_weights = operation.need(weight_positions[0])
    second_weights = operation.need(weight_positions[1])
    tokens = _tokens_of_experts(operation, weight_positions[0])
    token_count = tokens.dims[0]
    topk = _experts_per_token(operation, weight_positions[1], token_count)
    expert_count = first_weights.dims[0]
    hidden_size = tokens.dims[-1]
    if tokens.kind in _BYTE_TYPES:
        hidden_size = 2 * hidden_size
    packing = _numbers_in_element(first_weights, hidden_size)
    weights_per_size = max(1, expert_count * hidden_size)
    first_size = first_weights.elements * packing / weights_per_size
    second_size = second_weights.elements * packing / weights_per_size
    are_whole = first_size.is_integer() and second_size.is_integer()
    require(
        are_whole and 0 < topk <= expert_count,
        "the recorded shapes do not match experts",
    )
    return _Experts(
        tokens=tokens,
        first_weights=first_weights,
        second_weights=second_weights,
        token_count=token_count,
        topk=topk,
        expert_count=expert_count,
        hidden_size=hidden_size,
        first_size=int(first_size),
        second_size=int(second_size),
    )


def _chosen_weight_bytes(experts: _Experts) -> float:
    """Return the bytes of the weights of the experts that are chosen on average.

    The chance that no token chooses an expert is (1 - topk/E)^T.
    """
    chance_of_no_token = (1 - experts.topk / experts.expert_count) ** (
        experts.token_count
    )
    chosen_experts = experts.expert_count * (1 - chance_of_no_token)
    bytes_of_all = bytes_read(experts.first_weights, experts.second_weights)
    return bytes_of_all * chosen_experts / experts.expert_count


def _positions_of_rank(operation: Operation, rank: int) -> list[int]:
    """Return the positions of the tensor arguments with this number of dimensions."""
    positions = []
    for position in range(len(operation.types)):
        tensor = operation.tensor(position)
        if tensor is None:
            continue
        if len(tensor.dims) == rank:
            positions.append(position)
    return positions


def _tokens_of_experts(operation: Operation, first_weights: int) -> Tensor:
    """Return the matrix of tokens, which stands before the weights.

    In vLLM's `moe_forward`, the tokens are the first matrix. In other operations they are the last
    matrix before the weights, because a result may stand before them.

    Args:
        operation: the mixture of experts.
        first_weights: the position of the first weights.
    """
    positions_before_weights = [
        position
        for position in _positions_of_rank(operation, 2)
        if position < first_weights
    ]
    require(positions_before_weights, "the tokens are not recorded")
    is_engine_call = is_of_experts(operation.name)
    if is_engine_call:
        return operation.need(positions_before_weights[0])
    return operation.need(positions_before_weights[-1])


def _experts_per_token(
    operation: Operation, second_weights: int, token_count: int
) -> int:
    """Return how many experts each token has: the columns of a matrix [T, topk], or an argument.

    Matrices of expert numbers are preferred to matrices of expert weights. The narrowest matrix
    counts, because the scores of all experts [T, E] may stand before it.

    Args:
        operation: the mixture of experts.
        second_weights: the position of the second weights; the matrix follows them.
        token_count: T.
    """
    matrices_by_token = []
    for position in _positions_of_rank(operation, 2):
        matrix = operation.need(position)
        if position > second_weights and matrix.dims[0] == token_count:
            matrices_by_token.append(matrix)
    expert_numbers = [
        matrix
        for matrix in matrices_by_token
        if matrix.is_whole and not _has_byte_elements(matrix)
    ]
    candidates = expert_numbers or matrices_by_token
    if candidates:
        return min(matrix.dims[1] for matrix in candidates)
    topk = None
    if operation.name.startswith("aiter::fmoe"):
        topk = operation.whole(_POSITION_OF_TOPK_IN_FMOE) or None
    return required(topk, "the number of experts per token is not recorded")
