"""Reasons why an operation is slower than its best case, from shapes and kernel names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.gemm import ProductSizes, product_sizes
from tracelens_ext.roofline.operation import Engine
from tracelens_ext.roofline.peaks import capability_of

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor
    from tracelens_ext.roofline.peaks import DevicePeaks

#: Bytes that tensor cores load at once. The size of a row has to be a multiple of it.
_ALIGNED_BYTES: Final = 16
_ELEMENT_BYTES: Final = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "tf32": 4}
#: A batch of at least this many products leaves tensor cores idle if none of M, N and K is above
#: `_SMALL_SIZE`, because such products do not fill a tile.
_MANY_PRODUCTS: Final = 256
_SMALL_SIZE: Final = 64
#: From this number of waves of tiles on, the units that the last wave leaves idle do not matter.
_MANY_WAVES: Final = 4
#: The last wave leaves few units idle if the waves fill this share of all units that they occupy.
_FULL_WAVES: Final = 0.8
#: Attention scores have the dimensions batch, heads, queries and keys.
_DIMENSIONS_OF_SCORES: Final = 4
_MISALIGNED: Final = re.compile(r"align[12](?!\d)")
_TILE: Final = re.compile(
    r"(?<![\dx])(\d{2,3})x(\d{2,3})(?:x\d{1,3})?(?![\dx])|MT(\d+)x(\d+)x\d+"
)


class _OldKernels(NamedTuple):
    """Kernels that were built for an older GPU."""

    pattern: re.Pattern[str]
    newer_capability: int  #: compute capability from which GPUs have better kernels
    label: str  #: the reason as tables show it


_OLD_KERNELS: Final = (
    _OldKernels(
        pattern=re.compile(r"cutlass_75|turing_"),
        newer_capability=80,
        label="kernels for Turing",
    ),
    _OldKernels(
        pattern=re.compile(r"cutlass_70|volta_"),
        newer_capability=80,
        label="kernels for Volta",
    ),
    _OldKernels(
        pattern=re.compile(r"ampere_|cutlass_80|sm80_"),
        newer_capability=90,
        label="kernels for Ampere",
    ),
)


def reasons_for_slowness(
    operation: Operation, cost: Cost, peaks: DevicePeaks | None
) -> list[str]:
    """Return the reasons that shapes and kernel names show, the most important first."""
    if cost.engine == Engine.MATRIX:
        return _reasons_of_matrix_work(operation, cost, peaks)
    if cost.engine == Engine.VECTOR:
        return _reasons_of_vector_work(operation, cost)
    return []


def _reasons_of_vector_work(operation: Operation, cost: Cost) -> list[str]:
    """Return the reasons that apply to work outside of the matrix units."""
    reasons = []
    if any(_is_strided(tensor) for tensor in operation.tensors):
        reasons.append("strided input")
    if cost.family != "Softmax":
        return reasons
    dimensions = len(operation.tensors[0].dims)
    if dimensions >= _DIMENSIONS_OF_SCORES:
        reasons.append("attention scores of unfused attention")
    return reasons


def _is_strided(tensor: Tensor) -> bool:
    """Return whether the innermost dimension with several elements is not contiguous."""
    if len(tensor.dims) < 2:
        return False
    if len(tensor.strides) != len(tensor.dims):
        return False
    for size, stride in zip(
        reversed(tensor.dims), reversed(tensor.strides), strict=True
    ):
        if size > 1:
            return stride > 1
    return False


def _reasons_of_matrix_work(
    operation: Operation, cost: Cost, peaks: DevicePeaks | None
) -> list[str]:
    """Return the reasons that apply to matrix products: types, sizes and kernels."""
    sizes = product_sizes(cost)
    reasons = []
    if cost.data_type == "fp32" and (peaks is None or "tf32" in peaks.matrix):
        reasons.append("single precision without TF32")
    reasons += _misaligned_sizes(sizes, cost.data_type)
    if (
        sizes.batch >= _MANY_PRODUCTS
        and 0 < max(sizes.m, sizes.n, sizes.k) <= _SMALL_SIZE
    ):
        shape = f"{sizes.m}x{sizes.n}x{sizes.k}"
        reasons.append(f"{sizes.batch:,} small products of {shape}")
    if any(_MISALIGNED.search(kernel) for kernel in operation.kernels):
        reasons.append("kernel for unaligned data")
    if peaks is not None:
        reasons += _old_kernels(operation, peaks)
        reasons += _idle_units(operation, sizes, peaks.units)
    return reasons


def _misaligned_sizes(sizes: ProductSizes, data_type: str) -> list[str]:
    """Name the sizes, N or K, with rows that tensor cores cannot load in whole steps."""
    step = _ALIGNED_BYTES // _ELEMENT_BYTES.get(data_type, _ALIGNED_BYTES)
    misaligned = [
        f"{name}={size}"
        for name, size in (("N", sizes.n), ("K", sizes.k))
        if size % step and size > 1
    ]
    if not misaligned:
        return []
    return [f"{', '.join(misaligned)} not a multiple of {step}"]


def _old_kernels(operation: Operation, peaks: DevicePeaks) -> list[str]:
    """Name the first kind of kernel for an older GPU, if there is one."""
    capability = capability_of(peaks.name)  # 0 for GPUs that are not NVIDIA's
    for old in _OLD_KERNELS:
        if capability < old.newer_capability:
            continue
        for kernel in operation.kernels:
            if old.pattern.search(kernel):
                return [old.label]
    return []


def _idle_units(operation: Operation, sizes: ProductSizes, units: int) -> list[str]:
    """Say whether the tiles of a product leave compute units idle.

    The name of the kernel tells the size of a tile. 300 tiles on 132 units are 2.3 waves: the third
    wave occupies only 0.3 of the units.
    """
    tile = _tile_of(operation)
    if not units or tile is None or not sizes.batch * sizes.m * sizes.n:
        return []
    tile_rows, tile_columns = tile
    tiles_down = -(-sizes.m // max(tile_rows, 1))
    tiles_across = -(-sizes.n // max(tile_columns, 1))
    tiles = sizes.batch * tiles_down * tiles_across
    waves = tiles / units
    if waves < 1:
        return [
            f"{tiles} tiles of {tile_rows}x{tile_columns} for {units} compute units"
        ]
    whole_waves = -(-waves // 1)
    if (
        waves < _MANY_WAVES
        and waves != whole_waves
        and waves / whole_waves < _FULL_WAVES
    ):
        return [f"{waves:.1f} waves of tiles: the last leaves units idle"]
    return []


def _tile_of(operation: Operation) -> tuple[int, int] | None:
    """Return the rows and columns of a tile in the name of a kernel; None if no name tells them."""
    for kernel in operation.kernels:
        match = _TILE.search(kernel)
        if match is None:
            continue
        # One of the pattern's two alternatives matched, so two of its four groups have a number.
        rows, columns = [int(number) for number in match.groups() if number]
        return rows, columns
    return None
