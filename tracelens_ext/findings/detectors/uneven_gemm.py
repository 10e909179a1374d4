"""Matrix products that are far slower than others of the same size and type in the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.trace import Float64Array, Int64Array

TEXT: Final = FindingText(
    title="Matrix products slower than others of their size: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            excludes=(Fact.AUTOTUNED,),
            advice=(
                "Compare layout and strides of the slow products with the others in the table "
                "`roofline`: a contiguous operand, padding or tuned kernels help."
            ),
            snippet='model = torch.compile(model, mode="max-autotune")',
        ),
        AdviceVariant(
            advice=(
                "Compare layout and strides of the slow products with the others in the table "
                "`roofline`: a contiguous operand, padding or another order of dimensions "
                "helps."
            ),
        ),
    ),
    reason="an upper bound: as if each took the median time of the others of its size and type",
    evidence={
        "events": EvidenceText(what="slow products", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
    most_share=1.1,
)

#: With fewer other calls, the usual time is not known.
_FEWEST_OTHERS: Final = 3
#: Shorter calls are not compared, because their times vary too much.
_SHORT_NS: Final = 20_000
#: The calls of a layout are slow if their median exceeds this times that of the other layouts.
_UNEVEN: Final = 1.2
#: A single call is slow if it exceeds this times the median of all calls.
_UNEVEN_CALL: Final = 1.5


@detector("uneven-gemm", TEXT)
def uneven_gemm(inspection: Inspection) -> Finding | None:
    """Detect matrix products that are far slower than others of the same size and type."""
    roofline = inspection.roofline
    gpu_events = inspection.gpu_events
    rows_alike = _rows_alike(inspection)
    is_product = inspection.by_operation(lambda row: bool(row.cost)) > 0
    events = np.flatnonzero(is_product & inspection.wall.free)
    if not rows_alike or not len(events):
        return None
    calls, first_event, call_of_event = np.unique(
        inspection.launchers.of_gpu[events], return_index=True, return_inverse=True
    )
    call_ns = np.bincount(call_of_event, gpu_events.duration[events]).astype(np.float64)
    row_of_call = roofline.groups.of_gpu[events][first_event]
    by_row = np.argsort(row_of_call, kind="stable")
    row_numbers = np.arange(len(roofline.rows) + 1)
    bounds = np.searchsorted(row_of_call[by_row], row_numbers)
    needed_of_call = np.zeros(len(calls))
    for rows in rows_alike:
        calls_of_rows = [by_row[bounds[row] : bounds[row + 1]] for row in rows]
        _compare(calls_of_rows, call_ns, needed_of_call)
    needed_ns = np.zeros(len(gpu_events))
    needed_ns[events] = needed_of_call[call_of_event]
    share = inspection.beyond(needed_ns, _UNEVEN)
    return inspection.finding_of_events("uneven-gemm", share, text=TEXT)


def _rows_alike(inspection: Inspection) -> list[list[int]]:
    """Return groups of rows of the roofline: products of the same size, type and device."""
    roofline = inspection.roofline
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(roofline.rows):
        if row.cost is None or row.cost.family != "GEMM":
            continue
        batch, *sizes = product_sizes(row.cost)
        ascending_sizes = tuple(sorted(sizes))
        device = int(roofline.groups.device[number])
        key = (device, row.cost.data_type, batch, ascending_sizes)
        alike[key].append(number)
    return list(alike.values())


def _compare(
    calls_of_rows: list[Int64Array], call_ns: Float64Array, needed_of_call: Float64Array
) -> None:
    """Set the needed time of slow calls of the same size and type, in place.

    Args:
        calls_of_rows: the calls of each row of the roofline; each row is another layout.
        call_ns: the time of each call.
        needed_of_call: gets the needed time of each slow call.
    """
    all_calls = np.concatenate(calls_of_rows)
    if len(all_calls) <= _FEWEST_OTHERS:
        return
    usual = float(np.median(call_ns[all_calls]))
    for calls in calls_of_rows:
        others = np.setdiff1d(all_calls, calls)
        typical = usual
        if len(others) >= _FEWEST_OTHERS:
            typical = float(np.median(call_ns[others]))
        if (
            len(calls)
            and np.median(call_ns[calls]) > _UNEVEN * typical > _UNEVEN * _SHORT_NS
        ):
            needed_of_call[calls] = typical
        elif usual > _SHORT_NS:
            slow_calls = calls[call_ns[calls] > _UNEVEN_CALL * usual]
            needed_of_call[slow_calls] = usual
