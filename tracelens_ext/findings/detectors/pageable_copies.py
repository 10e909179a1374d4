"""Copies from or to pageable memory, which the driver moves through a buffer of its own."""

from __future__ import annotations

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
    Remedy,
)
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
    title="Copies from or to pageable memory: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Copy from and to pinned memory without waiting: the driver moves pageable "
                "memory in pieces through its own buffer while the CPU waits."
            ),
            snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
        ),
        AdviceVariant(
            kinds=("jax", "tensorflow"),
            advice=(
                "Put the next batch on the device ahead of time: copies from pageable memory "
                "go in pieces through a buffer of the driver while the CPU waits."
            ),
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.DIRECTIVES,),
            advice=(
                "Keep data on the GPU across target regions (target data or acc data around the "
                "loop), or allocate it in pinned memory: pageable memory is copied in pieces "
                "while the CPU waits."
            ),
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.PYTHON_ARRAYS,),
            advice=(
                "Copy from and to pinned arrays (cupyx.empty_pinned, numba.cuda.pinned_array): "
                "pageable memory is copied in pieces while the CPU waits."
            ),
        ),
        AdviceVariant(
            kinds=("native", "unknown"),
            excludes=(Fact.AMD,),
            advice=(
                "Copy from and to pinned memory (cudaHostAlloc, cudaHostRegister): the driver "
                "moves pageable memory in pieces through its own buffer while the CPU waits."
            ),
            snippet="cudaHostRegister(buffer, bytes, cudaHostRegisterDefault)",
        ),
        AdviceVariant(
            kinds=("native", "unknown"),
            advice=(
                "Copy from and to pinned memory (hipHostMalloc, hipHostRegister): the driver "
                "moves pageable memory in pieces through its own buffer while the CPU waits."
            ),
            snippet="hipHostRegister(buffer, bytes, hipHostRegisterDefault)",
        ),
    ),
    confidence="high",
    reason="the kind of memory of each copy is recorded",
    evidence={
        "events": EvidenceText(what="such copies", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "rate_to_device": EvidenceText(
            what="rate to the device", unit="GB/s", see="kernels"
        ),
        "rate_to_host": EvidenceText(
            what="rate from the device", unit="GB/s", see="kernels"
        ),
        "link_rate": EvidenceText(what="rate of the link", unit="GB/s", see="roofline"),
        "idle_ms": EvidenceText(
            what="idle time while the CPU waits", unit="ms", see="gap_summary"
        ),
    },
)


@detector("pageable-copies", TEXT, remedy=Remedy.OVERLAPS)
def pageable_copies(inspection: Inspection) -> Finding | None:
    """Detect copies from or to pageable memory, and idle time while the CPU waits for them."""
    gpu_events = inspection.gpu_events
    size = copied_bytes(inspection)
    is_small = (size > 0) & (size <= SMALL_BYTES)  # for which the rate is no matter
    is_pageable, _ = are_pageable(gpu_events)
    is_pageable = is_pageable & gpu_events.is_copy & ~is_small
    if not is_pageable.any():
        return None
    claim = inspection.claim(
        lambda wall: wall.claim_events(is_pageable) + claim_waits(wall, is_pageable)
    )
    rate = inspection.by_device(link_to_host)
    link_rate = None
    low_ms = None
    is_known = (size > 0) & (rate > 0)
    if is_known[is_pageable].all():
        link_rate = float(rate.max())
        # The link needs the rest, if each is exposed as much as all are.
        total_ns = int(gpu_events.duration[is_pageable].sum())
        link_ns_of_events = size / np.maximum(rate, 1)
        link_ns = float(link_ns_of_events[is_pageable].sum())
        needed_share = link_ns / max(total_ns, 1)
        saved_share = max(0.0, 1 - needed_share)
        copied_ns = claim.attributed_ns - claim.idle_ns
        low_ns = copied_ns * saved_share + claim.idle_ns
        low_ms = low_ns / NS_PER_MS
    numbers = {
        **inspection.size_of(claim),
        **copy_rates(gpu_events, np.flatnonzero(is_pageable)),
        "link_rate": link_rate,
        "idle_ms": claim.idle_ns / NS_PER_MS,
    }
    return inspection.finding(
        "pageable-copies", claim, numbers, text=TEXT, low_ms=low_ms
    )
