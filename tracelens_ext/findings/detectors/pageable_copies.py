"""Copies from or to pageable memory, which go through a buffer of the driver."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText, Remedy
from tracelens_ext.findings.transfer_facts import (
    SMALL_BYTES,
    claim_waits,
    copied_bytes,
    copy_rates,
    link_to_host,
)
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.trace.gpu_events import pageable_copies as are_pageable

TEXT: Final = FindingText(
    title="Copies from or to pageable memory take {saving}",
    advice=(
        "Copy from and to pinned memory: the driver moves pageable memory through a buffer of "
        "its own, piece by piece, the host waits, and nothing runs beside it. Copies of pinned "
        "memory reach the rate of the link, and can be hidden, one batch ahead."
    ),
    snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
    confidence="high",
    reason=(
        "the trace tells the memory of each copy; the least saving is what takes longer than "
        "the link, where sizes and the link are known"
    ),
    evidence={
        "events": EvidenceText("of them", "GPU events", "kernels"),
        "time_ms": EvidenceText("their time", "ms", "kernels"),
        "rate_to_device": EvidenceText("they move, to the device", "GB/s", "kernels"),
        "rate_to_host": EvidenceText("they move, from it", "GB/s", "kernels"),
        "link_rate": EvidenceText("the link moves", "GB/s", "roofline"),
        "idle_ms": EvidenceText("idle time of waits", "ms", "gap_summary"),
    },
    advice_for={
        "other": Advice(
            (
                "Copy from and to pinned memory (cudaHostAlloc, cudaHostRegister, "
                "hipHostMalloc): the driver moves pageable memory through a buffer of its own, "
                "piece by piece, and the host waits."
            ),
            "cudaHostRegister(buffer, bytes, cudaHostRegisterDefault)",
        ),
    },
)


@detector("pageable-copies", TEXT, remedy=Remedy.OVERLAPS)
def pageable_copies(inspection: Inspection) -> Finding | None:
    """Copies from or to pageable memory, which go through a buffer of the driver."""
    work = inspection.work
    size = copied_bytes(inspection)
    is_small = (size > 0) & (size <= SMALL_BYTES)  # for which the rate is no matter
    is_pageable = are_pageable(work)[0] & work.is_copy & ~is_small
    if not is_pageable.any():
        return None
    claim = inspection.claim(
        lambda wall: wall.claim_events(is_pageable) + claim_waits(wall, is_pageable)
    )
    rate = inspection.by_device(link_to_host)
    link_rate = None
    low_ms = None
    if ((size > 0) & (rate > 0))[is_pageable].all():
        link_rate = float(rate.max())
        # The link needs the rest, if each is exposed as much as all are.
        total_ns = max(int(work.duration[is_pageable].sum()), 1)
        link_ns = float((size / np.maximum(rate, 1))[is_pageable].sum())
        copied_ns = claim.saving_ns - claim.idle_ns
        low_ns = copied_ns * max(0.0, 1 - link_ns / total_ns) + claim.idle_ns
        low_ms = low_ns / NS_PER_MS
    numbers = {
        **inspection.size_of(claim),
        **copy_rates(work, np.flatnonzero(is_pageable)),
        "link_rate": link_rate,
        "idle_ms": claim.idle_ns / NS_PER_MS,
    }
    return inspection.finding(
        "pageable-copies", claim, numbers, text=TEXT, low_ms=low_ms
    )
