"""Copies that nothing hides, and idle time in which the host waits for one to the device."""

from __future__ import annotations

from typing import Final

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
    WITHIN_DEVICE,
    claim_waits,
    copy_rates,
)
from tracelens_ext.trace.gpu_events import pageable_copies as are_pageable

TEXT: Final = FindingText(
    title="Exposed copies: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            follows=(Fact.PINNED_COPIES, Fact.COPY_STREAM),
            advice=(
                "Copy one batch further ahead, copy less (smaller types, decoding on the GPU), "
                "or keep on the GPU what is copied again and again."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            follows=(Fact.PINNED_COPIES,),
            advice=(
                "Copy the next batch on a stream of its own while this one is computed, and "
                "keep on the GPU what is copied again and again."
            ),
            snippet='with torch.cuda.stream(copy_stream): batch.to("cuda", non_blocking=True)',
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Copy batches from pinned memory without waiting, one batch ahead of the "
                "computation, and keep on the GPU what is copied again and again."
            ),
            snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
        ),
        AdviceVariant(
            kinds=("jax",),
            advice="Put the next batch on the device while this one is computed.",
            snippet="batch = jax.device_put(next_batch)  # before the step that precedes it",
        ),
        AdviceVariant(
            kinds=("tensorflow",),
            advice="Put the next batch on the device while this one is computed.",
            snippet='dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))',
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.DIRECTIVES,),
            advice=(
                "Keep data on the GPU across target regions (target data or acc data around the "
                "loop), and copy the rest asynchronously beside kernels."
            ),
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.KOKKOS,),
            advice=(
                "Keep views on the device across kernels, and copy the rest with deep_copy on "
                "an execution space instance, from pinned host memory."
            ),
        ),
        AdviceVariant(
            follows=(Fact.PINNED_COPIES, Fact.COPY_STREAM),
            advice=(
                "Split the copies and the kernels that use them into parts that overlap, copy "
                "less, or keep on the GPU what is copied again and again."
            ),
        ),
        AdviceVariant(
            follows=(Fact.PINNED_COPIES,),
            advice=(
                "Copy on a separate stream, beside the kernels, and keep on the GPU "
                "what is copied again and again."
            ),
        ),
        AdviceVariant(
            excludes=(Fact.AMD,),
            advice=(
                "Copy from pinned memory (cudaHostAlloc) on a stream of its own, beside the "
                "kernels, and keep on the GPU what is copied again and again."
            ),
            kinds=("native", "unknown"),
            snippet=(
                "cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, copy_stream)"
            ),
        ),
        AdviceVariant(
            advice=(
                "Copy from pinned memory (hipHostMalloc) on a stream of its own, beside the "
                "kernels, and keep on the GPU what is copied again and again."
            ),
            kinds=("native", "unknown"),
            snippet=(
                "hipMemcpyAsync(device, pinned, bytes, hipMemcpyHostToDevice, copy_stream)"
            ),
        ),
    ),
    reason="a copy can run beside computation if what it copies is known early enough",
    evidence={
        "copies": EvidenceText("exposed copies", "GPU events", "gpu_timeline"),
        "rate_to_device": EvidenceText("rate to the device", "GB/s", "kernels"),
        "rate_to_host": EvidenceText("rate from the device", "GB/s", "kernels"),
        "idle_ms": EvidenceText("idle time while the CPU waits", "ms", "gap_summary"),
    },
    least_share=0.5,
)


@detector("exposed-copy", TEXT, remedy=Remedy.OVERLAPS)
def exposed_copy(inspection: Inspection) -> Finding | None:
    """Copies that nothing hides, and idle time in which the CPU waits for one to the device."""
    gpu_events = inspection.gpu_events
    wall = inspection.wall
    stays_on_device = gpu_events.trace.named(gpu_events.name, WITHIN_DEVICE.match)
    copied = wall.claim_events(gpu_events.is_copy & ~stays_on_device)
    is_pageable, _ = are_pageable(gpu_events)
    call_ends_later = (
        gpu_events.trace.end_of(gpu_events.tree.launch_of_gpu) >= gpu_events.end
    )
    waited = claim_waits(wall, is_pageable | call_ends_later)
    numbers = {
        "copies": len(copied.events),
        **copy_rates(gpu_events, copied.events),
        "idle_ms": waited.attributed_ms,
    }
    return inspection.finding("exposed-copy", copied + waited, numbers, text=TEXT)
