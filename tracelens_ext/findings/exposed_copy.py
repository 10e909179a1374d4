"""`exposed-copy`: copies between host and device that run while nothing is computed.

A copy from pageable memory, or any that the host waits for, also costs the idle time in which the
host waits. What comes back to the host is waited for because it is needed: `synchronisation`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.gpu_work import GpuWork, gigabytes_per_second, pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.findings.claim import Claim
    from tracelens_ext.findings.wall_time import WallTime
    from tracelens_ext.trace import BoolArray, Int64Array

#: Copies within a device are work like any other: those of layouts have findings of their own.
WITHIN_DEVICE = re.compile(r".*(?:DtoD|Device(?:To|-to-| -> )Device|DEVICE_TO_DEVICE|copyBuffer)")
_TO_DEVICE = re.compile(r".*(?:HtoD|Host(?:To|-to-| -> )Device|HOST_TO_DEVICE)")
_COPIES = re.compile(r"(?:cuda|hip|cu)Memcpy")


def _detect(inspection: Inspection) -> Finding | None:
    work, wall = inspection.work, inspection.wall
    crosses = ~work.trace.named(work.name, WITHIN_DEVICE.match)
    claim = wall.claim_events(work.is_copy & crosses)
    pageable, _ = pageable_copies(work)
    wait = claim_waits(wall, pageable | (work.trace.end_of(work.tree.launch_of_gpu) >= work.end))
    return inspection.finding(
        DETECTOR.id,
        claim + wait,
        evidence=[
            Evidence("exposed copies", len(claim.events), "GPU events", "gpu_timeline"),
            *copy_rates(work, claim.events),
            Evidence("idle time of such waits", wait.saving_ns / NS_PER_MS, "ms", "gap_summary"),
        ],
    )


def copy_rates(work: GpuWork, events: Int64Array) -> list[Evidence]:
    """How fast some copies run, by direction."""
    to_device = work.trace.named(work.name[events], _TO_DEVICE.match)
    return [
        Evidence(f"they move, {way}", rate, "GB/s", "kernels")
        for way, mine in (("to the device", to_device), ("from it", ~to_device))
        if (rate := gigabytes_per_second(work, events[mine])) > 0
    ]


def claim_waits(wall: WallTime, waited_for: BoolArray) -> Claim:
    """Claim the idle time in and after the calls of some copies to a device, (g,)."""
    work, trace = wall.work, wall.work.trace
    launch = work.tree.launch_of_gpu
    copies = waited_for & work.is_copy & (launch != NONE)
    copies &= trace.named(work.name, _TO_DEVICE.match)
    copies &= trace.named(trace.name[launch], _COPIES.match)
    idle = wall.claim_idle_during(np.unique(launch[copies]))
    after = copies[wall.classified.gaps.before]
    return idle + wall.claim_idle_after(np.where(after, wall.classified.synchronising, NONE))


DETECTOR = Detector("exposed-copy", _detect, instead="overlaps")
