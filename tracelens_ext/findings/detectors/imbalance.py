"""Experts of a mixture that get very different numbers of tokens; only informs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import (
    STEP,
)
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes

TEXT: Final = FindingText(
    title="Uneven experts: {least:,} to {most:,} tokens each",
    advice=(
        "Balance the routing (an auxiliary loss, a capacity), replicate the experts that get "
        "most tokens, and use grouped products: large experts hold up the small ones."
    ),
    confidence="high",
    reason="products with weights of one shape differ in their rows, in a model with experts",
    evidence={
        "most_rows": EvidenceText(
            what="rows of the largest expert", unit="tokens", see="roofline"
        ),
        "percent": EvidenceText(
            what="share of their products", unit="%", see="roofline"
        ),
    },
    informs_only=True,
)

_EXPERTS: Final = re.compile(
    r"moe|experts?(?![a-z])|topk_?softmax|grouped_topk", re.IGNORECASE
)
#: Products with the same weights are uneven experts if they have at least this many numbers of rows
#: that are not multiples of `STEP` (sizes of weights, and of all tokens together, usually are) …
_FEWEST_SIZES: Final = 4
#: … and the largest number of rows is at least this many times the smallest.
_LEAST_RATIO: Final = 4


@detector("imbalance", TEXT)
def imbalance(inspection: Inspection) -> Finding | None:
    """Detect experts that get very different numbers of tokens."""
    if not inspection.has_shapes or not any(
        map(_EXPERTS.search, inspection.gpu_events.trace.names)
    ):
        return None
    tokens_of_weights: dict[Hashable, set[int]] = defaultdict(set)
    for row in inspection.roofline.rows:
        weights = _weights(row)
        if weights is not None:
            tokens_of_weights[weights].add(product_sizes(row.cost)[1])
    uneven = {
        weights: tokens
        for weights, tokens in tokens_of_weights.items()
        if _is_uneven(tokens)
    }
    widest = max(uneven.values(), key=_width, default={0})
    is_uneven = inspection.by_operation(lambda row: _weights(row) in uneven) > 0
    about = inspection.wall.about(is_uneven)
    return inspection.finding(
        "imbalance",
        about,
        {"most_rows": max(widest), "percent": inspection.share_percent(about)},
        text=TEXT,
        values={"least": min(widest), "most": max(widest)},
    )


def _width(tokens: set[int]) -> int:
    return max(tokens) - min(tokens)


def _is_uneven(tokens: set[int]) -> bool:
    """Return whether numbers of tokens are probably those of experts, and differ a lot."""
    odd_count = sum(number % STEP > 0 for number in tokens)
    if odd_count < max(_FEWEST_SIZES, len(tokens) / 2):
        return False
    smallest = min(tokens)
    largest = max(tokens)
    return largest >= _LEAST_RATIO * smallest


def _weights(row: RooflineRow) -> Hashable:
    """Return a key for products with weights of the same shape; None for other operations."""
    batch, rows, columns, depth = product_sizes(row.cost)
    if row.cost is None or batch != 1 or not rows:
        return None
    return row.operation.name, row.cost.data_type, columns, depth
