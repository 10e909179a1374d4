"""Launches that take long because the launch queue is full: the GPU is the bottleneck."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Int64Array
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import find_launches

TEXT: Final = FindingText(
    title="Launch queue full: {launches} for {average} on average",
    advice=(
        "Make the kernels faster; the CPU is ahead of the GPU here, and long launch calls in "
        "CPU tables are its waiting."
    ),
    confidence="high",
    reason="the GPU was busy during these calls, and their kernels started after they returned",
    evidence={
        "calls": EvidenceText(what="launches that block", unit="calls", see="tree"),
        "total_ms": EvidenceText(what="CPU time in them", unit="ms", see="tree"),
    },
)

#: A launch that takes longer may block. Other launches take a few microseconds.
_SHORTEST_BLOCKED_NS: Final = 50_000
#: Fewer blocking launches, or a smaller share of the analyzed time in them, are not reported.
_FEWEST_CALLS: Final = 4
_LEAST_SHARE: Final = 0.05
#: The GPU is busy for at least this share of a launch that blocks.
_LEAST_BUSY_SHARE: Final = 0.9


@detector("full-launch-queue", TEXT)
def full_launch_queue(inspection: Inspection) -> Finding | None:
    """Detect launches that take long because the launch queue is full."""
    calls = _calls_that_block(inspection)
    total_ns = int(inspection.gpu_events.trace.dur[calls].sum())
    if len(calls) < _FEWEST_CALLS or total_ns < _LEAST_SHARE * inspection.analyzed_ns:
        return None
    mean_us = total_ns / len(calls) / NS_PER_US
    return inspection.finding(
        "full-launch-queue",
        None,
        {"calls": len(calls), "total_ms": total_ns / NS_PER_MS},
        text=TEXT,
        values={
            "launches": f"{len(calls):,} launches block",
            "average": f"{mean_us:,.0f} µs",
        },
    )


def _calls_that_block(inspection: Inspection) -> Int64Array:
    """Return the rows of long launches during which their device was busy."""
    gpu_events = inspection.gpu_events
    trace = gpu_events.trace
    launches = find_launches(gpu_events)
    launch_of_gpu = gpu_events.tree.launch_of_gpu
    kernel_launches = launches.rows[launches.is_kernel]
    is_launched = np.isin(launch_of_gpu, kernel_launches)
    kernels = np.flatnonzero(is_launched)
    order = np.argsort(gpu_events.start[kernels], kind="stable")
    kernels = kernels[order]
    _, first_of_name = np.unique(gpu_events.name[kernels], return_index=True)
    # The first launch of a kernel takes long because it loads the kernel's code.
    kernels = np.delete(kernels, first_of_name)

    calls = launch_of_gpu[kernels]
    is_long = trace.dur[calls] >= _SHORTEST_BLOCKED_NS
    starts_later = gpu_events.start[kernels] > trace.end_of(calls)
    is_blocked = is_long & starts_later
    blocked_calls = calls[is_blocked]
    blocked_kernels = kernels[is_blocked]
    device_of_gpu = inspection.wall.tracks.of_gpu
    device_of_call = device_of_gpu[blocked_kernels]

    calls_under_busy_device = [blocked_calls[:0]]
    for device in np.unique(device_of_call).tolist():
        calls_of_device = blocked_calls[device_of_call == device]
        is_on_device = device_of_gpu == device
        busy_ns = covered(
            start=gpu_events.start[is_on_device],
            end=gpu_events.end[is_on_device],
            window_start=trace.ts[calls_of_device],
            window_end=trace.end_of(calls_of_device),
        )
        least_busy_ns = _LEAST_BUSY_SHARE * trace.dur[calls_of_device]
        is_busy = busy_ns >= least_busy_ns
        calls_under_busy_device.append(calls_of_device[is_busy])
    # A call may have launched work on several devices.
    return distinct(np.concatenate(calls_under_busy_device))
