"""`pageable-copies`: copies from or to pageable memory, which go through a buffer of the driver."""

from __future__ import annotations

import numpy as np

from tracelens_ext.findings.exposed_copy import claim_waits, copy_rates
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import by_device, claimed, copied_bytes, link
from tracelens_ext.findings.small_copies import SMALL_BYTES
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.gpu_work import pageable_copies


def _detect(inspection: Inspection) -> Finding | None:
    work, size = inspection.work, copied_bytes(inspection)
    pageable = pageable_copies(work)[0] & work.is_copy
    pageable &= ~((size > 0) & (size <= SMALL_BYTES))  # for which the rate is no matter
    if not pageable.any():
        return None
    rate = by_device(inspection, link)
    known = bool(((size > 0) & (rate > 0))[pageable].all())
    total = max(int(work.duration[pageable].sum()), 1)
    needed = float((size / np.maximum(rate, 1))[pageable].sum()) / total
    wall = inspection.wall.copy()
    copied = wall.claim_events(pageable).saving_ns
    waits = claim_waits(wall, pageable).saving_ns
    return claimed(
        inspection,
        DETECTOR.id,
        lambda wall: wall.claim_events(pageable) + claim_waits(wall, pageable),
        [
            *copy_rates(work, np.flatnonzero(pageable)),
            *([Evidence("the link moves", float(rate.max()), "GB/s", "roofline")] if known else []),
            Evidence("idle time of waits", waits / NS_PER_MS, "ms", "gap_summary"),
        ],
        # The link needs the rest, if each is exposed as much as all are.
        low_ms=(copied * max(0.0, 1 - needed) + waits) / NS_PER_MS if known else None,
    )


DETECTOR = Detector("pageable-copies", _detect, instead="overlaps")
