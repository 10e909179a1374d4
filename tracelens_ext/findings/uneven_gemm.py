"""`uneven-gemm`: products far slower than others of their size and type in the same trace."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import beyond, claimed
from tracelens_ext.roofline.gemm import product_sizes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.trace import Float64Array, Int64Array

#: Fewer others tell nothing; what is shorter is measured too coarsely.
_OTHERS, _SHORT_NS = 3, 20_000
#: So many times as long as the others: of a layout, in the median; of a single call.
_FAR, _FAR_CALL = 1.2, 1.5


def _detect(inspection: Inspection) -> Finding | None:
    roofline, work = inspection.roofline, inspection.work
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, (row, device) in enumerate(zip(roofline.rows, roofline.groups.device, strict=True)):
        if row.cost is not None and row.cost.family == "GEMM":
            b, *sizes = product_sizes(row.cost)
            alike[int(device), row.cost.data_type, b, *sorted(sizes)].append(number)
    product = inspection.by_operation([bool(row.cost) for row in roofline.rows]) > 0
    mine = np.flatnonzero(product & inspection.wall.free)
    if not alike or not len(mine):
        return None
    call = inspection.launchers.of_gpu[mine]
    _, first, of_call = np.unique(call, return_index=True, return_inverse=True)
    takes = np.bincount(of_call, work.duration[mine]).astype(np.float64)
    of_row = roofline.groups.of_gpu[mine][first]
    order = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[order], np.arange(len(roofline.rows) + 1))
    needs, needed = np.zeros(len(takes)), np.zeros(len(work))
    for rows in alike.values():
        _compare([order[bounds[row] : bounds[row + 1]] for row in rows], takes, needs)
    needed[mine] = needs[of_call]
    return claimed(inspection, DETECTOR.id, beyond(inspection, needed, _FAR))


def _compare(rows: list[Int64Array], takes: Float64Array, needs: Float64Array) -> None:
    """Set what slow calls of one size and type need; `rows` are the calls of each layout."""
    every = np.concatenate(rows)
    if len(every) <= _OTHERS:
        return
    usual = float(np.median(takes[every]))
    for calls in rows:
        others = np.setdiff1d(every, calls)
        typical = float(np.median(takes[others])) if len(others) >= _OTHERS else usual
        if len(calls) and np.median(takes[calls]) > _FAR * typical > _FAR * _SHORT_NS:
            needs[calls] = typical
        elif usual > _SHORT_NS:
            needs[calls[takes[calls] > _FAR_CALL * usual]] = usual


DETECTOR = Detector("uneven-gemm", _detect)
