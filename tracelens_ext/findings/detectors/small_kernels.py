"""Runs of kernels that are shorter than their launches. `host-bound` has the gaps between them."""

from __future__ import annotations

from typing import Final

import numpy as np

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
from tracelens_ext.trace import NS_PER_US

TEXT: Final = FindingText(
    title="Kernels shorter than their launch: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.COMPILED,),
            advice=(
                "Give the engine more requests at a time, or let it use its fused operations."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            advice=(
                "Let the engine use its fused operations and compile the model, or give it "
                "more requests at a time."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            advice=(
                "Give each kernel more work with larger batches, or fuse what the compiler "
                "left apart (TORCH_LOGS=graph_breaks, foreach operations)."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            advice=(
                "Fuse them (torch.compile, foreach operations), or give each more work with "
                "larger batches."
            ),
            snippet="model = torch.compile(model)",
        ),
        AdviceVariant(
            kinds=("jax",),
            advice="Put the whole step into one compiled function, so that XLA fuses it.",
            snippet="step = jax.jit(step)",
        ),
        AdviceVariant(
            kinds=("tensorflow",),
            advice="Let XLA fuse the step.",
            snippet="@tf.function(jit_compile=True)",
        ),
        AdviceVariant(
            advice=(
                "Fuse them, or give each more work: several small problems in one launch."
            ),
        ),
    ),
    reason="most of such a kernel is its start and end; each run of them is assumed to become one",
    evidence={
        "kernels": EvidenceText(
            what="short kernels", unit="GPU events", see="short_kernels_summary"
        ),
        "runs": EvidenceText(
            what="uninterrupted runs of them", unit="runs", see="kernels"
        ),
        "median_us": EvidenceText(
            what="median duration", unit="µs", see="short_kernels_summary"
        ),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
    most_share=1.1,
)

#: The CPU takes about this long for a launch: 3 µs for the call, and more for PyTorch around it.
#: The GPU takes 2 to 3 µs to start and end a kernel. So computation is the smaller part of the cost
#: of a kernel that is shorter than this.
_LAUNCH_NS: Final = 5_000
#: Shorter runs occur between the large kernels of any model, and are not reported.
_SHORTEST_RUN: Final = 8


@detector("small-kernels", TEXT, remedy=Remedy.REMOVES_LAUNCHES)
def small_kernels(inspection: Inspection) -> Finding | None:
    """Detect runs of kernels that are shorter than their launches.

    A single kernel is assumed to replace each run.
    """
    gpu_events = inspection.gpu_events
    wall = inspection.wall
    order, stream = inspection.stream_order
    is_short = gpu_events.duration[order] < _LAUNCH_NS
    is_short &= ~gpu_events.is_communication[order]
    begins_run = np.ones(len(order), dtype=bool)
    begins_run[1:] = stream[1:] != stream[:-1]
    begins_run[1:] |= is_short[1:] != is_short[:-1]
    run = np.cumsum(begins_run) - 1

    is_free_kernel = is_short & (wall.free & gpu_events.is_kernel)[order]
    count_of_run = np.bincount(run[is_free_kernel], minlength=int(run[-1]) + 1)
    is_long_run = count_of_run >= _SHORTEST_RUN
    is_chosen = np.zeros(len(gpu_events), dtype=bool)
    is_chosen[order] = is_free_kernel & is_long_run[run]
    share = np.zeros(len(gpu_events))
    # One of n kernels stays, so each of them saves 1 - 1/n of its time.
    share[order] = 1.0 - 1.0 / np.maximum(count_of_run, 1)[run]
    claim = wall.claim_events(is_chosen, share)

    duration = gpu_events.duration[claim.events]
    median_us = 0.0
    if len(duration):
        median_us = float(np.median(duration)) / NS_PER_US
    numbers = {
        "kernels": len(duration),
        "runs": int(is_long_run.sum()),
        "median_us": median_us,
        "time_ms": wall.mean_ms(duration),
    }
    return inspection.finding("small-kernels", claim, numbers, text=TEXT)
