"""`unfused-attention`: scores written to memory between matrix products and a softmax.

A fused kernel (Dao and others, "FlashAttention", 2022) never writes the scores. Chains are found
around each softmax by sizes: the products near it that make or take as many scores as it has.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import MOST_ELEMENTS, Detector, Inspection
from tracelens_ext.findings.places import ranked
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.grouping import number_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens_ext.roofline.found import Roofline, RooflineRow
    from tracelens_ext.trace import BoolArray, Float64Array, Int64Array

#: What fused kernels reach of the peak matrix rate: FlashAttention-2 35 to 40 % on H100 and
#: MI300, 50 to 70 % on A100; FlashAttention-3 up to 75 % on H100.
FUSED_SHARE: Final = 0.4
#: What kernels that are bound by memory reach of its bandwidth.
_MEMORY_SHARE: Final = 0.7
#: The backward pass computes the scores again: five products for four.
_BACKWARD_FLOPS: Final = 1.25
#: Rows and columns of scores that a fused kernel computes at once, needed or not.
_TILE: Final = 64
#: A fused kernel takes at least this long.
_LEAST_NS: Final = 5_000
#: GPU events between a softmax and its products: scale, mask, casts, dropout, copies of operands.
_WINDOW: Final = 16
#: Batch and heads, queries, keys; a softmax over fewer is a classifier's or a router's.
_LEAST_DIMS: Final = 3
#: Sizes of operations without recorded shapes: all the same. Then names make the chain, of batched
#: products and what is usual between them; anything else without shapes closes it.
_NOT_RECORDED, _CLOSES = 1, -1
_BATCHED: Final = re.compile(r"aten::(?:bmm|baddbmm_?)$")
_BETWEEN: Final = re.compile(
    r"aten::(?:(?:add|sub|mul|div|masked_fill|where|clone|copy|native_dropout)_?|_?to_copy"
    r"|native_dropout_backward)$"
)


@dataclass(frozen=True, eq=False)
class _Chains:
    """Chains, c of them, in the order of `Inspection.stream_order`."""

    softmax: Int64Array  #: the row of the roofline of each softmax, (c,)
    products: Int64Array  #: rows of its products before and after it, `NONE` for none, (c, 4)
    of_gpu: Int64Array  #: the chain of each GPU event, `NONE` for none, (g,)


def _detect(inspection: Inspection) -> Finding | None:
    shaped = inspection.has_shapes
    work, wall, rows = inspection.work, inspection.wall, inspection.roofline.rows
    if not any(_scores(row) > 0 for row in rows):
        return None
    chains = _find_chains(inspection)
    free = (chains.of_gpu != NONE) & wall.free
    chain, count = chains.of_gpu[free], len(chains.softmax)
    takes = np.bincount(chain, work.duration[free], minlength=count)
    needs = _fused_ns(inspection.roofline, chains)
    share = np.zeros(len(work))
    share[free] = np.maximum(1.0 - needs[chain] / np.maximum(takes[chain], 1), 0.0)
    claim = wall.claim_events(free & (share > 0), share)
    saved, slower = (float(np.maximum(takes - n * needs, 0.0).sum()) for n in (1, 2))
    low_ms = claim.saving_ns * slower / max(saved, 1.0) / NS_PER_MS
    shapes = [
        "×".join(map(str, row.operation.tensors[0].dims)) if row.operation.tensors else ""
        for row in rows
    ]
    known = shaped and all(row.peak for row in rows if row.cost and row.cost.family == "GEMM")
    return inspection.finding(
        DETECTOR.id,
        claim,
        confidence="high" if known and low_ms * NS_PER_MS > 0.7 * claim.saving_ns else "medium",
        reason=(
            f"a fused kernel is taken to reach {FUSED_SHARE:.0%} of the peak matrix rate or"
            f" {_MEMORY_SHARE:.0%} of the memory bandwidth; one half as fast saves"
            f" {ms_text(low_ms)}. It cannot return the weights of attention"
            if known
            else "shapes, or the peaks of this GPU, are not known, so products are taken to stay"
        ),
        evidence=[
            Evidence("chains of matrix products and softmax", count, "chains", "roofline"),
            Evidence("their time", wall.mean_ms(takes), "ms", "roofline"),
            Evidence("a fused kernel needs", wall.mean_ms(needs), "ms", "roofline"),
        ],
        where={
            "scores": ranked(chains.softmax[chains.of_gpu[claim.events]], shapes, claim.event_ns)
        },
        low_ms=low_ms,
    )


def _find_chains(inspection: Inspection) -> _Chains:
    """Each softmax with its products, and what lies between them and passes over the scores."""
    rows = inspection.roofline.rows
    order, stream = inspection.stream_order
    row = inspection.roofline.groups.of_gpu[order]
    call = inspection.launchers.of_gpu[order]
    scores = _column(map(_scores, rows))[row]
    backward = _column(map(_is_backward, rows)) > 0
    softmax = np.flatnonzero((scores > 0) & np.append(True, call[1:] != call[:-1]))
    of_products = [_score_sizes(each) for each in rows]
    sizes = np.stack([_column(each[i] for each in of_products) for i in range(3)], axis=1)[row]
    search = _Search(softmax, backward[row[softmax]], scores, sizes, stream, call)
    (before, first), (after, last) = search.products(-1), search.products(1)
    whole = np.flatnonzero((before[:, 0] != NONE) & (after[:, 0] != NONE))
    length = last[whole] + 1 - first[whole]
    chain = np.repeat(np.arange(len(whole)), length)
    place = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    place += first[whole][chain]
    wanted = scores[softmax[whole]][chain]
    passes = _column(map(_passes_over, rows))[row[place]] == wanted
    taking_part = passes | (sizes[place] == wanted[:, None]).any(axis=1)
    of_gpu = np.full(len(order), NONE)
    of_gpu[order[place[taking_part]]] = chain[taking_part]
    products = np.concatenate((before[whole], after[whole]), axis=1)
    return _Chains(
        softmax=row[softmax[whole]],
        products=np.where(products != NONE, row[products], NONE),
        of_gpu=of_gpu,
    )


@dataclass(frozen=True, eq=False)
class _Search:
    """Looks around each softmax, all of them at once; GPU events are in stream order.

    Attributes:
        softmax: where they are, (s,).
        backward: whether each is that of a backward pass, (s,).
        scores: of each GPU event what `_scores` says, (g,).
        sizes: elements of what products take and make, (g, 3).
        stream: of each, (g,).
        call: the launcher of each, (g,).
    """

    softmax: Int64Array
    backward: BoolArray
    scores: Int64Array
    sizes: Int64Array
    stream: Int64Array
    call: Int64Array

    def products(self, direction: int) -> tuple[Int64Array, Int64Array]:
        """The nearest products on one side, `NONE` for none, (s, 2), and where they end, (s,)."""
        at, most = self.softmax, np.where(self.backward, 2, 1)
        wanted = self.scores[at][:, None]
        shapeless = self.scores[at] == _NOT_RECORDED
        found, edge = np.full((len(at), 2), NONE), at.copy()
        number = np.zeros(len(at), dtype=np.int64)
        near = np.ones(len(at), dtype=bool)
        for step in range(1, _WINDOW + 1):
            there = at + direction * step
            near &= (there >= 0) & (there < len(self.call))
            there = np.where(near, there, at)
            near &= self.stream[there] == self.stream[at]
            closes = (self.scores[there] > 0) | ((self.scores[there] < 0) & shapeless)
            near &= ~closes | (self.call[there] == self.call[at])
            product = near & (self.sizes[there] == wanted).any(axis=1)
            same = product & (self.call[there] == self.call[edge])  # another kernel of it
            new = np.flatnonzero(product & ~same & (number < most))
            found[new, number[new]] = there[new]
            number[new] += 1
            edge[new] = there[new]
            edge[same] = there[same]
        return found, edge


def _scores(row: RooflineRow) -> int:
    """Elements of what a softmax over keys goes over; 0, or `_CLOSES`, for other operations."""
    name, tensors = row.operation.name.lower(), row.operation.tensors
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


def _fused_ns(roofline: Roofline, chains: _Chains) -> Float64Array:
    """What a fused kernel needs for each chain, ns, (c,)."""
    first, number = number_groups([chains.softmax, *chains.products.T])
    softmax, products = chains.softmax[first].tolist(), chains.products[first].tolist()
    needs = [_fused(roofline, *both) for both in zip(softmax, products, strict=True)]
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
    return max(flops * compute / FUSED_SHARE, moved / (peaks.memory * _MEMORY_SHARE), _LEAST_NS)


def _is_backward(row: RooflineRow) -> bool:
    return "backward" in row.operation.name.lower()


def _column(values: Iterable[int]) -> Int64Array:
    """A value for each row of the roofline, and 0 for GPU events that belong to none."""
    return np.array([*(v if v < MOST_ELEMENTS else 0 for v in values), 0], dtype=np.int64)


DETECTOR = Detector("unfused-attention", _detect)
