"""Why an operation is far from its roofline, as far as shapes and kernel names show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import capability_of

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation
    from tracelens_ext.roofline.peaks import DevicePeaks

#: Above this share of the roofline nothing needs explaining.
_GOOD_PERCENT: Final = 60.0
#: A kernel shorter than this is mostly its own start and end.
_LAUNCH_NS: Final = 4_000
#: Bytes that tensor cores load at once: rows have to be multiples of it.
_ALIGNED_BYTES: Final = 16
#: The last wave of tiles leaves units idle when there are fewer waves than this.
_MANY_WAVES: Final = 4
#: Products that leave tensor cores idle: many in a batch, none of whose sizes fills a tile.
_MANY_SMALL, _SMALL = 256, 64
#: Batch, heads, queries, keys.
_DIMS_OF_SCORES: Final = 4
_ITEM: Final = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "tf32": 4}
_TILE: Final = re.compile(r"(?<![\dx])(\d{2,3})x(\d{2,3})(?:x\d{1,3})?(?![\dx])|MT(\d+)x(\d+)x\d+")
_OLD_KERNELS: Final = (
    (re.compile(r"cutlass_75|turing_"), 80, "kernels for Turing"),
    (re.compile(r"cutlass_70|volta_"), 80, "kernels for Volta"),
    (re.compile(r"ampere_|cutlass_80|sm80_"), 90, "kernels for Ampere"),
)
_MISALIGNED: Final = re.compile(r"align[12](?!\d)")


def why_slow(
    op: Operation,
    cost: Cost,
    peaks: DevicePeaks | None,
    gpu_ns: int,
    roofline_ns: float | None,
    count: int,
) -> str:
    """What shows of the reason, the most telling first; empty where nothing shows."""
    if roofline_ns is not None and 100.0 * roofline_ns >= _GOOD_PERCENT * gpu_ns:
        return ""
    found = []
    if cost.engine == "matrix":
        found += _of_matrix_work(op, cost, peaks)
    elif cost.engine == "vector":
        found += _of_strides(op)
        if cost.family == "Softmax" and len(op.tensors[0].dims) >= _DIMS_OF_SCORES:
            found.append("scores of attention that is not fused")
    if gpu_ns < _LAUNCH_NS * count:
        found.append("too small to fill the GPU")
    return "; ".join(found)


def _of_matrix_work(op: Operation, cost: Cost, peaks: DevicePeaks | None) -> list[str]:
    found = []
    if cost.data_type == "fp32" and (peaks is None or "tf32" in peaks.matrix):
        found.append("single precision without TF32")
    batch, m, n, k = product_sizes(cost)
    step = _ALIGNED_BYTES // _ITEM.get(cost.data_type, _ALIGNED_BYTES)
    odd = [f"{name}={size}" for name, size in (("N", n), ("K", k)) if size % step and size > 1]
    if odd:
        found.append(f"{', '.join(odd)} not a multiple of {step}")
    if batch >= _MANY_SMALL and 0 < max(m, n, k) <= _SMALL:
        found.append(f"{batch:,} small products of {m}x{n}x{k}")
    if any(_MISALIGNED.search(kernel) for kernel in op.kernels):
        found.append("kernel for unaligned data")
    found += _of_old_kernels(op, peaks)
    found += _of_waves(op, cost, peaks)
    return found


def _of_old_kernels(op: Operation, peaks: DevicePeaks | None) -> list[str]:
    """Kernels of an older generation than the device; known for NVIDIA's alone."""
    generation = capability_of(peaks.name) if peaks is not None else 0
    return [
        said
        for pattern, needed, said in _OLD_KERNELS
        if generation >= needed and any(map(pattern.search, op.kernels))
    ][:1]


def _of_waves(op: Operation, cost: Cost, peaks: DevicePeaks | None) -> list[str]:
    batch, m, n, _ = product_sizes(cost)
    tile = next((t for kernel in op.kernels if (t := _TILE.search(kernel))), None)
    if peaks is None or not peaks.units or tile is None or not batch * m * n:
        return []
    rows, columns = (int(t) for t in tile.groups() if t)
    tiles = batch * -(-m // max(rows, 1)) * -(-n // max(columns, 1))
    if tiles < peaks.units:
        return [f"{tiles} tiles of {rows}x{columns} for {peaks.units} compute units"]
    waves = tiles / peaks.units
    if waves < _MANY_WAVES and waves % 1 and waves / -(-waves // 1) < 0.8:
        return [f"{waves:.1f} waves of tiles: the last leaves units idle"]
    return []


def _of_strides(op: Operation) -> list[str]:
    """Inputs whose innermost dimension is not contiguous, while another tensor's is."""
    for tensor in op.tensors:
        if len(tensor.dims) < 2 or len(tensor.strides) != len(tensor.dims):
            continue
        inner = next((i for i in reversed(range(len(tensor.dims))) if tensor.dims[i] > 1), None)
        if inner is not None and tensor.strides[inner] > 1:
            return ["strided input"]
    return []
