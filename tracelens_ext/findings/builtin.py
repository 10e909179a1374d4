"""Our own detectors, in the order in which they may claim wall time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Detector

#: File and function of each; its id is the function's name. The first that claims a part of the
#: wall time has it.
_DETECTORS: Final = (
    "kernels:launch_geometry",
    "kernels:double_precision",
    "kernels:fallback_kernels",
    "products:no_tensor_cores",
    "passes:layout_conversion",
    "passes:dtype_casts",
    "attention:unfused_attention",
    "passes:memory_bound_chain",
    "passes:unfused_optimizer",
    "host:dataloader",
    "host:allocator",
    "transfers:straggler",
    "transfers:pageable_copies",
    "transfers:small_copies",
    "transfers:slow_link",
    "transfers:exposed_copy",
    "host:synchronisation",
    "host:cpu_operation",
    "host:recompilation",
    "host:graph_recapture",
    "host:host_bound",
    "host:profiler_overhead",
    "host:full_launch_queue",
    "kernels:small_kernels",
    "attention:slow_attention",
    "products:old_kernels",
    "products:slow_moe",
    "products:uneven_gemm",
    "products:slow_gemm",
    "transfers:exposed_communication",
    "iterations:slow_iterations",
    "memory:recompute",
    "memory:memory_peak",
    "products:imbalance",
    "kernels:dominant_kernel",
)


@hookimpl
def tracelens_findings() -> list[Detector]:
    """The built-in detectors, with what `texts.toml` says of each."""
    from tracelens_ext.findings.inspection import Detector, own_texts

    found = []
    for file, name in (each.split(":") for each in _DETECTORS):
        detect = getattr(import_module(f"tracelens_ext.findings.{file}"), name)
        told = own_texts().get(name := name.replace("_", "-"), {})
        instead, kinds = told.get("instead", ""), told.get("kinds", Detector.kinds)
        found.append(Detector(name, detect, instead, kinds, told))
    return found
