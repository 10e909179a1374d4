"""Programs of a CPU that launches and a GPU that works, as traces: who waits for whom, and why."""

from __future__ import annotations

from tests.support.make_trace import TraceMaker

#: From a launch to the start of its kernel on an idle stream, µs.
LATENCY_US = 10
#: Between two kernels of a stream, µs.
GAP_US = 1


class Program:
    """A thread that launches kernels on a device, one after the other. Times are µs.

    Attributes:
        maker: collects the events; several programs may share it.
        cpu: when the thread goes on.
        gpu: when the device has done all that was launched.
    """

    def __init__(
        self, maker: TraceMaker | None = None, *, device: int = 0, thread: int = 1
    ) -> None:
        self.maker = maker or TraceMaker()
        self.device = device
        self.thread = thread
        self.cpu = 0.0
        self.gpu = 0.0

    def launch(
        self,
        length: float,
        *,
        cost: float = 10,
        name: str = "gemm",
        op: str = "aten::mm",
    ) -> None:
        """Launch a kernel of some length, which costs the CPU some time."""
        correlation = self._correlation()
        if op:
            self.maker.op(op, self.cpu, cost, thread=self.thread)
        self.maker.call(
            "cudaLaunchKernel",
            self.cpu + 0.1 * cost,
            0.8 * cost,
            correlation=correlation,
            thread=self.thread,
        )
        start = max(self.gpu + GAP_US, self.cpu + LATENCY_US)
        self.maker.kernel(
            name, start, length, correlation=correlation, device=self.device
        )
        self.gpu = start + length
        self.cpu += cost

    def copy_and_wait(self, op: str = "aten::to", size: int = 8) -> None:
        """Copy from pageable memory to the device, and wait for that and all before it."""
        correlation = self._correlation()
        begin = self.cpu
        self.maker.call(
            "cudaMemcpyAsync",
            begin + 2,
            5,
            correlation=correlation,
            thread=self.thread,
        )
        start = max(self.gpu + GAP_US, begin + LATENCY_US)
        self.maker.gpu(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            start,
            2,
            correlation=correlation,
            device=self.device,
            args={"bytes": size},
        )
        self.gpu = start + 2
        returned = self.gpu + 5
        self.maker.call(
            "cudaStreamSynchronize", begin + 8, returned - begin - 8, thread=self.thread
        )
        self.cpu = returned + 2
        length = self.cpu - begin
        self.maker.op(op, begin, length, thread=self.thread)
        self.maker.op("aten::copy_", begin + 1, length - 2, thread=self.thread)

    def pause(self, length: float, frame: str = "") -> None:
        """Do something else than to launch; perhaps in a Python function."""
        if frame:
            self.maker.frame(frame, self.cpu, length, thread=self.thread)
        self.cpu += length

    def _correlation(self) -> int:
        return len(self.maker.events) + 1


def wait_per_layer(layers: int = 12, *, devices: int = 2) -> TraceMaker:
    """Each GPU's thread waits for it once a layer, though the CPU is faster than the GPU.

    After each wait kernels are shorter than their launches for 2 ms, of which the GPU idles 1.5.
    """
    maker = TraceMaker()
    for device in range(devices):
        program = Program(maker, device=device, thread=10 + device)
        for _ in range(layers):
            program.copy_and_wait()
            for _ in range(40):
                program.launch(12, cost=50)
            for _ in range(40):
                program.launch(200, cost=50)
    return maker
