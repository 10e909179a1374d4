"""`imbalance`: products of experts of very different sizes; it only informs."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.roofline.gemm import product_sizes

if TYPE_CHECKING:
    from collections.abc import Hashable


_EXPERTS: Final = re.compile(r"moe|experts?(?![a-z])|topk_?softmax|grouped_topk", re.IGNORECASE)
#: Experts get so many numbers of tokens, that differ so many times. They are odd ones, while sizes
#: of weights, and what all tokens make together, are multiples of this.
_SIZES, _TIMES, _STEP = 4, 4, 8


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    if not inspection.has_shapes or not any(map(_EXPERTS.search, work.trace.names)):
        return None
    rows = inspection.roofline.rows
    alike: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for number, row in enumerate(rows):
        b, m, n, k = product_sizes(row.cost)
        if row.cost is not None and b == 1 and m:
            alike[row.operation.name, row.cost.data_type, n, k][number] = m
    chosen, least, most = set[int](), 0, 0
    for sizes in alike.values():
        rows_of = set(sizes.values())
        odd = sum(size % _STEP > 0 for size in rows_of)
        if odd >= max(_SIZES, len(rows_of) / 2) and max(rows_of) >= _TIMES * min(rows_of):
            chosen.update(sizes)
            if max(rows_of) - min(rows_of) > most - least:
                least, most = min(rows_of), max(rows_of)
    mine = inspection.by_operation([float(number in chosen) for number in range(len(rows))])
    about = inspection.wall.about(mine > 0)
    share = inspection.share_percent(about)
    return inspection.finding(
        DETECTOR.id,
        about,
        title=f"Experts get from {least:,} to {most:,} tokens: their products are {share:.1f} %",
        informs=True,
        evidence=[Evidence("rows of the largest", most, "tokens", "roofline")],
    )


DETECTOR = Detector("imbalance", _detect)
