"""The order in which the built-in detectors run and may attribute time.

Each moment of a device belongs to the first detector that attributes it. A new detector has to be
added here.
"""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import Detector
from tracelens_ext.findings.detectors.allocator import allocator
from tracelens_ext.findings.detectors.cpu_operation import cpu_operation
from tracelens_ext.findings.detectors.dataloader import dataloader
from tracelens_ext.findings.detectors.dominant_kernel import dominant_kernel
from tracelens_ext.findings.detectors.double_precision import double_precision
from tracelens_ext.findings.detectors.dtype_casts import dtype_casts
from tracelens_ext.findings.detectors.exposed_communication import exposed_communication
from tracelens_ext.findings.detectors.exposed_copy import exposed_copy
from tracelens_ext.findings.detectors.fallback_kernels import fallback_kernels
from tracelens_ext.findings.detectors.flash_attention_2 import flash_attention_2
from tracelens_ext.findings.detectors.full_launch_queue import full_launch_queue
from tracelens_ext.findings.detectors.graph_recapture import graph_recapture
from tracelens_ext.findings.detectors.host_bound import host_bound
from tracelens_ext.findings.detectors.imbalance import imbalance
from tracelens_ext.findings.detectors.launch_geometry import launch_geometry
from tracelens_ext.findings.detectors.layout_conversion import layout_conversion
from tracelens_ext.findings.detectors.memory_bound_chain import memory_bound_chain
from tracelens_ext.findings.detectors.memory_peak import memory_peak
from tracelens_ext.findings.detectors.no_tensor_cores import no_tensor_cores
from tracelens_ext.findings.detectors.old_kernels import old_kernels
from tracelens_ext.findings.detectors.pageable_copies import pageable_copies
from tracelens_ext.findings.detectors.profiler_overhead import profiler_overhead
from tracelens_ext.findings.detectors.recompilation import recompilation
from tracelens_ext.findings.detectors.recompute import recompute
from tracelens_ext.findings.detectors.slow_attention import slow_attention
from tracelens_ext.findings.detectors.slow_gemm import slow_gemm
from tracelens_ext.findings.detectors.slow_iterations import slow_iterations
from tracelens_ext.findings.detectors.slow_link import slow_link
from tracelens_ext.findings.detectors.slow_moe import slow_moe
from tracelens_ext.findings.detectors.small_copies import small_copies
from tracelens_ext.findings.detectors.small_kernels import small_kernels
from tracelens_ext.findings.detectors.straggler import straggler
from tracelens_ext.findings.detectors.synchronization import synchronization
from tracelens_ext.findings.detectors.uneven_gemm import uneven_gemm
from tracelens_ext.findings.detectors.unfused_attention import unfused_attention
from tracelens_ext.findings.detectors.unfused_optimizer import unfused_optimizer
from tracelens_ext.findings.detectors.zero_gradients import zero_gradients

DETECTORS: Final[tuple[Detector, ...]] = (
    launch_geometry,
    double_precision,
    fallback_kernels,
    no_tensor_cores,
    layout_conversion,
    dtype_casts,
    unfused_attention,
    memory_bound_chain,
    unfused_optimizer,
    zero_gradients,
    dataloader,
    allocator,
    straggler,
    pageable_copies,
    small_copies,
    slow_link,
    exposed_copy,
    cpu_operation,
    recompilation,
    graph_recapture,
    synchronization,
    host_bound,
    profiler_overhead,
    full_launch_queue,
    small_kernels,
    slow_attention,
    flash_attention_2,
    old_kernels,
    slow_moe,
    uneven_gemm,
    slow_gemm,
    exposed_communication,
    slow_iterations,
    recompute,
    memory_peak,
    imbalance,
    dominant_kernel,
)
