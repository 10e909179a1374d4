"""Collectives that run while nothing is computed."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText, Remedy
from tracelens_ext.findings.transfer_facts import (
    named_collectives,
)

TEXT: Final = FindingText(
    title="Communication that nothing hides takes {saving}",
    advice=(
        "Start collectives earlier, so that they run beside the computation: prefetch (FSDP), "
        "tune the buckets (DDP), use asynchronous collectives and wait late. Where they are "
        "slow themselves, send less: a lower precision, larger messages, fewer ranks a group."
    ),
    snippet="DistributedDataParallel(model, bucket_cap_mb=…, gradient_as_bucket_view=True)",
    reason=(
        "a collective also runs while it waits for slower ranks, which the trace of one cannot "
        "tell; and what can hide it depends on the model"
    ),
    evidence={
        "total_ms": EvidenceText("communication in all", "ms", "coll_analysis"),
        "exposed_ms": EvidenceText("of it claimed here", "ms", "gpu_timeline"),
    },
    advice_for={
        "serving": Advice(
            (
                "In tensor parallelism every layer waits for results of the others: let the "
                "engine use its own all-reduce for small messages, put the ranks of a group on "
                "GPUs that NVLink or xGMI connects, or use fewer ranks a group."
            ),
        ),
        "pytorch-inference": Advice(
            (
                "In tensor parallelism every layer waits for results of the others: use an "
                "all-reduce for small messages (symmetric memory), put the ranks of a group on "
                "GPUs that NVLink or xGMI connects, or use fewer ranks a group."
            ),
        ),
        "jax": Advice(
            "Let XLA run collectives beside the computation.",
            "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true",
        ),
        "other": Advice(
            (
                "Start collectives earlier, on a stream of their own, beside what does not "
                "need their results; send fewer and larger messages."
            ),
        ),
    },
)


@detector("exposed-communication", TEXT, remedy=Remedy.OVERLAPS)
def exposed_communication(inspection: Inspection) -> Finding | None:
    """Collectives that run while nothing is computed."""
    work = inspection.work
    is_communication = work.is_communication
    is_computation = ~(is_communication | work.is_copy)
    claim = inspection.wall.claim_events(is_communication, hiding=is_computation)
    numbers = {
        "total_ms": inspection.wall.mean_ms(work.duration[is_communication]),
        "exposed_ms": claim.saving_ms,
    }
    where = {"collectives": named_collectives(inspection, claim)}
    return inspection.finding(
        "exposed-communication", claim, numbers, text=TEXT, where=where
    )
