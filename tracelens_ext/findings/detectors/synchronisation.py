"""Idle time in and after calls in which the CPU waits for the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracelens_ext.analysis.idle_time.causes import Cause, blocking_calls
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText, Remedy
from tracelens_ext.findings.waiting_calls import WaitingCalls
from tracelens_ext.text import ms_text

TEXT: Final = FindingText(
    title="CPU\u2013GPU synchronization leaves the GPU idle for {saving}{place}",
    advice=(
        "Do not read values of the GPU in the loop: .item(), .cpu(), .tolist(), print(), "
        "nonzero() and conditions on tensors all wait for it{copied}. Keep them on the GPU, read "
        "them every few iterations, or copy them with non_blocking=True and look later."
    ),
    snippet="loss_sum += loss.detach()  # and .item() once at the end",
    reason=(
        "without the wait the CPU would launch earlier by as long as it waited, unless it needs "
        "the value that it asks for"
    ),
    evidence={
        "calls": EvidenceText(
            "calls that waited before the GPU idled", "calls", "gap_summary"
        ),
        "cpu_ms": EvidenceText("CPU time in them", "ms", "tree"),
        "period_ms": EvidenceText("they recur every", "ms", "tree"),
        "per_iteration": EvidenceText(
            "of them in each iteration", "calls", "iterations"
        ),
        "during_ms": EvidenceText("idle time while the CPU waits", "ms", "gap_summary"),
        "idle_ms": EvidenceText(
            "idle time until the CPU is ahead again", "ms", "gap_summary"
        ),
        "copies": EvidenceText("of them wait for a copy", "calls", "kernels"),
        "copy_bytes": EvidenceText("size of most of these copies", "bytes", "kernels"),
    },
    advice_for={
        "serving": Advice(
            (
                "Let the engine schedule the next step while the GPU computes the present one "
                "(asynchronous or overlapped scheduling), and sample on the GPU."
            ),
        ),
        "jax": Advice(
            (
                "Do not look at values in the loop: float(), print() and numpy.asarray() wait "
                "for the GPU. Keep them on it, or look every few steps."
            ),
            "losses.append(loss)  # and jax.device_get(losses) at the end",
        ),
        "tensorflow": Advice(
            (
                "Do not look at values in the loop: .numpy() and print() wait for the GPU. "
                "Keep them on it, or look every few steps."
            ),
        ),
        "other": Advice(
            (
                "Do not wait for the whole device in the loop: let streams wait for events, "
                "copy asynchronously from pinned memory, and launch the next work before "
                "looking at results."
            ),
            "cudaStreamWaitEvent(stream, event)",
        ),
    },
)

#: A part of the idle time that is named in the title, as a share of it.
_NAMED_SHARE: Final = 0.5
#: What the advice adds where the CPU waits for copies to the device.
_PAGEABLE_TO_DEVICE: Final = (
    ", and so does .to(device) of a tensor in pageable memory: create it on the GPU, or "
    "pin it"
)


@detector("synchronisation", TEXT, remedy=Remedy.WAITS_NO_LONGER)
def synchronisation(inspection: Inspection) -> Finding | None:
    """Idle time in and after calls in which the CPU waits for the GPU."""
    wall = inspection.wall
    # Of a blocking copy, the time in which the GPU is about to start it is the CPU's by its cause.
    in_calls = wall.claim_idle_during(blocking_calls(inspection.work))
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
        "idle_ms": claim.saving_ms - waiting.during_ms,
        "copies": waiting.copies.count or None,
        "copy_bytes": waiting.copies.usual_bytes,
    }
    copied = ""
    if waiting.copies.from_pageable and waiting.copies.to_device:
        copied = _PAGEABLE_TO_DEVICE
    return inspection.finding(
        "synchronisation",
        claim,
        numbers,
        text=TEXT,
        where=places,
        values={
            "place": _most_of_it(waiting, places, claim.saving_ms),
            "copied": copied,
        },
    )


def _most_of_it(
    waiting: WaitingCalls, places: Mapping[str, Sequence[Place]], total_ms: float
) -> str:
    """Return where most of the idle time comes from, as the title goes on; else nothing."""
    call = _with_most(places["calls"], total_ms)
    if call is None:
        return ""
    operation = _with_most(places["operations"], total_ms)
    count = call.count
    words = f": {call.name} waits"
    if operation is not None:
        count = operation.count
        words = f": {operation.name} waits in {call.name}"
    words += waiting.copies.in_words
    if count > 1:
        words += f", {count:,} times"
    if waiting.period_ms is not None:
        words += f", every {ms_text(waiting.period_ms)}"
    return words


def _with_most(places: Sequence[Place], total_ms: float) -> Place | None:
    """Return the first place if it has most of a time."""
    if places and places[0].saving_ms > _NAMED_SHARE * total_ms:
        return places[0]
    return None
