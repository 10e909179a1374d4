"""Matrix products, which the matrix units compute.

A product takes 2·B·M·N·K operations, and B·M·N more if something is added. With complex numbers,
the product takes four times as many operations and the addition twice as many. An element of
`Float4_e2m1fn_x2` holds two numbers along K.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.element_types import BFLOAT16, PACKED_FP4
from tracelens_ext.roofline.operation import Cost, Engine, Models, bytes_read, require

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()
NO_PRODUCT: Final = "the recorded shapes do not match a matrix product"


class ProductSizes(NamedTuple):
    """The sizes of a batch of products of matrices [M, K] and [K, N]."""

    batch: int  #: number of products
    m: int
    n: int
    k: int


def matrix_product(
    left: Tensor,
    right: Tensor,
    added: Tensor | None = None,
    result_type: str | None = None,
) -> Cost:
    """Return the cost of `left` [B, M, K] times `right` [B, K, N], or of two matrices without B.

    Args:
        left: the first factor.
        right: the second factor.
        added: the tensor that is added to the product; None: nothing is added.
        result_type: the type of the result; None: the type of `left`.
    """
    are_matrices = len(left.dims) > 1 and len(right.dims) > 1
    require(are_matrices, NO_PRODUCT)
    require(left.dims[-1] == right.dims[-2], NO_PRODUCT)
    sizes = ProductSizes(
        batch=math.prod(left.dims[:-2]),
        m=left.dims[-2],
        n=right.dims[-1],
        k=left.dims[-1],
    )
    return product(
        sizes=sizes, left=left, right=right, added=added, result_type=result_type
    )


def product(
    sizes: ProductSizes,
    left: Tensor,
    right: Tensor,
    added: Tensor | None = None,
    result_type: str | None = None,
) -> Cost:
    """Return the cost of a product of known sizes.

    Args:
        sizes: the sizes, with K counted in elements even if an element holds two numbers.
        left: the first factor.
        right: the second factor.
        added: the tensor that is added to the product; None: nothing is added.
        result_type: the type of the result; None: the type of `left`.
    """
    if left.kind == right.kind == PACKED_FP4:
        sizes = sizes._replace(k=2 * sizes.k)
    elements = sizes.batch * sizes.m * sizes.n
    flops_of_multiply_add = 2
    flops_of_addition = 1
    if "complex" in left.kind:
        flops_of_multiply_add = 8
        flops_of_addition = 2
    flops = flops_of_multiply_add * elements * sizes.k
    if added is not None:
        flops += flops_of_addition * elements
    parameters = product_parameters(sizes, left, right, has_bias=added is not None)
    # PyTorch hands the factors to BLAS in the opposite order.
    parameters["transpose"] = (_is_by_columns(right), _is_by_columns(left))
    return Cost(
        family="GEMM",
        flops=flops,
        bytes=bytes_read(left, right, added) + left.bytes_of(elements, result_type),
        data_type=left.short_type,
        engine=Engine.MATRIX.value,
        parameters=parameters,
    )


def product_parameters(
    sizes: ProductSizes, left: Tensor, right: Tensor, *, has_bias: bool
) -> dict[str, object]:
    """Return the sizes, strides and types of a product for the tables."""
    return {
        "B": sizes.batch,
        "M": sizes.m,
        "N": sizes.n,
        "K": sizes.k,
        "bias": has_bias,
        "stride_A": left.strides,
        "stride_B": right.strides,
        "dtype_A_B": (left.kind, right.kind),
    }


def product_sizes(cost: Cost | None) -> ProductSizes:
    """Return the sizes of a matrix product; 0 for other operations and for unknown sizes.

    The cost may be a plugin's, whose parameters need not contain the sizes.
    """
    parameters: dict[str, object] = {}
    if cost is not None and cost.family == "GEMM":
        parameters = cost.parameters
    return ProductSizes(
        batch=_whole_or_zero(parameters.get("B")),
        m=_whole_or_zero(parameters.get("M")),
        n=_whole_or_zero(parameters.get("N")),
        k=_whole_or_zero(parameters.get("K")),
    )


def _whole_or_zero(value: object) -> int:
    return value if isinstance(value, int) else 0


def _is_by_columns(tensor: Tensor) -> bool:
    """Return whether a matrix is stored column by column: BLAS calls it transposed (T)."""
    return (
        len(tensor.strides) > 1 and tensor.strides[-1] != 1 and tensor.strides[-2] == 1
    )


@MODELS.add("mm", "bmm", tensors=(0, 1))
def mm(operation: Operation, left: Tensor, right: Tensor) -> Cost:
    """`mm`, `bmm`: A, B, and in newer versions the type of the result."""
    return matrix_product(left, right, result_type=operation.scalar_type(2))


@MODELS.add(
    "addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_", tensors=(1, 2)
)
def addmm(operation: Operation, left: Tensor, right: Tensor) -> Cost:
    """`addmm`, `baddbmm`: the added matrix, A, B, beta, alpha; a beta of 0 adds nothing."""
    beta = operation.value(3)
    added = operation.need(0) if beta != 0 else None
    return matrix_product(left, right, added)


@MODELS.add("_scaled_mm", tensors=(0, 1))
def scaled_mm(operation: Operation, left: Tensor, right: Tensor) -> Cost:
    """`_scaled_mm`: A, B, two scales, bias, a scale, type; before PyTorch 2.5 A, B, bias, type."""
    scales_come_first = operation.tensor(3) is not None
    if scales_come_first:
        bias = operation.tensor(4)
        result_type = operation.scalar_type(6)
    else:
        bias = operation.tensor(2)
        result_type = operation.scalar_type(3)
    return matrix_product(
        left=left, right=right, added=bias, result_type=result_type or BFLOAT16
    )


@MODELS.add("_int_mm", tensors=(0, 1))
def int_mm(_: Operation, left: Tensor, right: Tensor) -> Cost:
    """`_int_mm`: A and B have 8-bit numbers, the result has 32-bit numbers."""
    return matrix_product(left, right, result_type="int")


@MODELS.add(
    "linear", "_C::linear", "te_linear", "vllm::rocm_unquantized_gemm", tensors=(0, 1)
)
def linear(operation: Operation, inputs: Tensor, weight: Tensor) -> Cost:
    """`linear`: input […, K], weight [N, K], bias."""
    return linear_layer(inputs, weight, operation.tensor(2))


def linear_layer(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, result_type: str | None = None
) -> Cost:
    """Return the cost of a linear layer: inputs […, K], weight [N, K]."""
    is_matrix = len(weight.dims) == 2
    fits = is_matrix and inputs.dims[-1:] == weight.dims[1:]
    require(fits, "the recorded shapes do not match a linear layer")
    sizes = ProductSizes(
        batch=1,
        m=math.prod(inputs.dims[:-1]),
        n=weight.dims[0],
        k=weight.dims[1],
    )
    return product(
        sizes=sizes, left=inputs, right=weight, added=bias, result_type=result_type
    )


@MODELS.add("matmul", tensors=(0, 1))
def matmul(operation: Operation, left: Tensor, right: Tensor) -> Cost:
    """`matmul`: the dimensions before the last two are batches, which broadcast.

    A vector on the left counts as a row, and one on the right as a column.
    """
    if len(left.dims) <= 2 and len(right.dims) == 1:
        return mv(operation)
    left_is_row = len(left.dims) == 1
    fits = left.dims and len(right.dims) > 1 and left.dims[-1] == right.dims[-2]
    require(fits and not (left_is_row and len(right.dims) > 2), NO_PRODUCT)
    batch_of_left = math.prod(left.dims[:-2])
    batch_of_right = math.prod(right.dims[:-2])
    sizes = ProductSizes(
        batch=max(batch_of_left, batch_of_right),
        m=1 if left_is_row else left.dims[-2],
        n=right.dims[-1],
        k=left.dims[-1],
    )
    return product(sizes, left, right)


@MODELS.add("mv", "addmv", "addmv_", "dot", "vdot")
def mv(operation: Operation) -> Cost:
    """`mv`, `addmv`: a matrix times a vector; `dot`: a vector times a vector."""
    is_addmv = "addmv" in operation.name
    first_factor = 1 if is_addmv else 0
    matrix = operation.need(first_factor)
    vector = operation.need(first_factor + 1)
    fits = vector.dims and matrix.dims and matrix.dims[-1] == vector.dims[0]
    require(fits, "the recorded shapes do not match a matrix-vector product")
    rows = matrix.dims[0] if len(matrix.dims) == 2 else 1
    added = None
    if is_addmv and operation.value(3) != 0:
        added = operation.need(0)
    sizes = ProductSizes(batch=1, m=rows, n=1, k=vector.dims[0])
    return product(sizes=sizes, left=matrix, right=vector, added=added)


@MODELS.add("_grouped_mm", "_scaled_grouped_mm", tensors=(0, 1))
def grouped_mm(operation: Operation, left: Tensor, right: Tensor) -> Cost:
    """`_grouped_mm`, `_scaled_grouped_mm`: a product for each of G groups.

    Offsets, whose values are not recorded, split the rows of A [M, K] among matrices [G, K, N], or
    the columns of B [K, N] among matrices [G, M, K]. Two factors with three dimensions are a batch
    of products. The result of the scaled operation is bf16 unless an argument names a type.
    """
    result_type = operation.scalar_type(4)
    if "scaled" in operation.name:
        result_type = operation.scalar_type(7) or BFLOAT16
    ranks = {len(left.dims), len(right.dims)}
    if ranks == {3}:
        return matrix_product(left, right, result_type=result_type)
    fits = ranks == {2, 3} and left.dims[-1] == right.dims[-2]
    require(fits, "the sizes of the groups are not recorded")
    sizes = ProductSizes(
        batch=1,
        m=left.dims[-2],
        n=right.dims[-1],
        k=left.dims[-1],
    )
    return product(sizes, left, right, result_type=result_type)
