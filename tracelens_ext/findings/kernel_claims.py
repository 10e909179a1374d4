"""What detectors of kernels share: names, facts about devices, and what calls need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.roofline.peaks import capability_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import BoolArray, Device, Float64Array
    from tracelens_ext.work.gpu_work import GpuWork

#: Products of matrix units, however else they are called.
MATRIX_UNITS: Final = re.compile(
    r"tensorop|[sh](884|1688|16816|161616)|xmma|wmma|nvjet|_MI\d+x\d+|mfma|wgmma|tf32", re.IGNORECASE
)
_NVIDIA_WARP: Final = 32


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
    devices = trace.device
    for number in np.unique(devices).tolist():
        peaks = inspection.roofline.peaks.get(number)
        result[devices == number] = value(trace.described(number), peaks)
    return result


def units(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Its multiprocessors (compute units), as the file has them; 0: not known."""
    return (device.units if device else 0) or (peaks.units if peaks else 0)


def capability(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Ten times NVIDIA's compute capability; 0: not known, or of another maker."""
    if device and device.capability and device.warp == _NVIDIA_WARP and "AMD" not in device.name:
        return device.capability
    return capability_of(peaks.name) if peaks else 0


def link(_: Device | None, peaks: DevicePeaks | None) -> float:
    """Its link to the host in one direction, 10^9 bytes a second; 0: not known."""
    return (peaks.link or 0.0) if peaks else 0.0


def copied_bytes(work: GpuWork) -> Float64Array:
    """The bytes of each copy; 0 for what is none, or not known, (g,)."""
    size = work.trace.arg("bytes").at(work.rows, 0)
    return np.where(work.is_copy, np.maximum(size, 0), 0).astype(np.float64)


def kernel_finding(
    inspection: Inspection,
    detector: str,
    which: BoolArray,
    share: Float64Array | float,
    *,
    evidence: Sequence[Evidence] = (),
    **told: Any,
) -> Finding | None:
    """A finding that claims some shares of GPU events; too small a claim is left to others.

    Args:
        inspection: the trace; its wall time knows the claim afterwards.
        detector: its id.
        which: the events, (g,).
        share: what of each it claims, 0 to 1.
        evidence: more than the number of events and their time.
        told: what else `Inspection.finding` takes.
    """
    which = which & (np.broadcast_to(share, len(which)) > 0)
    if not which.any():
        return None
    wall = inspection.wall.copy()
    claim = wall.claim_events(which, share)
    if not inspection.is_worth(claim):
        return None
    inspection.wall = wall
    takes = wall.mean_ms(inspection.work.duration[claim.events])
    numbers = [
        Evidence("of them", len(claim.events), "GPU events", "kernels"),
        Evidence("their time", takes, "ms", "kernels"),
    ]
    return inspection.finding(detector, claim, evidence=[*numbers, *evidence], **told)


def beyond(inspection: Inspection, reached: Float64Array, far: float) -> Float64Array:
    """What calls take beyond what they need, as a share of the time of each GPU event, (g,).

    Args:
        inspection: the trace.
        reached: ns that the call of each event needs; 0 where it is not known.
        far: so many times that is far beyond it; what is nearer takes nothing too much.
    """
    work, chosen = inspection.work, (reached > 0) & inspection.wall.free
    share = np.zeros(len(work))
    if not chosen.any():
        return share
    call = inspection.launchers.of_gpu[chosen]
    takes = np.bincount(call, work.duration[chosen])[call]
    share[chosen] = np.where(takes > far * reached[chosen], 1.0 - reached[chosen] / takes, 0.0)
    return share
