"""`slow-link`: collectives and copies far below what the link of the device moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.collectives.collectives import bus_factor, communication_of, element_bytes
from tracelens_ext.findings.exposed_copy import WITHIN_DEVICE
from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, claimed, copied_bytes, link
from tracelens_ext.work.gpu_work import pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import Float64Array

#: Less than this share of the link is far below it. Smaller messages take their latency.
_FAR, _LARGE_BYTES = 1 / 3, 2**20
#: A collective that takes so many times as long as the best of its size waits for others; one call
#: of a size cannot tell.
_WAITS, _CALLS = 1.5, 3
_SIZE: Final = ["Collective name", "dtype", "In msg nelems", "Out msg nelems"]
_GROUP: Final = ["Process Group Name", "Group size"]


def _detect(inspection: Inspection) -> Finding | None:
    work, rate = inspection.work, by_device(inspection, link)
    crosses = ~work.trace.named(work.name, WITHIN_DEVICE.match) & ~pageable_copies(work)[0]
    moved = np.where(crosses, copied_bytes(inspection), 0.0)
    transfer = work.duration.astype(np.float64)
    _set_collectives(inspection, moved, transfer)
    needed = moved / np.maximum(rate, 1)
    slow = (moved >= _LARGE_BYTES) & (rate > 0) & (needed < _FAR * transfer)
    if not slow.any():
        return None
    # What is left of a call is its wait for others, and what the link needs.
    until = work.start + np.rint(np.where(slow, transfer - needed, 0.0)).astype(np.int64)
    computation = ~(work.is_communication | work.is_copy)
    reached = float(moved[slow].sum() / transfer[slow].sum())
    return claimed(
        inspection,
        DETECTOR.id,
        lambda wall: wall.claim_events(slow, hiding=computation, until=until),
        [
            Evidence("they move (collectives: on the bus)", reached, "GB/s", "coll_analysis"),
            Evidence("the link moves", float(rate.max()), "GB/s", "roofline"),
        ],
    )


def _set_collectives(inspection: Inspection, moved: Float64Array, transfer: Float64Array) -> None:
    """Set the bytes of collectives, as bus bandwidth counts, and ns without the wait for others."""
    table = communication_of(inspection.work)
    event, same = table.index.to_numpy(), [*_GROUP, *_SIZE]
    told = table[_SIZE + _GROUP].drop_duplicates()
    told["moved"] = [
        np.fmax(sent, received) * element_bytes(kind) * bus_factor(name, ranks)
        for name, kind, sent, received, _, ranks in told.itertuples(index=False)
    ]
    moved[event] = np.nan_to_num(table[same].merge(told, how="left", on=same)["moved"])
    if moved[event].max(initial=0) < _LARGE_BYTES:
        return  # none is judged
    rate = np.where(moved[event] >= _LARGE_BYTES, moved[event] / np.maximum(transfer[event], 1), 0)
    # A group that is fast in one call has a fast link: others of its calls wait for other ranks.
    fastest = table.assign(rate=rate).groupby(_GROUP, dropna=False)["rate"].transform("max")
    calls = table.groupby(same, dropna=False)["time"]
    shortest = 1e3 * calls.transform("min")
    alone = np.where(transfer[event] > _WAITS * shortest, shortest, transfer[event])
    judged = calls.transform("size") >= _CALLS
    judged &= fastest < _FAR * by_device(inspection, link)[event]
    transfer[event] = np.where(judged, alone, 0.0)


DETECTOR = Detector("slow-link", _detect)
