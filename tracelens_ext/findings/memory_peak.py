"""`memory-peak`: what the most memory was allocated for, and what to change to need less."""

from __future__ import annotations

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.memory.events import HOST, has_memory_events

_MEGABYTE = 1e6
#: A part of the peak below this, percent, is not worth a change.
_LEAST_PERCENT = 5.0
#: Nor is what was reserved at the peak below this share of the device's memory, percent, where
#: that is known.
_LEAST_OF_DEVICE = 30.0
_MOST_OWNERS = 3  # operations that are named
_FORWARD, _BACKWARD, _OPTIMIZER, _UNUSED = "forward", "backward", "optimizer", "unused"
#: What each part of the peak is, as the title goes on, and what makes it smaller: advice, and the
#: change in code.
_PARTS = {
    _FORWARD: (
        "of it in the forward pass",
        (
            "In training these are activations that wait for the backward pass: compute some of"
            " them again instead of keeping them, or make batches smaller. In inference, run under"
            " torch.inference_mode() and drop results as soon as they are used."
        ),
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    ),
    _BACKWARD: (
        "of it in the backward pass",
        (
            "These are gradients and temporary results: free gradients after each step, accumulate"
            " them over smaller batches, or shard them over the ranks."
        ),
        "optimizer.zero_grad(set_to_none=True)",
    ),
    _OPTIMIZER: (
        "of it by the optimizer",
        (
            "Updating all parameters at once needs temporary copies of all of them: use a fused"
            " optimizer, or one that keeps less state."
        ),
        "torch.optim.AdamW(parameters, fused=True)",
    ),
    _UNUSED: (
        "more were reserved and not in use (fragmentation)",
        (
            "The allocator holds memory that earlier work needed, or its segments are cut into"
            " blocks that tensors do not fit: let segments grow, keep sizes constant, and call"
            " torch.cuda.empty_cache() once after the first iterations."
        ),
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
}


def _detect(inspection: Inspection) -> Finding | None:
    from tracelens_ext.memory.usage import find_memory, memory_at_peak, memory_peaks

    if not has_memory_events(inspection.work.trace):
        return None
    memory = find_memory(inspection.work.tree)
    peaks = memory_peaks(memory).dropna(subset="peak_allocated_bytes")
    peaks = peaks[peaks["device"] != HOST].fillna({"unused_at_peak_bytes": 0})
    if not len(peaks):
        return None
    row = peaks.nlargest(1, "peak_allocated_bytes").iloc[0]
    peak, device = int(row["peak_allocated_bytes"]), int(row["device"])
    described = inspection.work.trace.described(device)
    held = peak + int(row["unused_at_peak_bytes"])
    if described and 100.0 * held < _LEAST_OF_DEVICE * described.memory_bytes:
        return None
    alive = memory_at_peak(memory)
    alive = alive[alive["device"] == device]
    parts = alive.groupby("phase")["bytes"].sum().to_dict()
    owners = alive[alive["outer_operation"] != ""].groupby("outer_operation", sort=False)["bytes"]
    parts[_UNUSED] = row["unused_at_peak_bytes"]
    sizes = {part: int(parts.get(part, 0)) for part in _PARTS}
    largest = max(sizes, key=lambda part: sizes[part])
    share = 100.0 * sizes[largest] / max(peak, 1)
    if share < _LEAST_PERCENT:
        return None
    what, advice, snippet = _PARTS[largest]
    return Finding(
        id=DETECTOR.id,
        title=(
            f"At most {peak / _MEGABYTE:,.0f} MB were allocated on device {device},"
            f" {sizes[largest] / _MEGABYTE:,.0f} MB ({share:.1f} %) {what}"
        ),
        saving_ms=0.0,
        share_percent=0.0,
        confidence="high",
        confidence_reason="the profiler recorded each allocation; how much of it can go is unknown",
        where={},
        evidence=[
            Evidence("most memory allocated at once", peak / _MEGABYTE, "MB", "memory_peaks"),
            *(
                Evidence(
                    words,
                    sizes[part] / _MEGABYTE,
                    "MB",
                    "memory_peaks" if part == _UNUSED else "memory_at_peak",
                )
                for part, (words, _, _) in _PARTS.items()
            ),
            *(
                Evidence(f"of it by {name}", size / _MEGABYTE, "MB", "memory_at_peak")
                for name, size in owners.sum().nlargest(_MOST_OWNERS).items()
            ),
        ],
        advice=advice,
        documentation="docs/memory.md#what-to-change",
        snippet=snippet,
    )


DETECTOR = Detector("memory-peak", _detect)
