"""Random traces of small jobs: several devices, threads, streams, and everything that goes wrong.

`random_trace(seed)` is the same trace every time. `job_shapes()` is a strategy for hypothesis: it
draws the shape of a job and a seed, so that a failing example shrinks to few devices and launches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker

if TYPE_CHECKING:
    from tests.support.make_trace import Document

KERNELS = (
    "ampere_sgemm_128x64_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    "void cudnn::ops::nchwToNhwcKernel<float, float>",
    "triton_poi_fused_add_mul_0",
    "Cijk_Ailk_Bljk_HB_MT128x128x32",
    "an_unknown_kernel",
)
COLLECTIVES = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_SendRecv")
COPIES = (
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoH (Device -> Pinned)",
    "Memcpy DtoD (Device -> Device)",
    "Memcpy PtoP (Device -> Device)",
)
OPERATIONS = (
    "aten::mm",
    "aten::add_",
    "aten::copy_",
    "aten::layer_norm",
    "my::operation",
)
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
)
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB")


@dataclass(frozen=True)
class JobShape:
    """How large a random job is, and what happens in it.

    Attributes:
        devices: GPUs of the process, 1 to 8.
        threads: threads that launch, 1 to 3.
        streams: streams of each device, 1 to 4.
        launches: launches in all.
        graphs: whether some launches are of CUDA graphs.
        blocked: whether some launches wait in a full queue.
        waits: whether the CPU waits for the GPU now and then.
        unlinked: whether some GPU events have no launch in the trace.
        overlapping: whether events of one stream may overlap.
        mixed_models: whether the devices are of several models.
        iterations: iterations that are marked.
        seed: of everything else.
    """

    devices: int = 1
    threads: int = 1
    streams: int = 1
    launches: int = 20
    graphs: bool = False
    blocked: bool = False
    waits: bool = False
    unlinked: bool = False
    overlapping: bool = False
    mixed_models: bool = False
    iterations: int = 0
    seed: int = 0


def job_shapes(max_devices: int = 8) -> st.SearchStrategy[JobShape]:
    """Shapes of jobs for hypothesis."""
    return st.builds(
        JobShape,
        devices=st.integers(1, max_devices),
        threads=st.integers(1, 3),
        streams=st.integers(1, 4),
        launches=st.integers(0, 60),
        graphs=st.booleans(),
        blocked=st.booleans(),
        waits=st.booleans(),
        unlinked=st.booleans(),
        overlapping=st.booleans(),
        mixed_models=st.booleans(),
        iterations=st.integers(0, 4),
        seed=st.integers(0, 2**16),
    )


def random_shape(seed: int) -> JobShape:
    """The shape of the random job of a seed."""
    chance = random.Random(seed)
    return JobShape(
        devices=chance.choice((1, 1, 2, 2, 3, 4, 8)),
        threads=chance.randint(1, 3),
        streams=chance.randint(1, 4),
        launches=chance.choice((0, 1, 2, 5, 20, 60, 150)),
        graphs=chance.random() < 0.4,
        blocked=chance.random() < 0.4,
        waits=chance.random() < 0.6,
        unlinked=chance.random() < 0.4,
        overlapping=chance.random() < 0.4,
        mixed_models=chance.random() < 0.3,
        iterations=chance.choice((0, 0, 1, 3)),
        seed=seed,
    )


def random_trace(seed: int) -> Document:
    """The random trace of a seed."""
    return trace_of(random_shape(seed))


def trace_of(shape: JobShape) -> Document:
    """A trace of a job of this shape."""
    return _Job(shape).document()


class _Job:
    """One random job while it is written; times are µs."""

    def __init__(self, shape: JobShape) -> None:
        self.shape = shape
        self.chance = random.Random(shape.seed)
        self.maker = TraceMaker()
        self.thread_time = [self.chance.uniform(0, 50) for _ in range(shape.threads)]
        self.stream_end: dict[tuple[int, int], float] = {}
        self.correlation = 0

    def document(self) -> Document:
        """The whole trace."""
        launches_until = self._iteration_bounds()
        iteration_start = self.thread_time[0]
        iteration = 0
        for number in range(self.shape.launches):
            self._launch()
            if number + 1 in launches_until:
                duration = max(self.thread_time[0] - iteration_start, 1)
                self.maker.annotation(
                    f"ProfilerStep#{iteration}", iteration_start, duration
                )
                iteration_start = self.thread_time[0] + 1
                self.thread_time[0] = iteration_start
                iteration += 1
        members: dict[str, Any] = {"deviceProperties": self._device_properties()}
        return self.maker.document(**members)

    def _iteration_bounds(self) -> set[int]:
        """After which numbers of launches an iteration ends."""
        count = self.shape.iterations
        return {self.shape.launches * (i + 1) // count for i in range(count)}

    def _device_properties(self) -> list[dict[str, Any]]:
        properties = []
        for device in range(self.shape.devices):
            model = (
                MODELS[device % len(MODELS)] if self.shape.mixed_models else MODELS[0]
            )
            properties.append({"id": device, "name": model, "numSms": 132})
        return properties

    def _launch(self) -> None:
        """An operation, what it launches, and the GPU events of that."""
        chance = self.chance
        thread = chance.randrange(self.shape.threads)
        device = chance.randrange(self.shape.devices)
        stream = 7 + chance.randrange(self.shape.streams)
        start = self.thread_time[thread] + chance.choice(
            (0.5, 2, 30, chance.expovariate(0.01))
        )
        self.correlation += 1
        correlation = self.correlation
        is_graph = self.shape.graphs and chance.random() < 0.3
        call_duration = chance.uniform(1, 8)
        if self.shape.blocked and chance.random() < 0.2:
            call_duration += chance.uniform(50, 900)
        call_start = start + 1
        call_end = call_start + call_duration
        self._operation(thread, start, call_duration + 3)
        if not (self.shape.unlinked and chance.random() < 0.3):
            name = "cudaGraphLaunch" if is_graph else "cudaLaunchKernel"
            self.maker.call(
                name,
                call_start,
                call_duration,
                correlation=correlation,
                thread=1 + thread,
            )
        for _ in range(chance.randint(2, 5) if is_graph else 1):
            self._gpu_event(call_start, device, stream, correlation)
        self.thread_time[thread] = call_end + 3
        if self.shape.waits and chance.random() < 0.15:
            self._wait(thread, device)

    def _operation(self, thread: int, start: float, duration: float) -> None:
        chance = self.chance
        if chance.random() < 0.2:
            return
        args: dict[str, Any] = {}
        if chance.random() < 0.7:
            args = {
                "Input Dims": [[256, 512], [512, 128]],
                "Input type": ["float", "float"],
            }
        if chance.random() < 0.3:
            self.maker.frame(
                "train.py(12): step", start - 0.2, duration + 0.4, thread=1 + thread
            )
        self.maker.op(
            chance.choice(OPERATIONS),
            start,
            duration,
            external_id=self.correlation,
            args=args,
            thread=1 + thread,
        )

    def _gpu_event(
        self, not_before: float, device: int, stream: int, correlation: int
    ) -> None:
        chance = self.chance
        free = self.stream_end.get((device, stream), 0.0)
        start = max(not_before + chance.uniform(1, 20), free)
        if self.shape.overlapping and chance.random() < 0.3:
            start = max(start - chance.uniform(0, 10), not_before)
        duration = chance.choice((1.5, 5.0, 40.0, chance.expovariate(0.005)))
        kind, name, args = self._kind_of_event()
        self.maker.gpu(
            kind,
            name,
            round(start, 3),
            round(duration, 3),
            correlation=correlation,
            device=device,
            stream=stream,
            args=args,
        )
        self.stream_end[device, stream] = max(free, start + duration)

    def _kind_of_event(self) -> tuple[str, str, dict[str, Any]]:
        """Category, name and arguments of a GPU event."""
        chance = self.chance
        draw = chance.random()
        if draw < 0.12:
            nbytes = chance.choice((8, 4096, 1 << 24))
            return "gpu_memcpy", chance.choice(COPIES), {"bytes": nbytes}
        if draw < 0.17:
            return "gpu_memset", "Memset (Device)", {"bytes": 4096}
        if draw < 0.3:
            args = {
                "Collective name": "allreduce",
                "In msg nelems": 4096,
                "dtype": "Float",
            }
            return "kernel", chance.choice(COLLECTIVES), args
        geometry = {"grid": [chance.choice((1, 8, 500)), 1, 1], "block": [128, 1, 1]}
        return "kernel", chance.choice(KERNELS), geometry

    def _wait(self, thread: int, device: int) -> None:
        """A call that returns when a stream of the device, or the device, has nothing to do."""
        chance = self.chance
        start = self.thread_time[thread]
        ends = [end for (of, _), end in self.stream_end.items() if of == device]
        end = max([start + 1, *ends]) + chance.uniform(-5, 10)
        self.maker.call(
            chance.choice(WAITS),
            start,
            max(end - start, 0.5),
            thread=1 + thread,
        )
        self.thread_time[thread] = max(end, start + 0.5)
