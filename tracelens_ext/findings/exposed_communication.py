"""`exposed-communication`: collectives that run while nothing is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.collectives.collectives import communication_of
from tracelens_ext.findings.finding import Evidence, Place
from tracelens_ext.findings.inspection import Advice, Detector
from tracelens_ext.findings.places import MOST_PLACES
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.findings.wall_time import Claim


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    communication = work.is_communication
    computation = ~(communication | work.is_copy)
    claim = inspection.wall.claim_events(communication, hiding=computation)
    if not inspection.is_worth(claim):
        return None
    total = float(work.duration[communication].sum())
    return inspection.finding(
        DETECTOR.id,
        claim,
        title="Communication that nothing hides takes {saving}",
        advice=(
            "Start collectives earlier, so that they run beside the computation: prefetch (FSDP),"
            " tune the buckets (DDP), use asynchronous collectives and wait late. Where they are"
            " slow themselves, send less: a lower precision, larger messages, fewer ranks a group."
        ),
        snippet="DistributedDataParallel(model, bucket_cap_mb=…, gradient_as_bucket_view=True)",
        confidence="medium",
        reason=(
            "a collective also runs while it waits for slower ranks, which one trace cannot tell;"
            " and what can hide it depends on the model"
        ),
        evidence=[
            Evidence("communication in all", total / NS_PER_MS, "ms", "coll_analysis"),
            Evidence("of it exposed", claim.saving_ns / NS_PER_MS, "ms", "gpu_timeline"),
        ],
        where={"collectives": _named(inspection, claim)},
    )


def _named(inspection: Inspection, claim: Claim) -> list[Place]:
    """The collectives with their groups, the largest first."""
    keys = ["Collective name", "Process Group Name", "Group size"]
    claimed = communication_of(inspection.work).loc[claim.events, keys].assign(ns=claim.event_ns)
    sums = claimed.groupby(keys, sort=False, dropna=False)["ns"].agg(["sum", "size"])
    largest = sums.sort_values("sum", ascending=False, kind="stable").head(MOST_PLACES)
    return [
        Place(_name(*group), float(ns) / NS_PER_MS, int(count))
        for group, ns, count in largest.itertuples()
        if group[0]
    ]


def _name(collective: str, group: str, ranks: float) -> str:
    name = f"{collective}, group {group}" if group else collective
    return name if np.isnan(ranks) else f"{name} of {ranks:.0f}"


#: What inference on several GPUs does.
_TENSOR_PARALLEL: Final = Advice(
    "Tensor parallelism waits for each other's results in every layer: let the engine"
    " use its own all-reduce for small messages, put the ranks of a group on GPUs that"
    " NVLink or xGMI connects, or use fewer ranks a group."
)
DETECTOR = Detector(
    "exposed-communication",
    _detect,
    advice={
        "serving": _TENSOR_PARALLEL,
        "pytorch-inference": _TENSOR_PARALLEL,
        "jax": Advice(
            "Let XLA run collectives beside the computation.",
            "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true",
        ),
        "": Advice(
            "Start collectives earlier, on a stream of their own, beside what does not need"
            " their results; send fewer and larger messages."
        ),
    },
)
