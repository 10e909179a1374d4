"""Facts about the program and the device of a trace, on which advice depends.

The test of each `Fact` returns words for what it found, or an empty text. Advice names the facts
that it requires, and the facts that would make it pointless (`texts.AdviceVariant`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.roofline.peaks import DevicePeaks, capability_of, peer_links_of
from tracelens_ext.trace import LAUNCH_KINDS, NONE, BoolArray, Device, EventKind
from tracelens_ext.trace.gpu_events import GpuEvents, pageable_copies
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import find_launches

NVIDIA_WARP: Final = 32


class Fact(Enum):
    """Something that a trace shows, or does not show."""

    #: Most GPU time is launched by CUDA or HIP graphs.
    GPU_GRAPHS = "GPU graphs"
    #: A compiler generated kernels of the model.
    COMPILED = "compiled model"
    #: A compiler chose kernels of matrix products by measuring them.
    AUTOTUNED = "autotuned products"
    #: Most GPU time of products and attention is in 16 bits or fewer.
    LOW_PRECISION = "low precision"
    #: Products in single precision use TF32.
    TF32 = "TF32"
    #: An optimizer updates all parameters in fused kernels.
    FUSED_OPTIMIZER = "fused optimizer"
    #: An optimizer updates many parameters in one kernel.
    FOREACH_OPTIMIZER = "foreach optimizer"
    #: Attention runs in fused kernels.
    FUSED_ATTENTION = "fused attention"
    #: Attention runs in kernels of cuDNN.
    CUDNN_ATTENTION = "cuDNN attention"
    #: Worker processes make the batches.
    LOADER_WORKERS = "loader workers"
    #: Copies to the device come from pinned memory.
    PINNED_COPIES = "pinned copies"
    #: Copies run on a stream of their own.
    COPY_STREAM = "copy stream"
    #: Convolutions run in the channels-last layout.
    CHANNELS_LAST = "channels-last"
    #: An engine has an all-reduce of its own for small messages.
    OWN_ALL_REDUCE = "own all-reduce"
    #: An engine schedules the next step while the GPU computes.
    ASYNC_SCHEDULING = "asynchronous scheduling"
    #: Computation hides most of the communication.
    HIDDEN_COMMUNICATION = "hidden communication"
    #: Parameters are sharded over the ranks (FSDP).
    SHARDED_PARAMETERS = "sharded parameters"
    #: Gradients are reduced in buckets (DDP).
    GRADIENT_BUCKETS = "gradient buckets"
    #: The allocator maps memory into segments that grow.
    EXPANDABLE_SEGMENTS = "expandable segments"
    #: A memory pool of the driver keeps what is freed.
    MEMORY_POOL = "memory pool"
    #: Parts of the forward pass run again in the backward pass.
    CHECKPOINTING = "activation checkpointing"
    #: Kernels run on several streams.
    SEVERAL_STREAMS = "several streams"
    #: JAX copies inputs to other devices when a compiled function is called.
    RESHARDED_INPUTS = "inputs that are sharded anew"
    #: There are many launches, and each gives the GPU little work.
    SHORT_LAUNCHES = "short launches"
    #: Compilers of directives made the kernels (OpenMP, OpenACC).
    DIRECTIVES = "offload directives"
    #: Kernels are of Kokkos.
    KOKKOS = "Kokkos"
    #: Kernels are of CuPy or Numba.
    PYTHON_ARRAYS = "CuPy or Numba"
    #: Kernels are of Julia.
    JULIA = "Julia"
    #: The device is one of NVIDIA's.
    NVIDIA = "NVIDIA"
    #: The device is one of AMD's.
    AMD = "AMD"
    #: NVIDIA's, older than Ampere: no TF32 and no bf16.
    BEFORE_AMPERE = "before Ampere"
    #: NVIDIA's, Ampere or later.
    AMPERE = "Ampere or later"
    #: NVIDIA's, Hopper or a later data-center GPU.
    HOPPER = "Hopper or later"
    #: NVIDIA's, a data-center GPU later than Hopper.
    BLACKWELL = "Blackwell"
    #: Its matrix units compute in 8-bit floating point.
    FP8_UNITS = "FP8 units"
    #: NVLink or xGMI connects the GPUs.
    FAST_LINK = "NVLink or xGMI"
    #: PCIe alone connects the GPUs, as far as the product is known.
    PCIE_ONLY = "PCIe only"


def capability(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Return ten times NVIDIA's compute capability; 0: not known, or another maker's GPU."""
    if (
        device
        and device.capability
        and device.warp == NVIDIA_WARP
        and "AMD" not in device.name
    ):
        return device.capability
    if peaks is None:
        return 0
    return capability_of(peaks.name)


class ProgramFacts:
    """The facts about the program and the device of a trace. Each is tested once, when needed."""

    def __init__(
        self,
        gpu_events: GpuEvents,
        find_peaks: Callable[[], Mapping[int, DevicePeaks | None]],
    ) -> None:
        self.gpu_events = gpu_events
        self._find_peaks = find_peaks
        self._words: dict[Fact, str] = {}

    def words(self, fact: Fact) -> str:
        """Return a noun phrase for what shows a fact; empty if the trace does not show it."""
        if fact not in self._words:
            self._words[fact] = _TESTS[fact](self)
        return self._words[fact]

    def shows(self, fact: Fact) -> bool:
        """Return whether the trace shows a fact."""
        return bool(self.words(fact))

    def share_of_time(self, is_chosen: BoolArray) -> float:
        """Return the share of the GPU time in some GPU events, (g,), from 0 to 1."""
        total_ns = int(self.gpu_events.duration.sum())
        if not total_ns:
            return 0.0
        chosen_ns = float(self.gpu_events.duration[is_chosen].sum())
        return chosen_ns / total_ns

    def kernels_named(self, pattern: re.Pattern[str]) -> BoolArray:
        """Return which GPU events are kernels with a pattern in the name, (g,)."""
        gpu_events = self.gpu_events
        is_named: BoolArray = gpu_events.trace.named(gpu_events.name, pattern.search)
        return is_named & gpu_events.is_kernel

    def has_cpu_event(self, pattern: re.Pattern[str], *kinds: EventKind) -> bool:
        """Return whether a pattern matches the name of a CPU event, from its beginning."""
        return len(self.gpu_events.trace.rows_named(pattern, *kinds)) > 0

    @cached_property
    def peaks(self) -> list[DevicePeaks]:
        """The peaks of the devices that did the work, as far as they are known."""
        return [peaks for peaks in self._find_peaks().values() if peaks]

    @cached_property
    def capabilities(self) -> list[int]:
        """The compute capabilities of the devices that did the work; 0: not known."""
        trace = self.gpu_events.trace
        capabilities = []
        for number, peaks in self._find_peaks().items():
            capabilities.append(capability(trace.described(number), peaks))
        return capabilities

    @cached_property
    def device_names(self) -> str:
        """The names of the devices that did the work, from the trace or the peaks."""
        trace = self.gpu_events.trace
        names = []
        for number, peaks in self._find_peaks().items():
            device = trace.described(number)
            if device and device.name:
                names.append(device.name)
            elif peaks:
                names.append(peaks.name)
        return ", ".join(dict.fromkeys(names))


#: The share from which on something counts as most.
_MOST: Final = 0.5
#: With this share of GPU time in its kernels, a compiler compiled the model, not just a function.
_COMPILED_SHARE: Final = 0.05
_CPU_KINDS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
_INDUCTOR_KERNEL: Final = re.compile(r"^triton_\w*(?:poi|red|per|tem|mm|fused)_")
_COMPILED_REGION: Final = re.compile(
    r"Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph|CompiledFxGraph"
)
_TENSORRT: Final = re.compile(r"\b(?:trt_|__myl_|sm\d+_xmma_\w+_trt|myelin)")
_TUNED_KERNEL: Final = re.compile(r"^triton_(?:tem|mm)_|_split_k_reduce_")
_PRODUCT: Final = re.compile(
    r"gemm|conv|attn|attention|flash|fmha|nvjet|Cijk_|xmma|cutlass|mma", re.IGNORECASE
)
_LOW_PRECISION: Final = re.compile(
    r"bf16|b?float16|half|[^a-z]f16|_h(?:884|1688|16816)|s1688(?:gemm|fprop)_f?(?:bf)?16"
    r"|16816|161616|_[HB]B?(?:S|H|B)?_|fp8|e4m3|e5m2|nvjet_(?:ha|tst|hsh|hsq|qqtst)",
    re.IGNORECASE,
)
_TF32_KERNEL: Final = re.compile(r"tf32|s1688(?!\w*(?:16|half))", re.IGNORECASE)
_FUSED_OPTIMIZER: Final = re.compile(
    r"multi_tensor_apply_kernel<.*(?:[Ff]used\w*(?:Adam|Sgd|SGD|Adagrad)\w*Math|LAMB)"
    r"|[Ff]used\w*(?:adam|Adam|sgd|SGD|lamb|LAMB)|(?:Adam|LAMB|SGD)Functor"
)
_MULTI_TENSOR: Final = re.compile(r"multi_tensor_apply")
_FUSED_ATTENTION: Final = re.compile(
    r"flash|fmha|attn_fwd|attn_bwd|_attention_kernel|paged_attention|unified_attention"
    r"|native_sdpa|attentionforward",
    re.IGNORECASE,
)
_CUDNN_ATTENTION: Final = re.compile(r"cudnn\w*sdpa|cudnn\w*attention", re.IGNORECASE)
_WORKERS: Final = re.compile(
    r"enumerate\(DataLoader\)#_MultiProcessing|.*_MultiProcessingDataLoaderIter"
)
_TO_DEVICE: Final = re.compile(r".*(?:HtoD|Host(?:To|-to-| -> )Device|HOST_TO_DEVICE)")
_WITHIN_DEVICE: Final = re.compile(r".*(?:DtoD|Device(?:To|-to-| -> )Device)")
#: Shorter copies do not tell how batches are copied, ns.
_LONG_COPY_NS: Final = 5_000
_CHANNELS_LAST: Final = re.compile(r"nhwc|channels_?last|ndhwc", re.IGNORECASE)
_TRANSPOSES: Final = re.compile(r"nchwToNhwc|nhwcToNchw|batched_transpose_")
_OWN_ALL_REDUCE: Final = re.compile(
    r"cross_device_reduce|custom_all_?reduce|(?:one|two)_?shot_?all_?reduce|quick_?reduce"
    r"|allreduce_fusion|multimem_all_reduce",
    re.IGNORECASE,
)
_ASYNC_SCHEDULING: Final = re.compile(
    r".*(?:step_with_batch_queue|async_scheduler|AsyncGPUModelRunnerOutput"
    r"|event_loop_overlap|overlap_thread|async_copy_ready)"
)
_SHARDED: Final = re.compile(r"FSDP::|FullyShardedDataParallel|.*_fsdp")
_BUCKETS: Final = re.compile(
    r"DistributedDataParallel|.*torch(?:::|\.)distributed(?:::|\.)(?:ddp\.)?reducer|.*Reducer"
)
_MAPS_MEMORY: Final = re.compile(r"(?:cu|hip)Mem(?:Create|Map|AddressReserve)")
_FROM_POOL: Final = re.compile(
    r"(?:cuda|hip|cu)(?:Malloc|MemAlloc|MallocFromPool)Async"
)
_SHARDS_ARGUMENT: Final = re.compile(
    r"\$(?:pxla|array)\.py:\d+ \w*shard_(?:arg|device)"
)
#: With so many copies between devices, a loop makes them.
_FEWEST_COPIES: Final = 10
_DIRECTIVES: Final = re.compile(r"__omp_offloading_|\bnvkernel_|\b__pgi_|_\d+_gpu\b")
_KOKKOS: Final = re.compile(r"[Kk]okkos")
_PYTHON_ARRAYS: Final = re.compile(r"\bcupy_|cudapy")
_JULIA: Final = re.compile(r"\bjulia_|_Z\d+julia_")
#: With at least this many launches, of at most this GPU time on average, graphs help.
_FEWEST_LAUNCHES: Final = 20
_SHORT_LAUNCH_NS: Final = 100_000
_FIRST_AMPERE: Final = 80
_FIRST_HOPPER: Final = 90
_FIRST_BLACKWELL: Final = 100
#: GPUs from this compute capability on are graphics cards, which lack Hopper's instructions.
_FIRST_CARD: Final = 120


def _gpu_graphs(facts: ProgramFacts) -> str:
    share = facts.share_of_time(facts.gpu_events.tree.by_graph)
    if share < _MOST:
        return ""
    maker = "CUDA"
    if facts.shows(Fact.AMD):
        maker = "HIP"
    return f"{maker} graphs (for {100 * share:.0f} % of GPU time)"


def _compiled(facts: ProgramFacts) -> str:
    if facts.share_of_time(facts.kernels_named(_TENSORRT)) >= _COMPILED_SHARE:
        return "TensorRT"
    share = facts.share_of_time(facts.kernels_named(_INDUCTOR_KERNEL))
    if share >= _COMPILED_SHARE:
        return f"torch.compile (for {100 * share:.0f} % of GPU time)"
    if facts.has_cpu_event(_COMPILED_REGION, *_CPU_KINDS):
        return "torch.compile"
    return ""


def _autotuned(facts: ProgramFacts) -> str:
    if facts.kernels_named(_TUNED_KERNEL).any():
        return "matrix products tuned by TorchInductor"
    return ""


def _low_precision(facts: ProgramFacts) -> str:
    is_product = facts.kernels_named(_PRODUCT)
    product_share = facts.share_of_time(is_product)
    is_low_precision = facts.kernels_named(_LOW_PRECISION)
    low_share = facts.share_of_time(is_product & is_low_precision)
    if not product_share or low_share < _MOST * product_share:
        return ""
    return "16-bit or 8-bit matrix products"


def _tf32(facts: ProgramFacts) -> str:
    if facts.kernels_named(_TF32_KERNEL).any():
        return "TF32"
    return ""


def _fused_optimizer(facts: ProgramFacts) -> str:
    if facts.kernels_named(_FUSED_OPTIMIZER).any():
        return "a fused optimizer"
    return ""


def _foreach_optimizer(facts: ProgramFacts) -> str:
    if facts.kernels_named(_MULTI_TENSOR).any():
        return "multi-tensor kernels"
    return ""


def _fused_attention(facts: ProgramFacts) -> str:
    if facts.kernels_named(_FUSED_ATTENTION).any():
        return "fused attention"
    return ""


def _cudnn_attention(facts: ProgramFacts) -> str:
    if facts.kernels_named(_CUDNN_ATTENTION).any():
        return "cuDNN's attention"
    return ""


def _loader_workers(facts: ProgramFacts) -> str:
    if facts.has_cpu_event(_WORKERS, *_CPU_KINDS, EventKind.PYTHON_FUNCTION):
        return "data loader worker processes"
    return ""


def _pinned_copies(facts: ProgramFacts) -> str:
    """Return `pinned memory` if long copies to the device are mostly from it."""
    gpu_events = facts.gpu_events
    is_pageable, is_known = pageable_copies(gpu_events)
    goes_to_device = gpu_events.is_copy & gpu_events.trace.named(
        gpu_events.name, _TO_DEVICE.match
    )
    goes_to_device &= is_known & (gpu_events.duration >= _LONG_COPY_NS)
    total_ns = int(gpu_events.duration[goes_to_device].sum())
    pageable_ns = int(gpu_events.duration[goes_to_device & is_pageable].sum())
    if not total_ns or pageable_ns > (1 - _MOST) * total_ns:
        return ""
    return "pinned memory"


def _copy_stream(facts: ProgramFacts) -> str:
    """Return a phrase if long copies are mostly on streams without computation."""
    gpu_events = facts.gpu_events
    crosses_link = gpu_events.is_copy & ~gpu_events.trace.named(
        gpu_events.name, _WITHIN_DEVICE.match
    )
    crosses_link &= gpu_events.duration >= _LONG_COPY_NS
    if not crosses_link.any():
        return ""
    stream = gpu_events.trace.stream
    streams_of_kernels = np.unique(
        stream[gpu_events.is_kernel & ~gpu_events.is_communication]
    )
    is_apart = ~np.isin(stream, streams_of_kernels)
    copied_ns = int(gpu_events.duration[crosses_link].sum())
    apart_ns = int(gpu_events.duration[crosses_link & is_apart].sum())
    if apart_ns < _MOST * copied_ns:
        return ""
    return "a separate stream for copies"


def _channels_last(facts: ProgramFacts) -> str:
    transposes = facts.kernels_named(_TRANSPOSES)
    in_layout = facts.kernels_named(_CHANNELS_LAST) & ~transposes
    if facts.share_of_time(in_layout) <= facts.share_of_time(transposes):
        return ""
    return "channels-last convolutions"


def _own_all_reduce(facts: ProgramFacts) -> str:
    if facts.kernels_named(_OWN_ALL_REDUCE).any():
        return "the engine's own all-reduce"
    return ""


def _async_scheduling(facts: ProgramFacts) -> str:
    kinds = _CPU_KINDS + (EventKind.PYTHON_FUNCTION,)
    if facts.has_cpu_event(_ASYNC_SCHEDULING, *kinds):
        return "asynchronous scheduling"
    return ""


def _hidden_communication(facts: ProgramFacts) -> str:
    """Return a phrase if computation runs beside most of the communication."""
    gpu_events = facts.gpu_events
    total_ns = int(gpu_events.duration[gpu_events.is_communication].sum())
    if not total_ns:
        return ""
    hidden_ns = 0
    for number in np.unique(gpu_events.trace.device).tolist():
        is_on_device = gpu_events.trace.device == number
        computes = is_on_device & ~(gpu_events.is_communication | gpu_events.is_copy)
        communicates = is_on_device & gpu_events.is_communication
        overlap_ns = covered(
            gpu_events.start[computes],
            gpu_events.end[computes],
            gpu_events.start[communicates],
            gpu_events.end[communicates],
        )
        hidden_ns += int(overlap_ns.sum())
    share = hidden_ns / total_ns
    if share < _MOST:
        return ""
    return f"overlap with computation (for {100 * share:.0f} % of communication)"


def _sharded_parameters(facts: ProgramFacts) -> str:
    if facts.has_cpu_event(_SHARDED, *_CPU_KINDS, EventKind.PYTHON_FUNCTION):
        return "FSDP"
    return ""


def _gradient_buckets(facts: ProgramFacts) -> str:
    if facts.has_cpu_event(_BUCKETS, *_CPU_KINDS, EventKind.PYTHON_FUNCTION):
        return "DistributedDataParallel"
    return ""


def _expandable_segments(facts: ProgramFacts) -> str:
    if facts.has_cpu_event(_MAPS_MEMORY, *LAUNCH_KINDS):
        return "expandable segments"
    return ""


def _memory_pool(facts: ProgramFacts) -> str:
    if facts.has_cpu_event(_FROM_POOL, *LAUNCH_KINDS):
        return "a driver memory pool"
    return ""


def _checkpointing(facts: ProgramFacts) -> str:
    if recomputed(facts.gpu_events).any():
        return "activation checkpointing"
    return ""


def _several_streams(facts: ProgramFacts) -> str:
    """Return a phrase if the kernels of a device run on several streams."""
    gpu_events = facts.gpu_events
    is_computation = gpu_events.is_kernel & ~gpu_events.is_communication
    device = gpu_events.trace.device[is_computation]
    stream = gpu_events.trace.stream[is_computation]
    stream_of_device = np.column_stack((device, stream))
    distinct_streams = np.unique(stream_of_device, axis=0)
    streams = len(distinct_streams)
    devices = len(np.unique(device))
    if streams <= devices:
        return ""
    return f"kernels on {streams} streams"


def _resharded_inputs(facts: ProgramFacts) -> str:
    gpu_events = facts.gpu_events
    between_devices = gpu_events.is_copy & gpu_events.trace.named(
        gpu_events.name, _WITHIN_DEVICE.match
    )
    copies = int(between_devices.sum())
    if copies < _FEWEST_COPIES:
        return ""
    if not facts.has_cpu_event(_SHARDS_ARGUMENT, EventKind.PYTHON_FUNCTION):
        return ""
    return f"{copies:,} copies between devices for the arguments of compiled functions"


def _short_launches(facts: ProgramFacts) -> str:
    """Return a phrase if launches start little GPU work on average."""
    launches = find_launches(facts.gpu_events)
    starts_work = launches.is_kernel | launches.is_graph
    is_counted = starts_work & ~launches.lost
    count = int(is_counted.sum())
    if count < _FEWEST_LAUNCHES:
        return ""
    tree = facts.gpu_events.tree
    has_launch = tree.launch_of_gpu != NONE
    launched_ns = int(facts.gpu_events.duration[has_launch].sum())
    mean_ns = launched_ns / count
    if mean_ns > _SHORT_LAUNCH_NS:
        return ""
    mean_us = mean_ns / 1000.0
    return f"{count:,} launches with a mean GPU time of {mean_us:,.0f} µs"


def _kernels_of(pattern: re.Pattern[str]) -> Callable[[ProgramFacts], str]:
    """Return the test of a fact that kernels with a pattern in their names show."""

    def test(facts: ProgramFacts) -> str:
        is_named = facts.kernels_named(pattern)
        if not is_named.any():
            return ""
        gpu_events = facts.gpu_events
        first_code = int(gpu_events.name[is_named][0])
        return gpu_events.trace.names[first_code]

    return test


def _nvidia(facts: ProgramFacts) -> str:
    if any(facts.capabilities):
        return facts.device_names or "a GPU of NVIDIA"
    return ""


def _amd(facts: ProgramFacts) -> str:
    names = facts.device_names
    if "AMD" in names or re.search(r"\bMI\d{2,}|gfx\d", names):
        return names
    if program_of(facts.gpu_events.trace).tool == "rocprofv3":
        return "a GPU of AMD"
    if facts.has_cpu_event(re.compile(r"hip[A-Z]"), *LAUNCH_KINDS):
        return names or "a GPU of AMD"
    return ""


def _before_ampere(facts: ProgramFacts) -> str:
    if any(0 < number < _FIRST_AMPERE for number in facts.capabilities):
        return facts.device_names
    return ""


def _ampere(facts: ProgramFacts) -> str:
    capabilities = facts.capabilities
    if capabilities and min(capabilities) >= _FIRST_AMPERE:
        return facts.device_names
    return ""


def _hopper(facts: ProgramFacts) -> str:
    capabilities = facts.capabilities
    if not capabilities:
        return ""
    if all(_FIRST_HOPPER <= number < _FIRST_CARD for number in capabilities):
        return facts.device_names
    return ""


def _blackwell(facts: ProgramFacts) -> str:
    if facts.shows(Fact.HOPPER) and min(facts.capabilities) >= _FIRST_BLACKWELL:
        return facts.device_names
    return ""


def _fp8_units(facts: ProgramFacts) -> str:
    if facts.peaks and all("fp8" in peaks.matrix for peaks in facts.peaks):
        return facts.device_names
    return ""


def _fast_link(facts: ProgramFacts) -> str:
    if any(max(peer_links_of(peaks.name)) > 0 for peaks in facts.peaks):
        return facts.device_names
    return ""


def _pcie_only(facts: ProgramFacts) -> str:
    if not facts.peaks or facts.shows(Fact.FAST_LINK):
        return ""
    if all("SXM" in peaks.name or "NVL" in peaks.name for peaks in facts.peaks):
        return ""
    return facts.device_names


_TESTS: Final[Mapping[Fact, Callable[[ProgramFacts], str]]] = {
    Fact.GPU_GRAPHS: _gpu_graphs,
    Fact.COMPILED: _compiled,
    Fact.AUTOTUNED: _autotuned,
    Fact.LOW_PRECISION: _low_precision,
    Fact.TF32: _tf32,
    Fact.FUSED_OPTIMIZER: _fused_optimizer,
    Fact.FOREACH_OPTIMIZER: _foreach_optimizer,
    Fact.FUSED_ATTENTION: _fused_attention,
    Fact.CUDNN_ATTENTION: _cudnn_attention,
    Fact.LOADER_WORKERS: _loader_workers,
    Fact.PINNED_COPIES: _pinned_copies,
    Fact.COPY_STREAM: _copy_stream,
    Fact.CHANNELS_LAST: _channels_last,
    Fact.OWN_ALL_REDUCE: _own_all_reduce,
    Fact.ASYNC_SCHEDULING: _async_scheduling,
    Fact.HIDDEN_COMMUNICATION: _hidden_communication,
    Fact.SHARDED_PARAMETERS: _sharded_parameters,
    Fact.GRADIENT_BUCKETS: _gradient_buckets,
    Fact.EXPANDABLE_SEGMENTS: _expandable_segments,
    Fact.MEMORY_POOL: _memory_pool,
    Fact.CHECKPOINTING: _checkpointing,
    Fact.SEVERAL_STREAMS: _several_streams,
    Fact.RESHARDED_INPUTS: _resharded_inputs,
    Fact.SHORT_LAUNCHES: _short_launches,
    Fact.DIRECTIVES: _kernels_of(_DIRECTIVES),
    Fact.KOKKOS: _kernels_of(_KOKKOS),
    Fact.PYTHON_ARRAYS: _kernels_of(_PYTHON_ARRAYS),
    Fact.JULIA: _kernels_of(_JULIA),
    Fact.NVIDIA: _nvidia,
    Fact.AMD: _amd,
    Fact.BEFORE_AMPERE: _before_ampere,
    Fact.AMPERE: _ampere,
    Fact.HOPPER: _hopper,
    Fact.BLACKWELL: _blackwell,
    Fact.FP8_UNITS: _fp8_units,
    Fact.FAST_LINK: _fast_link,
    Fact.PCIE_ONLY: _pcie_only,
}
