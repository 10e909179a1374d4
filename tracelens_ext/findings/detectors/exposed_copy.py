"""Copies that nothing hides, and idle time in which the host waits for one to the device."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText, Remedy
from tracelens_ext.findings.transfer_facts import (
    WITHIN_DEVICE,
    claim_waits,
    copy_rates,
)
from tracelens_ext.trace.gpu_events import pageable_copies as are_pageable

TEXT: Final = FindingText(
    title="Copies that nothing hides take {saving}",
    advice=(
        "Copy batches from pinned memory without waiting for them, one batch ahead of the "
        "computation; keep on the GPU what is copied again and again."
    ),
    snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
    reason="the copies can run beside computation if what they copy is known early enough",
    evidence={
        "copies": EvidenceText("exposed copies", "GPU events", "gpu_timeline"),
        "rate_to_device": EvidenceText("they move, to the device", "GB/s", "kernels"),
        "rate_to_host": EvidenceText("they move, from it", "GB/s", "kernels"),
        "idle_ms": EvidenceText("idle time of such waits", "ms", "gap_summary"),
    },
    advice_for={
        "jax": Advice(
            "Put the next batch onto the device while the present one is computed.",
            "batch = jax.device_put(next_batch)  # before the step that precedes it",
        ),
        "tensorflow": Advice(
            "Put the next batch onto the device while the present one is computed.",
            'dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))',
        ),
        "other": Advice(
            (
                "Copy from pinned memory (cudaHostAlloc, hipHostMalloc) on a stream of its "
                "own, beside the kernels; keep on the GPU what is copied again and again."
            ),
            "cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, copy_stream)",
        ),
    },
)


@detector("exposed-copy", TEXT, remedy=Remedy.OVERLAPS)
def exposed_copy(inspection: Inspection) -> Finding | None:
    """Copies that nothing hides, and idle time in which the CPU waits for one to the device."""
    work = inspection.work
    wall = inspection.wall
    stays_on_device = work.trace.named(work.name, WITHIN_DEVICE.match)
    copied = wall.claim_events(work.is_copy & ~stays_on_device)
    is_pageable, _ = are_pageable(work)
    call_ends_later = work.trace.end_of(work.tree.launch_of_gpu) >= work.end
    waited = claim_waits(wall, is_pageable | call_ends_later)
    numbers = {
        "copies": len(copied.events),
        **copy_rates(work, copied.events),
        "idle_ms": waited.saving_ms,
    }
    return inspection.finding("exposed-copy", copied + waited, numbers, text=TEXT)
