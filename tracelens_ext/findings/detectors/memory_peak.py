"""The peak of GPU memory, and the part of the program that holds most of it; only informs."""

from __future__ import annotations

from typing import Final

from tracelens_ext.analysis.memory.events import HOST, has_memory_events
from tracelens_ext.analysis.memory.usage import (
    find_memory,
    memory_at_peak,
    memory_peaks,
)
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.lazy import pd

TEXT: Final = FindingText(
    title="Peak memory on device {device}: {peak}, {part:.0f} % {what}",
    confidence="high",
    reason="each allocation is recorded; how much of it can be freed is unknown",
    evidence={
        "peak": EvidenceText("most memory allocated at once", "MB", "memory_peaks"),
        "forward": EvidenceText("in the forward pass", "MB", "memory_at_peak"),
        "backward": EvidenceText("in the backward pass", "MB", "memory_at_peak"),
        "optimizer": EvidenceText("in the optimizer", "MB", "memory_at_peak"),
        "unused": EvidenceText(
            "reserved beyond that at the peak", "MB", "memory_peaks"
        ),
    },
    variants={
        "forward": VariantText(
            advices=(
                AdviceVariant(
                    kinds=("pytorch-inference", "serving"),
                    advice=(
                        "Run under torch.inference_mode(), and drop results as soon as they "
                        "are used."
                    ),
                    snippet="with torch.inference_mode():",
                ),
                AdviceVariant(
                    follows=(Fact.CHECKPOINTING,),
                    advice=(
                        "Checkpoint more layers, or make batches smaller: these are mostly "
                        "activations that wait for the backward pass."
                    ),
                ),
                AdviceVariant(
                    advice=(
                        "Recompute some activations in the backward pass instead of keeping "
                        "them, or make batches smaller."
                    ),
                    snippet="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
                ),
            ),
            values={"what": "allocated in the forward pass"},
        ),
        "backward": VariantText(
            advice=(
                "Free gradients after each step, accumulate them over smaller batches, or "
                "shard them over the ranks."
            ),
            snippet="optimizer.zero_grad(set_to_none=True)",
            values={"what": "allocated in the backward pass"},
        ),
        "optimizer": VariantText(
            advices=(
                AdviceVariant(
                    follows=(Fact.FUSED_OPTIMIZER,),
                    advice="Use an optimizer that keeps less state, or shard its state.",
                ),
                AdviceVariant(
                    advice=(
                        "Use a fused optimizer, or one that keeps less state: updating all "
                        "parameters at once needs temporary copies of them."
                    ),
                    snippet="torch.optim.AdamW(parameters, fused=True)",
                ),
            ),
            values={"what": "allocated by the optimizer"},
        ),
        "unused": VariantText(
            title=(
                "Fragmented memory on device {device}: {size} reserved and unused at the peak"
            ),
            advices=(
                AdviceVariant(
                    follows=(Fact.EXPANDABLE_SEGMENTS,),
                    advice=(
                        "Keep the sizes of tensors constant, so that free blocks fit, and call "
                        "torch.cuda.empty_cache() once after the first iterations."
                    ),
                ),
                AdviceVariant(
                    advice=(
                        "Let segments of the allocator grow, and keep the sizes of tensors "
                        "constant, so that free blocks fit."
                    ),
                    snippet="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                ),
            ),
        ),
    },
)

_MEGABYTE: Final = 1e6
#: A smaller part of the peak, percent, is not worth a change.
_LEAST_PERCENT: Final = 5.0
#: A peak that takes a smaller part of the device's memory, percent, is not worth a change.
_LEAST_OF_DEVICE: Final = 30.0
#: How many operations are named.
_MOST_OWNERS: Final = 3
#: The phases, and what is reserved without being in use: the variants of the text.
_PARTS: Final = ("forward", "backward", "optimizer", "unused")


@detector(
    "memory-peak", TEXT, kinds=("pytorch-training", "pytorch-inference", "serving")
)
def memory_peak(inspection: Inspection) -> Finding | None:
    """Report the phase of the program that holds most memory at the peak."""
    if not has_memory_events(inspection.gpu_events.trace):
        return None
    memory = find_memory(inspection.gpu_events.tree)
    peaks = memory_peaks(memory).dropna(subset="peak_allocated_bytes")
    peaks = peaks[peaks["device"] != HOST].fillna({"unused_at_peak_bytes": 0})
    if not len(peaks):
        return None
    highest = peaks.nlargest(1, "peak_allocated_bytes").iloc[0]
    peak = int(highest["peak_allocated_bytes"])
    unused = int(highest["unused_at_peak_bytes"])
    device = int(highest["device"])
    properties = inspection.gpu_events.trace.described(device)
    if (
        properties
        and 100.0 * (peak + unused) < _LEAST_OF_DEVICE * properties.memory_bytes
    ):
        return None
    alive = memory_at_peak(memory)
    alive = alive[alive["device"] == device]
    by_phase = alive.groupby("phase")["bytes"].sum().to_dict() | {"unused": unused}
    sizes = {part: int(by_phase.get(part, 0)) for part in _PARTS}
    largest = max(sizes, key=lambda part: sizes[part])
    percent = 100.0 * sizes[largest] / max(peak, 1)
    if percent < _LEAST_PERCENT:
        return None
    numbers = {"peak": peak / _MEGABYTE}
    for part, size in sizes.items():
        numbers[part] = size / _MEGABYTE
    values = {
        "peak": f"{peak / _MEGABYTE:,.0f} MB",
        "device": device,
        "size": f"{sizes[largest] / _MEGABYTE:,.0f} MB",
        "part": percent,
    }
    return inspection.finding(
        "memory-peak",
        None,
        numbers,
        text=TEXT,
        variant=largest,
        evidence=_largest_owners(alive),
        values=values,
    )


def _largest_owners(alive: pd.DataFrame) -> list[Evidence]:
    """Return the operations that hold the most memory at the peak."""
    owned = alive[alive["outer_operation"] != ""]
    sizes = owned.groupby("outer_operation", sort=False)["bytes"].sum()
    result = []
    for name, size in sizes.nlargest(_MOST_OWNERS).items():
        evidence = Evidence(
            what=f"held by {name}",
            value=size / _MEGABYTE,
            unit="MB",
            see="memory_at_peak",
        )
        result.append(evidence)
    return result
