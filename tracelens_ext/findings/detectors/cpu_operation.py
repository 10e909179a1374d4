"""Long operations and phases on the CPU that neither launch GPU work nor wait for it."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up_events import compilations, slow_regions
from tracelens_ext.analysis.idle_time.gpu_calls import blocking_calls
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.trace import EventKind, Int64Array
from tracelens_ext.trace.launches import captures

TEXT: Final = FindingText(
    title="GPU waits while the CPU runs {longest}: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Run it on the GPU: create tensors with device='cuda' and move inputs before "
                "computing with them. Move what must stay on the CPU onto another thread."
            ),
            snippet='x = torch.randn(size, device="cuda")  # not torch.randn(size).cuda()',
        ),
        AdviceVariant(
            advice=(
                "Run it on the GPU, or on another thread, a step ahead of the GPU."
            ),
        ),
    ),
    confidence="high",
    reason="the launching thread was in it, and launched nothing, during all of this time",
    evidence={
        "operations": EvidenceText(
            what="CPU operations and phases", unit="events", see="cpu_ops"
        ),
    },
)

#: Operations, except those that wait for other ranks or threads.
_OPERATION: Final = re.compile(r"(?!(?:c10d|gloo|mpi|autograd|profiler)\b)\w+::\w")
#: Annotations that do not count as phases: they wait for something, or have their own detector.
_NO_PHASE: Final = re.compile(
    r"ProfilerStep#|enumerate\(|(?:c10d|gloo|nccl|rccl|mpi)\b|.*(?i:compile|barrier|wait)"
)
#: An operation or phase is long from this share of the analyzed time on, percent, …
_LONG_PERCENT: Final = 2.0
#: … and in any case from this duration on, ns, …
_LONGEST_NS: Final = 20_000_000
#: … but never if it is shorter than this, ns.
_SHORT_NS: Final = 100_000
#: An operation that contains more operations than this hardly computes anything itself.
_MOST_PARTS: Final = 16


@detector(
    "cpu-operation",
    TEXT,
    kinds=("pytorch-training", "pytorch-inference", "serving", "native", "unknown"),
)
def cpu_operation(inspection: Inspection) -> Finding | None:
    """Detect long operations and phases on the CPU that neither launch nor await GPU work."""
    trace = inspection.gpu_events.trace
    rows = _long_operations_and_phases(inspection)
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows))
    rows = inspection.rows_in(claim, rows)
    if not len(rows):
        return None
    longest = trace.name_of(int(rows[trace.dur[rows].argmax()]))
    if len(rows) > 1:
        longest += f" (the longest of {len(rows):,} operations)"
    return inspection.finding(
        "cpu-operation",
        claim,
        {"operations": len(rows)},
        text=TEXT,
        values={"longest": longest},
    )


def _long_operations_and_phases(inspection: Inspection) -> Int64Array:
    """Return the rows of long operations and phases in which no GPU work is launched or awaited."""
    gpu_events = inspection.gpu_events
    trace = gpu_events.trace
    share_ns = inspection.analyzed_ns * _LONG_PERCENT / 100
    long_ns = min(_LONGEST_NS, max(_SHORT_NS, share_ns))

    operations = inspection.host_rows(_OPERATION, EventKind.CPU_OP)
    operations = operations[trace.dur[operations] >= long_ns]
    parts = inspection.held_by(operations, trace.rows_of(EventKind.CPU_OP))
    operations = operations[parts <= _MOST_PARTS]

    phases = trace.rows_of(EventKind.USER_ANNOTATION)
    phases = phases[~trace.named(trace.name[phases], _NO_PHASE.match)]
    phases = phases[trace.dur[phases] >= long_ns]

    rows = np.append(operations, phases)
    capture_starts, _ = captures(trace)
    with_own_detector = np.concatenate(
        (
            blocking_calls(gpu_events),
            compilations(trace),
            slow_regions(trace),
            capture_starts,
        )
    )
    is_alone = inspection.held_by(rows, with_own_detector) == 0
    long_and_alone: Int64Array = rows[is_alone & ~inspection.starts_work(rows)]
    return long_and_alone
