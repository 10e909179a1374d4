"""`pageable-copies`: copies from or to pageable memory, which go through a buffer of the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.exposed_copy import claim_waits, copy_rates
from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, copied_bytes, link
from tracelens_ext.findings.small_copies import SMALL_BYTES
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.copies import pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    pageable, _ = pageable_copies(work)
    size = copied_bytes(work)
    pageable &= work.is_copy & ~((size > 0) & (size <= SMALL_BYTES))  # which is no matter of rates
    if not pageable.any():
        return None
    rate = by_device(inspection, link)
    wall = inspection.wall.copy()
    copied = wall.claim_events(pageable)
    wait = claim_waits(wall, pageable)
    claim = copied + wait
    if not inspection.is_worth(claim):
        return None
    inspection.wall = wall
    events = copied.events
    known = (size > 0) & (rate > 0)
    needed = np.where(known, size / np.maximum(rate, 1), 0.0)[events]
    beyond = np.maximum(copied.event_ns - needed / len(copied.devices), 0).sum() + wait.saving_ns
    return inspection.finding(
        DETECTOR.id,
        claim,
        title="Copies from or to pageable memory take {saving}",
        advice=(
            "Copy from and to pinned memory: the driver moves pageable memory through a buffer of"
            " its own, piece by piece, the host waits, and nothing runs beside it. Copies of pinned"
            " memory reach the rate of the link, and can be hidden, one batch ahead."
        ),
        snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
        confidence="high",
        reason=(
            "the trace tells the memory of each copy; the least saving is what takes longer than"
            " the link, where sizes and the link are known"
        ),
        evidence=[
            Evidence("such copies", len(events), "GPU events", "gpu_timeline"),
            *copy_rates(work, events),
            *(
                [Evidence("the link moves", float(rate[known].max()), "GB/s", "roofline")]
                if known[events].any()
                else []
            ),
            Evidence("idle time of waits", wait.saving_ns / NS_PER_MS, "ms", "gap_summary"),
        ],
        low_ms=float(beyond) / NS_PER_MS if known[events].all() else None,
    )


DETECTOR = Detector("pageable-copies", _detect, instead="overlaps")
