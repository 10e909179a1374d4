"""The two simulated machines: what differs between NVIDIA and AMD besides kernel names.

How fast the device is, what its runtime calls are called, which stream ids it shows, and what
its profiler writes beside the events. The rates are what a well tuned library reaches, not the
peak, so that times computed back from shapes give believable TFLOP/s and GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Api:
    """One runtime or driver function as the profiler shows it.

    Attributes:
        name: the function's name.
        ident: its callback id (``cbid`` for CUPTI, ``cid`` for roctracer; it varies by release).
        category: the event's ``cat``.
        cost_us: what a call costs the host.
    """

    name: str
    ident: int
    cost_us: float
    category: str = "cuda_runtime"


@dataclass(frozen=True)
class Vendor:
    """One simulated machine.

    Attributes:
        key: ``nvidia`` or ``amd``.
        machine: what to call it in one breath.
        device: the id the profiler gives rank 0's device; the ``pid`` of its events.
        device_properties: the entries of ``deviceProperties``.
        metadata: top-level keys that only this vendor's profiler writes.
        api: runtime functions by what the simulator uses them for.
        api_key: the argument that carries `Api.ident`.
        compute_stream: stream ids, with `comm_stream` and `copy_stream`.
        dnn: the library behind convolutions in operation names.
        multiprocessors: SMs or CUs of the device.
        warp: threads in a warp or wavefront.
        gemm_tflops: bf16 matrix multiplication; the other rates likewise.
        launch_latency_us: from the start of a launch to the earliest start of its kernel.
        stream_gap_us: between two kernels queued on one stream.
        graph_gap_us: between two kernels of a graph.
        graph_node_us: host time of a graph launch for each kernel in it.
        floor_us: no kernel is shorter.
        memory_kinds: host memory in memcpy names: page-locked, pageable.
        memory_device_type: ``Device Type`` of the allocator's events.
    """

    key: str
    machine: str
    device: int
    device_properties: tuple[dict[str, object], ...]
    metadata: dict[str, object]
    api: dict[str, Api]
    api_key: str
    dnn: str
    compute_stream: int
    comm_stream: int
    copy_stream: int
    multiprocessors: int
    warp: int
    gemm_tflops: float
    fp8_tflops: float
    attention_tflops: float
    attention_backward_tflops: float
    memory_gbps: float
    network_gbps: float
    nvlink_gbps: float
    host_copy_gbps: float
    launch_latency_us: float
    stream_gap_us: float
    graph_gap_us: float
    graph_node_us: float
    floor_us: float
    memory_kinds: tuple[str, str]
    memory_device_type: int
    before_gemm: tuple[str, ...] = field(default=())

    def gemm_us(self, m: int, n: int, k: int, *, fp8: bool = False) -> float:
        """Device time of an m by n by k matrix multiplication: compute or traffic, the larger."""
        rate = self.fp8_tflops if fp8 else self.gemm_tflops
        compute = 2.0 * m * n * k / (rate * 1e6)
        return max(compute, self.traffic_us(2 * (m * k + k * n + m * n))) + 1.5

    def attention_us(self, flops: float, *, backward: bool = False) -> float:
        """Device time of fused attention over that many floating-point operations."""
        rate = self.attention_backward_tflops if backward else self.attention_tflops
        return flops / (rate * 1e6) + 2.0

    def traffic_us(self, nbytes: float) -> float:
        """Device time to move that many bytes between memory and the cores."""
        return nbytes / (self.memory_gbps * 1e3) + 1.0

    def network_us(self, nbytes: float, *, inside_node: bool = False) -> float:
        """Time of a collective over a message of that many bytes."""
        rate = self.nvlink_gbps if inside_node else self.network_gbps
        return nbytes / (rate * 1e3) + 12.0


_DEVICES_PER_NODE = 8

_H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85_017_755_648,
    "computeMajor": 9,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 32,
    "sharedMemPerBlock": 49152,
    "numSms": 132,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 232448,
    "sharedMemPerMultiprocessor": 233472,
}

_MI300X = {
    "name": "AMD Instinct MI300X",
    "totalGlobalMem": 206_141_652_992,
    "computeMajor": 9,
    "computeMinor": 4,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 64,
    "sharedMemPerBlock": 65536,
    "numSms": 304,
    "maxSharedMemoryPerMultiProcessor": 65536,
}


def _node(device: dict[str, object]) -> tuple[dict[str, object], ...]:
    return tuple({"id": index, **device} for index in range(_DEVICES_PER_NODE))


NVIDIA = Vendor(
    key="nvidia",
    machine="NVIDIA H100",
    device=0,
    device_properties=_node(_H100),
    metadata={
        "cupti_version": 24,
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
    },
    api={
        "launch": Api("cudaLaunchKernel", 211, 3.2),
        "launch_ex": Api("cudaLaunchKernelExC", 430, 3.8),
        "launch_module": Api("cuLaunchKernelEx", 652, 3.4, "cuda_driver"),
        "memcpy": Api("cudaMemcpyAsync", 41, 4.4),
        "memset": Api("cudaMemsetAsync", 51, 3.0),
        "graph_launch": Api("cudaGraphLaunch", 311, 7.5),
        "event_record": Api("cudaEventRecord", 135, 1.1),
        "stream_wait": Api("cudaStreamWaitEvent", 147, 1.0),
        "stream_sync": Api("cudaStreamSynchronize", 131, 2.4),
        "device_sync": Api("cudaDeviceSynchronize", 165, 3.0),
        "is_capturing": Api("cudaStreamIsCapturing", 317, 0.5),
        "func_attribute": Api("cudaFuncSetAttribute", 273, 0.4),
    },
    api_key="cbid",
    dnn="cudnn",
    compute_stream=7,
    comm_stream=24,
    copy_stream=28,
    multiprocessors=132,
    warp=32,
    gemm_tflops=640.0,
    fp8_tflops=1080.0,
    attention_tflops=480.0,
    attention_backward_tflops=380.0,
    memory_gbps=2700.0,
    network_gbps=50.0,
    nvlink_gbps=190.0,
    host_copy_gbps=24.0,
    launch_latency_us=4.6,
    stream_gap_us=0.9,
    graph_gap_us=0.75,
    graph_node_us=0.12,
    floor_us=1.3,
    memory_kinds=("Pinned", "Pageable"),
    memory_device_type=1,
    before_gemm=("func_attribute",),
)

AMD = Vendor(
    key="amd",
    machine="AMD MI300X",
    # ROCm numbers its agents with the host's sockets first: the first GPU of a two-socket
    # node is 2, although it is entry 0 of deviceProperties.
    device=2,
    device_properties=_node(_MI300X),
    metadata={
        "roctracer_version": 4.1,
        "hip_runtime_version": 60443483,
        "hip_driver_version": 60443483,
    },
    api={
        "launch": Api("hipLaunchKernel", 107, 4.4),
        "launch_ex": Api("hipExtModuleLaunchKernel", 65, 4.9),
        "launch_module": Api("hipModuleLaunchKernel", 169, 6.1),
        "memcpy": Api("hipMemcpyAsync", 134, 4.8),
        "memcpy_blocking": Api("hipMemcpyWithStream", 153, 6.5),
        "memset": Api("hipMemsetAsync", 157, 4.6),
        "graph_launch": Api("hipGraphLaunch", 215, 14.0),
        "event_record": Api("hipEventRecord", 59, 1.6),
        "stream_wait": Api("hipStreamWaitEvent", 262, 1.4),
        "stream_sync": Api("hipStreamSynchronize", 260, 3.1),
        "device_sync": Api("hipDeviceSynchronize", 48, 3.6),
        "is_capturing": Api("hipStreamIsCapturing", 257, 0.6),
        "get_properties": Api("hipGetDevicePropertiesR0600", 370, 0.3),
    },
    api_key="cid",
    dnn="miopen",
    compute_stream=0,
    comm_stream=3,
    copy_stream=4,
    multiprocessors=304,
    warp=64,
    gemm_tflops=600.0,
    fp8_tflops=1050.0,
    attention_tflops=400.0,
    attention_backward_tflops=280.0,
    memory_gbps=3900.0,
    network_gbps=46.0,
    nvlink_gbps=150.0,
    host_copy_gbps=26.0,
    launch_latency_us=9.5,
    stream_gap_us=1.5,
    graph_gap_us=1.1,
    graph_node_us=0.9,
    floor_us=1.8,
    memory_kinds=("Host", "Host"),
    memory_device_type=6,
    before_gemm=("get_properties",),
)

VENDORS = {NVIDIA.key: NVIDIA, AMD.key: AMD}
