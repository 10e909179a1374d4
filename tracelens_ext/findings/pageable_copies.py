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
    needed = np.where((size > 0) & (rate > 0), size / np.maximum(rate, 1), 0.0)
    wall = inspection.wall.copy()
    share = np.clip(1 - needed / np.maximum(work.duration, 1), 0, 1)
    # What the link needs is left to `exposed-copy`.
    until = work.start + np.rint(share * work.duration).astype(np.int64)
    copied = wall.claim_events(pageable & (share > 0), until=until)
    wait = claim_waits(wall, pageable)
    claim = copied + wait
    if not inspection.is_worth(claim):
        return None
    inspection.wall = wall
    return inspection.finding(
        DETECTOR.id,
        claim,
        title="Copies from or to pageable memory take {saving} more than the link needs",
        advice=(
            "Copy from and to pinned memory: the driver moves pageable memory through a buffer of"
            " its own, piece by piece, and the host waits meanwhile."
        ),
        snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
        confidence="high" if needed[pageable].all() else "medium",
        reason=(
            "the trace tells the memory of each copy"
            + ("" if needed[pageable].all() else "; the sizes or the link are not known, so all of")
            + ("" if needed[pageable].all() else " their time is claimed")
        ),
        evidence=[
            Evidence("such copies", int(pageable.sum()), "GPU events", "gpu_timeline"),
            *copy_rates(work, np.flatnonzero(pageable)),
            Evidence("the link moves", float(rate.max(initial=0)), "GB/s", "roofline"),
            Evidence("idle time of waits", wait.saving_ns / NS_PER_MS, "ms", "gap_summary"),
        ],
    )


DETECTOR = Detector("pageable-copies", _detect)
