"""The GPU is idle while the host asks the driver for memory, or gives it back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tracelens_ext.analysis.memory.events import has_memory_events
from tracelens_ext.analysis.memory.usage import find_memory, memory_by_operation
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText
from tracelens_ext.trace import LAUNCH_KINDS

TEXT: Final = FindingText(
    title="Allocating and freeing GPU memory keeps the GPU idle for {saving}",
    advice=(
        "PyTorch's allocator had to ask the driver, because what it had cached did not fit: "
        "keep the sizes of batches constant (or pad them), let segments grow, and do not call "
        "torch.cuda.empty_cache() in the loop. In the first iterations this is usual."
    ),
    snippet="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    confidence="high",
    reason="the host was inside these calls during all of this idle time",
    evidence={
        "calls": EvidenceText("calls that allocate or free", "calls", "tree"),
        "cpu_ms": EvidenceText("host time in them", "ms", "tree"),
        "idle_ms": EvidenceText("idle time within them", "ms", "gaps_longest"),
        "freed_again": EvidenceText(
            "blocks that an operation allocated and freed again",
            "blocks",
            "memory_by_operation",
        ),
    },
    advice_for={
        "jax": Advice(
            "XLA's allocator had to ask the driver: let it take the GPU's memory at the start.",
            "XLA_PYTHON_CLIENT_PREALLOCATE=true",
        ),
        "tensorflow": Advice(
            "The allocator had to ask the driver: let it keep what it frees.",
            "TF_GPU_ALLOCATOR=cuda_malloc_async",
        ),
        "other": Advice(
            (
                "Allocate before the loop and use the memory again, or let a pool keep what is "
                "freed: cudaMallocAsync (hipMallocAsync) with a release threshold."
            ),
            "cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes)",
        ),
    },
)

#: Calls of the CUDA and HIP runtimes and drivers that allocate, map or free memory.
_MEMORY_CALLS: Final = re.compile(
    r"(?:cuda|hip|cu)(?:(?:Ext)?(?:Host)?(?:Malloc|Free|MemAlloc|MemFree|Alloc)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|HostAlloc)"
    r"|HostRegister|HostUnregister)"
)


@detector("allocator", TEXT)
def allocator(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the CPU asks the driver for memory, or gives it back."""
    calls = inspection.host_rows(_MEMORY_CALLS, *LAUNCH_KINDS)
    claim = inspection.wall.claim_idle_during(calls)
    if not inspection.is_worth(claim):
        return None
    calls = inspection.rows_in(claim, calls)
    freed_again = None
    tree = inspection.work.tree
    if has_memory_events(tree.trace):
        by_operation = memory_by_operation(find_memory(tree))
        freed_again = float(by_operation["frees_within_operation"].sum())
    numbers: Mapping[str, float | None] = {
        "calls": len(calls),
        "cpu_ms": inspection.host_ms(calls),
        "idle_ms": claim.saving_ms,
        "freed_again": freed_again,
    }
    return inspection.finding("allocator", claim, numbers, text=TEXT)
