"""Attention: in parts, or slow though it is fused."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from tracelens_ext.findings.attribution import ranked
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.roofline.analysis import Roofline, RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array, Int64Array
from tracelens_ext.trace.grouping import number_groups

#: What fused kernels reach of the peak matrix rate: FlashAttention-2 35 to 40 % on H100 and
#: MI300, 50 to 70 % on A100; FlashAttention-3 up to 75 % on H100.
_FUSED_SHARE: Final = 0.4
#: The backward pass computes the scores again: five products for four.
_BACKWARD_FLOPS: Final = 1.25
#: Rows and columns of scores that a fused kernel computes at once, needed or not.
_TILE: Final = 64
#: A fused kernel takes at least this long, or this besides what it computes and moves.
_FIXED_NS: Final = 5_000
#: GPU events between a softmax and its products: scale, mask, casts, dropout, copies of operands.
_WINDOW: Final = 16
#: Batch and heads, queries, keys; a softmax over fewer is a classifier's or a router's.
_LEAST_DIMS: Final = 3
#: Sizes of operations without recorded shapes: all the same. Then names make the chain, of batched
#: products and what is usual between them; anything else without shapes closes it.
_NOT_RECORDED = 1
_CLOSES = -1
_BATCHED: Final = re.compile(r"aten::(?:bmm|baddbmm_?)$")
_BETWEEN: Final = re.compile(
    r"aten::(?:(?:add|sub|mul|div|masked_fill|where|clone|copy|native_dropout)_?|_?to_copy"
    r"|native_dropout_backward)$"
)


def unfused_attention(inspection: Inspection) -> Finding | None:
    """Scores written to memory between products and a softmax; a fused kernel never writes them."""
    shaped = inspection.has_shapes
    work = inspection.work
    wall = inspection.wall
    rows = inspection.roofline.rows
    if not any(_scores(row) > 0 for row in rows):
        return None
    softmax, products, chain_of = _find_chains(inspection)
    free = (chain_of != NONE) & wall.free
    chain = chain_of[free]
    count = len(softmax)
    takes = np.bincount(chain, work.duration[free], minlength=count)
    needs = _fused_ns(inspection.roofline, softmax, products)
    share = np.zeros(len(work))
    share[free] = np.maximum(1.0 - needs[chain] / np.maximum(takes[chain], 1), 0.0)
    claim = wall.claim_events(free & (share > 0), share)
    saved, slower = (float(np.maximum(takes - n * needs, 0.0).sum()) for n in (1, 2))
    low_ms = claim.saving_ns * slower / max(saved, 1.0) / NS_PER_MS
    tensors = [row.operation.tensors for row in rows]
    shapes = ["×".join(map(str, its[0].dims)) if its else "" for its in tensors]
    known = shaped and all(row.peak for row in rows if row.cost and row.cost.family == "GEMM")
    sure = "sure" if low_ms * NS_PER_MS > 0.7 * claim.saving_ns else ""
    variant = sure if known else "unknown"
    told = {"least": ms_text(low_ms)}
    numbers = count, wall.mean_ms(takes), wall.mean_ms(needs)
    where = {"scores": ranked(softmax[chain_of[claim.events]], shapes, claim.event_ns)}
    return inspection.finding(
        "unfused-attention", claim, numbers, where=where, low_ms=low_ms, variant=variant, told=told
    )


def _find_chains(inspection: Inspection) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Each softmax with its products, and what lies between them and passes over the scores.

    Returns:
        Of c chains the row of the roofline of each softmax, (c,); those of its products before and
        after it, `NONE` for none, (c, 4); and the chain of each GPU event, `NONE` for none, (g,).
    """
    of_operation = inspection.by_operation
    rows = inspection.roofline.rows
    order, stream = inspection.stream_order
    row = inspection.roofline.groups.of_gpu[order]
    call = inspection.launchers.of_gpu[order]
    scores = of_operation(_scores)[order]
    softmax = np.flatnonzero((scores > 0) & np.append(True, call[1:] != call[:-1]))
    columns = zip(*map(_score_sizes, rows), strict=True)
    sizes = np.stack([of_operation(lambda _, its: its, of)[order] for of in columns], axis=1)
    most = np.where(of_operation(_is_backward)[order[softmax]] > 0, 2, 1)
    wanted = scores[softmax][:, None]
    shapeless = scores[softmax] == _NOT_RECORDED

    def nearest(direction: int) -> tuple[Int64Array, Int64Array]:
        """The nearest products on one side, `NONE` for none, (s, 2), and where they end, (s,)."""
        found = np.full((len(softmax), 2), NONE)
        edge = softmax.copy()
        number = np.zeros(len(softmax), dtype=np.int64)
        near = np.ones(len(softmax), dtype=bool)
        for step in range(1, _WINDOW + 1):
            there = softmax + direction * step
            near &= (there >= 0) & (there < len(call))
            there = np.where(near, there, softmax)
            near &= stream[there] == stream[softmax]
            closes = (scores[there] > 0) | ((scores[there] < 0) & shapeless)
            near &= ~closes | (call[there] == call[softmax])
            product = near & (sizes[there] == wanted).any(axis=1)
            same = product & (call[there] == call[edge])  # another kernel of it
            new = np.flatnonzero(product & ~same & (number < most))
            found[new, number[new]] = there[new]
            number[new] += 1
            edge[new] = there[new]
            edge[same] = there[same]
        return found, edge

    (before, first) = nearest(-1)
    (after, last) = nearest(1)
    whole = np.flatnonzero((before[:, 0] != NONE) & (after[:, 0] != NONE))
    length = last[whole] + 1 - first[whole]
    chain = np.repeat(np.arange(len(whole)), length)
    place = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    place += first[whole][chain]
    wanted = wanted[whole][chain]
    passes = of_operation(_passes_over)[order[place]] == wanted[:, 0]
    taking_part = passes | (sizes[place] == wanted).any(axis=1)
    of_gpu = np.full(len(order), NONE)
    of_gpu[order[place[taking_part]]] = chain[taking_part]
    products = np.concatenate((before[whole], after[whole]), axis=1)
    return row[softmax[whole]], np.where(products != NONE, row[products], NONE), of_gpu


def _scores(row: RooflineRow) -> int:
    """Elements of what a softmax over keys goes over; 0, or `_CLOSES`, for other operations."""
    name = row.operation.name.lower()
    tensors = row.operation.tensors
    is_softmax = "softmax" in name and "log_softmax" not in name
    if not row.operation.types:
        known = _BATCHED.match(name) or _BETWEEN.match(name)
        return _NOT_RECORDED if is_softmax else 0 if known else _CLOSES
    if not is_softmax:
        return 0
    return tensors[0].elements if tensors and len(tensors[0].dims) >= _LEAST_DIMS else 0


def _score_sizes(row: RooflineRow) -> tuple[int, int, int]:
    """Elements of the result of a matrix product and of its operands; 0 for others."""
    if not row.operation.types and _BATCHED.match(row.operation.name):
        return _NOT_RECORDED, 0, 0
    b, m, n, k = product_sizes(row.cost)
    return b * m * n, b * m * k, b * k * n


def _passes_over(row: RooflineRow) -> int:
    """Elements of the largest tensor of an operation that is no product; 0 for others."""
    if not row.operation.types:
        return _NOT_RECORDED
    if row.cost is not None and row.cost.engine != "vector":
        return 0
    return max((tensor.elements for tensor in row.operation.tensors), default=0)


def _fused_ns(roofline: Roofline, softmax: Int64Array, products: Int64Array) -> Float64Array:
    """What a fused kernel needs for each chain, ns, (c,)."""
    first, number = number_groups([softmax, *products.T])
    both = zip(softmax[first].tolist(), products[first].tolist(), strict=True)
    needs = [_fused(roofline, *rows) for rows in both]
    return np.array(needs, dtype=np.float64)[number]


def _fused(roofline: Roofline, softmax: int, products: list[int]) -> float:
    """What a fused kernel needs; without known peaks the time of the products, which stay."""
    rows = roofline.rows
    judged = [rows[product] for product in products if product != NONE]
    peaks = roofline.peaks.get(int(roofline.groups.device[softmax]))
    if peaks is None or not all(row.peak for row in judged):
        return sum(row.gpu_ns / row.count for row in judged)
    scores = rows[softmax].operation.tensors[0]
    flops = _BACKWARD_FLOPS if _is_backward(rows[softmax]) else 1.0
    flops *= math.prod(-(-n // _TILE) * _TILE / max(n, 1) for n in scores.dims[-2:])
    compute = sum(row.cost.flops / (row.peak * 1e3) for row in judged if row.cost and row.peak)
    moved = sum(row.cost.bytes - scores.written for row in judged if row.cost)
    return max(flops * compute / _FUSED_SHARE, moved / (peaks.memory * MEMORY_SHARE), _FIXED_NS)


def _is_backward(row: RooflineRow) -> bool:
    return "backward" in row.operation.name.lower()


#: Queries of a head that one block computes; what takes so many times as long as usual is far off.
_QUERIES = 128
_FAR = 1.5


def slow_attention(inspection: Inspection) -> Finding | None:
    """Fused attention far below what such kernels reach."""
    needed = inspection.by_operation(_needed_ns, inspection.peaks_of_rows)
    share = inspection.beyond(needed, _FAR)
    if not share.any():
        return None
    return inspection.claimed("slow-attention", share, [inspection.rate_of(share > 0)])


def _needed_ns(row: RooflineRow, peaks: DevicePeaks | None) -> float:
    """What a call would take at the usual rate, ns; 0 for what is no attention."""
    if not (row.cost and row.cost.family.startswith("SDPA") and row.peak and peaks):
        return 0.0
    sizes = [row.cost.parameters.get(name) for name in ("B", "H_Q", "N_Q")]
    b, h, n = (size if isinstance(size, int) else 1 for size in sizes)
    tiles = max(b * h * -(-n // _QUERIES), 1)
    units = peaks.units or 1
    idle = -(-tiles // units) * units / tiles
    compute = row.cost.flops * idle / (row.peak * 1e3 * _FUSED_SHARE)
    return _FIXED_NS + max(compute, row.cost.bytes / (peaks.memory * MEMORY_SHARE))
