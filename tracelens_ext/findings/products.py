"""Matrix products, by their sizes and their kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from typing import Final

import numpy as np

from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.findings.kernels import capability
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import Device, Float64Array, Int64Array

_DOUBLE: Final = re.compile(r"dgemm")
#: Products of matrix units, however else they are called.
_MATRIX_UNITS: Final = re.compile(
    r"tensorop|[sh](?:884|1688|16816|161616)|xmma|wmma|nvjet|_MI\d+x\d+|mfma|tf32", re.IGNORECASE
)
_VECTOR: Final = re.compile(
    r"(?<![a-z\d])[sdh]gemm(?!Ex)|simt|scudnn|convolve_sgemm|gemmSN|[dw]grad\w*_engine<float"
    r"|Cijk_\w+?_[SD]B_\w*?MT\d+x"
)
#: What libraries reach of the peak matrix rate with large sizes: cuBLAS 60 to 80 %, as power
#: allows; hipBLASLt about 50 %, as the peaks of AMD's datasheets are farther from what clocks hold;
#: grouped products half of the best case.
_REACHED = 0.6
_REACHED_AMD = 0.5
_REACHED_GROUPED = 0.5
#: What a product takes besides, however small: start, the first loads, the last stores.
_FIXED_NS = 5_000
_FIXED_GROUPED_NS = 10_000
#: Less than this times what is reached is within what tiles, clocks and neighbours explain.
_FAR: Final = 1.5
#: The first compute capability with tensor cores; without peaks they are taken as so much faster.
_FIRST = 70
_USUAL = 1 / 4


def no_tensor_cores(inspection: Inspection) -> Finding | None:
    """Products on the units of single or double precision, beside matrix units."""
    which = inspection.named(_VECTOR) & ~inspection.named(_MATRIX_UNITS)
    if not which.any():
        return None
    double = inspection.by_device(lambda *its: _takes(*its, "fp64"))
    single = inspection.by_device(lambda *its: _takes(*its, "tf32", "bf16", "fp16"))
    takes = np.where(inspection.named(_DOUBLE), double, single)
    fixed = _FIXED_NS / np.maximum(inspection.work.duration, 1)
    share = np.where(takes > 0, 1 - takes - fixed, 0.0)
    # Memory limits some more, as sizes tell: by TF32, where the device has it.
    tf32 = inspection.by_operation(_is_single) > 0
    tf32 &= inspection.by_device(lambda _, peaks: bool(peaks and "tf32" in peaks.matrix)) > 0
    needed = np.where(tf32, _needed_ns(inspection), 0.0)
    share = np.where(needed > 0, np.minimum(share, inspection.beyond(needed, 1.0)), share)
    return inspection.claimed("no-tensor-cores", np.where(which, np.maximum(share, 0.0), 0.0))


def _takes(device: Device | None, peaks: DevicePeaks | None, *types: str) -> float:
    """The share of the time that matrix units need for the same; 0: not known."""
    wide = "fp64" if types == ("fp64",) else "fp32"
    if peaks is None:
        return _USUAL if capability(device, peaks) >= _FIRST and wide == "fp32" else 0.0
    vector, _ = peaks.peak("vector", wide) or (0.0, "")
    # TF32 where it is faster than single precision, else 16 bit.
    rates = [_REACHED * peaks.matrix[its] for its in types if its in peaks.matrix]
    return next((vector / rate for rate in rates if rate > vector), 1.0)


_BUILT_FOR: Final = {
    70: ("kernels for Volta", re.compile(r"volta_|cutlass_70|sm70_")),
    75: ("kernels for Turing", re.compile(r"turing_|cutlass_75|sm75_")),
    80: ("kernels for Ampere", re.compile(r"ampere_|cutlass_80|sm80_")),
    90: ("kernels for Hopper", re.compile(r"cutlass_90|cutlass3x_sm90|sm90_")),
}
#: Alignment and tiles in names, and rows, that explain an older kernel.
_ODD: Final = re.compile(
    r"align[12](?!\d)|^(?:(?!_\d+x\d+).)*_(?:(?:16|32)x\d+|\d+x(?:16|32)|64x64)_", re.IGNORECASE
)
_ROWS = 128
_STEP = 8
#: Ampere's instructions reach about 60 % of what Hopper's do.
_SAVED: Final = 0.4
#: Graphics cards from here on have neither Hopper's instructions nor those of its successor.
_CARDS: Final = 120


def old_kernels(inspection: Inspection) -> Finding | None:
    """Products by kernels for an older architecture than the device."""
    built = np.zeros(len(inspection.work), dtype=np.int64)
    for generation, (_, pattern) in _BUILT_FOR.items():
        built[inspection.named(pattern)] = generation
    old = (built > 0) & (built < inspection.by_device(_generation))
    old &= (inspection.by_operation(_explained) == 0) & ~inspection.named(_ODD)
    kinds = np.searchsorted([*_BUILT_FOR], built), [label for label, _ in _BUILT_FOR.values()]
    share = np.maximum(inspection.beyond(_needed_ns(inspection), _FAR), _SAVED)
    return inspection.claimed("old-kernels", np.where(old, share, 0.0), kinds={"reasons": kinds})


def _generation(device: Device | None, peaks: DevicePeaks | None) -> int:
    """The newest generation whose kernels run on it; 0: not known."""
    its = capability(device, peaks)
    its = 80 if its >= _CARDS else its
    return max((each for each in (*_BUILT_FOR, 100) if each <= its), default=0)


def _explained(row: RooflineRow) -> bool:
    """Whether the sizes of a product let a library choose older kernels."""
    _, *sizes = product_sizes(row.cost)
    is_product = row.cost is not None and row.cost.family == "GEMM"
    return is_product and (min(sizes[:2]) < _ROWS or any(size % _STEP for size in sizes))


_GROUPED: Final = re.compile(r"grouped_mm|grouped_gemm|moe", re.IGNORECASE)


def slow_moe(inspection: Inspection) -> Finding | None:
    """Grouped products of experts far from what the GPU could do."""
    needed = inspection.by_operation(_grouped_ns)
    return inspection.claimed("slow-moe", inspection.beyond(needed, _FAR))


def _grouped_ns(row: RooflineRow) -> float:
    grouped = row.cost and (row.cost.family[:3] == "MoE" or _GROUPED.search(row.operation.name))
    if not row.roofline_ns or not grouped:
        return 0.0
    return _FIXED_GROUPED_NS + row.roofline_ns / row.count / _REACHED_GROUPED


#: Fewer others tell nothing; what is shorter is measured too coarsely.
_OTHERS = 3
_SHORT_NS = 20_000
#: So many times as long as the others: of a layout, in the median; of a single call.
_UNEVEN = 1.2
_UNEVEN_CALL = 1.5


def uneven_gemm(inspection: Inspection) -> Finding | None:
    """Products far slower than others of their size and type in the same trace."""
    roofline = inspection.roofline
    work = inspection.work
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, (row, device) in enumerate(zip(roofline.rows, roofline.groups.device, strict=True)):
        if row.cost is not None and row.cost.family == "GEMM":
            b, *sizes = product_sizes(row.cost)
            alike[int(device), row.cost.data_type, b, *sorted(sizes)].append(number)
    product = inspection.by_operation(lambda row: bool(row.cost)) > 0
    mine = np.flatnonzero(product & inspection.wall.free)
    if not alike or not len(mine):
        return None
    call = inspection.launchers.of_gpu[mine]
    _, first, of_call = np.unique(call, return_index=True, return_inverse=True)
    takes = np.bincount(of_call, work.duration[mine]).astype(np.float64)
    of_row = roofline.groups.of_gpu[mine][first]
    order = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[order], np.arange(len(roofline.rows) + 1))
    needs = np.zeros(len(takes))
    needed = np.zeros(len(work))
    for rows in alike.values():
        _compare([order[bounds[row] : bounds[row + 1]] for row in rows], takes, needs)
    needed[mine] = needs[of_call]
    return inspection.claimed("uneven-gemm", inspection.beyond(needed, _UNEVEN))


def _compare(rows: list[Int64Array], takes: Float64Array, needs: Float64Array) -> None:
    """Set what slow calls of one size and type need; `rows` are the calls of each layout."""
    every = np.concatenate(rows)
    if len(every) <= _OTHERS:
        return
    usual = float(np.median(takes[every]))
    for calls in rows:
        others = np.setdiff1d(every, calls)
        typical = float(np.median(takes[others])) if len(others) >= _OTHERS else usual
        if len(calls) and np.median(takes[calls]) > _UNEVEN * typical > _UNEVEN * _SHORT_NS:
            needs[calls] = typical
        elif usual > _SHORT_NS:
            needs[calls[takes[calls] > _UNEVEN_CALL * usual]] = usual


_WARP_OF_AMD: Final = 64
#: Rows and columns of a tile of the result, and the depth below which splitting K gains nothing.
_TILE = 128
_LEAST_TILE = 16
_DEPTH = 1024
_TF32: Final = 'torch.set_float32_matmul_precision("high")'
#: A sign in the reasons of the roofline, and what helps.
_REMEDIES: Final = {
    "TF32": "Let single precision use TF32, or compute in bf16.",
    "not a multiple|unaligned": "Pad sizes to multiples of 8 elements (64 fill tiles better).",
    "kernels for": "Use a library that has kernels for this GPU: a newer cuBLAS or PyTorch.",
    "tiles": "Give a product more rows, such as a larger batch, or split K.",
    "small products": "Join many small products into larger ones, or use a fused operation.",
}
_WHERE_TO_LOOK: Final = "The table `roofline` has each product with its rate and its kernels."
_NO_PEAKS: Final = (
    "The peaks of the GPU are not known, so slow matrix products cannot be told: see"
    " docs/roofline.md."
)


def slow_gemm(inspection: Inspection) -> Finding | None:
    """Matrix products far slower than this GPU computes such sizes."""
    if not inspection.has_shapes:
        return None
    wall = inspection.wall
    peaks = inspection.peaks_of_rows
    if not any(peaks) and "GEMM" in inspection.roofline.families:
        inspection.note(_NO_PEAKS)
    share = inspection.beyond(_needed_ns(inspection), _FAR)
    slow = np.flatnonzero(share)
    calls = len(np.unique(inspection.launchers.of_gpu[slow]))
    claim = wall.claim_events(share > 0, share)
    reasons = inspection.ranked_by(_reason, claim, peaks)
    told = "; ".join(place.name for place in reasons)
    helps = [remedy for sign, remedy in _REMEDIES.items() if re.search(sign, told)]
    numbers = calls, wall.mean_ms(inspection.work.duration[slow]), inspection.rate_of(share > 0)
    return inspection.finding(
        "slow-gemm",
        claim,
        numbers,
        advice=" ".join([*helps, _WHERE_TO_LOOK]),
        snippet=_TF32 if "TF32" in told else "",
        variant="shown" if reasons else "not_shown",
        where={"products": inspection.ranked_by(_label, claim), "reasons": reasons},
    )


def _needed_ns(inspection: Inspection) -> Float64Array:
    """What the product of each GPU event would take, ns; 0 where it is none, or not known, (g,)."""
    return inspection.by_operation(_reached_ns, inspection.peaks_of_rows)


def _reached_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """What a call would take as libraries compute such sizes, ns; 0 for what is no product."""
    b, m, n, k = product_sizes(row.cost)
    if not b * m * n * k or row.cost is None or not row.peak or peaks is None:
        return 0.0
    rate = peaks.matrix["tf32"] if _could_be_tf32(row, peaks) else row.peak
    share = _REACHED_AMD if peaks.warp == _WARP_OF_AMD else _REACHED
    units = peaks.units or 1
    tiles = b
    tile_flops = 2
    for size, most in ((m, _TILE), (n, _TILE), (k, _DEPTH)):
        tiles *= -(-size // most)
        tile_flops *= min(most, -(-size // _LEAST_TILE) * _LEAST_TILE)
    compute = -(-tiles // units) * units * tile_flops / (rate * 1e3 * share)
    return _FIXED_NS + max(compute, row.cost.bytes / (peaks.memory * MEMORY_SHARE))


def _is_single(row: RooflineRow) -> bool:
    return row.cost is not None and row.cost.data_type == "fp32"


def _could_be_tf32(row: RooflineRow, peaks: DevicePeaks) -> bool:
    """Whether a product computes in single precision on a GPU whose matrix units have TF32 only."""
    return _is_single(row) and "fp32" not in peaks.matrix and "tf32" in peaks.matrix


def _reason(row: RooflineRow, peaks: DevicePeaks | None) -> str:
    """Why a product is slow, as far as it shows."""
    tf32 = peaks is not None and _could_be_tf32(row, peaks)
    return row.why_slow or ("single precision without TF32" if tf32 else "")


def _label(row: RooflineRow) -> str:
    """`aten::bmm 96 × 512×64×512 bf16`: the batch, then M, N and K."""
    if row.cost is None or row.cost.family != "GEMM":
        return ""
    b, *sizes = product_sizes(row.cost)
    batch = f"{b} × " if b > 1 else ""
    return f"{row.operation.name} {batch}{'×'.join(map(str, sizes))} {row.cost.data_type}"


_EXPERTS: Final = re.compile(r"moe|experts?(?![a-z])|topk_?softmax|grouped_topk", re.IGNORECASE)
#: Experts get so many numbers of tokens, that differ so many times. They are odd ones, while sizes
#: of weights, and what all tokens make together, are multiples of `_STEP`.
_SIZES = 4
_TIMES = 4


def imbalance(inspection: Inspection) -> Finding | None:
    """Products of experts of very different sizes; it only informs."""
    if not (inspection.has_shapes and any(map(_EXPERTS.search, inspection.work.trace.names))):
        return None
    alike: dict[Hashable, set[int]] = defaultdict(set)
    for row in inspection.roofline.rows:
        if weights := _weights(row):
            alike[weights].add(product_sizes(row.cost)[1])
    uneven = {
        weights: sizes
        for weights, sizes in alike.items()
        if sum(size % _STEP > 0 for size in sizes) >= max(_SIZES, len(sizes) / 2)
        and max(sizes) >= _TIMES * min(sizes)
    }
    widest = max(uneven.values(), key=lambda sizes: max(sizes) - min(sizes), default={0})
    about = inspection.wall.about(inspection.by_operation(lambda r: _weights(r) in uneven) > 0)
    least = min(widest)
    most = max(widest)
    return inspection.finding("imbalance", about, [most], told={"least": least, "most": most})


def _weights(row: RooflineRow) -> Hashable:
    """What products of one weights' shape have in common; None for others."""
    b, m, n, k = product_sizes(row.cost)
    return (row.operation.name, row.cost.data_type, n, k) if row.cost and b == 1 and m else None
