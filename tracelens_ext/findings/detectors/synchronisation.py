"""Idle time after a wait of the host, at most what it waited: by so much it would be ahead."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time import causes
from tracelens_ext.findings.attribution import around, frames_around
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
)
from tracelens_ext.trace import EventKind

TEXT: Final = FindingText(
    title="CPU-GPU synchronization: {saving}",
    advices=(
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
    ),
    reason=(
        "without the wait the CPU could launch earlier by as long as it waited, unless it "
        "needs the value"
    ),
    evidence={
        "calls": EvidenceText(
            "calls that waited before the GPU went idle", "calls", "gap_summary"
        ),
        "cpu_ms": EvidenceText("CPU time in them", "ms", "tree"),
        "idle_ms": EvidenceText("idle time after them", "ms", "gap_summary"),
    },
)


@detector("synchronisation", TEXT, remedy=Remedy.WAITS_NO_LONGER)
def synchronisation(inspection: Inspection) -> Finding | None:
    """Idle time after a wait of the CPU, at most what it waited: by so much it would be ahead."""
    wall = inspection.wall
    work = inspection.work
    call_of_gap = wall.classified.synchronizing_call
    idle_after = wall.claim_idle_after(call_of_gap)
    idle_during = wall.claim_idle_during(causes.blocking_calls(work))
    call_of_interval = call_of_gap[idle_after.intervals.gap]
    calls = np.unique(call_of_interval)
    numbers = {
        "calls": len(calls),
        "cpu_ms": inspection.host_ms(calls),
        "idle_ms": idle_after.saving_ms,
    }
    where = {
        "operations": around(
            work, (EventKind.CPU_OP,), call_of_interval, idle_after.ns
        ),
        "python_frames": frames_around(work, call_of_interval, idle_after.ns),
    }
    return inspection.finding(
        "synchronisation", idle_after + idle_during, numbers, text=TEXT, where=where
    )
