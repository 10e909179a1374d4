"""Communication that runs while the GPU computes nothing."""

from __future__ import annotations

import re
from typing import Final

from tracelens_ext.analysis.collectives import communication_of
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
    VariantText,
)
from tracelens_ext.findings.transfer_facts import (
    named_collectives,
)
from tracelens_ext.lazy import pd

_SHARDED_SNIPPET: Final = (
    "FullyShardedDataParallel(model, forward_prefetch=True, limit_all_gathers=True)"
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
            snippet=_SHARDED_SNIPPET,
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
    reason=(
        "a collective also runs while it waits for slower ranks, which one trace cannot show; "
        "tracelens-ext fleet compares all ranks"
    ),
    evidence={
        "total_ms": EvidenceText("total communication", "ms", "coll_analysis"),
        "exposed_ms": EvidenceText("exposed", "ms", "gpu_timeline"),
    },
    variants={
        "exchange": VariantText(
            advices=(
                AdviceVariant(
                    advice=(
                        "Exchange the data of one part of the batch while another part is "
                        "computed, or beside work that needs none of it (shared experts), and "
                        "send less: fewer bits, ranks of one node first."
                    ),
                ),
            ),
        ),
        "stages": VariantText(
            advices=(
                AdviceVariant(
                    kinds=("pytorch-training",),
                    advice=(
                        "Give stages of the pipeline equal work, use more micro-batches or an "
                        "interleaved schedule, and post receives before their data is needed: "
                        "a stage waits for its neighbors here."
                    ),
                ),
                AdviceVariant(
                    advice=(
                        "Give stages of the pipeline equal work, keep more requests or "
                        "micro-batches in flight, and post receives before their data is "
                        "needed: a stage waits for its neighbors here."
                    ),
                ),
            ),
        ),
        "shards": VariantText(
            advices=(
                AdviceVariant(
                    requires=(Fact.SHARDED_PARAMETERS,),
                    follows=(Fact.HIDDEN_COMMUNICATION,),
                    advice=(
                        "Send less: parameters in bf16, and sharding within a node only "
                        "(hybrid sharding)."
                    ),
                ),
                AdviceVariant(
                    requires=(Fact.SHARDED_PARAMETERS,),
                    advice=(
                        "Prefetch the parameters of the next block while this one computes, "
                        "and send less: parameters in bf16, fewer ranks per group (hybrid "
                        "sharding)."
                    ),
                    snippet=_SHARDED_SNIPPET,
                ),
                AdviceVariant(
                    advice=(
                        "Start gathering before the data is needed, and scatter beside the "
                        "computation that follows; send less: fewer bits, fewer ranks per "
                        "group, groups within a node."
                    ),
                ),
            ),
        ),
        "broadcast": VariantText(
            advices=(
                AdviceVariant(
                    requires=(Fact.GRADIENT_BUCKETS,),
                    advice=(
                        "Stop sending buffers from rank 0 before each forward pass, if their "
                        "small differences between ranks do no harm (running statistics)."
                    ),
                    snippet="DistributedDataParallel(model, broadcast_buffers=False)",
                ),
                AdviceVariant(
                    advice=(
                        "Send the data once, before the loop, or beside work that does not "
                        "need it; combine small messages into large ones."
                    ),
                ),
            ),
        ),
    },
    least_share=0.5,
)

#: Names of collectives, by the variant of the text; the first pattern that fits decides.
_KINDS: Final = {
    "": re.compile(r"all_?reduce", re.IGNORECASE),
    "exchange": re.compile(r"all_?to_?all", re.IGNORECASE),
    "stages": re.compile(r"send|recv", re.IGNORECASE),
    "shards": re.compile(r"all_?gather|reduce_?scatter", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
}


@detector("exposed-communication", TEXT, remedy=Remedy.OVERLAPS)
def exposed_communication(inspection: Inspection) -> Finding | None:
    """Detect communication that runs while the GPU computes nothing."""
    gpu_events = inspection.gpu_events
    is_communication = gpu_events.is_communication
    is_computation = ~(is_communication | gpu_events.is_copy)
    claim = inspection.wall.claim_events(is_communication, hiding=is_computation)
    numbers = {
        "total_ms": inspection.wall.mean_ms(gpu_events.duration[is_communication]),
        "exposed_ms": claim.attributed_ms,
    }
    where = {"collectives": named_collectives(inspection, claim)}
    return inspection.finding(
        "exposed-communication",
        claim,
        numbers,
        text=TEXT,
        where=where,
        variant=_largest_kind(inspection, claim),
    )


def _largest_kind(inspection: Inspection, claim: Claim) -> str:
    """Return the variant for the collectives with most of a claim; empty for all-reduces."""
    described = communication_of(inspection.gpu_events).loc[claim.events]
    # NCCL runs some collectives, such as all-to-all, with kernels named after another.
    is_named = described["Collective name"] != ""
    name = described["Collective name"].where(is_named, described["kernel_name"])
    ns_of_name = pd.Series(claim.event_ns, index=name.to_numpy()).groupby(level=0).sum()
    ns_of_kind = dict.fromkeys(_KINDS, 0.0)
    for collective, ns in ns_of_name.items():
        for kind, pattern in _KINDS.items():
            if pattern.search(str(collective)):
                ns_of_kind[kind] += ns
                break
    return max(_KINDS, key=lambda kind: ns_of_kind[kind])
