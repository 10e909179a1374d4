"""Matrix products in kernels that were built for an older GPU architecture."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.gemm_times import (
    FAR,
    STEP,
    needed_ns_of_events,
)
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import capability
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import Device

TEXT: Final = FindingText(
    title="Kernels built for an older GPU: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Update PyTorch with its cuBLAS and cuDNN, or use a build for this GPU: sizes "
                "and alignment do not explain the choice of these kernels."
            ),
        ),
        AdviceVariant(
            advice=(
                "Update cuBLAS, cuDNN or CUTLASS, or compile for this GPU's architecture: "
                "sizes and alignment do not explain the choice of these kernels."
            ),
        ),
    ),
    confidence="low",
    reason="kernel names show the architecture; newer instructions are assumed to save 40 %",
    evidence={
        "events": EvidenceText(what="such kernels", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
    },
    least_share=0.5,
)

#: Labels and names of kernels, by the compute capability that they were built for.
_BUILT_FOR: Final = {
    70: ("kernels for Volta", re.compile(r"volta_|cutlass_70|sm70_")),
    75: ("kernels for Turing", re.compile(r"turing_|cutlass_75|sm75_")),
    80: ("kernels for Ampere", re.compile(r"ampere_|cutlass_80|sm80_")),
    90: ("kernels for Hopper", re.compile(r"cutlass_90|cutlass3x_sm90|sm90_")),
}
_NEWEST: Final = 100
#: Alignments and tiles in names that explain the choice of an older kernel.
_ODD: Final = re.compile(
    r"align[12](?!\d)|^(?:(?!_\d+x\d+).)*_(?:(?:16|32)x\d+|\d+x(?:16|32)|64x64)_",
    re.IGNORECASE,
)
#: Fewer rows or columns explain the choice of an older kernel, too.
_FEWEST_ROWS: Final = 128
#: Newer kernels are assumed to save this share: Ampere's instructions are about 60 % as fast as
#: Hopper's.
_SAVED_SHARE: Final = 0.4
#: GPUs from this compute capability on are graphics cards, which lack the instructions of Hopper
#: and its successor.
_FIRST_CARD: Final = 120


@detector("old-kernels", TEXT)
def old_kernels(inspection: Inspection) -> Finding | None:
    """Detect matrix products in kernels that were built for an older GPU architecture."""
    built_for = np.zeros(len(inspection.gpu_events), dtype=np.int64)
    for generation, (_, pattern) in _BUILT_FOR.items():
        built_for[inspection.named(pattern)] = generation
    generation_of_device = inspection.by_device(_generation)
    is_old = (built_for > 0) & (built_for < generation_of_device)
    is_old &= inspection.by_operation(_is_explained) == 0
    is_old &= ~inspection.named(_ODD)
    needed_ns = needed_ns_of_events(inspection)
    share_beyond = inspection.beyond(needed_ns, FAR)
    share = np.maximum(share_beyond, _SAVED_SHARE)
    labels = [label for label, _ in _BUILT_FOR.values()]
    reason = np.searchsorted(list(_BUILT_FOR), built_for)
    return inspection.finding_of_events(
        "old-kernels",
        np.where(is_old, share, 0.0),
        text=TEXT,
        places={"reasons": (reason, labels)},
    )


def _generation(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Return the newest generation whose kernels run on a device; 0: not known."""
    device_capability = capability(device, peaks)
    if device_capability >= _FIRST_CARD:
        device_capability = 80
    generations = list(_BUILT_FOR) + [_NEWEST]
    possible = [number for number in generations if number <= device_capability]
    return max(possible, default=0)


def _is_explained(row: RooflineRow) -> bool:
    """Return whether the sizes of a product explain the choice of an older kernel."""
    if row.cost is None or row.cost.family != "GEMM":
        return False
    _, rows, columns, depth = product_sizes(row.cost)
    if min(rows, columns) < _FEWEST_ROWS:
        return True
    return any(size % STEP for size in (rows, columns, depth))
