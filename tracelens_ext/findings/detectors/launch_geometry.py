"""Kernels with too few blocks for the multiprocessors of their device."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.kernel_facts import SHORT_NS, blocks_of_events
from tracelens_ext.findings.program_facts import capability
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.peaks import DevicePeaks, shared_memory_of
from tracelens_ext.trace import Device

TEXT: Final = FindingText(
    title="Kernels with fewer blocks than multiprocessors: up to {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Give each kernel more work (a larger batch, several tensors in one "
                "operation), or run independent branches of the model on several streams."
            ),
        ),
        AdviceVariant(
            advice=(
                "Divide the work into more blocks, several per multiprocessor; where there is "
                "not enough work, batch several problems or run such kernels side by side on "
                "several streams."
            ),
        ),
    ),
    confidence="low",
    reason="an upper bound: as if the work could be spread over all multiprocessors",
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "mean_blocks": EvidenceText(
            what="blocks, weighted by time", unit="blocks", see="kernels"
        ),
        "multiprocessors": EvidenceText(
            what="multiprocessors", unit="units", see="roofline"
        ),
    },
    least_share=0.5,
)


@detector("launch-geometry", TEXT)
def launch_geometry(inspection: Inspection) -> Finding | None:
    """Detect kernels with too few blocks for the multiprocessors of their device."""
    gpu_events = inspection.gpu_events
    blocks = blocks_of_events(inspection)
    units = inspection.by_device(_multiprocessors)
    at_once = np.maximum(units, 1)
    waves = np.ceil(blocks / at_once)
    # Blocks run in waves only if they cannot share a multiprocessor: if a block takes more than
    # half of its shared memory.
    most_shared = inspection.by_device(_most_shared_memory)
    shared_memory = gpu_events.trace.arg("shared memory").at(gpu_events.rows, 0)
    is_alone = shared_memory * 2.0 > most_shared
    blocks_of_last_wave = blocks - (waves - 1) * at_once
    has_few = blocks_of_last_wave < at_once / 2
    has_few &= (waves == 1) | ((waves == 2) & is_alone)
    has_few &= units > 0
    has_few &= gpu_events.duration >= SHORT_NS
    has_few &= gpu_events.is_kernel & ~gpu_events.is_communication
    if not has_few.any():
        return None
    mean_blocks = np.average(blocks[has_few], weights=gpu_events.duration[has_few])
    numbers = {
        "mean_blocks": float(mean_blocks),
        "multiprocessors": float(units[has_few].max()),
    }
    idle_share = 1 - blocks / np.maximum(waves * at_once, 1)
    share = np.where(has_few, idle_share, 0.0)
    return inspection.finding_of_events("launch-geometry", share, numbers, text=TEXT)


def _multiprocessors(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Return the number of multiprocessors of a device; 0: not known."""
    if device and device.units:
        return device.units
    if peaks and peaks.units:
        return peaks.units
    return 0


def _most_shared_memory(device: Device | None, peaks: DevicePeaks | None) -> float:
    """Return the bytes of shared memory of a multiprocessor; infinite: not known."""
    return shared_memory_of(capability(device, peaks)) or math.inf
