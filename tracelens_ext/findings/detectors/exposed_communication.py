"""Collectives that run while nothing is computed."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
)
from tracelens_ext.findings.transfer_facts import (
    named_collectives,
)

TEXT: Final = FindingText(
    title="Exposed communication: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.OWN_ALL_REDUCE,),
            advice=(
                "Use fewer ranks per tensor-parallel group, or fuse the all-reduce with the "
                "norm that follows it, if the engine can: every layer waits for its result."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            requires=(Fact.FAST_LINK,),
            advice=(
                "Let the engine use its own all-reduce for small messages, or use fewer ranks "
                "per tensor-parallel group: every layer waits for the results of the others."
            ),
        ),
        AdviceVariant(
            kinds=("serving", "pytorch-inference"),
            requires=(Fact.PCIE_ONLY,),
            advice=(
                "Use fewer ranks per tensor-parallel group, or split the model by layers "
                "(pipeline parallelism): PCIe connects these GPUs, and every layer waits for "
                "the results of the others."
            ),
        ),
        AdviceVariant(
            kinds=("serving", "pytorch-inference"),
            advice=(
                "Use an all-reduce made for small messages (symmetric memory, or that of the "
                "engine), or fewer ranks per tensor-parallel group: every layer waits for the "
                "results of the others."
            ),
        ),
        AdviceVariant(
            kinds=("pytorch-training",),
            follows=(Fact.HIDDEN_COMMUNICATION,),
            advice=(
                "Send less, or hide the rest: gradients in 16 bits, fewer ranks per group, and "
                "the last bucket or prefetch started earlier."
            ),
        ),
        AdviceVariant(
            kinds=("pytorch-training",),
            requires=(Fact.SHARDED_PARAMETERS,),
            advice=(
                "Prefetch the parameters of the next block while this one computes, and send "
                "less: parameters in bf16, fewer ranks per group (hybrid sharding)."
            ),
            snippet=(
                "FullyShardedDataParallel(model, forward_prefetch=True, limit_all_gathers=True)"
            ),
        ),
        AdviceVariant(
            kinds=("pytorch-training",),
            advice=(
                "Start collectives earlier, so that they run beside the computation: tune the "
                "buckets of DistributedDataParallel, or use asynchronous collectives and wait "
                "late."
            ),
            snippet=(
                "DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)"
            ),
        ),
        AdviceVariant(
            kinds=("jax",),
            advice="Let XLA run collectives beside the computation.",
            snippet="XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true",
        ),
        AdviceVariant(
            advice=(
                "Start collectives earlier, on a stream of their own, beside work that does "
                "not need their results; send fewer and larger messages."
            ),
        ),
    ),
    reason="a collective also runs while it waits for slower ranks, which one trace cannot show",
    evidence={
        "total_ms": EvidenceText("total communication", "ms", "coll_analysis"),
        "exposed_ms": EvidenceText("exposed", "ms", "gpu_timeline"),
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
        "exposed_ms": claim.attributed_ms,
    }
    where = {"collectives": named_collectives(inspection, claim)}
    return inspection.finding(
        "exposed-communication", claim, numbers, text=TEXT, where=where
    )
