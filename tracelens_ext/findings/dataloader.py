"""`dataloader`: the GPU is idle while the host waits for, or makes, the next batch."""

from __future__ import annotations

import re

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.trace import NS_PER_MS, EventKind

#: PyTorch's own annotation around each `next()` of a data loader's iterator, and the frame of it.
_NEXT = re.compile(
    r"enumerate\(DataLoader\)#|(?:.*[/\\])?(?:torch[/\\]utils[/\\]data[/\\])?dataloader\.py"
    r"\(\d+\): __next__"
)
_SINGLE_PROCESS = re.compile(r"enumerate\(DataLoader\)#_SingleProcess|.*_SingleProcess")


def _detect(inspection: Inspection) -> Finding | None:
    kinds = EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION
    rows = inspection.host_rows(_NEXT, *kinds)
    claim = inspection.wall.claim_idle_during(rows)
    rows, trace = inspection.rows_in(claim, rows), inspection.work.trace
    single = bool(len(inspection.host_rows(_SINGLE_PROCESS, *kinds[:2])))
    return inspection.finding(
        DETECTOR.id,
        claim,
        variant="single" if single else "workers",
        evidence=[
            Evidence("calls of the loader's __next__", len(rows), "calls", "cpu_ops"),
            Evidence(
                "host time in them", float(trace.dur[rows].sum()) / NS_PER_MS, "ms", "cpu_ops"
            ),
            Evidence("idle time within them", claim.saving_ns / NS_PER_MS, "ms", "gap_hosts"),
        ],
    )


DETECTOR = Detector("dataloader", _detect)
