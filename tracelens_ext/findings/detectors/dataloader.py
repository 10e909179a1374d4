"""Idle time of the GPU while the CPU waits for the next batch, or prepares it."""

from __future__ import annotations

import re
from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import AdviceVariant, EvidenceText, FindingText
from tracelens_ext.trace import EventKind

TEXT: Final = FindingText(
    title="GPU waits for the data loader: {saving}",
    advices=(
        AdviceVariant(
            follows=(Fact.LOADER_WORKERS,),
            advice=(
                "Use more worker processes, or make the slow steps of their transforms cheaper "
                "(decode less, run them on the GPU): the workers do not keep up."
            ),
            snippet="DataLoader(…, num_workers=16, prefetch_factor=4)",
        ),
        AdviceVariant(
            advice=(
                "Give the data loader worker processes, so that the next batches are made "
                "while the GPU computes."
            ),
            snippet=("DataLoader(…, num_workers=8, persistent_workers=True)"),
        ),
    ),
    confidence="high",
    reason="all of this idle time is inside the loader's __next__",
    evidence={
        "calls": EvidenceText("calls of the loader's __next__", "calls", "cpu_ops"),
        "cpu_ms": EvidenceText("CPU time in them", "ms", "cpu_ops"),
        "idle_ms": EvidenceText("idle time within them", "ms", "idle_cpu_activity"),
    },
)

#: PyTorch's annotation around each `next()` of a data loader's iterator, and its Python frame.
_NEXT: Final = re.compile(
    r"enumerate\(DataLoader\)#|(?:.*[/\\])?(?:torch[/\\]utils[/\\]data[/\\])?dataloader\.py"
    r"\(\d+\): __next__"
)
_ANNOTATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


@detector("dataloader", TEXT, kinds=("pytorch-training", "pytorch-inference"))
def dataloader(inspection: Inspection) -> Finding | None:
    """Detect idle time of the GPU while the CPU is in the data loader's `__next__`."""
    calls = inspection.host_rows(_NEXT, *_ANNOTATIONS, EventKind.PYTHON_FUNCTION)
    claim = inspection.wall.claim_idle_during(calls)
    calls = inspection.rows_in(claim, calls)
    numbers = {
        "calls": len(calls),
        "cpu_ms": inspection.host_ms(calls),
        "idle_ms": claim.attributed_ms,
    }
    return inspection.finding("dataloader", claim, numbers, text=TEXT)
