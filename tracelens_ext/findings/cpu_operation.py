"""`cpu-operation`: the GPU is idle while one long operation computes on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.gaps.causes import blocking_calls
from tracelens_ext.recording.again import compilations, slow_regions
from tracelens_ext.trace import NS_PER_MS, EventKind
from tracelens_ext.work.launches import captures

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import Int64Array

#: Operations, and annotated phases; not what waits for others, or is told by its own detector.
_OPERATION: Final = re.compile(
    r"(?!(?:c10d|gloo|mpi|autograd|record_param_comms|profiler)\b)\w+::\w"
)
_NO_PHASE: Final = re.compile(
    r"ProfilerStep#|enumerate\(|(?:c10d|gloo|nccl|rccl|mpi)\b|.*(?i:compile|barrier|wait)"
)
#: One this long keeps no queue of launches busy: ns, or percent of what is judged; and at least.
_LONG_NS, _LONG_PERCENT, _SHORT_NS = 20_000_000, 2.0, 100_000

#: An operation of more operations than that does not compute itself: views of many tensors, say.
_MOST_PARTS: Final = 16


def _on_the_cpu(inspection: Inspection) -> Int64Array:
    """Long operations and annotated phases in which their thread starts and awaits no GPU work."""
    work, trace = inspection.work, inspection.work.trace
    long = min(_LONG_NS, max(_SHORT_NS, inspection.judged_ns * _LONG_PERCENT / 100))
    kinds = EventKind.CPU_OP, EventKind.USER_ANNOTATION
    rows = trace.rows_of(*kinds)
    rows = rows[trace.dur[rows] >= long]
    is_op = (trace.kind[rows] == EventKind.CPU_OP) & trace.named(trace.name[rows], _OPERATION.match)
    is_phase = (trace.kind[rows] == EventKind.USER_ANNOTATION) & ~trace.named(
        trace.name[rows], _NO_PHASE.match
    )
    is_op[is_op] = inspection.held_by(rows[is_op], trace.rows_of(EventKind.CPU_OP)) <= _MOST_PARTS
    rows = rows[is_op | is_phase]
    others = [compilations(trace), slow_regions(trace), captures(trace)[0]]
    others = np.concatenate([blocking_calls(work), *others])
    alone: Int64Array = rows[
        ~inspection.starts_work(rows) & (inspection.held_by(rows, others) == 0)
    ]
    return alone


def _detect(inspection: Inspection) -> Finding | None:
    trace, rows = inspection.work.trace, _on_the_cpu(inspection)
    claim = inspection.claim_idle_during(rows)
    if claim is None:
        return None
    rows = inspection.rows_in(claim, rows)
    longest = trace.name_of(int(rows[trace.dur[rows].argmax()]))
    several = f" (of {len(rows):,} such)" if len(rows) > 1 else ""
    return inspection.finding(
        DETECTOR.id,
        claim,
        title=f"{longest}{several} works on the CPU while the GPU idles for {{saving}}",
        advice=(
            "Make it on the GPU: create tensors with device='cuda' instead of moving them there,"
            " and move inputs before they are computed with. What must stay on the CPU belongs on"
            " another thread, beside the work of the GPU."
        ),
        snippet='x = torch.randn(size, device="cuda")  # not torch.randn(size).cuda()',
        confidence="high",
        reason="the launching thread was in these, and launched nothing, in all of this idle time",
        evidence=[
            Evidence("operations and phases of the CPU", len(rows), "events", "cpu_ops"),
            Evidence(
                "host time in them", float(trace.dur[rows].sum()) / NS_PER_MS, "ms", "cpu_ops"
            ),
        ],
    )


DETECTOR = Detector("cpu-operation", _detect)
