"""`exposed-copy`: copies between host and device that run while nothing is computed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: How PyTorch's profiler calls memory of the host that the GPU cannot reach by itself.
_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)
#: Copies within a device are work like any other: those of layouts have findings of their own.
_WITHIN_DEVICE = re.compile(r".*(?:DtoD|DeviceToDevice|Device -> Device|copyBuffer)")


def _detect(inspection: Inspection) -> Finding | None:
    work, trace = inspection.work, inspection.work.trace
    crosses = ~trace.names_matching(_WITHIN_DEVICE.match)[work.name]
    claim = inspection.wall.claim_events(work.is_copy & crosses)
    pageable = trace.names_matching(_PAGEABLE.match)[work.name[claim.events]]
    launch = work.tree.launch_of_gpu[claim.events]
    waited = float(trace.dur[np.unique(launch[pageable & (launch != NONE)])].sum())
    of_pageable = float(claim.event_ns[pageable].sum())
    return inspection.finding(
        DETECTOR.id,
        claim,
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
            Evidence(
                "of their time, from or to pageable memory",
                of_pageable / NS_PER_MS,
                "ms",
                "kernels",
            ),
            Evidence("the host waited in those calls", waited / NS_PER_MS, "ms", "tree"),
        ],
    )


DETECTOR = Detector("exposed-copy", _detect)
