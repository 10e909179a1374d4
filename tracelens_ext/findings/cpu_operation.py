"""`cpu-operation`: the GPU is idle while one long operation computes on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.gaps.causes import blocking_calls
from tracelens_ext.recording.again import compilations, slow_regions
from tracelens_ext.trace import EventKind
from tracelens_ext.work.launches import captures

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array

#: Operations, and what is no phase: neither what waits for others, nor what has its own detector.
_OPERATION: Final = re.compile(r"(?!(?:c10d|gloo|mpi|autograd|profiler)\b)\w+::\w")
_NO_PHASE: Final = re.compile(
    r"ProfilerStep#|enumerate\(|(?:c10d|gloo|nccl|rccl|mpi)\b|.*(?i:compile|barrier|wait)"
)
#: One this long keeps no queue of launches busy: ns, or percent of what is judged; and at least.
_LONG_NS, _LONG_PERCENT, _SHORT_NS = 20_000_000, 2.0, 100_000
#: An operation of more operations than that does not compute itself: views of many tensors, say.
_MOST_PARTS: Final = 16


def _on_the_cpu(inspection: Inspection) -> Int64Array:
    """Long operations and annotated phases in which their thread starts and awaits no GPU work."""
    trace, work = inspection.work.trace, inspection.work
    long = min(_LONG_NS, max(_SHORT_NS, inspection.judged_ns * _LONG_PERCENT / 100))
    ops = inspection.host_rows(_OPERATION, EventKind.CPU_OP)
    ops = ops[trace.dur[ops] >= long]
    parts = inspection.held_by(ops, trace.rows_of(EventKind.CPU_OP))
    phases = trace.rows_of(EventKind.USER_ANNOTATION)
    phases = phases[~trace.named(trace.name[phases], _NO_PHASE.match)]
    rows = np.append(ops[parts <= _MOST_PARTS], phases[trace.dur[phases] >= long])
    others = blocking_calls(work), compilations(trace), slow_regions(trace), captures(trace)[0]
    alone = inspection.held_by(rows, np.concatenate(others)) == 0
    found: Int64Array = rows[alone & ~inspection.starts_work(rows)]
    return found


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
        evidence=[Evidence("operations and phases of the CPU", len(rows), "events", "cpu_ops")],
    )


DETECTOR = Detector("cpu-operation", _detect)
