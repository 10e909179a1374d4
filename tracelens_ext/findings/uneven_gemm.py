"""`uneven-gemm`: products far slower than others of their size and type in the same trace."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import beyond, kernel_finding
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import Float64Array, Int64Array

#: Fewer others tell nothing; what is shorter is measured too coarsely.
_OTHERS, _SHORT_NS = 3, 20_000
#: So many times as long as the others: of a layout, in the median; of a single call.
_FAR, _FAR_CALL = 1.2, 1.5


def _detect(inspection: Inspection) -> Finding | None:
    if not inspection.has_shapes:
        return None
    work, call = inspection.work, inspection.launchers.of_gpu
    row = inspection.roofline.groups.of_gpu
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, its in enumerate(inspection.roofline.rows):
        if its.cost is not None and its.cost.family == "GEMM":
            b, *sizes = product_sizes(its.cost)
            device = int(inspection.roofline.groups.device[number])
            alike[device, its.cost.data_type, b, *sorted(sizes)].append(number)
    product = np.zeros(len(inspection.roofline.rows) + 1, dtype=bool)
    product[[number for numbers in alike.values() for number in numbers]] = True
    mine = np.flatnonzero(product[row] & inspection.wall.free)
    if not len(mine):
        return None
    calls, first, of_call = np.unique(call[mine], return_index=True, return_inverse=True)
    takes = np.bincount(of_call, work.duration[mine])
    rows = row[mine][first]
    needs = np.zeros(len(calls))
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], np.arange(len(product) + 1))
    for numbers in alike.values():
        _compare([order[bounds[n] : bounds[n + 1]] for n in numbers], takes, needs)
    reached = np.zeros(len(work))
    reached[mine] = needs[of_call]
    share = beyond(inspection, reached, _FAR)
    return kernel_finding(
        inspection,
        DETECTOR.id,
        share > 0,
        share,
        title="Products far slower than others of their size and type cost {saving}",
        advice=(
            "Compare the kernels, layouts and strides of the slow ones with those of the others in"
            " the table `roofline`: another order of dimensions, a contiguous operand, a tuned"
            " choice of kernels (max-autotune, tunable operations) or padding lets the library"
            " choose as well. Single slow calls point to clocks or to what runs beside them."
        ),
        snippet='model = torch.compile(model, mode="max-autotune")',
        confidence="medium",
        reason="a bound: as if each took the median time of the others of its size and type",
    )


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
            slow = calls[takes[calls] > _FAR_CALL * usual]
            needs[slow] = usual


DETECTOR = Detector("uneven-gemm", _detect)
