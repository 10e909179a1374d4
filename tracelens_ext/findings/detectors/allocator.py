"""Idle time of the GPU while the CPU allocates or frees GPU memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tracelens_ext.analysis.memory.events import has_memory_events
from tracelens_ext.analysis.memory.usage import find_memory, memory_by_operation
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.trace import LAUNCH_KINDS
from tracelens_ext.trace.call_tree import CallTree

TEXT: Final = FindingText(
    title="Allocating and freeing GPU memory: {saving}",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            follows=(Fact.EXPANDABLE_SEGMENTS,),
            advice=(
                "Keep the sizes of batches constant (or pad them), and do not call "
                "torch.cuda.empty_cache() in the loop, so that PyTorch's allocator need not "
                "ask the driver."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Let segments of PyTorch's allocator grow, keep the sizes of batches constant, "
                "and do not call torch.cuda.empty_cache() in the loop."
            ),
            snippet="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        AdviceVariant(
            kinds=("jax",),
            advice="Let XLA's allocator take the GPU's memory at the start.",
            snippet="XLA_PYTHON_CLIENT_PREALLOCATE=true",
        ),
        AdviceVariant(
            kinds=("tensorflow",),
            advice="Let the allocator keep what it frees.",
            snippet="TF_GPU_ALLOCATOR=cuda_malloc_async",
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.DIRECTIVES,),
            advice=(
                "Map data once, before the loop (target enter data, acc enter data), so that "
                "target regions need not allocate and free it."
            ),
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.KOKKOS,),
            advice=(
                "Allocate views before the loop and reuse them, so that kernels need not "
                "allocate and free memory."
            ),
        ),
        AdviceVariant(
            kinds=("native",),
            requires=(Fact.PYTHON_ARRAYS,),
            advice=(
                "Reuse arrays (out=…), or let a memory pool keep what is freed: "
                "cupy.cuda.MemoryPool, RMM with Numba."
            ),
        ),
        AdviceVariant(
            follows=(Fact.MEMORY_POOL,),
            advice=(
                "Let the pool keep what is freed (a release threshold), and allocate what "
                "stays before the loop."
            ),
        ),
        AdviceVariant(
            excludes=(Fact.AMD,),
            advice=(
                "Allocate before the loop and reuse the memory, or let a pool keep what is "
                "freed: cudaMallocAsync with a release threshold."
            ),
        ),
        AdviceVariant(
            advice=(
                "Allocate before the loop and reuse the memory, or let a pool keep what is "
                "freed: hipMallocAsync with a release threshold."
            ),
        ),
    ),
    confidence="high",
    reason="the CPU was inside these calls during all of this idle time",
    evidence={
        "calls": EvidenceText(
            what="calls that allocate or free", unit="calls", see="tree"
        ),
        "cpu_ms": EvidenceText(what="CPU time in them", unit="ms", see="tree"),
        "idle_ms": EvidenceText(
            what="idle time within them", unit="ms", see="gaps_longest"
        ),
        "freed_again": EvidenceText(
            what="blocks that an operation allocated and freed again",
            unit="blocks",
            see="memory_by_operation",
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
    """Detect idle time of the GPU while the CPU is in a call that allocates or frees memory."""
    calls = inspection.host_rows(_MEMORY_CALLS, *LAUNCH_KINDS)
    claim = inspection.wall.claim_idle_during(calls)
    if not inspection.is_worth(claim):
        return None
    calls = inspection.rows_in(claim, calls)
    numbers: Mapping[str, float | None] = {
        "calls": len(calls),
        "cpu_ms": inspection.host_ms(calls),
        "idle_ms": claim.attributed_ms,
        "freed_again": _blocks_freed_again(inspection.gpu_events.tree),
    }
    return inspection.finding("allocator", claim, numbers, text=TEXT)


def _blocks_freed_again(tree: CallTree) -> float | None:
    """Return how many blocks an operation allocated and freed again; None if not recorded."""
    if not has_memory_events(tree.trace):
        return None
    by_operation = memory_by_operation(find_memory(tree))
    return float(by_operation["frees_within_operation"].sum())
