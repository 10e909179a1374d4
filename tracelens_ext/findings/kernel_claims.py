"""What detectors of kernels and copies share: names, facts about devices, claims, texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.places import ranked
from tracelens_ext.recording.program import program_of
from tracelens_ext.roofline.peaks import DevicePeaks, capability_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from tracelens_ext.findings.finding import Claim
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.findings.wall_time import WallTime
    from tracelens_ext.trace import BoolArray, Device, Float64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

#: What kernels that are bound by memory reach of its bandwidth.
MEMORY_SHARE: Final = 0.7
_NVIDIA_WARP: Final = 32
_AMD: Final = ("hip", "roc")


def named(inspection: Inspection, pattern: re.Pattern[str]) -> BoolArray:
    """The kernels in whose names a pattern is found, collectives left out, (g,)."""
    work = inspection.work
    found: BoolArray = work.trace.named(work.name, pattern.search)
    return found & work.is_kernel & ~work.is_communication


def by_device(
    inspection: Inspection, value: Callable[[Device | None, DevicePeaks | None], float]
) -> Float64Array:
    """What holds of the device of each GPU event: by what the file says of it, and its peaks."""
    trace, result = inspection.work.trace, np.zeros(len(inspection.work))
    for number, peaks in inspection.roofline.peaks.items():
        result[trace.device == number] = value(trace.described(number), peaks)
    return result


def capability(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Ten times NVIDIA's compute capability; 0: not known, or of another maker."""
    if device and device.capability and device.warp == _NVIDIA_WARP and "AMD" not in device.name:
        return device.capability
    return capability_of(peaks.name) if peaks else 0


def beyond(inspection: Inspection, needed: Float64Array, far: float) -> Float64Array:
    """What calls take beyond what they need, ns, as a share of the time of each GPU event, (g,).

    What is not known needs 0; what takes less than `far` times as long takes nothing too much.
    """
    work, chosen = inspection.work, (needed > 0) & inspection.wall.free
    share = np.zeros(len(work))
    if chosen.any():
        call = inspection.launchers.of_gpu[chosen]
        takes = np.bincount(call, work.duration[chosen])[call]
        share[chosen] = np.where(takes > far * needed[chosen], 1.0 - needed[chosen] / takes, 0.0)
    return share


def rate_of(inspection: Inspection, slow: BoolArray) -> float:
    """TFLOP/s of the calls of some GPU events."""
    events = np.flatnonzero(slow)
    _, first = np.unique(inspection.launchers.of_gpu[events], return_index=True)
    flops = inspection.by_operation(lambda row: row.cost.flops if row.cost else 0)
    time = max(float(inspection.work.duration[events].sum()), 1.0)
    return float(flops[events[first]].sum()) / time / 1e3


def claimed(
    inspection: Inspection,
    detector: str,
    claim: Callable[[WallTime], Claim] | Float64Array,
    evidence: Sequence[Evidence] = (),
    *,
    low_ms: float | None = None,
    kinds: Mapping[str, tuple[IntArray, Sequence[str]]] | None = None,
) -> Finding | None:
    """A finding of some GPU events; too small a claim is left to others.

    `claim` claims wall time, or is the share of each GPU event that is claimed, (g,). `kinds` are
    further places: the code of each GPU event, `NONE` for none, (g,), and its labels.
    """
    its = inspection.claim(
        claim if callable(claim) else lambda wall: wall.claim_events(claim > 0, claim)
    )
    if its is None:
        return None
    time = inspection.wall.mean_ms(inspection.work.duration[its.events])
    numbers = [
        Evidence("of them", len(its.events), "GPU events", "kernels"),
        Evidence("their time", time, "ms", "kernels"),
    ]
    places = (kinds or {}).items()
    return inspection.finding(
        detector,
        its,
        evidence=[*numbers, *evidence],
        low_ms=low_ms,
        where={kind: ranked(code[its.events], of, its.event_ns) for kind, (code, of) in places},
    )


def kernel_profiler(work: GpuWork) -> str:
    """What profiles single kernels on the trace's GPUs."""
    trace = work.trace
    names = " ".join(trace.names[code] for code in np.unique(trace.name).tolist()[:1000])
    is_amd = program_of(trace).tool == "rocprofv3" or any(f" {a}" in names for a in _AMD)
    is_amd |= any("AMD" in device.name for device in trace.devices)
    return "rocprof-compute" if is_amd else "ncu"
