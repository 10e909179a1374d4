"""`exposed-copy`: copies between host and device that run while nothing is computed.

A copy from pageable memory, or any that the host waits for, also costs the idle time in which the
host waits. What comes back to the host is waited for because it is needed: `synchronisation`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.gpu_work import gigabytes_per_second, pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.findings.claim import Claim
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: Copies within a device are work like any other: those of layouts have findings of their own.
_WITHIN_DEVICE = re.compile(r".*(?:DtoD|Device(?:To|-to-| -> )Device|DEVICE_TO_DEVICE|copyBuffer)")
_TO_DEVICE = re.compile(r".*(?:HtoD|Host(?:To|-to-| -> )Device|HOST_TO_DEVICE)")
_OF_PAGEABLE = "of their time, from or to pageable memory"
_COPIES = re.compile(r"(?:cuda|hip|cu)Memcpy")


def _detect(inspection: Inspection) -> Finding | None:
    work, trace = inspection.work, inspection.work.trace
    crosses = ~trace.named(work.name, _WITHIN_DEVICE.match)
    claim = inspection.wall.claim_events(work.is_copy & crosses)
    wait = _claim_waits(inspection)
    all_pageable, known = pageable_copies(work)
    pageable = all_pageable[claim.events]
    to_device = trace.named(work.name[claim.events], _TO_DEVICE.match)
    rates = [
        Evidence(f"they move, {way}", rate, "GB/s", "kernels")
        for way, mine in (("to the device", to_device), ("from it", ~to_device))
        if (rate := gigabytes_per_second(work, claim.events[mine])) > 0
    ]
    of_pageable = float(claim.event_ns[pageable].sum())
    return inspection.finding(
        DETECTOR.id,
        claim + wait,
        title="Copies that nothing hides take {saving}",
        advice=(
            "Copy batches from pinned memory without waiting for them, one batch ahead of the"
            " computation; keep on the GPU what is copied again and again."
        ),
        snippet='DataLoader(…, pin_memory=True); batch.to("cuda", non_blocking=True)',
        confidence="high" if of_pageable > claim.saving_ns / 2 else "medium",
        reason=(
            "most of it copies pageable memory, which waits for the host and cannot be hidden"
            if of_pageable > claim.saving_ns / 2
            else "the copies can run beside computation if what they copy is known early enough"
        ),
        evidence=[
            Evidence("exposed copies", len(claim.events), "GPU events", "gpu_timeline"),
            *(
                [Evidence(_OF_PAGEABLE, of_pageable / NS_PER_MS, "ms", "kernels")]
                if known[claim.events].any()
                else []
            ),
            *rates,
            Evidence("idle time of such waits", wait.saving_ns / NS_PER_MS, "ms", "gap_summary"),
        ],
    )


def _claim_waits(inspection: Inspection) -> Claim:
    """Claim the idle time in and after calls that copied to a device, and returned after that."""
    work, wall, trace = inspection.work, inspection.wall, inspection.work.trace
    launch = work.tree.launch_of_gpu
    copies = work.is_copy & (launch != NONE)
    copies &= trace.named(work.name, _TO_DEVICE.match)
    copies &= trace.named(trace.name[launch], _COPIES.match)
    pageable, _ = pageable_copies(work)
    waited_for = copies & (pageable | (trace.end_of(launch) >= work.end))
    idle = wall.claim_idle_during(np.unique(launch[waited_for]))
    after = waited_for[wall.classified.gaps.before]
    return idle + wall.claim_idle_after(np.where(after, wall.classified.synchronising, NONE))


DETECTOR = Detector("exposed-copy", _detect, instead="overlaps")
