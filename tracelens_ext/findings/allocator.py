"""`allocator`: the GPU is idle while the host asks the driver for memory, or gives it back."""

from __future__ import annotations

import re

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.memory.events import has_memory_events
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS

#: Calls of the CUDA and HIP runtimes and drivers that allocate, map or free memory.
_CALLS = re.compile(
    r"(?:cuda|hip|cu)(?:(?:Ext)?(?:Host)?(?:Malloc|Free|MemAlloc|MemFree|Alloc)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|HostAlloc)"
    r"|HostRegister|HostUnregister)"
)


def _detect(inspection: Inspection) -> Finding | None:
    rows = inspection.host_rows(_CALLS, *LAUNCH_KINDS)
    claim = inspection.wall.claim_idle_during(rows)
    if not inspection.is_worth(claim):
        return None
    rows, trace = inspection.rows_in(claim, rows), inspection.work.trace
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("calls that allocate or free", len(rows), "calls", "tree"),
            Evidence("host time in them", float(trace.dur[rows].sum()) / NS_PER_MS, "ms", "tree"),
            Evidence("idle time within them", claim.saving_ns / NS_PER_MS, "ms", "gaps_longest"),
            *_churn(inspection),
        ],
    )


def _churn(inspection: Inspection) -> list[Evidence]:
    """How many blocks operations allocate only to free them again, where memory was recorded."""
    from tracelens_ext.memory.usage import find_memory, memory_by_operation

    if not has_memory_events(inspection.work.trace):
        return []
    table = memory_by_operation(find_memory(inspection.work.tree))
    freed = float(table["frees_within_operation"].sum())
    what = "blocks that an operation allocated and freed again"
    return [Evidence(what, freed, "blocks", "memory_by_operation")]


DETECTOR = Detector("allocator", _detect)
