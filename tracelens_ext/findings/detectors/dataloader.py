"""The GPU is idle while the host waits for, or makes, the next batch."""

from __future__ import annotations

import re
from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText, VariantText
from tracelens_ext.trace import EventKind

TEXT: Final = FindingText(
    title="The data loader keeps the GPU idle for {saving}",
    snippet="DataLoader(…, num_workers=8, pin_memory=True, persistent_workers=True)",
    confidence="high",
    reason="the host was inside the loader's __next__ during all of this idle time",
    evidence={
        "calls": EvidenceText("calls of the loader's __next__", "calls", "cpu_ops"),
        "cpu_ms": EvidenceText("host time in them", "ms", "cpu_ops"),
        "idle_ms": EvidenceText("idle time within them", "ms", "gap_hosts"),
    },
    variants={
        "single": VariantText(
            advice=(
                "The loader works in the training process: give it worker processes, so that "
                "the next batches are made while the GPU computes; then make the slow steps of "
                "its transforms cheaper, or do them on the GPU."
            ),
        ),
        "workers": VariantText(
            advice=(
                "The worker processes do not keep up: use more of them, make the slow steps of "
                "their transforms cheaper, or do those on the GPU."
            ),
        ),
    },
)

#: PyTorch's own annotation around each `next()` of a data loader's iterator, and the frame of it.
_NEXT: Final = re.compile(
    r"enumerate\(DataLoader\)#|(?:.*[/\\])?(?:torch[/\\]utils[/\\]data[/\\])?dataloader\.py"
    r"\(\d+\): __next__"
)
_SINGLE_PROCESS: Final = re.compile(
    r"enumerate\(DataLoader\)#_SingleProcess|.*_SingleProcess"
)
_ANNOTATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


@detector("dataloader", TEXT, kinds=("pytorch-training", "pytorch-inference"))
def dataloader(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the CPU waits for, or makes, the next batch."""
    calls = inspection.host_rows(_NEXT, *_ANNOTATIONS, EventKind.PYTHON_FUNCTION)
    claim = inspection.wall.claim_idle_during(calls)
    calls = inspection.rows_in(claim, calls)
    variant = "workers"
    if len(inspection.host_rows(_SINGLE_PROCESS, *_ANNOTATIONS)):
        variant = "single"
    numbers = {
        "calls": len(calls),
        "cpu_ms": inspection.host_ms(calls),
        "idle_ms": claim.saving_ms,
    }
    return inspection.finding("dataloader", claim, numbers, text=TEXT, variant=variant)
