"""Attention in several kernels that write the scores to memory, which a fused kernel does not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.findings.attention_times import FIXED_NS, FUSED_SHARE
from tracelens_ext.findings.attribution import ranked
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import MEMORY_SHARE, Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.roofline.analysis import Roofline, RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    Float64Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.grouping import number_groups

TEXT: Final = FindingText(
    title="Unfused attention: {saving}",
    advices=(
        AdviceVariant(
            kinds=("jax",),
            requires=(Fact.NVIDIA,),
            advice="Let one kernel compute the whole attention.",
            snippet='jax.nn.dot_product_attention(q, k, v, implementation="cudnn")',
        ),
        AdviceVariant(
            kinds=("jax",),
            advice="Let one kernel compute the whole attention.",
            snippet="jax.nn.dot_product_attention(q, k, v)",
        ),
        AdviceVariant(
            follows=(Fact.FUSED_ATTENTION,),
            advice=(
                "Use fused attention in the remaining layers as well: pass masks and dropout "
                "to it as arguments, and do not ask for the attention weights."
            ),
            snippet=(
                "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
            ),
        ),
        AdviceVariant(
            advice=(
                "Use fused attention, which never writes the scores to memory: pass masks and "
                "dropout to it as arguments; in Transformers, choose it when creating the "
                "model."
            ),
            snippet=(
                "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  "
                '# or from_pretrained(…, attn_implementation="sdpa"), if the model has it'
            ),
        ),
    ),
    reason="a fused kernel is assumed to reach 40 % of the peak matrix rate",
    evidence={
        "chains": EvidenceText(
            what="chains of matrix products and softmax", unit="chains", see="roofline"
        ),
        "time_ms": EvidenceText(what="their time", unit="ms", see="roofline"),
        "needed_ms": EvidenceText(
            what="a fused kernel needs", unit="ms", see="roofline"
        ),
    },
    variants={
        "sure": VariantText(confidence="high"),
        "unknown": VariantText(
            reason="shapes or the peaks of this GPU are unknown; products are assumed to stay",
        ),
    },
    most_share=1.1,
)

#: A fused backward pass computes the scores again: five products instead of four.
_BACKWARD_FLOPS: Final = 1.25
#: A fused kernel computes whole tiles of this many rows and columns of scores.
_TILE: Final = 64
#: Products are searched among this many GPU events before and after a softmax. Between them are
#: scaling, masks, casts, dropout, and copies of operands.
_WINDOW: Final = 16
#: Scores have at least the dimensions batch and heads, queries, and keys. A softmax over fewer
#: dimensions belongs to a classifier or a router.
_LEAST_DIMS: Final = 3
#: Stands for the number of scores in operations without recorded shapes. A chain then consists of
#: batched products and of operations that are usual between them, by their names.
_NOT_RECORDED: Final = 1
#: Marks other operations without recorded shapes, at which the search for products ends.
_CLOSES: Final = -1
_BATCHED: Final = re.compile(r"aten::(?:bmm|baddbmm_?)$")
_BETWEEN: Final = re.compile(
    r"aten::(?:(?:add|sub|mul|div|masked_fill|where|clone|copy|native_dropout)_?|_?to_copy"
    r"|native_dropout_backward)$"
)
#: The confidence is high if the least saving is at least this share of the attributed time.
_SURE_SHARE: Final = 0.7


@detector(
    "unfused-attention",
    TEXT,
    kinds=("pytorch-training", "pytorch-inference", "serving", "jax"),
)
def unfused_attention(inspection: Inspection) -> Finding | None:
    """Detect attention in several kernels that write the scores to memory."""
    has_shapes = inspection.has_shapes
    gpu_events = inspection.gpu_events
    rows = inspection.roofline.rows
    if not any(_scores(row) > 0 for row in rows):
        return None
    chains = _find_chains(inspection)
    is_free = (chains.of_gpu != NONE) & inspection.wall.free
    chain = chains.of_gpu[is_free]
    total_ns = np.bincount(
        chain, gpu_events.duration[is_free], minlength=len(chains.softmax)
    )
    fused_ns = _fused_ns_of_chains(inspection.roofline, chains)
    share = np.zeros(len(gpu_events))
    needed_share = fused_ns / np.maximum(total_ns, 1)
    saved_share = np.maximum(1.0 - needed_share, 0.0)
    share[is_free] = saved_share[chain]
    is_chosen = is_free & (share > 0)
    claim = inspection.wall.claim_events(is_chosen, share)

    saved_ns = _total_saved_ns(total_ns, fused_ns)
    saved_if_twice_as_slow = _total_saved_ns(total_ns, 2 * fused_ns)
    low_ns = claim.attributed_ns * saved_if_twice_as_slow / max(saved_ns, 1.0)
    low_ms = low_ns / NS_PER_MS
    variant = ""
    if not has_shapes or not _products_have_peaks(rows):
        variant = "unknown"
    elif low_ms * NS_PER_MS > _SURE_SHARE * claim.attributed_ns:
        variant = "sure"
    numbers = {
        "chains": len(chains.softmax),
        "time_ms": inspection.wall.mean_ms(total_ns),
        "needed_ms": inspection.wall.mean_ms(fused_ns),
    }
    chain_of_events = chains.of_gpu[claim.events]
    softmax_of_events = chains.softmax[chain_of_events]
    shapes = [_shape(row) for row in rows]
    places = ranked(softmax_of_events, shapes, claim.event_ns)
    return inspection.finding(
        "unfused-attention",
        claim,
        numbers,
        text=TEXT,
        variant=variant,
        low_ms=low_ms,
        where={"scores": places},
    )


def _total_saved_ns(
    taken_ns: IntArray | Float64Array, needed_ns: Float64Array
) -> float:
    """Return the total time by which chains exceed what they need, ns."""
    saved_ns = np.maximum(taken_ns - needed_ns, 0.0)
    return float(saved_ns.sum())


def _products_have_peaks(rows: Sequence[RooflineRow]) -> bool:
    """Return whether the peak rate of every matrix product is known."""
    return all(row.peak for row in rows if row.cost and row.cost.family == "GEMM")


def _shape(row: RooflineRow) -> str:
    """Return the sizes of the first tensor of an operation as text: `96×1024×1024`."""
    if not row.operation.tensors:
        return ""
    return "×".join(map(str, row.operation.tensors[0].dims))


class _AttentionChains(NamedTuple):
    """The c chains of a softmax, its products, and the passes over the scores between them."""

    softmax: Int64Array  #: the row of the roofline of the softmax, (c,)
    #: the rows of two products before and two after the softmax, `NONE` for missing ones, (c, 4)
    products: Int64Array
    of_gpu: Int64Array  #: the chain of each GPU event, `NONE` without one, (g,)


class _Nearest(NamedTuple):
    """The nearest products on one side of s softmaxes, as positions by stream and start."""

    products: Int64Array  #: at most two products, `NONE` for missing ones, (s, 2)
    #: the farthest kernel of these products, or the softmax without products, (s,)
    edge: Int64Array


class _Search:
    """Searches products before and after softmaxes, among GPU events by stream and start."""

    def __init__(self, inspection: Inspection) -> None:
        of_operation = inspection.by_operation
        order, stream = inspection.stream_order
        self.order = order
        self.stream = stream
        self.call = inspection.launchers.of_gpu[order]
        #: the number of scores of a softmax, see `_scores`, (g,)
        self.scores = of_operation(_scores)[order]
        sizes_of_rows = [_score_sizes(row) for row in inspection.roofline.rows]
        columns = [
            of_operation(lambda _, size: size, column)[order]
            for column in zip(*sizes_of_rows, strict=True)
        ]
        #: the `_score_sizes` of each event, (g, 3)
        self.sizes = np.stack(columns, axis=1)
        begins_call = np.append(True, self.call[1:] != self.call[:-1])
        self.softmax = np.flatnonzero((self.scores > 0) & begins_call)
        is_backward = of_operation(_is_backward)[order[self.softmax]] > 0
        self.most_products = np.where(is_backward, 2, 1)
        self.wanted_size = self.scores[self.softmax][:, None]
        self.has_no_shapes = self.scores[self.softmax] == _NOT_RECORDED

    def nearest(self, direction: int) -> _Nearest:
        """Return the nearest products within the window.

        Args:
            direction: 1 to search behind each softmax, -1 to search before it.
        """
        softmax = self.softmax
        products = np.full((len(softmax), 2), NONE)
        edge = softmax.copy()
        count = np.zeros(len(softmax), dtype=np.int64)
        is_open = np.ones(len(softmax), dtype=bool)
        for step in range(1, _WINDOW + 1):
            position = softmax + direction * step
            is_open &= position >= 0
            is_open &= position < len(self.call)
            position = np.where(is_open, position, softmax)
            is_open &= self.stream[position] == self.stream[softmax]
            is_in_call = self.call[position] == self.call[softmax]
            is_open &= is_in_call | ~self._is_end(position)
            has_wanted_size = self.sizes[position] == self.wanted_size
            is_product = is_open & has_wanted_size.any(axis=1)
            is_in_call_of_edge = self.call[position] == self.call[edge]
            is_same_product = is_product & is_in_call_of_edge
            is_new = is_product & ~is_same_product
            is_new &= count < self.most_products
            new = np.flatnonzero(is_new)
            products[new, count[new]] = position[new]
            count[new] += 1
            edge[new] = position[new]
            edge[is_same_product] = position[is_same_product]
        return _Nearest(products, edge)

    def _is_end(self, position: Int64Array) -> BoolArray:
        """Return for each softmax whether the search ends at a position, (s,).

        It ends at another softmax, and at an operation that closes a chain without shapes.
        """
        scores = self.scores[position]
        is_end: BoolArray = (scores < 0) & self.has_no_shapes
        is_end |= scores > 0
        return is_end


def _find_chains(inspection: Inspection) -> _AttentionChains:
    """Return the chains of the softmaxes that have products on both sides."""
    search = _Search(inspection)
    before = search.nearest(-1)
    after = search.nearest(1)
    has_before = before.products[:, 0] != NONE
    has_after = after.products[:, 0] != NONE
    whole = np.flatnonzero(has_before & has_after)

    # All positions from the first product to the last one, chain by chain. Chains from 3 to 5 and
    # from 8 to 9 give the positions 3, 4, 5, 8, 9.
    first = before.edge[whole]
    length = after.edge[whole] + 1 - first
    chain = np.repeat(np.arange(len(whole)), length)
    chain_start = np.cumsum(length) - length
    place_in_chains = np.arange(int(length.sum()))
    place_in_chain = place_in_chains - chain_start[chain]
    position = first[chain] + place_in_chain

    wanted = search.wanted_size[whole][chain]
    event = search.order[position]
    passed_over = inspection.by_operation(_passes_over)[event]
    has_wanted_size = search.sizes[position] == wanted
    takes_part = passed_over == wanted[:, 0]
    takes_part |= has_wanted_size.any(axis=1)
    of_gpu = np.full(len(search.order), NONE)
    of_gpu[event[takes_part]] = chain[takes_part]

    row = inspection.roofline.groups.of_gpu[search.order]
    products = np.concatenate((before.products[whole], after.products[whole]), axis=1)
    rows_of_products = np.where(products != NONE, row[products], NONE)
    softmax = search.softmax[whole]
    return _AttentionChains(
        softmax=row[softmax],
        products=rows_of_products,
        of_gpu=of_gpu,
    )


def _scores(row: RooflineRow) -> int:
    """Return the number of scores that a softmax over keys processes; 0 for other operations.

    Without recorded shapes it is `_NOT_RECORDED` for a softmax, and `_CLOSES` for an operation that
    does not belong to attention.
    """
    name = row.operation.name.lower()
    is_softmax = "softmax" in name and "log_softmax" not in name
    if not row.operation.types:
        if is_softmax:
            return _NOT_RECORDED
        if _BATCHED.match(name) or _BETWEEN.match(name):
            return 0
        return _CLOSES
    tensors = row.operation.tensors
    if not is_softmax or not tensors or len(tensors[0].dims) < _LEAST_DIMS:
        return 0
    return tensors[0].elements


def _score_sizes(row: RooflineRow) -> tuple[int, int, int]:
    """Return the elements of a product's result and of its operands; 0 for other operations.

    One of them is the matrix of scores.
    """
    if not row.operation.types and _BATCHED.match(row.operation.name):
        return _NOT_RECORDED, 0, 0
    batch, rows, columns, depth = product_sizes(row.cost)
    result = batch * rows * columns
    left_operand = batch * rows * depth
    right_operand = batch * depth * columns
    return result, left_operand, right_operand


def _passes_over(row: RooflineRow) -> int:
    """Return the elements of the largest tensor of an operation; 0 for a product."""
    if not row.operation.types:
        return _NOT_RECORDED
    if row.cost is not None and row.cost.engine != "vector":
        return 0
    return max((tensor.elements for tensor in row.operation.tensors), default=0)


def _fused_ns_of_chains(roofline: Roofline, chains: _AttentionChains) -> Float64Array:
    """Return the time that a fused kernel needs for each chain, ns, (c,)."""
    rows_of_chains = np.column_stack([chains.softmax, chains.products])
    first, number = number_groups(list(rows_of_chains.T))
    needed = []
    for chain in first.tolist():
        softmax = int(chains.softmax[chain])
        rows = chains.products[chain].tolist()
        products = [row for row in rows if row != NONE]
        fused_ns = _fused_ns(roofline, softmax, products)
        needed.append(fused_ns)
    needed_ns = np.array(needed, dtype=np.float64)
    return needed_ns[number]


def _fused_ns(roofline: Roofline, softmax: int, products: list[int]) -> float:
    """Return the time that a fused kernel needs for a chain, ns.

    If peaks are not known, it is the time of the products.
    """
    product_rows = [roofline.rows[row] for row in products]
    peaks = roofline.peaks.get(int(roofline.groups.device[softmax]))
    if peaks is None or not all(row.peak for row in product_rows):
        return sum(row.gpu_ns / row.count for row in product_rows)
    softmax_row = roofline.rows[softmax]
    scores = softmax_row.operation.tensors[0]
    factor = 1.0
    if _is_backward(softmax_row):
        factor = _BACKWARD_FLOPS
    factor *= math.prod(_tiles_factor(size) for size in scores.dims[-2:])
    compute_ns = 0.0
    moved = 0
    for row in product_rows:
        if row.cost and row.peak:
            compute_ns += row.cost.flops / (row.peak * 1e3)
            moved += row.cost.bytes - scores.written
    memory_rate = peaks.memory * MEMORY_SHARE
    memory_ns = moved / memory_rate
    reached_ns = factor * compute_ns / FUSED_SHARE
    return max(reached_ns, memory_ns, FIXED_NS)


def _tiles_factor(size: int) -> float:
    """Return by which factor whole tiles compute more rows or columns than needed."""
    return -(-size // _TILE) * _TILE / max(size, 1)


def _is_backward(row: RooflineRow) -> bool:
    return "backward" in row.operation.name.lower()
