"""Idle time of the GPU during and after calls in which the CPU waits for the GPU.

After a call, at most its duration counts: without the wait, the CPU would be ahead by this time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.gpu_calls import blocking_calls
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
    VariantText,
)
from tracelens_ext.findings.waiting_calls import WaitingCalls
from tracelens_ext.text import ms_text
from tracelens_ext.trace import EventKind

#: Facts about native programs that do not call the CUDA or HIP runtime themselves.
_NOT_WRITTEN_AGAINST_THE_RUNTIME: Final = (
    Fact.DIRECTIVES,
    Fact.KOKKOS,
    Fact.PYTHON_ARRAYS,
    Fact.JULIA,
)
_READ_LESS_OFTEN: Final = (
    "Read these values less often: test them every few iterations, or copy them to pinned "
    "memory without waiting and read them one iteration later, while the next work runs."
)
_ADVICES: Final = (
    AdviceVariant(
        kinds=("serving",),
        follows=(Fact.ASYNC_SCHEDULING,),
        advice=(
            "Find out which result the engine waits for at the places below, and sample "
            "on the GPU."
        ),
    ),
    AdviceVariant(
        kinds=("serving",),
        advice=(
            "Let the engine schedule the next step while the GPU computes (asynchronous or "
            "overlapped scheduling), and sample on the GPU."
        ),
    ),
    AdviceVariant(
        kinds=PYTORCH_JOBS,
        advice=(
            "Avoid reading GPU values in the loop: .item(), .cpu(), .tolist(), print(), "
            "nonzero() and conditions on tensors all wait. Keep values on the GPU and read "
            "them every few iterations."
        ),
        snippet="loss_sum += loss.detach()  # and .item() once at the end",
    ),
    AdviceVariant(
        kinds=("jax",),
        advice=(
            "Avoid reading values in the loop: float(), print() and numpy.asarray() wait "
            "for the GPU. Read them every few steps."
        ),
        snippet="losses.append(loss)  # and jax.device_get(losses) at the end",
    ),
    AdviceVariant(
        kinds=("tensorflow",),
        advice=(
            "Avoid reading values in the loop: .numpy() and print() wait for the GPU. Read "
            "them every few steps."
        ),
    ),
    AdviceVariant(
        kinds=("native",),
        requires=(Fact.DIRECTIVES,),
        advice=(
            "Let target regions run asynchronously (OpenMP nowait with depend, OpenACC "
            "async), and wait once for all of them."
        ),
    ),
    AdviceVariant(
        kinds=("native",),
        requires=(Fact.KOKKOS,),
        advice=(
            "Avoid fences and blocking deep_copy calls in the loop: give execution space "
            "instances, and fence once for all work."
        ),
    ),
    AdviceVariant(
        kinds=("native",),
        requires=(Fact.PYTHON_ARRAYS,),
        advice=(
            "Avoid reading arrays in the loop: float(), print(), .get() and copy_to_host() "
            "wait for the GPU. Read them every few steps."
        ),
    ),
    AdviceVariant(
        kinds=("native",),
        requires=(Fact.JULIA,),
        advice=(
            "Avoid reading arrays in the loop: Array(x), scalar indexing and synchronize() "
            "wait for the GPU. Read them every few steps."
        ),
    ),
    AdviceVariant(
        kinds=("native", "unknown"),
        advice=(
            "Avoid waiting for the whole device in the loop: let streams wait for events, "
            "copy asynchronously, and launch the next work before reading results."
        ),
        snippet="cudaStreamWaitEvent(stream, event)",
        excludes=(Fact.AMD,),
    ),
    AdviceVariant(
        advice=(
            "Avoid waiting for the whole device in the loop: let streams wait for events, "
            "copy asynchronously, and launch the next work before reading results."
        ),
    ),
)
TEXT: Final = FindingText(
    title="CPU-GPU synchronization{place}: {saving}",
    advices=_ADVICES,
    reason=(
        "without the wait the CPU launches earlier; the range allows for values that it "
        "needs first"
    ),
    evidence={
        "calls": EvidenceText(
            what="calls that waited before the GPU went idle",
            unit="calls",
            see="gap_summary",
        ),
        "cpu_ms": EvidenceText(what="CPU time in them", unit="ms", see="tree"),
        "period_ms": EvidenceText(what="they recur every", unit="ms", see="tree"),
        "per_iteration": EvidenceText(
            what="of them in each iteration", unit="calls", see="iterations"
        ),
        "during_ms": EvidenceText(
            what="idle time while the CPU waits", unit="ms", see="gap_summary"
        ),
        "idle_ms": EvidenceText(
            what="idle time until the CPU is ahead again", unit="ms", see="gap_summary"
        ),
        "copies": EvidenceText(
            what="of them wait for a copy", unit="calls", see="kernels"
        ),
        "copy_bytes": EvidenceText(
            what="size of most of these copies", unit="bytes", see="kernels"
        ),
    },
    variants={
        "explicit": VariantText(
            advices=(
                AdviceVariant(
                    kinds=PYTORCH_JOBS,
                    advice=(
                        "Stop calling torch.cuda.synchronize() and event.synchronize() in the "
                        "loop, or call them every few iterations: no operation needs these "
                        "waits. Measure times with events, and read them after the loop."
                    ),
                    snippet="start.elapsed_time(end)  # of torch.cuda.Event(enable_timing=True)",
                ),
            )
            + _ADVICES,
        ),
        "reads": VariantText(
            advices=(
                AdviceVariant(
                    kinds=("native",),
                    excludes=(Fact.AMD,) + _NOT_WRITTEN_AGAINST_THE_RUNTIME,
                    advice=_READ_LESS_OFTEN,
                    snippet="cudaMemcpyAsync(pinned, flag, bytes, cudaMemcpyDeviceToHost, stream)",
                ),
                AdviceVariant(
                    kinds=("native",),
                    excludes=_NOT_WRITTEN_AGAINST_THE_RUNTIME,
                    advice=_READ_LESS_OFTEN,
                ),
            )
            + _ADVICES,
        ),
        "pageable": VariantText(
            advices=(
                AdviceVariant(
                    kinds=PYTORCH_PROGRAMS,
                    advice=(
                        "Create these tensors on the GPU, or pin them and copy them with "
                        "non_blocking=True: .to(device) of a tensor in pageable memory waits "
                        "for all work before it."
                    ),
                    snippet='limits.pin_memory().to("cuda", non_blocking=True)',
                ),
                AdviceVariant(
                    excludes=(Fact.AMD,),
                    advice=(
                        "Copy from pinned memory without waiting: a copy from pageable memory "
                        "waits for all work before it."
                    ),
                    snippet="cudaMallocHost(&buffer, bytes)  // and cudaMemcpyAsync from it",
                ),
                AdviceVariant(
                    advice=(
                        "Copy from pinned memory without waiting: a copy from pageable memory "
                        "waits for all work before it."
                    ),
                ),
            ),
        ),
    },
)

#: A call or an operation is named in the title if it has more than this share of the idle time.
_NAMED_SHARE: Final = 0.5


@detector("synchronization", TEXT, remedy=Remedy.WAITS_NO_LONGER)
def synchronization(inspection: Inspection) -> Finding | None:
    """Detect idle time during and after calls in which the CPU waits for the GPU."""
    wall = inspection.wall
    # All idle time during these calls counts. By its cause alone, the time until the GPU starts a
    # blocking copy would not.
    in_calls = wall.claim_idle_during(blocking_calls(inspection.gpu_events))
    claim = in_calls + wall.claim_idle(wall.idle.cause == Cause.SYNCHRONIZATION.code)
    if not inspection.is_worth(claim):
        return None
    waiting = WaitingCalls(inspection, claim)
    places = waiting.places()
    numbers = {
        "calls": len(waiting.calls),
        "cpu_ms": inspection.host_ms(waiting.calls),
        "period_ms": waiting.period_ms,
        "per_iteration": waiting.per_iteration,
        "during_ms": waiting.during_ms,
        "idle_ms": claim.attributed_ms - waiting.during_ms,
        "copies": waiting.copies.count or None,
        "copy_bytes": waiting.copies.usual_bytes,
    }
    return inspection.finding(
        "synchronization",
        claim,
        numbers,
        text=TEXT,
        where=places,
        variant=_variant(inspection, waiting, places, claim.attributed_ms),
        values={"place": _most_of_it(waiting, places, claim.attributed_ms)},
    )


def _variant(
    inspection: Inspection,
    waiting: WaitingCalls,
    places: Mapping[str, Sequence[Place]],
    total_ms: float,
) -> str:
    """Return the variant of the text: what most of the calls wait for; empty if it is mixed."""
    copies = waiting.copies
    if copies.from_pageable and copies.to_device:
        return "pageable"
    if copies.count and not copies.to_device:
        return "reads"
    call = _with_most(places["calls"], total_ms)
    has_operations = inspection.gpu_events.trace.count_of(EventKind.CPU_OP) > 0
    is_explicit = call is not None and call.name.endswith("Synchronize")
    in_operations_ms = sum(place.attributed_ms for place in places["operations"])
    if has_operations and is_explicit and in_operations_ms < _NAMED_SHARE * total_ms:
        return "explicit"
    return ""


def _most_of_it(
    waiting: WaitingCalls, places: Mapping[str, Sequence[Place]], total_ms: float
) -> str:
    """Return the place with most of the time: ` in aten::to, 33 times, every 16.5 ms (…)`.

    Empty if no call has most of the time.
    """
    call = _with_most(places["calls"], total_ms)
    if call is None:
        return ""
    awaited = f"{call.name}{waiting.copies.in_words}"
    operation = _with_most(places["operations"], total_ms)
    if operation is None:
        how_often = _how_often(call.count, waiting.period_ms)
        return f" in {awaited}{how_often}"
    how_often = _how_often(operation.count, waiting.period_ms)
    return f" in {operation.name}{how_often} ({awaited})"


def _how_often(count: int, period_ms: float | None) -> str:
    """Return the frequency of calls in words: `, 33 times, every 16.5 ms`; empty for one call."""
    if count < 2:
        return ""
    if period_ms is None:
        return f", {count:,} times"
    return f", {count:,} times, every {ms_text(period_ms)}"


def _with_most(places: Sequence[Place], total_ms: float) -> Place | None:
    """Return the first place if it has most of the time, else None."""
    if places and places[0].attributed_ms > _NAMED_SHARE * total_ms:
        return places[0]
    return None
