"""Our own detectors, in the order in which they may claim wall time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Detector

#: Files, each with functions of it; the id is a function's name. The first that claims a part of
#: the wall time has it.
_DETECTORS: Final = (
    ("kernels", "launch_geometry", "double_precision", "fallback_kernels"),
    ("products", "no_tensor_cores"),
    ("passes", "layout_conversion", "dtype_casts"),
    ("attention", "unfused_attention"),
    ("passes", "memory_bound_chain", "unfused_optimizer"),
    ("host", "dataloader", "allocator"),
    ("transfers", "straggler", "pageable_copies", "small_copies", "slow_link", "exposed_copy"),
    ("host", "synchronisation", "cpu_operation", "recompilation", "graph_recapture"),
    ("host", "host_bound", "profiler_overhead", "full_launch_queue"),
    ("kernels", "small_kernels"),
    ("attention", "slow_attention"),
    ("products", "old_kernels", "slow_moe", "uneven_gemm", "slow_gemm"),
    ("transfers", "exposed_communication"),
    ("iterations", "slow_iterations", "recompute", "memory_peak"),
    ("products", "imbalance"),
    ("kernels", "dominant_kernel"),
)


@hookimpl
def tracelens_findings() -> list[Detector]:
    """The built-in detectors, with what `texts.toml` says of each."""
    from tracelens_ext.findings.inspection import Detector, own_texts

    found = []
    for file, *names in _DETECTORS:
        module = import_module(f"tracelens_ext.findings.{file}")
        for name in names:
            told = own_texts().get(its := name.replace("_", "-"), {})
            instead = told.get("instead", "")
            kinds = told.get("kinds", Detector.kinds)
            found.append(Detector(its, getattr(module, name), instead, kinds, told))
    return found
