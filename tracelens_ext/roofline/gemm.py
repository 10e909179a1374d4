"""Matrix products: 2·B·M·N·K operations, and B·M·N more when something is added.

A product of complex numbers takes four times as many, an addition of them twice. An element of
`Float4_e2m1fn_x2` holds two numbers along K.
"""

from __future__ import annotations

import math

from tracelens_ext.roofline.operation import (
    ELEMENT_BYTES,
    Cost,
    NoModelError,
    Operation,
    Tensor,
    bytes_read,
    short_type,
)


def matrix_product(
    a: Tensor, b: Tensor, added: Tensor | None = None, result: str | None = None
) -> Cost:
    """`a` [B, M, K] times `b` [B, K, N], or without B; a result in the type of `a` unless given."""
    if len(a.dims) < 2 or len(b.dims) < 2 or a.dims[-1] != b.dims[-2]:
        raise NoModelError("the recorded shapes are not those of a matrix product")
    batch = math.prod(a.dims[:-2])
    (m, k), n = a.dims[-2:], b.dims[-1]
    return product(batch, m, n, k, a, b, added, result)


def product(
    batch: int,
    m: int,
    n: int,
    k: int,
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    result: str | None = None,
) -> Cost:
    """As `matrix_product`, by its sizes."""
    elements, bias = batch * m * n, added is not None
    k *= 2 if a.kind == b.kind == "c10::Float4_e2m1fn_x2" else 1
    complex_ = "complex" in a.kind
    return Cost(
        family="GEMM",
        flops=(8 if complex_ else 2) * elements * k + (1 + complex_) * elements * bias,
        bytes=bytes_read(a, b, added) + elements * ELEMENT_BYTES[result or a.kind],
        data_type=short_type(a.kind),
        engine="matrix",
        parameters={
            "B": batch,
            "M": m,
            "N": n,
            "K": k,
            "bias": bias,
            "stride_A": a.strides,
            "stride_B": b.strides,
            "dtype_A_B": (a.kind, b.kind),
            "transpose": (_by_columns(b), _by_columns(a)),
        },
    )


def product_sizes(cost: Cost | None) -> tuple[int, int, int, int]:
    """B, M, N and K of a matrix product; 0 where there are none, or a plugin tells none."""
    known = cost.parameters if cost is not None and cost.family == "GEMM" else {}
    sizes = (known.get(name) for name in ("B", "M", "N", "K"))
    b, m, n, k = (size if isinstance(size, int) else 0 for size in sizes)
    return b, m, n, k


def _by_columns(tensor: Tensor) -> bool:
    """Whether a matrix lies in memory column by column: what BLAS, which swaps A and B, calls T."""
    return len(tensor.strides) > 1 and tensor.strides[-1] != 1 and tensor.strides[-2] == 1


def mm(op: Operation) -> Cost:
    """`mm`, `bmm`: A, B, and newer ones a type of the result."""
    return matrix_product(op.need(0), op.need(1), result=op.scalar_type(2))


def addmm(op: Operation) -> Cost:
    """`addmm`, `baddbmm`: what is added, A, B, beta, alpha; with a beta of 0 nothing is added."""
    return matrix_product(op.need(1), op.need(2), op.need(0) if op.value(3) != 0 else None)


def scaled_mm(op: Operation) -> Cost:
    """`_scaled_mm`: before PyTorch 2.5 A, B, bias, type, scales; since then scales first."""
    old = op.tensor(3) is None
    bias, result = (op.tensor(2), op.scalar_type(3)) if old else (op.tensor(4), op.scalar_type(6))
    return matrix_product(op.need(0), op.need(1), bias, result or "c10::BFloat16")


def int_mm(op: Operation) -> Cost:
    """`_int_mm`: the result of 8-bit numbers has 32 bits."""
    return matrix_product(op.need(0), op.need(1), result="int")


def linear(op: Operation) -> Cost:
    """`linear`: input […, K], weight [N, K], bias."""
    x, weight, bias = op.need(0), op.need(1), op.tensor(2)
    if not x.dims or len(weight.dims) != 2 or x.dims[-1] != weight.dims[1]:
        raise NoModelError("the recorded shapes are not those of a linear layer")
    rows, (n, k) = math.prod(x.dims[:-1]), weight.dims
    return product(1, rows, n, k, x, weight, bias)


def matmul(op: Operation) -> Cost:
    """`matmul`: batches broadcast; vectors gain a dimension."""
    a, b = op.need(0), op.need(1)
    if len(a.dims) < 2 or len(b.dims) < 2:
        return mv(op) if len(a.dims) <= 2 and len(b.dims) == 1 else _vector_times(a, b)
    if a.dims[-1] != b.dims[-2]:
        raise NoModelError("the recorded shapes are not those of a matrix product")
    batch = max(math.prod(a.dims[:-2]), math.prod(b.dims[:-2]))
    (m, k), n = a.dims[-2:], b.dims[-1]
    return product(batch, m, n, k, a, b)


def _vector_times(a: Tensor, b: Tensor) -> Cost:
    if not a.dims or len(b.dims) != 2 or a.dims[-1] != b.dims[0]:
        raise NoModelError("the recorded shapes are not those of a matrix product")
    return product(1, 1, b.dims[1], b.dims[0], a, b)


def mv(op: Operation) -> Cost:
    """`mv`, `addmv`, `dot`: a matrix, or a row, times a vector."""
    adds = "addmv" in op.name
    a, v = op.need(int(adds)), op.need(int(adds) + 1)
    if not v.dims or not a.dims or a.dims[-1] != v.dims[0]:
        raise NoModelError("the recorded shapes are not those of a product with a vector")
    rows = a.dims[0] if len(a.dims) == 2 else 1
    added = op.need(0) if adds and op.value(3) != 0 else None
    return product(1, rows, 1, v.dims[0], a, v, added)


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
        return product(1, a.dims[-2], b.dims[-1], a.dims[-1], a, b, result=result)
    raise NoModelError("the sizes of the groups are not recorded")


MODELS = {
    **dict.fromkeys(("mm", "bmm"), mm),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_"), addmm),
    "_scaled_mm": scaled_mm,
    **dict.fromkeys(("linear", "_C::linear", "te_linear"), linear),
    "matmul": matmul,
    **dict.fromkeys(("mv", "addmv", "addmv_", "dot", "vdot"), mv),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), grouped_mm),
    "_int_mm": int_mm,
}
