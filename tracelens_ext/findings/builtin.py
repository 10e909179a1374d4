"""Our own detectors, in the order in which they may claim wall time."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Detector

#: One file each, which has the `DETECTOR`. The first that claims a part of the wall time has it.
_FILES: Final = (
    "launch_geometry",
    "double_precision",
    "fallback_kernels",
    "no_tensor_cores",
    "layout_conversion",
    "dtype_casts",
    "unfused_attention",
    "memory_bound_chain",
    "unfused_optimizer",
    "dataloader",
    "allocator",
    "straggler",
    "pageable_copies",
    "small_copies",
    "slow_link",
    "exposed_copy",
    "synchronisation",
    "cpu_operation",
    "recompilation",
    "graph_recapture",
    "host_bound",
    "profiler_overhead",
    "full_launch_queue",
    "small_kernels",
    "slow_attention",
    "old_kernels",
    "slow_moe",
    "uneven_gemm",
    "slow_gemm",
    "exposed_communication",
    "slow_iterations",
    "recompute",
    "memory_peak",
    "imbalance",
    "dominant_kernel",
)


@hookimpl
def tracelens_findings() -> list[Detector]:
    """The built-in detectors, with what `texts.toml` says of each."""
    from tracelens_ext.findings.inspection import own_texts

    modules = [import_module(f"tracelens_ext.findings.{name}") for name in _FILES]
    found: list[Detector] = [module.DETECTOR for module in modules]
    told = [own_texts().get(each.id, {}) for each in found]
    return [
        replace(each, kinds=its.get("kinds", each.kinds), advice=its)
        for each, its in zip(found, told, strict=True)
    ]
